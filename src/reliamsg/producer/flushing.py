"""Waiting until everything is published."""

from __future__ import annotations

from reliamsg.errors import ConfirmTimeout
from reliamsg.producer.confirmations import joined
from reliamsg.producer.engine import ProducerEngine

__all__ = ["flush"]


def flush(engine: ProducerEngine, timeout: float | None) -> None:
    """Wait until everything that was accepted so far is published; raises :class:`ConfirmTimeout`."""
    clock = engine.shared.clock
    start = clock.now()

    def left() -> float | None:
        return None if timeout is None else max(0.0, timeout - (clock.now() - start))

    for batch in engine.accumulator.open_batches:
        if not batch.commit.wait(left()):
            raise ConfirmTimeout(f"not everything was on the disk within {timeout} s")
    if engine.tracker.wait_for_all(left()):
        return
    with engine.shared.lock:
        sites = {name: str(site.status()) for name, site in engine.sites.items()}
    raise ConfirmTimeout(
        f"not everything was confirmed within {timeout} s ({joined(sites)}); it stays in the outbox", sites
    )
