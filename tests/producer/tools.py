"""What the tests of producers share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reliamsg import Producer
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.transport.base import Binding, Delivery
from reliamsg.wire.data import Frame, open_frame
from reliamsg.wire.plain import decode_plain, is_plain
from tests import patience
from tests.silent import SilentReceiver

GROUPS = {"orders": ["g"], "other": ["g"]}
wait_for = patience.wait_for


def producer(network: MemoryNetwork, path: Path, **options: Any) -> Producer:
    """A producer at all sites of `network`."""
    options.setdefault("groups", GROUPS)
    options.setdefault("hello_timeout", 0.0)  # nobody would answer
    return Producer(
        options.pop("producer_id", "p"), options.pop("sites", network.sites), outbox=path,
        **options,
    )  # fmt: skip


class Reader(SilentReceiver):
    """Reads what one site holds for the group, in the site's own order, duplicates included."""

    def __init__(
        self, network: MemoryNetwork, site: str, topics: Iterable[str] = tuple(GROUPS), group: str = "g"
    ) -> None:
        self.frames: list[Frame] = []
        self.raw: list[Delivery] = []
        bindings = [Binding(topic, 0, group) for topic in topics]
        where = next(s for s in network.sites if s.name == site)
        self._transport = factory.open_receiver(where, bindings, self)
        self._transport.start()

    def bodies(self, topic: str = "orders") -> list[bytes]:
        """Bodies in the order of arrival; of a sequence number that came before, only the first."""
        seen: set[tuple[int, int]] = set()
        found = []
        for frame in list(self.frames):
            envelope = frame.envelope
            if envelope.topic != topic:
                continue
            for number, body in enumerate(frame.records().bodies, envelope.seq):
                if (envelope.epoch, number) not in seen:
                    seen.add((envelope.epoch, number))
                    found.append(body)
        return found

    def close(self) -> None:
        self._transport.close(5.0)

    def received(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.raw.append(delivery)
            found = (
                decode_plain(delivery.body, delivery.headers)
                if is_plain(delivery.headers)
                else open_frame(delivery.body)
            )
            self.frames.append(found)
            self._transport.acknowledge([delivery.token])


def journal(path: Path, kind: str | None = None) -> list[JournalRow]:
    """The journal of an outbox or inbox, or its rows of one kind."""
    connection = open_readonly(path)
    try:
        return [row for row in read_journal(connection) if kind in (None, row.kind)]
    finally:
        connection.close()


def numbers(first: int, last: int) -> list[bytes]:
    """The bodies that tell numbers `first` to `last`."""
    return [b"%d" % number for number in range(first, last + 1)]
