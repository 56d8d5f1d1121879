"""A long backlog with a gap at its head: the gap is repaired within seconds, and not behind the backlog."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pika
import pytest

from reliamsg.lab import RabbitNode
from reliamsg.store.journal import JournalRow
from reliamsg.wire.address import group_queue
from tests.options import Size
from tests.runs.harness import assert_complete, run_in, wait_for

SOON_S = 5.0
"""The maximum seconds until the first message is delivered. Retried if the machine stalled meanwhile."""
TRIES = 3


@pytest.mark.integrations
@pytest.mark.timeout(900)
def test_gap_at_the_head_of_a_long_backlog(
    tmp_path: Path, rabbit: RabbitNode, unique: str, size: Size
) -> None:
    took: list[float] = []
    while not took or (min(took) >= SOON_S and len(took) < TRIES):
        took.append(first_after(tmp_path / str(len(took)), rabbit, f"{unique}-{len(took)}", size))
    assert min(took) < SOON_S


def first_after(tmp_path: Path, rabbit: RabbitNode, unique: str, size: Size) -> float:
    """Seconds until the first message arrives of a backlog that lacks its first batch; then all of it must arrive."""
    tmp_path.mkdir()
    messages = size(10_000, 200_000)
    queue = group_queue(unique, 0, unique)
    sites = [("dc1", rabbit.url, {"backoff_max": 1.0})]
    with run_in(tmp_path / "run") as run:
        producer = run.producer(
            "till", sites, unique, [unique], messages, chunk=500, linger=True, flush=300.0,
            ended=str(tmp_path / "ended"),
            options={"release": "consumed", "hello_timeout": 0.0},
        ).start()  # fmt: skip
        wait_for(Path(producer.config["ended"]).exists, 120, "all is published")
        wait_for(lambda: unconfirmed(run.rows(producer), messages) == 0, 120, "all is confirmed")
        stolen = steal(rabbit.url, queue)
        assert stolen > 0
        consumer = run.consumer(unique, sites, [unique], batch=500)
        delivered = run.delivered(consumer)
        since = time.monotonic()
        consumer.start()
        wait_for(lambda: delivered() > 0, 60, "the gap is repaired")
        took = time.monotonic() - since
        at_once = delivered()
        wait_for(lambda: delivered() >= messages, 60 + messages / 1_000, "all comes")
        everything = time.monotonic() - since
        producer.stop()
        consumer.stop()
        assert run.outcome(consumer)["till"] == list(range(1, messages + 1))
        repaired = sum(r.last - r.first + 1 for r in run.rows(consumer) if r.reason == "repair")
        assert_complete(run.check())
    print(f"{stolen} batches gone: first message after {took:.1f} s ({at_once} then), last after {everything:.1f} s;"
          f" {repaired} sent again")  # fmt: skip
    assert repaired > 0, "nothing was missing"
    return took


def unconfirmed(rows: list[JournalRow], messages: int) -> int:
    return messages - sum(row.last - row.first + 1 for row in rows if row.kind == "confirmed")


def steal(url: str, queue: str) -> int:
    """Remove the first message of a queue, as a broker that lost it would; returns how many were removed."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        method, _, _ = connection.channel().basic_get(queue, auto_ack=True)
        return int(method is not None)
