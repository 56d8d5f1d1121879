"""The tables of an outbox about groups: the groups that must receive a stream's messages, their progress, and removed
messages. Functions of a connection; :class:`~reliamsg.store.outbox.Outbox` calls them within its transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

import msgspec

__all__ = ["ChainRow", "Member", "Position", "Proofs", "RemovedRange"]

Position = tuple[int, int]
"""(epoch, number): everything before it is settled. Positions compare as tuples."""


Proofs = Mapping[tuple[str, int, str], bool | None]
"""By site, stream id and group: whether the group's mark was seen there; None where the group is not proven."""


class Member(msgspec.Struct, frozen=True):
    """A named group of one stream."""

    since: Position
    """It counts for messages from this position on."""
    position: Position
    """It has settled everything before this position."""


class ChainRow(msgspec.Struct, frozen=True):
    """A non-empty epoch of a stream."""

    epoch: int
    incarnation: int
    last: int


class RemovedRange(msgspec.Struct, frozen=True, order=True):
    """Numbers of a stream that were removed on demand, inclusive."""

    epoch: int
    first: int
    last: int


def load_members(db: sqlite3.Connection) -> dict[int, dict[str, Member]]:
    """The named groups, by stream id and group."""
    found: dict[int, dict[str, Member]] = {}
    for stream_id, group, *numbers in db.execute(
        "SELECT stream_id, grp, since_epoch, since_next, epoch, next FROM member ORDER BY stream_id, grp"
    ):
        since_epoch, since_next, epoch, number = numbers
        found.setdefault(stream_id, {})[group] = Member((since_epoch, since_next), (epoch, number))
    return found


def write_members(db: sqlite3.Connection, members: Mapping[tuple[int, str], Member | None]) -> None:
    """Add groups to streams, or (None) remove them."""
    for (stream_id, group), member in members.items():
        if member is None:
            db.execute("DELETE FROM member WHERE stream_id = ? AND grp = ?", (stream_id, group))
        else:
            db.execute(
                "INSERT OR REPLACE INTO member (stream_id, grp, since_epoch, since_next, epoch, next)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (stream_id, group, *member.since, *member.position),
            )


def write_positions(db: sqlite3.Connection, positions: Mapping[tuple[int, str], Position]) -> None:
    """Store the progress of groups that are still named. Never moves a position back."""
    db.executemany(
        "UPDATE member SET epoch = ?, next = ? WHERE stream_id = ? AND grp = ? AND (epoch, next) < (?, ?)",
        [(*position, stream_id, group, *position) for (stream_id, group), position in positions.items()],
    )


def load_proofs(db: sqlite3.Connection) -> dict[tuple[str, int, str], bool]:
    """The groups that are proven at sites, by site, stream id and group, and whether their marks were seen."""
    return {
        (site, stream_id, group): bool(marked)
        for site, stream_id, group, marked in db.execute("SELECT site, stream_id, grp, marked FROM proven")
    }


def write_proofs(db: sqlite3.Connection, proofs: Proofs) -> None:
    """Store which groups are proven at sites, or (None) no longer proven."""
    for key, marked in proofs.items():
        if marked is None:
            db.execute("DELETE FROM proven WHERE site = ? AND stream_id = ? AND grp = ?", key)
        else:
            db.execute(
                "INSERT OR REPLACE INTO proven (site, stream_id, grp, marked) VALUES (?, ?, ?, ?)",
                (*key, int(marked)),
            )


def load_chain(db: sqlite3.Connection, stream_id: int) -> list[ChainRow]:
    """The known non-empty epochs of a stream, oldest first."""
    return [
        ChainRow(epoch, int(incarnation, 16), last)
        for epoch, incarnation, last in db.execute(
            "SELECT epoch, incarnation, last FROM chain WHERE stream_id = ? ORDER BY epoch", (stream_id,)
        )
    ]


def trim_chain(db: sqlite3.Connection, stream_id: int, below: int) -> None:
    """Forget the epochs before `below` and their removed ranges."""
    db.execute("DELETE FROM chain WHERE stream_id = ? AND epoch < ?", (stream_id, below))
    db.execute("DELETE FROM removed WHERE stream_id = ? AND epoch < ?", (stream_id, below))


def load_removed(db: sqlite3.Connection) -> dict[int, list[RemovedRange]]:
    """The removed ranges, by stream id, in order."""
    found: dict[int, list[RemovedRange]] = {}
    for stream_id, *numbers in db.execute(
        "SELECT stream_id, epoch, first, last FROM removed ORDER BY stream_id, epoch, first"
    ):
        found.setdefault(stream_id, []).append(RemovedRange(*numbers))
    return found


def replace_removed(
    db: sqlite3.Connection, stream_id: int, epoch: int, ranges: Iterable[tuple[int, int]]
) -> None:
    """Replace the removed ranges of one epoch."""
    db.execute("DELETE FROM removed WHERE stream_id = ? AND epoch = ?", (stream_id, epoch))
    db.executemany(
        "INSERT INTO removed (stream_id, epoch, first, last) VALUES (?, ?, ?, ?)",
        [(stream_id, epoch, first, last) for first, last in ranges],
    )
