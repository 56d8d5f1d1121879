"""Auditing ten million messages that were delivered in order, from the journals of real clients.

Producer and consumer use two sites in memory, and export their journals as segments. Then Spark starts, and only the
audit is timed, including its tables and its report. The result has seconds, and journal rows per million messages.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from reliamsg import Consumer, JournalExport, Message, Producer
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.session import make_session
from reliamsg.testing import MemoryNetwork

__all__ = ["traffic_and_audit"]

TARGET_SECONDS = 30.0
MESSAGES = 10_000_000
SEGMENT_S = 5.0
"""Seconds between two segments of a journal."""
AUDITS = 2
"""Audits of the same journals; the first one counts."""
CALL = 2_000
TOPIC = "bench"


def traffic(directory: Path, messages: int, interval: float) -> float:
    """Publish and consume `messages`, and return the seconds that it took. Journals are below ``journals``."""
    network = MemoryNetwork("dc1", "dc2")
    sites = network.sites
    journal = JournalExport(directory / "journals", interval=interval)
    started = time.monotonic()
    with (
        Producer("producer", sites, outbox=directory / "outbox.db", groups={TOPIC: ["group"]}, journal=journal,
                 retain_seconds=1.0) as producer,
        Consumer("group", sites, topics=[TOPIC], inbox=directory / "inbox.db", journal=journal) as consumer,
    ):  # fmt: skip
        handled, done = 0, threading.Event()

        def handle(batch: list[Message]) -> None:
            nonlocal handled
            handled += len(batch)
            if handled >= messages:
                done.set()

        reader = threading.Thread(target=consumer.run, args=(handle,), kwargs={"batch": CALL})
        reader.start()
        for number in range(0, messages, CALL):
            producer.publish_many(TOPIC, [b"%d" % n for n in range(number, min(number + CALL, messages))])
        producer.flush(600.0)
        if not done.wait(600.0):
            raise SystemExit(f"only {handled} of {messages} messages were handled")
        consumer.stop()
        reader.join()
    return time.monotonic() - started


def measure(messages: int, interval: float, runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        took = traffic(directory, messages, interval)
        started = time.monotonic()
        spark = make_session("local[2]", journals=directory / "journals")
        startup = time.monotonic() - started
        seconds = []
        for run in range(runs):
            started = time.monotonic()
            verdict = audit(
                spark, directory / "journals", out=directory / f"out{run}", expect=Expect(drained=True)
            )
            seconds.append(time.monotonic() - started)
        spark.stop()
        size = sum(path.stat().st_size for path in (directory / "journals").rglob("*.ndjson"))
    if verdict["verdict"] != "complete" or verdict["messages"]["enqueued"] != messages:
        raise SystemExit(f"the audit's verdict is {verdict['verdict']}: {json.dumps(verdict)[:2000]}")
    return {
        "name": "audit",
        "ours": round(seconds[0], 1),
        "unit": "s",
        "target": TARGET_SECONDS,
        "direction": "most",
        "met": seconds[0] < TARGET_SECONDS,
        "messages": messages,
        "later_runs_s": [round(each, 1) for each in seconds[1:]],
        "spark_start_s": round(startup, 1),
        "rows": verdict["rows"],
        "rows_per_million_messages": round(verdict["rows"] / messages * 1e6, 1),
        "journal_bytes": size,
        "traffic_s": round(took, 1),
    }


def traffic_and_audit(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    yield measure(options.scaled(MESSAGES), SEGMENT_S, AUDITS)
