"""Log records for people and for machines.

A record's message is a sentence. Beside it, every record has two attributes: ``event``, the name of what happened, and
``fields``, its values by name. Both are stable: ``docs/reference/log-events.md`` lists them, and what to do. Nothing
is configured here; that is the application's business.
"""

from __future__ import annotations

import logging

__all__ = ["Log", "Value"]

Value = str | int | float | None
"""Fields hold nothing else, so that any formatter can write them."""


class Log:
    """One logger. Messages take their values from the fields, as in ``"site %(site)s: disconnected"``.

    An event has one level and one set of fields, wherever it is logged, and its name begins with the part of the
    library that logs it. The arguments of the calls are literals: tests read them from the source.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, message: str, /, **fields: Value) -> None:
        """Log what only helps to follow the library's work."""
        self._log(logging.DEBUG, event, message, fields)

    def info(self, event: str, message: str, /, **fields: Value) -> None:
        """Log what is normal, or is being put right."""
        self._log(logging.INFO, event, message, fields)

    def warning(self, event: str, message: str, /, *, exc_info: bool = False, **fields: Value) -> None:
        """Log what an operator may have to act on. `exc_info`: with the traceback of the exception being handled."""
        self._log(logging.WARNING, event, message, fields, exc_info)

    def error(self, event: str, message: str, /, *, exc_info: bool = False, **fields: Value) -> None:
        """Log what needs somebody to act: a client has stopped, a stream waits, messages are missing."""
        self._log(logging.ERROR, event, message, fields, exc_info)

    def _log(
        self, level: int, event: str, message: str, fields: dict[str, Value], exc_info: bool = False
    ) -> None:
        self._logger.log(
            level, message, *([fields] if fields else []),
            exc_info=exc_info or None, extra={"event": event, "fields": fields},
            stacklevel=3,  # the record names the line that called warning() or another method
        )  # fmt: skip
