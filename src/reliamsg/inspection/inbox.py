"""The messages in an inbox: held, late and quarantined ones, and dead letters."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from reliamsg.inspection.frames import Claim, Decoded, decode
from reliamsg.message import Stream

__all__ = ["DeadLetterRow", "InboxBatch", "State", "read_dead_letters", "read_inbox_batches"]

State = Literal["held", "late", "quarantined"]
"""Why a batch is in an inbox: it waits for other messages or an acknowledgement, it arrived after its gap was passed,
or it could not be accepted."""

_LOCAL_PRODUCER = "unsequenced"
"""Frames of messages without a producer have this name, their rows an empty one."""
_FROM = {
    "held": "SELECT b.id, s.producer, s.topic, s.part, b.epoch, NULL, b.first, b.last, b.size, b.site, b.received_us,"
    " NULL, 0, b.frame FROM held AS b LEFT JOIN stream AS s ON s.id = b.stream_id",
    "late": "SELECT b.id, s.producer, s.topic, s.part, b.epoch, NULL, b.first, b.last, b.size, b.site, b.received_us,"
    " NULL, 0, b.frame FROM late AS b LEFT JOIN stream AS s ON s.id = b.stream_id",
    "quarantined": "SELECT b.id, b.producer, b.topic, b.part, b.epoch, b.incarnation, b.first, b.last, b.size, b.site,"
    " b.received_us, b.reason, b.replay, b.frame FROM quarantined_delivery AS b",
}
_BEFORE_ALL = -(2**63)


class InboxBatch(msgspec.Struct, frozen=True):
    """A stored batch, or the part of it from `first` to `last`, and its messages."""

    state: State
    id: int
    """Among the batches of this state."""
    stream: Stream | None
    """None if its row is missing."""
    epoch: int
    first: int
    last: int
    size: int
    site: str
    received_us: int
    reason: str | None
    """Why it is quarantined."""
    replaying: bool
    frame: bytes
    decoded: Decoded

    @property
    def damage(self) -> str:
        """What is damaged, in words."""
        numbers = f"{self.first} to {self.last}"
        return f"{self.state} batch {self.id} of {self.stream} ({numbers}): {self.decoded.problem}"


class DeadLetterRow(msgspec.Struct, frozen=True):
    """A dead letter."""

    id: int
    stream: Stream | None
    epoch: int
    incarnation: str
    seq: int
    key: str | None
    headers: dict[str, str]
    body: bytes
    reason: str
    attempts: int
    dead_us: int
    """When it became a dead letter, in µs since 1970."""
    problem: str | None
    """Why it can't be decoded in full; None if it was."""

    @property
    def damage(self) -> str:
        """What is damaged, in words."""
        return f"dead letter {self.id} of {self.stream} ({self.seq}): {self.problem}"


def read_inbox_batches(connection: sqlite3.Connection) -> Iterator[InboxBatch]:
    """All batches of an inbox, those of each state in the order of storing, one at a time."""
    for state in get_args(State):
        after = _BEFORE_ALL
        while rows := connection.execute(
            f"{_FROM[state]} WHERE b.id > ? ORDER BY b.id LIMIT 1", (after,)
        ).fetchall():
            (
                (
                    after,
                    *names,
                    epoch,
                    incarnation,
                    first,
                    last,
                    size,
                    site,
                    received_us,
                    reason,
                    replay,
                    frame,
                ),
            ) = rows
            stream = _stream(names)
            framed = (
                stream if stream is None or stream.producer else stream._replace(producer=_LOCAL_PRODUCER)
            )
            decoded = decode(frame, Claim(framed, epoch, first, last, incarnation))
            yield InboxBatch(
                state,
                after,
                stream,
                epoch,
                first,
                last,
                size,
                site,
                received_us,
                reason,
                bool(replay),
                frame,
                decoded,
            )


def read_dead_letters(connection: sqlite3.Connection, limit: int = -1) -> Iterator[DeadLetterRow]:
    """The oldest `limit` dead letters (-1: all), one at a time. The inbox is not locked between them."""
    after = _BEFORE_ALL
    while limit and (
        rows := connection.execute(
            "SELECT d.id, s.producer, s.topic, s.part, d.epoch, d.incarnation, d.seq, d.key, d.headers, d.body,"
            " d.reason, d.attempts, d.wall_us FROM dead_letter AS d LEFT JOIN stream AS s ON s.id = d.stream_id"
            " WHERE d.id > ? ORDER BY d.id LIMIT 1",
            (after,),
        ).fetchall()
    ):
        limit -= 1
        ((after, *names, epoch, incarnation, seq, key, encoded, body, reason, attempts, dead_us),) = rows
        stream = _stream(names)
        problem = None if stream is not None else "its stream is missing"
        try:
            headers = msgspec.json.decode(encoded, type=dict[str, str])
        except msgspec.MsgspecError as error:
            headers, problem = {}, f"unreadable headers: {error}"
        yield DeadLetterRow(
            after, stream, epoch, incarnation, seq, key, headers, body, reason, attempts, dead_us, problem
        )


def _stream(names: list[object]) -> Stream | None:
    return None if names[0] is None else msgspec.convert(names, Stream)
