"""Producers and consumers whose journals leave them."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.config import JournalExport
from reliamsg.errors import ConfigError, JournalFull, OutboxLocked
from reliamsg.export.offline import export_file
from reliamsg.export.target import open_target
from reliamsg.testing import MemoryNetwork
from tests.export.tools import consumer, covered, left, meta, producer, segments, whole
from tests.receiving.tools import until


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as found:
        yield found


def test_a_journal_leaves_a_producer(network: MemoryNetwork, tmp_path: Path) -> None:
    target, outbox = tmp_path / "journals", tmp_path / "out.db"
    with producer(network, outbox, journal=target) as one:
        for number in range(100):
            one.publish("orders", b"%d" % number)
        one.flush(10)
    rows = whole(target, outbox)
    assert rows[0].kind == "opened"
    assert rows[-1].kind == "closed"
    assert not left(outbox)
    assert list(covered(rows, "enqueued").values()) == [[(1, 100)]]
    (path,) = [segment.path for segment in segments(target)]
    assert path.startswith("role=producer/client=gateway/date=")


def test_a_journal_leaves_a_consumer(network: MemoryNetwork, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    with consumer(network, tmp_path / "in.db", journal=target) as reader:
        with producer(network, tmp_path / "out.db", journal=target) as one:
            for number in range(50):
                one.publish("orders", b"%d" % number)
            one.flush(10)
        for _ in range(50):
            message = reader.get(10)
            assert message is not None
            message.ack()
        status = reader.status().journal
        assert status is not None
        assert (status.target, status.full, status.error) == (str(target), False, "")
        assert status.backlog_rows > 0
    rows = (
        whole(target, tmp_path / "in.db")
        if False
        else [row for segment in segments(target) if segment.header.role == "group" for row in segment.rows]
    )
    assert [rows[0].kind, rows[-1].kind] == ["opened", "closed"]
    assert list(covered(rows, "delivered").values()) == [[(1, 50)]]
    assert not left(tmp_path / "in.db")


def test_without_a_target_nothing_leaves(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "out.db") as one:
        one.publish("orders", b"1")
        assert one.status().journal is None
    assert left(tmp_path / "out.db")
    assert meta(tmp_path / "out.db") == {}
