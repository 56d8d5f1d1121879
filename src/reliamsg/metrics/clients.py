"""The clients that one collector observes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

from reliamsg import forks
from reliamsg.config import check_name
from reliamsg.errors import ClosedError, ConfigError, ForkedError
from reliamsg.metrics.counts import Counts, Totals
from reliamsg.metrics.readings import Readings, Role, add_status, add_totals
from reliamsg.runtime.observation import JournalListeners, State, observed

__all__ = ["Clients"]


@dataclass(frozen=True, slots=True)
class _Client:
    """One opening of a client. It keeps neither the client nor its file alive."""

    role: Role
    name: str
    client: weakref.ref[object]
    listeners: weakref.ref[JournalListeners]
    """Once these are gone, nothing adds to the counts any more."""
    counts: Counts


class Clients:
    """Producers and consumers, and the sums of their journals since each of them was added.

    Counters outlive their client: once it is closed and forgotten, its sums become part of those of its name. Values of
    clients with the same name and role are added up. All methods may be called on any thread. In a child process after
    ``fork()`` there are no clients and all sums are 0: the parent process counts for its own clients.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._generation = forks.generation
        # Reentrant, since a finalizer may run while it is held. No client's thread waits for it.
        self._lock = threading.RLock()
        self._clients: list[_Client] = []
        self._ended: dict[tuple[Role, str], Totals] = {}
        """The sums of clients that are gone, by role and name."""
        self._sites: dict[tuple[Role, str], frozenset[str]] = {}
        """The sites that these and others had."""

    def add(self, clients: Iterable[object], name: str = "") -> None:
        """Observe these clients from now on. Adding one again changes nothing.

        Raises :class:`ConfigError` for anything that is no client or was added with another name, and for names that
        are invalid; :class:`ClosedError` for a client that is not open.
        """
        self._check_fork()
        if name != "":
            check_name("name", name)
        for each in clients:
            found = observed(each)
            with self._lock:
                before = [known for known in self._clients if known.client() is found.client]
                if any(known.name != name for known in before):
                    raise ConfigError(f"{each!r} is observed already, as {before[0].name!r}")
                if before:
                    continue
                counts = Counts()
                key = found.role, name
                self._sites[key] = self._sites.get(key, frozenset()) | frozenset(found.sites)
                self._clients.append(
                    _Client(found.role, name, weakref.ref(found.client), weakref.ref(found.listeners), counts)
                )
            found.listen(counts)

    def read(self) -> Readings:
        """The values of all metrics now. This asks every open client for its status."""
        self._check_fork()
        readings = Readings()
        with self._lock:
            self._end()
            totals = {key: ended.copy() for key, ended in self._ended.items()}
            for client in self._clients:
                totals.setdefault((client.role, client.name), Totals()).add(client.counts.totals())
            clients = list(self._clients)
            sites = dict(self._sites)
        for key, sums in totals.items():
            add_totals(readings, *key, sites[key], sums)
        for client in clients:
            state = _state(client.client())
            if state is not None:
                add_status(readings, client.role, client.name, state)
        return readings

    def _end(self) -> None:
        """Keep only the sums of clients that are gone."""
        gone = [client for client in self._clients if client.listeners() is None]
        for client in gone:
            self._ended.setdefault((client.role, client.name), Totals()).add(client.counts.totals())
            self._clients.remove(client)

    def _check_fork(self) -> None:
        if self._generation != forks.generation:
            self._reset()


def _state(client: object) -> State | None:
    """What a client shows; None if it is closed."""
    if client is None:
        return None
    try:
        return observed(client).look()
    except (ClosedError, ForkedError):
        return None
