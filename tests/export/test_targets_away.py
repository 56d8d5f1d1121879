"""Targets that are unreachable, full, slow or damaged, and both policies for waiting rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg import JournalExport, Producer
from reliamsg.errors import JournalFull, OutboxFull
from reliamsg.export import exporter
from reliamsg.export.offline import export_file
from reliamsg.export.target import DirectoryTarget
from reliamsg.store.database import open_readonly
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import until
from tests.export.tools import TOPICS, consumer, left, meta, producer, segments, whole
from tests.patience import STALL_S, quickest
from tests.store.faults import fill, small_disk

LIMIT = 40


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry more quickly than usual."""
    monkeypatch.setattr(exporter, "BACKOFF_MIN_S", 0.05)
    monkeypatch.setattr(exporter, "BACKOFF_MAX_S", 0.2)


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """An impossible target: there is a file in its place."""
    target = tmp_path / "journals"
    target.write_text("not a directory")
    return target


def export(target: Path, **options: Any) -> JournalExport:
    options = {"interval": 0.05, "segment_rows": 10, "max_backlog_rows": LIMIT} | options
    return JournalExport(target, **options)


def publish_until_full(one: Producer) -> int:
    """A message to one topic after the other, until the journal is full; returns their number."""
    for number, topic in enumerate(TOPICS):
        try:
            one.publish(topic, b"x")
        except JournalFull:
            return number
        time.sleep(0.02)
    raise AssertionError("it never became full")


def test_publishing_blocks_until_the_target_returns(
    network: MemoryNetwork, away: Path, tmp_path: Path
) -> None:
    outbox = tmp_path / "out.db"
    one = producer(network, outbox, journal=export(away), block_timeout=0.3)
    count = publish_until_full(one)
    assert count > 3
    started = time.monotonic()
    with pytest.raises(
        JournalFull, match=r"rows of the journal wait for .*/journals.*Not a directory|exists"
    ):
        one.publish("orders", b"x")
    assert time.monotonic() - started >= 0.3

    def nowait() -> None:
        with pytest.raises(OutboxFull):  # JournalFull is one
            one.publish_nowait("orders", b"x")

    assert quickest(nowait, 0.2) < 0.2
    status = one.status().journal
    assert status is not None
    assert status.full
    assert status.backlog_rows >= LIMIT
    assert "can't be written" in status.error

    away.unlink()
    until(lambda: not one.status().journal.full, "the target takes segments")  # type: ignore[union-attr]
    one.publish("orders", b"after")
    one.flush(60)
    assert one.close().journal_rows == 0
    rows = whole(away, outbox)
    assert rows[-1].kind == "closed"
    assert sum(row.last - row.first + 1 for row in rows if row.kind == "enqueued") == count + 1


def test_callers_that_wait_for_room_continue_when_the_target_returns(
    network: MemoryNetwork, away: Path, tmp_path: Path
) -> None:
    with producer(network, tmp_path / "out.db", journal=export(away), block_timeout=0.1) as one:
        publish_until_full(one)
        one._block = 60.0
        waiter = threading.Thread(target=one.publish, args=("orders", b"x"))
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()
        away.unlink()
        waiter.join(60)
        assert not waiter.is_alive()
    whole(away, tmp_path / "out.db")


def test_a_consumer_hands_out_nothing_until_the_target_returns(
    network: MemoryNetwork, away: Path, tmp_path: Path
) -> None:
    inbox = tmp_path / "in.db"
    reader = consumer(network, inbox, journal=export(away), topics=TOPICS)
    got = []
    with producer(network, tmp_path / "out.db") as one:
        for topic in TOPICS:
            one.publish(topic, topic.encode())
            full = reader.status().journal.full  # type: ignore[union-attr]
            message = None if full else reader.get(0.3)
            if message is not None:
                got.append(message.body)
                message.ack()
        one.flush(60)
    assert reader.get(1.0) is None
    assert len(got) < len(TOPICS)
    status = reader.status()
    assert status.journal is not None
    assert status.journal.full
    assert "rows of the journal wait" in status.error
    away.unlink()
    while len(got) < len(TOPICS):
        message = reader.get(60)
        assert message is not None
        got.append(message.body)
        message.ack()
    assert sorted(got) == sorted(topic.encode() for topic in TOPICS)
    assert reader.status().error == ""
    assert reader.close().clean
    assert whole(away, inbox)[-1].kind == "closed"


def test_truncating_continues_and_reports_discarded_rows(
    network: MemoryNetwork, away: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = tmp_path / "out.db"
    with caplog.at_level(logging.WARNING, "reliamsg.export"):
        one = producer(network, outbox, journal=export(away, when_full="truncate"))
        for _ in range(3):
            for topic in TOPICS:
                one.publish(topic, b"x")
        one.flush(60)

        def bounded() -> bool:
            status = one.status().journal
            assert status is not None
            assert not status.full
            return status.backlog_rows <= LIMIT

        until(bounded, "the backlog is bounded")
    assert "rows deleted" in caplog.text
    away.unlink()
    until(lambda: one.status().journal.exported_lsn > 0, "segments leave")  # type: ignore[union-attr]
    one.close()
    found = sorted(segments(away), key=lambda segment: segment.header.first_lsn)
    rows = [row for segment in found for row in segment.rows] + left(outbox)
    assert rows[-1].kind == "closed"
    # Exactly the rows that the journal reports as discarded are missing.
    told: set[int] = set()
    for row in rows:
        if row.kind == "truncated":
            assert row.detail is not None
            told |= set(range(row.detail["first_lsn"], row.detail["last_lsn"] + 1))
    missing = set(range(1, rows[-1].lsn + 1)) - {row.lsn for row in rows}
    assert missing
    assert told == missing
    parents = [segment.header.parent for segment in found]
    assert parents == [None, *(segment.digest for segment in found[:-1])]


def test_discards_in_steps_and_across_boots_are_reported_in_full(
    network: MemoryNetwork, away: Path, tmp_path: Path
) -> None:
    outbox = tmp_path / "out.db"
    for _ in range(3):
        with producer(network, outbox, journal=export(away, when_full="truncate")) as one:
            for topic in TOPICS:
                one.publish(topic, b"x")
            one.flush(60)
    state, rows = meta(outbox), left(outbox)
    assert "journal_exported_lsn" not in state
    cut = int(state["journal_cut_lsn"])
    details = [row.detail for row in rows if row.kind == "truncated" and row.detail is not None]
    above = min(row.lsn for row in rows if row.lsn > cut)
    assert {detail["first_lsn"] for detail in details} == {cut + 1}
    assert max(detail["last_lsn"] for detail in details) == above - 1
    away.unlink()
    export_file(outbox, away)
    assert not left(outbox)


def test_earlier_rows_in_the_file_are_not_discarded(network: MemoryNetwork, tmp_path: Path) -> None:
    outbox, target = tmp_path / "out.db", tmp_path / "journals"
    with producer(network, outbox) as one:
        for topic in TOPICS:
            one.publish(topic, b"x")
        one.flush(60)
    assert len(left(outbox)) > 2 * LIMIT
    with producer(network, outbox, journal=export(target, when_full="truncate")) as one:
        one.publish("orders", b"x")
    rows = whole(target, outbox)
    assert "truncated" not in {row.kind for row in rows}


def test_closing_does_not_wait_for_a_target_that_refuses(
    network: MemoryNetwork, away: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = tmp_path / "out.db"
    one = producer(network, outbox, journal=export(away, interval=3600))
    one.publish("orders", b"x")
    one.flush(60)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "reliamsg.export"):
        remaining = one.close(60)
    assert time.monotonic() - started < 30
    assert remaining.nothing
    assert remaining.journal_rows == len(left(outbox)) > 0
    assert f"{remaining.journal_rows} rows stay in" in caplog.text
    away.unlink()
    with producer(network, outbox, journal=export(away)):
        pass
    assert [row.kind for row in whole(away, outbox)].count("closed") == 2


@pytest.mark.parametrize("role", ["producer", "group"])
def test_closing_does_not_wait_for_a_target_that_hangs(
    role: str, network: MemoryNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "file.db", tmp_path / "journals"
    released = threading.Event()
    write = DirectoryTarget.write

    def hang(self: DirectoryTarget, name: str, data: bytes) -> None:
        released.wait(60)
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryTarget, "write", hang)
        one = (producer if role == "producer" else consumer)(network, path, journal=export(target))
        time.sleep(0.2)
        started = time.monotonic()
        one.close(1.0)
        assert time.monotonic() - started < 1.0 + 5.0 + STALL_S
        assert left(path)
        # The file is free again, and the write that hung may still complete.
        (producer if role == "producer" else consumer)(network, path, journal=None).close()
        released.set()
        thread = next((t for t in threading.enumerate() if t.name.startswith("reliamsg-journal-")), None)
        if thread is not None:
            thread.join(60)
    export_file(path, target)
    rows = whole(target, path)
    assert [row.kind for row in rows].count("opened") == 2
    # The write that hung was of the same segment that was written again.
    assert len({segment.path for segment in segments(target)}) == len(segments(target))


def test_a_full_disk(network: MemoryNetwork, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        rest = fill(disk)
        one = producer(network, tmp_path / "out.db", journal=export(disk / "journals"))
        one.publish("orders", b"x")
        until(lambda: "No space left" in one.status().journal.error, "the disk is full")  # type: ignore[union-attr]
        rest.unlink()
        until(lambda: not one.status().journal.backlog_rows, "it all goes")  # type: ignore[union-attr]
        one.close()
        whole(disk / "journals", tmp_path / "out.db")
        assert not list((disk / "journals").rglob(".*"))


def test_a_damaged_file_under_the_same_name_stays(network: MemoryNetwork, tmp_path: Path) -> None:
    outbox, target = tmp_path / "out.db", tmp_path / "journals"
    seen = threading.Event()

    def crash(point: str) -> None:
        if point == "journal_written":
            seen.set()
            raise RuntimeError("as if the process had ended here")

    one = producer(network, outbox, journal=export(target, interval=3600), probe=crash)
    one.close()
    assert seen.is_set()
    (segment,) = segments(target)
    assert "journal_cut_lsn" in meta(outbox)
    file = target / segment.path
    good = file.read_bytes()
    file.write_bytes(good.replace(b"opened", b"openee"))
    with producer(network, outbox, journal=export(target)) as one:
        until(lambda: "damaged or edited" in one.status().journal.error, "it is noticed")  # type: ignore[union-attr]
        assert file.name in one.status().journal.error  # type: ignore[union-attr]
        file.rename(tmp_path / "evidence")
        until(lambda: not one.status().journal.error, "it goes on")  # type: ignore[union-attr]
    assert file.read_bytes() == good
    assert whole(target, outbox)[-1].kind == "closed"


def test_looking_does_not_disturb(network: MemoryNetwork, tmp_path: Path) -> None:
    """Rows are deleted while another process reads the file."""
    outbox, target = tmp_path / "out.db", tmp_path / "journals"
    with producer(network, outbox, journal=export(target)) as one:
        one.publish("orders", b"x")
        reader = open_readonly(outbox)
        cursor = reader.execute("SELECT * FROM journal")
        cursor.fetchone()
        until(lambda: not one.status().journal.backlog_rows, "it all goes")  # type: ignore[union-attr]
        cursor.close()
        reader.close()
    whole(target, outbox)
