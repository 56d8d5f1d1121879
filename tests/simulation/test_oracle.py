"""The judge of simulated runs, by itself."""

from __future__ import annotations

from reliamsg.message import MessageId, Stream
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.oracle import Oracle

STREAM = Stream("p", "t", 0)


def published(count: int) -> tuple[Oracle, list[MessageId]]:
    """A judge that knows of some messages, durable and given to nobody."""
    oracle = Oracle(Scheduler(0.0), ["g"], 5.0, 1)
    messages = [MessageId("p", 10, "t", 0, n) for n in range(1, count + 1)]
    for message in messages:
        oracle.durable(oracle.invoked(STREAM, f"{message.seq}".encode()), message)
    return oracle, messages


def test_what_was_acknowledged_by_a_consumer_that_crashed_is_waited_for() -> None:
    oracle, messages = published(5)
    for message in messages:
        oracle.acknowledged("g", message)
    assert not oracle.open_for("g")
    oracle.no_doubt("g", STREAM, 10, 1, 2)
    oracle.doubt("g", messages)
    assert [each.message for each in oracle.open_for("g")] == messages[2:]
    oracle.no_doubt("g", STREAM, 10, 3, 4)
    assert [each.message for each in oracle.open_for("g")] == messages[4:]
    oracle.acknowledged("g", messages[4])
    assert not oracle.open_for("g")
