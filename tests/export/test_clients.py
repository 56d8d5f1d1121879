"""Producers and consumers whose journals leave them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from reliamsg import Consumer, JournalExport, Producer, Site
from reliamsg.errors import ConfigError, ForkedError, OutboxLocked, StoreCorrupt
from reliamsg.export.offline import export_file
from reliamsg.lab import Mosquitto
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import until
from tests.export.tools import consumer, covered, left, meta, producer, segments, whole


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
            message = reader.get(60)
            assert message is not None
            message.ack()
        status = reader.status().journal
        assert status is not None
        assert (status.target, status.full, status.error) == (str(target), False, "")
        assert status.backlog_rows > 0
    rows = whole(target, tmp_path / "in.db")
    assert [rows[0].kind, rows[-1].kind] == ["opened", "closed"]
    assert list(covered(rows, "delivered").values()) == [[(1, 50)]]
    assert not left(tmp_path / "in.db")


def test_segments_leave_while_there_is_something_new(network: MemoryNetwork, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    with producer(network, tmp_path / "out.db", journal=JournalExport(target, interval=0.1)) as one:
        one.publish("orders", b"1")
        until(lambda: target.exists() and segments(target), "a first segment")
        one.flush(10)
        status = one.status().journal
        assert status is not None
        until(lambda: not one.status().journal.backlog_rows, "all of it")  # type: ignore[union-attr]
        before = len(segments(target))
        one.publish("orders", b"2")
        until(lambda: len(segments(target)) > before, "another one")
    rows = whole(target, tmp_path / "out.db")
    # Exported rows are not extended: the second message has a separate row.
    assert [(row.first, row.last) for row in rows if row.kind == "enqueued"] == [(1, 1), (2, 2)]


def test_segments_are_no_longer_than_asked(network: MemoryNetwork, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    with producer(network, tmp_path / "out.db", journal=JournalExport(target, segment_rows=3)) as one:
        for number in range(30):
            one.publish(f"t{number}", b"x")
        one.flush(10)
    sizes = [len(segment.rows) for segment in segments(target)]
    assert len(sizes) > 10
    assert max(sizes) <= 3
    whole(target, tmp_path / "out.db")


def test_earlier_boots_leave_at_once_and_one_chain_continues(network: MemoryNetwork, tmp_path: Path) -> None:
    target, outbox = tmp_path / "journals", tmp_path / "out.db"
    for _ in range(2):
        with producer(network, outbox) as one:
            one.publish("orders", b"x")
    assert not target.exists()
    with producer(network, outbox, journal=JournalExport(target, interval=3600)) as one:
        until(lambda: len(segments(target)) == 2 if target.exists() else False, "a segment for each boot")
        one.publish("orders", b"x")
    with producer(network, outbox, journal=target) as one:
        one.publish("orders", b"x")
    rows = whole(target, outbox)
    assert [row.kind for row in rows].count("opened") == 4
    assert len(segments(target)) == 4


def test_fsspec(network: MemoryNetwork, tmp_path: Path) -> None:
    url = f"memory://journals-{os.getpid()}/fleet"
    for _ in range(2):
        with producer(network, tmp_path / "out.db", journal=JournalExport(url, segment_rows=2)) as one:
            one.publish("orders", b"x")
    assert len(segments(url)) > 2
    assert [row.kind for row in whole(url, tmp_path / "out.db")].count("closed") == 2


def test_another_target_between_two_openings(network: MemoryNetwork, tmp_path: Path) -> None:
    outbox, targets = tmp_path / "out.db", [tmp_path / "one", tmp_path / "two"]
    for target in targets:
        with producer(network, outbox, journal=target) as one:
            one.publish("orders", b"x")
    first, second = [segments(target) for target in targets]
    assert second[0].header.parent == first[-1].digest
    assert second[0].header.first_lsn == first[-1].header.last_lsn + 1
    collected = tmp_path / "collected"
    for target in targets:
        shutil.copytree(target, collected, dirs_exist_ok=True)
    whole(collected, outbox)


@pytest.mark.parametrize("name", ["a%2Fb", "lanes/7=x", "Zürich–Süd", "client=a b", "..", "%", "a'b\"c\\d"])
def test_strange_names(name: str, network: MemoryNetwork, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    with producer(network, tmp_path / "out.db", producer_id=name, journal=target) as one:
        one.publish("orders", b"x")
    (segment,) = segments(target)
    assert segment.header.client == name
    role, client, date, _ = segment.path.split("/")
    assert (role, unquote(client.removeprefix("client="))) == ("role=producer", name)
    assert date.startswith("date=2")
    whole(target, tmp_path / "out.db")


def test_a_name_that_no_directory_can_have(network: MemoryNetwork, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long as a directory's name"):
        producer(network, tmp_path / "out.db", producer_id="ü" * 50, journal=tmp_path / "journals")
    producer(network, tmp_path / "out.db", producer_id="ü" * 50).close()  # the outbox was given up


def test_fork(network: MemoryNetwork, tmp_path: Path) -> None:
    target, outbox = tmp_path / "journals", tmp_path / "out.db"
    with producer(network, outbox, journal=JournalExport(target, interval=0.05)) as one:
        one.publish("orders", b"1")
        until(lambda: target.exists() and segments(target), "a segment")
        child = os.fork()
        if child == 0:
            try:
                one.publish("orders", b"2")
            except ForkedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        one.publish("orders", b"3")
    rows = whole(target, outbox)
    assert list(covered(rows, "enqueued").values()) == [[(1, 2)]]
    assert rows[-1].kind == "closed"


def test_many_clients_to_one_directory(network: MemoryNetwork, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    export = JournalExport(target, interval=0.02, segment_rows=4)

    def work(number: int) -> None:
        for _ in range(3):
            path = tmp_path / f"{number}.db"
            with producer(network, path, producer_id=f"p{number}", journal=export) as one:
                for message in range(20):
                    one.publish(f"t{message % 5}", b"x")
                one.flush(20)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    with consumer(network, tmp_path / "in.db", journal=export):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in ["0", "1", "2", "3", "in"]:
        assert whole(target, tmp_path / f"{name}.db")[-1].kind == "closed"
    assert not list(target.rglob(".*"))  # nothing is left over


def test_offline(network: MemoryNetwork, tmp_path: Path) -> None:
    target, outbox, inbox = tmp_path / "journals", tmp_path / "out.db", tmp_path / "in.db"
    with producer(network, outbox) as one:
        with pytest.raises(OutboxLocked):
            export_file(outbox, target)
        one.publish("orders", b"x")
    consumer(network, inbox).close()
    with producer(network, outbox) as one:
        one.publish("orders", b"x")
    count = export_file(outbox, target, segment_rows=4)
    assert count == len(segments(target)) > 2
    assert export_file(inbox, target) == 1
    assert export_file(outbox, target) == 0
    for path in (outbox, inbox):
        assert whole(target, path)[-1].kind == "closed"
        assert not left(path)
    with pytest.raises(StoreCorrupt, match="no such file"):
        export_file(tmp_path / "nothing.db", target)
    with pytest.raises(StoreCorrupt, match="not an outbox or inbox"):
        export_file(segment_file(target), target)
    # A client continues where the command left off.
    with producer(network, outbox, journal=target) as one:
        one.publish("orders", b"x")
    assert [row.kind for row in whole(target, outbox)].count("opened") == 3


def segment_file(target: Path) -> Path:
    return next(target.rglob("*.ndjson"))


def test_over_a_real_broker(make_mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    target = tmp_path / "journals"
    export = JournalExport(target, interval=0.1)
    sites = [Site("dc1", make_mosquitto(name="dc1").url)]
    reader = Consumer("billing", sites, topics=["orders"], inbox=tmp_path / "in.db", journal=export)
    until(lambda: reader.status().sites["dc1"].state == "connected", "the group is there")
    with Producer(
        "gateway", sites, outbox=tmp_path / "out.db", groups={"orders": ["billing"]}, journal=export
    ) as one:
        for number in range(500):
            one.publish_nowait("orders", b"%d" % number)
        one.flush(20)
    for _ in range(500):
        message = reader.get(60)
        assert message is not None
        message.ack()
    reader.close()
    sent, got = whole(target, tmp_path / "out.db"), whole(target, tmp_path / "in.db")
    assert list(covered(sent, "enqueued").values()) == [[(1, 500)]]
    assert list(covered(got, "delivered").values()) == [[(1, 500)]]
    assert not left(tmp_path / "out.db")
    assert not left(tmp_path / "in.db")


def test_without_a_target_nothing_leaves(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "out.db") as one:
        one.publish("orders", b"1")
        assert one.status().journal is None
    assert left(tmp_path / "out.db")
    assert meta(tmp_path / "out.db") == {"journal_v2_lsn": "1"}
