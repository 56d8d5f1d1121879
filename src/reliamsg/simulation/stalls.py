"""Stalls: work that is unfinished after the last fault, its cause according to the product, and whether the cause is
true.

Nothing may stand still for longer than the settings of the run imply (:class:`Liveness`). A stall is excused only where
a client named the stream that it is about, and a cause that the run's own faults confirm for that stream
(:class:`Excuses`). Everything else is a violation (:func:`find_stalls`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from reliamsg.consumer.status import ConsumerStatus
from reliamsg.errors import ProducerFenced, QuarantineFull, ReliamsgError
from reliamsg.message import Stream
from reliamsg.producer.status import ProducerStatus
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.network import HEARTBEATS
from reliamsg.simulation.scenario import Scenario
from reliamsg.simulation.settings import ClientSettings

__all__ = [
    "STATUS_S",
    "Bounds",
    "ConsumerReport",
    "Excuses",
    "Liveness",
    "ProducerReport",
    "Progress",
    "beside_unanswered",
    "find_stalls",
]

SLACK_S = 30.0
"""For what has no setting of its own: requests are repeated at least every 10 s, a supervisor waits up to 5 s, and
groups that an MQTT broker does not show are looked for every 15 s."""
STATUS_S = 60.0
"""A producer announces at least this often what a group has not settled."""
QUARANTINED_S = 45.0
"""How long after the last fault a control address may still be in quarantine: 10 s first, then 20 s."""
FOUND_OUT = 30
"""How many confirm timeouts it takes at most until streams that a site does not answer are found out, and retried."""
MESSAGE_BYTES = 300
"""More bytes than any message takes when it is sent again."""

Key = tuple[str, Stream] | str
"""A group and a stream; a producer; or empty for everything else that is open."""
Place = tuple[str, Stream, str]
"""A group, a stream, and a consumer of the group."""
_WHY_FULL = re.compile(
    r"a message of stream (?P<producer>[^/]+)/(?P<rest>\S+) can't be taken in \((?P<why>[a-z-]+)\)"
)
FILLS: dict[str, tuple[str, ...]] = {
    "far-epoch": ("far_epoch", "forged"),
    "too-many-streams": ("flood", "forged"),
}
"""By what fills a quarantine, according to its consumer: the faults that put such a thing there."""
GONE = ("restored", "wal_lost")
"""Faults after which no producer can vouch for what an outbox had sent."""


@dataclass(frozen=True)
class Bounds:
    """How many seconds things may take once nothing fails any more."""

    scenario: Scenario
    unrepaired_groups: Set[str]
    """Groups whose producers hold the missing messages, and do not send them."""
    addresses_refused: bool
    """Some control address was refused."""

    def of(self, key: Key) -> float:
        """For something that is left."""
        if isinstance(key, tuple):
            return self.of_group(key[0])
        slowest = max(map(self.of_group, self.scenario.groups))
        # A producer waits for room until groups have settled something.
        return slowest + (producer_bound(self.scenario.producers[key]) if key else 0.0)

    def of_group(self, group: str) -> float:
        """Between two messages of a stream that are delivered or declared."""
        scenario = self.scenario
        clients = [settings for name, settings in scenario.consumers.items() if name.startswith(f"{group}-")]
        waits = max(settings["gap_timeout"] for settings in clients)
        waits += 2 * max(settings["operator_s"] for settings in clients)
        if group in self.unrepaired_groups:
            waits += max(settings["repair_timeout"] for settings in clients)
        if self.addresses_refused:
            waits += QUARANTINED_S
        rates = [each["max_repair_bytes_per_second"] for each in scenario.producers.values()]
        slowest = min((rate for rate in rates if rate is not None), default=None)
        repairs = 0.0 if slowest is None else scenario.messages * MESSAGE_BYTES / slowest
        takeover = 2 * max(settings["takeover_timeout"] for settings in clients)
        requests = 4 * max(settings["repair_delay"] for settings in clients)
        connecting = max(map(_connecting, clients))
        announcements = max(STATUS_S + producer_bound(each) for each in scenario.producers.values())
        return float(SLACK_S + waits + repairs + takeover + requests + connecting + announcements)


def producer_bound(settings: ClientSettings) -> float:
    """How many seconds it may take until a producer has sent something, and knows that."""
    confirms = max(site.confirm_timeout for site in settings.sites)
    waits = settings["block_timeout"] if settings["when_full"] == "block" else 0.0
    announcements = settings["hello_timeout"] + settings["status_interval"]
    return float(waits + announcements + 2 * confirms) + _connecting(settings)


def beside_unanswered(settings: ClientSettings, site: str) -> float:
    """How many seconds it may take until a site has confirmed what a producer sends there, except for a topic that it
    does not answer (P18): a few timeouts until the topic is found out, and then as much for its retries as for the
    rest."""
    timeout = next(each.confirm_timeout for each in settings.sites if each.name == site)
    return float(2 * producer_bound(settings) + 2 * SLACK_S + FOUND_OUT * timeout)


def _connecting(settings: ClientSettings) -> float:
    """Until a client has noticed that a connection is gone, and has another."""
    return max(
        HEARTBEATS[1] * site.heartbeat + 2 * site.connect_timeout + 3 * site.backoff_max
        for site in settings.sites
    )


@dataclass(frozen=True)
class Progress:
    """How far a run is at one moment."""

    now: float
    left: Mapping[Key, int]
    """How much is left, where anything is."""
    reached: Mapping[Place, tuple[int, int]]
    """The highest (epoch, number) that each consumer delivered or declared."""


class Liveness:
    """How long each part of the remaining work has stood still. Call :meth:`update` regularly once faults are over."""

    def __init__(self) -> None:
        self._least: dict[Key, tuple[int, float]] = {}
        """The minimum of the remaining work, and since when."""
        self._furthest: dict[Place, tuple[int, int]] = {}
        """The position of each consumer: messages owed to a group may be behind many others, with gaps between them."""
        self._since: dict[Key, float] = {}
        """The time since which each part of the remaining work has not become less."""

    def update(self, progress: Progress) -> None:
        """Record the remaining work."""
        moved = self._moved(progress)
        for key, count in progress.left.items():
            least, _ = self._least.get(key, (count + 1, progress.now))
            if count < least or key in moved:
                self._least[key] = min(count, least), progress.now
        self._since = {key: self._least[key][1] for key in progress.left}

    def _moved(self, progress: Progress) -> set[Key]:
        """The groups' streams in which a consumer has come further than ever before; if there are any, also everything
        else that is open."""
        moved = set[Key]()
        for place, reached in progress.reached.items():
            if reached > self._furthest.get(place, (0, 0)):
                self._furthest[place] = reached
                moved |= {place[:2], ""}
        return moved

    def stalled(self, now: float, bounds: Bounds) -> bool:
        """Whether nothing that is left has become less for longer than it may take."""
        return all(now > since + bounds.of(key) for key, since in self._since.items())


class Excuses:
    """Which streams need not be finished, because a client terminated with a cause that the faults confirm."""

    def __init__(
        self,
        faults: Faults,
        producers: Mapping[str, ReliamsgError | None],
        groups: Mapping[str, Mapping[str, ReliamsgError | None]],
    ) -> None:
        """`producers` and, by group, consumers: the errors with which they terminated for good, if any."""
        self._faults = faults
        self._producers = {name for name, error in producers.items() if self._confirms(name, error)}
        self.groups: set[str] = {
            group
            for group, consumers in groups.items()
            if all(self._confirms(name, error) for name, error in consumers.items())
        }
        """Groups that have no consumers left."""

    def excuses_producer(self, name: str) -> bool:
        """Whether a producer need not finish."""
        return name in self._producers

    def excuses_stream(self, group: str, stream: Stream) -> bool:
        """Whether a group need not receive all of a stream."""
        return stream.producer in self._producers or group in self.groups

    def _confirms(self, client: str, error: ReliamsgError | None) -> bool:
        """Whether the cause that a client named is true of the very stream or file that it named."""
        struck_at = self._faults.struck_at
        if isinstance(error, ProducerFenced):
            # The named epoch is later, from a run that its disk no longer contains.
            return any(struck_at(fault, client) for fault in GONE)
        if isinstance(error, QuarantineFull):
            # Nothing that can't be told from a message worth investigating may be thrown away.
            found = _WHY_FULL.search(str(error))
            return found is not None and (
                any(struck_at(fault, found["producer"]) for fault in FILLS.get(found["why"], ()))
                or (found["why"] == "far-epoch" and self._is_far_and_gone(client, found["producer"]))
            )
        return False

    def _is_far_and_gone(self, consumer: str, producer: str) -> bool:
        """Whether genuine epochs may be far ahead of a consumer's clock, and no producer is left to vouch for them."""
        struck, struck_at = self._faults.struck, self._faults.struck_at
        wrong = any(struck_at("clock_off", client) for client in (consumer, producer))
        return (wrong or "clock_jump" in struck) and any(struck_at(fault, producer) for fault in GONE)


@dataclass(frozen=True)
class ProducerReport:
    """A producer that may have stalled."""

    name: str
    is_done: bool
    left: int
    """Messages still to be published."""
    status: ProducerStatus | None
    """None where it is not open."""
    terminated_with: ReliamsgError | None

    def lacks_only(self, groups: Set[str]) -> bool:
        """Whether all that it lacks, according to its status, are confirms for some of these groups, which no site
        shows."""
        if self.status is None or self.left:
            return False
        sites = self.status.sites.values()
        if any(site.parked or site.state != "connected" for site in sites):
            return False
        unseen = {each.group for site in sites for each in site.unseen}
        return bool(unseen) and unseen <= groups

    def __str__(self) -> str:
        if self.status is None:
            return f"terminated with {self.terminated_with!r}"
        sites = self.status.sites.items()
        parked = [f"{at}: {each.topic} {each.reason}" for at, site in sites for each in site.parked]
        down = [f"{at} {site.state} {site.error}" for at, site in sites if site.state != "connected"]
        causes = "; ".join([*parked, *down]) or "no cause"
        return f"{self.left} to publish, {self.status.pending} pending; {causes}"


@dataclass(frozen=True)
class ConsumerReport:
    """A consumer of a group that may have stalled."""

    name: str
    group: str
    status: ConsumerStatus | None
    """None where it is not open."""
    terminated_with: ReliamsgError | None

    def about(self, stream: Stream) -> str:
        """Its report about a stream."""
        if self.status is None:
            return f"{self.name} terminated with {self.terminated_with!r}"
        found = self.status.streams.get(stream)
        return f"{self.name} is {self.status.role}, {self.status.error or 'without an error'}, {found}"


def find_stalls(
    excuses: Excuses,
    producers: Iterable[ProducerReport],
    consumers: Iterable[ConsumerReport],
    left: Mapping[Key, int],
) -> Iterator[str]:
    """Nothing more is going to happen: everything that is left and not excused."""
    for producer in producers:
        if not (
            producer.is_done or excuses.excuses_producer(producer.name) or producer.lacks_only(excuses.groups)
        ):
            yield f"{producer.name}: {producer}"
    reports = tuple(consumers)
    for key, count in left.items():
        if isinstance(key, tuple) and not excuses.excuses_stream(*key):
            group, stream = key
            says = "; ".join(each.about(stream) for each in reports if each.group == group)
            messages = "1 message" if count == 1 else f"{count} messages"
            yield f"{group} still lacks {messages} of {stream}: {says}"
