"""Counters that are sampled while a scenario runs, for the picture of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

__all__ = ["Sampler"]

_INTERVAL_S = 0.2


class Sampler:
    """Calls `on_sample` with the values of all counters, five times a second, from a thread of its own."""

    def __init__(self, on_sample: Callable[[Mapping[str, int]], object]) -> None:
        self._on_sample = on_sample
        self._counters: dict[str, Callable[[], int]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reliamsg-chaos-sampler", daemon=True)

    def watch(self, name: str, counter: Callable[[], int]) -> None:
        """Sample another counter from now on."""
        self._counters[name] = counter

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_INTERVAL_S):
            # A copy: scenarios add counters while this runs.
            counts = {name: counter() for name, counter in list(self._counters.items())}
            if counts:
                self._on_sample(counts)
