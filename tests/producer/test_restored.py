"""Outboxes that were restored from a backup or copied, with a consumer: nothing is lost, doubled or out of order."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, Producer
from reliamsg.errors import ProducerConflict, ProducerFenced
from reliamsg.producer import api
from reliamsg.runtime.clock import wall_us
from reliamsg.testing import MemoryNetwork
from tests.patience import wait_for

Make = Callable[..., Producer]
DAY_US = 86_400 * 10**6


@pytest.fixture
def bodies(network: MemoryNetwork, tmp_path: Path) -> Iterator[list[bytes]]:
    """What a consumer is given."""
    consumer = Consumer(
        "g", network.sites, topics=["orders"], inbox=tmp_path / "g.db", on_gap="skip",
        gap_timeout=600.0,
    )  # fmt: skip
    found: list[bytes] = []
    thread = threading.Thread(target=consumer.run, args=[lambda message: found.append(message.body)])
    thread.start()
    yield found
    consumer.stop()
    thread.join(60)
    consumer.close()


def life(make: Make, name: str, errors: list[BaseException], **options: Any) -> Producer:
    """A producer that publishes a hundred messages, and sees them acknowledged."""
    settings: dict[str, Any] = {"groups": {"orders": ["g"]}, "release": "consumed", "hello_timeout": 1.0}
    producer = make(**settings, on_error=errors.append, **options)
    receipts = [producer.publish_nowait("orders", f"{name}{n}".encode()) for n in range(100)]
    receipts[-1].wait(timeout=120, until="consumed")
    return producer


def said(*names: str) -> list[bytes]:
    return [f"{name}{n}".encode() for name in names for n in range(100)]


@pytest.mark.parametrize("behind_us", [0, DAY_US], ids=["true clock", "a day behind"])
def test_the_copy_is_put_back(
    make: Make,
    path: Path,
    tmp_path: Path,
    bodies: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    behind_us: int,
) -> None:
    errors: list[BaseException] = []
    life(make, "a", errors).close()
    shutil.copy(path, tmp_path / "copy.db")
    life(make, "b", errors).close()
    shutil.copy(tmp_path / "copy.db", path)
    assert errors == []
    monkeypatch.setattr(api, "wall_us", lambda: wall_us() - behind_us)
    producer = life(make, "c", errors)
    assert bodies == said("a", "b", "c")
    wait_for(lambda: errors)
    assert [type(error) for error in errors] == [ProducerConflict]
    assert producer.status().groups[0].behind == 0


def test_both_are_alive(make: Make, path: Path, tmp_path: Path, bodies: list[bytes]) -> None:
    errors: list[BaseException] = []
    life(make, "a", errors).close()
    shutil.copy(path, tmp_path / "copy.db")
    original = life(make, "b", errors)
    life(make, "c", errors, path=tmp_path / "copy.db")
    wait_for(lambda: len(errors) == 2)
    assert {type(error) for error in errors} == {ProducerConflict, ProducerFenced}
    with pytest.raises(ProducerFenced):
        original.publish("orders", b"refused")
    assert bodies == said("a", "b", "c")
