"""Writes the head of a running client: what it states while nothing happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from reliamsg.errors import ReliamsgError
from reliamsg.export.segments import JournalSource
from reliamsg.export.target import Target
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.store.head import Head, encode_head, head_path
from reliamsg.store.stamps import LIVENESS_S

__all__ = ["HeadWriter"]

log: Log = Log("reliamsg.export")


class HeadWriter:
    """Replaces a client's head once per liveness interval in which nothing was exported. For the writer thread; a
    separate thread writes each file. A failed write is not repeated before the next interval.

    `wake` is called on another thread to request a call of :meth:`collect`. `probe` is called with ``journal_idle``
    before a file is written, and with ``journal_head`` (on another thread) afterwards.
    """

    def __init__(
        self,
        target: Target,
        source: JournalSource,
        key: KeyRing | None,
        *,
        wake: Callable[[], None],
        now: float,
        probe: Callable[[str], None],
    ) -> None:
        self._target, self._source, self._key = target, source, key
        self._wake, self._probe = wake, probe
        self._due_at = now + LIVENESS_S
        self._writing: Future[None] | None = None
        self._earlier = source.exported.earlier_head
        """An earlier boot whose head is to be removed."""
        self.error: str = ""
        """The error of the latest attempt; empty after a success."""

    @property
    def deadline(self) -> float | None:
        """The time of the next head if no row is written until then; None while one is being written, and before the
        first segment."""
        return None if self._writing is not None or self._source.exported.parent is None else self._due_at

    def exported(self, now: float) -> None:
        """A segment was exported: nothing needs to be stated soon."""
        self._due_at = now + LIVENESS_S

    def collect(self) -> bool:
        """Take the outcome of a write; returns whether there is one."""
        if self._writing is None or not self._writing.done():
            return False
        outcome, self._writing = self._writing.exception(), None
        error = "" if outcome is None else str(outcome)
        if error and not self.error:
            log.warning(
                "export.head_not_written", "journal of %(client)s: %(reason)s; its head is written again later",
                client=self._source.client, reason=error,
            )  # fmt: skip
        self.error = error
        return True

    def step(self, now: float, wall_us: int, mono_us: int) -> None:
        """Begin to write the head if it is due and no row waits for export. Both clocks must have been read together.

        Raises errors of the client's file.
        """
        exported = self._source.exported
        digest = exported.parent
        if self._writing is not None or now < self._due_at or exported.backlog or digest is None:
            return
        self._due_at = now + LIVENESS_S
        if not exported.journal.begun_here:  # the first row of this opening is still to be committed
            return
        stamp_us = exported.note_idle(wall_us, mono_us)
        if stamp_us is None:  # there is a row to export first
            return
        head = Head(
            role=self._source.role, client=self._source.client, boot=exported.journal.boot, lsn=exported.exported_lsn,
            digest=digest, wall_us=stamp_us,
        )  # fmt: skip
        self._probe("journal_idle")
        self._writing = Future()
        name = f"reliamsg-journal-{self._source.client}"
        threading.Thread(target=self._write, args=(head, self._writing), name=name, daemon=True).start()

    def _write(self, head: Head, outcome: Future[None]) -> None:
        try:
            self._target.replace(head_path(head.role, head.client, head.boot), encode_head(head, self._key))
            self._probe("journal_head")
            self._remove_earlier(head)
        except Exception as error:  # noqa: BLE001  (reported by the writer thread)
            outcome.set_exception(error)
        else:
            outcome.set_result(None)
        self._wake()

    def _remove_earlier(self, head: Head) -> None:
        earlier, self._earlier = self._earlier, None
        if earlier in (None, head.boot):
            return
        try:
            self._target.remove(head_path(head.role, head.client, earlier))
        except ReliamsgError as error:  # it states nothing that later segments do not
            log.info(
                "export.head_remains", "journal of %(client)s: the head of an earlier opening remains: %(reason)s",
                client=self._source.client, reason=str(error),
            )  # fmt: skip
