"""The thread on which ``on_error`` is called, started when there is something to tell."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from reliamsg.arguments import unrun
from reliamsg.receiving.state import log

__all__ = ["OnError", "Reporter"]

OnError = Callable[[BaseException], object]

MAX_WAITING = 1_000
"""Errors that wait for ``on_error`` to return; any further ones are only logged."""


class Reporter:
    """Tells the application of errors, one at a time, so that nothing else ever waits for it.

    On a thread of its own ``on_error`` may take its time, and may call the consumer, ``close()`` included.
    """

    def __init__(self, on_error: OnError | None, name: str) -> None:
        self._on_error = on_error
        self._name = name
        self._queue: queue.Queue[BaseException | None] = queue.Queue(MAX_WAITING + 1)
        self._thread: threading.Thread | None = None

    def put(self, error: BaseException) -> None:
        """Have ``on_error`` called. Does not block. One thread at a time calls this."""
        if self._on_error is None:
            return
        if self._queue.qsize() >= MAX_WAITING:
            log.error("on_error is busy; not told of: %s", error)
            return
        self._queue.put_nowait(error)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._on_error,), name=self._name, daemon=True
            )
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Let what is waiting be told, for up to `timeout` seconds. No :meth:`put` may follow."""
        thread = self._thread
        if thread is None:
            return
        self._queue.put_nowait(None)  # there is room for this one always
        if thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self, on_error: OnError) -> None:
        while (error := self._queue.get()) is not None:
            try:
                mistake = unrun("on_error", on_error(error))
                if mistake is not None:
                    log.error("%s; not told of: %s", mistake, error)
            except Exception:  # noqa: BLE001  (the application's own code, on our thread)
                log.exception("on_error raised")
