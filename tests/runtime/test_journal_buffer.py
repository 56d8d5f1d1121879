"""The journal buffer: which rows are merged before they are written, and what happens to excess rows."""

from __future__ import annotations

import pytest

from reliamsg.message import Stream
from reliamsg.producer import journalling
from reliamsg.runtime.journal_buffer import JournalBuffer, MergeRules, merge
from reliamsg.store.journal import Entry

STREAM = Stream("producer", "topic", 0)


RULES = MergeRules(frozenset({"delivered"}), order=("kind", "site"))


def delivered(first: int, last: int, **fields: object) -> Entry:
    return Entry("delivered", STREAM, 1, 7, first, last, **fields)  # type: ignore[arg-type]


def spans(entries: list[Entry]) -> list[tuple[int, int]]:
    return [(entry.first, entry.last) for entry in entries]


def test_successive_rows_become_one_with_summed_digests_and_latencies() -> None:
    (row,) = merge(
        [
            delivered(1, 2, digest=10, latency={3: 2}),
            delivered(3, 3, digest=5, latency={3: 1, 4: 1}),
            delivered(4, 9),
        ],
        RULES,
    )
    assert (row.first, row.last, row.digest, row.latency) == (1, 9, 15, {3: 3, 4: 1})


@pytest.mark.parametrize(
    "second",
    [
        delivered(4, 5),
        delivered(2, 3),
        delivered(3, 4, reason="other"),
        delivered(3, 4, detail={"more": 1}),
        delivered(3, 4, site="dc1"),
        Entry("delivered", STREAM, 2, 7, 3, 4),
        Entry("delivered", STREAM, 1, 8, 3, 4),
        Entry("late", STREAM, 1, 7, 3, 4),
    ],
    ids=["a hole", "an overlap", "reason", "detail", "order", "epoch", "incarnation", "kind"],
)
def test_a_different_entry_is_a_separate_row(second: Entry) -> None:
    assert len(merge([delivered(1, 2), second], RULES)) == 2


def test_only_the_newest_of_an_order_is_lengthened() -> None:
    rows = merge([delivered(1, 2), delivered(8, 9), delivered(3, 4), delivered(5, 5, site="dc1")], RULES)
    assert spans(rows) == [(1, 2), (8, 9), (3, 4), (5, 5)]


def test_kinds_of_one_order_keep_each_other_apart() -> None:
    rules = MergeRules(
        frozenset({"delivered"}), order=("kind", "site"), ordered=frozenset({"delivered", "late"})
    )
    rows = merge(
        [delivered(1, 2), Entry("late", STREAM), delivered(3, 4), delivered(5, 5, site="dc1")], rules
    )
    assert spans(rows) == [(1, 2), (0, 0), (3, 5)]


def test_kinds_that_are_not_merged_never_are() -> None:
    assert spans(merge([Entry("late", last=1), Entry("late", first=2, last=2)], RULES)) == [(0, 1), (2, 2)]


def test_taken_rows_are_not_extended() -> None:
    buffer = JournalBuffer(RULES)
    buffer.add(delivered(1, 2))
    taken = buffer.take()
    buffer.add(delivered(3, 4))
    assert spans(taken) == [(1, 2)]
    buffer.put_back(taken)
    buffer.add(delivered(5, 6))
    assert not buffer.empty
    assert spans(buffer.take()) == [(1, 2), (3, 6)]
    assert buffer.empty


def filled(count: int, max_rows: int | None) -> JournalBuffer:
    buffer = JournalBuffer(RULES, max_rows)
    for number in range(1, count + 1):
        buffer.add(delivered(2 * number, 2 * number))
    return buffer


def test_without_a_limit_every_row_is_kept() -> None:
    assert len(filled(1_000, None).take()) == 1_000


def test_of_too_many_the_older_half_is_given_up_and_a_row_says_so() -> None:
    buffer = filled(11, 10)
    buffer.add(delivered(23, 23))  # no earlier row is extended
    first, *rest = buffer.take()
    assert (first.kind, first.reason, first.detail) == ("truncated", "too much waited", {"rows": 6})
    assert spans(rest) == [(n, n) for n in (14, 16, 18, 20, 22, 23)]
    assert buffer.empty


def test_rows_that_were_given_up_are_counted_on_when_that_could_not_be_written() -> None:
    buffer = filled(11, 10)
    buffer.put_back(buffer.take())
    for number in range(20, 25):
        buffer.add(delivered(2 * number, 2 * number))
    first, *rest = buffer.take()
    assert first.detail == {"rows": 6 + 5}
    assert first.kind == "truncated"
    assert len(rest) == 5
    assert "truncated" not in {entry.kind for entry in rest}


def test_a_producer_s_sites_confirm_epochs_side_by_side() -> None:
    def confirmed(epoch: int, site: str, first: int, last: int) -> Entry:
        return Entry("confirmed", STREAM, epoch, 7, first, last, site)

    rows = merge(
        [
            confirmed(1, "dc1", 1, 2),
            confirmed(2, "dc1", 1, 1),
            confirmed(1, "dc2", 1, 2),
            confirmed(1, "dc1", 3, 4),
            confirmed(2, "dc1", 2, 9),
        ],
        journalling.RULES,
    )
    assert [(row.epoch, row.site, row.first, row.last) for row in rows] == [
        (1, "dc1", 1, 4),
        (2, "dc1", 1, 9),
        (1, "dc2", 1, 2),
    ]
