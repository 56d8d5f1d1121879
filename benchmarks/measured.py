"""The result of a measured child: one line of JSON, the last that it prints.

Peers run in a separate environment without reliamsg, so nothing here imports it.
"""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["WORK", "Run", "say", "usage"]

WORK = Path(__file__).resolve().parent.parent / "build" / "bench"
"""The directory for files: next to the sources, not in /tmp, which may be a RAM disk without fsync."""


@dataclass(frozen=True)
class Run:
    """One measured run, and its cost."""

    rate: float
    """The benchmark's figure: messages or megabytes per second, or a time."""
    messages: int
    cpu_seconds: float
    """User and system time of the whole process, including its start."""
    rss_mb: float
    """Peak resident memory."""
    more: dict[str, Any] = field(default_factory=dict)
    """Figures that only this benchmark has."""


def usage() -> tuple[float, float]:
    """Processor seconds and peak memory (MB) of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def say(rate: float, messages: int, **more: Any) -> None:
    """Called by a child when it is done: print its figures for the parent."""
    cpu_seconds, rss_mb = usage()
    print(json.dumps([rate, messages, cpu_seconds, rss_mb, more]), flush=True)
