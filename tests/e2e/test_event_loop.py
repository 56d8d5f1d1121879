"""Both engines on a bare event loop, which must never block.

The blocking producer and consumer are shells around the engines; here asyncio replaces them. One thread makes all
steps, publishes and handles. The sites' brokers are in memory, and report on their own threads, as real transports do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.engine import ConsumerEngine, EngineSettings
from reliamsg.message import Message
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.receipt import Receipt
from reliamsg.producer.settings import Settings
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.wakeup import Waiters, Wakeup
from reliamsg.store.inbox import Inbox
from reliamsg.store.outbox import Outbox
from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory

MESSAGES = 500
PATIENCE_S = 60.0


class Driver:
    """Calls an engine's ``step()`` from the event loop when it is due, and when it is woken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._step: Callable[[], float | None] = lambda: None
        self._after: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._ended = False

    def start(self, step: Callable[[], float | None], after: Callable[[], None]) -> None:
        """`after` is the application: called after each step."""
        self._step, self._after = step, after
        self.wake()

    def wake(self) -> None:
        """See :class:`~reliamsg.runtime.environment.Waker`. Called on any thread."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon_threadsafe(self._run)

    def end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        self._is_due = False
        if self._ended:
            return
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._step()
        self._after()
        if deadline is not None:  # asyncio's clock is the engines', time.monotonic()
            self._timer = self._loop.call_at(deadline, self.wake)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Fail and name any call that waits on this thread."""
    loop_thread = threading.get_ident()
    waited: list[str] = []

    def forbid(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def checked(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == loop_thread and args != (0,):  # sleep(0) does not wait
                waited.append(f"{owner.__name__}.{name}")
                raise AssertionError(f"{waited[-1]} on the thread of the event loop")
            return original(*args, **kwargs)

        patch.setattr(owner, name, checked)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Waiters, "wait"), (Wakeup, "wait"), (time, "sleep"), (threading.Thread, "join")):
            forbid(owner, name)
        yield
    assert waited == []


class Application:
    """Publishes a few messages at a time, and acknowledges deliveries."""

    def __init__(self, engine: ProducerEngine, consumer: ConsumerEngine) -> None:
        self._engine, self._consumer = engine, consumer
        self.receipts: list[Receipt] = []
        self.received: list[Message] = []
        self.done = asyncio.Event()

    def publish(self) -> None:
        """Publish ten more, and all others later."""
        for _ in range(10):
            body = str(len(self.receipts)).encode()
            self.receipts.append(self._engine.accumulator.accept_one("t", body))
        if len(self.receipts) < MESSAGES:
            asyncio.get_running_loop().call_soon(self.publish)

    def take(self) -> None:
        """Handle everything that is available."""
        while (item := self._consumer.deliveries.take(1, 64)) is not None:
            assert isinstance(item, DeliverySlice)
            while (message := item.next()) is not None:
                self.received.append(message)
                message.ack()
            self._consumer.deliveries.release(item)

    def check(self) -> None:
        """Whether everything is consumed, and the producer knows."""
        remaining = self._engine.remaining()
        if len(self.received) >= MESSAGES and remaining.nothing and not remaining.unacknowledged:
            self.done.set()


async def _exchange(network: MemoryNetwork, path: Path) -> Application:
    with nothing_waits():
        engine, consumer, application = await _run(network, path)
    await asyncio.to_thread(_close, engine, consumer)  # disconnecting may take a while
    return application


async def _run(network: MemoryNetwork, path: Path) -> tuple[ProducerEngine, ConsumerEngine, Application]:
    sending, receiving, clock = Driver(), Driver(), Clock()
    outbox = Outbox(path / "p.outbox.db", "p", clock.wall_us(), clock.now_us(), "cc" * 8)
    settings = Settings(release="consumed", status_interval=0.1, hello_timeout=0.1)
    engine = ProducerEngine(
        outbox, network.sites, {"t": ["g"]}, settings, factory, Environment(clock, sending)
    )
    inbox = Inbox(path / "g.inbox.db", "g")
    consumer = ConsumerEngine(
        EngineSettings("g", ("t",)), Rules(), network.sites, inbox, factory, Environment(clock, receiving)
    )
    application = Application(engine, consumer)
    consumer.shared.changed.listen(receiving.wake)
    consumer.start()
    receiving.start(lambda: consumer.step(clock.now()), application.take)
    sending.start(engine.step, application.check)
    for site in engine.sites.values():
        site.transport.start()
    application.publish()
    try:
        await asyncio.wait_for(application.done.wait(), PATIENCE_S)
    finally:
        sending.end()
        receiving.end()
    return engine, consumer, application


def _close(engine: ProducerEngine, consumer: ConsumerEngine) -> None:
    engine.begin_close()
    for site in engine.sites.values():
        site.transport.close(5.0)
    engine.finish()
    now = consumer.shared.clock()
    consumer.flush(now)
    consumer.say_goodbye(now)
    for receiver in consumer.sites.values():
        receiver.close(lambda: 5.0)
    consumer.flush(now, closing=True)
    consumer.shared.health.close()
    consumer.shared.inbox.close()


def test_an_event_loop_can_drive_both_engines(tmp_path: Path) -> None:
    with MemoryNetwork("dc1", "dc2") as network:
        application = asyncio.run(_exchange(network, tmp_path))
    assert [message.body for message in application.received] == [b"%d" % n for n in range(MESSAGES)]
    assert [message.id for message in application.received] == [r.id for r in application.receipts]
    assert all(receipt.done for receipt in application.receipts)


def test_a_wait_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match=r"Wakeup\.wait on the thread"), nothing_waits():
        Wakeup().wait(0.0)
