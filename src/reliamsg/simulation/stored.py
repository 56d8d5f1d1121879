"""The messages in a client's file, which a terminated client could still send or deliver."""

from __future__ import annotations

from collections.abc import Iterator

from reliamsg.message import MessageId
from reliamsg.simulation.disk import Drive
from reliamsg.store.quarantine import Selection, read_quarantined
from reliamsg.wire.data import open_frame

__all__ = ["stored_in_inbox", "stored_in_outbox"]

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
        quarantined = read_quarantined(connection, Selection(), ALL)
    spans = [(*each.stream, each.epoch, each.first, each.last) for each in quarantined]
    for name, topic, part, epoch, first, last in [*held, *spans]:
        for seq in range(first, last + 1):
            yield MessageId(name, epoch, topic, part, seq)
