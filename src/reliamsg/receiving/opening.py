"""A standby whose inbox another process has open: it is tried again until it is free."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from reliamsg.errors import InboxLocked
from reliamsg.runtime.wakeup import Waiters, Wakeup

__all__ = ["Opener"]

log = logging.getLogger("reliamsg.receiving")


class Opener:
    """Calls `attempt` every `every` seconds, on a thread of its own, for as long as it raises InboxLocked."""

    def __init__(self, attempt: Callable[[], None], every: float, name: str) -> None:
        self._attempt = attempt
        self._every = every
        self._ended = self._cancelled = False
        self._waiters = Waiters()
        self._wakeup = Wakeup()
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        """Why there will be no further attempt, where that is no success."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the inbox is open."""
        return self._ended and self.error is None

    def wait(self, timeout: float) -> bool:
        """Wait for up to `timeout` seconds until the inbox is open; raises what makes that impossible."""
        self._waiters.wait(lambda: self._ended, timeout)
        if self.error is not None:
            raise self.error
        return self.done

    def cancel(self) -> bool:
        """No further attempt begins; returns whether the inbox is open. Waits for one that has begun."""
        self._cancelled = True
        self._wakeup.set()
        with self._lock:
            return self.done

    def _run(self) -> None:
        while not self._ended:
            with self._lock:
                if self._cancelled:
                    return
                self._try()
            if not self._ended:
                self._wakeup.wait(self._every)

    def _try(self) -> None:
        try:
            self._attempt()
        except InboxLocked as error:
            log.debug("%s", error)
            return
        except BaseException as error:  # noqa: BLE001  (raised by the next call that waits)
            self.error = error
        self._ended = True
        self._waiters.notify_all()
