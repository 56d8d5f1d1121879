"""Taking messages out of the outbox on demand, so that nobody waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.core.ranges import RangeSet
from reliamsg.errors import ConfigError
from reliamsg.message import MessageId, Stream
from reliamsg.sending.book import Page
from reliamsg.sending.recoding import cut
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox
from reliamsg.store.rewriting import Taken

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine

__all__ = ["remove"]


def remove(engine: Engine, outbox: Outbox, first: MessageId, last: MessageId) -> int:
    """Remove what is held of `first` to `last`; returns how many messages that were. The writer's."""
    page, epoch, incarnation = _find(engine, first, last)
    stream = page.row.stream
    gone = RangeSet(page.removed.get(epoch, RangeSet()))

    def told(taken: Taken) -> tuple[list[tuple[int, int]], list[Entry]]:
        for span in taken.spans:
            gone.add(*span)
        ours = RangeSet(taken.spans)
        return list(gone), [Entry("removed", stream, epoch, incarnation, *span) for span in ours]

    taken = outbox.take_out(
        page.row.id, epoch, first.seq, last.seq, cut, told, engine.wall_us(), engine.mono_us()
    )
    if not taken.spans:
        return 0
    engine.probe("removed")
    with engine.lock:
        page.removed[epoch] = gone
        _forget(engine, stream.topic, epoch, taken)
    engine.control.removed(stream, epoch, first.seq, last.seq)
    return sum(b - a + 1 for a, b in taken.spans)


def _find(engine: Engine, first: MessageId, last: MessageId) -> tuple[Page, int, int]:
    """The stream's page, and the epoch with its incarnation."""
    if first._replace(seq=0) != last._replace(seq=0) or first.seq > last.seq:
        raise ConfigError(f"{first} and {last} are not two ends of a range of one stream and epoch")
    page = engine.membership.book.pages.get(Stream(first.producer, first.topic, first.partition))
    epoch = engine.outcomes.epoch(first.epoch)
    link = None if page is None else next((link for link in page.chain if link.epoch == epoch), None)
    if page is None or link is None or first.seq < 1 or last.seq > link.last:
        raise ConfigError(f"{first} to {last}: not messages of this producer, or forgotten long ago")
    return page, epoch, link.incarnation


def _forget(engine: Engine, topic: str, epoch: int, taken: Taken) -> None:
    """Let sites, groups and receipts know. With the lock held."""
    now = engine.clock()
    engine.outcomes.removed(topic, epoch, taken)
    for row in taken.gone:
        engine.core.removed(row.id, now)
        engine.membership.left([row.id])
    for before, after in taken.cut:
        engine.core.changed(after)
        for added in taken.added:
            if added.last == before.last:
                engine.core.split(before.id, added.id, now)
                if before.id in engine.housekeeping.published:
                    engine.housekeeping.published.add(added.id, added.id)
    if taken.added:
        engine.core.top = taken.added[-1].id
        engine.membership.stored(taken.added)
    engine.membership.look_again(taken)
    engine.housekeeping.recount = True
    engine.forget_rows()
    engine.outcomes.changed()
