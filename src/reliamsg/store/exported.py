"""The export state of a file's journal, and the three steps of an export.

1. :meth:`Exported.cut` (one transaction) freezes the rows of the next segment: they never change again.
2. Any thread reads them with :func:`read_cut` and writes the segment to its target.
3. :meth:`Exported.finish` (one transaction) stores the segment's digest as the parent of the next one, and deletes the
   rows.

After a crash between 1 and 3 the cut still exists, so that the same segment is written again, byte for byte. The state
is stored in the table ``meta``: ``journal_exported_lsn``, ``journal_parent`` (the digest of the latest segment),
``journal_cut_lsn`` while a cut is pending, ``journal_v2_lsn`` (rows from this one on are of version 2 of the format),
``journal_stamp_us`` (no later stamp is below this; rows that are still in the file may have later ones),
``journal_last_boot`` and ``journal_last_kind`` (of the newest row that was exported), and ``journal_head`` (the boot
that wrote the latest head).
"""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from itertools import takewhile

import msgspec

from reliamsg.errors import StoreCorrupt
from reliamsg.store.database import Database, get_meta, put_meta, reading
from reliamsg.store.journal import Begun, Entry, Journal, JournalRow, read_journal

__all__ = ["Cut", "Exported", "newest_row", "read_cut"]


class Cut(msgspec.Struct, frozen=True):
    """The rows of one segment: frozen, consecutive, of one boot."""

    first_lsn: int
    last_lsn: int
    parent: str | None
    """The digest of the previous segment; None for the first one."""
    version: int = 2
    """The version of the format in which the rows were written."""

    @property
    def rows(self) -> int:
        return self.last_lsn - self.first_lsn + 1


class _Truncated(msgspec.Struct, frozen=True):
    """A row that records a truncation."""

    lsn: int
    first_lsn: int
    """The first row that it covers."""
    begun: Begun


class Exported:
    """The export state of one file, and its journal for the opening `boot`. Used by the thread that owns the file.

    Counts rows without a query: see :attr:`backlog`.
    """

    def __init__(self, database: Database, boot: str) -> None:
        self._database = database
        with database.reading() as connection:
            meta = dict(connection.execute("SELECT name, value FROM meta WHERE name LIKE 'journal_%'"))
            self.exported_lsn: int = int(meta.get("journal_exported_lsn", "0"))
            """Every row up to this one is in a segment at its target."""
            self.parent: str | None = meta.get("journal_parent")
            self._v2_lsn = int(meta.get("journal_v2_lsn", "1"))
            self.earlier_head: str | None = meta.get("journal_head")
            """The earlier boot that wrote the latest head; None if there is none."""
            stamp_us = int(meta.get("journal_stamp_us", "0"))
            latest = connection.execute("SELECT max(wall_last_us) FROM journal").fetchone()[0]
            found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
            newest = int(found[0]) if found is not None else 0
            self.cut_pending: Cut | None = None
            """The cut that is not finished."""
            if "journal_cut_lsn" in meta:
                first = self._first_after(connection, self.exported_lsn)
                if first is None:
                    raise StoreCorrupt(
                        f"{database.path}: journal rows that were about to be exported are missing"
                    )
                self.cut_pending = self._cut(first, int(meta["journal_cut_lsn"]))
            first = self._first_after(connection, self._frozen)
            newest_boot, _ = newest_row(connection)
        self._below = newest if first is None else first - 1
        """Rows up to this one, above the frozen ones, were truncated."""
        self._earlier_lsn = newest
        """Rows up to this one belong to earlier boots."""
        self._truncated_row: _Truncated | None = None
        """The row that records the truncation, while it may be extended."""
        self.journal: Journal = Journal(
            boot, newest, self._frozen, max(stamp_us, latest or 0),
            database.owner if database.kind == "inbox" else "", newest_boot,
        )  # fmt: skip

    @property
    def _frozen(self) -> int:
        return self.exported_lsn if self.cut_pending is None else self.cut_pending.last_lsn

    @property
    def _base(self) -> int:
        """Rows above this one exist and are not frozen."""
        return max(self._frozen, self._below)

    @property
    def backlog(self) -> int:
        """The number of rows that are committed and not exported."""
        frozen = self.cut_pending.rows if self.cut_pending is not None else 0
        return frozen + self.journal.newest_lsn - self._base

    @property
    def has_earlier_boots(self) -> bool:
        """Whether rows of earlier boots remain, to which nothing is added any more."""
        return self.cut_pending is not None or self._base < self._earlier_lsn

    @staticmethod
    def _first_after(connection: sqlite3.Connection, lsn: int) -> int | None:
        found = connection.execute("SELECT min(lsn) FROM journal WHERE lsn > ?", (lsn,)).fetchone()[0]
        return None if found is None else int(found)

    def _cut(self, first: int, last: int) -> Cut:
        return Cut(first, last, self.parent, 2 if first >= self._v2_lsn else 1)

    # -- the steps ------------------------------------------------------------------------------------------

    def cut(self, most_rows: int) -> Cut | None:
        """Freeze the next segment, of at most `most_rows` rows; None if there are no rows. Returns the pending cut,
        unchanged, if there is one.

        Raises ``…WriteError`` (nothing has changed) or a fatal error.
        """
        if self.cut_pending is not None:
            return self.cut_pending
        if self.journal.newest_lsn <= self._base:
            return None
        with self._database.transaction() as connection:
            found = connection.execute(
                "SELECT lsn, boot FROM journal WHERE lsn > ? ORDER BY lsn LIMIT ?", (self._base, most_rows)
            ).fetchall()
            first, boot = found[0]
            if first < self._v2_lsn:  # a segment has rows of one version
                found = found[: self._v2_lsn - first]
            run = takewhile(lambda item: item[1] == (first + item[0], boot), enumerate(found))
            last = first + sum(1 for _ in run) - 1
            self.journal.freeze(
                last
            )  # harmless if the transaction is rolled back: the rows are just not extended
            put_meta(connection, "journal_cut_lsn", str(last))
        self.cut_pending = self._cut(first, last)
        return self.cut_pending

    def finish(self, cut: Cut, digest: str) -> None:
        """Record that the pending cut's segment, with that digest, is at its target, and delete the rows.

        Raises as :meth:`cut` does.
        """
        if cut != self.cut_pending:
            raise ValueError("this is not the pending cut")
        with self._database.transaction() as connection:
            put_meta(connection, "journal_exported_lsn", str(cut.last_lsn))
            put_meta(connection, "journal_parent", digest)
            newest = connection.execute(
                "SELECT boot, kind FROM journal WHERE lsn = ?", (cut.last_lsn,)
            ).fetchone()
            if newest is not None:
                put_meta(connection, "journal_last_boot", newest[0])
                put_meta(connection, "journal_last_kind", newest[1])
            put_meta(connection, "journal_stamp_us", str(self.journal.stamps.latest_us))
            connection.execute("DELETE FROM meta WHERE name = 'journal_cut_lsn'")
            connection.execute("DELETE FROM journal WHERE lsn <= ?", (cut.last_lsn,))
        self.exported_lsn, self.parent, self.cut_pending = cut.last_lsn, digest, None

    def note_idle(self, wall_us: int, mono_us: int) -> int | None:
        """Record durably that no row is waiting now, and return the stamp of this moment: all later rows have greater
        stamps, also those of later openings. If the clock was set, writes a row about that instead, and returns None.
        Call this if :attr:`backlog` is 0.

        Raises as :meth:`cut` does.
        """
        step = self.journal.clock_step(wall_us, mono_us)
        if step is not None:
            with self.journal.transaction(self._database, [step], wall_us, mono_us):
                return None
        stamp_us = self.journal.stamps.read(wall_us, mono_us).stamp_us
        with self._database.transaction() as connection:
            put_meta(connection, "journal_stamp_us", str(stamp_us + 1))
            put_meta(connection, "journal_head", self.journal.boot)
        self.journal.stamps.raise_to(stamp_us + 1)
        return stamp_us

    def truncate(self, keep: int, entry: Entry, wall_us: int, mono_us: int) -> int:
        """Delete the oldest rows that are not frozen, so that the backlog is at most `keep`, and write `entry` (of kind
        ``truncated``) with the deleted range as its detail. Returns the number of deleted rows.

        Raises as :meth:`cut` does.
        """
        base, newest = self._base, self.journal.newest_lsn
        last = min(newest, base + self.backlog - keep)
        if last <= base:
            return 0
        first = self._frozen + 1  # an earlier truncation ended where this one begins
        detail = {"first_lsn": first, "last_lsn": last}
        now = self.journal.begun(wall_us, mono_us)
        row = self._truncated_row
        if row is not None and (row.lsn <= last or row.first_lsn != first or not row.begun.is_young(now)):
            row = None
        entries: list[Entry] = []
        with self.journal.transaction(self._database, entries, wall_us, mono_us) as connection:
            self.journal.freeze(last)
            # Earlier truncations that only the deleted rows record are recorded again.
            details = self._truncations(connection, base, last, first)
            connection.execute("DELETE FROM journal WHERE lsn > ? AND lsn <= ?", (base, last))
            put_meta(connection, "journal_stamp_us", str(now.stamp_us))
            if row is not None:
                self.journal.amend(connection, row.lsn, detail, now)
            else:
                details.append(detail)
            entries += [replace(entry, detail=each) for each in details]
        if row is None:
            self._truncated_row = _Truncated(self.journal.newest_lsn, first, now)
        self._below = last
        return last - base

    @staticmethod
    def _truncations(
        connection: sqlite3.Connection, base: int, last: int, first: int
    ) -> list[dict[str, int]]:
        """The details of the ``truncated`` rows above `base` and up to `last` that cover rows before `first`."""
        found = connection.execute(
            "SELECT detail FROM journal WHERE lsn > ? AND lsn <= ? AND kind = 'truncated' ORDER BY lsn",
            (base, last),
        ).fetchall()
        details = [json.loads(detail) for (detail,) in found if detail is not None]
        return [detail for detail in details if detail.get("first_lsn", first) < first]


def newest_row(connection: sqlite3.Connection) -> tuple[str, str]:
    """The boot and the kind of a journal's last row, which may have been exported; empty if there is none, or if an
    earlier version exported it."""
    found = connection.execute("SELECT boot, kind FROM journal ORDER BY lsn DESC LIMIT 1").fetchone()
    if found is None:
        found = get_meta(connection, "journal_last_boot", ""), get_meta(connection, "journal_last_kind", "")
    boot, kind = found
    return str(boot), str(kind)


def read_cut(path: str | os.PathLike[str], cut: Cut) -> list[JournalRow]:
    """The rows of a cut, read through a separate read-only connection. Raises :class:`StoreCorrupt`."""
    with reading(path) as connection:
        return list(
            takewhile(lambda row: row.lsn <= cut.last_lsn, read_journal(connection, cut.first_lsn - 1))
        )
