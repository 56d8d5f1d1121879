"""The cost follows the number of ranges for journals, and of lines for logs."""

from __future__ import annotations

import time

import pytest

from reliamsg.checker import ApplicationLog, AppRecord, Expect, check
from reliamsg.message import Stream
from reliamsg.store.journal import Entry
from tests.checker.histories import write

pytestmark = pytest.mark.integrations

S = Stream("A", "orders")


def test_a_million_messages_in_order() -> None:
    million = 1_000_000
    producer = [Entry("opened", detail={"groups": {"orders": ["g"]}})]
    group = [Entry("opened", detail={"topics": ["orders"]})]
    step = 500
    for first in range(1, million, step):
        place = (S, 5, 1, first, first + step - 1)
        producer += [Entry("enqueued", *place, digest=first), Entry("confirmed", *place, site="dc1")]
        producer.append(Entry("published", *place))
        group += [Entry("delivered", *place, digest=first), Entry("acknowledged", *place)]
    chains = [
        write(("producer", "A"), [[*producer, Entry("closed")]]),
        write(("group", "g"), [[*group, Entry("closed")]]),
    ]
    started = time.process_time()
    report = check(chains, expect=Expect(drained=True))
    assert report.verdict == "complete", report.text()
    assert report.messages.delivered == {"g": million}
    assert report.rows < 2_020, "two rows with digests for every thousand messages, and few others"
    assert time.process_time() - started < 5.0


def test_much_disorder_stays_cheap() -> None:
    """Every other message is late: tens of thousands of ranges, none of which may be searched from the start."""
    count = 40_000
    rows = [Entry("opened", detail={"topics": ["orders"]})]
    rows += [Entry("delivered", S, 5, 1, seq, seq) for seq in range(2, count + 1, 2)]
    rows += [Entry("delivered", S, 5, 1, seq, seq) for seq in range(1, count + 1, 2)]
    chain = write(("group", "g"), [[*rows, Entry("closed")]])
    started = time.process_time()
    report = check([chain], expect=Expect(drained=True))
    assert report.messages.out_of_order == count // 2
    assert time.process_time() - started < 80.0


def test_logs_of_many_messages() -> None:
    count = 100_000
    publish, consume = (
        [AppRecord("opened", producer="A")],
        [AppRecord("opened", group="g", topics=["orders"])],
    )
    for n in range(1, count + 1):
        publish.append(
            AppRecord("publish", "ok", producer="A", topic="orders", n=n, epoch=5, seq=n, sha256=f"{n:x}")
        )
        consume.append(
            AppRecord("delivered", group="g", producer="A", topic="orders", epoch=5, seq=n, sha256=f"{n:x}")
        )
    started = time.process_time()
    report = check([], [ApplicationLog("p", publish), ApplicationLog("c", consume)], Expect(drained=True))
    assert report.messages.delivered == {"g": count}
    assert [f.kind for f in report.findings] == ["missing"]
    assert time.process_time() - started < 40.0
