"""What other threads want to have done by the writer, which alone uses the outbox."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from reliamsg.errors import ConfigError, FatalError

__all__ = ["Orders"]

T = TypeVar("T")


class Orders:
    """A queue of calls. Any thread gives them, the writer carries them out, in order."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._refusal: BaseException | None = None

    def give(self, call: Callable[[], T]) -> T:
        """Have `call` made by the writer, and return or raise what it does."""
        future: Future[T] = Future()
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._waiting.append((call, future))
        self._wake()
        return future.result()

    def carry_out(self) -> FatalError | None:
        """Make all calls that wait, up to one after which there must be no other: returns why."""
        while self._waiting:
            call, future = self._waiting.popleft()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the call was given
                future.set_exception(error)
                if isinstance(error, FatalError) and not isinstance(error, ConfigError):
                    return error
        return None

    def refuse(self, error: BaseException) -> None:
        """Nothing more is carried out: whoever waits gets `error`."""
        with self._lock:
            self._refusal = error
            waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            future.set_exception(error)

    @property
    def empty(self) -> bool:
        return not self._waiting
