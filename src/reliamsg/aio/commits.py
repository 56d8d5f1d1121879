"""Tasks that wait for room in the outbox, for its transactions, and for sites."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import islice

from reliamsg.aio.loop import LoopCalls
from reliamsg.errors import ConfirmTimeout
from reliamsg.producer.commit import Commit, Content
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.receipt import Receipt, batches_of, watch
from reliamsg.runtime.wakeup import Waiters

__all__ = ["Commits", "Confirms", "Room"]


WOKEN_AT_ONCE = 50
"""The most tasks that are woken in one turn of the loop: each may publish its next message in the next turn."""


class Room:
    """Accepts messages in the order in which tasks publish them, also while the outbox is full."""

    def __init__(self, calls: LoopCalls, engine: ProducerEngine, room: Waiters, block_timeout: float) -> None:
        """`room`: notified, on any thread, when there may be room."""
        self._calls = calls
        self._accumulator, self._max_bytes = engine.accumulator, engine.admission.max_bytes
        self._block_timeout = block_timeout
        self._waiting: deque[tuple[Content, asyncio.Future[Receipt]]] = deque()
        room.listen(self._notified)

    async def accept(self, content: Content) -> Receipt:
        """Wait for room, at most as long as the producer was told to, and accept messages. If this is cancelled before
        they are accepted, they are not."""
        receipt = None if self._waiting else self._accumulator.accept_now(content)
        if receipt is not None:
            return receipt
        if not self._block_timeout or content.size > self._max_bytes:
            return self._accumulator.accept(content)  # says why there is no room
        future: asyncio.Future[Receipt] = self._calls.loop.create_future()
        timer = self._calls.loop.call_later(self._block_timeout, _expire, future)
        self._waiting.append((content, future))
        self._look()  # there may be room since the first look
        try:
            return await future
        except TimeoutError:
            return self._accumulator.accept(content)
        finally:
            timer.cancel()
            self._look()  # if this was the first, and did not fit, the next one may

    def _notified(self) -> None:
        if self._waiting:
            self._calls.put(self._look)

    def _look(self) -> None:
        """Accept for those that wait, as long as there is room for the first of them."""
        while self._waiting:
            content, future = self._waiting[0]
            if not future.done():
                try:
                    receipt = self._accumulator.accept_now(content)
                except BaseException as error:  # noqa: BLE001  (raised in the task)
                    future.set_exception(error)
                else:
                    if receipt is None:
                        return
                    future.set_result(receipt)
            self._waiting.popleft()


def _expire(future: asyncio.Future[Receipt]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class _Together:
    """Tasks that wait for the same thing. However many do, it is one call to the loop's thread. They are woken in
    portions, between which the loop runs whatever else is ready."""

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls
        self._waiting: dict[Hashable, list[asyncio.Future[None]]] = {}

    async def wait(self, key: Hashable, listen: Callable[[Callable[[], None]], bool]) -> bool:
        """Wait for `key`. The first task that does calls `listen` with what is to be called, on any thread, when it
        happens. False, at once, if `listen` returns False: it has happened."""
        futures = self._waiting.get(key)
        if futures is None:
            if not listen(partial(self._calls.put, partial(self._happened, key))):
                return False
            futures = self._waiting[key] = []
        future: asyncio.Future[None] = self._calls.loop.create_future()
        futures.append(future)
        await future
        return True

    def _happened(self, key: Hashable) -> None:
        self._wake(iter(self._waiting.pop(key, ())))

    def _wake(self, futures: Iterator[asyncio.Future[None]]) -> None:
        portion = list(islice(futures, WOKEN_AT_ONCE))
        for future in portion:
            if not future.done():
                future.set_result(None)
        if len(portion) == WOKEN_AT_ONCE:
            self._calls.loop.call_soon(self._wake, futures)


class Commits:
    """Tasks that wait for a transaction."""

    def __init__(self, calls: LoopCalls) -> None:
        self._together = _Together(calls)

    async def wait_durable(self, commit: Commit) -> None:
        """Wait until it has succeeded; raises its error."""

        def listen(ended: Callable[[], None]) -> bool:
            commit.waiters.listen(ended)
            return not commit.done  # perhaps before the listener was there

        if not commit.done:
            await self._together.wait(commit, listen)
        if commit.error is not None:
            raise commit.error


class Confirms:
    """Tasks that wait until sites have confirmed; together, where their messages are in the same batches."""

    def __init__(self, calls: LoopCalls) -> None:
        self._together = _Together(calls)

    async def wait(self, receipt: Receipt) -> None:
        """Wait until the messages of `receipt`, which are durable, are confirmed; raises what its ``wait()`` does."""
        key = receipt.commit, batches_of(receipt)
        while await self._together.wait(key, partial(watch, receipt)):
            # Perhaps only a part of the batches is confirmed, or messages of others were removed.
            with contextlib.suppress(ConfirmTimeout):
                receipt.wait(0.0)
                return
        receipt.wait(0.0)
