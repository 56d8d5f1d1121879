"""A copy of everything that a client's journal ever had, for the judge: what was exported leaves the client's file, and
what was truncated is nowhere else."""

from __future__ import annotations

import sqlite3

from reliamsg.simulation.disk import Drive
from reliamsg.simulation.incidents import Incidents
from reliamsg.store.journal import JournalRow, read_journal

__all__ = ["JournalCopy"]


class JournalCopy:
    """Of one client that exports its journal: a :class:`~reliamsg.simulation.disk.Watcher` of its file."""

    def __init__(self, drive: Drive, incidents: Incidents, owner: str) -> None:
        """`owner`: the producer or the group."""
        self._drive, self._incidents, self._owner = drive, incidents, owner
        self._rows: dict[int, JournalRow] = {}
        drive.watch(self)

    def committed(self, connection: sqlite3.Connection) -> None:
        """Something was committed: rows are new, have grown, or are gone."""
        for row in read_journal(connection):
            self._rows[row.lsn] = row
            if row.kind == "truncated":
                self._incidents.journal_truncated(self._owner)

    def noted(self) -> object:
        """See :class:`~reliamsg.simulation.disk.Watcher`."""
        return dict(self._rows)

    def replaced(self, noted: dict[int, JournalRow]) -> None:
        """See :class:`~reliamsg.simulation.disk.Watcher`. Rows that it had exported by then remain."""
        with self._drive.reading() as connection:
            rows = list(read_journal(connection))
            newest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
        last = newest[0] if newest else 0
        self._rows = {lsn: row for lsn, row in noted.items() if lsn <= last}
        self._rows.update((row.lsn, row) for row in rows)

    def rows(self, after: int = 0) -> list[JournalRow]:
        """All rows with higher numbers, in order."""
        return [self._rows[lsn] for lsn in sorted(self._rows) if lsn > after]
