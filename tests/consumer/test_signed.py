"""A consumer with keys: what is not signed changes nothing, and costs within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, KeyRing
from reliamsg.consumer.quarantine import MAX_SAMPLE_BYTES
from reliamsg.errors import ConfigError
from reliamsg.message import Prev, Stream
from reliamsg.store.inbox_view import summarize_inbox
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Delivery
from reliamsg.wire.address import group_address, producer_address, status_address
from reliamsg.wire.control import VERSION, ChainEpoch, Status, StreamStatus, encode_status, open_control
from reliamsg.wire.data import CONTENT_TYPE, Origin, make_records, open_frame
from reliamsg.wire.data import encode as encode_batch
from reliamsg.wire.plain import encode_plain
from tests.consumer.control_tools import FakeProducer, rows
from tests.consumer.tools import GROUP, TOPIC, Bench, seqs

RING = KeyRing({"a": b"A" * 16}, sign_with="a")
OTHERS = KeyRing({"a": b"B" * 16}, sign_with="a")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path / "inbox.db", gap_timeout=5.0)
    made.settings["keys"] = RING
    made.reopen(clean=True)
    return made


def batch(
    first: int, last: int, ring: KeyRing | None = RING, body: bytes = b"genuine", **changes: Any
) -> bytes:
    fields: dict[str, Any] = {
        "epoch": 10,
        "incarnation": 77,
        "prev": None,
        "producer": "p",
        "topic": TOPIC,
    } | changes
    count = last - first + 1
    return encode_batch(
        Origin(
            Stream(fields["producer"], fields["topic"]),
            fields["epoch"],
            fields["incarnation"],
            fields["prev"],
        ),
        first,
        (1, 1),
        make_records([body] * count, [None] * count, [None] * count),
        ring=ring,
    )


def inject(bench: Bench, data: bytes, site: str = "dc1", **options: Any) -> None:
    bench.network.brokers[site].inject(TOPIC, data, content_type=CONTENT_TYPE, **options)


def rejected(bench: Bench, site: str = "dc1") -> dict[str, int]:
    return dict(bench.engine.sites[site].rejected)


def test_what_is_signed_is_delivered_once(bench: Bench) -> None:
    inject(bench, batch(1, 3))
    inject(bench, batch(1, 3), "dc2")
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3]
    assert rejected(bench) == {}


FORGERIES = {
    "a copy": batch(1, 3, OTHERS, b"forged"),
    "an unsigned copy": batch(1, 3, None, b"forged"),
    "a jump": batch(2**62, 2**62, OTHERS),
    "another incarnation": batch(1, 3, OTHERS, incarnation=78),
    "a higher epoch": batch(1, 1, OTHERS, epoch=2**62, prev=Prev(10, 77, 1)),
    "a made-up producer": batch(1, 1, None, producer="made-up"),
}


@pytest.mark.parametrize("data", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forgery_that_comes_first_changes_nothing(bench: Bench, data: bytes) -> None:
    for site in ("dc1", "dc2"):
        inject(bench, data, site)
    bench.settle(0.5)
    assert list(bench.engine.shared.core.streams) == []
    assert bench.take() == []
    inject(bench, batch(1, 3))
    bench.settle()
    messages = bench.take()
    assert [(m.seq, m.body) for m in messages] == [(i, b"genuine") for i in (1, 2, 3)]
    bench.settle(10.0)
    assert bench.queued() == {"dc1": 0, "dc2": 0}
    reason = "forged" if open_frame(data).envelope.key_id else "unsigned"
    assert rejected(bench) == rejected(bench, "dc2") == {reason: 1}
    assert summarize_inbox(bench.path).samples == 2
    assert [(row.site, row.reason) for row in rows(bench, "rejected")] == [("dc1", reason), ("dc2", reason)]
    assert not rows(bench, "conflict", "gap_opened", "declared", "late", "duplicate")


def test_a_genuine_batch_at_another_topic_is_refused(bench: Bench) -> None:
    inject(bench, batch(1, 3, topic="other"))
    forged = Delivery(0, "other", batch(1, 3), CONTENT_TYPE)
    bench.network.brokers["dc1"].inject_delivery(TOPIC, forged)
    bench.settle()
    assert bench.take() == []
    assert rejected(bench) == {"wrong-topic": 2}


def test_a_genuine_batch_that_is_sent_again_by_whomever_is_a_duplicate(bench: Bench) -> None:
    inject(bench, batch(1, 3))
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3]
    inject(bench, batch(1, 3))
    bench.settle()
    assert bench.take() == []
    assert rejected(bench) == {}


def test_a_damaged_body_says_nothing_and_the_other_sites_copy_is_taken(bench: Bench) -> None:
    """Without the body's bytes nothing tells whose envelope it is: not even that the numbers exist."""
    damaged = bytearray(batch(1, 3))
    damaged[-1] ^= 1
    inject(bench, bytes(damaged))
    bench.settle()
    assert list(bench.engine.shared.core.streams) == []
    assert rejected(bench) == {"corrupt": 1}
    inject(bench, batch(1, 3), "dc2")
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3]


def test_messages_in_the_plain_form_need_a_signature_too(bench: Bench) -> None:
    whole = open_frame(batch(1, 3, None))
    for message in encode_plain(whole) + encode_plain(whole, OTHERS):
        bench.network.brokers["dc1"].inject(TOPIC, message.body, headers=message.headers)
    bench.settle()
    assert bench.take() == []
    for message in encode_plain(whole, RING):
        bench.network.brokers["dc1"].inject(TOPIC, message.body, headers=message.headers)
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3]
    assert rejected(bench) == {"unsigned": 3, "forged": 3}


def test_ordinary_messages_are_refused(bench: Bench, tmp_path: Path) -> None:
    bench.network.brokers["dc1"].inject(TOPIC, b"hello")
    bench.settle()
    assert bench.take() == []
    assert rejected(bench) == {"unsigned": 1}
    network = MemoryNetwork("dc1")
    for options, says in (
        ({"keys": RING, "unsequenced": "deliver"}, "exclude each other"),
        ({"keys": KeyRing({"a": b"A" * 16})}, "sign_with"),
    ):
        with pytest.raises(ConfigError, match=says):
            Consumer("g", network.sites, topics=["t"], inbox=tmp_path / "g.db", **options)


def a_status(ring: KeyRing | None, last: int) -> bytes:
    stream = StreamStatus(TOPIC, 0, [ChainEpoch(10, 77, 1, last)], [], {GROUP: (10, 1)})
    status = Status(VERSION, "p", 10, 77, last, 1, 1, 1_000, True, status_address(TOPIC), [stream])
    return encode_status(status, ring)[0]


def test_statuses_and_repairs_count_only_where_they_are_signed(bench: Bench) -> None:
    producer = FakeProducer(bench)
    inject(bench, batch(1, 3))
    bench.settle()
    assert seqs(bench.take()) == [1, 2, 3]
    for ring in (None, OTHERS):
        producer.tell(status_address(TOPIC), a_status(ring, 9), "dc1")
        producer.tell(group_address(GROUP), batch(4, 9, ring, b"forged"), "dc1")
    bench.settle(2.0)
    assert bench.take() == []
    assert rejected(bench) == {"unsigned": 2, "forged": 2}
    assert not rows(bench, "asked")
    producer.tell(status_address(TOPIC), a_status(RING, 9), "dc1")
    bench.settle(2.0)
    assert {(row.first, row.last) for row in rows(bench, "asked")} == {(4, 9)}
    producer.tell(group_address(GROUP), batch(4, 9), "dc1")
    bench.settle()
    assert [(m.seq, m.body) for m in bench.take()] == [(i, b"genuine") for i in range(4, 10)]


def test_what_the_group_says_is_signed(bench: Bench) -> None:
    producer = FakeProducer(bench)
    inject(bench, batch(1, 3))
    bench.settle()
    bench.take()
    bench.settle(5.0)
    heard = [(address, body) for ear in producer.ears.values() for address, body in ear.heard_frames]
    assert {address for address, _ in heard} >= {producer_address("p"), group_address(GROUP)}
    for address, body in heard:
        open_control(body, address, RING)


def test_a_flood_of_forgeries_costs_within_bounds_and_loses_nothing(bench: Bench) -> None:
    """Thousands of them around and between genuine batches, at both sites, and as control frames."""
    producer = FakeProducer(bench)
    forged = batch(1, 20, OTHERS, b"x" * 500)
    for turn in range(20):
        for _ in range(100):
            inject(bench, forged)
            producer.tell(status_address(TOPIC), a_status(OTHERS, 2**40), "dc1")
        inject(bench, batch(1 + turn, 1 + turn))
        bench.settle()
    bench.settle(1.0)
    assert seqs(bench.take()) == list(range(1, 21))
    bench.settle(1.0)
    assert rejected(bench) == {"forged": 4_000}
    assert bench.queued()["dc1"] == 0
    assert len(bench.engine.shared.core.streams) == 1
    assert bench.engine.statuses.by_producer == {}
    assert bench.path.stat().st_size < 4 * MAX_SAMPLE_BYTES
    found = rows(bench, "rejected")
    assert sum((row.detail or {})["count"] for row in found) == 4_000
    assert len(found) <= 3


def test_made_up_producers_without_streams_cost_nothing_that_lasts(tmp_path: Path) -> None:
    """Without keys: thousands that say no more than that they are there. Those with streams are answered first."""
    bench = Bench(tmp_path / "inbox.db", max_streams=3)
    producer = FakeProducer(bench)
    for i in range(3_000):
        hello = Status(VERSION, f"made-up-{i}", 10, 7, 1, 1, 1, 0, False, group_address(GROUP), [])
        producer.tell(group_address(GROUP), encode_status(hello)[0], "dc1")
    producer.status((1, 5))
    bench.settle(0.3)
    assert list(bench.engine.statuses.by_producer) == ["p"]
    assert len(producer.streams()) > 0
    bench.settle(10.0)
    assert not bench.engine.control._unknown_producers
    assert {row.producer for row in rows(bench, "heard")} <= {"p"}


def test_restoring_needs_no_signatures_again(bench: Bench) -> None:
    """What is in the inbox was authenticated before it was stored."""
    inject(bench, batch(5, 9))
    whole = open_frame(batch(2, 4, None))
    for message in encode_plain(whole, RING):
        bench.network.brokers["dc1"].inject(TOPIC, message.body, headers=message.headers)
    bench.settle(1.0)
    bench.reopen()
    inject(bench, batch(1, 1))
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 10))
