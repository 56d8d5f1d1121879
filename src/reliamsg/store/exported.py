"""How far a file's journal has left it: the state of export, and its three steps.

1. :meth:`Exported.cut` (a transaction) freezes the rows of the next segment, so that they never change again.
2. Whoever likes reads them with :func:`read_cut`, and writes the segment to its target.
3. :meth:`Exported.finish` (one transaction) notes its digest as the next one's parent, and deletes the rows.

After a crash between 1 and 3 the cut is still there, so that the same segment is made again, byte for byte. The
state is in the table ``meta``: ``journal_exported_lsn``, ``journal_parent`` (the digest of the latest segment) and
``journal_cut_lsn`` while there is a cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from reliamsg.errors import StoreCorrupt
from reliamsg.store.database import Database, open_readonly, put_meta
from reliamsg.store.journal import Entry, Journal, JournalRow, read_journal

__all__ = ["Cut", "Exported", "read_cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of one segment: frozen, consecutive, of one boot."""

    first_lsn: int
    last_lsn: int
    parent: str | None
    """The digest of the segment before; None for the first."""

    @property
    def rows(self) -> int:
        return self.last_lsn - self.first_lsn + 1


class Exported:
    """The state of one file's export. The thread that owns the file calls everything here.

    Counts rows without asking the database: see :attr:`backlog`.
    """

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal
        with database.translated():
            connection = database.connection
            meta = dict(connection.execute("SELECT name, value FROM meta WHERE name LIKE 'journal_%'"))
            self.exported_lsn = int(meta.get("journal_exported_lsn", "0"))
            """Every row up to this one is in a segment that its target has."""
            self.parent: str | None = meta.get("journal_parent")
            found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
            newest = int(found[0]) if found is not None else 0
            self.cut_pending: Cut | None = None
            """What is frozen and not finished."""
            if "journal_cut_lsn" in meta:
                first = self._first_after(connection, self.exported_lsn)
                if first is None:
                    raise StoreCorrupt(
                        f"{database.path}: rows of the journal that were to be exported are missing"
                    )
                self.cut_pending = Cut(first, int(meta["journal_cut_lsn"]), self.parent)
            first = self._first_after(connection, self._frozen)
        self._below = newest if first is None else first - 1
        """Rows up to this one, above what is frozen, were given up."""
        self._earlier_lsn = newest
        """Rows up to this one are of earlier boots."""
        self._told: tuple[int, int] | None = None
        """The row that tells of what was given up, and from which lsn on."""
        journal.newest_lsn = newest
        journal.exported_lsn = self._frozen

    @property
    def _frozen(self) -> int:
        return self.exported_lsn if self.cut_pending is None else self.cut_pending.last_lsn

    @property
    def _base(self) -> int:
        """Rows above this one are there and free."""
        return max(self._frozen, self._below)

    @property
    def backlog(self) -> int:
        """Rows that are committed and not exported."""
        frozen = self.cut_pending.rows if self.cut_pending is not None else 0
        return frozen + self._journal.newest_lsn - self._base

    @property
    def has_earlier_boots(self) -> bool:
        """Whether rows of earlier boots wait: nothing will ever be added to them."""
        return self.cut_pending is not None or self._base < self._earlier_lsn

    @staticmethod
    def _first_after(connection: sqlite3.Connection, lsn: int) -> int | None:
        found = connection.execute("SELECT min(lsn) FROM journal WHERE lsn > ?", (lsn,)).fetchone()[0]
        return None if found is None else int(found)

    # -- the steps ------------------------------------------------------------------------------------------

    def cut(self, most_rows: int) -> Cut | None:
        """Freeze the next segment, of at most `most_rows` rows; None if there are no rows. A pending cut is
        returned again as it is.

        Raises ``…WriteError`` (nothing has changed) or what is fatal.
        """
        if self.cut_pending is not None:
            return self.cut_pending
        if self._journal.newest_lsn <= self._base:
            return None
        with self._database.transaction() as connection:
            found = connection.execute(
                "SELECT lsn, boot FROM journal WHERE lsn > ? ORDER BY lsn LIMIT ?", (self._base, most_rows)
            ).fetchall()
            first, boot = found[0]
            run = takewhile(lambda item: item[1] == (first + item[0], boot), enumerate(found))
            last = first + sum(1 for _ in run) - 1
            # Even if this is undone: there is no harm in rows that are not extended.
            self._journal.exported_lsn = max(self._journal.exported_lsn, last)
            put_meta(connection, "journal_cut_lsn", str(last))
        self.cut_pending = Cut(first, last, self.parent)
        return self.cut_pending

    def finish(self, cut: Cut, digest: str) -> None:
        """The pending cut's segment, with that digest, is at its target: note it, and delete the rows.

        Raises as :meth:`cut`.
        """
        if cut != self.cut_pending:
            raise ValueError("this is not the pending cut")
        with self._database.transaction() as connection:
            put_meta(connection, "journal_exported_lsn", str(cut.last_lsn))
            put_meta(connection, "journal_parent", digest)
            connection.execute("DELETE FROM meta WHERE name = 'journal_cut_lsn'")
            connection.execute("DELETE FROM journal WHERE lsn <= ?", (cut.last_lsn,))
        self.exported_lsn, self.parent, self.cut_pending = cut.last_lsn, digest, None

    def truncate(self, keep: int, entry: Entry, wall_us: int, mono_us: int) -> int:
        """Give up the oldest rows that are not frozen, so that the backlog is at most `keep`, and write `entry` (of
        kind ``truncated``) with what was given up as its detail. Returns how many rows this gave up.

        Raises as :meth:`cut`.
        """
        base, newest = self._base, self._journal.newest_lsn
        last = min(newest, base + self.backlog - keep)
        if last <= base:
            return 0
        first = self._frozen + 1  # what was given up before ended where this begins
        detail = {"first_lsn": first, "last_lsn": last}
        done = False
        try:
            with self._database.transaction() as connection:
                # Rows that are gone must not be extended.
                self._journal.exported_lsn = max(self._journal.exported_lsn, last)
                # Those among them that tell of rows given up before, beyond what is exported, are said again.
                details = self._told_by(connection, base, last, first)
                connection.execute("DELETE FROM journal WHERE lsn > ? AND lsn <= ?", (base, last))
                told = self._told
                if told is not None and told[0] > last and told[1] == first:
                    self._journal.amend(connection, told[0], detail, wall_us)
                else:
                    details.append(detail)
                    told = None
                for one in details:
                    self._journal.write(connection, [replace(entry, detail=one)], wall_us, mono_us)
                told = told or (self._journal.latest_written, first)
            done = True
        finally:
            self._journal.settle(done)
        self._told = told
        self._below = last
        return last - base

    @staticmethod
    def _told_by(connection: sqlite3.Connection, base: int, last: int, first: int) -> list[dict[str, int]]:
        """What rows that are about to be given up tell of others that were, before `first`."""
        found = connection.execute(
            "SELECT detail FROM journal WHERE lsn > ? AND lsn <= ? AND kind = 'truncated' ORDER BY lsn",
            (base, last),
        ).fetchall()
        details = [json.loads(detail) for (detail,) in found if detail is not None]
        return [detail for detail in details if detail.get("first_lsn", first) < first]


def read_cut(path: str | os.PathLike[str], cut: Cut) -> list[JournalRow]:
    """The rows of a cut, through a connection of its own, which only reads.

    Raises :class:`StoreCorrupt` when the file can't be opened, ``sqlite3.Error`` and ValueError when it is damaged.
    """
    with contextlib.closing(open_readonly(path)) as connection:
        return list(_up_to(read_journal(connection, cut.first_lsn - 1), cut.last_lsn))


def _up_to(rows: Iterator[JournalRow], last: int) -> Iterator[JournalRow]:
    return takewhile(lambda row: row.lsn <= last, rows)
