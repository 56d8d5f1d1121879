"""When a queue is suspected of a binding that the broker ignores."""

from __future__ import annotations

from reliamsg.consumer.site import SILENT_S, SilentQueues

TOPIC = ("orders", 0)


def test_repairs_alone_for_long_enough() -> None:
    queues = SilentQueues()
    assert not queues.repaired(TOPIC, 100.0, 99.0)
    assert not queues.repaired(TOPIC, 99.0 + SILENT_S, 120.0)
    assert queues.repaired(TOPIC, 100.0 + SILENT_S, 120.0)
    assert not queues.repaired(TOPIC, 101.0 + SILENT_S, 120.0), "only then again"
    assert queues.repaired(TOPIC, 100.0 + 2 * SILENT_S, 100.0 + 2 * SILENT_S)


def test_a_queue_that_delivers_is_not_suspected() -> None:
    queues = SilentQueues()
    queues.repaired(TOPIC, 100.0, 99.0)
    queues.delivered(("others", 0))
    assert queues.repaired(TOPIC, 100.0 + SILENT_S, 120.0)
    queues.delivered(TOPIC)
    assert not queues.repaired(TOPIC, 101.0 + 2 * SILENT_S, 120.0)


def test_a_queue_that_was_not_seen_empty_is_not_suspected() -> None:
    """What waits in it, or is not read because there is no room, comes later."""
    queues = SilentQueues()
    queues.repaired(TOPIC, 100.0, 99.0)
    assert not queues.repaired(TOPIC, 100.0 + SILENT_S, 99.0)
    assert queues.repaired(TOPIC, 101.0 + SILENT_S, 100.0 + SILENT_S)
