"""What did not end in time after the last fault: why, in the product's own words, and whether that can be true.

Nothing may stand still for longer than the settings of the run imply (:class:`Liveness`). A stall is excused only where
a client said which stream it is about, and named a cause that the run's own faults confirm for that stream. Everything
else is a violation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from typing import TYPE_CHECKING

from reliamsg.errors import ProducerFenced, QuarantineFull
from reliamsg.message import Stream
from reliamsg.simulation.network import HEARTBEATS
from reliamsg.simulation.settings import ClientSettings

if TYPE_CHECKING:
    from reliamsg.simulation.consuming import ConsumerProcess
    from reliamsg.simulation.process import Process
    from reliamsg.simulation.producing import ProducerProcess
    from reliamsg.simulation.world import World

__all__ = ["STATUS_S", "Liveness", "excused_streams", "group_bound", "judge_stalls"]

SLACK_S = 30.0
"""For what has no setting of its own: requests are repeated every 10 s at least, a supervisor waits up to 5 s, groups
that an MQTT broker does not show are looked for every 15 s."""
STATUS_S = 60.0
"""A producer with anything that a group has not settled says so this often at least."""
QUARANTINED_S = 45.0
"""So long after the last fault a control address may still be in quarantine: for 10 s first, then for 20 s."""
MESSAGE_BYTES = 300
"""A message takes less, sent again."""

_Key = tuple[str, Stream] | str
"""A stream at a group; a producer; empty for what is open besides."""
_Place = tuple[str, Stream, str]
"""A group's consumer in a stream."""
_WHY_FULL = re.compile(
    r"a message of stream (?P<producer>[^/]+)/(?P<rest>\S+) can't be taken in \((?P<why>[a-z-]+)\)"
)
FILLS: dict[str, tuple[str, ...]] = {
    "far-epoch": ("far_epoch", "forged"),
    "too-many-streams": ("flood", "forged"),
}
"""By what a consumer says that its quarantine is full of: the faults that put such a thing there."""
GONE = ("restored", "wal_lost")
"""Faults after which no producer vouches any more for what an outbox had sent."""


class Liveness:
    """How long everything that is still to come has stood still. Call :meth:`look` regularly, from when faults end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._least: dict[_Key, tuple[int, float]] = {}
        """Of each stream at a group, producer, and of what is open besides: the least that was left, and since when."""
        self._furthest: dict[_Place, tuple[int, int]] = {}
        """How far each consumer has come: what is owed to a group may be behind much that is not, with gaps in it."""
        self._stands: dict[_Key, float] = {}
        """By what is left now: since when it is not less."""

    def look(self) -> None:
        """Note what is left."""
        world, left = self._world, Counter[_Key]()
        for group in world.scenario.groups:
            for operation in world.oracle.open_for(group):
                left[group, operation.stream] += 1
        for producer in world.producers:
            if not producer.done:
                left[producer.name] = 1 + producer.left + producer.pending
        if not left and not world.is_quiet:
            left[""] = 1
        now, moved = world.scheduler.now, self._moved()
        for key, count in left.items():
            least, _ = self._least.get(key, (count + 1, now))
            if count < least or key in moved:
                self._least[key] = min(count, least), now
        self._stands = {key: self._least[key][1] for key in left}

    def _moved(self) -> set[_Key]:
        """The streams in which any consumer has come further than ever before; with what is open besides, if there
        are any."""
        oracle, moved = self._world.oracle, set[_Key]()
        for group in self._world.scenario.groups:
            for stream in oracle.streams:
                for consumer, place in oracle.reached(group, stream).items():
                    if place > self._furthest.get((group, stream, consumer), (0, 0)):
                        self._furthest[group, stream, consumer] = place
                        moved |= {(group, stream), ""}
        return moved

    @property
    def stalled(self) -> bool:
        """Whether nothing that is left has become less for longer than it may take."""
        now = self._world.scheduler.now
        return all(now > since + self._bound(key) for key, since in self._stands.items())

    def _bound(self, key: _Key) -> float:
        world = self._world
        if isinstance(key, tuple):
            return group_bound(world, key[0])
        every = [group_bound(world, group) for group in world.scenario.groups]
        # A producer waits for room until groups have settled something.
        return max(every) + (producer_bound(world.scenario.producers[key]) if key else 0.0)


def group_bound(world: World, group: str) -> float:
    """So many seconds at most pass, once nothing fails any more, between two messages of a stream that are delivered or
    declared."""
    scenario = world.scenario
    clients = [settings for name, settings in scenario.consumers.items() if name.startswith(f"{group}-")]
    waits = max(settings["gap_timeout"] for settings in clients)
    waits += 2 * max(settings["operator_s"] for settings in clients)
    if group in world.unheard:  # producers say that they hold what is missing, and do not send it
        waits += max(settings["repair_timeout"] for settings in clients)
    if "address_refused" in world.faults.struck:
        waits += QUARANTINED_S
    rates = [each["max_repair_bytes_per_second"] for each in scenario.producers.values()]
    slowest = min((rate for rate in rates if rate is not None), default=None)
    repairs = 0.0 if slowest is None else scenario.messages * MESSAGE_BYTES / slowest
    takes_over = 2 * max(settings["takeover_timeout"] for settings in clients)
    asks = 4 * max(settings["nak_delay"] for settings in clients)
    connects = max(map(_connecting, clients))
    tells = max(STATUS_S + producer_bound(each) for each in scenario.producers.values())
    return float(SLACK_S + waits + repairs + takes_over + asks + connects + tells)


def producer_bound(settings: ClientSettings) -> float:
    """So many seconds at most pass until a producer has sent something, and knows that."""
    confirms = max(site.confirm_timeout for site in settings.sites)
    waits = settings["block_timeout"] if settings["when_full"] == "block" else 0.0
    told = settings["hello_timeout"] + settings["status_interval"]
    return float(waits + told + 2 * confirms) + _connecting(settings)


def _connecting(settings: ClientSettings) -> float:
    """Until a client knows that a connection is gone, and has another."""
    return max(
        HEARTBEATS[1] * site.heartbeat + 2 * site.connect_timeout + 3 * site.backoff_max
        for site in settings.sites
    )


def judge_stalls(world: World) -> None:
    """Nothing more will happen: report what is still open, unless it is excused."""
    excused, over = excused_streams(world), _groups_over(world)
    for producer in world.producers:
        if not (producer.done or _ended_for_a_reason(world, producer) or _lacks_only(producer, over)):
            world.oracle.violate("stalled", f"{producer.name}: {_producer_says(producer)}")
    for group in world.scenario.groups:
        still: dict[Stream, int] = {}
        for operation in world.oracle.open_for(group):
            if (group, operation.stream) not in excused:
                still[operation.stream] = still.get(operation.stream, 0) + 1
        for stream, count in still.items():
            says = "; ".join(_consumer_says(each, stream) for each in world.consumers if each.group == group)
            world.oracle.violate("stalled", f"{group} has {count} messages of {stream} to come: {says}")


def excused_streams(world: World) -> set[tuple[str, Stream]]:
    """The streams of which a group need not be given all: their producer, or all of the group's consumers, ended and
    said why, and that is so."""
    streams = {operation.stream for operation in world.oracle.operations.values()}
    ended = {each.name for each in world.producers if _ended_for_a_reason(world, each)}
    over = _groups_over(world)
    return {
        (group, stream)
        for group in world.scenario.groups
        for stream in streams
        if stream.producer in ended or group in over
    }


def _groups_over(world: World) -> set[str]:
    """The groups of which all consumers ended and said why, and that is so."""
    return {
        group
        for group in world.scenario.groups
        if all(_ended_for_a_reason(world, each) for each in world.consumers if each.group == group)
    }


def _lacks_only(producer: ProducerProcess, over: Set[str]) -> bool:
    """Whether a producer says that all that it lacks are confirms for groups that no site shows, and all of these have
    ended."""
    if producer.engine is None or producer.left:
        return False
    sites = producer.engine.status().sites.values()
    if any(site.parked or site.state != "connected" for site in sites):
        return False
    unseen = {each.group for site in sites for each in site.unseen}
    return bool(unseen) and unseen <= over


def _ended_for_a_reason(world: World, process: Process) -> bool:
    """Whether what a client ended with is so, of the very stream or file that it names."""
    error = process.ended_by
    if isinstance(error, ProducerFenced):
        # Its name belongs to a later epoch, of a life that its disk does not remember.
        return any(world.faults.struck_at(name, process.name) for name in GONE)
    if isinstance(error, QuarantineFull):
        # Nothing that can't be told from a message in need of a look may be thrown away.
        found = _WHY_FULL.search(str(error))
        return found is not None and (
            any(world.faults.struck_at(name, found["producer"]) for name in FILLS.get(found["why"], ()))
            or (found["why"] == "far-epoch" and _is_far_and_gone(world, process.name, found["producer"]))
        )
    return False


def _is_far_and_gone(world: World, consumer: str, producer: str) -> bool:
    """Whether genuine epochs may be far ahead of a consumer's clock, and nobody is left who would vouch for them."""
    faults = world.faults
    wrong = any(faults.struck_at("clock_off", name) for name in (consumer, producer))
    return (wrong or "clock_jump" in faults.struck) and any(faults.struck_at(name, producer) for name in GONE)


def _producer_says(producer: ProducerProcess) -> str:
    """What its status tells of a producer that is not done."""
    engine = producer.engine
    if engine is None:
        return f"ended by {producer.ended_by!r}"
    status = engine.status()
    parked = [
        f"{at}: {each.topic} {each.reason}" for at, site in status.sites.items() for each in site.parked
    ]
    down = [
        f"{at} {site.state} {site.error}" for at, site in status.sites.items() if site.state != "connected"
    ]
    return (
        f"{producer.left} to publish, {status.pending} pending; {'; '.join([*parked, *down]) or 'no cause'}"
    )


def _consumer_says(consumer: ConsumerProcess, stream: Stream) -> str:
    status = consumer.status()
    if status is None:
        return f"{consumer.name} ended by {consumer.ended_by!r}"
    found = status.streams.get(stream)
    return f"{consumer.name} is {status.role}, {status.error or 'without an error'}, {found}"
