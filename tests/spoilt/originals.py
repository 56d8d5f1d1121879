"""Journals of real clients: two producers and two groups at two sites, each opened several times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from reliamsg import Consumer, Producer
from reliamsg.config import JournalExport
from reliamsg.testing import MemoryNetwork
from tests.patience import wait_for
from tests.spoilt.reader import Files, read_files

__all__ = ["GROUPS", "PRODUCERS", "SITES", "TOPIC", "finished", "running"]

PRODUCERS, GROUPS, SITES, TOPIC = ("east", "west"), ("archive", "billing"), ("dc1", "dc2"), "orders"


class _Run:
    def __init__(self, place: Path) -> None:
        self._place = place
        self._journal = JournalExport(place / "journals", interval=0.1, segment_rows=12)
        self._network = MemoryNetwork(*SITES)
        self._sent = 0

    def producer(self, name: str) -> Producer:
        return Producer(
            name, self._network.sites, outbox=self._place / f"{name}.db", groups={TOPIC: GROUPS}, journal=self._journal
        )  # fmt: skip

    def consumer(self, name: str) -> Consumer:
        return Consumer(
            name, self._network.sites, topics=[TOPIC], inbox=self._place / f"{name}.db", journal=self._journal
        )  # fmt: skip

    def send(self, producers: list[Producer], consumers: list[Consumer], each: int) -> None:
        """Publish some messages with each producer; they are confirmed, received from all sites, acknowledged, and in
        exported rows, which grow no more."""
        for producer in producers:
            for _ in range(each):
                producer.publish(TOPIC, b"message %d" % self._sent)
                self._sent += 1
        for consumer in consumers:
            for _ in range(each * len(producers)):
                message = consumer.get(60)
                assert message is not None
                message.ack(durable=True)
        for producer in producers:
            producer.flush(60)
        wait_for(
            lambda: not any(self._network[site].queued() for site in SITES), "everything is received from all sites", 60
        )  # fmt: skip
        clients: list[Producer | Consumer] = [*producers, *consumers]
        wait_for(lambda: all(_is_exported(each) for each in clients), "all rows are exported", 60)

    def journals(self) -> Files:
        return read_files(self._place / "journals")


def _is_exported(client: Producer | Consumer) -> bool:
    journal = client.status().journal
    assert journal is not None
    return journal.backlog_rows == 0


def _whole_run(run: _Run, at_the_end: Callable[[], None]) -> None:
    """Two openings of everything, and three of one producer. `at_the_end`: before the last are closed."""
    for number in range(2):
        with ExitStack() as opened:
            consumers = [opened.enter_context(run.consumer(name)) for name in GROUPS]
            east = run.producer("east")
            west = opened.enter_context(run.producer("west"))
            run.send([east, west], consumers, 6)
            if not number:
                east.close()
                east = run.producer("east")
                run.send([east], consumers, 4)
            run.send([east, west], consumers, 3)
            opened.enter_context(east)
            if number:
                at_the_end()


def finished(place: Path) -> Files:
    """A run without any fault, in which every client was closed."""
    run = _Run(place)
    _whole_run(run, lambda: None)
    return run.journals()


def running(place: Path) -> Files:
    """A run without any fault that goes on: everything has been acknowledged, and every row exported."""
    run = _Run(place)
    found: list[Files] = []

    def settled() -> Iterator[Files]:
        before = None
        while (now := run.journals()) != before:
            before = now
            time.sleep(0.5)
        yield now

    _whole_run(run, lambda: found.extend(settled()))
    return found[0]
