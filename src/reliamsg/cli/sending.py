"""Shared code of the commands that own a producer."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from reliamsg.cli.progress import Progress
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import Status
from reliamsg.errors import ConfirmTimeout

if TYPE_CHECKING:
    from reliamsg.producer.api import Producer

__all__ = ["describe", "describe_sites", "drain", "incomplete", "left"]

_STEP_SECONDS = 0.2


def drain(
    producer: Producer,
    patience: float,
    stop: StopRequest,
    progress: Progress,
    what: str,
    consumed: bool = False,
) -> int:
    """Wait until everything is confirmed, or with `consumed` acknowledged by all named groups, or until there is no
    progress for `patience` seconds, or until a (further) signal.

    Returns the number of remaining messages. After a signal, `patience` is the total time limit.
    """
    interrupted = bool(stop)
    pending = left(producer, consumed)
    deadline = time.monotonic() + patience
    while pending and time.monotonic() < deadline and bool(stop) == interrupted:
        before = pending
        with contextlib.suppress(ConfirmTimeout):
            producer.flush(_STEP_SECONDS)
            if consumed and left(producer, consumed):
                time.sleep(_STEP_SECONDS)  # groups announce their progress at intervals
        pending = left(producer, consumed)
        progress.show(partial(_waiting, producer, what, pending, consumed))
        if pending < before and not interrupted:
            deadline = time.monotonic() + patience
    return pending


def left(producer: Producer, consumed: bool) -> int:
    """The number of messages that are not confirmed, or with `consumed` not acknowledged by all named groups."""
    pending = producer.pending()
    if not consumed:
        return pending
    behind: dict[tuple[str, int], int] = {}
    for group in producer.status().groups:
        if group.named:
            stream = group.topic, group.partition
            behind[stream] = max(behind.get(stream, 0), group.behind)
    return max(pending, sum(behind.values()))


def _waiting(producer: Producer, what: str, pending: int, consumed: bool) -> str:
    done = "acknowledged" if consumed else "confirmed"
    return f"{what}, {pending:,} not yet {done} ({describe(producer, consumed)})"


def incomplete(producer: Producer) -> Status:
    """The exit code if messages remain, which depends on whether sites are unreachable."""
    sites = producer.status().sites.values()
    away = not any(site.connected for site in sites) and any(site.error for site in sites)
    return Status.UNAVAILABLE if away else Status.INCOMPLETE


def describe(producer: Producer, consumed: bool = False) -> str:
    """A short description of each site, and with `consumed` of each named group that is behind."""
    sites = describe_sites(producer)
    groups = [str(g) for g in producer.status().groups if g.named and g.behind] if consumed else []
    return "; ".join([sites, *groups])


def describe_sites(producer: Producer) -> str:
    """A short description of each site."""
    return ", ".join(f"{name}: {site}" for name, site in producer.status().sites.items())
