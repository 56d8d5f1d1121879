"""Disks that are full, read-only, or fail: a clear error, no number used, nothing lost."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import Message, Site
from reliamsg.checker import Expect, check_directory
from reliamsg.errors import InboxWriteError, OutboxWriteError
from tests.badinput.tools import Clients, bodies, take, wait_connected
from tests.patience import wait_for
from tests.store.faults import FailingDisk, fill, remount, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB. Requires root."""
    with small_disk(tmp_path / "small") as found:
        yield found


@pytest.fixture
def clients(disk: Path, clients: Clients) -> Clients:
    """Closed before the disk is removed."""
    return clients


def test_a_producers_disk_is_full(clients: Clients, sites: list[Site], disk: Path) -> None:
    """Publishing raises and uses no number; stored messages are sent meanwhile; with room it continues."""
    consumer = clients.consumer(sites)
    wait_connected(consumer)
    errors: list[BaseException] = []
    producer = clients.producer(sites, outbox=disk / "outbox.db", on_error=errors.append)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    stored: list[bytes] = []
    refused = 0
    while not refused:
        body = b"%04d" % len(stored) + bytes(9_000)
        try:
            producer.publish(clients.topic, body)
            stored.append(body)
        except OutboxWriteError as error:
            assert "full" in str(error)  # noqa: PT017  (the loop ends with the first of many)
            refused += 1
    assert len(stored) > 10
    filler = fill(disk)
    outcomes: list[str] = []

    def publish() -> None:
        try:
            producer.publish(clients.topic, bytes(20_000))
        except OutboxWriteError:
            outcomes.append("refused")

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == ["refused"] * 8
    receipt = producer.publish_nowait(clients.topic, bytes(20_000))
    with pytest.raises(OutboxWriteError):
        receipt.wait(timeout=120)
    assert not receipt.durable
    with pytest.raises(OutboxWriteError):
        producer.publish_many(clients.topic, [bytes(20_000)] * 3)
    assert bodies(take(consumer, len(stored))) == stored
    for file in (filler, ballast):
        file.unlink()
    first = producer.publish(clients.topic, b"with room again")
    assert first.id is not None
    assert first.id.seq == len(stored) + 1
    producer.flush(timeout=120)
    assert bodies(take(consumer, 1)) == [b"with room again"]
    assert consumer.get(0.2) is None
    assert not errors
    assert producer.close(timeout=120).nothing


def test_a_disk_that_is_full_when_it_starts(clients: Clients, sites: list[Site], disk: Path) -> None:
    filler = fill(disk)
    for _ in range(2):
        with pytest.raises(OutboxWriteError, match=r"outbox\.db"):
            clients.producer(sites, outbox=disk / "outbox.db")
        with pytest.raises(InboxWriteError, match=r"inbox\.db"):
            clients.consumer(sites, inbox=disk / "inbox.db")
    filler.unlink()
    consumer = clients.consumer(sites, inbox=disk / "inbox.db")
    wait_connected(consumer)
    clients.producer(sites, outbox=disk / "outbox.db").publish(clients.topic, b"x").wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"x"]


def test_a_full_disk_when_it_is_opened_again(clients: Clients, sites: list[Site], disk: Path) -> None:
    """A failing open leaves the files' content unchanged."""
    away = [Site("dc1", "mqtt://127.0.0.1:1"), Site("dc2", "mqtt://127.0.0.1:1")]
    consumer = clients.consumer(sites, inbox=disk / "inbox.db")
    wait_connected(consumer)
    producer = clients.producer(away, outbox=disk / "outbox.db")
    producer.publish_many(clients.topic, [b"1", b"2"])
    assert producer.close(timeout=0.0).messages == 2
    consumer.close()
    filler = fill(disk)
    with pytest.raises(OutboxWriteError):
        clients.producer(sites, outbox=disk / "outbox.db")
    with pytest.raises(InboxWriteError):
        clients.consumer(sites, inbox=disk / "inbox.db")
    filler.unlink()
    consumer = clients.consumer(sites, inbox=disk / "inbox.db")
    producer = clients.producer(sites, outbox=disk / "outbox.db")
    producer.flush(timeout=120)
    assert bodies(take(consumer, 2)) == [b"1", b"2"]


def test_a_consumers_disk_is_full(clients: Clients, sites: list[Site], disk: Path) -> None:
    """Nothing is delivered or acknowledged that could not be recorded; brokers keep it; with room everything arrives,
    once and in order."""
    errors: list[BaseException] = []
    consumer = clients.consumer(sites, inbox=disk / "inbox.db", on_error=errors.append)
    wait_connected(consumer)
    producer = clients.producer(sites)
    held = take(wait_published(clients, producer, consumer, 0, 1), 1, ack=False)
    filler = fill(disk)
    wait_published(clients, producer, consumer, 1, 80)
    wait_for(lambda: any(isinstance(error, InboxWriteError) for error in errors), "it is reported")
    wait_for(lambda: "not written" in consumer.status().error, "status says so")
    # One site may be behind the other, and not have delivered yet.
    wait_for(lambda: consumer.status().sites["dc1"].pending > 0, "dc1 keeps unrecorded messages")
    held[0].ack()
    filler.unlink()
    wait_for(lambda: not consumer.status().error, "written again")
    got = take(consumer, 79)
    assert [int(body[:4]) for body in bodies(got)] == list(range(1, 80))
    assert not any(message.redelivered for message in got)
    assert consumer.get(0.2) is None
    wait_for(lambda: all(s.pending == 0 for s in consumer.status().sites.values()), "all are acknowledged")
    assert consumer.close().clean
    producer.close()
    # Nothing is redelivered, and the journals agree.
    again = clients.consumer(sites, inbox=disk / "inbox.db")
    wait_connected(again)
    assert again.get(0.5) is None
    again.close()
    for file in disk.glob("inbox.db*"):
        shutil.copy(file, clients.directory)
    report = check_directory(clients.directory, Expect(drained=True))
    assert report.verdict == "complete", report.findings


def wait_published(clients: Clients, producer, consumer, first: int, end: int):  # type: ignore[no-untyped-def]
    producer.publish_many(clients.topic, [b"%04d" % n + bytes(4_000) for n in range(first, end)])
    producer.flush(timeout=120)
    return consumer


def test_a_small_disk_is_used_again_and_again(clients: Clients, sites: list[Site], disk: Path) -> None:
    """Many times its size passes through the outbox: refused messages are accepted when older ones have left."""
    consumer = clients.consumer(sites)
    wait_connected(consumer)
    producer = clients.producer(
        sites, outbox=disk / "outbox.db", max_bytes=100_000, retain_bytes=0, max_batch_bytes=10_000
    )

    def published(body: bytes) -> bool:
        try:
            producer.publish(clients.topic, body)
        except OutboxWriteError:
            return False
        return True

    for number in range(1_000):
        body = b"%04d" % number + bytes(4_000)
        wait_for(lambda body=body: published(body), "there is room")
    assert [int(body[:4]) for body in bodies(take(consumer, 1_000))] == list(range(1_000))
    producer.flush(timeout=120)


def test_a_disk_full_of_messages(clients: Clients, sites: list[Site], disk: Path) -> None:
    """More messages wait than the disk holds: brokers keep the rest, and acknowledgements make room for it."""
    consumer = clients.consumer(sites, inbox=disk / "inbox.db", max_unacknowledged=50)
    wait_connected(consumer)
    producer = clients.producer(sites, max_batch_bytes=10_000)
    wait_published(clients, producer, consumer, 0, 1_000)
    wait_for(lambda: all(s.pending > 60 for s in consumer.status().sites.values()), "brokers keep the rest")
    got: list[Message] = []
    while len(got) < 1_000:
        got += take(consumer, 10)
    assert [int(body[:4]) for body in bodies(got)] == list(range(1_000))
    assert consumer.get(0.2) is None


def test_a_read_only_disk(clients: Clients, sites: list[Site], disk: Path) -> None:
    clients.producer(sites, outbox=disk / "outbox.db").close()
    clients.consumer(sites, inbox=disk / "inbox.db").close()
    remount(disk, "ro")
    for name in ("outbox.db", "new.db", "new/outbox.db"):
        with pytest.raises(OutboxWriteError, match=name):
            clients.producer(sites, outbox=disk / name)
    for name in ("inbox.db", "new.db", "new/inbox.db"):
        with pytest.raises(InboxWriteError, match=name):
            clients.consumer(sites, inbox=disk / name)
    remount(disk, "rw")
    consumer = clients.consumer(sites, inbox=disk / "inbox.db")
    wait_connected(consumer)
    clients.producer(sites, outbox=disk / "outbox.db").publish(clients.topic, b"x").wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"x"]


OPEN = """
import json, sys, time
from reliamsg import Consumer, Producer, Site
from reliamsg.errors import *
topic = os.environ["TOPIC"]
where = os.environ["DIRECTORY"]
sites = [Site(name, url, backoff_min=0.05) for name, url in json.loads(os.environ["SITES"])]
def wait(condition, what):
    deadline = time.monotonic() + 100
    while not condition():
        if time.monotonic() > deadline: sys.exit("not in time: " + what)
        time.sleep(0.01)
def connected(client):
    wait(lambda: all(s.state == "connected" for s in client.status().sites.values()), "connected")
    return client
def raises(kind, call):
    try: call()
    except kind as error: assert type(error) is kind, error; return
    sys.exit(f"no {kind.__name__}")
errors = []
consumer = connected(Consumer(topic, sites, topics=[topic], inbox=where + "/inbox.db", on_error=errors.append))
producer = connected(Producer("p", sites, outbox=where + "/outbox.db", groups={topic: [topic]}, on_error=errors.append))
producer.publish(topic, b"1").wait(timeout=120)
message = consumer.get(60)
assert message.body == b"1"
message.ack(durable=True)
"""

READ_ONLY = """
read_only()
raises(OutboxWriteError, lambda: producer.publish(topic, b"no"))
raises(OutboxWriteError, lambda: producer.publish_many(topic, [b"no"] * 9))
read_only(False)
receipt = producer.publish(topic, b"2")
assert receipt.id.seq == 2, receipt
receipt.wait(timeout=120)
message = consumer.get(60)
assert message.body == b"2"
read_only()
raises(InboxWriteError, lambda: message.ack(durable=True))
assert consumer.get(0.3) is None
wait(lambda: any(isinstance(e, InboxWriteError) for e in errors), "reported")
assert "not written" in consumer.status().error
read_only(False)
wait(lambda: not consumer.status().error, "written again")
producer.publish(topic, b"3").wait(timeout=120)
message = consumer.get(60)
assert message.body == b"3" and not message.redelivered
message.ack(durable=True)
assert producer.close().nothing and consumer.close().clean
again = connected(Consumer(topic, sites, topics=[topic], inbox=where + "/inbox.db"))
assert again.get(0.5) is None
again.close()
print("done")
"""

OUTBOX_FSYNC = """
fail("outbox.db-wal")
raises(OutboxIndeterminate, lambda: producer.publish(topic, b"2"))
heal()
raises(OutboxIndeterminate, lambda: producer.publish(topic, b"no"))
raises(OutboxIndeterminate, lambda: producer.flush(1))
raises(OutboxIndeterminate, producer.pending)
wait(lambda: [type(e) for e in errors] == [OutboxIndeterminate], "reported once")
assert producer.status().sites, "it can still be looked at"
assert failures() == 1, failures()
producer.close(timeout=1)
again = connected(Producer("p", sites, outbox=where + "/outbox.db", groups={topic: [topic]}))
again.publish(topic, b"3").wait(timeout=120)
got = []
while b"3" not in got:
    message = consumer.get(60)
    got.append(message.body)
    message.ack()
# What was indeterminate is there or not; what was refused afterwards is not.
assert got in ([b"3"], [b"2", b"3"]), got
assert again.close().nothing and consumer.close().clean
print("done")
"""

INBOX_FSYNC = """
producer.publish(topic, b"2").wait(timeout=120)
message = consumer.get(60)
assert message.body == b"2"
fail("inbox.db-wal")
raises(InboxIndeterminate, lambda: message.ack(durable=True))
heal()
raises(InboxIndeterminate, lambda: consumer.get(1))
raises(InboxIndeterminate, lambda: consumer.run(print))
raises(InboxIndeterminate, lambda: message.ack(durable=True))
wait(lambda: [type(e) for e in errors] == [InboxIndeterminate], "reported once")
assert "fsync" in consumer.status().error
assert failures() == 1, failures()
producer.publish(topic, b"3").wait(timeout=120)
assert not consumer.close(timeout=5).clean
again = connected(Consumer(topic, sites, topics=[topic], inbox=where + "/inbox.db"))
got = []
while b"3" not in got:
    message = again.get(60)
    assert message.body == b"3" or message.redelivered, message
    got.append(message.body)
    message.ack(durable=True)
assert got in ([b"3"], [b"2", b"3"]), got
assert again.close().clean and producer.close().nothing
print("done")
"""


@pytest.mark.parametrize("code", [READ_ONLY, OUTBOX_FSYNC, INBOX_FSYNC], ids=["read-only", "outbox", "inbox"])
def test_a_disk_that_fails_under_way(tmp_path: Path, sites: list[Site], unique: str, code: str) -> None:
    """A file system that becomes read-only is waited out. After a failed fsync nothing more is written; reopening the
    file determines its content."""
    given = json.dumps([(where.name, where.url) for where in sites])
    assert FailingDisk(tmp_path).run(OPEN + code, SITES=given, TOPIC=unique) == "done\n"
