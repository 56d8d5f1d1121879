"""The work for each thousand messages, in counts and not in seconds: a slower design fails on any machine.

Engines are stepped at in-memory sites, so that every run does the same. The limits are slightly above the counts when
they were set; a better design may lower them.
"""

from __future__ import annotations

import sqlite3
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import pytest

import reliamsg
from tests.consumer.tools import Bench as ReceivingBench
from tests.consumer.tools import send
from tests.producer.control_tools import Bench as SendingBench

MESSAGES = 4_000
BODY = bytes(100)


@dataclass
class Work:
    """The work for each thousand messages."""

    fsyncs: float = 0.0
    """Commits of SQLite, each of which is one fsync of the write-ahead log."""
    statements: float = 0.0
    frames: float = 0.0
    """Broker messages, over all sites."""
    calls: float = 0.0
    """Calls of functions, of Python's and of C's."""
    kilobytes: float = 0.0
    """Peak additional memory."""


OURS = str(Path(reliamsg.__file__).parent)
NOT_COUNTED = ("memory", "testing")
"""Parts of ours that stand for brokers here."""


def is_ours(path: str) -> bool:
    """Whether a file is part of the code that runs with real brokers."""
    return path.startswith(OURS) and not any(each in path[len(OURS) :] for each in NOT_COUNTED)


def counted(connection: sqlite3.Connection, messages: int, action: Callable[[], int]) -> Work:
    """Run `action`, which returns the number of broker messages, twice: once for calls, once for memory."""
    calls = 0
    statements: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call") and is_ours(frame.f_code.co_filename)

    connection.set_trace_callback(statements.append)
    sys.setprofile(count)
    try:
        frames = action()
    finally:
        sys.setprofile(None)
        connection.set_trace_callback(None)
    tracemalloc.start()
    try:
        action()
        kilobytes = tracemalloc.get_traced_memory()[1] / 1_000
    finally:
        tracemalloc.stop()
    commits = sum(one == "COMMIT" for one in statements)
    work = Work(*(each * 1_000 / messages for each in (commits, len(statements), frames, calls, kilobytes)))
    print(work)
    return work


def check(work: Work, limit: Work) -> None:
    """Nothing may exceed its limit."""
    over = {name: value for name, value in asdict(work).items() if value > asdict(limit)[name]}
    assert not over, f"{over}; the limit is {limit}"


PUBLISHING = {
    1: Work(1_000, 5_100, 2_000, 405_000, 1_800),
    100: Work(10, 53, 20, 4_100, 150),
    500: Work(2, 11, 4, 840, 150),
}
"""By the number of messages that are published at once."""

CONSUMING = {
    1: Work(2_000, 13_700, 2_000, 1_015_000, 200),
    100: Work(20, 140, 20, 17_500, 25),
    500: Work(4, 30, 4, 9_700, 60),
}
"""By the number that arrive at once. Each time needs a commit before their delivery, and one of their acknowledgements.
"""


@pytest.mark.parametrize("batch", PUBLISHING)
def test_publishing(batch: int, tmp_path: Path) -> None:
    """From the call until both sites have confirmed."""
    messages = min(MESSAGES, 300 * batch)
    bench = SendingBench(tmp_path / "outbox.db", "dc1", "dc2")
    engine = bench.open({"t": ()})

    def publish() -> int:
        before = sum(len(sink.frames) for sink in bench.sinks.values())
        for _ in range(messages // batch):
            receipt = bench.publish(engine, "t", *[BODY] * batch)
        assert receipt.done
        return sum(len(sink.frames) for sink in bench.sinks.values()) - before

    check(counted(engine._outbox._db.connection, messages, publish), PUBLISHING[batch])


@pytest.mark.parametrize("batch", CONSUMING)
def test_consuming(batch: int, tmp_path: Path) -> None:
    """From both sites, until it is delivered, acknowledged, and that is committed."""
    messages = min(MESSAGES, 300 * batch)
    bench = ReceivingBench(tmp_path / "inbox.db")
    sent = 0

    def consume() -> int:
        nonlocal sent
        got = 0
        for _ in range(messages // batch):
            for site in ("dc1", "dc2"):
                send(bench.network[site], sent + 1, sent + batch)
            sent += batch
            bench.settle()
            got += len(bench.take())
        assert got == messages
        return 2 * messages // batch

    check(counted(bench.inbox._database.connection, messages, consume), CONSUMING[batch])
