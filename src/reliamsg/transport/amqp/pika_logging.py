"""Filters pika's log records on our threads.

pika logs bodies of returned messages, and the login as part of the repr of a frame; and it logs as errors what is
normal for a transport that reconnects. On other threads pika belongs to the application, and its records are
not filtered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_pika"]

log: logging.Logger = logging.getLogger(__name__)

_here = threading.local()


@contextmanager
def quiet_pika() -> Iterator[None]:
    """Filter pika's records on this thread: drop them, or, if DEBUG is enabled, remove their content."""
    # A logger's filter sees only its own records, so each of pika's loggers needs it; adding it again does nothing.
    for name in list(logging.root.manager.loggerDict):
        if name == "pika" or name.startswith("pika."):
            logging.getLogger(name).addFilter(_filter)
    _here.quiet = True
    try:
        yield
    finally:
        _here.quiet = False


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(_here, "quiet", False):
            return True
        if not log.isEnabledFor(logging.DEBUG):
            return False
        if isinstance(record.args, tuple):
            record.args = tuple(_harmless(value) for value in record.args)
        elif record.args:
            record.msg, record.args = "(left out)", ()
        record.exc_info = None
        return True


_filter = _Filter()


def _harmless(value: object) -> object:
    return value if value is None or isinstance(value, int | float) else f"<{type(value).__name__}>"
