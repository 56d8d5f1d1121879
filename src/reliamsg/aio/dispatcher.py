"""``Consumer.run()``: handlers in tasks, one message or batch of a stream at a time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from reliamsg.aio.loop import Changed
from reliamsg.arguments import NotRun
from reliamsg.consumer.api import NonBlocking
from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.dead_letters import LateItem, ReplayItem
from reliamsg.consumer.deliveries import GapItem
from reliamsg.consumer.dispatcher import LOOK_EVERY_S, TURN_MESSAGES, TURN_S, Batch, record_failure
from reliamsg.logs import Log
from reliamsg.message import Message
from reliamsg.runtime.environment import no_probe

__all__ = ["Dispatcher"]

log: Log = Log("reliamsg.consumer")


class Dispatcher:
    """Runs a coroutine function until the application stops it, or an error is to be raised.

    One coroutine takes what there is, and starts a task for each run of messages of a stream. So however many streams
    wait, one look at the engine finds the next.
    """

    def __init__(
        self,
        parts: NonBlocking,
        changed: Changed,
        handler: Callable[[Any], Awaitable[object]],
        batch: int | None,
    ) -> None:
        self._shared, self._deliveries = parts.engine.shared, parts.engine.deliveries
        self._decisions = parts.decisions
        self._changed, self._handler, self._batch = changed, handler, batch
        self._raised: BaseException | None = None
        self._stopped = False
        self._tasks: dict[asyncio.Task[None], DeliverySlice | ReplayItem | None] = {}
        """With what they were started for, until they run: a task that is cancelled before that never does."""

    def stop(self) -> None:
        """Start no further handler."""
        self._stopped = True
        self._changed.notify()

    async def run(self, concurrency: int) -> None:
        """Handle messages until stopped. Raises what a consumer's iteration would raise, once running handlers have
        returned. If this is cancelled, so are they, and their messages come again."""
        try:
            try:
                await self._start_tasks(asyncio.Semaphore(concurrency))
            except Exception as error:  # noqa: BLE001  (raised below, once handlers have returned)
                self._raised = self._raised or error
            await self.join()
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            await self.join()
            raise
        ended_by = self._raised or self._shared.health.fatal
        if ended_by is not None:
            raise ended_by

    async def join(self, timeout: float | None = None, caller: asyncio.Task[Any] | None = None) -> None:
        """Wait until no handler runs any more, except one in the task `caller`; at most `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while others := self._tasks.keys() - {caller}:
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return
            await asyncio.wait(others, timeout=left)

    async def _start_tasks(self, slots: asyncio.Semaphore) -> None:
        while not self._over:
            await slots.acquire()
            item = await self._next()
            if item is None:
                return
            task = asyncio.create_task(self._deal_with(item))
            self._tasks[task] = item
            task.add_done_callback(partial(self._ended, slots))

    def _ended(self, slots: asyncio.Semaphore, task: asyncio.Task[None]) -> None:
        item = self._tasks.pop(task)
        if item is not None:
            self._shared.uninterrupted(partial(self._deliveries.give_back, item))
        slots.release()
        if not task.cancelled() and task.exception() is not None and self._raised is None:
            self._raised = task.exception()
            self._changed.notify()

    @property
    def _over(self) -> bool:
        return self._raised is not None or self._stopped or self._shared.health.fatal is not None

    async def _next(self) -> DeliverySlice | ReplayItem | None:
        """The next item that needs a handler; None at the end."""
        deliveries, shared = self._deliveries, self._shared
        take = partial(deliveries.take, self._batch or 1, self._batch or TURN_MESSAGES)
        while not self._over:
            seen = self._changed.count
            item = shared.uninterrupted(take) if deliveries.may_take else None
            if item is None:
                await self._changed.wait(seen, LOOK_EVERY_S)
            elif isinstance(item, GapItem):
                self._decisions.decide(item, deliveries)
            elif isinstance(item, LateItem):
                try:
                    self._decisions.show_late(item)
                finally:
                    shared.uninterrupted(partial(deliveries.give_back, item))
            else:
                return item
        return None

    async def _deal_with(self, item: DeliverySlice | ReplayItem) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        if isinstance(item, ReplayItem):
            message = item.message
            if await self._handle([message], message if self._batch is None else [message]):
                message.ack()
        elif self._batch is None:
            await self._handle_slice(item)
        else:
            await self._handle_batch(item, self._batch)

    async def _handle_slice(self, portion: DeliverySlice) -> None:
        clock = self._shared.clock
        until = clock() + TURN_S
        buffer = portion.buffer
        try:
            while not self._over:
                message = portion.next() if self._shared.role.holds else None
                if message is None or not await self._handle([message], message):
                    break
                buffer.acknowledge(message, False)
                if clock() > until:
                    break
        finally:
            self._shared.uninterrupted(partial(self._deliveries.release, portion))

    async def _handle_batch(self, portion: DeliverySlice, most: int) -> None:
        batch = Batch(self._shared, self._deliveries, portion)
        try:
            batch.gather(most)
            if batch.messages and await self._handle(batch.messages, batch.messages):
                batch.acknowledge()
        finally:
            batch.release()

    async def _handle(self, messages: list[Message], argument: Message | list[Message]) -> bool:
        """Run the handler; a failure is recorded. If this task is cancelled, the handler has not failed: its messages
        come again."""
        try:
            awaited = self._handler(argument)
            if not inspect.isawaitable(awaited):
                raise NotRun("the handler must be a coroutine function: async def handle(message)")
            await awaited
        except NotRun as mistake:
            self._failed(messages, mistake)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._failed(messages, NotRun("cancelled"), report=False)
                raise
            self._warn(messages, error)  # the handler awaited something that was cancelled
        except Exception as error:  # noqa: BLE001  (any of the application's own)
            self._warn(messages, error)
        except BaseException as error:
            self._failed(messages, error)
            raise
        else:
            if self._deliveries.probe is not no_probe:
                self._deliveries.probe("handled")
            return True
        return False

    def _warn(self, messages: list[Message], error: BaseException) -> None:
        log.warning(
            "consumer.handler_failed", "handling %(message_id)s failed: %(error)s: %(reason)s",
            group=self._shared.group, message_id=str(messages[0].id), messages=len(messages),
            error=type(error).__name__, reason=str(error),
        )  # fmt: skip
        self._failed(messages, error)

    def _failed(self, messages: list[Message], error: BaseException, *, report: bool = True) -> None:
        record = partial(record_failure, self._shared, messages, error, report=report)
        self._shared.uninterrupted(record)
