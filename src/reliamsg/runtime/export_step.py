"""The export of a client's journal, as one step of its worker."""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.config import JournalExport
from reliamsg.export.exporter import Exporter, JournalStatus
from reliamsg.export.segments import JournalSource
from reliamsg.runtime.clock import microseconds
from reliamsg.runtime.environment import Environment

__all__ = ["CLOSING_EXPORT_S", "ExportStep", "JournalSource", "Stepped"]

CLOSING_EXPORT_S = 0.5
"""A target has this long for the last segment, even if closing has no time left."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What came of a step."""

    deadline: float | None
    """When there will be more to do; None for never, unless rows are added."""
    full_changed: bool
    """:attr:`ExportStep.full` is not what it was."""


NOTHING = Stepped(None, False)


class ExportStep:
    """One client's, which may have no target. All methods are the worker's; `full`, `why_full` and :meth:`status` may
    be read on any thread."""

    def __init__(self, export: JournalExport | None, source: JournalSource, environment: Environment) -> None:
        self._clock = environment.clock
        self._exporter = None if export is None else Exporter(
            export, source, wake=environment.waker.wake, now=self._clock.now(), probe=environment.probe,
        )  # fmt: skip
        self.has_target = export is not None
        """Whether the journal leaves its client at all."""
        self.rows_left = 0
        """Rows that did not reach the target before the file was closed."""

    def step(self, now: float) -> Stepped:
        """Do what is due. Raises what is fatal to the client's file."""
        exporter = self._exporter
        if exporter is None:
            return NOTHING
        was_full = exporter.full
        deadline = exporter.step(now, self._clock.wall_us(), microseconds(now))
        return Stepped(deadline, exporter.full != was_full)

    def finish(self, deadline: float) -> None:
        """Export what is left until `deadline` by the engine's clock, or for :data:`CLOSING_EXPORT_S`, if that is
        longer. Afterwards the file may be closed."""
        if self._exporter is not None:
            by = max(deadline, self._clock.now() + CLOSING_EXPORT_S)
            self.rows_left = self._exporter.finish(by, self._clock.now)

    def stop(self) -> None:
        """Export nothing more. A write in progress continues; calling this again does nothing."""
        if self._exporter is not None:
            self._exporter.stop()

    @property
    def full(self) -> bool:
        """Whether so much waits for the target that nothing more may happen until segments have left."""
        return self._exporter is not None and self._exporter.full

    @property
    def why_full(self) -> str:
        """The message for callers that this holds up; empty if there are none."""
        return self._exporter.why_full if self._exporter is not None and self._exporter.full else ""

    def status(self) -> JournalStatus | None:
        """The export now; None without a target."""
        return None if self._exporter is None else self._exporter.status()
