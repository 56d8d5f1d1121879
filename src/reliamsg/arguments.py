"""Checks of arguments from applications. A :class:`ConfigError` names the invalid argument and the expected values."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Iterable
from typing import Any

from reliamsg.errors import ConfigError

__all__ = [
    "MOST_BYTES",
    "MOST_SECONDS",
    "NotRun",
    "check_callback",
    "check_choice",
    "check_count",
    "check_flag",
    "check_instance",
    "check_list",
    "check_number",
    "check_path",
    "check_timeout",
    "unrun",
]


class NotRun(ConfigError):
    """A callback returned a coroutine or generator that was not run."""


MOST_SECONDS = 1e9
"""The maximum duration: 30 years, which all functions that wait still accept."""
MOST_BYTES = 2**62


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def check_number(
    name: str, value: object, *, above: float | None = None, least: float = 0.0, most: float = MOST_SECONDS
) -> None:
    """An int or finite float, not a bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number, not {_kind(value)}")
    if not value <= most:  # nor is NaN
        raise ConfigError(f"{name} must be a number up to {most:g}, not {_shown(value)}")
    if above is not None and not value > above:
        raise ConfigError(f"{name} must be above {above:g}, not {_shown(value)}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least:g}, not {_shown(value)}")


def check_count(name: str, value: object, *, least: int = 1, most: int = MOST_BYTES) -> None:
    """An int, not a bool."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {_kind(value)}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, not {_shown(value)}")
    if value > most:
        raise ConfigError(f"{name} must be at most {most}, not {_shown(value)}")


def _shown(value: float) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return repr(value)


def check_timeout(name: str, value: object) -> None:
    """Seconds to wait, or None for no limit. Negative values, such as the time left after a deadline, do not wait."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number of seconds or None, not {_kind(value)}")
    if not -MOST_SECONDS <= value <= min(MOST_SECONDS, threading.TIMEOUT_MAX):
        raise ConfigError(
            f"{name} must be a finite number of seconds, or None to wait for ever, not {_shown(value)}"
        )


def check_flag(name: str, value: object) -> None:
    """True or False, and no other value."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {_kind(value)}")


def check_choice(name: str, value: object, choices: Iterable[str], more: str = "") -> None:
    """One of a few words."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        shown = (
            repr(value)
            if isinstance(value, (str, float))
            else _shown(value)
            if isinstance(value, int)
            else _kind(value)
        )
        raise ConfigError(f"{name}={shown:.100}: choose {' or '.join(map(repr, choices))}{more}")


def check_instance(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    """An instance of a class, which errors describe as `what` (with an article)."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be {what}, not {_kind(value)}")


def check_list(name: str, value: object, what: str) -> list[Any]:
    """The elements of a list, tuple or other iterable that is not a string, bytes or a mapping."""
    if isinstance(value, (str, bytes, bytearray, memoryview, dict)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a list of {what}, not {_kind(value)}")
    return list(value)


def check_path(name: str, value: object) -> str:
    """The path of a persistent file; returns it as a string."""
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{name} must be a path, not {_kind(value)}")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise ConfigError(f"{name} must be a path of text, not of {_kind(path)}")
    if not path:
        raise ConfigError(f"{name} is an empty path")
    if "\0" in path:
        raise ConfigError(f"{name} contains '\\x00', which paths can't have")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ConfigError(f"{name} {path!r} is not a valid path on this system") from None
    if path == ":memory:" or path.startswith("file:"):
        raise ConfigError(
            f"{name}={path!r}: it must be a file on a disk, because its content has to survive this process"
            " (for tests, use a file in a temporary directory)"
        )
    return path


def check_callback(name: str, value: object, *, optional: bool = True) -> None:
    """An ordinary function. A coroutine or generator function would do nothing when called."""
    if value is None and optional:
        return
    if not callable(value):
        raise ConfigError(f"{name} must be callable{' or None' if optional else ''}, not {_kind(value)}")
    kind = _kind_of_function(value)
    if kind:
        raise ConfigError(
            f"{name} must be an ordinary function: {_named(value)} is {kind}, whose body would not run."
            " Pass a function that runs it: lambda *args: asyncio.run(function(*args))"
        )


def _named(value: object) -> str:
    inner = value
    while isinstance(inner, functools.partial):
        inner = inner.func
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def _kind_of_function(function: object) -> str:
    """The kind of a function whose body does not run when it is called; empty for an ordinary function."""
    while isinstance(function, functools.partial):
        function = function.func
    candidates = [function]
    if not inspect.isroutine(function) and not isinstance(function, type):
        candidates.append(getattr(type(function), "__call__", None))  # noqa: B004  (the unbound method)
    for one in candidates:
        if inspect.isasyncgenfunction(one):
            return "an async generator function"
        if inspect.iscoroutinefunction(one) or hasattr(one, "_is_coroutine"):  # the latter: a mock
            return "a coroutine function (async def)"
        if inspect.isgeneratorfunction(one):
            return "a generator function (it has a yield)"
    return ""


def unrun(name: str, result: object) -> NotRun | None:
    """An error if a callback returned a coroutine or generator, which is closed; None otherwise. Other return values
    are ignored."""
    if result is None:
        return None
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # avoids a later warning from Python
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
        return None
    return NotRun(
        f"{name} returned a {type(result).__name__}, which is never run: it must complete its work before it returns."
        " Run it in the callback: asyncio.run(...)"
    )
