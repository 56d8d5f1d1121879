"""Sites that hold the same messages in frames with different boundaries, and a slow consumer."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from reliamsg import Consumer, Producer, Site
from reliamsg.consumer import commits
from reliamsg.testing import MemoryNetwork
from tests.patience import patient, wait_for

TOPICS = ("t0", "t1")


def test_a_slow_consumer_gets_everything_from_sites_with_different_frame_limits(tmp_path: Path) -> None:
    rows, size = 40, 100
    with MemoryNetwork("small", "big") as network:
        small, big = network.sites
        sites = [
            Site("small", small.url, max_frame_bytes=15_000, prefetch=64),
            Site("big", big.url, prefetch=2_000),
        ]
        with (
            Producer(
                "p", sites, outbox=tmp_path / "o.db", groups={t: ["g"] for t in TOPICS},
                hello_timeout=0,
            ) as producer,
            Consumer("g", sites, topics=TOPICS, inbox=tmp_path / "i.db") as consumer,
        ):  # fmt: skip
            for i in range(rows):
                producer.publish_many(TOPICS[i % 2], [bytes(1_000)] * size)
            got: Counter[str] = Counter()
            stored = 0
            while got.total() < rows * size:
                message = consumer.get(timeout=patient(10))
                assert message is not None, f"stuck after {got}"
                got[message.topic] += 1
                assert message.seq == got[message.topic]
                message.ack()
                if message.seq % 20 == 0:
                    time.sleep(0.004)
                    stored = max(stored, consumer.status().inbox_bytes)
            assert 0 < stored < rows * size * 1_100, "more was stored than there was"


def held(consumer: Consumer) -> int:
    return sum(state.held for stream, state in consumer.status().streams.items() if stream.topic == "t")


def test_a_batch_partly_removed_at_one_site_is_delivered_from_the_other(tmp_path: Path) -> None:
    """One site has the original batch, the other one without its first messages, and only the latter's part is
    overdue."""
    with MemoryNetwork("a", "b") as network:
        a, b = network.sites
        sites = [Site("a", a.url, prefetch=1_000), Site("b", b.url, prefetch=64)]
        with (
            Producer(
                "p", sites, outbox=tmp_path / "o.db", groups={"t": ["g"], "x": ["g"]},
                hello_timeout=0,
            ) as producer,
            Consumer(
                "g", sites, topics=["t", "x"], inbox=tmp_path / "i.db", repair_delay=60,
                gap_timeout=60,
            ) as consumer,
        ):  # fmt: skip
            producer.publish_many("t", [b"earlier"] * 10).wait(10)
            wait_for(lambda: consumer.status().inbox_bytes > 0, "the stream has stalled", 10)
            for name in ("a", "b"):
                network[name].hold_deliveries()
            network["b"].down()
            batch = producer.publish_many("t", [b"%d" % i for i in range(100)])
            others = [producer.publish("x", bytes(300_000)) for _ in range(40)]
            wait_for(lambda: all(o.sites["a"] == "confirmed" for o in others), "site a has all", 20)
            producer.remove(batch.ids[0], batch.ids[48])
            network["b"].up()
            network["b"].hold_deliveries()
            wait_for(lambda: all(o.sites["b"] == "confirmed" for o in others), "site b has the rest", 20)
            network["a"].release_deliveries()
            wait_for(lambda: held(consumer) == 110, "the whole batch has arrived", 10)
            network["b"].release_deliveries()
            time.sleep(0.3)
            got: Counter[str] = Counter()
            while got != {"t": 110, "x": 40}:
                message = consumer.get(timeout=patient(10))
                assert message is not None, f"stuck after {got}"
                got[message.topic] += 1
                assert message.seq == got[message.topic]
                message.ack()


assert commits.MAX_CACHED_BYTES < 40 * 300_000  # so that messages in the inbox are dropped from memory
