"""Counters agree with the journals, whatever happened."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path

from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome
from tests.metrics.tools import Scrape, Scraper, consumer, producer
from tests.patience import patient, wait_for

WAIT = patient(30)
STEPS = 120


def test_a_random_run(seeded: random.Random, tmp_path: Path) -> None:
    """The rows of both files are the whole truth: metrics must not add to it."""
    scrape = Scraper()
    with MemoryNetwork("dc1", "dc2", seed=seeded.randrange(2**32)) as network:
        sender = producer(network, tmp_path / "outbox.db", release="consumed", status_interval=0.05)
        reader = consumer(network, tmp_path / "inbox.db", repair_delay=0.05, max_deliveries=3)
        scrape.collector.observe(sender, reader)
        before = rows_of(tmp_path)  # both had opened before they were observed
        published = settled = 0
        for _ in range(STEPS):
            site = network[seeded.choice(("dc1", "dc2"))]
            fault = seeded.choice(("none",) * 6 + ("duplicate", "lose", "cut", "refuse", "accept"))
            if fault == "duplicate":
                site.duplicate(seeded.randint(1, 3))
            elif fault == "lose":
                site.lose(1)
            elif fault == "cut":
                site.cut()
            elif fault == "refuse":
                site.refuse("orders", seeded.choice(list(Outcome)))
            elif fault == "accept":
                site.accept("orders")
            number = seeded.randint(1, 5)
            sender.publish_many("orders", [b"x"] * number)
            published += number
            while (message := reader.get(0.0)) is not None:
                if seeded.random() < 0.9:
                    message.ack()
                    settled += 1
                elif seeded.random() < 0.5:
                    message.reject()
                    settled += 1
                else:
                    message._settler.failed(message, ValueError("again"))
        for name in ("dc1", "dc2"):
            network[name].accept("orders")
        while (message := reader.get(0.0)) is not None or not all_settled(scrape(), published):
            if message is None:
                message = reader.get(0.05)
            if message is not None:
                message.ack()
        wait_for(lambda: not sender.pending(), "everything is published")
        reader.close()
        sender.close(WAIT)
        found, rows = scrape(), rows_of(tmp_path)
    rows.subtract(before)
    check(found, rows)
    assert found("enqueued_total") == published


def all_settled(scrape: Scrape, published: int) -> bool:
    return scrape("acknowledged_total") + scrape("dead_lettered_total") >= published


def rows_of(place: Path) -> Counter[tuple[str, str]]:
    """The messages of all rows by kind and site, with ``:repair`` where they are repairs; rows without a range count as
    one."""
    found: Counter[tuple[str, str]] = Counter()
    for name in ("outbox.db", "inbox.db"):
        with closing(open_readonly(place / name)) as connection:
            for row in read_journal(connection):
                found[kind_of(row), row.site] += row.last - row.first + 1 if row.last else 1
    return found


def kind_of(row: JournalRow) -> str:
    return "repair" if row.kind == "received" and row.reason == "repair" else row.kind


def check(scrape: Scrape, rows: Counter[tuple[str, str]]) -> None:
    for name, kind in {
        "enqueued": "enqueued", "policy_met": "published", "delivered": "delivered", "redelivered": "redelivered",
        "acknowledged": "acknowledged", "dead_lettered": "dead_lettered", "asked": "asked", "late": "late",
    }.items():  # fmt: skip
        assert scrape(f"{name}_total") == rows[kind, ""], name
    for site in ("dc1", "dc2"):
        for result in ("confirmed", "nacked", "returned", "refused"):
            assert scrape("published_total", site=site, result=result) == rows[result, site], (site, result)
        for name, kind in {
            "received": "received", "repairs_received": "repair", "duplicates": "duplicate", "repaired": "repaired",
        }.items():  # fmt: skip
            assert scrape(f"{name}_total", site=site) == rows[kind, site], (site, name)
    assert rows["duplicate", "dc1"] + rows["duplicate", "dc2"] > 0, "the run has shown nothing"
