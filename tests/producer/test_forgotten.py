"""Producers that nobody closed."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from pathlib import Path

import pytest

from reliamsg import Producer, Site
from reliamsg.testing import MemoryNetwork
from tests.children import run_child

AWAY = [Site("dc1", "mqtt://127.0.0.1:1")]


def test_one_with_unconfirmed_messages_warns_when_it_is_collected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made() -> list[str]:
        producer = Producer("gateway-7", AWAY, outbox=tmp_path / "o.db")
        producer.publish_many("t", [b"1", b"2", b"3"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
            gc.collect()
        return [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)]

    (said,) = made()
    assert "producer gateway-7 was never closed: 3 messages remain unconfirmed" in said
    caplog.set_level(logging.WARNING)
    assert [r.getMessage() for r in caplog.records if "never closed" in r.getMessage()] == [said]
    with Producer("gateway-7", AWAY, outbox=tmp_path / "o.db") as again:
        assert again.pending() == 3
        again.close(timeout=0.0)


def test_one_that_was_closed_or_has_nothing_left_does_not(tmp_path: Path) -> None:
    with MemoryNetwork("dc1") as network, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        producer = Producer("a", network.sites, outbox=tmp_path / "a.db", groups={"t": ["g"]})
        producer.publish("t", b"1").wait(10)
        del producer
        closed = Producer("b", AWAY, outbox=tmp_path / "b.db")
        closed.publish("t", b"1")
        closed.close(timeout=0.0)
        del closed
        gc.collect()
    assert not [w for w in caught if "never closed" in str(w.message)]


FORGETS = """
import logging, sys
logging.basicConfig(level=logging.WARNING, format="%(name)s %(levelname)s %(message)s")
from reliamsg import Producer, Site
producer = Producer("p", [Site("a", "amqp://127.0.0.1:1")], outbox=sys.argv[1])
producer.publish("t", b"x")
"""


def test_one_that_is_left_open_at_the_end_of_a_program_warns(tmp_path: Path) -> None:
    found = run_child(
        [sys.executable, "-W", "default", "-c", FORGETS, str(tmp_path / "o.db")], text=True, check=True
    )
    words = "producer p was never closed: 1 message remains unconfirmed"
    assert f"reliamsg.producer WARNING {words}" in found.stderr
    assert f"ResourceWarning: {words}" in found.stderr
