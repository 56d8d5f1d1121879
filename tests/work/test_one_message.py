"""The number of Python functions that are called for one message, from ``publish()`` to its acknowledgement.

A producer and a consumer run as in applications, with all their threads, at two sites in memory. The code that stands
for brokers is not counted. Messages pass one at a time. Periodic work would count for more on a slower machine, so
intervals are long, and the lowest of several rounds counts: threads that a busy machine delays only add calls.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
LIMIT = 440
"""5 % more than the count when this was set (418). Lower it when the number falls; the aim is 200."""
QUIET_S = 600.0


class Calls:
    """Counts calls of Python functions of ours, on every thread that starts while :meth:`watching` is active."""

    def __init__(self) -> None:
        self._counting = False
        self._codes: list[CodeType] = []

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
            threading.setprofile(None)  # type: ignore[arg-type]

    def start(self) -> None:
        self._codes = []
        self._counting = True

    def stop(self) -> Counter[str]:
        """The calls since :meth:`start`, by file."""
        self._counting = False
        return Counter(code.co_filename[len(OURS) + 1 :] for code in self._codes if is_ours(code.co_filename))


def go_through(producer: Producer, consumer: Consumer, messages: int) -> None:
    """Publish and consume one message after the other."""
    for number in range(messages):
        receipt = producer.publish("t", b"%d" % number)
        message = consumer.get(timeout=60)
        assert message is not None
        message.ack(durable=True)
        receipt.wait(timeout=60)


def lowest(rounds: list[Counter[str]]) -> float:
    """Calls for each message in the round with the fewest."""
    return min(map(Counter.total, rounds)) / MESSAGES


def test_calls_for_one_message(tmp_path: Path) -> None:
    calls, rounds = Calls(), []
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

        go_through(producer, consumer, WARM_UP)
        wait_for(settled, "all is settled")
        gc.collect()
        while len(rounds) < ROUNDS or (lowest(rounds) > LIMIT and len(rounds) < MOST_ROUNDS):
            calls.start()
            go_through(producer, consumer, MESSAGES)
            rounds.append(calls.stop())
            wait_for(settled, "all is settled")
    best = min(rounds, key=Counter.total)
    each = lowest(rounds)
    print(
        f"{each:.1f} calls for each message, in {len(best)} files; all rounds:",
        [r.total() / MESSAGES for r in rounds],
    )
    for file, count in best.most_common():
        print(f"{count / MESSAGES:8.2f}  {file}")
    assert each <= LIMIT, f"{each:.1f} calls for each message"
