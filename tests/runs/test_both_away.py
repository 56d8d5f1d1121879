"""Both sites are down under load: publishing stays durable, memory flat, and everything drains in order afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg.lab import Mosquitto, RabbitNode, TcpProxy
from tests.options import Size
from tests.runs.harness import assert_complete, run_in, wait_for

MOST_MB = 32
"""The newest 16 MiB of batches always stay in memory, and Python's allocator keeps some freed memory."""


@pytest.mark.integrations
def test_both_sites_away(
    tmp_path: Path, rabbit: RabbitNode, make_mosquitto: Callable[..., Mosquitto], size: Size
) -> None:
    rate, seconds, each = size(500, 4_000), size(8, 60), size(20_000, 500)
    messages = rate * (seconds + 4)
    mosquitto = make_mosquitto(name="dc2")
    with TcpProxy("127.0.0.1", rabbit.port) as one, TcpProxy("127.0.0.1", mosquitto.port) as two:
        sites = [
            ("dc1", rabbit.url.replace(str(rabbit.port), str(one.port)), {"backoff_max": 1.0}),
            ("dc2", mosquitto.url.replace(str(mosquitto.port), str(two.port)), {"backoff_max": 1.0}),
        ]
        with run_in(tmp_path / "run") as run:
            consumer = run.consumer("auditors", sites, ["both-away"]).start()
            producer = run.producer(
                "till", sites, "both-away", ["auditors"], messages, rate=rate, chunk=rate // 20, size=each
            ).start()
            accepted, delivered = run.accepted(producer), run.delivered(consumer)
            wait_for(lambda: delivered() >= rate, 60, "traffic flows")
            one.cut()
            two.cut()
            before = accepted()
            wait_for(lambda: accepted() >= before + rate, 30, "publishing continues without any site")
            start = producer.rss_mb()
            wait_for(
                lambda: accepted() >= before + rate * (seconds - 2), seconds * 2 + 30, "publishing continues"
            )
            grown = producer.rss_mb() - start
            stake = accepted() - delivered()
            one.heal()
            two.heal()
            producer.wait_ended(120)
            wait_for(lambda: delivered() >= messages, 120, "everything drains")
            consumer.stop()
            assert run.outcome(consumer)["till"] == list(range(1, messages + 1))
            assert_complete(run.check())
    print(f"{stake} messages waited in the outbox; the producer grew by {grown:.1f} MB meanwhile")
    assert stake >= rate * (seconds - 3), "the outage did not matter"
    waited = stake * each / 1e6
    assert waited > 1.5 * MOST_MB, (
        f"only {waited:.0f} MB waited: memory that followed the outage would not be noticed"
    )
    assert grown < MOST_MB, f"memory followed the outage: {grown:.1f} MB of {waited:.0f} MB"
