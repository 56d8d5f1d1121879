"""What did not end in time after the last fault: why, in the product's own words, and whether that can be true.

A stall is excused only where a client said which stream it is about, and named a cause that this run's own faults
confirm. Everything else is a violation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.errors import ProducerFenced, QuarantineFull, ReliamsgError
from reliamsg.message import Stream

if TYPE_CHECKING:
    from reliamsg.simulation.consuming import ConsumerProcess
    from reliamsg.simulation.process import Process
    from reliamsg.simulation.producing import ProducerProcess
    from reliamsg.simulation.world import World

__all__ = ["excused_streams", "judge_stalls"]

CAUSES: tuple[tuple[type[ReliamsgError], frozenset[str]], ...] = (
    # Its name belongs to a later epoch, of a life that its disk does not remember.
    (ProducerFenced, frozenset({"restored", "wal_lost"})),
    # Nothing that can be told from a message in need of a look may be thrown away.
    (
        QuarantineFull,
        frozenset({"damage", "far_epoch", "flood", "forged", "replayed", "restored", "wal_lost"}),
    ),
)
"""What may end a client for good, and the faults that can lead to it: one of them must have struck."""


def judge_stalls(world: World) -> None:
    """Nothing more will happen: report what is still open, unless it is excused."""
    excused = excused_streams(world)
    for producer in world.producers:
        if not producer.done and not _ended_for_a_reason(world, producer):
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
    over = {
        group
        for group in world.scenario.groups
        if all(_ended_for_a_reason(world, each) for each in world.consumers if each.group == group)
    }
    return {
        (group, stream)
        for group in world.scenario.groups
        for stream in streams
        if stream.producer in ended or group in over
    }


def _ended_for_a_reason(world: World, process: Process) -> bool:
    error = process.ended_by
    return any(
        isinstance(error, kind) and not faults.isdisjoint(world.faults.struck) for kind, faults in CAUSES
    )


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
