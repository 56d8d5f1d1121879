"""Tasks that are cancelled anywhere, at random: no message is lost, delivered out of order, or unaccounted for."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Message
from reliamsg.aio import Consumer, Producer, Receipt
from reliamsg.errors import ClosedError, ConfirmTimeout, OutboxFull
from reliamsg.testing import MemoryNetwork
from tests.aio.conftest import Run
from tests.aio.tools import consumer, eventually, producer

MESSAGES = 150
Rng = random.Random


class Publishing:
    """Publishes numbers, and cancels some of the tasks that do."""

    def __init__(self, one: Producer, rng: Rng) -> None:
        self._one, self._rng = one, rng
        self.sure: list[int] = []
        """What was published, in the order of the calls."""
        self.unsure: set[int] = set()
        """What was cancelled or refused: it may have been published or not."""

    async def publish(self) -> None:
        at = 0
        while at < MESSAGES:
            count = self._rng.choice([1, 1, 1, 3, 10])
            group = list(range(at, at + count))
            at += count
            tasks = [asyncio.ensure_future(self._publish(number)) for number in group]
            for _ in range(self._rng.randrange(8)):
                await asyncio.sleep(self._rng.choice([0, 0, 0.0005, 0.002]))
            for task in tasks:
                if self._rng.random() < 0.3:
                    task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for number, each in zip(group, found, strict=True):
                if isinstance(each, asyncio.CancelledError | OutboxFull):
                    self.unsure.add(number)
                elif isinstance(each, BaseException):
                    raise each
                else:
                    self.sure.append(number)

    async def _publish(self, number: int) -> None:
        body = f"{number} ".encode() + bytes(self._rng.choice([0, 0, 500]))
        if self._rng.random() < 0.3:
            receipt = await self._one.publish_many("orders", [body])
        else:
            receipt = await self._one.publish("orders", body)
        if self._rng.random() < 0.3:
            try:
                await receipt
            except asyncio.CancelledError:  # it is published all the same
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()


class Consuming:
    """Consumes in ways that are drawn, each for a while, and cancels some of the tasks that do."""

    def __init__(self, one: Consumer, rng: Rng) -> None:
        self._one, self._rng = one, rng
        self.handled: list[tuple[int, bool]] = []
        """What was handled to the end, and whether it was flagged as redelivered."""
        self._running = 0

    async def consume(self) -> None:
        while True:
            way = self._rng.choice([self._iterate, self._run, self._run_batches, self._gather])
            task = asyncio.ensure_future(way())
            try:
                await asyncio.sleep(self._rng.choice([0, 0.001, 0.01, 0.05]))
            finally:
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            assert not self._running, "no handler outlives its task"

    def _handled(self, message: Message) -> None:
        self.handled.append((int(message.body.split()[0]), message.redelivered))

    async def _iterate(self) -> None:
        async for message in self._one:
            async with message.process():
                await self._work()
                self._handled(message)

    async def _gather(self) -> None:
        async for messages in self._one.batches(self._rng.randrange(1, 20), 0.005):
            for message in messages:
                self._handled(message)
                message.ack()
            if self._rng.random() < 0.3:
                await self._one.acknowledge(messages[-1])

    async def _run(self) -> None:
        async def handle(message: Message) -> None:
            await self._work()
            self._handled(message)

        await self._one.run(handle, concurrency=self._rng.randrange(1, 4))

    async def _run_batches(self) -> None:
        async def handle(messages: list[Message]) -> None:
            await self._work()
            for message in messages:
                self._handled(message)

        await self._one.run(handle, batch=self._rng.randrange(1, 20))

    async def _work(self) -> None:
        self._running += 1
        try:
            await asyncio.sleep(self._rng.choice([0, 0, 0, 0.001, 0.01]))
        finally:
            self._running -= 1


@pytest.mark.parametrize("attempt", range(5))
def test_no_cancellation_loses_or_reorders_messages(
    run: Run[Any], network: MemoryNetwork, outbox: Path, inbox: Path, attempt: int, seeded: Rng
) -> None:
    async def main() -> None:
        rng = seeded
        options = {"max_bytes": rng.choice([3_000, 1 << 20]), "block_timeout": rng.choice([0.01, 60.0])}
        async with (
            producer(network, outbox, **options) as one,
            consumer(network, inbox, max_deliveries=10_000) as two,
        ):
            publishing, consuming = Publishing(one, rng), Consuming(two, rng)
            task = asyncio.ensure_future(consuming.consume())
            await publishing.publish()
            await one.flush(60)

            def missing() -> set[int]:
                assert not task.done(), task
                return set(publishing.sure) - {number for number, _ in consuming.handled}

            await eventually(lambda: not missing(), "everything that was published is handled")
            task.cancel()
            await asyncio.wait([task])
            check(publishing, consuming)

    run(main())


def check(publishing: Publishing, consuming: Consuming) -> None:
    """Each number was handled first in the order of publishing, and again only with the flag."""
    first = dict[int, bool]()
    again = defaultdict(list)
    for number, redelivered in consuming.handled:
        if number in first:
            again[number].append(redelivered)
        else:
            first[number] = redelivered
    order = list(first)
    assert [number for number in order if number not in publishing.unsure] == publishing.sure
    assert set(order) <= set(publishing.sure) | publishing.unsure
    assert order == sorted(order)
    assert all(all(flags) for flags in again.values()), again


@pytest.mark.parametrize("attempt", range(3))
def test_a_producer_that_is_closed_under_its_tasks_leaves_none_waiting(
    run: Run[Any], network: MemoryNetwork, outbox: Path, attempt: int, seeded: Rng
) -> None:
    async def main() -> None:
        rng = seeded
        network["dc1"].hold_confirms()
        one = producer(network, outbox, max_bytes=20_000)
        await one.open()
        called: list[Receipt] = []
        receipts: list[Receipt] = []

        async def use() -> None:
            receipt = await one.publish("orders", bytes(rng.choice([1, 500, 3_000])))
            receipts.append(receipt)
            receipt.add_done_callback(called.append, until="durable")
            receipt.add_done_callback(called.append)
            await receipt.wait(rng.choice([None, 0.01, 60]))

        tasks = [asyncio.ensure_future(use()) for _ in range(40)]
        await asyncio.sleep(rng.choice([0, 0.001, 0.02]))
        await one.close(0)
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert {type(each) for each in found} <= {ClosedError, ConfirmTimeout}
        await eventually(lambda: len(called) == 2 * len(receipts), "every callback is called")

    run(main())
