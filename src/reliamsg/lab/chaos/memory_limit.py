"""A memory limit that a process imposes on itself."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

__all__ = ["limit_memory"]

_STACK = 512 * 1024
"""Bytes reserved for the stack of each thread that starts under the limit. By default they are 8 MB, nearly all of
which stays unused, and a handful of new threads would use up the limit."""


def limit_memory(headroom_mb: int | None) -> None:
    """Limit this process to `headroom_mb` megabytes more than it has now; None changes nothing."""
    if headroom_mb is None:
        return
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            most = int(line.split()[1]) * 1024 + headroom_mb * 1024 * 1024
            threading.stack_size(_STACK)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
