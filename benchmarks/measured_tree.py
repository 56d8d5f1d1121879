"""Measures the memory of a process and everything that it starts."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

__all__ = ["Memory"]


class Memory:
    """The peak of the resident memory of this process and all below it, sampled."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def peak_mb(self) -> int:
        """The same in MiB."""
        return round(self.peak_bytes / 1024**2)

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, _tree_bytes())
            time.sleep(0.2)


def _tree_bytes() -> int:
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(entry))
        sizes[int(entry)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += sizes.get(process, 0)
        left += children.get(process, [])
    return total
