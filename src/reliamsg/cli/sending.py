"""What commands that own a producer have in common."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from reliamsg.cli.progress import Progress
from reliamsg.cli.signals import StopRequest
from reliamsg.errors import ConfirmTimeout

if TYPE_CHECKING:
    from reliamsg.sending.producer import Producer

__all__ = ["describe_sites", "drain"]

_STEP_SECONDS = 0.2


def drain(producer: Producer, patience: float, stop: StopRequest, progress: Progress, what: str) -> int:
    """Wait until everything is confirmed, or nothing was for `patience` seconds, or (a further) signal.

    Returns how many messages remain. After a signal `patience` is the time for everything.
    """
    interrupted = bool(stop)
    pending = int(producer.pending())
    deadline = time.monotonic() + patience
    while pending and time.monotonic() < deadline and bool(stop) == interrupted:
        before = pending
        with contextlib.suppress(ConfirmTimeout):
            producer.flush(_STEP_SECONDS)
        pending = producer.pending()
        progress.show(partial(_waiting, producer, what, pending))
        if pending < before and not interrupted:
            deadline = time.monotonic() + patience
    return pending


def _waiting(producer: Producer, what: str, pending: int) -> str:
    return f"{what}, {pending:,} not yet confirmed ({describe_sites(producer)})"


def describe_sites(producer: Producer) -> str:
    """In a few words, how each site is."""
    return ", ".join(f"{name}: {site}" for name, site in producer.status().sites.items())
