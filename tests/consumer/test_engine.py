"""The engine between in-memory sites, without threads: order, once, acknowledgements last, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer import commits
from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.dead_letters import LateItem
from reliamsg.consumer.deliveries import GapItem
from reliamsg.message import Message, Prev
from tests.consumer.tools import Bench, body_of, frame, send, seqs


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db", gap_timeout=5.0)


def journal(bench: Bench, *kinds: str) -> list[tuple[str, int, int, int]]:
    from reliamsg.store.database import open_readonly
    from reliamsg.store.journal import read_journal

    connection = open_readonly(bench.path)
    try:
        return [(r.kind, r.epoch, r.first, r.last) for r in read_journal(connection) if r.kind in kinds]
    finally:
        connection.close()


def first_of_chunk(bench: Bench) -> tuple[DeliverySlice, Message]:
    """Ten messages in hand, and the first of them given out."""
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    chunk = bench.engine.deliveries.take(1, 10)
    assert isinstance(chunk, DeliverySlice)
    message = chunk.next()
    assert message is not None
    return chunk, message


def test_two_sites_deliver_once_in_order(bench: Bench) -> None:
    for first in range(1, 101, 10):
        for broker in bench.network.brokers.values():
            send(broker, first, first + 9)
    bench.settle()
    got = bench.take()
    assert seqs(got) == list(range(1, 101))
    assert [m.body for m in got] == [body_of(10, n) for n in range(1, 101)]
    assert not any(m.redelivered for m in got)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    assert journal(bench, "delivered") == [("delivered", 10, 1, 100)]
    assert journal(bench, "acknowledged") == [("acknowledged", 10, 1, 100)]


def test_nothing_is_acknowledged_to_the_broker_before_it_is_safe(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle(0.01)
    got = bench.take(ack=False)
    assert seqs(got) == list(range(1, 11))
    assert bench.queued()["dc1"] == 1
    for message in got[:-1]:
        message.ack()
    bench.settle(0.02)
    assert bench.queued()["dc1"] == 1
    got[-1].ack()
    bench.settle(0.02)
    assert bench.queued()["dc1"] == 0
    assert "spill" not in bench.points


def test_what_is_not_acknowledged_in_time_is_persisted(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    got = bench.take(ack=False)
    bench.settle(0.2)
    assert bench.queued()["dc1"] == 0
    assert bench.points.count("spilled") == 1
    bench.reopen()
    again = bench.take()
    assert seqs(again) == seqs(got)
    assert all(m.redelivered for m in again)
    assert bench.inbox.held_bytes == 0


def test_out_of_order_batches_are_persisted_at_once_and_handed_out_in_order(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    send(bench.network["dc1"], 21, 30)
    send(bench.network["dc1"], 31, 40)
    bench.settle(0.01)
    assert bench.queued()["dc1"] == 0
    assert bench.take() == []
    bench.reopen()
    assert bench.take() == []
    send(bench.network["dc2"], 11, 20)
    bench.settle()
    got = bench.take()
    assert seqs(got) == list(range(11, 41))
    assert [m.body for m in got] == [body_of(10, n) for n in range(11, 41)]
    assert bench.inbox.held_bytes == 0


def test_a_gap_expires_on_its_own_clock_and_is_declared_when_accepted(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(4.5)
    assert bench.engine.deliveries.take(1, 10) is None
    bench.settle(1.0)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    assert (item.gap.epoch, item.gap.first, item.gap.last, item.gap.reason) == (10, 11, 20, "expired")
    assert journal(bench, "declared") == []
    assert bench.engine.deliveries.accept(item.gap)
    assert seqs(bench.take()) == list(range(21, 31))
    assert journal(bench, "delivered", "declared") == [
        ("delivered", 10, 1, 10), ("declared", 10, 11, 20), ("delivered", 10, 21, 30)
    ]  # fmt: skip
    assert not bench.engine.deliveries.accept(item.gap)


def test_a_gap_that_was_raised_can_still_be_filled(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    bench.take()
    bench.settle(6.0)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    send(bench.network["dc2"], 11, 20)
    bench.settle()
    assert seqs(bench.take()) == list(range(11, 31))
    assert not bench.engine.deliveries.accept(item.gap)
    assert journal(bench, "declared") == []


def test_the_clock_stands_while_messages_before_the_gap_are_unacknowledged(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    got = bench.take(ack=False)
    bench.settle(30.0)
    assert bench.engine.deliveries.take(1, 10) is None
    for message in got:
        message.ack()
    bench.settle(4.0)
    assert bench.engine.deliveries.take(1, 10) is None
    bench.settle(2.0)
    assert isinstance(bench.engine.deliveries.take(1, 10), GapItem)


def test_the_clock_stands_while_no_site_is_connected(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    bench.take()
    for broker in bench.network.brokers.values():
        broker.down()
    bench.settle(60.0)
    assert bench.engine.deliveries.take(1, 10) is None
    bench.network["dc2"].up()
    bench.settle(6.0)
    assert isinstance(bench.engine.deliveries.take(1, 10), GapItem)


def test_what_has_elapsed_survives_a_crash(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    bench.take()
    bench.settle(4.5)
    bench.reopen()
    bench.settle(1.8)
    assert isinstance(bench.engine.deliveries.take(1, 10), GapItem)


def test_no_gap_expires_while_it_is_not_known_whether_another_inbox_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0, skip_gaps=True)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    bench.take()
    bench.settle(4.5)
    lease = bench.engine.shared.role.lease
    with monkeypatch.context() as deaf:
        deaf.setattr(lease, "came_back", lambda heartbeat, now: False)
        lease.until = bench.now
        bench.settle(60.0)
    assert not journal(bench, "declared")
    bench.settle(10.0)
    assert seqs(bench.take()) == list(range(21, 31))
    assert journal(bench, "declared") == [("declared", 10, 11, 20)]


def test_what_another_inbox_settled_is_not_given_out_of_a_chunk_in_hand(bench: Bench) -> None:
    chunk, message = first_of_chunk(bench)
    shared = bench.engine.shared
    with shared.lock:
        assert shared.core.adopt(message.stream, (10, 77), (10, 8), 0, bench.now)
        shared.buffers.settled_elsewhere(message.stream)
    assert chunk.next() is None
    assert bench.engine.deliveries.take_more(chunk, 1, 10) is None
    message.ack()
    bench.engine.deliveries.release(chunk)
    assert seqs(bench.take()) == [8, 9, 10]
    bench.settle(1.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}


def test_behind_a_message_that_failed_nothing_is_given_out_of_a_chunk_in_hand(bench: Bench) -> None:
    chunk, message = first_of_chunk(bench)
    with pytest.raises(RuntimeError), message.process():
        raise RuntimeError("as planned")
    assert chunk.next() is None
    assert chunk.take(5) == []
    assert bench.engine.deliveries.take_more(chunk, 1, 10) is None
    bench.engine.deliveries.release(chunk)
    bench.settle(1.0)
    assert seqs(bench.take()) == list(range(1, 11))


@pytest.mark.parametrize("what", ["in hand", "failed", "given"])
def test_what_comes_too_late_for_an_epoch_is_declared_behind_all_that_is_given_of_it(
    bench: Bench, what: str
) -> None:
    """The copy of an outbox goes on behind number 10 with an epoch of its own; of the original more comes in then."""
    chunk, message = first_of_chunk(bench)
    given = [message]
    if what == "failed":
        with pytest.raises(RuntimeError), message.process():
            raise RuntimeError("as planned")
        given = []  # it comes again
    if what == "given":
        given += iter(chunk.next, None)
    if what != "in hand":
        bench.engine.deliveries.release(chunk)
    send(bench.network["dc1"], 1, 5, epoch=20, incarnation=88, prev=Prev(10, 77, 10))
    bench.settle()
    for site in ("dc1", "dc2"):
        send(bench.network[site], 11, 12)
    bench.settle(0.5)
    if what == "in hand":
        given += iter(chunk.next, None)
        bench.engine.deliveries.release(chunk)
    for each in given:
        each.ack()
    for _ in range(3):
        given += bench.take()
        bench.settle(1.0)
    in_order = [(10, seq) for seq in range(1, 11 if what == "given" else 13)]
    assert [(each.epoch, each.seq) for each in given] == [*in_order, *((20, seq) for seq in range(1, 6))]
    told = journal(bench, "delivered", "declared")
    assert [row[1:] for row in told if row[0] == "declared"] == ([(10, 11, 12)] if what == "given" else [])
    assert [row[1:3] for row in told] == sorted(row[1:3] for row in told), "in the order of what is told of"


def test_late_messages_are_shown_once_and_never_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0, skip_gaps=True)
    bench.settings["keep_late"] = True
    bench.reopen(clean=True)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(6.0)
    assert seqs(bench.take()) == list(range(21, 31))
    send(bench.network["dc1"], 11, 20)
    send(bench.network["dc2"], 11, 20)
    bench.settle(1.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    bench.reopen()
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, LateItem)
    assert seqs(item.messages) == list(range(11, 21))
    bench.engine.dead_letters.late_seen(item.number)
    bench.settle(1.0)
    assert bench.engine.deliveries.take(1, 10) is None
    bench.reopen()
    assert bench.engine.deliveries.take(1, 10) is None
    assert journal(bench, "late") == [("late", 10, 11, 20)]


def test_a_failed_message_comes_again_in_place_and_then_goes_to_the_dead_letters(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_deliveries=3)
    send(bench.network["dc1"], 1, 5)
    bench.settle()
    assert seqs(bench.take(2)) == [1, 2]
    for attempt in range(3):
        (message,) = bench.take(1, ack=False)
        assert message.seq == 3
        assert message.redelivered == (attempt > 0)
        with pytest.raises(RuntimeError), message.process():
            raise RuntimeError("no")
        assert bench.engine.deliveries.take(1, 10) is None or attempt == 2
        bench.settle(1.0)
    chunk_rest = bench.take()
    # The one taken by the look above is given back by nobody, so only order is looked at here.
    assert seqs(chunk_rest) in ([4, 5], [])
    from reliamsg.store.inbox_view import read_dead_letters

    (letter,) = read_dead_letters(bench.path)
    assert (letter.seq, letter.attempts, letter.reason) == (3, 3, "RuntimeError: no")
    assert letter.body == body_of(10, 3)


def test_crashing_handlers_use_up_deliveries_one_message_at_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_deliveries=4)
    send(bench.network["dc1"], 1, 20)
    bench.settle()
    assert seqs(bench.take(9)) == list(range(1, 10))
    for attempt in range(5):  # of the first one, nothing was on disk
        (message,) = bench.take(1, ack=False)
        assert message.seq == 10
        assert message.redelivered == (attempt > 0)
        bench.reopen()
    rest = bench.take()
    assert seqs(rest) == list(range(11, 21))
    from reliamsg.store.inbox_view import read_dead_letters

    assert [letter.seq for letter in read_dead_letters(bench.path)] == [10]


def test_what_was_never_handed_out_is_not_buried_by_a_crash(tmp_path: Path) -> None:
    """The mark lies far ahead: all below it counts as handed out, and not as an attempt."""
    bench = Bench(tmp_path / "inbox.db", max_deliveries=1)
    send(bench.network["dc1"], 1, 20)
    bench.settle()
    assert seqs(bench.take(9)) == list(range(1, 10))
    bench.reopen()
    rest = bench.take()
    assert (seqs(rest), {message.redelivered for message in rest}) == (list(range(10, 21)), {True})
    assert bench.inbox.dead_letter_count == 0


def test_epochs_follow_each_other(bench: Bench) -> None:
    send(bench.network["dc2"], 1, 5, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    bench.settle()
    assert bench.take() == []
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    assert [(m.epoch, m.seq) for m in bench.take()] == [(10, n) for n in range(1, 11)] + [
        (12, n) for n in range(1, 6)
    ]
    bench.reopen()
    send(bench.network["dc1"], 1, 5, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    send(bench.network["dc1"], 6, 7, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    assert [(m.epoch, m.seq) for m in bench.take()] == [(12, 6), (12, 7)]
    assert journal(bench, "late", "conflict", "declared") == []


def test_the_tail_of_an_epoch_is_a_gap(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 1, 5, epoch=12, incarnation=3, prev=Prev(10, 77, 15))
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(6)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    assert (item.gap.epoch, item.gap.first, item.gap.last) == (10, 11, 15)
    bench.engine.deliveries.accept(item.gap)
    assert [(m.epoch, m.seq) for m in bench.take()] == [(12, n) for n in range(1, 6)]


def test_a_fork_is_entered_and_reported(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    send(bench.network["dc1"], 1, 5, epoch=12, incarnation=3, prev=Prev(10, 77, 7))
    bench.settle()
    assert [(m.epoch, m.seq) for m in bench.take()] == [(12, n) for n in range(1, 6)]
    (error,) = bench.engine.shared.health.take_errors()
    assert "two histories" in str(error)


def test_unknown_history_is_one_gap_of_unknown_extent(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    send(bench.network["dc1"], 1, 5, epoch=14, incarnation=4, prev=Prev(12, 3, 7))
    bench.settle(6)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    assert (item.gap.epoch, item.gap.first, item.gap.last, item.gap.reason) == (
        10,
        11,
        None,
        "extent unknown",
    )
    assert bench.engine.deliveries.accept(item.gap)
    assert [(m.epoch, m.seq) for m in bench.take()] == [(14, n) for n in range(1, 6)]
    send(bench.network["dc1"], 1, 7, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    bench.settle(1)
    assert bench.take() == []
    assert journal(bench, "late") == [("late", 12, 1, 7)]


def test_unknown_history_that_arrives_links_the_chain(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take()
    send(bench.network["dc1"], 1, 5, epoch=14, incarnation=4, prev=Prev(12, 3, 7))
    bench.settle(4)
    send(bench.network["dc2"], 1, 7, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    bench.settle()
    assert [(m.epoch, m.seq) for m in bench.take()] == [(12, n) for n in range(1, 8)] + [
        (14, n) for n in range(1, 6)
    ]


def test_an_unknown_stream_waits_for_lower_numbers(bench: Bench) -> None:
    send(bench.network["dc1"], 11, 20)
    bench.settle(4)
    assert bench.engine.deliveries.take(1, 10) is None
    send(bench.network["dc1"], 6, 10)
    bench.settle(4)
    assert bench.engine.deliveries.take(1, 10) is None
    bench.settle(2)
    assert seqs(bench.take()) == list(range(6, 21))
    assert journal(bench, "before_join", "joined") == [("before_join", 10, 1, 5), ("joined", 10, 6, 6)]


def test_latest_begins_with_what_comes_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", begin="latest")
    send(bench.network["dc1"], 11, 20)
    bench.settle()
    assert seqs(bench.take()) == list(range(11, 21))
    send(bench.network["dc1"], 1, 10)
    bench.settle(1)
    assert bench.take() == []
    assert bench.queued()["dc1"] == 0


def test_a_second_incarnation_is_set_aside(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10, incarnation=666)
    send(bench.network["dc1"], 1, 20)
    bench.settle(1)
    got = bench.take()
    assert seqs(got) == list(range(1, 11))
    assert bench.queued()["dc1"] == 0
    assert len(bench.engine.shared.health.take_errors()) == 1
    assert bench.engine.sites["dc1"].rejected == {"conflict": 1}


def test_a_huge_jump_allocates_nothing(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 2)
    send(bench.network["dc1"], 2**62, 2**62 + 1)
    bench.settle(6)
    assert seqs(bench.take(2)) == [1, 2]
    bench.settle(6)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    assert item.gap.last == 2**62 - 1
    bench.engine.deliveries.accept(item.gap)
    assert seqs(bench.take()) == [2**62, 2**62 + 1]


def test_a_clean_stop_flags_only_what_was_handed_out(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    bench.take(3)
    bench.take(2, ack=False)
    bench.reopen(clean=True)
    got = bench.take()
    assert [(m.seq, m.redelivered) for m in got] == [(4, True), (5, True)] + [
        (n, False) for n in range(6, 11)
    ]


def test_acknowledgements_out_of_order_survive(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    got = bench.take(ack=False)
    for message in got:
        if message.seq % 2:
            message.ack()
    bench.settle()
    bench.reopen()
    assert seqs(bench.take()) == [2, 4, 6, 8, 10]


def test_max_unacknowledged_bounds_each_stream(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", max_unacknowledged=5)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 1, 3, producer="q")
    bench.settle()
    got = bench.take(ack=False)
    assert sorted((m.producer, m.seq) for m in got) == [("p", n) for n in range(1, 6)] + [
        ("q", n) for n in range(1, 4)
    ]
    got[0].ack()
    assert len(bench.take(ack=False)) == 1


def test_a_full_inbox_is_back_pressure_and_ends_by_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=1000)
    bench.settings["max_inbox_bytes"] = 20_000
    bench.reopen(clean=True)
    for first in range(11, 211, 10):
        send(bench.network["dc1"], first, first + 9, pad=500)
    send(bench.network["dc1"], 1, 1)
    bench.settle(1)
    assert bench.queued()["dc1"] > 10
    assert bench.inbox.held_bytes < 30_000
    assert seqs(bench.take()) == [1]
    send(bench.network["dc2"], 2, 10)
    bench.settle(1)
    assert seqs(bench.take()) == list(range(2, 211))
    bench.settle(1)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    assert bench.inbox.held_bytes == 0


def test_an_epoch_that_was_left_comes_again_before_the_next(bench: Bench) -> None:
    """Killed while messages of two epochs were being handled: the older ones must come again first."""
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 1, 5, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    bench.settle()
    given = bench.take(ack=False)
    assert [(m.epoch, m.seq) for m in given][-1] == (12, 5)
    for message in given[:6]:
        message.ack()
    bench.settle(0.01)  # the position is stored; nothing is old enough to be persisted
    bench.network["dc1"].hold_deliveries()  # the other site is faster, and has the newer epoch alone
    bench.reopen()
    send(bench.network["dc2"], 1, 6, epoch=12, incarnation=3, prev=Prev(10, 77, 10))
    bench.settle()
    first = [(m.epoch, m.seq, m.redelivered) for m in bench.take()]
    bench.network["dc1"].release_deliveries()
    bench.settle()
    again = first + [(m.epoch, m.seq, m.redelivered) for m in bench.take()]
    assert again[:4] == [(10, n, True) for n in range(7, 11)]
    assert [(epoch, seq) for epoch, seq, _ in again[4:]] == [(12, n) for n in range(1, 7)]
    assert journal(bench, "declared", "late", "conflict") == []


@pytest.mark.parametrize("starts", [[], [True], [False], [False, True], [True, False]])
def test_a_later_epoch_that_had_been_entered_stays_flagged_over_any_starts(
    tmp_path: Path, starts: list[bool]
) -> None:
    """After a start the earlier epoch's messages come first again, and the later one is entered anew after them."""
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 2, epoch=10, incarnation=77)
    send(bench.network["dc1"], 1, 2, epoch=11, incarnation=78, prev=Prev(10, 77, 2))
    assert [(m.epoch, m.seq) for m in bench.take(ack=False)] == [(10, 1), (10, 2), (11, 1), (11, 2)]
    bench.settle(0.5)
    for clean in (False, *starts):
        bench.reopen(clean=clean)
        bench.settle(0.5)
    again = bench.take()
    assert [(m.epoch, m.seq) for m in again] == [(10, 1), (10, 2), (11, 1), (11, 2)]
    assert all(message.redelivered for message in again)
    bench.close()


def test_a_frame_of_which_another_sites_copy_makes_only_a_part_overdue_is_not_dropped_from_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another site may have the batch without its first messages: its producer removed them in between."""
    monkeypatch.setattr(commits, "MAX_CACHED_BYTES", 0)
    for first, last in ((1, 10), (11, 60), (61, 100)):
        bench.engine.sites["dc1"].repaired("reliamsg/group", frame(first, last))
    send(bench.network["dc2"], 80, 100)
    bench.settle(0.2)
    assert bench.inbox.held_bytes > 0
    got = bench.take()
    assert seqs(got) == list(range(1, 101))
    assert [m.body for m in got] == [body_of(10, n) for n in range(1, 101)]


def test_a_frame_stays_in_memory_until_all_of_it_is_settled(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    got = bench.take(5)
    bench.settle(0.2)
    got += bench.take()
    assert seqs(got) == list(range(1, 11))


def test_what_was_taken_and_not_given_is_handed_out_again_without_the_flag(bench: Bench) -> None:
    send(bench.network["dc1"], 1, 10)
    bench.settle()
    chunk = bench.engine.deliveries.take(1, 10)
    assert isinstance(chunk, DeliverySlice)
    given = [chunk.next() for _ in range(3)]
    bench.engine.deliveries.release(chunk)
    rest = bench.take()
    assert [message.seq for message in given if message is not None] == [1, 2, 3]
    assert seqs(rest) == list(range(4, 11))
    assert not any(message.redelivered for message in rest)


def test_what_may_have_been_published_in_another_epoch_is_flagged(bench: Bench) -> None:
    """So is what of it waited in the inbox, the part of a frame as well."""
    send(bench.network["dc1"], 6, 8)
    bench.settle()
    send(bench.network["dc2"], 4, 10, moved=True)
    bench.settle(0.2)
    bench.reopen()
    send(bench.network["dc1"], 1, 2, moved=True)
    send(bench.network["dc1"], 3, 3)
    bench.settle()
    given = bench.take()
    assert [message.seq for message in given if message.redelivered] == [1, 2, 4, 5, 9, 10]
    assert seqs(given) == list(range(1, 11))


def test_a_part_of_a_frame_is_stored_as_a_frame_of_its_own(bench: Bench) -> None:
    send(bench.network["dc1"], 41, 60, pad=100)
    bench.settle()
    send(bench.network["dc2"], 2, 100, pad=100)
    bench.settle(0.2)
    assert 99 * 100 < bench.inbox.held_bytes < 99 * 120
    bench.reopen()
    send(bench.network["dc1"], 1, 1, pad=100)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 101))
    assert bench.inbox.held_bytes == 0
