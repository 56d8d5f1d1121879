"""Reading an outbox file without owning it, even while its owner runs."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from reliamsg.message import Stream
from reliamsg.store.database import reading
from reliamsg.store.members import Position
from reliamsg.store.outbox import Row

__all__ = ["STORED_FROM", "MemberInfo", "OutboxInfo", "inspect_outbox", "list_batches", "read_members"]

STORED_FROM = (
    "((SELECT coalesce(sum(c.last - CASE WHEN c.epoch = {epoch} THEN {seq} - 1 ELSE 0 END), 0) FROM chain AS c"
    " WHERE c.stream_id = {stream} AND c.epoch >= {epoch})"
    " - (SELECT coalesce(sum(r.last - max(r.first, CASE WHEN r.epoch = {epoch} THEN {seq} ELSE 0 END) + 1), 0)"
    " FROM removed AS r WHERE r.stream_id = {stream} AND (r.epoch, r.last) >= ({epoch}, {seq})))"
)
"""SQL: the number of messages of a stream from a position on, all of which must be stored or removed. Reads no rows of
batches, of which there may be millions."""


@dataclass(frozen=True)
class MemberInfo:
    """A named group of one stream of an outbox file."""

    group: str
    topic: str
    partition: int
    since: Position
    """It counts for messages from this (epoch, number) on."""
    position: Position
    """It has settled everything before this (epoch, number), as of the latest commit."""
    behind: int
    """Stored messages that it has not settled."""
    unseen_at: tuple[str, ...] = ()
    """Sites where its existence is not proven, so that their confirms do not count."""
    lacks: tuple[int, int, int] | None = None
    """Epoch, first and last number of the gap that holds it up, as it announced last."""


@dataclass(frozen=True)
class OutboxInfo:
    """The content of an outbox file, as of its last commit."""

    producer: str
    epoch: int
    batches: int
    messages: int
    bytes: int
    oldest_us: int | None
    """When the oldest batch was stored, in µs since 1970."""
    unpublished: int
    """Messages above the published cursor: all whose confirm policy is not met, and possibly others."""
    sites: dict[str, int]
    """By site, the messages that it has not confirmed, as of the latest stored cursor."""
    parked: list[tuple[str, str, str]]
    """(site, stream, reason)"""
    groups: dict[str, list[str]]
    """By topic, the named groups."""
    members: list[MemberInfo]
    """The progress of each of them in each stream."""
    release: str
    """The release policy of the latest opening: ``confirmed`` or ``consumed``."""


def inspect_outbox(path: str | os.PathLike[str]) -> OutboxInfo:
    """Read an outbox, even while its owner runs.

    Raises :class:`StoreCorrupt` if the file is neither an outbox nor an inbox or is damaged, and
    :class:`StoreMismatch` for an inbox.
    """
    with reading(path, "outbox") as db:
        meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
        batches, messages, size, oldest = db.execute(
            "SELECT count(*), coalesce(sum(count), 0), coalesce(sum(size), 0), min(wall_us) FROM batch"
        ).fetchone()
        published = int(meta.get("published", "1"))
        above = "SELECT coalesce(sum(count), 0) FROM batch WHERE id >= ?"
        sites = {}
        for name, cursor in db.execute("SELECT name, cursor FROM site ORDER BY name").fetchall():
            behind = db.execute(above, (cursor,)).fetchone()[0]
            behind += db.execute(
                "SELECT coalesce(sum(b.count), 0) FROM batch b JOIN parked p ON b.stream_id = p.stream_id"
                " WHERE p.site = ? AND b.id >= p.cursor AND b.id < ?",
                (name, cursor),
            ).fetchone()[0]
            sites[name] = int(behind)
        parked = db.execute(
            "SELECT p.site, s.topic, p.reason FROM parked p JOIN stream s ON s.id = p.stream_id ORDER BY 1, 2"
        ).fetchall()
        unpublished = db.execute(above, (published,)).fetchone()[0]
        members = read_members(db, meta)
        return OutboxInfo(
            meta["owner"],
            int(meta.get("epoch", "0")),
            batches,
            messages,
            size,
            oldest,
            unpublished,
            sites,
            parked,
            _groups(meta, members),
            members,
            meta.get("release", "confirmed"),
        )


def read_members(db: sqlite3.Connection, meta: Mapping[str, str]) -> list[MemberInfo]:
    """The named groups of an open outbox, by topic. `meta` is its table of that name."""
    proves_at: list[str] = json.loads(meta.get("proves_at", "[]"))
    lacking: list[tuple[str, str, int, int, int, int]] = json.loads(meta.get("lacking", "[]"))
    if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'member'").fetchone()[0]:
        return []  # a file of an earlier version that has not been opened since
    # A group may be behind the oldest stored batch, or in the middle of one.
    found = db.execute(
        "SELECT grp, topic, part, since_epoch, since_next, epoch, next, CASE WHEN oldest IS NULL THEN 0"
        "  WHEN (epoch, next) > (stored_epoch, stored_seq)"
        f"  THEN max(0, {STORED_FROM.format(stream='f.stream_id', epoch='f.epoch', seq='f.next')})"
        f"  ELSE {STORED_FROM.format(stream='f.stream_id', epoch='stored_epoch', seq='stored_seq')} END"
        " FROM (SELECT m.*, s.topic, s.part, b.id AS oldest, b.epoch AS stored_epoch, b.seq AS stored_seq"
        "  FROM member AS m JOIN stream AS s ON s.id = m.stream_id"
        "  LEFT JOIN batch AS b ON b.id = (SELECT min(id) FROM batch WHERE stream_id = s.id)) AS f"
        " ORDER BY topic, part, grp"
    )
    proven = set()
    if db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'proven'").fetchone()[0]:
        proven = set(
            db.execute(
                "SELECT p.site, p.grp, s.topic, s.part FROM proven AS p JOIN stream AS s ON s.id = p.stream_id"
            )
        )
    lacks = {(group, topic, part): (epoch, low, high) for group, topic, part, epoch, low, high in lacking}
    members = []
    for group, topic, part, since_epoch, since, *position, behind in found:
        unseen = tuple(site for site in proves_at if (site, group, topic, part) not in proven)
        gap = lacks.get((group, topic, part))
        if gap is not None and gap[0::2] < tuple(position):
            gap = None  # the group has passed it since
        members.append(
            MemberInfo(group, topic, part, (since_epoch, since), tuple(position), behind, unseen, gap)
        )
    return members


def _groups(meta: dict[str, str], members: list[MemberInfo]) -> dict[str, list[str]]:
    # Version 1 of the schema has them in this table.
    groups: dict[str, list[str]] = json.loads(meta.get("groups", "{}"))
    for member in members:
        groups.setdefault(member.topic, []).append(member.group)
    return groups


def list_batches(path: str | os.PathLike[str], limit: int) -> list[Row]:
    """The oldest batches of an outbox, without their frames, even while its owner runs. Raises the same errors as
    :func:`inspect_outbox`."""
    with reading(path, "outbox") as db:
        owner = db.execute("SELECT value FROM meta WHERE name = 'owner'").fetchone()[0]
        found = db.execute(
            "SELECT b.id, b.stream_id, s.topic, s.part, b.epoch, b.incarnation, b.seq, b.count, b.size, b.wall_us"
            " FROM batch b JOIN stream s ON s.id = b.stream_id ORDER BY b.id LIMIT ?",
            (limit,),
        )
        return [
            Row(
                number, stream_id, Stream(owner, topic, part), epoch, int(incarnation, 16), seq, count, size, wall, b""
            )
            for number, stream_id, topic, part, epoch, incarnation, seq, count, size, wall in found
        ]  # fmt: skip
