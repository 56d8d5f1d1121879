"""Whether a consumer can continue: the error that terminated it, and the errors to report to ``on_error``."""

from __future__ import annotations

import threading
from collections import deque

from reliamsg.errors import DeadLetterHalt, FatalError, GroupBusy, QuarantineFull
from reliamsg.logs import Log
from reliamsg.runtime.wakeup import Waiters

__all__ = ["Health"]

log: Log = Log("reliamsg.consumer")

_INBOX_UNAFFECTED = (GroupBusy, DeadLetterHalt, QuarantineFull)
"""Errors that terminate a consumer and do not concern its inbox."""
MAX_ERRORS_WAITING = 1_000
"""Errors that wait for ``on_error``. Beyond that the oldest are only logged."""


class Health:
    """Records failures. Its attributes may be read without the consumer's lock."""

    def __init__(self, group: str, lock: threading.RLock, changed: Waiters) -> None:
        self._group = group
        self._lock = lock
        self._changed = changed
        self.fatal: FatalError | None = None
        """The error that terminated the consumer."""
        self.closed: bool = False
        """The inbox is about to be closed: nothing is committed any more."""
        self.errors: deque[BaseException] = deque(maxlen=MAX_ERRORS_WAITING)
        """Errors that are still to be reported to ``on_error``."""

    @property
    def may_write(self) -> bool:
        """Whether the inbox can be relied on: there is no fatal error, or one that does not concern the inbox."""
        return self.fatal is None or isinstance(self.fatal, _INBOX_UNAFFECTED)

    def fail(self, error: FatalError) -> None:
        """End the consumer. An error of the inbox replaces an earlier one of another kind: the commits that would
        still follow must not be made. Takes the lock, unless the caller holds it."""
        with self._lock:
            if self.fatal is None or (self.may_write and not isinstance(error, _INBOX_UNAFFECTED)):
                self.fatal = error
                self.errors.append(error)
                log.error(
                    "consumer.stopped", "%(reason)s",
                    group=self._group, error=type(error).__name__, reason=str(error),
                )  # fmt: skip
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is committed from now on, so no caller may wait for it."""
        with self._lock:
            self.closed = True
            self._changed.notify_all()

    def report(self, error: BaseException) -> None:
        """Report an error to ``on_error``. Under the lock."""
        self.errors.append(error)

    def take_errors(self) -> list[BaseException]:
        """Take the errors to report to ``on_error``, each once."""
        with self._lock:
            found = list(self.errors)
            self.errors.clear()
        return found
