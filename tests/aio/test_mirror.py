"""The asynchronous clients mirror the blocking ones."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import reliamsg
from reliamsg import aio

PAIRS: list[tuple[Any, Any]] = [
    (reliamsg.Producer, aio.Producer), (reliamsg.Consumer, aio.Consumer), (reliamsg.Receipt, aio.Receipt),
]  # fmt: skip
RENAMED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}
"""What a client for an event loop calls it."""
OTHER_PARAMETERS = {"run": ("workers", "concurrency")}
BEYOND = {
    "Producer": {"open"},
    "Consumer": {"open", "acknowledge", "__anext__"},
    "Receipt": {"__await__"},
}
"""What only these have: opening waits for the disk, and so does a durable acknowledgement."""
WITHIN = {"Receipt": {"commit"}}
"""What applications do not use."""
PLAIN = {
    "publish_nowait",
    "pending",
    "status",
    "stop",
    "add_done_callback",
    "batches",
    "__aiter__",
    "__repr__",
}
"""What does not wait, and so is no coroutine."""


def members(one: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(one).items()
        if (
            (callable(member) or isinstance(member, property))
            and (not name.startswith("_") or name in {*RENAMED, *RENAMED.values(), "__init__", "__repr__"})
        )
        or name in ("__await__", "__anext__")
    }


@pytest.mark.parametrize(("blocking", "mirror"), PAIRS)
def test_they_have_the_same_methods(blocking: type, mirror: type) -> None:
    names = {RENAMED.get(name, name) for name in members(blocking)} - WITHIN.get(blocking.__name__, set())
    assert names | BEYOND[mirror.__name__] == set(members(mirror))


def methods() -> list[tuple[Any, Any, str, str]]:
    return [
        (blocking, mirror, name, RENAMED.get(name, name))
        for blocking, mirror in PAIRS
        for name, member in members(blocking).items()
        if not isinstance(member, property)
        and name not in WITHIN.get(blocking.__name__, ())
        and (blocking, name) != (reliamsg.Receipt, "__init__")
    ]


@pytest.mark.parametrize(("blocking", "mirror", "name", "mirrored"), methods())
def test_they_take_the_same_arguments(blocking: Any, mirror: Any, name: str, mirrored: str) -> None:
    ours, theirs = (
        dict(inspect.signature(getattr(one, each)).parameters)
        for one, each in ((mirror, mirrored), (blocking, name))
    )
    before, after = OTHER_PARAMETERS.get(name, ("", ""))
    expected = [after if each == before else each for each in theirs]
    assert list(ours) == expected
    for each, parameter in theirs.items():
        if each != before:
            assert (ours[each].kind, ours[each].default) == (parameter.kind, parameter.default), each


@pytest.mark.parametrize(("blocking", "mirror", "name", "mirrored"), methods())
def test_what_waits_is_a_coroutine(blocking: Any, mirror: Any, name: str, mirrored: str) -> None:
    is_coroutine = inspect.iscoroutinefunction(getattr(mirror, mirrored))
    assert is_coroutine == (mirrored not in PLAIN and mirrored != "__init__")


@pytest.mark.parametrize(("blocking", "mirror"), PAIRS)
def test_docstrings_begin_alike(blocking: type, mirror: type) -> None:
    """The first sentence says the same, except where one blocks and the other does not."""
    for name, member in members(blocking).items():
        text = member.__doc__
        if name.startswith("__") or not text or name in WITHIN.get(blocking.__name__, ()):
            continue
        own = getattr(mirror, RENAMED.get(name, name)).__doc__
        assert own, name
        first, ours = (" ".join(each.split()).split(". ")[0] for each in (text, own))
        if name not in {"wait", "run", "publish_nowait", "add_done_callback"}:
            assert ours == first, name
