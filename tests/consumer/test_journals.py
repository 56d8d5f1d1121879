"""What a consumer's journal proves without anybody's log, also after unclean stops; and in which order it says it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate, cycle, islice
from pathlib import Path

from reliamsg import Consumer, Producer
from reliamsg.checker import Expect, check_directory
from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.deliveries import GapItem
from reliamsg.lab import Mosquitto
from reliamsg.message import Stream
from reliamsg.protocol.histogram import bucket
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode
from tests.consumer.tools import TOPIC, Bench, send, seqs
from tests.patience import patient
from tests.runs.harness import SiteSpec, run_in, wait_for


def rows(path: Path, *kinds: str) -> list[JournalRow]:
    with closing(open_readonly(path)) as connection:
        return [row for row in read_journal(connection) if row.kind in kinds]


def test_journals_alone_are_complete_after_a_kill(
    tmp_path: Path, unique: str, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    sites: list[SiteSpec] = [(name, make_mosquitto(name=name).url, {}) for name in ("dc1", "dc2")]
    with run_in(tmp_path / "run") as run:
        consumer = run.consumer("auditors", sites, [unique], batch=10, delay=0.0005).start()
        # From then on the sites keep messages for the group. The first row may have left the inbox by now.
        wait_for(
            lambda: {row.site for row in run.rows(consumer) if row.kind == "connected"} == {"dc1", "dc2"},
            30, "connected",
        )  # fmt: skip
        producer = run.producer("till", sites, unique, ["auditors"], 6_000, rate=2_000, chunk=20).start()
        delivered = run.delivered(consumer)
        for goal in (500, 1_500, 3_000):
            wait_for(lambda goal=goal: delivered() >= goal, 30, f"{goal} messages are handed out")
            consumer.kill()
            consumer.start()
        producer.wait_ended(60)
        wait_for(lambda: set(range(1, 6_001)) <= set(run.outcome(consumer)["till"]), 60, "all are handed out")
        consumer.stop()
        journals = tmp_path / "journals"
        shutil.copytree(run.journals, journals)
        for path in run.directory.glob("*.db"):
            shutil.copy(path, journals / path.name)
    report = check_directory(journals, Expect(drained=True))
    assert report.logs == 0
    assert report.verdict == "complete", report.text()
    assert report.messages.delivered == {"auditors": 6_000}


def test_redelivered_rows_end_where_the_journal_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 100)
    bench.settle()
    got = bench.take(30, ack=False)
    for message in got[:20]:
        message.ack()
    bench.settle(0.3)  # 1 to 30 are journalled by now
    more = bench.engine.deliveries.take(1, 256)
    assert isinstance(more, DeliverySlice)
    while more.next() is not None:
        pass
    bench.reopen()
    again = bench.take()
    assert seqs(again) == list(range(21, 101))
    bench.close()
    found = [(r.kind, r.first, r.last, r.reason) for r in rows(bench.path, "delivered", "redelivered")]
    assert found == [
        ("delivered", 1, 30, ""), ("redelivered", 21, 30, ""), ("redelivered", 31, 100, "unjournalled")
    ]  # fmt: skip


def test_closed_is_the_last_that_is_said(tmp_path: Path) -> None:
    """Also where the last commit finds much to do, since the machine stood still before it."""
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 10)
    bench.network["dc2"].inject("orders", b"noise", content_type=CONTENT_TYPE)
    bench.network.run_pending()
    bench.now += 1.0
    bench.engine.flush(bench.now, closing=True)
    said = rows(bench.path, "received", "rejected", "buffered", "closed")
    assert [row.kind for row in said] == ["received", "rejected", "buffered", "closed"]


def test_a_gap_is_journalled_after_everything_before_it(tmp_path: Path) -> None:
    """The second half of an accepted gap is passed while messages before it are still being given out."""
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    assert seqs(bench.take()) == list(range(1, 11))
    bench.settle(6.0)
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, GapItem)
    send(bench.network["dc2"], 14, 16)
    bench.settle()
    assert bench.engine.deliveries.accept(item.gap)  # 11 to 13 at once, 17 to 20 when their turn comes
    bench.settle()
    chunk = bench.engine.deliveries.take(1, 10)
    assert isinstance(chunk, DeliverySlice)
    bench.settle(0.5)
    for expected in (14, 15, 16):
        message = chunk.next()
        assert message is not None
        assert message.seq == expected
        message.ack()
    bench.settle(0.5)
    bench.engine.deliveries.release(chunk)
    assert seqs(bench.take()) == list(range(21, 31))
    bench.close()
    found = [(r.kind, r.first, r.last) for r in rows(bench.path, "delivered", "declared")]
    assert found == [
        ("delivered", 1, 10), ("declared", 11, 13), ("delivered", 14, 16), ("declared", 17, 20),
        ("delivered", 21, 30),
    ]  # fmt: skip
    for row in rows(bench.path, "declared"):
        assert row.reason == "expired"
        assert row.detail is not None
        assert 5.0 <= row.detail["elapsed"] < 6.0


def test_a_consumer_is_in_its_journal_before_it_does_anything(tmp_path: Path) -> None:
    class Killed(Bench):
        def settle(self, seconds: float = 0.02) -> None:
            """As where the process dies before its thread ran for the first time."""

    bench = Killed(tmp_path / "inbox.db")
    bench.crash()
    assert len(rows(bench.path, "opened")) == 1


def test_the_journal_says_how_gaps_are_treated(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "inbox.db", gap_timeout=5.0, skip_gaps=True)
    send(bench.network["dc1"], 1, 10)
    send(bench.network["dc1"], 21, 30)
    bench.settle()
    bench.take()
    bench.settle(6.0)
    assert seqs(bench.take()) == list(range(21, 31))
    bench.close()
    (opened,) = rows(bench.path, "opened")
    assert opened.detail is not None
    assert opened.detail["gap_timeout"] == 5.0
    assert (opened.detail["begin"], opened.detail["on_gap"]) == (Rules().begin, "hold")
    report = check_directory(tmp_path, Expect(drained=True))
    assert not report.of_kind("gap_closed_early")
    assert not report.of_kind("gap_closed_late")


def test_producers_journal_the_row_by_which_a_group_had_settled(tmp_path: Path) -> None:
    """Of this inbox's journal, after a restart as well."""
    network = MemoryNetwork("dc1", "dc2")
    outbox, inbox = tmp_path / "outbox.db", tmp_path / "inbox.db"
    with Producer("till", network.sites, outbox=outbox, groups={"sales": ["ledger"]}) as producer:
        for end in (10, 20):
            producer.publish_many("sales", [b"x"] * 10)
            with Consumer("ledger", network.sites, topics=["sales"], inbox=inbox) as consumer:
                for _ in range(10):
                    message = consumer.get(patient(30))
                    assert message is not None
                    message.ack()
            wait_for(lambda end=end: end in {row.last for row in rows(outbox, "consumed")}, 30, "reported")
    acknowledged = rows(inbox, "acknowledged")
    for row in rows(outbox, "consumed"):
        boot, lsn = (row.detail or {})["journal"]
        settled = next(one for one in acknowledged if one.last >= row.last)
        assert boot == settled.boot
        assert lsn >= settled.lsn
    assert len({row.boot for row in acknowledged}) == 2


def published(first: int, last: int, ts_first: int, ts_last: int) -> bytes:
    bodies = [b"%d" % seq for seq in range(first, last + 1)]
    return encode(Origin(Stream("p", TOPIC), 10, 77), first, (ts_first, ts_last), Records(bodies))


def acknowledged(bench: Bench) -> list[tuple[int, int, dict[int, int] | None]]:
    return [(row.first, row.last, row.latency) for row in rows(bench.path, "acknowledged")]


def test_an_acknowledgement_has_the_time_since_publishing(tmp_path: Path) -> None:
    """From the oldest message of a batch on; in bucket 0 where the clocks disagree; not at all without a time."""
    bench = Bench(tmp_path / "in.db", sites=("dc1",))
    broker = bench.network["dc1"]
    second = 1_000_000
    for data in (
        published(1, 3, 30 * second, 90 * second),  # 70 s ago, by a clock that is at 100 s
        published(4, 5, 97 * second, 97 * second),
        published(6, 6, 500 * second, 500 * second),
        published(7, 9, 0, 0),
    ):
        broker.inject(TOPIC, data, content_type=CONTENT_TYPE)
    bench.settle()
    assert len(bench.take()) == 9
    ((first, last, latency),) = acknowledged(bench)
    assert (first, last) == (1, 9)
    assert latency == {bucket(70 * second + 50_000): 3, bucket(3 * second + 50_000): 2, 0: 1}
    bench.close()


def test_messages_that_are_acknowledged_one_by_one_are_counted_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "in.db", sites=("dc1",))
    send(bench.network["dc1"], 1, 20)
    bench.settle()
    for _ in range(20):
        (message,) = bench.take(1)
        message.ack()  # a second time
    bench.settle(1.0)
    assert sum(sum((latency or {}).values()) for _, _, latency in acknowledged(bench)) == 20
    bench.close()


def test_both_journals_have_sums_up_to_common_numbers(tmp_path: Path) -> None:
    """Whatever the sizes of batches, and with keys and headers as well."""
    network = MemoryNetwork("dc1", "dc2")
    outbox, inbox = tmp_path / "outbox.db", tmp_path / "inbox.db"
    with (
        Producer("till", network.sites, outbox=outbox, groups={"sales": ["ledger"]}) as producer,
        Consumer("ledger", network.sites, topics=["sales"], inbox=inbox) as consumer,
    ):
        for number in range(7):
            key, headers = ("k" if number % 2 else None), ({"n": str(number)} if number % 3 else None)
            producer.publish_many("sales", [b"%d" % n for n in range(370)], key=key, headers=headers)
        taken = 0
        for size in cycle((1, 90, 611)):
            if taken >= 7 * 370:
                break
            for message in islice(consumer, min(size, 7 * 370 - taken)):
                message.ack()
                taken += 1
    sums = [_sums(path, kind) for path, kind in ((outbox, "enqueued"), (inbox, "delivered"))]
    assert {1000, 2000} <= sums[0].keys() & sums[1].keys()
    assert sums[0][1000] == sums[1][1000]
    assert sums[0][2000] == sums[1][2000]


def _sums(path: Path, kind: str) -> dict[int, int]:
    """By the last number of each row, the sum of all digests up to there."""
    found = accumulate(
        ((row.last, row.digest or 0) for row in rows(path, kind)), lambda one, two: (two[0], one[1] + two[1])
    )
    return {last: total % 2**64 for last, total in found}


def test_what_was_removed_names_the_row_by_which_its_producer_said_so(tmp_path: Path) -> None:
    network = MemoryNetwork("dc1")
    outbox, inbox = tmp_path / "outbox.db", tmp_path / "inbox.db"
    with Producer("till", network.sites, outbox=outbox, groups={"sales": ["ledger"]}) as producer:
        producer.publish("sales", b"kept").wait(patient(30))
        network["dc1"].down()
        gone = producer.publish("sales", b"removed")
        assert gone.id is not None
        producer.remove(gone.id)
        network["dc1"].up()
        producer.publish("sales", b"kept").wait(patient(30))
        with Consumer("ledger", network.sites, topics=["sales"], inbox=inbox, gap_timeout=20.0) as consumer:
            for _ in range(2):
                message = consumer.get(patient(30))
                assert message is not None
                message.ack()
    (declared,) = rows(inbox, "declared")
    (removed,) = rows(outbox, "removed")
    lsn, incarnation = (declared.detail or {})["heard"]
    assert declared.reason == "removed"
    assert int(incarnation, 16) == removed.incarnation
    assert lsn >= removed.lsn
