"""How clients are observed from outside, by metrics: their committed journal entries, and their status.

Each kind of client registers itself with :func:`observed`, so that who observes need not import the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal

from reliamsg.errors import ConfigError
from reliamsg.logs import Log
from reliamsg.store.journal import Entry

__all__ = ["JournalListener", "JournalListeners", "Observed", "State", "client_name", "observed"]

JournalListener = Callable[[Sequence[Entry]], object]
"""Called on the writer's thread after each commit. It must be quick, and must not block."""


class JournalListeners:
    """Passes entries to any number of listeners; :meth:`Journal.listen <reliamsg.store.journal.Journal.listen>` takes
    one. A listener that raises is logged and removed: it must not stop the client."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._listeners: list[JournalListener] = []

    def add(self, listener: JournalListener) -> None:
        """Pass entries to this listener, too. On any thread."""
        self._listeners.append(listener)

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __call__(self, entries: Sequence[Entry]) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(entries)
            except Exception as error:  # noqa: BLE001  (logged; the client must go on)
                self._log.error(
                    "client.journal_listener_failed",
                    "a listener to the journal raised, and is not called any more",
                    error=type(error).__name__, exc_info=True,
                )  # fmt: skip
                self._listeners.remove(listener)


@dataclass(frozen=True, slots=True)
class State:
    """What an open client shows besides its journal."""

    status: Any
    """Its :class:`ProducerStatus` or :class:`ConsumerStatus`."""
    used_bytes: int
    """The part of `limit_bytes` that is used."""
    limit_bytes: int
    """``max_bytes`` or ``max_inbox_bytes``."""
    failed: bool
    """An error has stopped the client."""


@dataclass(frozen=True, slots=True)
class Observed:
    """An open client, as those see it who observe it. Not to be kept: it refers to the client."""

    client: object
    """The blocking client, also for one of an event loop."""
    role: Literal["producer", "consumer"]
    sites: tuple[str, ...]
    """The names of its sites."""
    listeners: JournalListeners
    """Gone with the client and its file: no entry can follow then."""
    listen: Callable[[JournalListener], None]
    """Pass committed journal entries to a listener from now on."""
    look: Callable[[], State]
    """Its state now; on any thread. It takes as long as ``status()``."""


@singledispatch
def observed(client: object) -> Observed:
    """How to observe a client that is open in this process.

    Raises :class:`ConfigError` for anything else, :class:`ClosedError` for one that is not open, and
    :class:`ForkedError` for one of the parent process.
    """
    raise ConfigError(f"not a producer or consumer of reliamsg: {type(client).__name__}")


@singledispatch
def client_name(client: object) -> str:
    """The producer id of a producer, or the group of a consumer, whether or not it is open. Raises
    :class:`ConfigError` for anything else."""
    raise ConfigError(f"not a producer or consumer of reliamsg: {type(client).__name__}")
