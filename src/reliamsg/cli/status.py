"""Exit codes, and which error means which. The numbers above 63 are those of ``sysexits.h``."""

from __future__ import annotations

import re
from enum import IntEnum

from reliamsg import errors
from reliamsg.terminal import printable

__all__ = ["EXIT_CODES_HELP", "Failure", "Status", "one_line", "status_of"]


class Status(IntEnum):
    """What a command says to the shell."""

    OK = 0
    INCOMPLETE = 1
    """Something remains: messages unconfirmed, fewer received than asked for, a gap."""
    UNKNOWN = 2
    """Evidence is missing, or what it says is open."""
    USAGE = 64
    DATA = 65
    """A file is not what it should be, or a line is too long."""
    NO_INPUT = 66
    UNAVAILABLE = 69
    """No site could be reached, or one refused what was asked."""
    SOFTWARE = 70
    IO = 74
    TEMPORARY = 75
    """In use by another process; later it may work."""
    INTERRUPTED = 130
    """128 and the number of the signal: 130 for Ctrl-C, 143 for SIGTERM."""


EXIT_CODES_HELP = """\b
Exit codes:
  0    done
  1    something remains: messages unconfirmed or missing
  2    lab chaos, demo, audit, journal verify: something required is missing, or the result is inconclusive
  64   wrong arguments
  65   a file is not what it should be, or a line is too long
  66   the input can't be read
  69   a site can't be reached, or refuses
  70   a fault of this program
  74   a file can't be written
  75   the outbox, inbox or group is in use by another process
  130  ended by Ctrl-C (143: by SIGTERM) before everything was done
"""

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
"""What may be a login: a password can hold a slash that should have been escaped, and each of several hosts has one."""


class Failure(Exception):
    """A command could not do what it should; carries the exit code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: Exception) -> Status:
    """The exit code for an error that ended a command."""
    return next((status for kind, status in _BY_ERROR if isinstance(error, kind)), Status.SOFTWARE)


def one_line(text: object) -> str:
    """`text` in one line that is safe to print, without what stands between ``//`` and the last ``@`` of a URL: it may
    be a password."""
    return printable(_LOGIN.sub("//", " ".join(str(text).split())))
