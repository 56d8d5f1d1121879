"""Exit codes, and the exceptions that cause them. Codes above 63 are those of ``sysexits.h``."""

from __future__ import annotations

import re
from enum import IntEnum

from reliamsg import errors
from reliamsg.terminal import printable

__all__ = ["EXIT_CODES_HELP", "SEE_EXIT_CODES", "Failure", "Status", "counted", "one_line", "status_of"]


class Status(IntEnum):
    """The exit code of a command."""

    OK = 0
    INCOMPLETE = 1
    """Incomplete: unconfirmed messages, fewer messages than requested, or a gap."""
    UNKNOWN = 2
    """Evidence is missing or inconclusive."""
    USAGE = 64
    DATA = 65
    """A file is invalid, or a line is too long."""
    NO_INPUT = 66
    UNAVAILABLE = 69
    """No site could be reached, or a site refused the request."""
    SOFTWARE = 70
    IO = 74
    TEMPORARY = 75
    """In use by another process; a later attempt may succeed."""
    INTERRUPTED = 130
    """128 plus the number of the signal: 130 for Ctrl-C, 143 for SIGTERM."""


EXIT_CODES_HELP = """\b
Exit codes:
  0    done
  1    incomplete: messages are unconfirmed or missing; doctor: errors or warnings; plan: the target is not reached
  2    doctor, lab chaos, demo, audit, journal verify: something is missing, or the result is inconclusive
  64   invalid arguments
  65   a file is invalid, or a line is too long
  66   the input can't be read
  69   a site can't be reached, or refuses
  70   internal error
  74   a file can't be written
  75   the outbox, inbox or group is in use by another process
  130  interrupted by Ctrl-C (143: by SIGTERM) before completion
"""

SEE_EXIT_CODES = (
    "Exit codes: 0 done, 1 incomplete, 2 inconclusive, 64 to 75 errors, 130 or 143 interrupted; 'reliamsg --help' lists"
    " them."
)
"""For the help of single commands."""

_BY_ERROR: tuple[tuple[type[Exception], Status], ...] = (
    (errors.MessageTooLarge, Status.DATA),
    (errors.ConfigError, Status.USAGE),
    (errors.OutboxLocked, Status.TEMPORARY),
    (errors.InboxLocked, Status.TEMPORARY),
    (errors.GroupBusy, Status.TEMPORARY),
    (errors.OutboxFull, Status.TEMPORARY),
    (errors.StoreError, Status.DATA),
    (errors.OutboxWriteError, Status.IO),
    (errors.InboxWriteError, Status.IO),
    (errors.OutboxIndeterminate, Status.IO),
    (errors.InboxIndeterminate, Status.IO),
    (errors.GapError, Status.INCOMPLETE),
    (errors.ConfirmTimeout, Status.INCOMPLETE),
    (errors.DeadLetterHalt, Status.INCOMPLETE),
    (errors.ReliamsgError, Status.UNAVAILABLE),
    (FileNotFoundError, Status.NO_INPUT),
    (OSError, Status.IO),
)

_LOGIN = re.compile(r"//\S*@")
"""Matches logins in URLs, even if a password contains an unescaped slash, or if each of several hosts has a login."""


class Failure(Exception):
    """A command failed; has the exit code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: Exception) -> Status:
    """The exit code for an exception."""
    return next((status for kind, status in _BY_ERROR if isinstance(error, kind)), Status.SOFTWARE)


def counted(number: int, noun: str) -> str:
    """For example "1 message", "2 messages", "3 deliveries"."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}"


def one_line(text: object) -> str:
    """`text` as one line that is safe to print, without the part between ``//`` and the last ``@`` of a URL, which may
    be a password."""
    return printable(_LOGIN.sub("//", " ".join(str(text).split())))
