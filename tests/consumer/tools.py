"""What the tests of the receiving side share: batches as a producer would send them, and an engine without threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.engine import ConsumerEngine, EngineSettings
from reliamsg.message import Message, Prev, Stream
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment
from reliamsg.store.inbox import Inbox
from reliamsg.testing import MemoryBroker, MemoryNetwork
from reliamsg.transport import factory
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode
from tests.patience import wait_for

TOPIC = "orders"
GROUP = "billing"


def body_of(epoch: int, seq: int) -> bytes:
    return f"{epoch}:{seq}".encode()


def frame(
    first: int,
    last: int,
    *,
    epoch: int = 10,
    incarnation: int = 77,
    prev: Prev | None = None,
    producer: str = "p",
    topic: str = TOPIC,
    pad: int = 0,
    moved: bool = False,
    compress: bool = False,
) -> bytes:
    """A batch whose bodies tell their place."""
    bodies = [body_of(epoch, seq) + b"." * pad for seq in range(first, last + 1)]
    return encode(
        Origin(Stream(producer, topic), epoch, incarnation, prev, moved=moved),
        first,
        (1_000_000, 1_000_000),
        Records(bodies),
        compress=compress,
    )


def send(broker: MemoryBroker, first: int, last: int, *, topic: str = TOPIC, **options: Any) -> None:
    """Put a batch into a topic's queues, as if a producer had published it."""
    broker.inject(topic, frame(first, last, topic=topic, **options), content_type=CONTENT_TYPE)


def until(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
    """Wait for a condition, or fail."""
    wait_for(condition, what, timeout)


MOST_AT_ONCE = 1_000
"""An engine that wants to be called again at once so often in a row does not do anything."""


class Bench:
    """An engine between in-memory sites, without threads, under a clock of its own."""

    wall_offset_us = 0
    """How far the wall clock is from it."""

    def __init__(
        self,
        path: Path,
        *,
        sites: tuple[str, ...] = ("dc1", "dc2"),
        network: MemoryNetwork | None = None,
        **rules: Any,
    ) -> None:
        self.path = path
        self.now = 100.0
        self.rules = rules
        self.network = network or MemoryNetwork(*sites, threaded=False)
        self.settings: dict[str, Any] = {}
        self.points: list[str] = []
        self.engine: ConsumerEngine
        self.open()

    def open(self) -> None:
        self.inbox = Inbox(self.path, GROUP)
        self.engine = ConsumerEngine(
            EngineSettings(GROUP, (TOPIC,), **self.settings),
            Rules(**self.rules),
            self.network.sites,
            self.inbox,
            factory,
            Environment(
                Clock(lambda: self.now, lambda: int(self.now * 1e6) + self.wall_offset_us),
                probe=self.points.append,
            ),
        )
        self.engine.start()
        self.settle()

    def settle(self, seconds: float = 0.02) -> None:
        """Let everything happen that happens within `seconds`."""
        end, at_once = self.now + seconds, 0
        while True:
            self.network.run_pending()
            deadline = self.engine.step(self.now)
            if self.engine.standby.gave_up:
                self.engine.standby.close_given_up()
            self.network.run_pending()
            at_once = at_once + 1 if deadline is not None and deadline <= self.now else 0
            assert at_once < MOST_AT_ONCE, "it wants to be called at once, over and over"
            if deadline is not None and deadline <= self.now:
                self.now = min(self.now + 1e-3, end) if self.now < end else self.now + 1e-6
                if self.now > end:
                    return
                continue
            if deadline is None or deadline > end:
                self.now = end
                self.network.run_pending()
                return
            self.now = deadline

    def take(self, most: int = 10**9, *, ack: bool = True) -> list[Message]:
        """Everything that can be handed out, acknowledged unless told otherwise."""
        got: list[Message] = []
        while len(got) < most:
            item = self.engine.deliveries.take(1, min(256, most - len(got)))
            for _ in range(4):  # a commit, and reading from the inbox, may come first
                if item is None:
                    self.settle(0.003)
                    item = self.engine.deliveries.take(1, min(256, most - len(got)))
            if item is None:
                break
            assert isinstance(item, DeliverySlice), item
            while len(got) < most and (message := item.next()) is not None:
                got.append(message)
                if ack:
                    message.ack()
            self.engine.deliveries.release(item)
        self.settle(0.011)
        return got

    def crash(self) -> None:
        """End as SIGKILL would: what is not committed is gone, and brokers see the connections break."""
        for site in self.engine.sites.values():
            site.connections.transport.kill()  # type: ignore[union-attr]
        self.network.run_pending()
        self.inbox.close()

    def close(self) -> None:
        """End cleanly."""
        self.engine.flush(self.now)
        self.network.run_pending()
        for site in self.engine.sites.values():
            assert site.connections.transport is not None
            site.connections.transport.close(1.0)
        self.engine.flush(self.now, closing=True)
        self.inbox.close()

    def reopen(self, *, clean: bool = False) -> None:
        if clean:
            self.close()
        else:
            self.crash()
        self.open()

    def queued(self) -> dict[str, int]:
        return {name: broker.queued() for name, broker in self.network.brokers.items()}


def seqs(messages: list[Message]) -> list[int]:
    return [message.seq for message in messages]
