"""Between an event loop and the threads of a client."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from reliamsg.errors import ConfigError

__all__ = ["Changed", "LoopCalls", "in_thread"]

T = TypeVar("T")


class LoopCalls:
    """Makes calls in an event loop, for other threads. Many calls wake it once. An exception goes to the loop's
    exception handler."""

    def __init__(self) -> None:
        """For the loop that is running."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._calls: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def put(self, call: Callable[[], object]) -> None:
        """Have `call` made in the loop. Does not block; may be called on any thread, with locks held, and in signal
        handlers. Nothing happens once the loop is closed."""
        self._calls.append(call)
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits in it any more
                self.loop.call_soon_threadsafe(self._make)

    def check(self) -> None:
        """Raise :class:`ConfigError` unless this loop is running."""
        if asyncio.get_running_loop() is not self.loop:
            raise ConfigError("this belongs to another event loop: open one in each")

    def _make(self) -> None:
        self._scheduled = False  # first: what is added from now on is scheduled again
        for _ in range(len(self._calls)):
            try:
                self._calls.popleft()()
            except Exception as error:  # noqa: BLE001  (a callback of the application)
                self.loop.call_exception_handler({"message": "a callback raised", "exception": error})


class Changed:
    """Tasks that wait until something has changed. Threads call :meth:`notify`."""

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls
        self._waiting: set[asyncio.Future[None]] = set()
        self._count = 0
        """Of notifications."""

    @property
    def count(self) -> int:
        """Take this before looking at what may change, so that :meth:`wait` misses nothing."""
        return self._count

    def notify(self) -> None:
        """Something may have changed. See :meth:`LoopCalls.put` for where this may be called."""
        self._count += 1  # that two threads may count one step less does not matter: the count is another one
        if self._waiting:
            self._calls.put(self._wake)

    async def wait(self, since: int, timeout: float) -> None:
        """Wait until there was a notification after `since`, at most `timeout` seconds."""
        future: asyncio.Future[None] = self._calls.loop.create_future()
        self._waiting.add(future)
        timer = self._calls.loop.call_later(timeout, _resolve, future)
        try:
            if self._count == since:
                await future
        finally:
            timer.cancel()
            self._waiting.discard(future)

    def _wake(self) -> None:
        for future in self._waiting:
            _resolve(future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def in_thread(function: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Call a function that may block, on a thread of its own, so that it never waits for threads of the application.

    If the task is cancelled meanwhile, the function continues; `undo` is called with its result then, on such a thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def end(result: T | None, error: BaseException | None) -> None:
        if future.done():
            abandon(result, error)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # it has one, if there is no error

    def abandon(result: T | None, error: BaseException | None) -> None:
        if undo is not None and error is None:
            _start(partial(undo, result))  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001  (raised in the task)
            error = raised
        try:
            loop.call_soon_threadsafe(end, result, error)
        except RuntimeError:  # the loop is closed
            abandon(result, error)

    _start(run)
    try:
        return await future
    except asyncio.CancelledError:
        if not future.cancelled():  # it has ended, but the task will not see that
            abandon(None if future.exception() else future.result(), future.exception())
        raise


def _start(function: Callable[[], object]) -> None:
    threading.Thread(target=function, name="reliamsg aio", daemon=True).start()
