"""When a queue is suspected of a binding that the broker does not use."""

from __future__ import annotations

from reliamsg.consumer.site import SILENT_S, Feeding

TOPIC = ("orders", 0)


def test_repairs_alone_for_long_enough() -> None:
    feeding = Feeding()
    assert not feeding.repaired(TOPIC, 100.0, 99.0)
    assert not feeding.repaired(TOPIC, 99.0 + SILENT_S, 120.0)
    assert feeding.repaired(TOPIC, 100.0 + SILENT_S, 120.0)
    assert not feeding.repaired(TOPIC, 101.0 + SILENT_S, 120.0), "only then again"
    assert feeding.repaired(TOPIC, 100.0 + 2 * SILENT_S, 100.0 + 2 * SILENT_S)


def test_a_queue_that_brings_something_is_not_suspected() -> None:
    feeding = Feeding()
    feeding.repaired(TOPIC, 100.0, 99.0)
    feeding.came(("others", 0))
    assert feeding.repaired(TOPIC, 100.0 + SILENT_S, 120.0)
    feeding.came(TOPIC)
    assert not feeding.repaired(TOPIC, 101.0 + 2 * SILENT_S, 120.0)


def test_a_queue_that_was_not_seen_empty_is_not_suspected() -> None:
    """What waits in it, or is not read because there is no room, comes later."""
    feeding = Feeding()
    feeding.repaired(TOPIC, 100.0, 99.0)
    assert not feeding.repaired(TOPIC, 100.0 + SILENT_S, 99.0)
    assert feeding.repaired(TOPIC, 101.0 + SILENT_S, 100.0 + SILENT_S)
