"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from reliamsg.errors import ConfigError

__all__ = ["as_time", "parse_time"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str, option: str) -> int:
    """Parse ISO 8601 (UTC by default), or µs since 1970; returns µs since 1970. Raises :class:`ConfigError`, which
    names `option`."""
    if text.isascii() and text.isdigit() and len(text) > 8:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text}: neither ISO 8601 nor µs since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - _EPOCH) // timedelta(microseconds=1)


def as_time(us: int) -> str:
    """µs since 1970 in ISO 8601, UTC; numbers beyond the year 9999 as they are."""
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return f"{us} µs"
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
