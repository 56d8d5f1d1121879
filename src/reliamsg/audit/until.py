"""The time up to which messages are accounted for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from reliamsg.errors import ConfigError

__all__ = ["parse_until"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_until(text: str) -> int:
    """Parse ISO 8601 (UTC by default), or µs since 1970; returns µs since 1970. Raises :class:`ConfigError`."""
    if text.isascii() and text.isdigit() and len(text) > 8:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--until {text}: neither ISO 8601 nor µs since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - _EPOCH) // timedelta(microseconds=1)
