"""The thread that owns the inbox and runs the engine."""

from __future__ import annotations

import threading
import time

from reliamsg.errors import FatalError, ReliamsgError
from reliamsg.receiving.engine import ReceivingEngine
from reliamsg.receiving.operating import Operating
from reliamsg.receiving.state import log
from reliamsg.runtime.callbacks import CallbackThread, OnError
from reliamsg.runtime.wakeup import Wakeup

__all__ = ["Runner"]

IDLE_S = 1.0
"""The engine is looked at so often even if nothing happens."""


class Runner:
    """Runs an engine until it is closed."""

    def __init__(self, engine: ReceivingEngine, name: str, on_error: OnError | None, wakeup: Wakeup) -> None:
        """`wakeup`: set by the engine."""
        self.engine = engine
        self.stopped = False
        """The application asked to end; set by :meth:`stop`."""
        self._callbacks = CallbackThread(f"{name} errors", on_error, log, wakeup.set)
        self._operating = Operating(engine)
        self._wakeup = wakeup
        self._ending = False
        self._closed = False
        self._close_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._operating.step(self.engine.shared.clock())
        self.engine.start()
        self._thread.start()

    def stop(self) -> None:
        """Have everybody who waits for messages look up. Takes no lock: safe in a signal handler."""
        self.stopped = True
        self._wakeup.set()
        self.engine.shared.changed.notify_all()

    def _run(self) -> None:
        engine = self.engine
        shared = engine.shared
        while not self._ending:
            self._wakeup.clear()
            self._callbacks.start()
            deadline = self._step()
            self._operating.step(shared.clock())
            self.report_errors()
            if self.stopped:
                shared.changed.notify_all()
            now = shared.clock()
            left = IDLE_S if deadline is None else min(IDLE_S, deadline - now)
            if left > 0:
                self._wakeup.wait(left)

    def _step(self) -> float | None:
        shared = self.engine.shared
        try:
            return self.engine.step(shared.clock())
        except Exception as error:  # noqa: BLE001  (whatever it is, nobody must wait for this thread for ever)
            log.exception("the consumer has stopped")
            failure = error if isinstance(error, FatalError) else FatalError(f"internal error: {error!r}")
            with shared.lock:
                shared.fail(failure)
            return None

    def report_errors(self) -> None:
        """Have ``on_error`` called with what happened since the last time."""
        for error in self.engine.take_errors():
            self._callbacks.report(error)

    def close(self, timeout: float) -> bool:
        """Commit, disconnect, and give the inbox up. Returns whether the stop was clean; only once."""
        with self._close_lock:
            if self._closed:
                return False
            self._closed = True
        deadline = time.monotonic() + max(0.0, timeout)
        self.stopped = self._ending = True
        self._wakeup.set()
        self._thread.join(max(0.1, timeout))
        if self._thread.is_alive():
            # It hangs in a write. The inbox can't be closed under it; the process's end will release it.
            log.error("%s: still being written; not closed cleanly", self.engine.shared.inbox.path)
            self.engine.shared.end()
            return False
        clean = self._finish(deadline)
        self._callbacks.close(max(0.5, deadline - time.monotonic()))
        return clean

    def _finish(self, deadline: float) -> bool:
        engine, shared = self.engine, self.engine.shared
        try:
            # First what the application acknowledged, so that the brokers still hear of it.
            engine.flush(shared.clock())
            engine.say_goodbye(shared.clock())
            engine.succession.close_given_up()
            for site in engine.sites.values():
                site.closing = True
                for link in site.links.all:
                    link.close(max(0.5, deadline - time.monotonic()))
                site.state = "closed"
            engine.flush(shared.clock(), closing=True)
            engine.finish_export(shared.clock() + deadline - time.monotonic())
        except ReliamsgError as error:
            log.error("%s", error)
        self.report_errors()
        with shared.lock:
            clean = shared.may_write and shared.write_error is None
        shared.end()
        shared.inbox.close()
        return clean
