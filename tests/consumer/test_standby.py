"""Consumers as standbys, as an application sees them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg.consumer.api import Consumer
from reliamsg.errors import ClosedError, ConfigError, GroupBusy, InboxLocked, StoreMismatch
from reliamsg.testing import MemoryNetwork
from tests.consumer.tools import GROUP, TOPIC, send, until

TIMEOUT = 2.0


@pytest.fixture(params=["amqp", "mqtt"])
def network(request: pytest.FixtureRequest) -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2", protocol=request.param) as network:
        yield network


Opener = Callable[..., Consumer]


@pytest.fixture
def opener(tmp_path: Path, network: MemoryNetwork) -> Iterator[Opener]:
    opened: list[Consumer] = []

    def open_one(name: str = "inbox", *, group: str = GROUP, **options: Any) -> Consumer:
        options = {
            "topics": [TOPIC], "inbox": tmp_path / f"{name}.db", "takeover_timeout": TIMEOUT,
            **options,
        }  # fmt: skip
        opened.append(Consumer(group, network.sites, **options))
        return opened[-1]

    yield open_one
    for consumer in opened:
        consumer.close()


def active(consumer: Consumer) -> None:
    until(lambda: consumer.status().role == "active", "it reads")


def test_a_standby_with_the_same_inbox_waits_for_it(opener: Opener, network: MemoryNetwork) -> None:
    first = opener()
    active(first)
    standby = opener(standby=True)
    assert standby.status().role == "standby"
    assert standby.get(0) is None
    assert standby.get(0.2) is None
    assert standby.dead_letters() == []
    with pytest.raises(InboxLocked):
        standby.replay(1)
    send(network["dc1"], 1, 3)
    message = first.get(60)
    assert message is not None
    message.ack()
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(m.seq for m in standby))
    thread.start()
    first.close()
    until(lambda: got == [2, 3], "it goes on where the other stopped")
    standby.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_a_standby_that_waits_for_the_inbox_can_be_stopped_and_closed(opener: Opener) -> None:
    first = opener()
    standby = opener(standby=True)
    thread = threading.Thread(target=lambda: standby.run(lambda _: None))
    thread.start()
    time.sleep(0.1)
    standby.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert standby.close().clean
    with pytest.raises(ClosedError):
        standby.get(0)
    first.close()


def test_what_makes_opening_impossible_is_raised(
    opener: Opener, tmp_path: Path, network: MemoryNetwork
) -> None:
    first = opener()
    standby = opener(standby=True, group="another")
    first.close()
    with pytest.raises(StoreMismatch):
        standby.get(60)
    with pytest.raises(StoreMismatch):
        standby.run(lambda _: None)


def test_a_standby_with_an_inbox_of_its_own(opener: Opener, network: MemoryNetwork) -> None:
    first = opener("first")
    active(first)
    standby = opener("second", standby=True)
    until(lambda: all(s.state == "listening" for s in standby.status().sites.values()), "it listens")
    send(network["dc1"], 1, 10)
    for _ in range(5):
        message = first.get(60)
        assert message is not None
        message.ack(durable=True)
    assert standby.get(TIMEOUT + 1) is None
    first.close()
    send(network["dc2"], 1, 10)
    message = standby.get(60)
    assert message is not None
    assert message.seq == 6
    assert standby.status().role == "active"
    with pytest.raises(ClosedError):
        first.get(0)


def test_two_that_are_no_standbys(opener: Opener) -> None:
    first = opener("first")
    active(first)
    second = opener("second")
    with pytest.raises(GroupBusy, match=GROUP):
        second.get(60)
    assert first.status().role == "active"
    assert first.get(0) is None


def test_arguments_are_checked(opener: Opener) -> None:
    for name in ("repair_delay", "repair_timeout", "takeover_timeout"):
        with pytest.raises(ConfigError, match=name):
            opener(**{name: 0})
