"""The export of a client's journal, as one step of its worker."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.config import JournalExport
from reliamsg.export.exporter import Exporter, JournalStatus
from reliamsg.export.segments import JournalSource
from reliamsg.runtime.environment import Environment

__all__ = ["CLOSING_EXPORT_S", "ExportStep", "JournalSource", "Stepped"]

CLOSING_EXPORT_S = 0.5
"""The minimum time for writing the last segment, even if closing has no time left."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The result of a step."""

    deadline: float | None
    """The time of the next step; None if there is none unless rows are added."""
    full_changed: bool
    """Whether :attr:`ExportStep.full` has changed."""


NOTHING = Stepped(None, False)


class ExportStep:
    """The export of one client, which may have no target. For the worker's thread, except `full`, `why_full` and
    :meth:`status`."""

    def __init__(self, export: JournalExport | None, source: JournalSource, environment: Environment) -> None:
        self._clock = environment.clock
        self._exporter = None if export is None else Exporter(
            export, source, wake=environment.waker.wake, now=self._clock.now(), threads=environment.threads,
            probe=environment.probe,
        )  # fmt: skip
        self.has_target: bool = export is not None
        """Whether the journal is exported."""
        self.rows_left: int = 0
        """The number of rows that were not exported when the file was closed."""

    def step(self, now: float) -> Stepped:
        """Do the due work. Raises errors that are fatal to the client's file."""
        exporter = self._exporter
        if exporter is None:
            return NOTHING
        was_full = exporter.full
        deadline = exporter.step(now, self._clock.wall_us(), self._clock.now_us())
        return Stepped(deadline, exporter.full != was_full)

    def finish(self, deadline: float) -> None:
        """Export the remaining rows until `deadline` by the engine's clock, but at least for :data:`CLOSING_EXPORT_S`.
        Afterwards the file may be closed."""
        if self._exporter is not None:
            by = max(deadline, self._clock.now() + CLOSING_EXPORT_S)
            self.rows_left = self._exporter.finish(by, self._clock.now)

    def stop(self) -> None:
        """Stop exporting. A write in progress continues. Idempotent."""
        if self._exporter is not None:
            self._exporter.stop()

    @property
    def full(self) -> bool:
        """Whether the client must not continue until segments were exported."""
        return self._exporter is not None and self._exporter.full

    @property
    def why_full(self) -> str:
        """The message for blocked callers; empty if the client may continue."""
        return self._exporter.why_full if self._exporter is not None and self._exporter.full else ""

    def status(self) -> JournalStatus | None:
        """The state of the export; None without a target."""
        return None if self._exporter is None else self._exporter.status()
