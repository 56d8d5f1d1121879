"""Which messages are sent again, to which group, and how fast.

Each state of a group lists what it is missing and which of that it wants now. Wanted ranges are queued by group, stream
and epoch. Repairs share a budget of bytes per second, so that they never crowd out live traffic. Groups take turns
within it, and those that the producer's settings name get at least half of it, whatever forged groups request. A range
is not sent to the same group twice within `spacing` seconds, as the first copy may still have been in transit when the
group requested it again.

Not thread-safe. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from reliamsg.message import Stream
from reliamsg.protocol.announced import Span3
from reliamsg.protocol.ranges import RangeSet, Span

__all__ = ["MAX_EPOCHS", "MAX_GROUPS", "MAX_STREAMS", "Piece", "Repairs"]

MAX_GROUPS = 200
"""The most groups that are not named with queued requests; others have to ask again."""
MAX_STREAMS = 1_000
"""The most streams for which requests of one group are queued."""
MAX_EPOCHS = 50
"""The most epochs of a stream for which requests of one group are queued."""
MAX_RANGES = 1_000
"""The most ranges of an epoch that are queued for one group."""
MAX_RECENT = 1_000
"""The most ranges of an epoch, and the most epochs, that are remembered as recently sent to a group."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range to send now. The caller sends what it holds of it, from `first` on, and calls :meth:`Repairs.sent`."""

    group: str
    stream: Stream
    epoch: int
    first: int
    last: int


@dataclass(slots=True)
class _Group:
    named: bool
    spent: float
    """The bytes it was sent, as far as they count when turns are assigned."""
    queued: dict[Stream, dict[int, RangeSet]] = field(default_factory=dict)
    """By stream, in order of turns, and epoch."""
    recent: dict[tuple[Stream, int], deque[tuple[float, int, int]]] = field(default_factory=dict)
    """When which range of a stream and epoch was sent, oldest first."""

    @property
    def idle(self) -> bool:
        return not self.queued and not self.recent

    def drop_ranges(self, stream: Stream, epoch: int, first: int, last: int) -> None:
        ranges = self.queued.get(stream, {}).get(epoch)
        if ranges is None:
            return
        ranges.remove(first, last)
        if ranges.empty:
            self.drop_epoch(stream, epoch)

    def drop_epoch(self, stream: Stream, epoch: int) -> None:
        del self.queued[stream][epoch]
        if not self.queued[stream]:
            del self.queued[stream]

    def remember(self, stream: Stream, epoch: int, first: int, last: int, now: float) -> None:
        self.recent.setdefault((stream, epoch), deque(maxlen=MAX_RECENT)).append((now, first, last))
        if len(self.recent) > MAX_RECENT:
            del self.recent[next(iter(self.recent))]

    def expire(self, key: tuple[Stream, int], before: float) -> deque[tuple[float, int, int]]:
        """Forget what was sent up to `before`; returns what was sent later."""
        recent = self.recent.get(key)
        if recent is None:
            return deque()
        while recent and recent[0][0] <= before:
            recent.popleft()
        if not recent:
            del self.recent[key]
        return recent


class Repairs:
    """The repair queue of one producer.

    `bytes_per_second`: the budget, None for no limit. It may be exceeded by one piece; the next one then waits longer.
    `burst`: the bytes that may be sent at once after a pause, by default one second's worth.
    """

    def __init__(
        self, bytes_per_second: float | None, *, burst: float | None = None, spacing: float = 0.5
    ) -> None:
        self._rate = bytes_per_second
        self._credit = burst / bytes_per_second if bytes_per_second and burst is not None else 1.0
        """How many seconds of unused budget may be caught up at once."""
        self._paid_at = float("-inf")
        """When the budget allows the next piece."""
        self._spacing = spacing
        self._groups: dict[str, _Group] = {}
        self._spent = {True: 0.0, False: 0.0}
        """The bytes sent to all named groups, and to all others, as far as they count when turns are assigned."""
        self._level = {True: 0.0, False: 0.0}
        """The highest `spent` that a served group had before its turn, among named groups and among others."""

    # -- requests -------------------------------------------------------------------------------------------

    def request(
        self,
        group: str,
        stream: Stream,
        wanted: Sequence[Span3],
        now: float,
        *,
        missing: Sequence[Span3] | None = None,
        named: bool = True,
    ) -> bool:
        """A group wants these ranges of a stream; returns whether any of them was queued.

        `missing`: everything the group is missing, if known; other queued ranges have arrived meanwhile. The caller
        checks that the ranges were ever sent; this class enforces the limits on counts.
        """
        known = self._groups.get(group)
        if known is None:
            if not wanted:
                return False
            if not named and sum(not g.named for g in self._groups.values()) >= MAX_GROUPS:
                return False
            known = self._groups[group] = _Group(named, 0.0)
        known.named = named
        if missing is not None:
            self._keep(known, stream, missing)
        if not known.queued:  # time in which it wanted nothing earns it no credit
            known.spent = max(known.spent, self._level[named])
        queued = False
        for epoch, first, last in wanted:
            queued |= self._queue(known, stream, epoch, first, last, now)
        if known.idle:
            del self._groups[group]
        return queued

    def _keep(self, known: _Group, stream: Stream, missing: Sequence[Span3]) -> None:
        """Keep only those queued ranges of the stream that are still missing."""
        for epoch, ranges in list(known.queued.get(stream, {}).items()):
            lacking = RangeSet((first, last) for lacks, first, last in missing if lacks == epoch)
            kept = RangeSet(part for span in ranges for part in lacking.overlap(*span))
            if kept.empty:
                known.drop_epoch(stream, epoch)
            else:
                known.queued[stream][epoch] = kept

    def _queue(self, known: _Group, stream: Stream, epoch: int, first: int, last: int, now: float) -> bool:
        fresh = RangeSet([(first, last)])
        for _, low, high in known.expire((stream, epoch), now - self._spacing):
            fresh.remove(low, high)
        if fresh.empty:
            return False
        epochs = known.queued.get(stream)
        if epochs is None:
            if len(known.queued) >= MAX_STREAMS:
                return False
            epochs = known.queued[stream] = {}
        if epoch not in epochs and len(epochs) >= MAX_EPOCHS:
            return False
        ranges = epochs.setdefault(epoch, RangeSet())
        if ranges.intervals >= MAX_RANGES:
            return False
        for span in fresh:
            ranges.add(*span)
        return True

    def cancel(self, group: str) -> None:
        """Send nothing more to the group."""
        self._groups.pop(group, None)

    def unavailable(self, stream: Stream, epoch: int, first: int, last: int) -> None:
        """The range is not held any more, so requests for it are dropped."""
        for known in self._groups.values():
            known.drop_ranges(stream, epoch, first, last)

    # -- sending --------------------------------------------------------------------------------------------

    def next(self, now: float) -> Piece | None:
        """The piece to send now; None if nothing is wanted, or the budget is used up for the moment.

        The caller then must call :meth:`sent`, for the whole range or a part of it from `first` on, whether or not it
        could send anything.
        """
        if not self._groups or now < self._paid_at:
            return None
        turn = self._turn()
        if turn is None:
            return None
        group, known = turn
        stream, epochs = next(iter(known.queued.items()))
        epoch = min(epochs)
        first, last = next(iter(epochs[epoch]))
        return Piece(group, stream, epoch, first, last)

    def sent(self, piece: Piece, first: int, last: int, size: int, now: float) -> None:
        """`first` to `last` of a piece are done: `size` bytes were sent, or 0 if they are no longer held. The range may
        be larger than the piece, since whole batches are sent."""
        if self._rate is not None:
            self._paid_at = max(self._paid_at, now - self._credit) + size / self._rate
        known = self._groups.get(piece.group)
        if known is None:
            return
        self._level[known.named] = max(self._level[known.named], known.spent)
        known.spent += size
        self._spent[known.named] += size
        known.drop_ranges(piece.stream, piece.epoch, first, last)
        # The group's next piece is of another stream it wants, so that a long range does not hold up a short one.
        if piece.stream in known.queued:
            known.queued[piece.stream] = known.queued.pop(piece.stream)
        if size:
            known.remember(piece.stream, piece.epoch, first, last, now)

    def next_deadline(self, now: float) -> float:
        """When :meth:`next` will have something; infinite if nothing is wanted."""
        if not self._groups or not any(known.queued for known in self._groups.values()):
            return inf
        return max(now, self._paid_at)

    def queued(self) -> Iterator[tuple[str, Stream, int, list[Span]]]:
        """Everything that is queued: group, stream, epoch and ranges."""
        for group, known in self._groups.items():
            for stream, epochs in known.queued.items():
                for epoch, ranges in sorted(epochs.items()):
                    yield group, stream, epoch, list(ranges)

    def forget(self, now: float) -> None:
        """Forget groups that want nothing; to be called periodically."""
        for group, known in list(self._groups.items()):
            for key in list(known.recent):
                known.expire(key, now - self._spacing)
            if known.idle:
                del self._groups[group]

    # -- turns ----------------------------------------------------------------------------------------------

    def _turn(self) -> tuple[str, _Group] | None:
        """The group whose turn it is: the one that was sent least, of the class that was sent less."""
        waiting = [(name, known) for name, known in self._groups.items() if known.queued]
        if not waiting:
            return None
        classes = {known.named for _, known in waiting}
        if len(classes) == 1:
            [named] = classes
            # Time in which the other class wants nothing earns it no credit.
            self._spent[not named] = max(self._spent.values())
        else:
            named = self._spent[True] <= self._spent[False]
        mine = [(name, known) for name, known in waiting if known.named is named]
        return min(mine, key=lambda entry: (entry[1].spent, entry[0]))
