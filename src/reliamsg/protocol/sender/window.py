"""One site's send window: which rows are in flight, which are confirmed, and which may be sent next.

Rows of the outbox are sent in the order of their ids. A *lane* is a sequence of rows that is sent in order. All
streams share the main lane, except those that have a lane of their own: each parked stream, whose first row is retried
alone, with backoff, until the stream has caught up and rejoins the main lane. So the rows of one stream are always sent
in order, and a stream that a site refuses does not hold up any other.

States of a lane::

    flowing ── refused / dropped ──▶ parked ── retry_at reached ──▶ probing ── confirmed ──▶ flowing
                / unanswered           ▲                              │
                                       └─ refused/dropped/unanswered ─┘

A retried row does not count against the window's limits: a broker may never answer it.
A parked stream whose rows have all been removed has nothing to retry, and rejoins the main lane at once.

A stream also has a lane of its own, in any of these states, while one of its named groups is not proven to exist at the
site (rules P15 to P17). Confirms do not count there: confirmed rows are recorded as *uncounted*. Once all groups are
proven, and nothing is in flight, the lane goes back to the first of these rows and sends them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from reliamsg.protocol.ranges import RangeSet

__all__ = ["UNSEEN", "InFlight", "Lane", "LaneState", "RowLike", "SiteLimits", "SiteWindow"]

UNSEEN = "unseen"
"""The reason of a lane that exists because a named group of its stream is not proven."""
UNANSWERED = "no confirm in time"
"""The reason of a lane whose first row was not confirmed in time."""

PARK_MIN_S = 0.5
PARK_MAX_S = 30.0
"""The pause before a parked stream is retried starts at PARK_MIN_S and doubles up to PARK_MAX_S."""
MAX_PATIENCE = 8
"""If reconnecting did not help, the confirm timeout is extended, up to this multiple."""
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


@dataclass(frozen=True)
class SiteLimits:
    """The most rows and bytes that may be unconfirmed at once, and the confirm timeout in seconds."""

    batches: int
    bytes: int
    confirm_timeout: float


class LaneState(Enum):
    FLOWING = "flowing"
    PARKED = "parked"
    PROBING = "probing"


class Lane:
    """Rows in order: those in flight, and the next one. `stream_id` is None for the main lane."""

    __slots__ = (
        "attempts",
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
        self.stream_id = stream_id
        self.next = cursor
        """The lowest row that may still have to be sent."""
        self.in_flight: set[int] = set()
        self.state = LaneState.FLOWING
        self.retry_at = 0.0
        self.attempts = 0
        self.reason = ""
        self.uncounted: RangeSet | None = None
        """Confirmed rows whose confirm does not count; None if confirms count."""
        self.proven = False
        """All groups are proven by now: confirms count again as soon as nothing is in flight."""

    @property
    def cursor(self) -> int:
        """All rows of the lane below it are confirmed, and their confirms count."""
        first = None if self.uncounted is None else self.uncounted.first
        return self.unanswered if first is None else min(self.unanswered, first)

    @property
    def unanswered(self) -> int:
        """All rows of the lane below it are confirmed, whether or not that counts."""
        return min(min(self.in_flight, default=self.next), self.next)

    def skip_to(self, row: int) -> None:
        """No row below `row` has to be sent on it any more."""
        self.next = max(self.next, row)

    def park(self, row: int, reason: str, now: float) -> None:
        """Pause before `row` is retried."""
        self.state = LaneState.PARKED
        self.next = min(self.next, row)
        self.reason = reason
        self.retry_at = now + min(PARK_MAX_S, PARK_MIN_S * 2 ** min(self.attempts, 10))
        self.attempts += 1


@dataclass(slots=True)
class InFlight:
    """A row that was passed to a site's transport and is not answered yet."""

    row: RowLike
    lane: Lane
    at: float
    trial: bool = False
    """It retries a parked stream, and does not count against the window's limits."""


class SiteWindow:
    """The send window of one site."""

    def __init__(self, name: str, limits: SiteLimits, cursor: int) -> None:
        self.name = name
        self.limits = limits
        self.main = Lane(None, cursor)
        self.lanes: dict[int, Lane] = {}
        self.in_flight: dict[int, InFlight] = {}
        """All rows in flight, oldest first."""
        self._regular: dict[int, InFlight] = {}
        """Those that count against the limits, oldest first."""
        self._trials: dict[int, InFlight] = {}
        """Those that do not."""
        self.bytes = 0
        """The total size of the rows in flight that count against the limits."""
        self.confirmed = RangeSet()
        """Rows that the site has confirmed and whose confirms count."""
        self.rewound: list[Lane] = []
        """Lanes that went back to rows they had passed; the caller that feeds them clears this."""
        if cursor > 1:
            self.confirmed.add(1, cursor - 1)
        self.connected = False
        self.blocked: str | None = None
        self.overdue_since: float | None = None
        """Set when a confirm is overdue; the site does not count as up until the next confirm."""
        self._batches = limits.batches
        self._patience = 1
        self._oldest_at = 0.0
        """When the oldest regular row in flight became the oldest, if a confirm made it so."""
        self._retry_at = inf
        """The earliest time at which a parked lane is retried."""
        self._suspect = 0
        self._drops = 0
        self._overdue: set[int] = set()
        """Rows that were overdue once without their streams being parked."""
        self._answered = -inf
        """When the latest row that the site confirmed or refused had been sent."""
        self._answered_at = -inf
        """When the site last confirmed or refused a row."""
        self._silenced: set[int] = set()
        """Streams that were parked while the site answered nothing, perhaps through no fault of theirs."""

    @property
    def up(self) -> bool:
        """Connected, not blocked, and no confirm overdue."""
        return self.connected and self.blocked is None and self.overdue_since is None

    # -- connection -----------------------------------------------------------------------------------------

    def connect(self, window: int | None) -> None:
        """A new connection: nothing is in flight. `window` is the broker's own limit, if it has one."""
        self.connected = True
        self.blocked = None
        self._batches = self.limits.batches if window is None else max(1, min(self.limits.batches, window))

    def disconnect(self, now: float, asked: bool) -> Lane | None:
        """The connection is gone: everything that was in flight is sent again, in order.

        `asked`: we closed it ourselves, so no row is suspected. Returns a lane that was parked because of it.
        """
        was_connected, self.connected = self.connected, False
        self.blocked = None
        probing = [lane for lane in self.lanes.values() if lane.state is LaneState.PROBING and lane.in_flight]
        suspect = self._first_regular()
        for lane in (self.main, *self.lanes.values()):
            lane.next = lane.unanswered
            lane.in_flight.clear()
            self._settle(lane)
        self.in_flight.clear()
        self._regular.clear()
        self._trials.clear()
        self.bytes = 0
        if not was_connected or asked:
            for lane in probing:
                lane.state = LaneState.PARKED
                self._retry_at = min(self._retry_at, lane.retry_at)
            return None
        if probing:  # the retried row is the likelier cause
            for lane in probing:
                self._park(lane, lane.next, "connection dropped", now)
            return None
        if suspect is None:
            self._drops = 0
            return None
        if suspect.id == self._suspect and self._drops >= DROPS:
            self._drops = 0
            lane = self.lanes.get(suspect.stream_id) or self._separate(suspect.stream_id, suspect.id)
            return self._park(lane, suspect.id, "connection dropped", now)
        self._drops = self._drops + 1 if suspect.id == self._suspect else 1
        self._suspect = suspect.id
        return None

    def block(self, reason: str | None, now: float) -> None:
        """The broker asked us to pause or, with None, to go on. Confirms are not overdue while it reads nothing."""
        if self.blocked is not None and reason is None:
            self._oldest_at = now
            for flight in self._trials.values():
                flight.at = now
        self.blocked = reason

    # -- sending --------------------------------------------------------------------------------------------

    def ready(self, now: float) -> list[Lane]:
        """Lanes that may send something now, those of single streams first."""
        if not self.connected or self.blocked is not None:
            return []
        if not self.lanes:  # the common case: nothing is parked
            return [self.main]
        self.probe(now)
        ready = [
            lane
            for lane in self.lanes.values()
            if lane.state is LaneState.FLOWING or (lane.state is LaneState.PROBING and not lane.in_flight)
        ]
        return [*ready, self.main]

    def probe(self, now: float) -> bool:
        """Have parked lanes whose pause is over retry; returns whether there are any."""
        if now < self._retry_at:
            return False
        self._retry_at = inf
        found = False
        for lane in self.lanes.values():
            if lane.state is not LaneState.PARKED:
                continue
            if lane.retry_at <= now:
                lane.state = LaneState.PROBING
                found = True
            else:
                self._retry_at = min(self._retry_at, lane.retry_at)
        return found

    def send(self, lane: Lane, row: RowLike, now: float) -> bool:
        """Whether `row` may be sent on `lane` now; if so it is in flight, and the caller must send it.

        Otherwise either ``lane.next`` is beyond the row, which need not be sent on this lane, or there is no room for
        it yet.
        """
        if (
            row.id in self.in_flight
            or row.id in self.confirmed
            or (self.lanes and self.lanes.get(row.stream_id, self.main) is not lane)
            or (lane.uncounted is not None and row.id in lane.uncounted)
        ):
            lane.next = row.id + 1
            return False
        if not self._has_room(lane, row.size):
            return False
        trial = lane.state is LaneState.PROBING
        flight = InFlight(row, lane, now, trial)
        self.in_flight[row.id] = flight
        lane.in_flight.add(row.id)
        if trial:
            self._trials[row.id] = flight
        else:
            self._regular[row.id] = flight
            self.bytes += row.size
        lane.next = row.id + 1
        return True

    def _has_room(self, lane: Lane, size: int) -> bool:
        if lane.proven:
            return False
        if lane.state is LaneState.PROBING:
            return not lane.in_flight
        if self._drops >= DROPS and self._is_regular(lane):
            return self._first_regular() is None
        if not self._regular:
            return True  # a row larger than the window is sent alone
        return len(self._regular) < self._batches and self.bytes + size <= self.limits.bytes

    def _is_regular(self, lane: Lane) -> bool:
        """Whether many rows of the lane may be in flight, each of which may be the one that breaks connections."""
        return lane is self.main or (lane.uncounted is not None and lane.state is LaneState.FLOWING)

    def _first_regular(self) -> RowLike | None:
        """The lowest row in flight on such lanes."""
        rows = (flight.row for flight in self.in_flight.values() if self._is_regular(flight.lane))
        return min(rows, key=lambda row: row.id, default=None)

    def rejoin(self, top: int) -> list[Lane]:
        """Merge lanes that have caught up into the main lane, and lanes that have nothing to retry up to `top`, the
        last row; returns them."""
        back = [
            lane
            for lane in self.lanes.values()
            if not lane.in_flight
            and lane.uncounted is None
            and (
                (lane.state is LaneState.FLOWING and lane.next >= self.main.next)
                or (lane.state is LaneState.PROBING and lane.next > top)
            )
        ]
        for lane in back:
            assert lane.stream_id is not None  # the main lane is not among them
            del self.lanes[lane.stream_id]
        return back

    # -- answers --------------------------------------------------------------------------------------------

    def confirm(self, row_ids: Iterable[int], now: float) -> dict[int, RowLike]:
        """The site has these rows. Returns those that were in flight, by id; :attr:`confirmed` has those that count."""
        rows: dict[int, RowLike] = {}
        for row_id in row_ids:
            flight = self._complete(row_id, now)
            if flight is not None:
                rows[row_id] = flight.row
                self._answered = max(self._answered, flight.at)
        if rows:
            self.overdue_since = None
            self._note_answer(now)
        return rows

    def discard(self, row_id: int, now: float) -> None:
        """The row no longer exists, so the site need not confirm it."""
        self._complete(row_id, now)
        self.confirmed.add(row_id, row_id)
        for lane in self.lanes.values():
            if lane.uncounted is not None:
                lane.uncounted.remove(row_id, row_id)

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
        self._answered = max(self._answered, flight.at)
        self._note_answer(now)
        lane = flight.lane
        if lane.state is LaneState.PARKED:
            lane.next = min(lane.next, row_id)  # it was already in flight: no reason for a longer pause
        else:
            if lane is self.main:
                lane = self._separate(flight.row.stream_id, row_id)
            self._park(lane, row_id, reason, now)
        self._settle(lane)
        return flight.row

    def _land(self, row_id: int, now: float) -> InFlight | None:
        """The row is not in flight any more."""
        flight = self.in_flight.pop(row_id, None)
        if flight is None:
            return None
        flight.lane.in_flight.discard(row_id)
        if flight.trial:
            del self._trials[row_id]
        else:
            if row_id == next(iter(self._regular)):
                self._oldest_at = now
            del self._regular[row_id]
            self.bytes -= flight.row.size
        self._overdue.discard(row_id)
        return flight

    def _complete(self, row_id: int, now: float) -> InFlight | None:
        """The row need not be sent again."""
        flight = self._land(row_id, now)
        if flight is None:
            return None
        lane = flight.lane
        (self.confirmed if lane.uncounted is None else lane.uncounted).add(row_id, row_id)
        if not self._regular:
            self._patience = 1
        if row_id == self._suspect:
            self._drops = 0
        if lane.state is LaneState.PROBING and not lane.in_flight:  # else it was in flight before the retry
            lane.state = LaneState.FLOWING
            lane.attempts = 0
        if lane.proven:
            self._settle(lane)
        return flight

    def _note_answer(self, now: float) -> None:
        """The site is not silent, so streams that were parked for its silence retry."""
        self._answered_at = now
        for stream_id in self._silenced:
            lane = self.lanes.get(stream_id)
            if lane is not None and lane.state is LaneState.PARKED:
                lane.retry_at = min(lane.retry_at, now)
                self._retry_at = min(self._retry_at, now)
        self._silenced.clear()

    # -- streams whose groups are not proven ------------------------------------------------------------------

    def mark_unproven(self, stream_id: int) -> None:
        """A named group of the stream is not proven: confirms do not count from now on."""
        lane = self.lanes.get(stream_id)
        if lane is None:
            lane = self._separate(stream_id, self.main.next)
            lane.reason = UNSEEN
        lane.proven = False
        if lane.uncounted is None:
            lane.uncounted = RangeSet()

    def mark_proven(self, stream_id: int) -> None:
        """All named groups of the stream are proven: rows that did not count are sent again, and confirms count from
        then on. First the rows in flight must be answered, as they may have reached the site before the group did."""
        lane = self.lanes.get(stream_id)
        if lane is not None and lane.uncounted is not None:
            lane.proven = True
            self._settle(lane)

    def is_marked_unproven(self, stream_id: int) -> bool:
        """Whether confirms of the stream neither count now nor will as soon as nothing is in flight."""
        lane = self.lanes.get(stream_id)
        return lane is not None and lane.uncounted is not None and not lane.proven

    def is_uncounted(self, row_id: int) -> bool:
        """Whether the site has confirmed the row and that does not count."""
        return any(lane.uncounted is not None and row_id in lane.uncounted for lane in self.lanes.values())

    def _settle(self, lane: Lane) -> None:
        """Have confirms count again on a lane that waited for this, if nothing is in flight."""
        if not lane.proven or lane.in_flight or lane.uncounted is None:
            return
        lane.next = lane.cursor
        lane.uncounted, lane.proven = None, False
        self.rewound.append(lane)

    # -- overdue confirms -------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When a confirm will be overdue or a parked lane will retry, if nothing else happens before."""
        deadline = self._retry_at
        if self.in_flight and self.blocked is None:
            for due, _ in self._oldest():
                deadline = min(deadline, due)
        return None if deadline == inf else deadline

    def is_overdue(self, now: float) -> bool:
        """Whether the oldest row in flight should have been confirmed by now.

        Its time starts when it is sent or becomes the oldest: over a slow line a full window takes longer than any
        timeout for one row.
        """
        return self.blocked is None and any(due <= now for due, _ in self._oldest())

    def give_up(self, now: float) -> list[Lane]:
        """A confirm is overdue, and the caller is about to drop the connection. The next confirm gets more time:
        otherwise a row that takes longer than the timeout would be sent again and again. Returns lanes that are parked
        because of it (P18)."""
        late = [flight for due, flight in self._oldest() if due <= now]
        self.overdue_since = now
        if not all(flight.trial for flight in late):  # the timeout of retried rows has its own backoff
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        return [lane for flight in late if (lane := self._park_late(flight, now)) is not None]

    def _park_late(self, flight: InFlight, now: float) -> Lane | None:
        """Park the stream of an overdue row, if the row rather than the site is the likely cause."""
        row, lane = flight.row, flight.lane
        if self._answered <= flight.at and not flight.trial and row.id not in self._overdue:
            self._overdue.add(row.id)
            return None
        self._overdue.discard(row.id)
        if self._answered_at <= flight.at:
            self._silenced.add(row.stream_id)
        if lane is self.main:
            lane = self._separate(row.stream_id, row.id)
        elif lane.state is LaneState.PARKED:
            return None
        return self._park(lane, row.id, UNANSWERED, now)

    def _oldest(self) -> list[tuple[float, InFlight]]:
        """The oldest regular row and the oldest retried row, each with the time when its confirm is overdue."""
        timeout = self.limits.confirm_timeout
        found: list[tuple[float, InFlight]] = []
        if self._regular:
            flight = next(iter(self._regular.values()))
            found.append((max(flight.at, self._oldest_at) + timeout * self._patience, flight))
        if self._trials:
            flight = next(iter(self._trials.values()))
            backoff = min(2 ** min(flight.lane.attempts + 1, 10), MAX_PATIENCE)
            found.append((flight.at + timeout * backoff, flight))
        return found

    # -- lanes ------------------------------------------------------------------------------------------------

    def restore_lane(self, stream_id: int, cursor: int, attempts: int, reason: str) -> None:
        """Restore the lane of a stream that was parked or not proven when the outbox was closed; it retries at once."""
        lane = self.lanes[stream_id] = Lane(stream_id, cursor)
        if reason != UNSEEN:
            lane.state = LaneState.PARKED
            self._retry_at = lane.retry_at
        lane.attempts, lane.reason = attempts, reason

    def _park(self, lane: Lane, row_id: int, reason: str, now: float) -> Lane:
        lane.park(row_id, reason, now)
        self._retry_at = min(self._retry_at, lane.retry_at)
        return lane

    def _separate(self, stream_id: int, first: int) -> Lane:
        """Give a stream a lane of its own, from row `first` on, with its rows in flight."""
        lane = self.lanes[stream_id] = Lane(stream_id, first)
        for flight in self.in_flight.values():
            if flight.row.stream_id == stream_id:
                self.main.in_flight.discard(flight.row.id)
                lane.in_flight.add(flight.row.id)
                flight.lane = lane
        return lane
