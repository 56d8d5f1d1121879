"""What a measured child tells its parent: one line of JSON, the last that it prints.

Peers run in an environment of their own, without reliamsg; so nothing here imports anything of it.
"""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["WORK", "Run", "say", "usage"]

WORK = Path(__file__).resolve().parent.parent / "build" / "bench"
"""Where files are: beside the sources, and not in /tmp, which may be a RAM disk without fsync."""


@dataclass(frozen=True)
class Run:
    """One measured run, and what it cost."""

    rate: float
    """Of what the benchmark counts: messages or megabytes a second, or a time."""
    messages: int
    cpu_seconds: float
    """User and system time of the whole process, its start included."""
    rss_mb: float
    """The most that was resident."""
    more: dict[str, Any] = field(default_factory=dict)
    """What only this benchmark has."""


def usage() -> tuple[float, float]:
    """Processor seconds and peak memory (MB) of this process until now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def say(rate: float, messages: int, **more: Any) -> None:
    """Called by a child at its end: print its figures for the parent."""
    cpu_seconds, rss_mb = usage()
    print(json.dumps([rate, messages, cpu_seconds, rss_mb, more]), flush=True)
