"""Calls that other threads have the writer make, which alone uses the outbox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from reliamsg.errors import ConfigError, FatalError
from reliamsg.runtime.wakeup import Waiters

__all__ = ["WriterCommands"]

T = TypeVar("T")


class _Command:
    """A call, and its outcome."""

    __slots__ = ("call", "done", "error", "result", "waiters")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.waiters = Waiters()

    def execute(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.error = error
        self._finish()

    def refuse(self, error: BaseException) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.waiters.notify_all()


class WriterCommands:
    """A queue of calls. Any thread may add one; the writer makes them in order. There is no lock: a caller that is
    interrupted does not know whether its call was, or will be, made."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.waiting: deque[_Command] = deque()
        self._refusal: BaseException | None = None

    def run(self, call: Callable[[], T]) -> T:
        """Have the writer make `call`; returns or raises its outcome."""
        command = _Command(call)
        self.waiting.append(command)
        if self._refusal is not None:  # checked afterwards: `refuse` sets it first
            raise self._refusal
        self._wake()
        command.waiters.wait(lambda: command.done, None)
        if command.error is not None:
            raise command.error
        result: T = command.result
        return result

    def execute(self) -> FatalError | None:
        """Make all calls that wait, up to one whose error forbids any other; returns that error."""
        while self.waiting:
            command = self.waiting.popleft()
            command.execute()
            if isinstance(command.error, FatalError) and not isinstance(command.error, ConfigError):
                return command.error
        return None

    def refuse(self, error: BaseException) -> None:
        """No further call is made: threads that wait get `error`."""
        self._refusal = error
        while self.waiting:
            self.waiting.popleft().refuse(error)
