"""Keeps a running client's journal flowing to its target.

The client's writer thread calls :meth:`Exporter.step`, with the time as an argument, whenever it has done its own work;
everything that uses the file's state happens there. Reading the rows and writing the segment happens on one thread of
the exporter's own, so that a target that is slow or away never holds the client up.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from reliamsg.config import JournalExport
from reliamsg.errors import FatalError, ReliamsgError
from reliamsg.export.segments import Role, check_client, make_segment
from reliamsg.export.target import open_target
from reliamsg.store.exported import Cut, Exported
from reliamsg.store.journal import Entry
from reliamsg.store.segment import Segment

__all__ = ["Exporter", "JournalStatus"]

log = logging.getLogger("reliamsg.export")

BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
"""Pauses between attempts at a target that fails: exponential with jitter between these two, for ever."""
STORE_RETRY_S = 1.0
"""After the client's own file could not be written."""


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The export of a client's journal at one moment."""

    target: str
    """Without login."""
    backlog_rows: int
    """Rows that are committed and not exported."""
    exported_lsn: int
    """Every row up to this one is at the target, or was given up."""
    full: bool
    """So much waits that the client has stopped taking or handing out messages."""
    error: str
    """Why the latest attempt failed; empty once one succeeded."""


class Exporter:
    """One client's. All methods but :meth:`status` and :attr:`full` are the writer thread's.

    `wake` has :meth:`step` called soon, and may be called on any thread. `probe` is told ``journal_cut``,
    ``journal_written`` (on the exporter's thread) and ``journal_recorded``.

    Raises :class:`ConfigError` at construction when there is no package for the target's protocol, or the client's name
    can't be a directory's.
    """

    def __init__(
        self,
        export: JournalExport,
        role: Role,
        client: str,
        path: str | os.PathLike[str],
        exported: Exported,
        *,
        wake: Callable[[], None],
        now: float,
        probe: Callable[[str], None] | None = None,
    ) -> None:
        self._export = export
        self._role: Role = role
        self._client = check_client(client)
        self._path = path
        self._exported = exported
        self._probe = probe or _no_probe
        self._target = open_target(export.target)
        self._worker = _Worker(f"reliamsg-journal-{client}", self._make_and_write, wake)
        self._segment: Segment | None = None
        """The pending cut's, once it was made: kept for the next attempt."""
        self._done: Cut | None = None
        """A cut whose segment is at the target, and not noted yet."""
        self._failures = 0
        """In a row."""
        self._next_at = now + export.interval
        """When what waits is cut, if nothing makes it urgent."""
        self._retry_at = now
        self._closing = False
        backlog = exported.backlog
        self._excused = backlog if backlog > export.max_backlog_rows else 0
        """What the file held already does not count until it is gone, or the target fails."""
        self.full = False
        """Nothing more may happen until segments have left. Read on any thread."""
        self.error = ""

    # -- the writer thread ----------------------------------------------------------------------------------

    def step(self, now: float, wall_us: int = 0, mono_us: int = 0) -> float | None:
        """Do what is due; returns when there will be more to do unless rows are added, None for never.

        Raises what is fatal to the client's file; other errors of it are logged, and tried again.
        """
        try:
            self._advance(now)
            self._bound(wall_us, mono_us)
        except FatalError:
            raise
        except ReliamsgError as error:
            log.warning("%s; the journal's export is tried again", error)
            self._retry_at = now + STORE_RETRY_S
        return self._deadline()

    def _advance(self, now: float) -> None:
        self._collect(now)
        self._record(now)
        self._start(now)

    def _deadline(self) -> float | None:
        if self._worker.busy:
            return None
        if self._done is not None or self._exported.cut_pending is not None or self._urgent:
            return self._retry_at
        return max(self._retry_at, self._next_at) if self._exported.backlog else None

    @property
    def _urgent(self) -> bool:
        exported = self._exported
        waiting = exported.backlog
        return waiting > 0 and (
            self._closing or waiting >= self._export.segment_rows or exported.has_earlier_boots
        )

    def _collect(self, now: float) -> None:
        """Take what the worker has done."""
        outcome = self._worker.take()
        if outcome is None:
            return
        cut, error = outcome
        if error is None:
            if self.error:
                log.info("journal of %s: %s takes segments again", self._client, self._target.shown)
            self.error = ""
            self._failures = 0
            self._retry_at = now
            self._done = cut
            return
        if isinstance(error, FatalError):
            raise error
        if not self.error:
            log.warning("journal of %s: %s; tried again", self._client, error)
        self.error = str(error)
        self._excused = 0
        self._failures += 1
        self._retry_at = now + _pause(self._failures)

    def _record(self, now: float) -> None:
        """The third step."""
        if self._done is None or now < self._retry_at:
            return
        assert self._segment is not None  # made before it was written
        self._exported.finish(self._done, self._segment.digest)
        self._done = self._segment = None
        if self._exported.backlog <= self._export.max_backlog_rows:
            self._excused = 0
        self._probe("journal_recorded")

    def _start(self, now: float) -> None:
        """The first step, and having the second one done."""
        if self._worker.busy or self._done is not None or now < self._retry_at:
            return
        if self._exported.cut_pending is None:
            if not self._exported.backlog or not (self._urgent or now >= self._next_at):
                return
            if self._exported.cut(self._export.segment_rows) is None:
                return
            self._next_at = now + self._export.interval
            self._probe("journal_cut")
        cut = self._exported.cut_pending
        assert cut is not None  # made above, or pending
        self._worker.put(cut)

    def _bound(self, wall_us: int, mono_us: int) -> None:
        """Hold the backlog within its limit."""
        most = self._export.max_backlog_rows + self._excused
        over = self._exported.backlog >= most
        if self._export.when_full == "block":
            if over != self.full:
                self.full = over
                log.log(
                    logging.WARNING if over else logging.INFO,
                    "journal of %s: %d rows wait for %s; the client %s",
                    self._client, self._exported.backlog, self._target.shown, "stops" if over else "goes on",
                )  # fmt: skip
        elif self._exported.backlog > most:
            # More than need be, so that this is not done for every row.
            keep = most - max(1, most // 10) - 1
            entry = Entry("truncated", group=self._client if self._role == "group" else "")
            given_up = self._exported.truncate(max(0, keep), entry, wall_us, mono_us)
            if given_up:
                log.error(
                    "journal of %s: %d rows given up, since %s is away: %s",
                    self._client, given_up, self._target.shown, self.error or "it does not answer",
                )  # fmt: skip

    def finish(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> int:
        """Export what is left, ``closed`` included, until `deadline` (by `clock`); returns how many rows stay in the
        file. Gives up where the target fails. Afterwards the file may be closed."""
        self._closing = True
        try:
            # What is on its way was begun before; its failure says little about now.
            if self._worker.busy and self._worker.wait(deadline - clock()):
                self._collect(clock())
            self._retry_at = clock()
            self.error = ""
            self._advance(clock())
            while self._exported.backlog and not self.error:
                if self._worker.busy and not self._worker.wait(deadline - clock()):
                    self.error = "it did not answer in time"
                    break
                self._advance(clock())
        except ReliamsgError as error:
            self.error = str(error)
        self.stop()
        left = self._exported.backlog
        if left:
            log.warning(
                "journal of %s: %d rows stay in %s (%s): they are exported when it is opened again, or by 'reliamsg"
                " journal export'", self._client, left, os.fspath(self._path), self.error or "it can't be written",
            )  # fmt: skip
        return left

    def stop(self) -> None:
        """Export nothing more. What is being written goes on; called again, it does nothing."""
        self._worker.end()

    # -- any thread -----------------------------------------------------------------------------------------

    def status(self) -> JournalStatus:
        """The export now."""
        exported = self._exported
        return JournalStatus(
            self._target.shown, exported.backlog, exported.exported_lsn, self.full, self.error
        )

    @property
    def why_full(self) -> str:
        """What to tell whoever is held up."""
        return (
            f"{self._exported.backlog} rows of the journal wait for {self._target.shown}, and at most"
            f" {self._export.max_backlog_rows} may: {self.error or 'it has not taken them yet'}"
        )

    # -- the exporter's thread ------------------------------------------------------------------------------

    def _make_and_write(self, cut: Cut) -> None:
        """The second step."""
        if self._segment is None:
            self._segment = make_segment(self._path, self._role, self._client, cut)
        self._target.write(self._segment.path, self._segment.data)
        self._probe("journal_written")


class _Worker:
    """A thread that does one job at a time, started for the first one."""

    def __init__(self, name: str, work: Callable[[Cut], None], done: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._done = done  # must not block
        self._changed = threading.Condition()
        self._job: Cut | None = None
        self._outcome: tuple[Cut, Exception | None] | None = None
        self._ended = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether there is a job whose outcome was not taken."""
        return self._job is not None

    def put(self, job: Cut) -> None:
        """Have a job done; only while it is not busy."""
        with self._changed:
            self._job = job
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def take(self) -> tuple[Cut, Exception | None] | None:
        """The outcome of the job, once, when there is one."""
        with self._changed:
            outcome, self._outcome = self._outcome, None
            if outcome is not None:
                self._job = None
            return outcome

    def wait(self, timeout: float) -> bool:
        """Wait for the outcome; False when there is none within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outcome is not None, max(0.0, timeout))

    def end(self) -> None:
        """Do no more. A job that hangs is left behind; the thread ends after it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended or (self._job is not None and self._outcome is None)
                )
                if self._ended:
                    return
                job = self._job
            assert job is not None  # waited for
            error: Exception | None = None
            try:
                self._work(job)
            except Exception as failure:  # noqa: BLE001  (it is reported where the outcome is taken)
                error = failure
            with self._changed:
                self._outcome = job, error
                self._changed.notify_all()
                if not self._ended:  # whoever would be woken may be gone
                    self._done()


def _pause(failures: int) -> float:
    """Seconds until the next attempt, after this many failures in a row."""
    # Bounded, or the power would overflow in the end.
    most = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 64))
    return random.uniform(BACKOFF_MIN_S, most)


def _no_probe(point: str) -> None:
    """Nobody is testing crashes here."""
