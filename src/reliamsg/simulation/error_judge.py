"""Judges the errors of clients: those that terminate them, those that they report, and those that must never be
raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reliamsg.errors import (
    DeadLetterHalt,
    GroupBusy,
    InboxIndeterminate,
    InboxWriteError,
    OutboxIndeterminate,
    OutboxWriteError,
    ProducerConflict,
    ProducerFenced,
    QuarantineFull,
    ReliamsgError,
)
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.oracle import Oracle

__all__ = ["ErrorJudge"]


class ErrorJudge:
    """Compares errors with the faults of the run."""

    def __init__(self, oracle: Oracle, faults: Faults, incidents: Incidents) -> None:
        self.internal_error: BaseException | None = None
        """The first error that must never be raised."""
        self._oracle, self._faults, self._incidents = oracle, faults, incidents

    def terminated(self, client: str, error: ReliamsgError, *, halts: bool) -> None:
        """A client terminated with an error: is it justified? `halts`: it is configured to halt at dead letters."""
        struck = self._faults.struck
        reasons: list[tuple[type[ReliamsgError], Callable[[], bool]]] = [
            (OutboxIndeterminate, lambda: "fsync_error" in struck),
            (InboxIndeterminate, lambda: "fsync_error" in struck),
            (OutboxWriteError, lambda: "disk_full" in struck),
            (InboxWriteError, lambda: "disk_full" in struck),
            (GroupBusy, lambda: True),
            (ProducerFenced, lambda: self._incidents.outbox_replaced),
            (DeadLetterHalt, lambda: halts and "handler_failed" in struck),
            (QuarantineFull, lambda: True),  # judged together with the streams that it stalls
        ]
        if not any(isinstance(error, kind) and holds() for kind, holds in reasons):
            self._oracle.violate("stopped", f"{client}: {type(error).__name__}: {error}")

    def reported(self, client: str, errors: Iterable[BaseException]) -> None:
        """A client reported errors to its application: are they true?"""
        for error in errors:
            # Reporting a forgery is justified.
            excused = self._incidents.outbox_replaced or self._incidents.names_impersonated(str(error))
            if isinstance(error, ProducerConflict) and not excused:
                self._oracle.violate("false_alarm", f"{client}: {error}")

    def raised(self, client: str, error: BaseException) -> None:
        """A client raised an error that the product must never raise."""
        self._oracle.violate("internal_error", f"{client}: {error!r}")
        self.internal_error = self.internal_error or error

    def spins(self, client: str, times: int) -> None:
        """A client's engine asked to be called again at once, `times` times in a row."""
        self._oracle.violate("spins", f"{client} has been called {times:,} times in a row")
