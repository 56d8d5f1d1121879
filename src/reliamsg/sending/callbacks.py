"""The thread on which receipts' callbacks run, started by the writer when the first one is added: an application that
adds one may be interrupted, and must not leave a thread half started."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from reliamsg.arguments import unrun

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine
    from reliamsg.sending.receipt import Receipt

__all__ = ["Callbacks", "Watch"]

log = logging.getLogger("reliamsg.sending")

Watch = tuple["Receipt", "Callable[[Receipt], object]"]


class Callbacks:
    """Calls back, one at a time, so that neither the writer nor a site's I/O thread ever waits for an
    application."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: queue.SimpleQueue[Watch | Callable[[], object] | None] = queue.SimpleQueue()
        self._started = False
        self.on_error: Callable[[BaseException], object] | None = None

    def put(self, receipt: Receipt, callback: Callable[[Receipt], object]) -> None:
        """Call back when the receipt's outcome is final. Does not block."""
        self._queue.put((receipt, callback))
        if not self._started:
            self._engine.wake()

    def report(self, error: BaseException) -> None:
        """Have ``on_error`` called."""
        if self.on_error is not None:
            on_error = self.on_error
            self._queue.put(lambda: self._tell(on_error, error))
            if not self._started:
                self._engine.wake()

    def _tell(self, on_error: Callable[[BaseException], object], error: BaseException) -> None:
        mistake = unrun("on_error", on_error(error))
        if mistake is not None:
            log.error("%s; not told of: %s", mistake, error)

    def stop(self) -> None:
        """End the thread after what is queued. The writer's last call."""
        self.start()
        self._queue.put(None)

    def start(self) -> None:
        """Start the thread if there is something for it. Called by the writer."""
        if not self._started and not self._queue.empty():
            self._started = True
            threading.Thread(target=self._run, name="reliamsg-callbacks", daemon=True).start()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if callable(item):
                    item()
                else:
                    self._call(*item)
            except Exception as error:
                log.exception("a callback of the application raised")
                if not callable(item):
                    self.report(error)

    def _call(self, receipt: Receipt, callback: Callable[[Receipt], object]) -> None:
        group = receipt._group
        group.wait(None)  # a commit away, or an error when the producer is closed
        if group.error is None and self._engine.outcomes.watch(receipt, callback):
            return
        mistake = unrun("the receipt's callback", callback(receipt))
        if mistake is not None:
            raise mistake
