"""State of an application that survives its crashes, and the points at which it may crash or fail."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar, overload

__all__ = ["DurableDatabase", "DurableDict", "DurableList", "Hazards", "SimulatedFailure"]

K = TypeVar("K")
V = TypeVar("V")

WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "DROP", "ALTER")


class SimulatedFailure(ConnectionError):
    """An operation of a simulation failed, as one of a real service may: before or after it took effect."""


class Hazards(Protocol):
    """What may happen around each change of what survives a crash."""

    def before(self, what: str, error: Exception) -> None:
        """A change is about to be made. Raises `error` if the change fails, and something else if the process crashes
        first."""

    def after(self, what: str, error: Exception | None = None) -> None:
        """A change was made. Raises `error` if the caller does not learn that it was made, and something else if the
        process crashes now."""


class _Changes:
    """Makes changes that may fail."""

    def __init__(self, name: str, hazards: Hazards) -> None:
        self._name, self._hazards = name, hazards

    def make(self, what: str, change: Callable[[], object]) -> None:
        self._hazards.before(f"{what} {self._name}", SimulatedFailure(f"{self._name} does not answer"))
        change()
        self._hazards.after(f"{what} {self._name}", SimulatedFailure(f"the answer of {self._name} is lost"))


class DurableList(MutableSequence[V]):
    """A list that survives crashes.

    Each change is atomic. It may fail with a :class:`SimulatedFailure`, which does not say whether the change was
    made, like a call over a network. Values are copied when they are stored and when they are read.
    """

    def __init__(self, name: str, hazards: Hazards) -> None:
        self._values: list[V] = []
        self._changes = _Changes(name, hazards)

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> MutableSequence[V]: ...
    def __getitem__(self, index: int | slice) -> V | MutableSequence[V]:
        return copy.deepcopy(self._values[index])

    @overload
    def __setitem__(self, index: int, value: V) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[V]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        kept = copy.deepcopy(value)
        self._changes.make("changing", lambda: self._values.__setitem__(index, kept))

    def __delitem__(self, index: int | slice) -> None:
        self._changes.make("deleting from", lambda: self._values.__delitem__(index))

    def __len__(self) -> int:
        return len(self._values)

    def insert(self, index: int, value: V) -> None:
        kept = copy.deepcopy(value)
        self._changes.make("adding to", lambda: self._values.insert(index, kept))

    def __repr__(self) -> str:
        return repr(self._values)


class DurableDict(MutableMapping[K, V]):
    """A dictionary that survives crashes; see :class:`DurableList`."""

    def __init__(self, name: str, hazards: Hazards) -> None:
        self._values: dict[K, V] = {}
        self._changes = _Changes(name, hazards)

    def __getitem__(self, key: K) -> V:
        return copy.deepcopy(self._values[key])

    def __setitem__(self, key: K, value: V) -> None:
        kept = copy.deepcopy(value)
        self._changes.make("changing", lambda: self._values.__setitem__(key, kept))

    def __delitem__(self, key: K) -> None:
        if key not in self._values:
            raise KeyError(key)
        self._changes.make("deleting from", lambda: self._values.__delitem__(key))

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class DurableDatabase:
    """An SQLite database that survives crashes up to its last commit.

    A commit may fail with :class:`sqlite3.OperationalError`; then nothing of the transaction is committed, and it
    remains open until it is rolled back.
    """

    def __init__(self, path: Path, hazards: Hazards) -> None:
        self.path = path
        self._hazards = hazards
        self._connections: list[_Connection] = []

    def connect(self, **options: Any) -> sqlite3.Connection:
        """A connection. `options`: those of :func:`sqlite3.connect`. When the process ends, it is closed, and an
        open transaction is rolled back."""
        connection = _Connection(self.path, hazards=self._hazards, **{"timeout": 0.0} | options)
        connection.execute("PRAGMA synchronous=OFF")
        self._connections.append(connection)
        return connection

    def end_process(self) -> None:
        """The process that had connections is gone."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()


class _Cursor(sqlite3.Cursor):
    """A connection makes one of these for each statement of its own, too."""

    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        word = sql.split(None, 1)[0].rstrip(";").upper() if sql.strip() else ""
        connection: Any = self.connection
        if word in ("COMMIT", "END"):
            connection.commit()
            return self
        alone = word in WRITES and connection.isolation_level is None and not connection.in_transaction
        if alone:
            connection.before_commit()
        super().execute(sql, parameters)
        if alone:
            connection.after_commit()
        return self


class _Connection(sqlite3.Connection):
    """Its commits are points at which the process may crash."""

    def __init__(self, *arguments: Any, hazards: Hazards, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._hazards = hazards

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def before_commit(self) -> None:
        self._hazards.before("a commit", sqlite3.OperationalError("database is locked"))

    def after_commit(self) -> None:
        self._hazards.after("a commit")

    def commit(self) -> None:
        if not self.in_transaction:
            return
        self.before_commit()
        super().commit()
        self.after_commit()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if kind is not None:
            self.rollback()
            return False
        try:
            self.commit()
        except sqlite3.Error:
            self.rollback()
            raise
        return False
