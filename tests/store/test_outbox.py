"""The outbox file: what comes back after it was stored, released, closed and opened again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.errors import StoreCorrupt, StoreMismatch
from reliamsg.message import Prev
from reliamsg.store.database import Database
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import EPOCH_STEP, Cursors, NewBatch, Outbox, Parked, Row
from reliamsg.store.outbox_view import inspect_outbox, list_batches
from reliamsg.wire.data import Origin, Records, encode


def open_outbox(path: Path, wall_us: int = 5_000_000) -> Outbox:
    return Outbox(path, "p", wall_us, 0, "b" * 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def outbox(path: Path) -> Iterator[Outbox]:
    found = open_outbox(path)
    yield found
    found.close()


def put(outbox: Outbox, topic: str, *bodies: bytes) -> Row:
    stream = outbox.stream(topic, 0)
    seq = stream.next_seq
    frame = encode(
        Origin(stream.stream, outbox.epoch, outbox.incarnation, stream.prev),
        seq,
        (1, 2),
        Records(list(bodies)),
    )
    entry = Entry(
        "enqueued", stream.stream, outbox.epoch, outbox.incarnation, seq, seq + len(bodies) - 1, digest=0
    )
    (row,) = outbox.append([NewBatch(stream, seq, len(bodies), frame)], [entry], 7_000, 0)
    return row


class TestEpochs:
    def test_each_opening_is_a_new_one(self, path: Path) -> None:
        seen = []
        for wall_us in (5_000_000, 5_000_000, 4_000_000, 20_000_000_000):
            outbox = open_outbox(path, wall_us)
            seen.append((outbox.epoch, outbox.incarnation))
            outbox.close()
        epochs = [epoch for epoch, _ in seen]
        assert epochs[0] == 5_000
        assert epochs[0] < epochs[1] < epochs[2] < epochs[3]
        assert epochs[3] == 20_000_000, "the clock is ahead again"
        assert len({incarnation for _, incarnation in seen}) == 4

    def test_copies_do_not_meet_in_one_epoch_while_clocks_are_behind(self, path: Path) -> None:
        open_outbox(path, 5_000_000).close()
        image, seen = path.read_bytes(), []
        for _ in range(3):
            path.write_bytes(image)
            outbox = open_outbox(path, 4_000_000)
            seen.append(outbox.epoch)
            outbox.close()
        assert len(set(seen)) == 3
        assert all(5_000 < epoch <= 5_000 + EPOCH_STEP for epoch in seen)

    def test_a_predecessor_is_the_newest_epoch_with_messages(self, path: Path) -> None:
        first = open_outbox(path)
        assert first.stream("t", 0).prev is None
        put(first, "t", b"1", b"2", b"3")
        first.close()
        open_outbox(path).close()
        again = open_outbox(path)
        assert again.stream("t", 0).prev == Prev(first.epoch, first.incarnation, 3)
        assert again.stream("t", 0).next_seq == 1
        again.close()

    def test_incarnations_use_all_64_bits(self, path: Path) -> None:
        first = Outbox(path, "p", 5_000_000, 0, "b" * 16, random_bytes=lambda size: b"\xff" * size)
        put(first, "t", b"1")
        first.close()
        again = open_outbox(path)
        assert again.page(1, None, 10_000)[0].incarnation == 2**64 - 1
        again.close()


class TestRows:
    def test_ids_rise_without_holes_and_numbers_per_stream(self, outbox: Outbox) -> None:
        rows = [put(outbox, topic, b"x", b"y") for topic in ("a", "b", "a")]
        assert [row.id for row in rows] == [1, 2, 3]
        assert [(row.stream.topic, row.seq, row.last) for row in rows] == [
            ("a", 1, 2),
            ("b", 1, 2),
            ("a", 3, 4),
        ]
        assert outbox.bounds() == (1, 3)
        assert outbox.totals()[0] == 6

    def test_what_is_undone_uses_no_number(self, outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
        put(outbox, "a", b"x")

        def fail(*_: object, **__: object) -> None:
            raise KeyError

        with monkeypatch.context() as patch:
            patch.setattr(outbox.journal, "write", fail)
            with pytest.raises(KeyError):
                put(outbox, "a", b"no", b"no")
        row = put(outbox, "a", b"y")
        assert (row.id, row.seq) == (2, 2)

    def test_pages(self, outbox: Outbox) -> None:
        rows = [put(outbox, "ab"[n % 2], bytes(100)) for n in range(10)]
        assert [row.id for row in outbox.page(4, None, 2 * rows[0].size)] == [4, 5]
        assert [row.id for row in outbox.page(4, None, 1)] == [4], "at least one"
        assert [row.id for row in outbox.page(2, rows[1].stream_id, 100_000)] == [2, 4, 6, 8, 10]
        assert outbox.page(11, None, 100_000) == []
        assert outbox.page(3, None, 100_000)[0] == rows[2]

    def test_a_damaged_row_is_not_read(self, outbox: Outbox) -> None:
        row = put(outbox, "t", b"x" * 100)
        put(outbox, "t", b"y")
        broken = bytearray(row.frame)
        broken[len(broken) // 2] ^= 1
        with outbox._db.transaction() as connection:
            connection.execute("UPDATE batch SET frame = ? WHERE id = 1", (bytes(broken),))
        with pytest.raises(StoreCorrupt, match=r"batch 1 \(p/t, 1 to 1\)"):
            outbox.page(1, None, 10_000)
        assert outbox.page(2, None, 10_000)[0].id == 2

    def test_ids_are_never_used_again(self, path: Path) -> None:
        outbox = open_outbox(path)
        rows = [put(outbox, "t", b"x") for _ in range(3)]
        outbox.remove([row.id for row in rows], [], 0, 0)
        assert outbox.bounds() == (4, 3)
        outbox.close()
        again = open_outbox(path)
        assert again.bounds() == (4, 3)
        assert put(again, "t", b"y").id == 4
        again.close()

    def test_removing_in_the_middle(self, outbox: Outbox) -> None:
        for _ in range(5):
            put(outbox, "t", b"x")
        outbox.remove([2, 4], [], 0, 0)
        assert [row.id for row in outbox.page(1, None, 100_000)] == [1, 3, 5]
        assert [row.id for row in outbox.rows(2, 4, 10)] == [3]


class TestProgress:
    def test_cursors_and_parked_streams_come_back(self, path: Path) -> None:
        outbox = open_outbox(path)
        stream = outbox.stream("t", 0).id
        outbox.progress(
            {"dc1": Cursors(5, [Parked(stream, 2, 3, "nacked: full")]), "dc2": Cursors(1)}, 4, [], 0, 0
        )
        outbox.progress({"dc1": Cursors(6, [Parked(stream, 3, 4, "nacked: full")])}, 5, [], 0, 0)
        outbox.close()
        again = open_outbox(path)
        assert again.published() == 5
        assert again.site_cursors() == {
            "dc1": Cursors(6, [Parked(stream, 3, 4, "nacked: full")]),
            "dc2": Cursors(1, ()),
        }
        again.progress({"dc1": Cursors(7)}, 5, [], 0, 0)
        assert again.site_cursors()["dc1"] == Cursors(7, ())
        again.forget_sites(["dc2"])
        assert set(again.site_cursors()) == {"dc1"}
        again.close()

    def test_a_forgotten_sites_parked_streams_go_with_it(self, outbox: Outbox) -> None:
        stream = outbox.stream("t", 0).id
        outbox.progress({"dc1": Cursors(5, [Parked(stream, 2, 3, "nacked")])}, 1, [], 0, 0)
        outbox.forget_sites(["dc1"])
        outbox.progress({"dc1": Cursors(1)}, 1, [], 0, 0)
        assert outbox.site_cursors() == {"dc1": Cursors(1, ())}


class TestInspection:
    def test_while_the_owner_runs(self, outbox: Outbox, path: Path) -> None:
        for topic in ("a", "b", "a", "b"):
            put(outbox, topic, b"x", b"y")
        parked = Parked(outbox.stream("a", 0).id, 1, 2, "returned: no queue")
        outbox.progress({"dc1": Cursors(4, [parked]), "dc2": Cursors(5)}, 2, [], 0, 0)
        found = inspect_outbox(path)
        assert (found.producer, found.epoch) == ("p", outbox.epoch)
        assert (found.batches, found.messages, found.oldest_us) == (4, 8, 7_000)
        assert found.unpublished == 6
        assert found.sites == {"dc1": 6, "dc2": 0}, "dc1 lacks both batches of a, and the last of b"
        assert found.parked == [("dc1", "a", "returned: no queue")]
        batches = list_batches(path, 3)
        assert [(b.id, b.stream.topic, b.seq, b.count, b.frame) for b in batches] == [
            (1, "a", 1, 2, b""),
            (2, "b", 1, 2, b""),
            (3, "a", 3, 2, b""),
        ]
        put(outbox, "a", b"z")

    def test_an_empty_one(self, outbox: Outbox, path: Path) -> None:
        found = inspect_outbox(path)
        assert (found.messages, found.bytes, found.oldest_us, found.sites) == (0, 0, None, {})
        assert list_batches(path, 10) == []

    def test_what_is_none(self, tmp_path: Path) -> None:
        Database(tmp_path / "inbox.db", "inbox", "g").close()
        (tmp_path / "text.db").write_text("text" * 1_000)
        for look in (inspect_outbox, lambda path: list_batches(path, 10)):
            with pytest.raises(StoreMismatch, match="an inbox"):
                look(tmp_path / "inbox.db")
            with pytest.raises(StoreCorrupt):
                look(tmp_path / "text.db")
            with pytest.raises(StoreCorrupt, match="no such file"):
                look(tmp_path / "missing.db")
