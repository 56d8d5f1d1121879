"""Journal rows: what makes one longer, what never does, and what an undone transaction leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.message import Stream
from reliamsg.store.database import Database
from reliamsg.store.journal import Entry, Journal, JournalRow, read_journal, summed_parts

ONE, TWO = Stream("p", "one"), Stream("p", "two")


class Writer:
    def __init__(self, path: Path) -> None:
        self.db = Database(path, "outbox", "p")
        self.journal = Journal("b" * 16)

    def write(self, *entries: Entry, undo: bool = False, at: int = 0) -> None:
        committed = False
        try:
            with self.db.transaction() as connection:
                self.journal.write(connection, entries, 1_000 + at, at)
                if undo:
                    raise KeyError
            committed = True
        except KeyError:
            pass
        finally:
            self.journal.settle(committed)

    @property
    def rows(self) -> list[JournalRow]:
        return list(read_journal(self.db.connection))

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        return [(row.kind, row.first, row.last) for row in self.rows]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    found = Writer(tmp_path / "outbox.db")
    yield found
    found.db.close()


def enqueued(first: int, last: int, stream: Stream = ONE, epoch: int = 1, digest: int = 1) -> Entry:
    return Entry("enqueued", stream, epoch, 7, first, last, digest=digest, latency={3: last - first + 1})


def test_a_successor_makes_the_row_longer(writer: Writer) -> None:
    writer.write(enqueued(1, 5, digest=2**64 - 1))
    writer.write(enqueued(6, 9, digest=3), at=50)
    (row,) = writer.rows
    assert (row.first, row.last, row.digest, row.latency) == (1, 9, 2, {3: 9})
    assert (row.wall_us, row.wall_last_us, row.mono_us) == (1_000, 1_050, 0)


@pytest.mark.parametrize(
    "other",
    [
        enqueued(7, 9),
        enqueued(5, 9),
        enqueued(6, 9, epoch=2),
        enqueued(6, 9, stream=TWO),
        Entry("enqueued", ONE, 1, 8, 6, 9, digest=0),
        Entry("confirmed", ONE, 1, 7, 6, 9, "dc1"),
    ],
    ids=["a hole", "an overlap", "epoch", "stream", "incarnation", "kind"],
)
def test_anything_else_is_a_row_of_its_own(writer: Writer, other: Entry) -> None:
    writer.write(enqueued(1, 5), other)
    assert len(writer.rows) == 2
    assert writer.spans[0] == ("enqueued", 1, 5)


def test_sites_and_streams_grow_side_by_side(writer: Writer) -> None:
    for first in (1, 6, 11):
        writer.write(
            Entry("confirmed", ONE, 1, 7, first, first + 4, "dc1"),
            Entry("confirmed", ONE, 1, 7, first, first + 4, "dc2"),
            enqueued(first, first + 4, TWO),
        )
    assert [(row.site, row.last) for row in writer.rows] == [("dc1", 15), ("dc2", 15), ("", 15)]


def test_what_happens_once_is_never_made_longer(writer: Writer) -> None:
    writer.write(Entry("connected", site="dc1"), Entry("connected", site="dc1"))
    writer.write(Entry("parked", ONE, 1, 7, 1, 1, "dc1"), Entry("parked", ONE, 1, 7, 2, 2, "dc1"))
    assert len(writer.rows) == 4


def test_an_undone_transaction_leaves_no_trace(writer: Writer) -> None:
    writer.write(enqueued(1, 5))
    writer.write(enqueued(6, 9), undo=True)
    writer.write(enqueued(6, 7))
    assert writer.spans == [("enqueued", 1, 7)]
    assert writer.rows[0].digest == 2
    assert [row.lsn for row in writer.rows] == [1]


def test_a_listener_is_passed_what_was_committed_in_order(writer: Writer) -> None:
    heard: list[list[Entry]] = []
    writer.write(enqueued(1, 5))
    writer.journal.listen(lambda entries: heard.append(list(entries)))
    writer.write(enqueued(6, 9), undo=True)
    assert heard == []
    parked, again = Entry("parked", ONE, site="dc1"), enqueued(6, 9)
    writer.write(parked, again)
    writer.write()
    writer.write(enqueued(10, 12))
    assert heard == [[parked, again], [enqueued(10, 12)]]


def test_what_was_exported_does_not_change(writer: Writer) -> None:
    writer.write(enqueued(1, 5))
    writer.journal.freeze(1)
    writer.write(enqueued(6, 9))
    assert writer.spans == [("enqueued", 1, 5), ("enqueued", 6, 9)]


def test_disorder_at_a_group_does_not_hide_in_a_row(writer: Writer) -> None:
    def given(kind: str, first: int, last: int) -> Entry:
        return Entry(kind, ONE, 1, 7, first, last, group="g", digest=0)

    writer.write(given("delivered", 1, 5), given("redelivered", 3, 3), given("delivered", 6, 9))
    assert writer.spans == [("delivered", 1, 5), ("redelivered", 3, 3), ("delivered", 6, 9)]


def test_rows_are_read_back_as_written(writer: Writer) -> None:
    writer.write(
        Entry(
            "returned", ONE, 9, 2**64 - 1, 4, 5, "dc1", "g", "no queue", digest=2**64 - 1,
            latency={0: 1, 80: 2}, detail={"prev": [1, "00ff", 3]},
        )
    )  # fmt: skip
    (row,) = writer.rows
    assert (row.producer, row.topic, row.partition) == ("p", "one", 0)
    assert (row.epoch, row.incarnation, row.first, row.last) == (9, 2**64 - 1, 4, 5)
    assert (row.site, row.group, row.reason, row.digest) == ("dc1", "g", "no queue", 2**64 - 1)
    assert (row.latency, row.detail) == ({0: 1, 80: 2}, {"prev": [1, "00ff", 3]})


def test_reading_on_from_a_row(writer: Writer) -> None:
    for number in range(1, 6):
        writer.write(Entry("connected", site=f"dc{number}"))
    assert [row.site for row in read_journal(writer.db.connection, after_lsn=3)] == ["dc4", "dc5"]


def confirmed(first: int, last: int, site: str = "dc1") -> Entry:
    return Entry("confirmed", ONE, 1, 7, first, last, site)


def test_a_confirm_that_was_told_of_does_not_grow(writer: Writer) -> None:
    writer.write(enqueued(1, 5), confirmed(1, 5))
    assert writer.journal.lsn_to_announce(0) == 2
    writer.write(enqueued(6, 9), confirmed(6, 9))
    assert writer.spans == [("enqueued", 1, 9), ("confirmed", 1, 5), ("confirmed", 6, 9)]
    assert writer.journal.lsn_to_announce(0) == 3
    assert writer.journal.lsn_to_announce(0) == 3


def test_what_is_told_often_is_told_later(writer: Writer) -> None:
    """A site's rows stay few however many statuses there are."""
    told = []
    for number in range(1, 201):
        writer.write(confirmed(number, number))
        told.append(writer.journal.lsn_to_announce(mono_us=1_000_000 * number))
    assert len(writer.rows) < 50
    assert told == sorted(told)
    assert told[-1] < writer.journal.newest_lsn or told[-1] == len(writer.rows)
    writer.write(confirmed(201, 201))
    assert (
        writer.journal.lsn_to_announce(mono_us=1_000_000_000) == writer.journal.newest_lsn == len(writer.rows)
    )


def test_what_was_undone_is_not_told(writer: Writer) -> None:
    writer.write(confirmed(1, 5))
    writer.write(confirmed(6, 9, "dc2"), undo=True)
    assert writer.journal.lsn_to_announce(0) == 1


def test_groups_progress_and_repairs_grow(writer: Writer) -> None:
    for kind in ("consumed", "repaired"):
        writer.write(*(Entry(kind, ONE, 1, 7, n, n, group="g") for n in (1, 2)))
        writer.write(Entry(kind, ONE, 1, 7, 3, 3, group="h"), Entry(kind, ONE, 1, 7, 3, 3, group="g"))
    assert [(row.kind, row.group, row.first, row.last) for row in writer.rows] == [
        ("consumed", "g", 1, 3), ("consumed", "h", 3, 3), ("repaired", "g", 1, 3), ("repaired", "h", 3, 3),
    ]  # fmt: skip


def test_what_comes_after_a_fence_does_not_hide(writer: Writer) -> None:
    writer.write(enqueued(1, 5))
    writer.write(Entry("fenced", epoch=1, incarnation=7))
    writer.write(enqueued(6, 9))
    writer.write(enqueued(10, 11))
    assert writer.spans == [("enqueued", 1, 5), ("fenced", 0, 0), ("enqueued", 6, 11)]


def test_rows_with_a_digest_end_at_common_numbers(tmp_path: Path) -> None:
    """Wherever they began; others do not."""
    writer = Writer(tmp_path / "outbox.db")
    for first in range(1, 2_501, 100):
        for start, end in summed_parts(first, first + 99):
            writer.write(Entry("enqueued", ONE, 7, 1, start, end, digest=1))
            writer.write(Entry("confirmed", ONE, 7, 1, start, end, site="dc1"))
    ends = [row.last for row in writer.rows if row.kind == "enqueued"]
    assert ends == [1000, 2000, 2500]
    assert [row.last for row in writer.rows if row.kind == "confirmed"] == [2500]
    writer.db.close()


def test_rows_of_slow_streams_end_more_often(tmp_path: Path) -> None:
    """At one message in a fifth of a second; the first hundred take 20 s."""
    writer = Writer(tmp_path / "outbox.db")
    for number in range(1, 221):
        writer.write(Entry("delivered", ONE, 7, 1, number, number, digest=1), at=number * 200_000)
    assert [row.last for row in writer.rows] == [100, 200, 220]
    writer.db.close()


@pytest.mark.parametrize(
    ("first", "last", "parts"),
    [
        (1, 999, [(1, 999)]),
        (1, 1000, [(1, 1000)]),
        (1000, 1001, [(1000, 1000), (1001, 1001)]),
        (950, 3100, [(950, 1000), (1001, 2000), (2001, 3000), (3001, 3100)]),
        (1000, 1000, [(1000, 1000)]),
        (1001, 1001, [(1001, 1001)]),
        (950, 2000, [(950, 1000), (1001, 2000)]),
    ],
)
def test_ranges_are_divided_where_rows_have_to_end(
    first: int, last: int, parts: list[tuple[int, int]]
) -> None:
    assert list(summed_parts(first, last)) == parts


def test_urgent_announcements_have_a_reserve(writer: Writer) -> None:
    for number in range(1, 101):
        writer.write(confirmed(number, number))
        writer.journal.lsn_to_announce(0)
    writer.write(confirmed(101, 101))
    assert writer.journal.lsn_to_announce(0) < writer.journal.newest_lsn
    assert writer.journal.lsn_to_announce(0, urgent=True) == writer.journal.newest_lsn
    for number in range(102, 201):
        writer.write(confirmed(number, number))
        writer.journal.lsn_to_announce(0, urgent=True)
    assert len(writer.rows) < 50
