"""Tombstones of streams that an operator has forgotten: enough to recognize their messages if they arrive again."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from reliamsg.message import Stream
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.sender.fencing import ROOM
from reliamsg.store.inbox_rows import EpochRow, History, SavedStream, Tombstone
from reliamsg.store.journal import Entry
from reliamsg.wire.limits import MAX_EPOCH

__all__ = ["MAX_REMEMBERED", "Forgetting", "entry_of", "is_settled", "tombstone_of"]

MAX_REMEMBERED = 8
"""Of each kind, how much of what lies behind a stream its tombstone tells exactly: the newest."""


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The request."""

    streams: tuple[Stream, ...]
    below: int = MAX_EPOCH - ROOM
    """Epochs from this one on are not remembered: they were made up, or no producer could move above them."""
    unused_since_us: int | None = None
    """Only streams of which nothing was settled since then, in µs since 1970."""


def is_settled(saved: SavedStream) -> bool:
    """Whether nothing of a stream, as it is on disk, is held, missing, or to be delivered."""
    if len(saved.epochs) != 1 or saved.held or saved.gap is not None or saved.attempts:
        return False
    (row,) = saved.epochs
    if row.let_go >= row.position:
        return False
    return row.entered and not row.settled and row.last is None and not saved.history.accepted


def tombstone_of(saved: SavedStream, below: int) -> Tombstone | None:
    """What to remember of a settled stream: its highest epoch below `below`, and how far that was. None where there is
    no such epoch."""
    (row,) = saved.epochs
    history = saved.history
    if row.epoch >= below:
        before = _before(saved, below)
        if before is None:
            return None
        row, history = before
    joined = saved.joined if saved.joined is not None and saved.joined[0] < below else (row.epoch, 1)
    return Tombstone(msgspec.structs.replace(row, prev=None), joined, _trimmed(history))


def entry_of(saved: SavedStream, left: Tombstone | None, group: str) -> Entry:
    """What the journal says of it: the position that is remembered, and the stream's highest epoch where that is
    another."""
    (row,) = saved.epochs
    if left is None:
        return Entry("forgotten", saved.stream, row.epoch, row.incarnation, 0, 0, "", group, "unremembered")
    kept = left.epoch
    forged = kept.epoch != row.epoch
    return Entry(
        "forgotten", saved.stream, kept.epoch, kept.incarnation, kept.position, kept.position, "", group,
        "forged" if forged else "", detail={"dropped_epoch": row.epoch} if forged else None,
    )  # fmt: skip


def _before(saved: SavedStream, below: int) -> tuple[EpochRow, History] | None:
    """The highest epoch that was finished below `below`, as if the stream were still in it."""
    finished = sorted(one for one in saved.history.finished if one[0] < below)
    if not finished:
        return None
    epoch, incarnation, last = finished.pop()
    # What was declared to be behind the stream came beyond the epoch's end: it was not handed out, and is not either
    # if it comes again.
    declared = RangeSet([(1, last)])
    for number, spans in saved.history.superseded:
        for span in spans if number == epoch else ():
            declared.add(*span)
    end = max(high for _, high in declared)
    closed = [one for one in saved.history.closed if one[0] < epoch or (one[0] == epoch and one[1] <= last)]
    if end > last:
        closed.append((epoch, last + 1, end))
    history = msgspec.structs.replace(
        saved.history,
        finished=finished,
        superseded=[one for one in saved.history.superseded if one[0] < epoch],
        unended=[one for one in saved.history.unended if one < epoch],
        floor=min(saved.history.floor, epoch - 1),
        closed=closed,
        forgotten=min(saved.history.forgotten, (epoch, end)),
        vouched=saved.history.vouched if saved.history.vouched < below else 0,
        joined_after=None,
    )
    return EpochRow(
        saved.stream, epoch, incarnation, None, end + 1, end + 1, [], None, True, journalled=end
    ), history


def _trimmed(history: History) -> History:
    """The newest of it. Bounds stand for what is left out: epochs at or below `floor`, and ranges at or below
    `forgotten`, may have been dealt with."""
    finished = sorted(history.finished)
    superseded = sorted(history.superseded)
    closed = list(history.closed)
    floor, forgotten = history.floor, history.forgotten
    dropped = [one[0] for one in finished[:-MAX_REMEMBERED]] + [
        one[0] for one in superseded[:-MAX_REMEMBERED]
    ]
    floor = max([floor, *dropped])
    for epoch, _, last in closed[:-MAX_REMEMBERED]:
        forgotten = max(forgotten, (epoch, last))
    return msgspec.structs.replace(
        history,
        finished=finished[-MAX_REMEMBERED:],
        superseded=[(epoch, spans[-MAX_REMEMBERED:]) for epoch, spans in superseded[-MAX_REMEMBERED:]],
        closed=closed[-MAX_REMEMBERED:],
        floor=floor,
        forgotten=forgotten,
        accepted=[],
        unended=[epoch for epoch in history.unended if epoch > floor],
    )
