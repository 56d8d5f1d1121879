"""The order of a client's segments and of the rows that its files still hold, as lines.

Every piece names its parent, the piece before it. If no two pieces of a client have the same parent or begin at the
same row, there is one line, ordered by rows, even if pieces are missing. Otherwise the client's file was copied or
restored at some time: each piece that no other piece follows is the end of a line, and lines share their beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reliamsg.checker.checkpoints import Covered
from reliamsg.store.journal import JournalRow

__all__ = ["Piece", "lines", "misfits", "rows_of"]


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one client: those of a segment, or those that a file still holds."""

    source: str
    """Where it was found."""
    digest: str | None
    """The segment's digest; None for a file."""
    parent: str | None
    """The digest of the segment before it; None for the client's first."""
    first_lsn: int
    """Where it begins, even if it has no row."""
    rows: Sequence[JournalRow]
    old_lsn: int = 0
    """Rows up to this one are of version 1 of the format."""
    covered: Covered | None = None
    """If it is a checkpoint: what that covers. `digest` is then that of the last segment."""

    @property
    def digests(self) -> Sequence[str]:
        """Those of its segments."""
        if self.covered is not None:
            return self.covered.digests
        return [] if self.digest is None else [self.digest]

    @property
    def boots(self) -> set[str]:
        """The boots of its rows; of a segment or file, that of the first."""
        if self.covered is not None:
            return {boot for boot, _ in self.covered.ends}
        return {self.rows[0].boot} if self.rows else set()

    @property
    def last_lsn(self) -> int:
        if self.covered is not None:
            return self.covered.last_lsn
        return self.rows[-1].lsn if self.rows else self.first_lsn - 1


def lines(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """All lines of one client, each from its first piece to one that no other follows."""
    ordered = sorted(pieces, key=lambda piece: (piece.first_lsn, piece.last_lsn, piece.digest or ""))
    if not _forked(ordered):
        return [ordered] if ordered else []
    before = _parents(ordered)
    followed = {before[i] for i in range(len(ordered))}
    found = []
    for i in range(len(ordered)):
        if i in followed:
            continue
        line, at = [], i
        while at >= 0:
            line.append(ordered[at])
            at = before[at]
        found.append(line[::-1])
    return found


def misfits(line: Sequence[Piece]) -> list[str]:
    """A line of text for each piece that is not the child of the piece before it. Missing rows do not count."""
    found = []
    for one, other in pairwise(line):
        if other.first_lsn == one.last_lsn + 1 and one.digest is not None and other.parent != one.digest:
            found.append(f"the rows from {other.first_lsn} on do not continue the rows before them")
    return found


def rows_of(line: Sequence[Piece]) -> list[JournalRow]:
    """The rows of a line. A crash during export can leave rows in both a segment and the file; they count once."""
    rows: list[JournalRow] = []
    for piece in line:
        last = rows[-1].lsn if rows else 0
        if piece.digest is None and rows and piece.first_lsn <= last:
            known = {(row.boot, row.lsn) for row in rows}
            rows += [row for row in piece.rows if (row.boot, row.lsn) not in known]
        else:
            rows += piece.rows
    return rows


def _forked(pieces: Sequence[Piece]) -> bool:
    parents = [piece.parent for piece in pieces]
    starts = [piece.first_lsn for piece in pieces]
    return len(set(parents)) < len(parents) or len(set(starts)) < len(starts)


def _parents(pieces: Sequence[Piece]) -> list[int]:
    """For each piece, the index of the piece before it, or -1.

    A piece whose parent is missing is attached to the latest segment that ends before it and that no other piece
    follows, preferably one that the same boot wrote.
    """
    numbers = {piece.digest: i for i, piece in enumerate(pieces) if piece.digest is not None}
    before = [-1 if piece.parent is None else numbers.get(piece.parent, -1) for piece in pieces]
    # No piece is its own ancestor, because a digest covers the parent's digest.
    followed = set(before)
    for i, piece in enumerate(pieces):
        if before[i] >= 0 or piece.parent is None:
            continue
        boot = piece.rows[0].boot if piece.rows else ""
        ends = [
            (bool(other.rows) and other.rows[-1].boot == boot, other.last_lsn, j)
            for j, other in enumerate(pieces)
            if j not in followed and other.digest is not None and other.last_lsn < piece.first_lsn and j != i
        ]
        if ends:
            before[i] = max(ends)[2]
            followed.add(before[i])
    return before
