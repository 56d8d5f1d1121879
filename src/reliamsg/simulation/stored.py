"""The messages in a client's file, which a terminated client could still send or deliver."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import msgspec

from reliamsg.message import MessageId
from reliamsg.simulation.attacker import INCARNATION
from reliamsg.simulation.disk import Drive
from reliamsg.store.quarantine import LATER_VERSION, QuarantinedDelivery, Selection, read_quarantined
from reliamsg.wire.data import Envelope, FrameError, open_frame

__all__ = ["dropped_unverified", "quarantine", "stored_in_inbox", "stored_in_outbox"]

ALL = 1_000_000


def stored_in_outbox(drive: Drive, producer: str) -> Iterator[tuple[MessageId, int, bytes]]:
    """Messages, the incarnations of their openings, and their bodies."""
    with drive.reading() as connection:
        rows = connection.execute(
            "SELECT s.topic, s.part, b.epoch, b.seq, b.frame FROM batch b JOIN stream s ON s.id = b.stream_id"
        ).fetchall()
    for topic, part, epoch, first, frame in rows:
        opened = open_frame(frame)
        for seq, body in enumerate(opened.records().bodies, first):
            yield MessageId(producer, epoch, topic, part, seq), opened.envelope.incarnation, body


def stored_in_inbox(drive: Drive) -> Iterator[MessageId]:
    """Messages, including those in its quarantine."""
    with drive.reading() as connection:
        held = connection.execute(
            "SELECT s.producer, s.topic, s.part, h.epoch, h.first, h.last"
            " FROM held h JOIN stream s ON s.id = h.stream_id"
        ).fetchall()
        spans = [(*each.stream, each.epoch, each.first, each.last) for each in quarantine(connection)]
    for name, topic, part, epoch, first, last in [*held, *spans]:
        for seq in range(first, last + 1):
            yield MessageId(name, epoch, topic, part, seq)


def quarantine(connection: sqlite3.Connection) -> list[QuarantinedDelivery]:
    """The deliveries in an inbox's quarantine. Those whose messages are unknown to their consumer are opened; junk,
    forgeries and damaged ones of this kind are omitted: a later version can't read them either."""
    rows = read_quarantined(connection, Selection(), ALL)
    opened = [_opened(connection, row) if row.reason == LATER_VERSION else row for row in rows]
    return [row for row in opened if row is not None]


def dropped_unverified(connection: sqlite3.Connection) -> Iterator[Envelope]:
    """Signed batches that count as unsigned, since their consumer could not verify them, and its quarantine had no room
    for them. Samples of them are in the inbox."""
    for (data,) in connection.execute("SELECT frame FROM quarantine WHERE reason = 'unsigned'"):
        with contextlib.suppress(FrameError):
            envelope = open_frame(data).envelope
            if envelope.key_id is not None:
                yield envelope


def _opened(connection: sqlite3.Connection, row: QuarantinedDelivery) -> QuarantinedDelivery | None:
    (data,) = connection.execute("SELECT frame FROM quarantined_delivery WHERE id = ?", (row.id,)).fetchone()
    try:
        frame = open_frame(data)
    except FrameError:
        return None
    envelope = frame.envelope
    if envelope.incarnation == INCARNATION or not frame.intact():
        return None
    place = {"first": envelope.seq, "last": envelope.last}
    return msgspec.structs.replace(row, stream=envelope.stream, epoch=envelope.epoch, **place)
