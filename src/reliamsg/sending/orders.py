"""What other threads want to have done by the writer, which alone uses the outbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from reliamsg.errors import ConfigError, FatalError
from reliamsg.runtime.wakeup import Waiters

__all__ = ["Orders"]

T = TypeVar("T")


class _Order:
    """A call, and what came of it."""

    __slots__ = ("call", "done", "error", "result", "waiters")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.waiters = Waiters()

    def carry_out(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was given
            self.error = error
        self._finish()

    def refuse(self, error: BaseException) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.waiters.notify_all()


class Orders:
    """A queue of calls. Any thread gives them, the writer carries them out, in order. Without a lock: whoever gives one
    may be interrupted at any point, and then does not know whether it was, or will be, carried out."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[_Order] = deque()
        self._refusal: BaseException | None = None

    def give(self, call: Callable[[], T]) -> T:
        """Have `call` made by the writer, and return or raise what it does."""
        order = _Order(call)
        self._waiting.append(order)
        if self._refusal is not None:  # looked at afterwards: whoever refuses sets it first
            raise self._refusal
        self._wake()
        order.waiters.wait(lambda: order.done, None)
        if order.error is not None:
            raise order.error
        result: T = order.result
        return result

    def carry_out(self) -> FatalError | None:
        """Make all calls that wait, up to one after which there must be no other: returns why."""
        while self._waiting:
            order = self._waiting.popleft()
            order.carry_out()
            if isinstance(order.error, FatalError) and not isinstance(order.error, ConfigError):
                return order.error
        return None

    def refuse(self, error: BaseException) -> None:
        """Nothing more is carried out: whoever waits gets `error`."""
        self._refusal = error
        while self._waiting:
            self._waiting.popleft().refuse(error)

    @property
    def empty(self) -> bool:
        return not self._waiting
