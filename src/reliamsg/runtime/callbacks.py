"""The thread on which an application's callbacks run.

The thread that adds a call may be interrupted while it starts another thread. Therefore the worker starts the thread
when there is a first call.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable

from reliamsg.arguments import unrun
from reliamsg.logs import Log

__all__ = ["CallbackThread", "OnError"]

OnError = Callable[[BaseException], object]

MAX_ERRORS_WAITING = 1_000
"""The maximum number of errors that wait for ``on_error``; further ones are only logged."""


class CallbackThread:
    """Executes callbacks one at a time, so that neither the worker nor a site's I/O thread waits for the application.

    A callback may block, and may call the producer or consumer, ``close()`` included. An exception is logged and
    reported to ``on_error``.
    """

    def __init__(self, name: str, on_error: OnError | None, log: Log, wake: Callable[[], None]) -> None:
        """`wake` makes the worker call :meth:`start`; it is called on any thread."""
        self._name = name
        self._on_error = on_error
        self._log = log
        self._wake = wake
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._errors: deque[BaseException] = deque()
        """For each, a call of :meth:`_tell` is queued."""
        self._thread: threading.Thread | None = None
        self._running = threading.Lock()
        """Held by the thread that makes calls: after :meth:`close` there may be several."""
        self._closed = False
        self.has_started: bool = False
        """Whether the thread was started; until then the worker must call :meth:`start`."""

    def put(self, call: Callable[[], object]) -> None:
        """Queue a call. Does not block; may be called on any thread and in signal handlers."""
        self._calls.put(call)
        if self._closed:
            # Not with `Thread.start`, which is Python code around locks: this thread may be interrupted.
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                start_new_thread(self._run, ())
        elif self._thread is None:
            self._wake()

    def report(self, error: BaseException) -> None:
        """Queue a call of ``on_error``. Does not block."""
        if self._on_error is None:
            return
        if len(self._errors) >= MAX_ERRORS_WAITING:
            self._log.error(
                "client.on_error_busy", "on_error is busy; not told of: %(reason)s",
                error=type(error).__name__, reason=str(error),
            )  # fmt: skip
            return
        self._errors.append(error)
        self.put(self._tell)

    def start(self) -> None:
        """Start the thread if a call is queued. Called by the worker."""
        if self._thread is None and not self._calls.empty():
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down
                self._log.warning(
                    "client.callbacks_not_called",
                    "%(thread_name)s: not called any more, since the interpreter ends",
                    thread_name=self._name,
                )
                return
            self._thread = thread
            self.has_started = True

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the queued calls; if it expires, they continue in the background. Called
        once, by the worker or after it has ended. Calls that are queued later run on other threads, also one at a time.
        """
        self.start()
        self._closed = True  # first: who adds a call behind the end sees it
        self._calls.put(None)
        self.join(timeout)

    def join(self, timeout: float) -> None:
        """After :meth:`close`: wait up to `timeout` seconds for the queued calls; not at all in one of them."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        with self._running:
            while (call := self._next()) is not None:
                try:
                    call()
                except Exception as error:  # noqa: BLE001  (the application's own code, on our thread)
                    self._log.error(
                        "client.callback_failed", "a callback of the application raised",
                        error=type(error).__name__, exc_info=True,
                    )  # fmt: skip
                    self.report(error)

    def _next(self) -> Callable[[], object] | None:
        """The next call; None at the end."""
        while not self._closed:
            call = self._calls.get()
            if call is not None:
                return call
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    return call
        return None

    def _tell(self) -> None:
        error = self._errors.popleft()
        assert self._on_error is not None  # else nothing would be queued
        try:
            mistake = unrun("on_error", self._on_error(error))
        except Exception as raised:  # noqa: BLE001  (the same)
            self._log.error(
                "client.on_error_failed", "on_error raised", error=type(raised).__name__, exc_info=True
            )
            return
        if mistake is not None:
            self._log.error(
                "client.on_error_not_run", "%(mistake)s; not told of: %(reason)s",
                mistake=str(mistake), error=type(error).__name__, reason=str(error),
            )  # fmt: skip
