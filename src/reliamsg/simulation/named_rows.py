"""Checks the rows of its journal that a client names to others: the opening that is named must have committed them.

Otherwise whoever heard of them takes it for granted that a journal has them, and after a crash none has.
"""

from __future__ import annotations

from reliamsg.keys import KeyRing
from reliamsg.simulation.disk import Drive
from reliamsg.simulation.oracle import Oracle
from reliamsg.wire.control import Status, is_control_frame, open_control

__all__ = ["NamedRows", "StatusWitness"]


class NamedRows:
    """Those of one process. Exported rows, which are committed, are not compared."""

    def __init__(self, process: str, drive: Drive, oracle: Oracle) -> None:
        self._process, self._drive, self._oracle = process, drive, oracle
        self._latest: tuple[str, int] | None = None

    def named_by_boot(self, boot: int, lsn: int) -> None:
        """A consumer names a row of an opening."""
        self._check("SELECT boot = ? FROM journal WHERE lsn = ?", f"{boot:016x}", lsn)

    def named_by_incarnation(self, incarnation: int, lsn: int) -> None:
        """A producer names a row of an opening."""
        self._check(
            "SELECT coalesce((SELECT incarnation = ? FROM journal AS o WHERE o.boot = j.boot AND o.kind = 'opened'), 1)"
            " FROM journal AS j WHERE lsn = ?",
            f"{incarnation:016x}", lsn,
        )  # fmt: skip

    def _check(self, sql: str, opening: str, lsn: int) -> None:
        if self._latest == (opening, lsn) or not lsn:
            return
        self._latest = opening, lsn
        with self._drive.reading() as connection:
            found = connection.execute(sql, (opening, lsn)).fetchone()
            newest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
        if (found is not None and not found[0]) or newest is None or newest[0] < lsn:
            text = f"row {lsn} of opening {opening}, named by {self._process}"
            self._oracle.violate("uncommitted_row", text)


class StatusWitness:
    """Observes one producer: a :class:`~reliamsg.simulation.host.ControlWitness`."""

    def __init__(self, rows: NamedRows, keys: KeyRing | None) -> None:
        """`keys`: its key ring."""
        self._rows, self._keys = rows, keys

    def received(self, address: str, body: bytes) -> None:
        """See the class."""

    def sent(self, address: str, body: bytes) -> None:
        """It sends a status, or a message that was requested again."""
        if not is_control_frame(body):
            return
        status = open_control(body, address, self._keys)
        if isinstance(status, Status):
            self._rows.named_by_incarnation(status.incarnation, max(status.lsn, status.committed))
