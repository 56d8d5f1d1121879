"""A consumer takes in what producers may send, whatever its own max_frame_bytes says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer
from reliamsg.testing import MemoryNetwork


@pytest.mark.parametrize("repaired", [False, True], ids=["data", "repair"])
def test_a_producer_may_send_larger_frames_than_the_consumer_was_told_of(
    repaired: bool, tmp_path: Path
) -> None:
    bodies = [b"%d" % number + bytes(3_000) for number in range(5)]
    with (
        MemoryNetwork("a") as network,
        Producer(
            "p", network.sites, outbox=tmp_path / "o.db", groups={"t": ["g"]}, release="consumed", status_interval=0.1,
        ) as producer,
    ):  # fmt: skip
        producer.publish_many("t", bodies).wait(timeout=60)
        if repaired:
            network["a"].wipe()
        small = [replace(site, max_frame_bytes=1024) for site in network.sites]
        with Consumer("g", small, topics=["t"], inbox=tmp_path / "i.db", repair_delay=0.05) as consumer:
            got = [consumer.get(timeout=60) for _ in bodies]
            assert [message.body for message in got if message is not None] == bodies
            assert not any(site.rejected for site in consumer.status().sites.values())
