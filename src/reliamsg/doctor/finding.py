"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity", "by_hand", "error", "ok", "unknown", "warning"]


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Messages are safe now, but something will fail, or a safeguard is missing."""
    ERROR = "error"
    """A client can't work, or messages can be lost."""
    UNKNOWN = "unknown"
    """It could not be checked."""


@dataclass(frozen=True)
class Finding:
    """One finding of one check."""

    subject: str
    """Such as "site dc1", "producer till" or "group billing"."""
    check: str
    """The name of the check, as in docs/how-to/doctor.md."""
    severity: Severity
    seen: str
    why: str = ""
    """Why it matters."""
    remedy: str = ""
    """A command or setting."""
    by_hand: bool = False
    """Nothing shows this from outside, at any site: a person must verify it. Does not affect the exit code."""


def ok(subject: str, check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(subject, check, Severity.OK, seen)


def warning(subject: str, check: str, seen: str, *, why: str, remedy: str) -> Finding:
    """See :class:`Severity`."""
    return Finding(subject, check, Severity.WARNING, seen, why, remedy)


def error(subject: str, check: str, seen: str, *, why: str, remedy: str) -> Finding:
    """See :class:`Severity`."""
    return Finding(subject, check, Severity.ERROR, seen, why, remedy)


def unknown(subject: str, check: str, seen: str, *, why: str, remedy: str) -> Finding:
    """See :class:`Severity`."""
    return Finding(subject, check, Severity.UNKNOWN, seen, why, remedy)


def by_hand(subject: str, check: str, *, why: str, remedy: str) -> Finding:
    """What can't be checked from outside; `remedy` says what to verify."""
    return Finding(subject, check, Severity.UNKNOWN, "cannot be checked from here", why, remedy, by_hand=True)
