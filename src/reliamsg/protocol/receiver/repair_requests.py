"""What a group lacks, and when it requests it from the producer.

A number is requested when it has been missing for ``repair_delay``: sites run ahead of each other, and most missing
messages are in flight. There is one bound instead of a time for each range: when the bound was taken, nothing above it
was known, so everything missing at or below it has been missing at least since then.

Requests are bounded: a window of numbers is wanted at a time, the lowest first. When half of it has arrived, the next
is requested. Messages that do not arrive are requested again, with backoff.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliamsg.message import Stream
from reliamsg.protocol.announced import Position, Span3
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.epochs import EpochChain
from reliamsg.protocol.receiver.events import Note
from reliamsg.protocol.receiver.producer_view import ProducerView
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer

__all__ = ["WINDOW_NUMBERS", "WINDOW_SPANS", "RepairRequest", "RepairScheduler"]

WINDOW_NUMBERS = 20_000
"""Numbers of a stream that are requested and have not arrived."""
WINDOW_SPANS = 64
"""The same in ranges."""
BACKOFF_MAX_S = 10.0
"""Between requests that bring nothing."""
MAX_ASKED = 1_000
"""Ranges of an epoch whose request is remembered as journalled."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A request to a stream's producer, to be sent now."""

    stream: Stream
    missing: tuple[Span3, ...] = ()
    """Ranges that are known to exist and have not arrived, lowest first."""
    wanted: tuple[Span3, ...] = ()
    """The ranges to be sent now. If empty, only a status is requested, because it is unknown what is missing."""


class _Requests:
    """The requests for what a stream lacks at present."""

    __slots__ = (
        "check_window", "due_at", "due_to", "head", "interval", "next_at", "pending_to", "pending_until", "queued",
        "requested_to",
    )  # fmt: skip

    def __init__(self, interval: float) -> None:
        self.pending_to: Position = (0, 0)
        """Missing numbers up to here may be requested from `due_at` on."""
        self.pending_until = 0.0
        """Numbers found to be missing before this time are requested together with those."""
        self.due_at: float | None = None
        """None: nothing above `due_to` is known."""
        self.due_to: Position = (0, 0)
        """Missing numbers up to here may be requested."""
        self.requested_to: Position | None = None
        """Everything missing up to here has been requested, as far as possible; None: nothing."""
        self.head: Position = (0, 0)
        """The lowest number that was requested and has not arrived."""
        self.next_at = 0.0
        """When everything that has not arrived is requested again."""
        self.interval = interval
        self.check_window = False
        """The window may have room."""
        self.queued = False


class RepairScheduler:
    """Decides when to send requests to a stream's producer, and for what."""

    __slots__ = ("_context", "_epochs", "_requests", "_stream", "_view", "any_missing")

    def __init__(self, stream: Stream, context: GroupContext, epochs: EpochChain, view: ProducerView) -> None:
        self._stream, self._context = stream, context
        self._epochs, self._view = epochs, view
        self._requests: _Requests | None = None
        """None while nothing is missing."""
        self.any_missing: bool = False
        """Whether anything is known to be missing."""

    def arrived(self, epoch: int, first: int) -> None:
        """Numbers from `first` on have arrived, which were missing until now."""
        requests = self._requests
        if (
            requests is not None
            and requests.requested_to is not None
            and (epoch, first) <= requests.requested_to
        ):
            requests.check_window = True

    # -- when to ask ----------------------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Notice whether anything is missing. To be called after any change."""
        requests, epochs, context = self._requests, self._epochs, self._context
        if requests is None and epochs.is_in_order:
            return
        if not self._stream.producer or not (epochs.lacking(1) or epochs.is_puzzled(self._view.cuts)):
            if requests is not None:
                self._requests, self.any_missing = None, False
                context.repairs_due.pop(self._stream, None)
            return
        delay = context.rules.repair_delay
        if requests is None:
            requests = self._requests = _Requests(delay)
            self.any_missing = True
        if requests.due_at is None:
            top = epochs.top
            if top > requests.due_to:
                requests.pending_to = top
                requests.pending_until = now + delay / 10
                requests.due_at = now + context.jitter.spread(delay)
        elif now <= requests.pending_until:
            requests.pending_to = max(requests.pending_to, epochs.top)
        context.wake(self._stream)

    def hurry(self, now: float) -> None:
        """A producer has appeared: send a request soon, whatever the backoff says."""
        requests, delay = self._requests, self._context.rules.repair_delay
        if requests is not None and requests.requested_to is not None:
            requests.interval = delay
            requests.next_at = min(requests.next_at, now + self._context.jitter.spread(delay))
            self._context.wake(self._stream)

    def look(self, now: float, connected: bool) -> float | None:
        """Queue the stream if a request is due. Returns when to look again."""
        requests, delay = self._requests, self._context.rules.repair_delay
        if requests is None or requests.queued:
            return None
        if not connected:
            return now + 0.5
        if requests.due_at is not None and now >= requests.due_at:
            requests.due_to, requests.due_at = requests.pending_to, None
            requests.check_window = True
            self.watch(now)
            if self._requests is None:
                return None
        if requests.due_to == (0, 0):
            return requests.due_at
        if now >= requests.next_at and self._has_come_on(requests):
            requests.interval = delay
            requests.next_at = now + self._context.jitter.spread(delay)
        due = requests.requested_to is None or now >= requests.next_at
        if due or (requests.check_window and self._has_window(requests)):
            requests.queued = True
            self._context.repairs_due[self._stream] = None
            return requests.due_at
        requests.check_window = False
        at = requests.next_at
        return at if requests.due_at is None else min(at, requests.due_at)

    def _has_come_on(self, requests: _Requests) -> bool:
        """Whether the lowest requested number has arrived since the last look. Producers send in order, so while it
        does, the rest is in flight."""
        if requests.requested_to is None:
            return False
        found = requests.requested_to
        for known, first, last in self._epochs.lacking():
            if (known.epoch, last) >= requests.head:
                found = max(requests.head, (known.epoch, first))
                break
        came, requests.head = found > requests.head, found
        return came

    def _has_window(self, requests: _Requests) -> bool:
        """Whether half of the window is free, and there is more to request."""
        spans, count, more = _outstanding(self._epochs.lacking(), requests)
        return more and 2 * spans <= WINDOW_SPANS and 2 * count <= WINDOW_NUMBERS

    # -- what to ask for ------------------------------------------------------------------------------------

    def request(self, now: float, only_head: bool) -> RepairRequest | None:
        """The request for what the stream lacks, if there is anything to request."""
        requests, rules = self._requests, self._context.rules
        if requests is None:
            return None
        requests.queued = requests.check_window = False
        missing = self._epochs.lacking()
        again = requests.requested_to is None or now >= requests.next_at
        wanted = self._wanted(requests, missing, again, only_head)
        if only_head and not wanted:
            requests.requested_to, requests.next_at = (0, 0), now + rules.repair_delay  # until there is room
            return None
        if again:
            requests.requested_to = (0, 0)
            requests.interval = min(max(2 * requests.interval, 0.1), BACKOFF_MAX_S)
            requests.next_at = now + self._context.jitter.spread(requests.interval)
        if wanted:
            requests.requested_to = wanted[-1][0], wanted[-1][2]
            if again:
                requests.head = wanted[0][:2]
            self._journal(wanted)
        elif not (again and self._epochs.is_puzzled(self._view.cuts)):
            return None
        return RepairRequest(
            self._stream, tuple((known.epoch, a, b) for known, a, b in missing), tuple(wanted)
        )

    def _wanted(
        self, requests: _Requests, missing: list[tuple[ReorderBuffer, int, int]], again: bool, only_head: bool
    ) -> list[Span3]:
        """The ranges to request: the lowest ones, or those beyond earlier requests, as far as the window goes."""
        spans, numbers, beyond = WINDOW_SPANS, WINDOW_NUMBERS, (0, 0)
        if not again and requests.requested_to is not None:
            used, count, _ = _outstanding(missing, requests)
            spans, numbers, beyond = spans - used, numbers - count, requests.requested_to
        wanted: list[Span3] = []
        for known, first, last in missing:
            epoch = known.epoch
            if only_head and (known is not self._epochs.current or first > known.cursor):
                break
            if epoch > requests.due_to[0] or len(wanted) >= spans or numbers <= 0:
                break
            low = max(first, beyond[1] + 1) if epoch == beyond[0] else first
            high = min(last, requests.due_to[1]) if epoch == requests.due_to[0] else last
            if epoch < beyond[0] or low > high:
                continue
            offered = self._view.offered(known, low, high)
            if offered is not None:
                low, high = offered[0], min(offered[1], offered[0] + numbers - 1)
                wanted.append((epoch, low, high))
                numbers -= high - low + 1
        return wanted

    def _journal(self, wanted: list[Span3]) -> None:
        """Journal each request once."""
        for epoch, first, last in wanted:
            known = self._epochs.live[epoch]
            for new in known.requested.missing(first, last):
                self._context.emit(Note("asked", self._stream, epoch, known.incarnation, *new))
            if known.requested.intervals < MAX_ASKED:
                known.requested.add(first, last)


def _outstanding(missing: list[tuple[ReorderBuffer, int, int]], requests: _Requests) -> tuple[int, int, bool]:
    """Among the missing ranges: the ranges and numbers that were requested, and whether there are others that may
    be."""
    spans = count = 0
    assert requests.requested_to is not None  # else it is due anyway
    for known, first, last in missing:
        if (known.epoch, first) > requests.requested_to:
            return spans, count, (known.epoch, first) <= requests.due_to
        if (known.epoch, last) > requests.requested_to:
            return (
                spans + 1,
                count + requests.requested_to[1] - first + 1,
                requests.requested_to < requests.due_to,
            )
        spans += 1
        count += last - first + 1
    return spans, count, False
