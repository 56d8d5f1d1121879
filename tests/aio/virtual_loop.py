"""An event loop in simulated time: the calls of one simulated process decide when it runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, ClassVar

from reliamsg.simulation.executor import Executor

__all__ = ["VirtualLoop"]

_Loop: Any = asyncio.AbstractEventLoop
"""Its types name more than a hundred methods, nearly all of them about sockets and processes."""


class VirtualLoop(_Loop):  # type: ignore[misc]
    """Runs in turns, as other threads of the process let it: each turn makes the calls that were ready when it began.

    The process may terminate in any turn. Nothing of the loop runs after that, and its tasks stay as they are, as those
    of a process that was killed: Python would run their ``finally`` if it deleted them.
    """

    _tasks: ClassVar[list[asyncio.Task[Any]]] = []
    """Of all loops."""

    def __init__(self, executor: Executor, on_error: Callable[[BaseException], object]) -> None:
        """`on_error`: called with everything that would reach the loop's exception handler."""
        self._executor, self._on_error = executor, on_error
        self._life = executor.life
        self._ready: deque[asyncio.Handle] = deque()
        self._after_call: list[Callable[[], object]] = []
        self._scheduled = False

    @property
    def alive(self) -> bool:
        """Whether the process is the one in which the loop was made."""
        return self._executor.alive and self._executor.life == self._life

    def after_this_call(self, callback: Callable[[], object]) -> None:
        """Call `callback` at once after what runs now, unless the process terminates in it."""
        self._after_call.append(callback)

    def drain(self) -> None:
        """Make calls until none is ready, whatever the time."""
        while self._ready:
            self._turn()

    @classmethod
    def forget_all(cls) -> None:
        """The run is over, and judged: delete all tasks."""
        for task in cls._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                with contextlib.suppress(BaseException):  # whatever their `finally` does without a loop
                    coroutine.close()
        cls._tasks.clear()

    def cancel_all(self) -> None:
        """Cancel every task but the one that runs, as :func:`asyncio.run` does in the end."""
        for task in self._tasks:
            if task.get_loop() is self and task is not asyncio.current_task():
                task.cancel()

    # -- what asyncio calls ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._executor.now()

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.alive

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._schedule()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._executor.after(max(0.0, when - self.time()), self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is to be done: it is looked at when it is due."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self._on_error(context.get("exception") or RuntimeError(context["message"]))

    # -- turns ----------------------------------------------------------------------------------------------

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self.alive:
            self._scheduled = True
            self._executor.after(self._executor.wake_delay(), self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if not self.alive:
                    self._ready.clear()
                    return
                while self._after_call:
                    self._after_call.pop()()
        finally:
            asyncio._set_running_loop(None)
        if self._ready:
            self._schedule()
