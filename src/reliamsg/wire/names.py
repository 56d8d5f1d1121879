"""Validates names from a network, with a cache."""

from __future__ import annotations

from functools import lru_cache

from reliamsg.config import check_name
from reliamsg.errors import ConfigError

__all__ = ["is_name"]


@lru_cache(maxsize=4_096)
def is_name(text: str) -> bool:
    """Whether `text` is a valid name of a producer, topic or group."""
    try:
        check_name("name", text)
    except ConfigError:
        return False
    return True
