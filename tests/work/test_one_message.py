"""The number of Python functions that are called for one message, from ``publish()`` to its acknowledgement.

A producer and a consumer run as in applications, with all their threads, at two sites in memory. The code that stands
for brokers is not counted. Messages pass one at a time. Periodic work would count for more on a slower machine, so
intervals are long. Threads that a busy machine delays make steps that others need not make, which only adds calls, so
the median over the messages counts, of the round in which it is lowest.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import CodeType, FrameType

from reliamsg import Consumer, Producer
from reliamsg.testing import MemoryNetwork
from tests.patience import wait_for
from tests.work.test_counts import OURS, is_ours

MESSAGES = 200
WARM_UP = 50
ROUNDS = 4
MOST_ROUNDS = 40
"""On a busy machine, rounds are repeated until one is not disturbed."""
LIMIT = 435
"""The count when this was set is 424, or 430 where the machine is busy. Lower it when the number falls; the aim is
200."""
QUIET_S = 600.0


class Calls:
    """Counts calls of Python functions of ours, on every thread that starts while :meth:`watching` is active."""

    def __init__(self) -> None:
        self._counting = False
        self._codes: list[CodeType | None] = []
        """In order; None where a message had passed."""

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if self._counting and event == "call":
            self._codes.append(frame.f_code)  # atomic, unlike counting

    @contextmanager
    def watching(self) -> Iterator[None]:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def start(self) -> None:
        self._codes = []
        self._counting = True

    def mark(self) -> None:
        """A message has passed."""
        self._codes.append(None)

    def stop(self) -> list[Counter[str]]:
        """The calls since :meth:`start`: for each message, by file."""
        self._counting = False
        files = {code: code.co_filename for code in set(self._codes) if code is not None}
        names = {code: file[len(OURS) + 1 :] for code, file in files.items() if is_ours(file)}
        found: list[Counter[str]] = [Counter()]
        for code in self._codes:
            if code is None:
                found.append(Counter())
            elif code in names:
                found[-1][names[code]] += 1
        return found[:-1]


def go_through(producer: Producer, consumer: Consumer, messages: int, passed: Callable[[], None]) -> None:
    """Publish and consume one message after the other, and call `passed` after each."""
    for number in range(messages):
        receipt = producer.publish("t", b"%d" % number)
        message = consumer.get(timeout=60)
        assert message is not None
        message.ack(durable=True)
        receipt.wait(timeout=60)
        passed()


def usual(messages: list[Counter[str]]) -> float:
    """The median of the calls for one message."""
    return median(map(Counter.total, messages))


def test_calls_for_one_message(tmp_path: Path) -> None:
    calls = Calls()
    rounds: list[list[Counter[str]]] = []
    with (
        calls.watching(),
        MemoryNetwork("dc1", "dc2") as network,
        Producer(
            "p", network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]}, hello_timeout=0,
            status_interval=QUIET_S,
        ) as producer,
        Consumer(
            "g", network.sites, topics=["t"], inbox=tmp_path / "g.db", gap_timeout=QUIET_S,
            takeover_timeout=QUIET_S, repair_delay=QUIET_S,
        ) as consumer,
    ):  # fmt: skip

        def settled() -> bool:
            return producer.pending() == 0 and not any(b.queued() for b in network.brokers.values())

        go_through(producer, consumer, WARM_UP, lambda: None)
        wait_for(settled, "all is settled")
        gc.collect()
        while len(rounds) < ROUNDS or (min(map(usual, rounds)) > LIMIT and len(rounds) < MOST_ROUNDS):
            calls.start()
            go_through(producer, consumer, MESSAGES, calls.mark)
            rounds.append(calls.stop())
            wait_for(settled, "all is settled")
    best = min(rounds, key=usual)
    each = usual(best)
    files = sum(best, Counter())
    print(f"{each:.1f} calls for each message, in {len(files)} files; all rounds:", list(map(usual, rounds)))
    for file, count in files.most_common():
        print(f"{count / MESSAGES:8.2f}  {file}")
    assert each <= LIMIT, f"{each:.1f} calls for each message"
