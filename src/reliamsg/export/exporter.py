"""Exports the journal of a running client to its target.

The client's writer thread calls :meth:`Exporter.step` after its other work, with the time as an argument; all access to
the export state happens there. A separate thread for each segment reads the rows and writes the segment, with retries,
so that a slow or unavailable target never blocks the client.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    wait_random_exponential,
)

from reliamsg.config import JournalExport
from reliamsg.errors import FatalError, JournalTargetError, ReliamsgError
from reliamsg.export.heads import HeadWriter
from reliamsg.export.segments import JournalSource, check_client, make_segment
from reliamsg.export.target import open_target
from reliamsg.logs import Log
from reliamsg.store.exported import Cut
from reliamsg.store.journal import Entry
from reliamsg.store.segment import Segment

__all__ = ["Exporter", "JournalStatus", "Threads"]

log: Log = Log("reliamsg.export")

BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
"""Bounds of the pauses between attempts to write to a failing target: exponential with jitter, without end."""
STORE_RETRY_S = 1.0
"""Pause after a failed write to the client's own file."""


class Threads(Protocol):
    """Starts threads."""

    def start(self, name: str, function: Callable[[], object]) -> None:
        """Call a function on a thread of its own."""


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The state of the export of a client's journal."""

    target: str
    """The target without credentials."""
    backlog_rows: int
    """Rows that are committed and not exported."""
    exported_lsn: int
    """Every row up to this one is at the target, or was truncated."""
    full: bool
    """The backlog is so large that the client has stopped accepting or delivering messages."""
    error: str
    """The error of the latest attempt; empty after a success."""


class Exporter:
    """Exports one client's journal. For the writer thread, except :meth:`status`, :attr:`full` and :attr:`why_full`.

    `wake` is called on another thread to request a call of :meth:`step`. `probe` is called with ``journal_cut``,
    ``journal_written`` (on another thread), ``journal_recorded``, ``journal_idle`` and ``journal_head`` (on another
    thread).

    The constructor raises :class:`ConfigError` if there is no package for the target's protocol, or if the client's
    name can't be the name of a directory.
    """

    def __init__(
        self,
        export: JournalExport,
        source: JournalSource,
        *,
        wake: Callable[[], None],
        now: float,
        threads: Threads,
        probe: Callable[[str], None] | None = None,
    ) -> None:
        self._export = export
        self._source = source
        self._client = check_client(source.client)
        self._exported = exported = source.exported
        self._probe = probe or _no_probe
        self._threads = threads
        self._target = open_target(export.target)
        self._closing = threading.Event()
        self._last_attempt = self._stopped = False
        self._gave_up = False
        """An attempt failed after closing had begun."""
        self._retrying = Retrying(
            retry=retry_if_exception(_is_transient),
            wait=wait_random_exponential(multiplier=2 * BACKOFF_MIN_S, max=BACKOFF_MAX_S, min=BACKOFF_MIN_S),
            stop=lambda _: self._last_attempt,
            sleep=sleep_using_event(self._closing),
            before_sleep=self._attempt_failed,
            reraise=True,
        )
        self._wake = wake
        self._writing: tuple[Cut, Future[None]] | None = None
        """The cut that is being written, and the outcome of its thread."""
        self._segment: Segment | None = None
        """The encoded segment of the pending cut, kept for the next attempt."""
        self._done: Cut | None = None
        """A cut whose segment is at the target, which is not recorded yet."""
        self._next_at = now + export.interval
        """When the next segment is cut, unless it becomes urgent earlier."""
        self._retry_at = now
        """No access to the client's file before this time."""
        self._heads = HeadWriter(
            self._target, source, export.key, wake=self._request_step, now=now, probe=self._probe
        )
        backlog = exported.backlog
        self._excused = backlog if backlog > export.max_backlog_rows else 0
        """Rows from before the opening, which do not count until they are exported or the target fails."""
        self.full: bool = False
        """The client must not continue until segments were exported. Read on any thread."""
        self.error: str = ""

    # -- the writer thread ----------------------------------------------------------------------------------

    def step(self, now: float, wall_us: int = 0, mono_us: int = 0) -> float | None:
        """Do the due work. Returns the time of the next work unless rows are added, None if there is none.

        Raises errors that are fatal to the client's file; after other errors of the file, retries later.
        """
        try:
            self._advance(now)
            self._bound(wall_us, mono_us)
            self._state_idle(now, wall_us, mono_us)
        except FatalError:
            raise
        except ReliamsgError as error:
            log.warning(
                "export.retried", "%(reason)s; the journal's export is retried",
                client=self._client, reason=str(error),
            )  # fmt: skip
            self._retry_at = now + STORE_RETRY_S
        return self._deadline()

    def _advance(self, now: float) -> None:
        self._collect()
        self._record(now)
        self._start(now)

    def _state_idle(self, now: float, wall_us: int, mono_us: int) -> None:
        """Write a head if it is time."""
        if self._heads.collect():
            self.error = self._heads.error
        if now >= self._retry_at and not self._closing.is_set():
            self._heads.step(now, wall_us, mono_us)

    def _deadline(self) -> float | None:
        if self._writing is not None:
            return None
        if self._done is not None or self._exported.cut_pending is not None or self._urgent:
            return self._retry_at
        if self._exported.backlog:
            return max(self._retry_at, self._next_at)
        head_at = self._heads.deadline
        return None if head_at is None else max(self._retry_at, head_at)

    @property
    def _urgent(self) -> bool:
        exported = self._exported
        waiting = exported.backlog
        return waiting > 0 and (
            self._closing.is_set() or waiting >= self._export.segment_rows or exported.has_earlier_boots
        )

    def _collect(self) -> None:
        """Take the outcome of a segment's thread."""
        if self._writing is None or not self._writing[1].done():
            return
        (cut, outcome), self._writing = self._writing, None
        error = outcome.exception()
        if isinstance(error, FatalError):
            raise error
        if error is not None:
            self.error, self._gave_up = str(error), True
            return
        if self.error:
            log.info(
                "export.target_back", "journal of %(client)s: %(target)s accepts segments again",
                client=self._client, target=self._target.shown,
            )  # fmt: skip
        self.error = ""
        self._done = cut

    def _record(self, now: float) -> None:
        """The third step of an export."""
        if self._done is None or now < self._retry_at:
            return
        assert self._segment is not None  # made before it was written
        self._exported.finish(self._done, self._segment.digest)
        self._done = self._segment = None
        self._heads.exported(now)
        if self._exported.backlog <= self._export.max_backlog_rows:
            self._excused = 0
        self._probe("journal_recorded")

    def _start(self, now: float) -> None:
        """The first step of an export, and the start of the second."""
        if self._writing is not None or self._done is not None or self._gave_up or now < self._retry_at:
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
        self._writing = cut, Future()
        name = f"reliamsg-journal-{self._client}"
        self._threads.start(name, partial(self._write, *self._writing))

    def _bound(self, wall_us: int, mono_us: int) -> None:
        """Keep the backlog within its limit."""
        if self.error:
            self._excused = 0
        most = self._export.max_backlog_rows + self._excused
        over = self._exported.backlog >= most
        if self._export.when_full == "block":
            if over != self.full:
                self.full = over
                rows = self._exported.backlog
                if over:
                    log.warning(
                        "export.backlog_full",
                        "journal of %(client)s: %(rows)d rows wait for %(target)s; the client stops",
                        client=self._client, rows=rows, target=self._target.shown, reason=self.error or None,
                    )  # fmt: skip
                else:
                    log.info(
                        "export.backlog_has_room",
                        "journal of %(client)s: %(rows)d rows wait for %(target)s; the client continues",
                        client=self._client, rows=rows, target=self._target.shown,
                    )  # fmt: skip
        elif self._exported.backlog > most:
            # Some rows more than necessary, so that this does not happen for every new row.
            keep = most - max(1, most // 10) - 1
            entry = Entry("truncated", group=self._client if self._source.role == "group" else "")
            deleted = self._exported.truncate(max(0, keep), entry, wall_us, mono_us)
            if deleted:
                log.error(
                    "export.rows_deleted",
                    "journal of %(client)s: %(rows)d rows deleted because %(target)s is unavailable: %(reason)s",
                    client=self._client, rows=deleted, target=self._target.shown,
                    reason=self.error or "it does not answer",
                )  # fmt: skip

    def finish(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> int:
        """Export the remaining rows, ``closed`` included, until `deadline` (by `clock`); returns the number of rows
        that stay in the file. Gives up at the first failed attempt. Afterwards the file may be closed."""
        self._closing.set()
        self._retry_at = clock()
        try:
            self._advance(clock())
            while self._exported.backlog and not self._gave_up:
                if (
                    self._writing is not None
                    and not wait([self._writing[1]], max(0.0, deadline - clock())).done
                ):
                    self.error = "it did not answer in time"
                    break
                self._advance(clock())
        except ReliamsgError as error:
            self.error = str(error)
        self.stop()
        left = self._exported.backlog
        if left:
            log.warning(
                "export.rows_left",
                "journal of %(client)s: %(rows)d rows stay in %(file)s (%(reason)s): they are exported when it is"
                " opened again, or by 'reliamsg journal export'",
                client=self._client, rows=left, file=os.fspath(self._source.path),
                reason=self.error or "it can't be written",
            )  # fmt: skip
        return left

    def stop(self) -> None:
        """Stop exporting. A running write continues in the background. Idempotent."""
        self._stopped = True
        self._closing.set()

    # -- any thread -----------------------------------------------------------------------------------------

    def status(self) -> JournalStatus:
        """The current state of the export."""
        exported = self._exported
        return JournalStatus(
            self._target.shown, exported.backlog, exported.exported_lsn, self.full, self.error
        )

    @property
    def why_full(self) -> str:
        """The message for applications whose calls are blocked or refused."""
        return (
            f"{self._exported.backlog} rows of the journal wait for {self._target.shown}, and the limit is"
            f" {self._export.max_backlog_rows}: {self.error or 'it has not accepted them yet'}"
        )

    # -- a segment's thread ----------------------------------------------------------------------------------

    def _write(self, cut: Cut, outcome: Future[None]) -> None:
        """The second step of an export, repeated until it succeeds."""
        try:
            self._retrying(self._try_to_write, cut)
        except Exception as error:  # noqa: BLE001  (raised or reported by the writer thread)
            outcome.set_exception(error)
        else:
            outcome.set_result(None)
        self._request_step()

    def _try_to_write(self, cut: Cut) -> None:
        self._last_attempt = self._closing.is_set()
        if self._stopped:
            raise JournalTargetError("the export was stopped")
        if self._segment is None:
            self._segment = make_segment(self._source, cut, self._export.key)
        self._target.write(self._segment.path, self._segment.data)
        self._probe("journal_written")

    def _attempt_failed(self, state: RetryCallState) -> None:
        assert state.outcome is not None  # of the attempt
        error = state.outcome.exception()
        if not self.error:
            log.warning(
                "export.target_failed", "journal of %(client)s: %(reason)s; it is retried",
                client=self._client, target=self._target.shown, reason=str(error),
            )  # fmt: skip
        self.error = str(error)
        self._request_step()

    def _request_step(self) -> None:
        if not self._stopped:  # afterwards the writer thread may be gone
            self._wake()


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, FatalError)


def _no_probe(point: str) -> None:
    """The default `probe`: nothing observes the export."""
