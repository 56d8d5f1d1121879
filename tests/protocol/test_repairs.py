"""What is sent again, to whom and how fast, on a simulated clock."""

from __future__ import annotations

import random
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.message import Stream
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.sender import repairs
from reliamsg.protocol.sender.repairs import MAX_GROUPS, MAX_RANGES, Piece, Repairs

ORDERS, AUDIT = Stream("p", "orders"), Stream("p", "audit")


def wanted(queue: Repairs) -> dict[tuple[str, Stream, int], list[tuple[int, int]]]:
    return {(group, stream, epoch): ranges for group, stream, epoch, ranges in queue.queued()}


def drain(queue: Repairs, now: float, page: int = 10, message_bytes: int = 1) -> list[Piece]:
    """Send all that may go now, a page of `page` messages at a time."""
    pieces = []
    while (piece := queue.next(now)) is not None:
        last = min(piece.last, piece.first + page - 1)
        queue.sent(piece, piece.first, last, (last - piece.first + 1) * message_bytes, now)
        pieces.append(Piece(piece.group, piece.stream, piece.epoch, piece.first, last))
    return pieces


def test_nothing_wanted_nothing_sent() -> None:
    queue = Repairs(None)
    assert queue.next(0.0) is None
    assert queue.next_deadline(0.0) == inf
    assert not queue.request("billing", ORDERS, [], 0.0)
    assert not queue._groups


def test_requests_are_merged_and_sent_oldest_epoch_first() -> None:
    queue = Repairs(None)
    assert queue.request("billing", ORDERS, [(7, 5, 9), (7, 8, 12)], 0.0)
    assert queue.request("billing", ORDERS, [(6, 1, 1), (7, 13, 13)], 0.0)
    assert wanted(queue) == {("billing", ORDERS, 6): [(1, 1)], ("billing", ORDERS, 7): [(5, 13)]}
    assert drain(queue, 0.0, page=100) == [
        Piece("billing", ORDERS, 6, 1, 1),
        Piece("billing", ORDERS, 7, 5, 13),
    ]


def test_what_has_arrived_meanwhile_is_not_sent() -> None:
    queue = Repairs(None)
    queue.request("billing", ORDERS, [(7, 1, 100), (8, 1, 5)], 0.0)
    queue.request("billing", ORDERS, [], 0.1, missing=[(7, 20, 30), (7, 90, 95)])
    assert wanted(queue) == {("billing", ORDERS, 7): [(20, 30), (90, 95)]}
    queue.request("billing", ORDERS, [], 0.2, missing=[])
    assert wanted(queue) == {}


def test_a_state_that_does_not_say_what_is_missing_takes_nothing_back() -> None:
    queue = Repairs(None)
    queue.request("billing", ORDERS, [(7, 1, 100)], 0.0)
    queue.request("billing", ORDERS, [], 0.1)
    assert wanted(queue) == {("billing", ORDERS, 7): [(1, 100)]}


def test_the_same_range_is_not_sent_twice_within_half_a_second() -> None:
    queue = Repairs(None)
    queue.request("billing", ORDERS, [(7, 1, 10)], 0.0)
    queue.sent(queue.next(0.0), 1, 10, 500, 0.0)  # type: ignore[arg-type]
    assert not queue.request("billing", ORDERS, [(7, 1, 10)], 0.4)
    assert queue.request("billing", ORDERS, [(7, 5, 12)], 0.49)
    assert wanted(queue) == {("billing", ORDERS, 7): [(11, 12)]}
    assert queue.request("audit", ORDERS, [(7, 1, 10)], 0.49)  # another group
    assert queue.request("billing", AUDIT, [(7, 1, 10)], 0.49)  # another stream
    assert queue.request("billing", ORDERS, [(7, 1, 10)], 0.5)


def test_a_range_that_is_not_held_counts_as_dealt_with_not_as_sent() -> None:
    queue = Repairs(100.0)
    queue.request("billing", ORDERS, [(7, 1, 10)], 0.0)
    piece = queue.next(0.0)
    assert piece is not None
    queue.sent(piece, 1, 10, 0, 0.0)
    assert queue.next(0.0) is None
    assert queue.request("billing", ORDERS, [(7, 1, 10)], 0.1)


def test_whole_batches_take_what_else_they_hold_out_of_the_queue() -> None:
    queue = Repairs(None)
    queue.request("billing", ORDERS, [(7, 5, 6), (7, 9, 20)], 0.0)
    piece = queue.next(0.0)
    assert piece == Piece("billing", ORDERS, 7, 5, 6)
    queue.sent(piece, 1, 12, 100, 0.0)
    assert wanted(queue) == {("billing", ORDERS, 7): [(13, 20)]}


def test_what_is_no_longer_held_leaves_all_queues() -> None:
    queue = Repairs(None)
    for group in ("billing", "audit"):
        queue.request(group, ORDERS, [(7, 1, 10)], 0.0)
    queue.unavailable(ORDERS, 7, 1, 8)
    assert set(map(tuple, (r for ranges in wanted(queue).values() for r in ranges))) == {(9, 10)}
    queue.unavailable(ORDERS, 7, 9, 10)
    assert wanted(queue) == {}


def test_a_cancelled_group_gets_nothing_more_even_of_a_piece_that_is_being_sent() -> None:
    queue = Repairs(None)
    queue.request("billing", ORDERS, [(7, 1, 10)], 0.0)
    piece = queue.next(0.0)
    assert piece is not None
    queue.cancel("billing")
    queue.sent(piece, 1, 5, 100, 0.0)
    assert queue.next(0.0) is None


# -- how fast -------------------------------------------------------------------------------------------------


def test_the_budget_holds_over_time() -> None:
    queue = Repairs(1_000.0)
    queue.request("billing", ORDERS, [(7, 1, 10**6)], 0.0)
    now, sent = 0.0, 0
    while now < 60.0:
        sent += sum((p.last - p.first + 1) * 10 for p in drain(queue, now, page=7, message_bytes=10))
        deadline = queue.next_deadline(now)
        assert deadline < inf
        assert deadline > now
        now = deadline
    assert 60_000 <= sent <= 61_000 + 1_000 + 70  # of a minute, the first burst, and one piece


def test_after_a_pause_no_more_than_a_burst_goes_at_once() -> None:
    queue = Repairs(1_000.0, burst=300.0)
    queue.request("billing", ORDERS, [(7, 1, 10**6)], 0.0)
    assert len(drain(queue, 1_000.0, page=1, message_bytes=100)) in (3, 4)  # and the one that exceeds it
    assert len(drain(queue, 2_000.0, page=1, message_bytes=100)) in (3, 4)


def test_one_piece_may_exceed_the_budget_and_is_paid_for_afterwards() -> None:
    queue = Repairs(100.0)
    queue.request("billing", ORDERS, [(7, 1, 2)], 0.0)
    assert len(drain(queue, 0.0, page=1, message_bytes=1_000)) == 1
    assert queue.next(8.9) is None  # a second's worth was there, nine are owed
    deadline = queue.next_deadline(8.9)
    assert deadline == pytest.approx(9.0)
    assert queue.next(deadline) is not None


def test_a_clock_that_runs_backwards_fills_nothing() -> None:
    queue = Repairs(100.0)
    queue.request("billing", ORDERS, [(7, 1, 10)], 50.0)
    drain(queue, 50.0, page=1, message_bytes=100)
    assert queue.next(10.0) is None
    assert queue.next(51.0) is not None


# -- fairness -------------------------------------------------------------------------------------------------


def served(queue: Repairs, pieces: int, size: dict[str, int] | None = None) -> Counter[str]:
    """Bytes that each group got."""
    found: Counter[str] = Counter()
    for _ in range(pieces):
        piece = queue.next(0.0)
        if piece is None:
            break
        cost = (size or {}).get(piece.group, 100)
        queue.sent(piece, piece.first, piece.first, cost, 0.0)
        found[piece.group] += cost
    return found


def test_groups_share_by_bytes_however_large_their_messages() -> None:
    queue = Repairs(None)
    for group in ("a", "b", "c"):
        queue.request(group, ORDERS, [(7, 1, 10**6)], 0.0)
    found = served(queue, 700, {"a": 100, "b": 1_000, "c": 10})
    assert max(found.values()) - min(found.values()) <= 1_000


def test_a_newcomer_is_owed_nothing_and_has_its_turn_soon() -> None:
    queue = Repairs(None)
    queue.request("old", ORDERS, [(7, 1, 10**6)], 0.0)
    served(queue, 1_000)
    queue.request("new", ORDERS, [(7, 1, 10**6)], 0.0)
    found = served(queue, 100)
    assert abs(found["old"] - found["new"]) <= 200


def test_one_that_wanted_nothing_for_long_is_owed_nothing() -> None:
    queue = Repairs(None)
    queue.request("a", ORDERS, [(7, 1, 3)], 0.0)
    queue.request("b", ORDERS, [(7, 1, 10**6)], 0.0)
    served(queue, 1_000)
    queue.request("a", ORDERS, [(7, 4, 10**6)], 0.0)
    found = served(queue, 100)
    assert abs(found["a"] - found["b"]) <= 200


def test_named_groups_get_half_whatever_made_up_groups_ask_for() -> None:
    queue = Repairs(None)
    for i in range(3 * MAX_GROUPS):
        queue.request(f"made-up-{i}", ORDERS, [(7, 1, 10**6)], 0.0, named=False)
    assert len({group for group, *_ in queue.queued()}) == MAX_GROUPS
    served(queue, 5_000)  # nobody else wanted anything: no claim grows from that
    queue.request("billing", ORDERS, [(7, 1, 10**6)], 0.0)
    found = served(queue, 1_000)
    assert abs(found["billing"] - 50_000) <= 200


def test_a_long_range_of_one_stream_does_not_hold_up_a_short_one_of_another() -> None:
    queue = Repairs(None)
    queue.request("billing", ORDERS, [(7, 1, 10**6)], 0.0)
    queue.request("billing", AUDIT, [(7, 1, 1)], 0.0)
    assert [piece.stream for piece in (queue.next(0.0),) if piece] == [ORDERS]
    queue.sent(queue.next(0.0), 1, 10, 100, 0.0)  # type: ignore[arg-type]
    assert queue.next(0.0) == Piece("billing", AUDIT, 7, 1, 1)


# -- bounds ---------------------------------------------------------------------------------------------------


def test_what_is_queued_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "MAX_STREAMS", 5)
    monkeypatch.setattr(repairs, "MAX_EPOCHS", 3)
    queue = Repairs(None)
    for i in range(20):
        queue.request("billing", Stream("p", f"t{i}"), [(epoch, 1, 1) for epoch in range(1, 10)], 0.0)
    queue.request("billing", Stream("p", "t0"), [(1, 3 * i, 3 * i) for i in range(1, 2 * MAX_RANGES)], 0.0)
    found = wanted(queue)
    assert len({stream for _, stream, _ in found}) == 5
    assert Counter(stream for _, stream, _ in found).most_common(1)[0][1] == 3
    assert max(map(len, found.values())) == MAX_RANGES


def test_what_was_sent_is_remembered_within_bounds_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "MAX_RECENT", 10)
    queue = Repairs(None)
    for i in range(100):
        queue.request("billing", Stream("p", f"t{i}"), [(7, 1, 50)], 0.0)
        drain(queue, 0.0, page=1)
    known = queue._groups["billing"]
    assert len(known.recent) == 10
    assert max(map(len, known.recent.values())) == 10
    queue.forget(1.0)
    assert not queue._groups


@given(st.integers(0, 2**32))
def test_whatever_was_wanted_is_sent_once_a_round_and_nothing_else(seed: int) -> None:
    """Random requests, pages and losses, with asking again: all arrives, and nothing that was not wanted goes out."""
    chance = random.Random(seed)
    queue = Repairs(chance.choice([None, 50.0, 1_000.0]), burst=chance.choice([None, 10.0]))
    lacking = {
        (group, stream): RangeSet((at, at + chance.randint(0, 9)) for at in chance.sample(range(1, 200), 5))
        for group in ("a", "b")
        for stream in (ORDERS, AUDIT)
    }
    now, rounds = 0.0, 0
    sent_at: dict[tuple[str, Stream, int], float] = {}
    while any(not ranges.empty for ranges in lacking.values()):
        rounds += 1
        assert rounds < 2_000, f"seed {seed}"
        for (group, stream), ranges in lacking.items():
            spans = [(7, first, last) for first, last in ranges]
            queue.request(group, stream, spans, now, missing=spans)
        while (piece := queue.next(now)) is not None:
            last = min(piece.last, piece.first + chance.randint(0, 5))
            for number in range(piece.first, last + 1):
                key = (piece.group, piece.stream, number)
                assert number in lacking[piece.group, piece.stream] or key in sent_at, f"seed {seed}"
                assert now - sent_at.get(key, -1.0) >= 0.5, f"seed {seed}"
                sent_at[key] = now
            queue.sent(piece, piece.first, last, last - piece.first + 1, now)
            if chance.random() < 0.7:
                lacking[piece.group, piece.stream].remove(piece.first, last)
        now += chance.choice([0.1, 0.5, 1.0])
