"""What files and brokers still hold when a run is over: what a client that ended can yet send, or be given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reliamsg.message import MessageId
from reliamsg.store.quarantine import Selection, read_quarantined
from reliamsg.wire.data import open_frame

if TYPE_CHECKING:
    from reliamsg.simulation.consuming import ConsumerProcess
    from reliamsg.simulation.producing import ProducerProcess
    from reliamsg.simulation.world import World

__all__ = ["tell_kept"]

ALL = 1_000_000


def tell_kept(world: World) -> None:
    """Tell the judge."""
    oracle = world.oracle
    for producer in world.producers:
        for message, body in _in_outbox(producer):
            oracle.seen(message, body)
            oracle.kept[""].add(message)
    for consumer in world.consumers:
        oracle.kept[consumer.group].update(_in_inbox(consumer))
    for broker in world.brokers.values():
        for group, delivery in broker.stored():
            oracle.kept[group].update(world.history.messages(delivery))


def _in_outbox(producer: ProducerProcess) -> Iterator[tuple[MessageId, bytes]]:
    with producer.drive.reading() as connection:
        rows = connection.execute(
            "SELECT s.topic, s.part, b.epoch, b.seq, b.frame FROM batch b JOIN stream s ON s.id = b.stream_id"
        ).fetchall()
    for topic, part, epoch, first, frame in rows:
        for seq, body in enumerate(open_frame(frame).records().bodies, first):
            yield MessageId(producer.name, epoch, topic, part, seq), body


def _in_inbox(consumer: ConsumerProcess) -> Iterator[MessageId]:
    with consumer.drive.reading() as connection:
        held = connection.execute(
            "SELECT s.producer, s.topic, s.part, h.epoch, h.first, h.last"
            " FROM held h JOIN stream s ON s.id = h.stream_id"
        ).fetchall()
        quarantined = read_quarantined(connection, Selection(), ALL)
    spans = [(*each.stream, each.epoch, each.first, each.last) for each in quarantined]
    for name, topic, part, epoch, first, last in [*held, *spans]:
        for seq in range(first, last + 1):
            yield MessageId(name, epoch, topic, part, seq)
