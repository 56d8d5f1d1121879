"""A producer's side of the control plane for tests: it tells what it is told to tell, and keeps what it hears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reliamsg.config import Site
from reliamsg.message import Prev
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.wire.address import call_address, group_address, producer_address, status_address
from reliamsg.wire.control import (
    VERSION,
    ChainEpoch,
    State,
    Status,
    StreamState,
    StreamStatus,
    encode_status,
    open_control,
)
from tests.consumer.tools import GROUP, TOPIC, Bench, frame
from tests.silent import SilentSender


class Ear(SilentSender):
    """Connected to one site; keeps what is heard there."""

    def __init__(self, network: MemoryNetwork, site: Site, name: str, addresses: Sequence[str]) -> None:
        self.heard_frames: list[tuple[str, bytes]] = []
        self.transport = factory.open_sender(site, name, (), self)
        self.transport.listen(addresses)
        self.transport.start()

    def control_received(self, address: str, body: bytes) -> None:
        self.heard_frames.append((address, body))


class FakeProducer:
    """Says and hears at all sites of a bench."""

    def __init__(self, bench: Bench, name: str = "p", *, epoch: int = 10, incarnation: int = 77) -> None:
        self.bench = bench
        self.name = name
        self.epoch = epoch
        self.incarnation = incarnation
        self.number = 0
        addresses = [producer_address(name), call_address(TOPIC), group_address(GROUP)]
        self.ears = {site.name: Ear(bench.network, site, name, addresses) for site in bench.network.sites}
        bench.network.run_pending()

    def tell(self, address: str, body: bytes, site: str | None = None) -> None:
        for name, ear in self.ears.items():
            if site in (None, name):
                ear.transport.send_control(address, body)
        self.bench.network.run_pending()

    def status(
        self,
        *chain: tuple[int, int] | tuple[int, int, int, int],
        to: str | None = None,
        site: str | None = None,
        **fields: Any,
    ) -> None:
        """Tell a status of the one stream: (first held, last) of the present epoch, or whole chain entries."""
        self.number += 1
        links = [
            ChainEpoch(*link) if len(link) == 4 else ChainEpoch(self.epoch, self.incarnation, *link)
            for link in chain
        ]
        stream = StreamStatus(
            TOPIC, 0, links, fields.pop("removed", []), fields.pop("since", {GROUP: (self.epoch, 1)})
        )
        to = to or status_address(TOPIC)
        status = Status(
            VERSION, self.name, self.epoch, self.incarnation, self.number, fields.pop("lsn", 1), 1,
            fields.pop("interval_ms", 1_000), fields.pop("consumed", True), to, [stream] if links else [],
            fields.pop("heard", None), fields.pop("nonces", []),
        )  # fmt: skip
        assert not fields
        for body in encode_status(status):
            self.tell(to, body, site)

    def repair(self, first: int, last: int, *, site: str | None = None, prev: Prev | None = None) -> None:
        """Send numbers again, to the group alone."""
        body = frame(
            first, last, epoch=self.epoch, incarnation=self.incarnation, prev=prev, producer=self.name
        )
        self.tell(group_address(GROUP), body, site)

    def states(self, role: str = "active", to: str | None = None) -> list[State]:
        """What was heard so far, at the producer's own address unless told otherwise; it is forgotten."""
        found: list[State] = []
        to = to or producer_address(self.name)
        for ear in self.ears.values():
            kept = []
            for address, body in ear.heard_frames:
                what = open_control(body, address) if body[:3] == b"RMC" else None
                if address == to and isinstance(what, State) and what.role == role:
                    found.append(what)
                else:
                    kept.append((address, body))
            ear.heard_frames[:] = kept
        return sorted(found, key=lambda state: state.number)

    def streams(self) -> list[StreamState]:
        """The stream states heard at the producer's own address, in order."""
        return [stream for state in self.states() for stream in state.streams]

    def heartbeats(self) -> list[State]:
        to = group_address(GROUP)
        both = self.states("active", to) + self.states("standby", to)
        return sorted((b for b in both if not b.producer), key=lambda state: state.number)


def rows(bench: Bench, *kinds: str) -> list[JournalRow]:
    """What the inbox's journal holds of some kinds."""
    connection = open_readonly(bench.path)
    try:
        return [row for row in read_journal(connection) if row.kind in kinds]
    finally:
        connection.close()
