"""Checks of what applications pass: whatever is wrong with an argument is a :class:`ConfigError` that names it and says
what is expected."""

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
    """A callback returned what has not run, in place of running it."""


MOST_SECONDS = 1e9
"""Longest duration: 30 years, which everything that waits can still be told."""
MOST_BYTES = 2**62


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def check_number(
    name: str, value: object, *, above: float | None = None, least: float = 0.0, most: float = MOST_SECONDS
) -> None:
    """A finite number, whole or not; no bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number, not {_kind(value)}")
    if not value <= most:  # nor is NaN
        raise ConfigError(f"{name} must be a number up to {most:g}, not {_shown(value)}")
    if above is not None and not value > above:
        raise ConfigError(f"{name} must be above {above:g}, not {_shown(value)}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least:g}, not {_shown(value)}")


def check_count(name: str, value: object, *, least: int = 1, most: int = MOST_BYTES) -> None:
    """A whole number; no bool."""
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
    """Seconds to wait; None for no limit. Below 0 does not wait: so much may be left of a deadline."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number of seconds or None, not {_kind(value)}")
    if not -MOST_SECONDS <= value <= min(MOST_SECONDS, threading.TIMEOUT_MAX):
        raise ConfigError(
            f"{name} must be a finite number of seconds, or None to wait for ever, not {_shown(value)}"
        )


def check_flag(name: str, value: object) -> None:
    """True or False, and nothing that merely counts as one."""
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
    """An object of a class; `what` it is, with an article."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be {what}, not {_kind(value)}")


def check_list(name: str, value: object, what: str) -> list[Any]:
    """The elements of a list, tuple or other iterable that is no text, bytes or mapping."""
    if isinstance(value, (str, bytes, bytearray, memoryview, dict)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a list of {what}, not {_kind(value)}")
    return list(value)


def check_path(name: str, value: object) -> str:
    """A path of a file that can be kept; returns it as text."""
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
        raise ConfigError(f"{name} {path!r} is not a path that this system can have") from None
    if path == ":memory:" or path.startswith("file:"):
        raise ConfigError(
            f"{name}={path!r}: it must be a file on a disk, since what it holds has to survive this process"
            " (for tests: a file in a temporary directory)"
        )
    return path


def check_callback(name: str, value: object, *, optional: bool = True) -> None:
    """A function that does its work when it is called. What only makes a coroutine or generator would do nothing."""
    if value is None and optional:
        return
    if not callable(value):
        raise ConfigError(f"{name} must be callable{' or None' if optional else ''}, not {_kind(value)}")
    made = _makes(value)
    if made:
        raise ConfigError(
            f"{name} must be an ordinary function: {_named(value)} is {made}, whose body would not run."
            " Pass a function that runs it to its end: lambda *given: asyncio.run(function(*given))"
        )


def _named(value: object) -> str:
    inner = value
    while isinstance(inner, functools.partial):
        inner = inner.func
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def _makes(function: object) -> str:
    """What a call would only make, in place of doing anything; empty where it does something."""
    while isinstance(function, functools.partial):
        function = function.func
    candidates = [function]
    if not inspect.isroutine(function) and not isinstance(function, type):
        candidates.append(getattr(type(function), "__call__", None))  # noqa: B004  (the method is wanted)
    for one in candidates:
        if inspect.isasyncgenfunction(one):
            return "an async generator function"
        if inspect.iscoroutinefunction(one) or hasattr(one, "_is_coroutine"):  # the latter: a mock
            return "a coroutine function (async def)"
        if inspect.isgeneratorfunction(one):
            return "a generator function (it has a yield)"
    return ""


def unrun(name: str, result: object) -> NotRun | None:
    """An error where a callback returned something that has not run yet, which is put away; None where it did its
    work. Whatever else is returned does not matter."""
    if result is None:
        return None
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # else Python warns of it, later and elsewhere
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
        return None
    return NotRun(
        f"{name} returned a {type(result).__name__}, which nobody runs: it must have done its work when it returns."
        " Run it to its end in there: asyncio.run(...)"
    )
