"""Producers that keep messages until their groups have them, on threads, with consumers."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Receipt
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    OutboxFull,
    OutboxIndeterminate,
    ProducerFenced,
)
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Binding
from tests.children import run_child
from tests.patience import wait_for
from tests.producer.tools import journal

Make = Callable[..., Producer]


@contextmanager
def reading(network: MemoryNetwork, path: Path, group: str = "g") -> Iterator[list[bytes]]:
    """A consumer that takes everything."""
    consumer = Consumer(group, network.sites, topics=["orders"], inbox=path)
    bodies: list[bytes] = []
    thread = threading.Thread(target=consumer.run, args=[lambda message: bodies.append(message.body)])
    thread.start()
    try:
        yield bodies
    finally:
        consumer.stop()
        thread.join(60)
        consumer.close()


def test_consumed_is_waited_for(make: Make, network: MemoryNetwork, path: Path, tmp_path: Path) -> None:
    producer = make(release="consumed", retain_seconds=0.0, groups={"orders": ["g"]})
    receipt = producer.publish_many("orders", [b"1", b"2"])
    receipt.wait(timeout=120)
    with pytest.raises(ConfirmTimeout, match="by g"):
        receipt.wait(timeout=0.1, until="consumed")
    with reading(network, tmp_path / "g.db") as bodies:
        receipt.wait(timeout=120, until="consumed")
        assert bodies == [b"1", b"2"]
        wait_for(lambda: inspect_outbox(path).messages == 0)
    assert producer.close(timeout=120).unacknowledged == 0


def test_callbacks_until_consumed_are_called_when_no_group_that_counts_is_behind(
    make: Make, network: MemoryNetwork, tmp_path: Path
) -> None:
    producer = make(release="consumed", groups={"orders": ["g", "absent"]})
    first = producer.publish("orders", b"1")
    called: list[object] = []

    def note(receipt: Receipt) -> None:
        receipt.wait(0, until="consumed")
        called.append(receipt)

    first.add_done_callback(note, until="consumed")
    producer.add_group("orders", "later")  # the first message is not kept for it
    second = producer.publish("orders", b"2")
    second.add_done_callback(called.append, until="consumed")
    with reading(network, tmp_path / "g.db") as bodies:
        wait_for(lambda: len(bodies) == 2)
        with pytest.raises(ConfirmTimeout, match="by absent"):
            first.wait(0.2, until="consumed")
        assert not called
        producer.remove_group("orders", "absent")
        wait_for(lambda: called == [first])
    producer.close(timeout=0)  # `later` never comes
    assert called == [first, second]
    with pytest.raises(ClosedError):
        second.wait(until="consumed")


def test_a_callback_until_consumed_needs_a_group(make: Make) -> None:
    receipt = make(release="consumed").publish("others", b"1")
    with pytest.raises(ConfigError, match="no group is named"):
        receipt.add_done_callback(print, until="consumed")
    with pytest.raises(ConfigError, match="until='done'"):
        receipt.add_done_callback(print, until="done")  # type: ignore[arg-type]


def test_what_brokers_lose_is_sent_again(make: Make, network: MemoryNetwork, tmp_path: Path) -> None:
    producer = make(release="consumed", groups={"orders": ["g"]}, status_interval=0.1)
    with reading(network, tmp_path / "g.db") as bodies:
        for broker in network.brokers.values():
            broker.lose(10**9)
        receipts = [producer.publish("orders", b"%d" % n) for n in range(20)]
        receipts[-1].wait(timeout=120)
        for broker in network.brokers.values():
            broker.lose(0)
        receipts[-1].wait(timeout=120, until="consumed")
        assert bodies == [b"%d" % n for n in range(20)]
    assert producer.status().repaired >= 20


def test_what_remains_is_said(make: Make) -> None:
    producer = make(release="consumed", groups={"orders": ["g"]})
    producer.publish_many("orders", [b"1", b"2", b"3"]).wait(timeout=120)
    remaining = producer.close(timeout=120)
    assert remaining.nothing
    assert remaining.unacknowledged == 3
    assert "3 messages remain in the outbox until all groups have acknowledged them" in str(remaining)


def test_groups_come_and_go(make: Make, network: MemoryNetwork, path: Path, tmp_path: Path) -> None:
    producer = make(
        release="consumed", retain_seconds=0.0, groups={"orders": ["g"]}, max_bytes=4_000, block_timeout=0.1
    )
    producer.add_group("orders", "h")
    producer.add_group("orders", "h")
    assert network["dc1"].queued("orders", "h") == 0
    with reading(network, tmp_path / "g.db"):
        producer.publish("orders", bytes(3_000)).wait(timeout=120)
        wait_for(lambda: [g.behind for g in producer.status().groups] == [0, 1])
        with pytest.raises(OutboxFull, match="group h is 1 messages behind on orders and was never heard"):
            producer.publish("orders", bytes(3_000))
        assert network["dc1"].queued("orders", "h") == 1, "its queue was declared when it was named"
        producer.remove_group("orders", "h")
        producer.publish("orders", bytes(3_000)).wait(timeout=120, until="consumed")
    with pytest.raises(ConfigError):
        producer.remove_group("orders", "h")
    with pytest.raises(ConfigError):
        producer.add_group("orders", "a:b")
    producer.close()
    assert [row.group for row in journal(path, "group_added")] == ["h"]
    assert [row.group for row in journal(path, "group_removed")] == ["h"]


def test_too_many_groups(make: Make) -> None:
    producer = make(groups={"orders": [f"g{n}" for n in range(100)]})
    with pytest.raises(ConfigError, match="100 groups"):
        producer.add_group("orders", "one more")
    with pytest.raises(ConfigError, match="101 groups"):
        make(groups={"orders": [f"g{n}" for n in range(101)]})


def test_messages_are_removed(make: Make, network: MemoryNetwork, path: Path) -> None:
    network["dc1"].down()
    producer = make()
    receipt = producer.publish_many("orders", [b"1", b"2", b"3"])
    first, second, third = receipt.ids
    assert producer.remove(second) == 1
    assert producer.remove(first, third) == 2
    producer.flush(timeout=120)
    assert producer.close(timeout=120).nothing
    assert [(row.first, row.last) for row in journal(path, "removed")] == [(2, 2), (1, 1), (3, 3)]


def test_a_copy_fences_the_original(make: Make, network: MemoryNetwork, path: Path, tmp_path: Path) -> None:
    errors: list[BaseException] = []
    original = make(on_error=errors.append)
    original.publish("orders", b"1").wait(timeout=120)
    copy = tmp_path / "copy.db"
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    newer = make(path=copy)
    wait_for(lambda: errors)
    assert isinstance(errors[0], ProducerFenced)
    with pytest.raises(ProducerFenced, match="another owner"):
        original.publish("orders", b"2")
    with pytest.raises(ProducerFenced):
        original.flush()
    original.status()
    original.close()
    newer.publish("orders", b"3").wait(timeout=120)


@pytest.mark.parametrize("point", ["renumbered", "offered"])
def test_killed_at_the_gate(path: Path, point: str) -> None:
    """A group tells of a later epoch; the process dies once what it published has another one, or may be sent."""
    code = (
        "import os, signal, sys, time\n"
        "from tests.producer.gate import group_that_is_ahead\n"
        "from reliamsg import Producer\n"
        "from reliamsg.testing import MemoryNetwork, inject\n"
        "network = MemoryNetwork('dc1')\n"
        "def probe(point):\n"
        "    if point == sys.argv[2]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "with inject(probe=probe):\n"
        "    p = Producer('p', network.sites, outbox=sys.argv[1], groups={'orders': ['g']}, hello_timeout=0.3)\n"
        "group_that_is_ahead(network, 'orders', 'g')\n"
        "p.publish('orders', b'1').wait(100)\n"
        "print('not killed')\n"
    )
    found = run_child([sys.executable, "-c", code, str(path), point], text=True, timeout=300)
    assert found.returncode == -signal.SIGKILL, found.stdout + found.stderr
    with MemoryNetwork("dc1") as network:
        network["dc1"].declare([Binding("orders", 0, "g")])
        again = Producer("p", network.sites, outbox=path, groups={"orders": ["g"]}, hello_timeout=0)
        again.flush(120)
        again.close()
    (row,) = journal(path, "renumbered")
    assert row.detail is not None
    assert [r.epoch for r in journal(path, "confirmed")] == [row.detail["epoch"]]


def test_an_order_that_breaks_the_file_stops_the_producer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose caller gets the error: nothing may be written after it."""
    errors: list[BaseException] = []
    producer = make(on_error=errors.append)
    happened: list[str] = []

    def broken(*_: object) -> None:
        happened.append("failed")
        raise OutboxIndeterminate("an fsync failed")

    monkeypatch.setattr(producer._engine._outbox, "name_groups", broken)
    monkeypatch.setattr(producer._engine._outbox, "progress", lambda *_: happened.append("stored"))
    with pytest.raises(OutboxIndeterminate):
        producer.add_group("orders", "h")
    wait_for(lambda: errors)
    assert [type(error) for error in errors] == [OutboxIndeterminate]
    with pytest.raises(OutboxIndeterminate):
        producer.publish("orders", b"x")
    with pytest.raises(OutboxIndeterminate):
        producer.add_group("orders", "h")
    assert producer.close(0.0).nothing
    assert happened[-1] == "failed"
