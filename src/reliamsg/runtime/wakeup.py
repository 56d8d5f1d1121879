"""Waking and waiting that survive interruptions.

An application's thread may be interrupted anywhere: by a signal handler, which may call the very method that it
interrupted, or by a ``KeyboardInterrupt``, which abandons it. `threading.Event` and `threading.Condition` are Python
code around a lock, and an interruption inside them leaves that lock taken forever. The classes here consist of single
operations of C: none can be interrupted midway, and none waits for a lock that an interrupted caller may hold.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Uninterrupted", "Waiters", "Wakeup", "can_be_interrupted"]

T = TypeVar("T")
_Call = tuple[deque[Callable[[], Any]], "queue.SimpleQueue[tuple[Any, BaseException | None]]"]

LOOK_EVERY_S = 1.0
"""The interval at which a caller checks whether the thread that makes its call still exists."""


def can_be_interrupted() -> bool:
    """Whether a signal handler may run in this thread: Python runs them only in the main thread."""
    return threading.get_ident() == threading.main_thread().ident


class Wakeup:
    """Wakes one thread. :meth:`set` may be called from anywhere: any thread, a signal handler, a finalizer."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Have the current or next :meth:`wait` return at once."""
        if self._queue.empty():  # otherwise it is set already, and the effects of earlier calls will be seen
            self._queue.put(None)

    def wait(self, timeout: float | None) -> None:
        """Wait until :meth:`set` is called, at most `timeout` seconds (None: no limit). Returns at once if it was
        called since the previous wait."""
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        with contextlib.suppress(queue.Empty):
            self._queue.get(timeout=timeout)
            while True:  # several threads may have set it at once
                self._queue.get_nowait()


class Waiters:
    """Threads that wait for a condition, and listeners that must not block, such as event loops. The thread that makes
    the condition true calls :meth:`notify_all` afterwards.

    Each thread waits for a lock of its own. If it is interrupted, it leaves only an entry that the next
    :meth:`notify_all` removes.
    """

    __slots__ = ("_listeners", "_locks")

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()
        self._listeners: tuple[Callable[[], object], ...] = ()

    @property
    def waiting(self) -> int:
        """The approximate number of waiting threads."""
        return len(self._locks)

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` in every :meth:`notify_all` from now on: on any thread, possibly in a signal handler or with
        locks held. It must only schedule a check of the condition."""
        self._listeners += (listener,)

    def give_way(self) -> None:
        """Let notified threads run first."""
        time.sleep(0)

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `condition` is true, at most `timeout` seconds (None: without limit); returns whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            lock = threading.Lock()
            lock.acquire()
            self._locks.append(lock)
            try:
                if condition():  # it may have become true before the lock was added
                    return True
                left = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    return False
                lock.acquire(timeout=min(left, threading.TIMEOUT_MAX))
            finally:
                with contextlib.suppress(ValueError):
                    self._locks.remove(lock)
            if condition():
                return True

    def notify_all(self) -> None:
        """Make all waiting threads and listeners check their conditions again."""
        while self._locks:
            try:
                self._locks.popleft().release()
            except IndexError:  # another thread took the last one
                break
        for listener in self._listeners:
            listener()


class Uninterrupted:
    """Calls functions where nothing can interrupt them, because they change several things together.

    A function that is called in the main thread runs on a separate thread, and in any other thread in place. Therefore
    a lock that is only taken in such functions is never held in the main thread, and a signal handler can take it.

    A caller that is interrupted while it waits gives up the result, not the call, which precedes any later one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        """Each function in a queue of its own, from which one thread takes it, and the queue for its outcome."""
        self._started = self._ended = False

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`; returns its result or raises its exception."""
        if self._ended or not can_be_interrupted():
            return function()
        if not self._started:
            self._started = True
            try:
                # `Thread.start` is Python code around locks, which must not run in a thread that may be interrupted.
                start_new_thread(self._start, ())
            except RuntimeError:  # the interpreter is shutting down, or there are too many threads
                self._ended = True
        call: _Call = deque((function,)), queue.SimpleQueue()
        self._calls.put(call)
        while True:
            if self._ended:
                _make(call)
            with contextlib.suppress(queue.Empty):
                result, error = call[1].get(timeout=LOOK_EVERY_S)
                break
        if error is not None:
            raise error
        found: T = result
        return found

    def end(self) -> None:
        """Make further calls in place."""
        self._ended = True
        self._calls.put(None)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            self._ended = True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _make(call)


def _make(call: _Call) -> None:
    """Make a call, unless another thread has taken it."""
    waiting, outcome = call
    try:
        function = waiting.pop()
    except IndexError:
        return
    try:
        outcome.put((function(), None))
    except BaseException as error:  # noqa: BLE001  (raised for the caller)
        outcome.put((None, error))
