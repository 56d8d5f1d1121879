"""Publishing at a steady rate from many threads, and when each message arrived. Without reliamsg, for both sides."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Sequence

__all__ = ["Arrivals", "publish_paced"]

_HEAD = struct.Struct(">Q?")
START_S = 0.5
"""All threads begin together, so long after they were made."""


def publish_paced(
    call: Callable[[bytes], object], threads: int, rate: float, warm_up: float, seconds: float, size: int
) -> tuple[int, int]:
    """`threads` take turns to `call` with bodies that tell when they were due, `rate` a second in all. Those of the
    first `warm_up` seconds say that they don't count. Returns how many there were, and how many of them count.

    A message counts from when it was due: one that waits since the call before it took too long is late."""
    start = time.monotonic() + START_S
    total, skipped = round((warm_up + seconds) * rate), round(warm_up * rate)
    rest = bytes(size - _HEAD.size)
    failed: list[BaseException] = []

    def publish(first: int) -> None:
        try:
            for number in range(first, total, threads):
                due = start + number / rate
                time.sleep(max(0.0, due - time.monotonic()))
                call(_HEAD.pack(round(due * 1e9), number >= skipped) + rest)
        except BaseException as error:  # noqa: BLE001  (raised below)
            failed.append(error)

    workers = [threading.Thread(target=publish, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    return total, total - skipped


class Arrivals:
    """What a subscriber saw."""

    def __init__(self) -> None:
        self.delays_ms: list[float] = []
        self.seen = 0
        self.done = threading.Event()
        self.wanted = -1

    def came(self, body: bytes) -> None:
        now = time.monotonic_ns()
        due, counts = _HEAD.unpack_from(body)
        if counts:
            self.delays_ms.append((now - due) / 1e6)
        self.seen += 1
        if self.seen == self.wanted:
            self.done.set()

    def wait(self, count: int, timeout: float) -> None:
        """Until so many came; SystemExit if they don't."""
        self.wanted = count
        if self.seen < count and not self.done.wait(timeout) and self.seen < count:
            raise SystemExit(f"{self.seen} of {count} messages came")

    def percentiles(self, which: Sequence[float]) -> dict[str, float]:
        """In ms, by name, such as ``p99.9``; and the ``max``."""
        found = sorted(self.delays_ms)
        named = {f"p{each:g}": found[max(0, math.ceil(len(found) * each / 100) - 1)] for each in which}
        return {**named, "max": found[-1]}
