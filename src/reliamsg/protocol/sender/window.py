"""One site's send window: which rows are in flight, which are confirmed, and which may be sent next.

Rows of the outbox are sent in the order of their ids. A *send queue* is a sequence of rows that is sent in order. All
streams share the main queue, except those that have one of their own: each parked stream, whose first row is retried
alone, with backoff, until the stream has caught up and rejoins the main queue. So the rows of one stream are always
sent in order, and a stream that a site refuses does not hold up any other.

States of a queue::

    flowing ── refused / dropped ──▶ parked ── retry_at reached ──▶ probing ── confirmed ──▶ flowing
                / unanswered           ▲                              │
                                       └─ refused/dropped/unanswered ─┘

A retried row, the *trial*, does not count against the window's limits: a broker may never answer it. It may also keep
the broker from answering what is sent after it (P18). A trial that did so makes its queue a *blocker* until the stream
is confirmed or refused: blockers are retried one at a time, and after pauses that grow with the time that they took
from others.
A parked stream whose rows have all been removed has nothing to retry, and rejoins the main queue at once.

A stream also has a queue of its own, in any of these states, while one of its named groups is not proven to exist at
the site (rules P15 to P17). Confirms do not count there: confirmed rows are recorded as *uncounted*. Once all groups
are proven, and nothing is in flight, the queue goes back to the first of these rows and sends them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol, TypeVar

from reliamsg.protocol.ranges import RangeSet

__all__ = ["UNSEEN", "InFlight", "QueueState", "RowLike", "SendQueue", "SiteLimits", "SiteWindow"]

UNSEEN = "unseen"
"""The reason of a queue that exists because a named group of its stream is not proven."""
UNANSWERED = "no confirm in time"
"""The reason of a queue whose first row was not confirmed in time."""

PARK_MIN_S = 0.5
PARK_MAX_S = 30.0
"""The pause before a parked stream is retried starts at PARK_MIN_S and doubles up to PARK_MAX_S."""
MAX_PATIENCE = 8
"""If reconnecting did not help, the confirm timeout is extended, up to this multiple."""
MAX_CALM = 8
"""After a trial that held up other rows, no blocker is retried for as long as they were held up. That doubles with each
such trial of a stream, up to this multiple."""
HOLDUP_S = 1.0
"""Holding up others counts from this many seconds on, or from a tenth of the confirm timeout on, if that is less."""
DROPS = 3
"""After this many dropped connections with the same first row, the row is sent alone. If the connection drops once
more, its stream is parked."""


class RowLike(Protocol):
    """What the window needs to know of a row of the outbox."""

    @property
    def id(self) -> int: ...
    @property
    def stream_id(self) -> int: ...
    @property
    def size(self) -> int: ...


R = TypeVar("R", bound=RowLike)


@dataclass(frozen=True)
class SiteLimits:
    """The most rows and bytes that may be unconfirmed at once, and the confirm timeout in seconds."""

    batches: int
    bytes: int
    confirm_timeout: float


class QueueState(Enum):
    FLOWING = "flowing"
    PARKED = "parked"
    PROBING = "probing"


class SendQueue:
    """Rows in order: those in flight, and the next one. `stream_id` is None for the main queue."""

    __slots__ = (
        "attempts",
        "holdups",
        "in_flight",
        "next",
        "proven",
        "reason",
        "retry_at",
        "state",
        "stream_id",
        "uncounted",
    )

    def __init__(self, stream_id: int | None, cursor: int) -> None:
        self.stream_id: int | None = stream_id
        self.next: int = cursor
        """The lowest row that may still have to be sent."""
        self.in_flight: set[int] = set()
        self.state: QueueState = QueueState.FLOWING
        self.retry_at: float = 0.0
        self.attempts: int = 0
        self.holdups: int = 0
        """How many trials in a row held up other rows; the queue is a blocker if there was one."""
        self.reason: str = ""
        self.uncounted: RangeSet | None = None
        """Confirmed rows whose confirm does not count; None if confirms count."""
        self.proven: bool = False
        """All groups are proven by now: confirms count again as soon as nothing is in flight."""

    @property
    def cursor(self) -> int:
        """All rows of the queue below it are confirmed, and their confirms count."""
        first = None if self.uncounted is None else self.uncounted.first
        return self.unanswered if first is None else min(self.unanswered, first)

    @property
    def unanswered(self) -> int:
        """All rows of the queue below it are confirmed, whether or not that counts."""
        return min(min(self.in_flight, default=self.next), self.next)

    def skip_to(self, row: int) -> None:
        """No row below `row` has to be sent on it any more."""
        self.next = max(self.next, row)

    def park(self, row: int, reason: str, now: float) -> None:
        """Pause before `row` is retried."""
        self.state = QueueState.PARKED
        self.next = min(self.next, row)
        self.reason = reason
        self.retry_at = now + min(PARK_MAX_S, PARK_MIN_S * 2 ** min(self.attempts, 10))
        self.attempts += 1


@dataclass(slots=True)
class InFlight:
    """A row that was passed to a site's transport and is not answered yet."""

    row: RowLike
    queue: SendQueue
    at: float
    number: int
    """It was sent before those with higher numbers."""
    trial: bool = False
    """It retries a parked stream, and does not count against the window's limits."""


class SiteWindow:
    """The send window of one site."""

    def __init__(self, name: str, limits: SiteLimits, cursor: int) -> None:
        self.name = name
        self.limits = limits
        self.main: SendQueue = SendQueue(None, cursor)
        self.queues: dict[int, SendQueue] = {}
        self.in_flight: dict[int, InFlight] = {}
        """All rows in flight, oldest first."""
        self._regular: dict[int, InFlight] = {}
        """Those that count against the limits, oldest first."""
        self._trials: dict[int, InFlight] = {}
        """Those that do not."""
        self.bytes: int = 0
        """The total size of the rows in flight that count against the limits."""
        self.confirmed: RangeSet = RangeSet()
        """Rows that the site has confirmed and whose confirms count."""
        self.due_at: float = inf
        """Nothing is due before this time: a lower bound of :meth:`next_deadline`."""
        if cursor > 1:
            self.confirmed.add(1, cursor - 1)
        self.connected: bool = False
        self.blocked: str | None = None
        self.overdue_since: float | None = None
        """Set when a confirm is overdue; the site does not count as up until the next confirm."""
        self._batches = limits.batches
        self._patience = 1
        self._oldest_at = 0.0
        """When the oldest regular row in flight became the oldest, if a confirm made it so."""
        self._retry_at = inf
        """The earliest time at which a parked queue is retried."""
        self._calm_until = -inf
        """No blocker is retried before this time."""
        self._suspect = 0
        self._drops = 0
        self._overdue: set[int] = set()
        """Rows that were overdue once without their streams being parked."""
        self._sent = 0
        """The number of the row that was sent last."""
        self._answered = 0
        """The highest number of a row that the site confirmed or refused."""
        self._answered_at = -inf
        """When the site last confirmed or refused a row."""
        self._silenced: set[int] = set()
        """Streams that were parked while the site answered nothing, perhaps through no fault of theirs, and it still
        does not."""

    @property
    def up(self) -> bool:
        """Connected, not blocked, and no confirm overdue."""
        return self.connected and self.blocked is None and self.overdue_since is None

    # -- connection -----------------------------------------------------------------------------------------

    def connect(self, window: int | None) -> None:
        """A new connection: nothing is in flight. `window` is the broker's own limit, if it has one."""
        self.connected = True
        self.blocked = None
        self.due_at = self._retry_at
        self._batches = self.limits.batches if window is None else max(1, min(self.limits.batches, window))

    def disconnect(self, now: float, asked: bool) -> SendQueue | None:
        """The connection is gone: everything that was in flight is sent again, in order.

        `asked`: we closed it ourselves, so no row is suspected. Returns a queue that was parked because of it.
        """
        was_connected, self.connected = self.connected, False
        self.blocked = None
        probing = [
            queue for queue in self.queues.values() if queue.state is QueueState.PROBING and queue.in_flight
        ]
        suspect = self._first_regular()
        for queue in (self.main, *self.queues.values()):
            queue.next = queue.unanswered
            queue.in_flight.clear()
            self._settle(queue)
        self.in_flight.clear()
        self._regular.clear()
        self._trials.clear()
        self.bytes = 0
        if not was_connected or asked:
            for queue in probing:
                queue.state = QueueState.PARKED
                self._retry_by(queue.retry_at)
            return None
        if probing:  # the retried row is the likelier cause
            for queue in probing:
                self._park(queue, queue.next, "connection dropped", now)
            return None
        if suspect is None:
            self._drops = 0
            return None
        if suspect.id == self._suspect and self._drops >= DROPS:
            self._drops = 0
            queue = self.queues.get(suspect.stream_id) or self._separate(suspect.stream_id, suspect.id)
            return self._park(queue, suspect.id, "connection dropped", now)
        self._drops = self._drops + 1 if suspect.id == self._suspect else 1
        self._suspect = suspect.id
        return None

    def block(self, reason: str | None, now: float) -> None:
        """The broker asked us to pause or, with None, to go on. Confirms are not overdue while it reads nothing."""
        if self.blocked is not None and reason is None:
            for flight in self.in_flight.values():
                flight.at = now
            self.due_at = min(self.due_at, now + self.limits.confirm_timeout)
        self.blocked = reason

    # -- sending --------------------------------------------------------------------------------------------

    def ready(self, now: float) -> list[SendQueue]:
        """Queues that may send something now, those of single streams first."""
        if not self.connected or self.blocked is not None:
            return []
        self.probe(now)
        ready = [
            queue
            for queue in self.queues.values()
            if queue.state is QueueState.FLOWING
            or (queue.state is QueueState.PROBING and not queue.in_flight)
        ]
        return [*ready, self.main]

    def probe(self, now: float) -> bool:
        """Have parked queues whose pause is over retry; returns whether there are any."""
        if now < self._retry_at:
            return False
        self._retry_at = inf
        found = False
        blockers = [queue for queue in self.queues.values() if queue.holdups]
        for queue in self.queues.values():
            if queue.state is QueueState.PARKED and not queue.holdups:
                found |= self._retry_if_due(queue, queue.retry_at, now)
        if blockers and not any(queue.state is QueueState.PROBING for queue in blockers):
            parked = (queue for queue in blockers if queue.state is QueueState.PARKED)
            first = min(parked, key=lambda queue: queue.retry_at, default=None)
            if first is not None:
                found |= self._retry_if_due(first, max(first.retry_at, self._calm_until), now)
        return found

    def _retry_if_due(self, queue: SendQueue, at: float, now: float) -> bool:
        """Have a parked queue retry if its time has come; returns whether it has."""
        if at > now:
            self._retry_at = min(self._retry_at, at)
            return False
        queue.state = QueueState.PROBING
        return True

    def send(self, queue: SendQueue, rows: Sequence[R], now: float) -> list[R]:
        """Which of `rows`, the next ones of `queue`, are sent now. They are in flight, and the caller must send them.

        Afterwards ``queue.next`` is beyond all of `rows`, or at the first one for which there is no room yet.
        """
        trial = queue.state is QueueState.PROBING
        most, size = self._room(queue)
        sent: list[R] = []
        for row in rows:
            if (
                row.id in self.in_flight
                or row.id in self.confirmed
                or (self.queues and self.queues.get(row.stream_id, self.main) is not queue)
                or (queue.uncounted is not None and row.id in queue.uncounted)
            ):
                queue.next = row.id + 1  # it need not be sent on this queue
                continue
            if len(sent) >= most or (
                row.size > size and self._regular
            ):  # a row larger than the window is sent alone
                break
            self._sent += 1
            flight = self.in_flight[row.id] = InFlight(row, queue, now, self._sent, trial)
            queue.in_flight.add(row.id)
            if trial:
                self._trials[row.id] = flight
            else:
                self._regular[row.id] = flight
                self.bytes += row.size
            size -= row.size
            queue.next = row.id + 1
            sent.append(row)
        if sent:
            self.due_at = min(self.due_at, now + self.limits.confirm_timeout)
        return sent

    def _room(self, queue: SendQueue) -> tuple[int, float]:
        """How many more rows of the queue may be in flight, and their total size."""
        if queue.proven:
            return 0, 0
        if queue.state is QueueState.PROBING:
            return int(not queue.in_flight), inf
        if self._drops >= DROPS and self._is_regular(queue):
            return int(self._first_regular() is None), inf
        return self._batches - len(self._regular), self.limits.bytes - self.bytes

    def _is_regular(self, queue: SendQueue) -> bool:
        """Whether many rows of the queue may be in flight, each of which may be the one that breaks connections."""
        return queue is self.main or (queue.uncounted is not None and queue.state is QueueState.FLOWING)

    def _first_regular(self) -> RowLike | None:
        """The lowest row in flight on such queues."""
        rows = (flight.row for flight in self.in_flight.values() if self._is_regular(flight.queue))
        return min(rows, key=lambda row: row.id, default=None)

    def rejoin(self, top: int) -> list[SendQueue]:
        """Merge queues that have caught up into the main queue, and queues that have nothing to retry up to `top`, the
        last row; returns them."""
        back = [
            queue
            for queue in self.queues.values()
            if not queue.in_flight
            and queue.uncounted is None
            and (
                (queue.state is QueueState.FLOWING and queue.next >= self.main.next)
                or (queue.state is QueueState.PROBING and queue.next > top)
            )
        ]
        for queue in back:
            assert queue.stream_id is not None  # the main queue is not among them
            del self.queues[queue.stream_id]
            if queue.holdups:
                self._retry_by(-inf)  # another blocker may be retried
        return back

    # -- answers --------------------------------------------------------------------------------------------

    def confirm(self, row_ids: Iterable[int], now: float) -> dict[int, RowLike]:
        """The site has these rows. Returns those that were in flight and whose confirm counts, by id."""
        counted: dict[int, RowLike] = {}
        landed = self._complete(row_ids, now)
        for flight in landed:
            self._answered = max(self._answered, flight.number)
            if not self.queues or flight.row.id in self.confirmed:
                counted[flight.row.id] = flight.row
        if landed:
            self.overdue_since = None
            self._answered_at = now
            if self._silenced:
                self._retry_silenced(now)
        return counted

    def discard(self, row_id: int, now: float) -> None:
        """The row no longer exists, so the site need not confirm it."""
        self._complete((row_id,), now)
        self.confirmed.add(row_id, row_id)
        for queue in self.queues.values():
            if queue.uncounted is not None:
                queue.uncounted.remove(row_id, row_id)

    def replace(self, row: RowLike) -> None:
        """The row has changed but keeps its id; if it is in flight, that counts for the new row."""
        flight = self.in_flight.get(row.id)
        if flight is not None:
            if not flight.trial:
                self.bytes += row.size - flight.row.size
            flight.row = row

    def refuse(self, row_id: int, reason: str, now: float) -> RowLike | None:
        """The site does not have the row: its stream is parked. None if the row is not in flight."""
        flight = self._land(row_id, now)
        if flight is None:
            return None
        if flight.trial and flight.queue.state is QueueState.PROBING:  # else it was overdue before
            self._calm_down(flight, now, answered=True)
        self._answered = max(self._answered, flight.number)
        self._answered_at = now
        self._retry_silenced(now)
        queue = flight.queue
        if queue.state is QueueState.PARKED:
            queue.next = min(queue.next, row_id)  # it was already in flight: no reason for a longer pause
        else:
            if queue is self.main:
                queue = self._separate(flight.row.stream_id, row_id)
            self._park(queue, row_id, reason, now)
        self._settle(queue)
        return flight.row

    def _land(self, row_id: int, now: float) -> InFlight | None:
        """The row is not in flight any more."""
        flight = self.in_flight.pop(row_id, None)
        if flight is None:
            return None
        flight.queue.in_flight.discard(row_id)
        if flight.trial:
            del self._trials[row_id]
            if flight.queue.holdups:
                self._retry_by(now)  # another blocker may be retried
        else:
            if row_id == next(iter(self._regular)):
                self._oldest_at = now
                self._patience = min(self._patience, self._patience_for(now - flight.at))
            del self._regular[row_id]
            self.bytes -= flight.row.size
        self._overdue.discard(row_id)
        return flight

    def _complete(self, row_ids: Iterable[int], now: float) -> list[InFlight]:
        """These rows need not be sent again. Returns those that were in flight."""
        landed: list[InFlight] = []
        for row_id in row_ids:
            flight = self._land(row_id, now)
            if flight is None:
                continue
            queue = flight.queue
            (self.confirmed if queue.uncounted is None else queue.uncounted).add(row_id, row_id)
            if row_id == self._suspect:
                self._drops = 0
            if (
                queue.state is QueueState.PROBING and not queue.in_flight
            ):  # else it was in flight before the retry
                queue.state = QueueState.FLOWING
                queue.attempts = queue.holdups = 0
            if queue.proven:
                self._settle(queue)
            landed.append(flight)
        return landed

    def _retry_silenced(self, now: float) -> None:
        """The site is not silent, so streams that were parked for its silence retry."""
        for stream_id in self._silenced:
            queue = self.queues.get(stream_id)
            if queue is not None and queue.state is QueueState.PARKED:
                queue.retry_at = min(queue.retry_at, now)
                queue.holdups = 0
                self._retry_by(now)
        self._silenced.clear()

    # -- streams whose groups are not proven ------------------------------------------------------------------

    def mark_unproven(self, stream_id: int) -> None:
        """A named group of the stream is not proven: confirms do not count from now on."""
        queue = self.queues.get(stream_id)
        if queue is None:
            queue = self._separate(stream_id, self.main.next)
            queue.reason = UNSEEN
        queue.proven = False
        if queue.uncounted is None:
            queue.uncounted = RangeSet()

    def mark_proven(self, stream_id: int) -> None:
        """All named groups of the stream are proven: rows that did not count are sent again, and confirms count from
        then on. First the rows in flight must be answered, as they may have reached the site before the group did."""
        queue = self.queues.get(stream_id)
        if queue is not None and queue.uncounted is not None:
            queue.proven = True
            self._settle(queue)

    def is_marked_unproven(self, stream_id: int) -> bool:
        """Whether confirms of the stream neither count now nor will as soon as nothing is in flight."""
        queue = self.queues.get(stream_id)
        return queue is not None and queue.uncounted is not None and not queue.proven

    def is_uncounted(self, row_id: int) -> bool:
        """Whether the site has confirmed the row and that does not count."""
        return any(
            queue.uncounted is not None and row_id in queue.uncounted for queue in self.queues.values()
        )

    def _settle(self, queue: SendQueue) -> None:
        """Have confirms count again on a queue that waited for this, if nothing is in flight."""
        if not queue.proven or queue.in_flight or queue.uncounted is None:
            return
        queue.next = queue.cursor
        queue.uncounted, queue.proven = None, False

    # -- overdue confirms -------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When a confirm will be overdue or a parked queue will retry, if nothing else happens; infinite for never.
        From now on, :attr:`due_at` is the same."""
        self.due_at = self._retry_at
        if self.blocked is None:
            self.due_at = min([self.due_at, *(due for due, _ in self._oldest())])
        return self.due_at

    def is_overdue(self, now: float) -> bool:
        """Whether the oldest row in flight should have been confirmed by now.

        Its time starts when it is sent or becomes the oldest: over a slow line a full window takes longer than any
        timeout for one row.
        """
        return self.blocked is None and any(due <= now for due, _ in self._oldest())

    def give_up(self, now: float) -> list[SendQueue]:
        """A confirm is overdue, and the caller is about to drop the connection. Returns queues that are parked (P18).
        If there are none, the next confirm gets more time: otherwise a row that takes longer than the timeout would be
        sent again and again."""
        late = [flight for due, flight in self._oldest() if due <= now]
        causes = {flight.number: flight for flight in map(self._cause, late)}
        self.overdue_since = now
        parked = [queue for flight in causes.values() if (queue := self._park_late(flight, now)) is not None]
        if not parked:
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        return parked

    def _cause(self, late: InFlight) -> InFlight:
        """The likely cause of an overdue row: the first trial before it, if nothing that was sent after that trial has
        been answered, and otherwise the row itself."""
        if late.trial:
            return late
        blocking = (trial for trial in self._trials.values() if self._answered < trial.number < late.number)
        return next(blocking, late)

    def _park_late(self, flight: InFlight, now: float) -> SendQueue | None:
        """Park the stream of an overdue row, if the row rather than the site is the likely cause."""
        row, queue = flight.row, flight.queue
        if self._answered < flight.number and not flight.trial and row.id not in self._overdue:
            self._overdue.add(row.id)
            return None
        self._overdue.discard(row.id)
        if not flight.trial and self._answered_at <= flight.at:
            self._silenced.add(row.stream_id)
        if queue is self.main:
            queue = self._separate(row.stream_id, row.id)
        elif queue.state is QueueState.PARKED:
            return None
        if flight.trial:
            self._calm_down(flight, now, answered=False)
        return self._park(queue, row.id, UNANSWERED, now)

    def _calm_down(self, trial: InFlight, now: float, answered: bool) -> None:
        """A trial was in vain, refused or not answered. If it held up regular rows, pause before the next one that may
        do so."""
        queue, oldest = trial.queue, next(iter(self._regular.values()), None)
        shortest = min(HOLDUP_S, 0.1 * self.limits.confirm_timeout)
        if self._answered > trial.number or (answered and now - trial.at < shortest):
            queue.holdups = 0  # it held up nothing, or was refused soon
        elif oldest is not None and oldest.number > trial.number and now - oldest.at >= shortest:
            self._calm_until = now + (now - oldest.at) * min(2 ** min(queue.holdups, 10), MAX_CALM)
            queue.holdups += 1

    def _patience_for(self, seconds: float) -> int:
        """How many confirm timeouts, rounded up to a power of two, make up this time."""
        found = 1
        while found < MAX_PATIENCE and found * self.limits.confirm_timeout < seconds:
            found *= 2
        return found

    def _oldest(self) -> list[tuple[float, InFlight]]:
        """The oldest regular row and the oldest retried row, each with the time when its confirm is overdue."""
        timeout = self.limits.confirm_timeout
        found: list[tuple[float, InFlight]] = []
        if self._regular:
            flight = next(iter(self._regular.values()))
            found.append((max(flight.at, self._oldest_at) + timeout * self._patience, flight))
        if self._trials:
            flight = next(iter(self._trials.values()))
            backoff = min(2 ** min(flight.queue.attempts + 1, 10), MAX_PATIENCE)
            found.append((flight.at + timeout * backoff, flight))
        return found

    # -- queues ------------------------------------------------------------------------------------------------

    def restore_queue(self, stream_id: int, cursor: int, attempts: int, reason: str) -> None:
        """Restore the queue of a stream that was parked or unproven when the outbox was closed; it retries at once."""
        queue = self.queues[stream_id] = SendQueue(stream_id, cursor)
        if reason != UNSEEN:
            queue.state = QueueState.PARKED
            self._retry_by(queue.retry_at)
        queue.attempts, queue.reason = attempts, reason

    def _park(self, queue: SendQueue, row_id: int, reason: str, now: float) -> SendQueue:
        queue.park(row_id, reason, now)
        self._retry_by(queue.retry_at)
        return queue

    def _retry_by(self, at: float) -> None:
        """A parked queue retries at this time."""
        self._retry_at = min(self._retry_at, at)
        self.due_at = min(self.due_at, at)

    def _separate(self, stream_id: int, first: int) -> SendQueue:
        """Give a stream a queue of its own, from row `first` on, with its rows in flight."""
        queue = self.queues[stream_id] = SendQueue(stream_id, first)
        for flight in self.in_flight.values():
            if flight.row.stream_id == stream_id:
                self.main.in_flight.discard(flight.row.id)
                queue.in_flight.add(flight.row.id)
                flight.queue = queue
        return queue
