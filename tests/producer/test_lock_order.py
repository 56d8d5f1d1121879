"""No thread waits for a lock of publishing while it holds the engine's, nor the other way round; and what is guarded is
changed under its lock. tests/lockorder.py looks on in all other tests of this directory, too."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from reliamsg import Producer
from tests.lockorder import lock_order
from tests.producer.tools import wait_for


@pytest.fixture(autouse=True)
def locks() -> None:
    """Here the tests do it themselves."""


def test_the_life_of_a_producer(make: Callable[..., Producer]) -> None:
    with lock_order():
        producer = make()
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                producer.pending()
                producer.status()

        asking = threading.Thread(target=ask)
        asking.start()
        producer.publish_nowait("never named", b"a")
        for number in range(50):
            producer.publish_nowait("orders", b"%d" % number)
            producer.publish_many("other", [b"a", b"b"])
        wait_for(lambda: producer.pending() == 1)  # nobody would get the first
        ended.set()
        asking.join()
        assert producer.close(0).messages == 1


def test_a_lock_that_is_taken_in_the_wrong_order_is_found(make: Callable[..., Producer]) -> None:
    found = ""
    try:
        with lock_order():
            engine = make()._engine
            with engine.shared.lock, engine.accumulator._lock:
                pass
    except AssertionError as error:
        found = str(error)
    assert found.startswith("the accumulator's is taken with the engine's lock held:")
