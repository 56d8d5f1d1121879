"""Messages that a real broker loses after it has confirmed them are counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.checker import Expect, Report, check_directory
from reliamsg.export.offline import export_file
from reliamsg.lab import Broker, Mosquitto, RabbitNode
from reliamsg.store.journal import JournalRow
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from reliamsg.wire.address import group_queue
from tests.patience import wait_for
from tests.producer.tools import journal

FAST = {"backoff_min": 0.1, "backoff_max": 0.3, "connect_timeout": 5.0}
BEFORE, QUEUED = 5, 40
BODY_BYTES, INBOX_BYTES = 4000, 8192
"""The inbox has room for two messages, so that a broker has to keep most of them. Mosquitto 2.0.11 sends several for
each that is acknowledged, whatever the Receive Maximum."""


def rows(path: Path, kind: str, site: str) -> list[JournalRow]:
    return [row for row in journal(path, kind) if row.site == site]


def delivered(path: Path, site: str) -> set[int]:
    """The numbers of the messages of its queue that a site has delivered, whether or not another site was faster."""
    found = [*rows(path, "received", site), *rows(path, "duplicate", site)]
    return {n for row in found if row.reason != "repair" for n in range(row.first, row.last + 1)}


class Run:
    """A producer and a group between a real broker, dc1, and dc2 in memory."""

    def __init__(self, place: Path, broker: Broker, network: MemoryNetwork | None) -> None:
        self.place, self.broker = place, broker
        self.outbox, self.inbox = place / "o.db", place / "i.db"
        self.dc1 = Site("dc1", broker.url, prefetch=4, **FAST)  # type: ignore[arg-type]
        self.sites = [self.dc1, *(network.sites if network is not None else ())]
        for site in self.sites:
            create_group(site, [Binding("t", 0, "g")], 20)
        self.producer = Producer(
            "p", self.sites, outbox=self.outbox, groups={"t": ["g"]}, hello_timeout=0, release="consumed"
        )

    def publish(self, number: int) -> None:
        """One message for each delivery of a broker, confirmed by all sites."""
        for n in range(number):
            receipt = self.producer.publish("t", b"%d" % n + b"." * BODY_BYTES)
            wait_for(lambda one=receipt: set(one.sites.values()) == {"confirmed"}, "all sites confirm", 30)

    def consumer(self) -> Consumer:
        return Consumer(
            "g", self.sites, topics=["t"], inbox=self.inbox, begin="earliest", max_inbox_bytes=INBOX_BYTES
        )

    def take(self, consumer: Consumer, number: int) -> None:
        for _ in range(number):
            message = consumer.get(timeout=60)
            assert message is not None
            message.ack()

    def queued(self) -> int:
        """By the broker's own count."""
        if isinstance(self.broker, RabbitNode):
            return self.broker.queue_depth(group_queue("t", 0, "g"))
        assert isinstance(self.broker, Mosquitto)
        return self.broker.stored()

    def lose(self) -> None:
        self.broker.kill()
        self.broker.wipe()

    def wait_for_announcement(self, consumer: Consumer, published: int) -> None:
        """The group has heard that dc1 has confirmed everything."""

        def announced() -> bool:
            found = rows(self.outbox, "confirmed", "dc1")
            known = consumer.status().producers.get("p")
            confirmed = {n for row in found for n in range(row.first, row.last + 1)}
            return len(confirmed) == published and known is not None and known.lsn >= found[-1].lsn

        wait_for(announced, "everything is announced", 30)

    def wait_for_attempt(self, consumer: Consumer) -> None:
        """The group has tried to reach dc1 since."""
        wait_for(lambda: consumer.status().sites["dc1"].state != "connected", "dc1 is missed", 30)
        time.sleep(2.0)

    def wait_for_proof(self, consumer: Consumer) -> None:
        """dc1 is read again; an AMQP queue has been seen empty since."""
        wait_for(lambda: consumer.status().sites["dc1"].state == "connected", "dc1 is read", 60)

        def proven() -> bool:
            found = [*rows(self.inbox, "connected", "dc1"), *rows(self.inbox, "drained", "dc1")]
            return any("heard" in (row.detail or {}) for row in found)

        wait_for(proven, "the loss is proven", 60)

    def lost_by_dc1(self, published: int) -> int:
        """How many of the first messages dc1 has not delivered: some, or nothing was at stake. To be asked at the end,
        when the consumer has written all of its journal."""
        lost = published - len(delivered(self.inbox, "dc1") & set(range(1, published + 1)))
        assert lost >= QUEUED // 2
        return lost

    def judge(self) -> Report:
        self.producer.close()
        journals = self.place / "evidence" / "journals"
        for path in (self.outbox, self.inbox):
            export_file(path, journals)
        return check_directory(self.place / "evidence", Expect(groups={"t": ["g"]}, producers=["p"]))


@pytest.fixture(params=["rabbitmq", "mosquitto"])
def broker(
    request: pytest.FixtureRequest,
    make_rabbit: Callable[..., RabbitNode],
    make_mosquitto: Callable[..., Mosquitto],
) -> Broker:
    return make_rabbit() if request.param == "rabbitmq" else make_mosquitto()


@pytest.mark.integrations
@pytest.mark.timeout(300)
def test_what_was_queued_while_no_consumer_ran_is_counted_exactly(tmp_path: Path, broker: Broker) -> None:
    with MemoryNetwork("dc2") as network:
        run = Run(tmp_path, broker, network)
        with run.consumer() as consumer:
            run.publish(BEFORE)
            run.take(consumer, BEFORE)
            wait_for(lambda: len(delivered(run.inbox, "dc1")) == BEFORE, "dc1 has delivered them", 30)
            time.sleep(1.0)  # acknowledgements reach the broker
        run.publish(QUEUED)
        wait_for(lambda: run.queued() == QUEUED, "the broker counts them", 30)
        run.lose()
        with run.consumer() as consumer:
            run.wait_for_announcement(consumer, BEFORE + QUEUED)
            run.wait_for_attempt(consumer)
            broker.start()
            run.take(consumer, QUEUED)
            run.wait_for_proof(consumer)
        report = run.judge()
    assert report.verdict == "complete", report.findings
    assert report.sites["dc1"].lost_after_confirm == QUEUED
    assert report.sites["dc2"].lost_after_confirm == 0
    assert report.messages.saved_by_second_site == QUEUED


@pytest.mark.integrations
@pytest.mark.timeout(300)
def test_what_a_running_consumer_had_not_received_is_counted(tmp_path: Path, broker: Broker) -> None:
    """The application takes nothing meanwhile, so dc1 delivers only what the inbox and its window have room for."""
    with MemoryNetwork("dc2") as network:
        run = Run(tmp_path, broker, network)
        with run.consumer() as consumer:
            run.publish(BEFORE + QUEUED)
            run.lose()
            run.wait_for_announcement(consumer, BEFORE + QUEUED)
            run.wait_for_attempt(consumer)
            broker.start()
            run.take(consumer, BEFORE + QUEUED)
            run.wait_for_proof(consumer)
            run.publish(BEFORE)
            run.take(consumer, BEFORE)
            last = BEFORE + QUEUED + BEFORE
            wait_for(lambda: last in delivered(run.inbox, "dc1"), "dc1 delivers again", 30)
        lost = run.lost_by_dc1(BEFORE + QUEUED)
        report = run.judge()
    assert report.verdict == "complete", report.findings
    assert report.sites["dc1"].lost_after_confirm == lost
    assert report.messages.saved_by_second_site == lost


@pytest.mark.integrations
@pytest.mark.timeout(300)
def test_of_a_single_site_what_was_announced_before_is_counted(tmp_path: Path, broker: Broker) -> None:
    """While it is away nothing can be announced. What it had lost is repaired from the outbox."""
    run = Run(tmp_path, broker, None)
    with run.consumer() as consumer:
        run.publish(BEFORE + QUEUED)
        run.wait_for_announcement(consumer, BEFORE + QUEUED)
        run.lose()
        wait_for(lambda: consumer.status().sites["dc1"].state != "connected", "dc1 is missed", 30)
        broker.start()
        run.take(consumer, BEFORE + QUEUED)
        run.wait_for_proof(consumer)
    lost = run.lost_by_dc1(BEFORE + QUEUED)
    report = run.judge()
    assert report.verdict == "complete", report.findings
    assert report.sites["dc1"].lost_after_confirm == lost
    assert report.messages.saved_by_repair == lost
