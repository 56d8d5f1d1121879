"""Clients that are killed at the worst instants, and at any."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.options import Size
from tests.runs.harness import App, Run, SiteSpec, assert_complete, run_in, wait_for

PRODUCER_WINDOWS = {"committed": "after commit, before send", "sent": "after send, before confirm",
                    "confirmed": "after confirm, before the cursor commits"}  # fmt: skip
CONSUMER_WINDOWS = {"handled": "after the handler, before its position commits",
                    "position": "after that commit, before the broker's acknowledgement",
                    "spill": "in the middle of a spill"}  # fmt: skip


@pytest.fixture
def mixed(rabbit: RabbitNode, make_mosquitto: Callable[..., Mosquitto]) -> list[SiteSpec]:
    return [("dc1", rabbit.url, {}), ("dc2", make_mosquitto(name="dc2").url, {})]


@pytest.mark.parametrize("window", PRODUCER_WINDOWS)
def test_producer_killed(window: str, tmp_path: Path, mixed: list[SiteSpec], size: Size) -> None:
    topic = f"crash-{window}"
    with run_in(tmp_path / "run") as run:
        consumer = run.consumer("auditors", mixed, [topic]).start()
        producer = run.producer("till", mixed, topic, ["auditors"], 4_000, rate=2_000, chunk=20)
        for nth in size((2, 15), (2, 7, 15)):  # each time at another point of its life
            strike(run, producer, window, nth)
        producer.start().wait_ended(60)
        judge(run, producer, consumer)


@pytest.mark.parametrize("window", CONSUMER_WINDOWS)
def test_consumer_killed(window: str, tmp_path: Path, mixed: list[SiteSpec], size: Size) -> None:
    topic = f"crash-{window}"
    with run_in(tmp_path / "run") as run:
        # It publishes as long as there is something to kill.
        producer = run.producer(
            "till", mixed, topic, ["auditors"], 1_000_000, rate=800, chunk=20, close=60.0
        ).start()
        # Handling more slowly than publishing makes batches old enough to be persisted early.
        slow = 0.002 if window == "spill" else 0.0
        consumer = run.consumer("auditors", mixed, [topic], batch=20, delay=slow)
        for nth in size((2, 9), (2, 5, 9)):
            strike(run, consumer, window, nth)
        consumer.start(delay=0.0)
        producer.stop(60)
        judge(run, producer, consumer)


@pytest.mark.full  # at small size, the instants above
def test_kills_at_random_instants(tmp_path: Path, mixed: list[SiteSpec], seeded: random.Random) -> None:
    kills = 20
    messages = 4_000 * kills // 2
    with run_in(tmp_path / "run") as run:
        producer = run.producer(
            "till", mixed, "crash-random", ["auditors"], messages, rate=2_500, chunk=20
        ).start()
        consumer = run.consumer("auditors", mixed, ["crash-random"], batch=20).start()
        for number in range(kills):
            victim = (producer, consumer)[number % 2]
            seen = (run.accepted if victim is producer else run.delivered)(victim)
            before = seen()
            wait_for(lambda s=seen, b=before: s() > b, 30, "the victim is at work")
            time.sleep(seeded.uniform(0.0, 0.8))  # the instant is random
            if victim is producer and not victim.running:
                break  # it has published everything already
            victim.kill()
            victim.start()
        producer.wait_ended(120)
        judge(run, producer, consumer)


def strike(run: Run, app: App, window: str, nth: int) -> None:
    """Have `app` kill itself when it passes the window for the nth time."""
    mark = run.directory / f"{app.log.stem}.{window}.{nth}"
    app.start(probe=[window, nth, str(mark)])
    wait_for(lambda: not app.running, 60, f"{window} is passed {nth} times")
    assert app.killed(), app.errors()
    assert mark.exists(), "it died of something else"


def judge(run: Run, producer: App, consumer: App) -> None:
    """Everything that the producer accepted was delivered once, in order; then the checker's verdict."""
    total = run.accepted(producer)()
    delivered = run.delivered(consumer)
    wait_for(lambda: delivered() >= total, 60, f"{total} messages are delivered")
    wait_for(
        lambda: set(numbers(run, producer)) <= set(run.outcome(consumer)["till"]), 30, "all that was accepted"
    )
    consumer.stop()
    received = run.outcome(consumer)["till"]
    assert received == sorted(set(received)), "duplicated or out of order"
    assert_complete(run.check())


def numbers(run: Run, producer: App) -> list[int]:
    """The numbers whose publish() returned."""
    import json

    return [
        json.loads(line)["n"] for line in producer.log.read_bytes().splitlines() if b'"outcome":"ok"' in line
    ]
