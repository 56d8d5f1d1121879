"""Waking and waiting that survive interruptions.

An application's thread may be interrupted anywhere: by a signal handler, which may call the very method that it
interrupted, or by a ``KeyboardInterrupt``, which abandons it. `threading.Event` and `threading.Condition` are Python
code around a lock, and an interruption inside them leaves that lock taken forever. The classes here consist of single
operations of C: none can be interrupted half way, and none waits for a lock that an interrupted caller may hold.
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

LOOK_EVERY_S = 1.0
"""A thread that waits for a call checks this often whether a thread is left to make it."""


def can_be_interrupted() -> bool:
    """Whether a signal handler may run in this thread: Python runs them in the main thread only."""
    return threading.get_ident() == threading.main_thread().ident


class Wakeup:
    """Wakes one thread. :meth:`set` may be called from anywhere: any thread, a signal handler, a finalizer."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Have the next, or current, :meth:`wait` return at once."""
        if self._queue.empty():  # else it is set already, and what was done before this call will be seen
            self._queue.put(None)

    def clear(self) -> None:
        """Forget what was set. To be called by the thread that waits, before it looks at what there is to do."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def wait(self, timeout: float | None) -> None:
        """Wait until :meth:`set` is called, at most `timeout` seconds; not at all if it was since this was cleared."""
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        with contextlib.suppress(queue.Empty):
            self._queue.get(timeout=timeout)


class Waiters:
    """Threads that wait for something to become true, and listeners that must not wait, such as event loops. The thread
    that makes it true calls :meth:`notify_all` afterwards.

    Each waits for a lock of its own, which no other takes: a thread that is interrupted while it waits leaves
    nothing behind but an entry that the next :meth:`notify_all` removes.
    """

    __slots__ = ("_listeners", "_locks")

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()
        self._listeners: tuple[Callable[[], object], ...] = ()

    @property
    def waiting(self) -> int:
        """About how many threads wait."""
        return len(self._locks)

    def listen(self, listener: Callable[[], object]) -> None:
        """Have `listener` called by every :meth:`notify_all` from now on: on any thread, perhaps in a signal handler or
        with locks held. It must only arrange for the condition to be checked elsewhere."""
        self._listeners += (listener,)

    def give_way(self) -> None:
        """Let threads that were notified continue first."""
        time.sleep(0)

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `condition` is true, at most `timeout` seconds (None: without limit); returns whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            lock = threading.Lock()
            lock.acquire()
            self._locks.append(lock)
            try:
                if condition():  # it may have become true before the lock was there to be released
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
        """Have all waiting threads, and listeners, check their condition again."""
        while self._locks:
            try:
                self._locks.popleft().release()
            except IndexError:  # another thread took the last one
                break
        for listener in self._listeners:
            listener()


class Uninterrupted:
    """Has functions called where nothing can interrupt them: for what changes many things and must do all of it.

    A function that is called in the main thread runs on a thread of this object's own, in any other thread in place. So
    a lock that is only taken in such functions is never held in the main thread, and a signal handler gets it.

    A caller that is interrupted while it waits gives up the result, not the call: it is made, before any later one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._started = self._ended = False

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`; returns what it returns, and raises what it raises."""
        if self._ended or not can_be_interrupted():
            return function()
        if not self._started:
            self._started = True
            try:
                # `Thread.start` is Python code around locks: not for a thread that may be interrupted.
                start_new_thread(self._start, ())
            except RuntimeError:  # the interpreter ends, or there are too many threads
                self._ended = True
        call = _Call(function)
        self._calls.put(call)
        while self._ended or not call.done.acquire(timeout=LOOK_EVERY_S):
            if self._ended:
                call.make()
                break
        if call.error is not None:
            raise call.error
        found: T = call.result
        return found

    def end(self) -> None:
        """Further calls are made in place."""
        self._ended = True
        self._calls.put(None)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            self._ended = True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()


class _Call:
    """A call and what came of it."""

    __slots__ = ("_function", "done", "error", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = deque((function,))
        """The thread that takes it out makes the call."""
        self.done = threading.Lock()
        """Held until the call was made."""
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        """Make the call, unless another thread does."""
        try:
            function = self._function.pop()
        except IndexError:
            self.done.acquire()
            return
        try:
            self.result = function()
        except BaseException as error:  # noqa: BLE001  (raised where the call was asked for)
            self.error = error
        self.done.release()
