"""Times in ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["iso"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(us: int, timespec: str = "microseconds") -> str | None:
    """A time in µs since 1970 in ISO 8601, UTC; None for a number that is no time, because it was damaged. `timespec`
    is that of :meth:`datetime.datetime.isoformat`."""
    try:
        time = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None
    return time.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
