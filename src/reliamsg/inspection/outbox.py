"""The messages in an outbox, with what sites and groups still lack."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator

import msgspec

from reliamsg.inspection.frames import Claim, Decoded, decode
from reliamsg.message import Stream
from reliamsg.store.database import get_meta
from reliamsg.store.outbox_view import MemberInfo, read_members

__all__ = [
    "EVERYTHING",
    "MAX_INTEGER",
    "Numbers",
    "OutboxBatch",
    "OutboxState",
    "ParkedStream",
    "read_batches",
]

MAX_INTEGER = 2**63 - 1
"""SQLite's largest."""


class ParkedStream(msgspec.Struct, frozen=True):
    """A stream that a site refuses."""

    cursor: int
    """The site has confirmed the stream's batches before this row."""
    attempts: int
    reason: str


class Numbers(msgspec.Struct, frozen=True):
    """Selects messages by stream, epoch and sequence number. None: all."""

    streams: tuple[int, ...] | None = None
    """Row ids."""
    epoch: int | None = None
    first: int | None = None
    last: int | None = None


EVERYTHING = Numbers()


class OutboxBatch(msgspec.Struct, frozen=True):
    """A stored batch and its messages."""

    id: int
    stream_id: int
    stream: Stream | None
    """None if its row is missing."""
    epoch: int
    incarnation: str
    first: int
    last: int
    size: int
    stored_us: int
    frame: bytes
    decoded: Decoded

    @property
    def damage(self) -> str:
        """What is damaged, in words."""
        return f"batch {self.id} of {self.stream} ({self.first} to {self.last}): {self.decoded.problem}"


class OutboxState:
    """The streams of an outbox, and the progress of sites and groups, as of the time of reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
        self.producer: str = meta["owner"]
        self.epoch: int = int(get_meta(connection, "epoch", "0"))
        self.release: str = get_meta(connection, "release", "confirmed")
        self._published = int(get_meta(connection, "published", "1"))
        self.streams: dict[int, Stream] = {
            number: Stream(self.producer, topic, part)
            for number, topic, part in connection.execute("SELECT id, topic, part FROM stream ORDER BY id")
        }
        self.sites: dict[str, int] = dict(connection.execute("SELECT name, cursor FROM site ORDER BY name"))
        self.parked: dict[tuple[str, int], ParkedStream] = {
            (site, stream_id): ParkedStream(cursor, attempts, reason)
            for site, stream_id, cursor, attempts, reason in connection.execute(
                "SELECT site, stream_id, cursor, attempts, reason FROM parked ORDER BY site, stream_id"
            )
        }
        self.members: list[MemberInfo] = read_members(connection, meta)
        self._members: dict[tuple[str, int], list[MemberInfo]] = {}
        for member in self.members:
            self._members.setdefault((member.topic, member.partition), []).append(member)

    def published(self, batch: OutboxBatch) -> bool:
        """Whether the confirm policy was met."""
        return batch.id < self._published

    def confirmed(self, batch: OutboxBatch) -> dict[str, bool]:
        """By site, whether it has confirmed the batch."""
        found = {}
        for site, cursor in self.sites.items():
            parked = self.parked.get((site, batch.stream_id))
            found[site] = batch.id < cursor and (parked is None or batch.id < parked.cursor)
        return found

    def unsettled_by(self, batch: OutboxBatch, seq: int) -> list[str]:
        """The groups that must get a message of the batch, and have not settled it."""
        if batch.stream is None:
            return []
        at = (batch.epoch, seq)
        members = self._members.get((batch.stream.topic, batch.stream.partition), ())
        return [member.group for member in members if member.since <= at and member.position <= at]

    def named(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """The row ids of the streams with these names, by name: ``TOPIC``, ``TOPIC~PARTITION`` or with ``PRODUCER/``
        before it. A name without a stream is left out."""
        found: dict[str, list[int]] = {}
        for number, stream in self.streams.items():
            for name in {str(stream), str(stream).removeprefix(f"{self.producer}/")} & set(names):
                found.setdefault(name, []).append(number)
        return {name: tuple(ids) for name, ids in found.items()}


def read_batches(
    connection: sqlite3.Connection, state: OutboxState, which: Numbers = EVERYTHING
) -> Iterator[OutboxBatch]:
    """Batches with any of the selected messages, in the order of storing. One at a time is in memory, and the outbox
    is not locked between them."""
    streams = None if which.streams is None else msgspec.json.encode(which.streams).decode()
    after = -MAX_INTEGER - 1
    while rows := connection.execute(
        "SELECT id, stream_id, epoch, incarnation, seq, count, size, wall_us, frame FROM batch WHERE id > ?1"
        " AND (?2 IS NULL OR stream_id IN (SELECT value FROM json_each(?2))) AND (?3 IS NULL OR epoch = ?3)"
        " AND (?4 IS NULL OR seq > ?4 - count) AND (?5 IS NULL OR seq <= ?5) ORDER BY id LIMIT 1",
        (after, streams, which.epoch, which.first, which.last),
    ).fetchall():
        ((after, stream_id, epoch, incarnation, seq, count, size, stored_us, frame),) = rows
        stream = state.streams.get(stream_id)
        last = min(seq + count - 1, MAX_INTEGER)  # it may be damaged
        decoded = decode(frame, Claim(stream, epoch, seq, last, incarnation, whole=True))
        yield OutboxBatch(
            after, stream_id, stream, epoch, incarnation, seq, last, size, stored_us, frame, decoded
        )
