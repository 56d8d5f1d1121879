"""The lock order of a producer, and state that must only be changed under a lock.

A signal handler may ask for the status, which waits for the engine's lock, and may have interrupted a thread that holds
the locks of publishing. So a thread that holds the engine's lock must not wait for those, nor the other way round: the
handler would deadlock. Containers that are iterated under the engine's lock are changed under it; otherwise an
iteration fails in the middle.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from reliamsg.consumer.shared import Shared, share
from reliamsg.producer.engine import ProducerEngine


class CheckedLock:
    """A reentrant lock that reports every acquisition by a thread that holds one of `others`."""

    def __init__(self, name: str, found: list[str]) -> None:
        self._name = name
        self._found = found
        self._lock = threading.RLock()
        self.others: list[CheckedLock] = []

    def __enter__(self) -> bool:
        if not self._is_owned():
            for other in self.others:
                if other._is_owned():
                    self._found.append(f"{self._name} is taken with {other._name} held:\n{_stack()}")
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def __str__(self) -> str:
        return self._name

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]


class GuardedDict(dict[Any, Any]):
    """A dictionary that reports every change without the lock."""

    def __init__(self, name: str, content: dict[Any, Any], lock: CheckedLock, found: list[str]) -> None:
        super().__init__(content)
        self._name, self._guard, self._found = name, lock, found

    def _check(self) -> None:
        if not self._guard._is_owned():
            self._found.append(f"{self._name} is changed without {self._guard}:\n{_stack()}")

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self:
            self._check()
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._check()
        super().__delitem__(key)

    def setdefault(self, key: Any, value: Any = None) -> Any:
        if key not in self:
            self._check()
        return super().setdefault(key, value)

    def pop(self, key: Any, *default: Any) -> Any:
        if key in self:
            self._check()
        return super().pop(key, *default)

    def clear(self) -> None:
        if self:
            self._check()
        super().clear()


def _guard(owner: Any, lock: Any, found: list[str]) -> None:
    """Have a lock guard the dictionaries of an object."""
    for name, value in vars(owner).items():
        if type(value) is dict:
            setattr(owner, name, GuardedDict(f"{type(owner).__name__}.{name}", value, lock, found))


def _stack() -> str:
    return "".join(traceback.format_stack(limit=10)[:-2])


@contextmanager
def lock_order() -> Iterator[None]:
    """Watch every engine that is created in the block. Fails at the end if a lock was taken in the wrong order, or
    something was changed without it."""
    found: list[str] = []
    make = ProducerEngine.__init__

    def made(engine: Any, *args: Any, **kwargs: Any) -> None:
        make(engine, *args, **kwargs)
        locks = engine.shared.lock, engine.accumulator._lock, engine.admission._lock = [
            CheckedLock(name, found) for name in ("the engine's lock", "the accumulator's", "the admission's")
        ]
        locks[0].others = [locks[1], locks[2]]
        locks[1].others = [locks[0]]
        locks[2].others = [locks[0]]
        for owner in engine.shared.streams, engine.shared.table, engine.tracker:
            _guard(owner, locks[0], found)
        for presence in engine.shared.presence._sites.values():
            _guard(presence, locks[0], found)

        release = engine.admission.release

        def released(size: int) -> None:
            if not locks[0]._is_owned():
                found.append(f"room is given back without {locks[0]}:\n{_stack()}")
            release(size)

        engine.admission.release = released

    def shared(*args: Any) -> Shared:
        state = share(*args)
        for owner in state.buffers, state.core, state.absent, state.quarantine:
            _guard(owner, state.lock, found)
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProducerEngine, "__init__", made)
        patch.setattr("reliamsg.consumer.shared.RLock", lambda: CheckedLock("the consumer's lock", found))
        patch.setattr("reliamsg.consumer.engine.share", shared)
        yield
    assert not found, found[0]
