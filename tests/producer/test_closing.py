"""``Producer.close(timeout)`` ends in time, whatever hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from reliamsg import JournalExport, Producer, Site
from reliamsg.errors import OutboxLocked
from reliamsg.producer.api import CLOSING_S, MIN_DISCONNECT_S
from reliamsg.testing import MemoryNetwork, inject
from reliamsg.transport.base import Binding, SenderEvents
from tests.patience import wait_for
from tests.producer.tools import GROUPS

SITES = [Site(f"dc{number}", "mqtt://nowhere") for number in range(1, 5)]
STALLS_S = 10.0
"""A busy machine may stop a thread that was about to look at the clock for so long."""


class Hanging:
    """A site's transport that never connects, and whose thread takes all the time that it gets to end."""

    def __init__(self, given: list[float]) -> None:
        self._given = given

    def start(self) -> None: ...
    def wake(self) -> None: ...
    def reconnect(self, reason: str) -> None: ...
    def bind(self, bindings: Sequence[Binding]) -> None: ...
    def listen(self, addresses: Sequence[str]) -> None: ...

    def send_control(self, address: str, body: bytes) -> bool:
        return False

    def refused_addresses(self) -> Sequence[str]:
        return ()

    def close(self, timeout: float) -> None:
        self._given.append(timeout)
        time.sleep(timeout)


class AllHang:
    """Sites all of which hang. `given` is what each was given to end, in seconds, in turn."""

    def __init__(self) -> None:
        self.given: list[float] = []

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> Hanging:
        return Hanging(self.given)

    def open_receiver(self, *_: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("journal", [False, True])
def test_sites_that_hang_share_the_time(path: Path, tmp_path: Path, journal: bool) -> None:
    """None takes the others' time, nor the file's; all together take no more than one."""
    network = AllHang()
    export = JournalExport(tmp_path / "journals", interval=3600.0) if journal else None
    with inject(transports=network):  # type: ignore[arg-type]
        producer = Producer("p", SITES, outbox=path, journal=export)
    producer.publish("orders", b"x")
    began = time.monotonic()
    remaining = producer.close(timeout=0.2)
    took = time.monotonic() - began
    assert remaining.messages == 1
    assert len(network.given) == len(SITES)
    assert min(network.given) >= MIN_DISCONNECT_S
    assert sum(network.given) <= CLOSING_S / 2 + len(SITES) * MIN_DISCONNECT_S
    assert took < 0.2 + CLOSING_S + STALLS_S
    with inject(transports=network):  # type: ignore[arg-type]
        producer = Producer("p", SITES[:1], outbox=path)
    producer.close(timeout=0.0)
    assert any((tmp_path / "journals").rglob("*.ndjson")) == journal


class Stuck:
    """Keeps whoever passes a point, as a disk does that does not answer."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.reached = threading.Event()
        self.answers = threading.Event()

    def __call__(self, point: str) -> None:
        if point == self._point:
            self.reached.set()
            self.answers.wait()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    found = Stuck("committed")
    yield found
    found.answers.set()


def test_a_disk_that_hangs_is_left_behind(
    path: Path, network: MemoryNetwork, stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, the file stays ours, and is closed as soon as the disk answers."""
    with inject(probe=stuck):
        producer = Producer("p", network.sites, outbox=path)
    producer.publish_nowait("orders", b"x")
    assert stuck.reached.wait(60)
    began = time.monotonic()
    producer.close(timeout=0.2)
    assert time.monotonic() - began < 0.2 + CLOSING_S + STALLS_S
    assert "still being written" in caplog.text
    with pytest.raises(OutboxLocked):
        Producer("p", network.sites, outbox=path)
    stuck.answers.set()
    again: list[Producer] = []

    def opens() -> bool:
        try:
            again.append(Producer("p", network.sites, outbox=path, groups=GROUPS))
        except OutboxLocked:
            return False
        return True

    wait_for(opens, "the file is free", 60.0)
    again[0].flush(timeout=120)
    assert again[0].close().nothing


def test_whoever_waits_for_a_disk_that_hangs_is_not_waited_for(
    path: Path, network: MemoryNetwork, stuck: Stuck
) -> None:
    """``publish()`` on other threads goes on waiting for its commit; close() does not wait for them."""
    with inject(probe=stuck):
        producer = Producer("p", network.sites, outbox=path)
    outcomes: list[object] = []

    def publish() -> None:
        outcomes.append(producer.publish("orders", b"x"))

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert stuck.reached.wait(60)
    producer.close(timeout=0.0)
    assert publishing.is_alive()
    stuck.answers.set()
    publishing.join(60)
    assert len(outcomes) == 1
