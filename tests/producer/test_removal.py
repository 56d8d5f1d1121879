"""Messages that are taken out of the outbox on demand, on simulated time."""

from __future__ import annotations

import pytest

from reliamsg import MessageId
from reliamsg.errors import ConfigError, MessageRemoved
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.flushing import flush
from reliamsg.store.outbox_view import inspect_outbox
from tests.producer.control_tools import Bench, settled, state
from tests.producer.tools import journal

GROUPS = {"t": ["g"]}


def remove(engine: ProducerEngine, first: int, last: int, topic: str = "t") -> int:
    epoch = engine._outbox.epoch
    return engine.remove(MessageId("p", epoch, topic, 0, first), MessageId("p", epoch, topic, 0, last))


def test_what_was_not_sent_is_never_sent(bench: Bench) -> None:
    bench.network["dc1"].down()
    engine = bench.open(hello_timeout=0)
    kept = bench.publish(engine, "t", b"1")
    gone = bench.publish(engine, "t", b"2", b"3")
    cut = bench.publish(engine, "t", b"4", b"5", b"6")
    assert remove(engine, 2, 4) == 3
    with pytest.raises(MessageRemoved):
        gone.wait(0.0)
    bench.run(1.0)
    assert engine.pending() == 3
    bench.network["dc1"].up()
    bench.run(1.0)
    assert [body for _, _, body in bench.sinks["dc1"].messages] == [b"1", b"5", b"6"]
    assert kept.done
    assert cut.done
    assert not gone.done
    assert gone.sites == {"dc1": "removed"}
    assert engine.pending() == engine.admission.stored == 0
    assert engine.status().sites["dc1"].behind == 0
    told = [(row.first, row.last, row.topic) for row in journal(bench.path, "removed")]
    assert told == [(2, 4, "t")]


def test_groups_are_told_at_once_and_after_a_restart(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0)
    bench.publish(engine, "t", *(b"%d" % n for n in range(1, 10)))
    bench.run(5.0)
    group, epoch = bench.group("g"), engine._outbox.epoch
    group.tell(state("t", missing=[(epoch, 3, 8)], wanted=[(epoch, 3, 8)]))
    assert remove(engine, 4, 5) == 2
    assert remove(engine, 5, 6) == 1
    bench.run(0.0)
    assert group.newest().removed == [(epoch, 4, 6)]
    assert group.repaired() == [1, 2, 3, 7, 8, 9]
    bench.close(engine)
    bench.run(1.0)
    again = bench.open(hello_timeout=0)
    group.call("t")
    bench.run(0.0)
    assert group.newest().removed == [(epoch, 4, 6)]
    assert again.fatal is None


def test_in_flight(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0)
    broker = bench.network["dc1"]
    broker.hold_confirms()
    bench.publish(engine, "t", b"1", b"2")
    bench.publish(engine, "t", b"3", b"4", b"5")
    assert remove(engine, 2, 3) == 2
    assert remove(engine, 1, 1) == 1, "all of the first batch"
    broker.release_confirms()
    bench.run(2.0)
    assert engine.pending() == engine.admission.stored == 0
    assert engine.shared.core.sites["dc1"].bytes == 0
    broker.cut()
    bench.publish(engine, "t", b"6")
    bench.run(2.0)
    assert engine.pending() == 0
    assert [body for _, _, body in bench.sinks["dc1"].messages][-1] == b"6"


@pytest.mark.parametrize("crash", [True, False])
def test_nobody_waits_after_a_restart_for_what_was_removed_before_it(bench: Bench, crash: bool) -> None:
    bench.network["dc1"].down()
    engine = bench.open(hello_timeout=0)
    for body in (b"1", b"2", b"3"):
        bench.publish(engine, "t", body)
    assert remove(engine, 2, 2) == 1, "all of a batch, behind one that no site has confirmed"
    assert remove(engine, 3, 3) == 1, "the newest"
    bench.close(engine, crash=crash)
    again = bench.open(hello_timeout=0)
    assert again.status().sites["dc1"].behind == 1
    bench.network["dc1"].up()
    bench.run(5.0)
    flush(again, 0.0)
    assert again.status().sites["dc1"].behind == again.pending() == 0
    bench.publish(again, "t", b"4")
    flush(again, 0.0)
    assert [body for _, _, body in bench.sinks["dc1"].messages] == [b"1", b"4"]


def test_a_hole_in_the_middle(bench: Bench) -> None:
    """What is behind it becomes a batch of its own, behind all others; consumers put it in its place."""
    bench.network["dc1"].down()
    engine = bench.open(GROUPS, hello_timeout=0, release="consumed", retain_seconds=0.0)
    bench.publish(engine, "t", b"1", b"2", b"3")
    bench.publish(engine, "t", b"4")
    assert remove(engine, 2, 2) == 1
    bench.network["dc1"].up()
    bench.run(1.0)
    assert [n for _, n, _ in bench.sinks["dc1"].messages] == [1, 4, 3]
    receipt = bench.publish(engine, "t", b"5")
    assert receipt.id is not None
    assert receipt.id.seq == 5
    group = bench.group("g")
    group.tell(settled(engine, "t", 3))
    bench.run(5.0)
    assert inspect_outbox(bench.path).messages == 3, "4 and 5; 3 is behind them, and leaves with them"
    group.tell(settled(engine, "t", 5))
    bench.run(5.0)
    assert inspect_outbox(bench.path).messages == 0
    assert engine.admission.stored == engine.retention.stored_bytes == 0


def test_what_fills_the_outbox_makes_room(bench: Bench) -> None:
    engine = bench.open(GROUPS, hello_timeout=0, release="consumed", max_bytes=10_000, retain_seconds=0.0)
    for _ in range(4):
        bench.publish(engine, "t", bytes(2_000))
    bench.run(2.0)
    assert remove(engine, 1, 2) == 2
    bench.run(0.1)
    bench.publish(engine, "t", bytes(2_000))
    bench.publish(engine, "t", bytes(2_000))


def test_what_is_gone_already_is_not_removed(bench: Bench) -> None:
    engine = bench.open(hello_timeout=0, retain_seconds=0.0)
    bench.publish(engine, "t", b"1", b"2")
    bench.run(5.0)
    assert remove(engine, 1, 2) == 0
    assert journal(bench.path, "removed") == []


@pytest.mark.parametrize(("first", "last"), [(2, 1), (0, 1), (1, 3), (5, 6)])
def test_no_such_range(bench: Bench, first: int, last: int) -> None:
    engine = bench.open(hello_timeout=0)
    bench.publish(engine, "t", b"1", b"2")
    with pytest.raises(ConfigError):
        remove(engine, first, last)
    with pytest.raises(ConfigError):
        remove(engine, 1, 1, "other")
    ids = MessageId("p", 1, "t", 0, 1), MessageId("p", engine._outbox.epoch, "t", 0, 1)
    for pair in (ids, (ids[0], ids[0])):
        with pytest.raises(ConfigError):
            engine.remove(*pair)
