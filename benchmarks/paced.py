"""Publishing at a steady rate from many threads, and the arrival of each message. Shared by both sides, without
reliamsg."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Sequence

__all__ = ["Arrivals", "publish_paced"]

_HEAD = struct.Struct(">Q?")
START_S = 0.5
"""All threads start together, this many seconds after their creation."""


def publish_paced(
    call: Callable[[bytes], object], threads: int, rate: float, warm_up: float, seconds: float, size: int
) -> tuple[int, int]:
    """`threads` take turns to `call` with bodies that contain their due time, `rate` per second in total. Bodies of the
    first `warm_up` seconds are marked as not counted. Returns the number of all messages, and of those that count.

    Latency counts from the due time: a message that waits for a slow earlier call is late.
    """
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
    """The latencies at a subscriber."""

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
        """Wait for `count` messages; SystemExit if they do not arrive."""
        self.wanted = count
        if self.seen < count and not self.done.wait(timeout) and self.seen < count:
            raise SystemExit(f"{self.seen} of {count} messages arrived")

    def percentiles(self, which: Sequence[float]) -> dict[str, float]:
        """In ms, by name, such as ``p99.9``; and ``max``."""
        found = sorted(self.delays_ms)
        named = {f"p{each:g}": found[max(0, math.ceil(len(found) * each / 100) - 1)] for each in which}
        return {**named, "max": found[-1]}
