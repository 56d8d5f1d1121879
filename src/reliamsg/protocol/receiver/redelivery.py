"""What may be delivered next from a stream: order, limits, and attempts that are counted in advance.

A message that may have been delivered before is delivered again only after a commit has counted the attempt. So a
message that kills its process on every attempt uses up its deliveries instead of coming back forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reliamsg.protocol.announced import Position
from reliamsg.protocol.ranges import Span
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer

__all__ = ["COUNTED_TOGETHER", "DeliveryRules", "Offer", "Redelivery"]

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 5.0

COUNTED_TOGETHER = 64
"""After an unclean stop, attempts at this many messages are counted together in one commit, once, whether or not they
are made. From then on, each message is counted and handled alone, so that one that kills its handler does not use up
the deliveries of others."""


@dataclass(frozen=True)
class DeliveryRules:
    """Limits on deliveries."""

    max_unacknowledged: int = 1_000
    max_deliveries: int = 20
    halt: bool = False
    """A message that has used up its deliveries halts its stream instead of becoming a dead letter."""


@dataclass(slots=True)
class Offer:
    """A run of messages that may be delivered."""

    epoch: int
    incarnation: int
    first: int
    last: int
    redelivered: bool = False
    retry: bool = False
    """Again, after its handler raised."""
    counted: bool = False
    """A commit has counted the attempts already."""
    spent: bool = False
    """It has used up its deliveries and becomes a dead letter instead."""
    alone: bool = False
    """It has to be handled on its own."""
    unjournalled: bool = False
    """It may have been delivered before this process began, but no journal says so."""


class Redelivery:
    """The attempts at messages of one stream that have to be counted.

    An attempt is *pending* until a commit holds it, and *granted* from then until it is made.
    """

    __slots__ = ("_granted", "counts", "halted", "pending", "retry_at")

    def __init__(self, attempts: Iterable[tuple[int, int, int]] = ()) -> None:
        """`attempts`: as the inbox holds them: epoch, number, deliveries so far."""
        self.counts: dict[tuple[int, int], int] = {(epoch, seq): count for epoch, seq, count in attempts}
        """By epoch and number: deliveries of messages that were, or may have been, delivered before. Callers read it to
        skip :meth:`settled` for the many streams that have none."""
        self.pending: dict[Position, int] = {}
        """Attempts that the next commit has to count."""
        self._granted: dict[Position, int] = {}
        self.retry_at: float = 0.0
        """When failed messages may be delivered again."""
        self.halted: bool = False
        """A message has used up its deliveries, and nothing more of the stream is delivered."""

    def halt(self) -> None:
        """Deliver nothing more of this stream."""
        self.halted = True

    def attempts(self, epoch: int, seq: int) -> int:
        """The number of deliveries of a message that was delivered."""
        return self.counts.get((epoch, seq), 1)

    # -- deliveries ---------------------------------------------------------------------------------------

    def offer(
        self, rules: DeliveryRules, entered: Sequence[ReorderBuffer], now: float, unit: int
    ) -> tuple[Offer | None, bool]:
        """The next offer, if any, and whether a commit is needed before there can be (more).

        `entered`: the epochs of which anything may be delivered, or is delivered and unsettled, in order. `unit`: how
        many messages the application takes at once.
        """
        if self.halted:
            return None, False
        for known in entered:
            if not known.retry.empty:
                if now < self.retry_at:
                    return None, False
                first = known.retry.first
                assert first is not None  # it is not empty
                return self._counted(rules, known, first, first, retry=True)
            run = known.deliverable()
            # An epoch that was left has something to offer if a run that was taken came back.
            if run is not None:
                room = rules.max_unacknowledged
                for each in entered:
                    room -= each.unacknowledged
                return self._in_order(rules, known, run, room, unit)
        return None, False

    def take(self, known: ReorderBuffer, offered: Offer, last: int) -> None:
        """Messages of an offer, up to `last`, are delivered now."""
        if offered.counted:
            for seq in range(offered.first, last + 1):
                self.counts[known.epoch, seq] = self._granted.pop((known.epoch, seq))
        if offered.retry:
            known.retry.remove(offered.first, last)
        else:
            known.advance(last)

    def untake(self, known: ReorderBuffer, offered: Offer, first: int, last: int) -> None:
        """`first` to `last`, the end of a delivered run, did not reach the application after all."""
        if offered.counted:
            for seq in range(first, last + 1):
                self._granted[known.epoch, seq] = self.attempts(known.epoch, seq)
                if offered.retry:
                    known.retry.add(seq, seq)
        if not offered.retry:
            known.untake(first)

    def fail(
        self, rules: DeliveryRules, known: ReorderBuffer, span: Span, now: float, counts: bool = True
    ) -> list[int]:
        """The handler of `span` raised: deliver its messages again later, one by one. Returns those that have used up
        their deliveries. Unless it `counts`, none is used up."""
        spent: list[int] = []
        most = 1
        first, last = span
        for part in known.held.overlap(first, min(last, known.cursor - 1)) if first < known.cursor else ():
            for seq in range(part[0], part[1] + 1):
                count = self.counts.setdefault((known.epoch, seq), 1)
                if not counts:
                    count = self.counts[known.epoch, seq] = count - 1
                most = max(most, count)
                if counts and count >= rules.max_deliveries:
                    spent.append(seq)
                else:
                    known.retry.add(seq, seq)
        self.retry_at = now + min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(most - 1, 10))
        return spent

    def settled(self, epoch: int, span: Span) -> None:
        """None of these is delivered any more."""
        first, last = span
        for key in [key for key in self.counts if key[0] == epoch and first <= key[1] <= last]:
            del self.counts[key]
            self._granted.pop(key, None)

    def drop_before(self, position: Position) -> None:
        """Nothing before this position is delivered any more."""
        for counts in (self.counts, self.pending, self._granted):
            for key in [key for key in counts if key < position]:
                del counts[key]

    # -- commits ------------------------------------------------------------------------------------------

    def take_pending(self) -> dict[Position, int]:
        """The attempts that the next commit has to count."""
        pending, self.pending = self.pending, {}
        return pending

    def put_back(self, pending: Mapping[Position, int]) -> None:
        """The commit failed: these belong to the next one."""
        self.pending.update({key: count for key, count in pending.items() if key not in self.pending})

    def grant(self, pending: Mapping[Position, int], live: Mapping[int, ReorderBuffer]) -> None:
        """These attempts are durable: they may be made, unless they were made or became needless meanwhile. `live`: the
        epochs that are not behind the stream."""
        for key, count in pending.items():
            known = live.get(key[0])
            if known is None or known.held.run_from(key[1]) is None:
                continue
            to_come = key[1] >= known.cursor or known.retry.run_from(key[1]) is not None
            if to_come and self._tries(known, key[1]) + 1 == count:
                self._granted[key] = count

    # -- counting -----------------------------------------------------------------------------------------

    def _in_order(
        self, rules: DeliveryRules, known: ReorderBuffer, run: Span, room: int, unit: int
    ) -> tuple[Offer | None, bool]:
        if room <= 0:
            return None, False
        first, last = run
        last = min(last, first + room - 1)
        if first < known.redelivered_below:
            last = self._together(rules, known, first, last, unit)
            return self._counted(rules, known, first, last, retry=False)
        last = min(last, known.high_water - 1)
        if last < first:
            return None, True
        return Offer(known.epoch, known.incarnation, first, last), False

    def _together(self, rules: DeliveryRules, known: ReorderBuffer, first: int, last: int, unit: int) -> int:
        """The last number whose attempt is counted in the same commit as that of `first`."""
        last = min(last, known.redelivered_below - 1)
        if first <= known.journalled:  # so that no row of the journal holds both kinds
            last = min(last, known.journalled)
        if (known.epoch, first) in self._granted:
            while first < last and (known.epoch, first + 1) in self._granted:
                first += 1
            return first
        if self._goes_alone(rules, known, first):
            return first
        last = min(last, first + max(unit, COUNTED_TOGETHER) - 1)
        for seq in range(first, last):
            if self._goes_alone(rules, known, seq + 1):
                return seq
        return last

    def _goes_alone(self, rules: DeliveryRules, known: ReorderBuffer, seq: int) -> bool:
        """Whether a message may be the one that kills the process: messages delivered with it would use up their
        deliveries, too."""
        return rules.max_deliveries <= 2 or (known.epoch, seq) in self.counts

    def _counted(
        self, rules: DeliveryRules, known: ReorderBuffer, first: int, last: int, retry: bool
    ) -> tuple[Offer | None, bool]:
        """Offer messages whose attempt is counted already; otherwise have it counted."""
        keys = [(known.epoch, seq) for seq in range(first, last + 1)]
        found = Offer(
            known.epoch, known.incarnation, first, last, redelivered=True, retry=retry, counted=True
        )
        found.unjournalled = known.journalled < first < known.redelivered_below
        found.alone = retry or self._goes_alone(rules, known, first)
        if all(key in self._granted for key in keys):
            return found, False
        if not rules.halt and self._tries(known, first) >= rules.max_deliveries:
            found.last, found.spent, found.counted = first, True, False
            return found, False
        wanted = {key: self._tries(known, key[1]) + 1 for key in keys if key not in self._granted}
        if all(self.pending.get(key) == count for key, count in wanted.items()):
            return None, True
        self.pending.update(wanted)
        return None, True

    def _tries(self, known: ReorderBuffer, seq: int) -> int:
        """The number of deliveries before the next one. A possible delivery before an unclean stop does not count:
        otherwise a message could become a dead letter without having been handled."""
        counted = self.counts.get((known.epoch, seq))
        if counted is not None:
            return counted
        return 0 if known.journalled < seq < known.redelivered_below else 1
