"""What is to be sent again, to whom, and how fast.

Groups tell in every state what they lack and which of it they want now. What they want is queued by group, stream and
epoch, as ranges. Repairs share a budget of bytes per second, so that they never crowd out live traffic; within it
every group has its turn, and groups that the producer's settings name get half of it at least, whatever made-up groups
ask for. A range that was sent is not sent again to the same group within `spacing` seconds, as the request may have
been on its way already.

Not thread-safe. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reliamsg.core.ranges import RangeSet, Span
from reliamsg.message import Stream

__all__ = ["MAX_EPOCHS", "MAX_GROUPS", "MAX_STREAMS", "Piece", "Repairs", "Span3"]

Span3 = tuple[int, int, int]
"""Epoch, first and last number."""

MAX_GROUPS = 200
"""Groups that are not named and whose requests are queued; others have to ask again."""
MAX_STREAMS = 1_000
"""Streams of a group of which requests are queued."""
MAX_EPOCHS = 50
"""Epochs of a stream of which a group's requests are queued."""
MAX_RANGES = 1_000
"""Ranges of an epoch that a group's requests are queued for."""
MAX_RECENT = 1_000
"""Ranges of an epoch, and epochs, that are remembered as just sent to a group."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A range that a group wants now. The caller sends what it holds of it, from `first` on, and then says so."""

    group: str
    stream: Stream
    epoch: int
    first: int
    last: int


@dataclass(slots=True)
class _Group:
    named: bool
    spent: float
    """Bytes that it was sent, as far as they count for whose turn it is."""
    queued: dict[Stream, dict[int, RangeSet]] = field(default_factory=dict)
    """By stream, in the order of their turns, and epoch."""
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
        """What was sent of a stream and epoch after `before`; the rest is forgotten."""
        recent = self.recent.get(key)
        if recent is None:
            return deque()
        while recent and recent[0][0] <= before:
            recent.popleft()
        if not recent:
            del self.recent[key]
        return recent


class Repairs:
    """The queue of repairs of one producer.

    `bytes_per_second`: their budget, None for no limit. What is sent may exceed it by one piece; the next one then
    waits longer. `burst`: bytes that may go at once after a pause, by default those of a second.
    """

    def __init__(
        self, bytes_per_second: float | None, *, burst: float | None = None, spacing: float = 0.5
    ) -> None:
        self._rate = bytes_per_second
        self._credit = burst / bytes_per_second if bytes_per_second and burst is not None else 1.0
        """Seconds of a pause that may be made up for at once."""
        self._paid_at = float("-inf")
        """When what was sent so far is paid for; from then on the next may go."""
        self._spacing = spacing
        self._groups: dict[str, _Group] = {}
        self._spent = {True: 0.0, False: 0.0}
        """By all named groups, and by all others, as far as it counts for which of them are next."""
        self._level = {True: 0.0, False: 0.0}
        """What the group had spent that was served last, of the named ones and of the others."""

    # -- what is wanted -------------------------------------------------------------------------------------

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
        """A group told what it wants of a stream; returns whether anything was queued by it.

        `missing`: all that it lacks of the stream, where the request says so: what else is queued has arrived. The
        caller checks ranges against what it has ever sent; bounds on counts are kept here.
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
        if not known.queued:  # it was waiting for nothing meanwhile, and is owed nothing for that
            known.spent = max(known.spent, self._level[named])
        queued = False
        for epoch, first, last in wanted:
            queued |= self._queue(known, stream, epoch, first, last, now)
        if known.idle:
            del self._groups[group]
        return queued

    def _keep(self, known: _Group, stream: Stream, missing: Sequence[Span3]) -> None:
        """Of what is queued of the stream, keep only what is missing still."""
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
        """The group is not to be sent anything more."""
        self._groups.pop(group, None)

    def unavailable(self, stream: Stream, epoch: int, first: int, last: int) -> None:
        """This range is not held any more: nobody need wait for it."""
        for known in self._groups.values():
            known.drop_ranges(stream, epoch, first, last)

    # -- what to send ---------------------------------------------------------------------------------------

    def next(self, now: float) -> Piece | None:
        """What to send now; None where nothing is wanted, or the budget is used up for the moment.

        The caller then calls :meth:`sent`, for the whole range or a part of it from `first` on, whether or not it
        could send anything.
        """
        if now < self._paid_at:
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
        """Of a piece that :meth:`next` gave, `first` to `last` is dealt with: `size` bytes were sent, or (0) it is not
        held any more. The range may be larger than what was wanted: whole batches are sent."""
        if self._rate is not None:
            self._paid_at = max(self._paid_at, now - self._credit) + size / self._rate
        known = self._groups.get(piece.group)
        if known is None:
            return
        self._level[known.named] = max(self._level[known.named], known.spent)
        known.spent += size
        self._spent[known.named] += size
        known.drop_ranges(piece.stream, piece.epoch, first, last)
        # The next piece of the group is of another stream, if it wants any: a long range holds up no short one.
        if piece.stream in known.queued:
            known.queued[piece.stream] = known.queued.pop(piece.stream)
        if size:
            known.remember(piece.stream, piece.epoch, first, last, now)

    def deadline(self, now: float) -> float | None:
        """When :meth:`next` will have something; None where nothing is wanted."""
        if not any(known.queued for known in self._groups.values()):
            return None
        return max(now, self._paid_at)

    def queued(self) -> Iterator[tuple[str, Stream, int, list[Span]]]:
        """All that is wanted: group, stream, epoch and ranges."""
        for group, known in self._groups.items():
            for stream, epochs in known.queued.items():
                for epoch, ranges in sorted(epochs.items()):
                    yield group, stream, epoch, list(ranges)

    def forget(self, now: float) -> None:
        """Forget groups that want nothing; to be called now and then."""
        for group, known in list(self._groups.items()):
            for key in list(known.recent):
                known.expire(key, now - self._spacing)
            if known.idle:
                del self._groups[group]

    # -- inside ---------------------------------------------------------------------------------------------

    def _turn(self) -> tuple[str, _Group] | None:
        """The group whose turn it is: of those that were sent least, in the class that was sent less."""
        waiting = [(name, known) for name, known in self._groups.items() if known.queued]
        if not waiting:
            return None
        if all(known.named for _, known in waiting) or not any(known.named for _, known in waiting):
            named = waiting[0][1].named
            # Time in which the others want nothing gives them no claim on later times.
            self._spent[not named] = max(self._spent.values())
        else:
            named = self._spent[True] <= self._spent[False]
        mine = [(name, known) for name, known in waiting if known.named is named]
        return min(mine, key=lambda entry: (entry[1].spent, entry[0]))
