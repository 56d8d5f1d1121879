"""The outbox's groups, removed ranges and renumbered epochs; files of the schema before them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path

import pytest

from reliamsg.message import Prev
from reliamsg.store.database import open_readonly, statements
from reliamsg.store.journal import read_journal
from reliamsg.store.members import ChainRow, Member, RemovedRange
from reliamsg.store.outbox import EPOCH_STEP, Outbox
from reliamsg.store.outbox_view import MemberInfo, inspect_outbox
from reliamsg.store.rows import Row
from reliamsg.wire.data import Origin, Records, encode, open_frame
from tests.store.test_outbox import open_outbox, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def outbox(path: Path) -> Iterator[Outbox]:
    found = open_outbox(path)
    yield found
    found.close()


def recode(row: Row, epoch: int, prev: Prev | None, moved: bool) -> bytes:
    records = open_frame(row.frame).records()
    return encode(Origin(row.stream, epoch, row.incarnation, prev, moved=moved), row.seq, (1, 2), records)


def cut(row: Row, first: int, last: int) -> bytes:
    frame = open_frame(row.frame)
    bodies = frame.records().bodies[first - row.seq : last - row.seq + 1]
    return encode(
        Origin(row.stream, row.epoch, row.incarnation, frame.envelope.previous),
        first,
        (1, 2),
        Records(bodies),
    )


class TestMembers:
    def test_they_come_back(self, path: Path) -> None:
        outbox = open_outbox(path)
        t, u = (row.id for row in outbox.make_streams([("t", 0), ("u", 0)]))
        since = Member((5_000, 1), (5_000, 1))
        outbox.name_groups(
            {(t, "g"): since, (t, "h"): since, (u, "g"): since}, [], 0, 0, {"release": "consumed"}
        )
        outbox.progress({}, 1, [], 0, 0, {(t, "g"): (5_000, 7), (u, "nobody"): (5_000, 9)})
        outbox.progress({}, 1, [], 0, 0, {(t, "g"): (4_999, 100)})
        outbox.name_groups({(t, "h"): None}, [], 0, 0)
        outbox.close()
        again = open_outbox(path)
        assert again.members() == {t: {"g": Member((5_000, 1), (5_000, 7))}, u: {"g": since}}, "never back"
        assert inspect_outbox(path).release == "consumed"
        assert inspect_outbox(path).groups == {"t": ["g"], "u": ["g"]}
        again.close()

    def test_how_far_behind_they_are(self, outbox: Outbox, path: Path) -> None:
        for bodies in ([b"1", b"2", b"3"], [b"4", b"5"]):
            put(outbox, "t", *bodies)
        put(outbox, "u", b"1")
        stream, epoch = outbox.stream("t", 0).id, outbox.epoch
        members = {(stream, "a"): Member((epoch, 1), (epoch, 3)), (stream, "b"): Member((1, 1), (1, 1))}
        outbox.name_groups(members, [], 0, 0)
        assert inspect_outbox(path).members == [
            MemberInfo("a", "t", 0, (epoch, 1), (epoch, 3), 3),
            MemberInfo("b", "t", 0, (1, 1), (1, 1), 5),
        ]
        assert [outbox.unsettled(stream, (epoch, n)) for n in (1, 3, 4, 5, 6)] == [1, 1, 2, 2, None]
        assert outbox.unsettled(stream, (1, 1)) == 1
        assert outbox.unsettled(stream, (epoch + 1, 1)) is None


class TestNumbers:
    def test_batches_by_number(self, outbox: Outbox) -> None:
        for n in range(250):
            put(outbox, "t", b"%d" % n, b"x")
        stream, epoch = outbox.stream("t", 0).id, outbox.epoch
        find = outbox.numbered
        assert [row.seq for row in find(stream, epoch, 4, 8, 10_000)] == [3, 5, 7]
        assert [row.seq for row in find(stream, epoch, 4, 8, 1)] == [3], "at least one"
        assert len(find(stream, epoch, 1, 500, 10**6)) == 250, "in several pages"
        assert find(stream, epoch, 501, 600, 10**6) == []
        assert find(stream, epoch - 1, 1, 500, 10**6) == []
        outbox.remove([2, 3], [], 0, 0)
        assert [row.seq for row in find(stream, epoch, 1, 8, 10_000)] == [1, 7]
        assert [row.seq for row in find(stream, epoch, 4, 8, 10_000)] == [7], "the one below ends before"
        assert outbox.oldest(stream) == (epoch, 1)

    def test_a_chain_is_trimmed(self, path: Path) -> None:
        for wall_us in (5_000_000, 6_000_000, 7_000_000):
            outbox = open_outbox(path, wall_us)
            put(outbox, "t", b"1")
            outbox.close()
        outbox = open_outbox(path, 8_000_000)
        stream = outbox.stream("t", 0).id
        assert [link.epoch for link in outbox.chain(stream)] == [5_000, 6_000, 7_000]
        outbox.trim_chain(stream, 6_000)
        assert [(link.epoch, link.last) for link in outbox.chain(stream)] == [(6_000, 1), (7_000, 1)]
        outbox.close()


class TestRemoving:
    @pytest.mark.parametrize(
        ("first", "last", "left"),
        [
            (1, 4, [(2, [5, 6, 7, 8])]),
            (5, 6, [(1, [1, 2, 3, 4]), (2, [7, 8])]),
            (7, 8, [(1, [1, 2, 3, 4]), (2, [5, 6])]),
            (6, 7, [(1, [1, 2, 3, 4]), (2, [5]), (3, [8])]),
            (3, 6, [(1, [1, 2]), (2, [7, 8])]),
            (1, 8, []),
        ],
    )
    def test_what_is_left(
        self, outbox: Outbox, first: int, last: int, left: list[tuple[int, list[int]]]
    ) -> None:
        put(outbox, "t", b"1", b"2", b"3", b"4")
        put(outbox, "t", b"5", b"6", b"7", b"8")
        stream, epoch = outbox.stream("t", 0).id, outbox.epoch
        taken = outbox.take_out(
            stream, RemovedRange(epoch, first, last), cut, lambda taken: (taken.spans, []), 0, 0
        )
        rows = outbox.page(1, None, 10_000)
        found = [(row.id, [int(body) for body in open_frame(row.frame).records().bodies]) for row in rows]
        assert found == left
        assert [(row.id, row.seq, row.count) for row in rows] == [(n, b[0], len(b)) for n, b in left]
        assert outbox.removed() == {stream: [RemovedRange(epoch, *span) for span in taken.spans]}
        assert sum(b - a + 1 for a, b in taken.spans) == last - first + 1
        assert len(taken.gone) + len(taken.cut) == (1 if first > 4 or last < 5 else 2)
        assert [row.id for row in taken.added] == [n for n, _ in left if n > 2]

    def test_the_lowest_row_counts_though_its_numbers_are_higher(self, outbox: Outbox) -> None:
        put(outbox, "t", b"1", b"2", b"3")
        put(outbox, "t", b"4")
        stream, epoch = outbox.stream("t", 0).id, outbox.epoch
        outbox.take_out(
            stream, RemovedRange(epoch, 2, 2), cut, lambda taken: (taken.spans, []), 0, 0
        )  # 3 is row 3, behind 4
        assert outbox.unsettled(stream, (epoch, 2)) == 2


class TestRenumbering:
    def test_the_journal_tells_of_it_epoch_by_epoch(self, path: Path) -> None:
        """Whatever is journalled under an epoch ends all that came before, whichever stream it is about."""
        first = open_outbox(path, 5_000_000)
        put(first, "t", b"1")
        put(first, "u", b"1")
        first.close()
        second = open_outbox(path, 6_000_000)
        put(second, "t", b"2")
        put(second, "u", b"2")
        epochs = second.renumber(9_000, recode, 0, 0)
        second.close()
        with closing(open_readonly(path)) as db:
            told = [(r.kind, r.epoch, r.topic) for r in read_journal(db) if r.kind in ("epoch", "renumbered")]
        assert told[-8:] == [
            (kind, epoch, topic)
            for old, new in epochs.items()
            for topic in ("t", "u")
            for kind, epoch in (("epoch", new), ("renumbered", old))
        ]

    @pytest.mark.parametrize("offers", [True, False])
    def test_what_an_earlier_opening_stored_says_that_it_moved(self, path: Path, offers: bool) -> None:
        """The file may be an older copy of one that has offered it since."""
        first = open_outbox(path, 5_000_000)
        put(first, "t", b"1")
        if offers:
            first.offer()
        first.close()
        second = open_outbox(path, 6_000_000)
        put(second, "t", b"2")
        second.close()
        third = open_outbox(path, 7_000_000)
        put(third, "t", b"3")

        def flags() -> list[bool]:
            return [open_frame(row.frame).envelope.moved for row in third.page(1, None, 10_000)]

        first_moved = third.renumber(9_000, recode, 0, 0)
        assert list(first_moved) == ([6_000, 7_000] if offers else [5_000, 6_000, 7_000])
        assert flags() == [not offers, True, False]
        third.next_epoch()
        put(third, "t", b"4")
        assert len(third.renumber(third.epoch + 2**20, recode, 0, 0)) == len(first_moved) + 1
        assert flags() == [not offers, True, False, False]
        third.close()

    def test_no_group_has_settled_what_moved(self, path: Path) -> None:
        """A group may know another copy of the file, which has offered the same messages, and more."""
        first = open_outbox(path, 5_000_000)
        put(first, "t", b"1", b"2", b"3")
        t, u = (row.id for row in first.make_streams([("t", 0), ("u", 0)]))
        start = Member((5_000, 1), (5_000, 1))
        first.name_groups({(t, "far"): start, (t, "near"): start, (u, "g"): start}, [], 0, 0)
        first.close()
        second = open_outbox(path, 6_000_000)
        put(second, "t", b"4")
        second.progress(
            {},
            1,
            [],
            0,
            0,
            positions={(t, "far"): (5_000, 31), (t, "near"): (5_000, 2), (u, "g"): (5_000, 31)},
        )
        new = second.renumber(9_000, recode, 0, 0)[5_000]
        since = (new, 1)
        assert second.members() == {
            t: {"far": Member(since, since), "near": Member(since, since)},
            u: {"g": Member(since, since)},
        }
        second.close()

    def test_epochs_that_were_never_offered_move_together(self, path: Path) -> None:
        first = open_outbox(path, 5_000_000)
        put(first, "t", b"1", b"2")
        first.offer()
        first.close()
        second = open_outbox(path, 6_000_000)
        assert second.gated() is None
        put(second, "t", b"3")
        assert second.gated() == 2
        second.close()
        third = open_outbox(path, 7_000_000)
        put(third, "t", b"4", b"5")
        put(third, "u", b"1")
        t, u = third.stream("t", 0).id, third.stream("u", 0).id
        third.name_groups({(u, "g"): Member((7_000, 1), (7_000, 1))}, [], 0, 0)
        assert third.gated() == 2
        renumbered = third.renumber(9_000, recode, 0, 0)
        new, last = renumbered[6_000], third.epoch
        assert renumbered == {6_000: new, 7_000: new + 1}
        assert 9_000 < new <= 9_000 + EPOCH_STEP
        assert last == new + 1
        expected = [
            ChainRow(5_000, first.incarnation, 2),
            ChainRow(new, second.incarnation, 1),
            ChainRow(last, third.incarnation, 2),
        ]
        assert third.chain(t) == expected
        assert third.members() == {u: {"g": Member((last, 1), (last, 1))}}
        rows = third.page(1, None, 10_000)
        assert [(row.id, row.epoch, row.seq, row.count) for row in rows] == [
            (1, 5_000, 1, 2), (2, new, 1, 1), (3, last, 1, 2), (4, last, 1, 1),
        ]  # fmt: skip
        envelopes = [open_frame(row.frame).envelope for row in rows]
        assert [(e.epoch, e.prev) for e in envelopes] == [
            (5_000, None),
            (new, (5_000, first.incarnation, 2)),
            (last, (new, second.incarnation, 1)),
            (last, None),
        ]
        assert third.stream("t", 0).prev == Prev(new, second.incarnation, 1)
        row = put(third, "t", b"6")
        assert (row.epoch, row.seq) == (last, 3)
        third.close()
        with closing(open_readonly(path)) as db:
            told = [(r.kind, r.topic, r.epoch, r.first, r.last, r.detail) for r in read_journal(db)]
        assert [row for row in told if row[0] == "renumbered"] == [
            ("renumbered", "t", 6_000, 1, 1, {"epoch": new, "first": 1}),
            ("renumbered", "t", 7_000, 1, 2, {"epoch": last, "first": 1}),
            ("renumbered", "u", 7_000, 1, 1, {"epoch": last, "first": 1}),
        ]
        again = open_outbox(path, 7_500_000)
        assert again.epoch > last
        again.close()


class TestEarlierFiles:
    def make(self, path: Path, groups: dict[str, list[str]]) -> None:
        """A file as the first version of the schema had it, with a batch of an epoch 4,000."""
        folder = resources.files("reliamsg.store") / "sql" / "outbox"
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for statement in statements((folder / "0001.sql").read_text()):
                db.execute(statement)
            db.execute("PRAGMA application_id = 0x524D4F31")
            db.execute("PRAGMA user_version = 1")
            meta = {"owner": "p", "epoch": "4000", "incarnation": "0" * 16, "published": "1"}
            db.executemany("INSERT INTO meta VALUES (?, ?)", (meta | {"groups": json.dumps(groups)}).items())
            db.execute("INSERT INTO stream VALUES (1, 't', 0), (2, 'u', 0)")
            db.execute("INSERT INTO chain VALUES (1, 4000, '00', 9), (2, 3000, '00', 5)")
            db.execute("INSERT INTO batch VALUES (7, 1, 4000, '00', 8, 2, 1, 0, x'00')")

    def test_groups_count_for_what_is_held(self, path: Path) -> None:
        self.make(path, {"t": ["g", "h"], "u": ["g"], "v": ["g"]})
        assert inspect_outbox(path).groups == {"t": ["g", "h"], "u": ["g"], "v": ["g"]}
        outbox = open_outbox(path)
        ids = {row.stream.topic: row.id for row in outbox.streams.values()}
        held, next_, none = (Member(at, at) for at in ((4_000, 8), (3_000, 6), (1, 1)))
        assert outbox.members() == {
            ids["t"]: {"g": held, "h": held},
            ids["u"]: {"g": next_},
            ids["v"]: {"g": none},
        }
        assert inspect_outbox(path).groups == {"t": ["g", "h"], "u": ["g"], "v": ["g"]}
        assert outbox.gated() is None, "it may have been sent"
        assert put(outbox, "t", b"x").id == 8
        outbox.close()

    def test_without_groups(self, path: Path) -> None:
        self.make(path, {})
        outbox = open_outbox(path)
        assert outbox.members() == {}
        assert outbox.published() == 1
        outbox.close()
