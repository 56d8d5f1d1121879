"""What one site was sent and has not confirmed, and where sending goes on.

Rows of the outbox are sent in the order of their ids. A *lane* is such an order: the main lane has all
streams but those that are parked; each parked stream has a lane of its own, which tries its first row alone,
with backoff, and joins the main lane again once it has caught up. So at a site the rows of one stream are
always sent in order, and a stream that is refused holds up no other.

States of a lane::

    flowing ── refused / dropped ──▶ parked ── retry_at reached ──▶ probing ── confirmed ──▶ flowing
                / unanswered           ▲                              │
                                       └─ refused/dropped/unanswered ─┘

What is tried again takes no room from other streams: a broker may never answer it.
A parked stream whose rows were all removed meanwhile has nothing to probe with, and joins the main lane at once.

A stream whose confirms say nothing at the site, since a named group was not proven there (rules P15 to P17), has a lane
of its own as well, in whatever state: what is confirmed on it is noted as *unproven*. Once all groups are proven, and
what is in flight has been answered, the lane goes back to the first of these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from reliamsg.core.ranges import RangeSet

__all__ = ["UNSEEN", "Flight", "Lane", "LaneState", "RowLike", "SiteLimits", "SiteWindow"]

UNSEEN = "unseen"
"""The reason of a lane that a stream has since a named group of it is not proven."""

PARK_MIN_S = 0.5
PARK_MAX_S = 30.0
"""A parked stream is tried again after these, doubling."""
MAX_PATIENCE = 8
"""Where a new connection did not help, confirms are waited for longer: at most so many times the time-out."""
UNANSWERED = "no confirm in time"
"""The reason of a lane whose first row was not confirmed in time."""
DROPS = 3
"""A connection dropped so often over the same first row: the row is sent alone. Once more: its stream
parks."""


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
    """A site's window: most that is unconfirmed at once, in rows and bytes, and for how long (seconds)."""

    batches: int
    bytes: int
    confirm_timeout: float


class LaneState(Enum):
    FLOWING = "flowing"
    PARKED = "parked"
    PROBING = "probing"


class Lane:
    """Rows in order: what is in flight, and what comes next. `stream_id` is None for the main lane."""

    __slots__ = (
        "attempts",
        "flights",
        "next",
        "reason",
        "retry_at",
        "state",
        "stream_id",
        "trusted",
        "unproven",
    )

    def __init__(self, stream_id: int | None, cursor: int) -> None:
        self.stream_id = stream_id
        self.next = cursor
        """The lowest row that may have to be sent still."""
        self.flights: dict[int, Flight] = {}
        self.state = LaneState.FLOWING
        self.retry_at = 0.0
        self.attempts = 0
        self.reason = ""
        self.unproven: RangeSet | None = None
        """Rows whose confirm does not count; None where confirms do."""
        self.trusted = False
        """Confirms will count again as soon as what is in flight is answered."""

    @property
    def cursor(self) -> int:
        """Every row of the lane below is confirmed, and that counts."""
        first = None if self.unproven is None else self.unproven.first
        return self.unanswered if first is None else min(self.unanswered, first)

    @property
    def unanswered(self) -> int:
        """Every row of the lane below was confirmed, whether or not that counts."""
        return min(min(self.flights, default=self.next), self.next)

    def skip_to(self, row: int) -> None:
        """Nothing below `row` has to be sent on it any more."""
        self.next = max(self.next, row)

    def park(self, row: int, reason: str, now: float) -> None:
        """Wait before `row` is tried again."""
        self.state = LaneState.PARKED
        self.next = min(self.next, row)
        self.reason = reason
        self.retry_at = now + min(PARK_MAX_S, PARK_MIN_S * 2 ** min(self.attempts, 10))
        self.attempts += 1


@dataclass(slots=True)
class Flight:
    """A row that was handed to a site's transport and has no answer yet."""

    row: RowLike
    stream_id: int | None
    """Of the lane that it is in."""
    at: float
    trial: bool = False
    """A parked stream is tried again with it: it takes no room in the window."""


class SiteWindow:
    """One site, as its producer sees it."""

    def __init__(self, name: str, limits: SiteLimits, cursor: int) -> None:
        self.name = name
        self.limits = limits
        self.main = Lane(None, cursor)
        self.lanes: dict[int, Lane] = {}
        self.flights: dict[int, Flight] = {}
        """Everything in flight, oldest first."""
        self.bytes = 0
        self._usual: dict[int, Flight] = {}
        """What of that takes room in the window, oldest first."""
        self._trials: dict[int, Flight] = {}
        """What does not: parked streams are tried again with these."""
        self._usual_bytes = 0
        self.confirmed = RangeSet()
        """Rows that the site has confirmed, as far as that counts."""
        self.rewound: list[Lane] = []
        """Lanes that went back to rows that had been passed; whoever feeds them clears this."""
        if cursor > 1:
            self.confirmed.add(1, cursor - 1)
        self.connected = False
        self.blocked: str | None = None
        self.overdue_since: float | None = None
        """A confirm is overdue; until the next one comes the site does not count as up."""
        self._batches = limits.batches
        self._patience = 1
        self._oldest_at = 0.0
        """Since when the oldest usual row in flight is the oldest, if a confirm made it that."""
        self._suspect = 0
        self._drops = 0
        self._overdue: set[int] = set()
        """Rows that were overdue once, and whose streams were not parked for it."""
        self._answered = float("-inf")
        """When the latest of all rows was sent that the site has confirmed or refused."""
        self._answered_at = float("-inf")
        """When it last did that."""
        self._silenced: set[int] = set()
        """Streams that were parked while the site answered nothing: perhaps it was not they."""

    @property
    def up(self) -> bool:
        """Handshaken, not blocked, no confirm overdue."""
        return self.connected and self.blocked is None and self.overdue_since is None

    @property
    def alone(self) -> bool:
        """Whether the first row is suspected of breaking connections, and goes alone."""
        return self._drops >= DROPS

    def connect(self, window: int | None) -> None:
        """A new connection: nothing is in flight. `window` is the broker's own limit, if it has one."""
        self.connected = True
        self.blocked = None
        self._batches = self.limits.batches if window is None else max(1, min(self.limits.batches, window))

    def disconnect(self, now: float, asked: bool) -> Lane | None:
        """The connection is gone: what was in flight is sent again, in order.

        `asked`: we ended it ourselves, which says nothing against any row. Returns a lane that was parked by
        it.
        """
        was_connected, self.connected = self.connected, False
        self.blocked = None
        probing = [lane for lane in self.lanes.values() if lane.state is LaneState.PROBING and lane.flights]
        suspect = self._first_usual()
        for lane in (self.main, *self.lanes.values()):
            lane.next = lane.unanswered
            lane.flights.clear()
            self._settle(lane)
        self.flights.clear()
        self._usual.clear()
        self._trials.clear()
        self.bytes = self._usual_bytes = 0
        if not was_connected or asked:
            for lane in probing:
                lane.state = LaneState.PARKED
            return None
        if probing:  # what was just tried again is the likelier cause
            for lane in probing:
                lane.park(lane.next, "connection dropped", now)
            return None
        if suspect is None:
            self._drops = 0
            return None
        if suspect.id == self._suspect and self.alone:
            self._drops = 0
            lane_of = self.lanes.get(suspect.stream_id)
            if lane_of is not None:
                lane_of.park(suspect.id, "connection dropped", now)
                return lane_of
            return self._park(suspect.stream_id, suspect.id, "connection dropped", now)
        self._drops = self._drops + 1 if suspect.id == self._suspect else 1
        self._suspect = suspect.id
        return None

    def block(self, reason: str | None, now: float) -> None:
        """The broker asked to stop, or (None) to go on. Confirms are not overdue while it reads nothing."""
        if self.blocked is not None and reason is None:
            self._oldest_at = now
            for flight in self._trials.values():
                flight.at = now
        self.blocked = reason

    def probe(self, now: float) -> bool:
        """Let parked lanes whose time has come try again; whether there are any."""
        if not self.lanes:  # the usual case: nothing is parked
            return False
        due = [
            lane for lane in self.lanes.values() if lane.state is LaneState.PARKED and lane.retry_at <= now
        ]
        for lane in due:
            lane.state = LaneState.PROBING
        return bool(due)

    def ready(self, now: float) -> list[Lane]:
        """Lanes that may send something now, those of parked streams whose time has come first."""
        if not self.connected or self.blocked is not None:
            return []
        if not self.lanes:  # the usual case: nothing is parked
            return [self.main]
        self.probe(now)
        ready = [
            lane
            for lane in self.lanes.values()
            if lane.state is LaneState.FLOWING or (lane.state is LaneState.PROBING and not lane.flights)
        ]
        return [*ready, self.main]

    def room(self, lane: Lane, size: int) -> bool:
        """Whether a row of `size` bytes may be sent on `lane` now."""
        if lane.trusted:
            return False
        if lane.state is LaneState.PROBING:
            return not lane.flights
        if self.alone and self._is_usual(lane):
            return self._first_usual() is None
        if not self._usual:
            return True  # a row larger than the window goes alone
        return len(self._usual) < self._batches and self._usual_bytes + size <= self.limits.bytes

    def takes(self, lane: Lane, row: RowLike) -> bool:
        """Whether `row` still has to be sent on `lane`: not another lane's, not confirmed, not in flight."""
        if lane.stream_id is None:
            if row.stream_id in self.lanes:
                return False
        elif row.stream_id != lane.stream_id:
            return False
        if lane.unproven is not None and row.id in lane.unproven:
            return False
        return row.id not in self.flights and row.id not in self.confirmed

    def sent(self, lane: Lane, row: RowLike, now: float) -> None:
        """`row` is handed to the transport."""
        flight = Flight(row, lane.stream_id, now, trial=lane.state is LaneState.PROBING)
        self.flights[row.id] = lane.flights[row.id] = flight
        self.bytes += row.size
        if flight.trial:
            self._trials[row.id] = flight
        else:
            self._usual[row.id] = flight
            self._usual_bytes += row.size
        lane.next = row.id + 1

    def confirm(self, row_id: int, now: float) -> Flight | None:
        """The site has the row; None where nothing of it is in flight. Whether that counts, :attr:`confirmed` says."""
        flight = self._land(row_id, now)
        if flight is None:
            return None
        self.overdue_since = None
        self._note_answer(flight, now)
        self._arrived(flight)
        return flight

    def skip(self, row_id: int, now: float) -> None:
        """The row exists no longer, so the site need not confirm it."""
        flight = self._land(row_id, now)
        if flight is not None:
            self._arrived(flight)
        self.confirmed.add(row_id, row_id)
        for lane in self.lanes.values():
            if lane.unproven is not None:
                lane.unproven.remove(row_id, row_id)

    def change(self, row: RowLike) -> None:
        """The row is another one now, under the same id: what is in flight counts as that."""
        flight = self.flights.get(row.id)
        if flight is not None:
            grown = row.size - flight.row.size
            self.bytes += grown
            if not flight.trial:
                self._usual_bytes += grown
            flight.row = row

    def refuse(self, row_id: int, reason: str, now: float) -> Flight | None:
        """The site does not have the row: its stream is parked. None where nothing of it is in flight."""
        flight = self._land(row_id, now)
        if flight is None:
            return None
        self._note_answer(flight, now)
        lane = self._lane(flight)
        if lane is self.main:
            self._park(flight.row.stream_id, row_id, reason, now)
        elif lane.state is LaneState.PARKED:
            lane.next = min(lane.next, row_id)  # it was in flight already: no reason for a longer pause
        else:
            lane.park(row_id, reason, now)
        self._settle(lane)
        return flight

    def doubt(self, stream_id: int) -> None:
        """A named group of the stream is not proven: what is confirmed from now on does not count."""
        lane = self.lanes.get(stream_id)
        if lane is None:
            lane = self.lanes[stream_id] = self._separate(stream_id, self.main.next)
            lane.reason = UNSEEN
        lane.trusted = False
        if lane.unproven is None:
            lane.unproven = RangeSet()

    def trust(self, stream_id: int) -> None:
        """All named groups of the stream are proven: what did not count is sent again, and counts from then on. What is
        in flight may have reached the site before the group did, so that is waited for."""
        lane = self.lanes.get(stream_id)
        if lane is not None and lane.unproven is not None:
            lane.trusted = True
            self._settle(lane)

    def is_doubted(self, stream_id: int) -> bool:
        """Whether what is confirmed of the stream does not count, nor will soon."""
        lane = self.lanes.get(stream_id)
        return lane is not None and lane.unproven is not None and not lane.trusted

    def is_unproven(self, row_id: int) -> bool:
        """Whether the site has confirmed the row, and that does not count."""
        return any(lane.unproven is not None and row_id in lane.unproven for lane in self.lanes.values())

    def _settle(self, lane: Lane) -> None:
        """Have confirms count again on a lane that waits for that with nothing in flight."""
        if not lane.trusted or lane.flights or lane.unproven is None:
            return
        lane.next = lane.cursor
        lane.unproven, lane.trusted = None, False
        self.rewound.append(lane)

    def _lane(self, flight: Flight) -> Lane:
        """The lane that a row in flight is in."""
        return self.main if flight.stream_id is None else self.lanes[flight.stream_id]

    def _is_usual(self, lane: Lane) -> bool:
        """Whether the lane has many rows in flight, of which each may be what breaks connections."""
        return lane is self.main or (lane.unproven is not None and lane.state is LaneState.FLOWING)

    def _first_usual(self) -> RowLike | None:
        """The lowest row in flight on such lanes."""
        if not self.lanes:
            return self.main.flights[self.main.cursor].row if self.main.flights else None
        rows = (flight.row for flight in self.flights.values() if self._is_usual(self._lane(flight)))
        return min(rows, key=lambda row: row.id, default=None)

    def rejoin(self, top: int) -> list[Lane]:
        """Take lanes that have caught up back into the main lane, also those that were to be tried again when nothing
        up to row `top`, the last, was left to try; returns them."""
        if not self.lanes:
            return []
        back = [
            lane
            for lane in self.lanes.values()
            if not lane.flights
            and lane.unproven is None
            and (
                (lane.state is LaneState.FLOWING and lane.next >= self.main.next)
                or (lane.state is LaneState.PROBING and lane.next > top)
            )
        ]
        for lane in back:
            assert lane.stream_id is not None  # the main lane is not among them
            del self.lanes[lane.stream_id]
        return back

    def overdue(self, now: float) -> bool:
        """Whether the oldest row in flight should have been confirmed by now.

        Its time begins when it is sent, or becomes the oldest: over a slow line a full window takes longer than any
        time-out for one row.
        """
        due = self._due_at()
        return due is not None and due <= now

    def give_up(self, now: float) -> list[Lane]:
        """A confirm is overdue, and the connection is about to be dropped for it. The next one has more time: what
        takes longer than the time-out would else be sent again and again. Returns lanes that are parked by it (P18).
        """
        late = [flight for due, flight in self._oldest() if due <= now]
        self.overdue_since = now
        if not all(flight.trial for flight in late):  # what is tried again has a patience of its own
            self._patience = min(2 * self._patience, MAX_PATIENCE)
        return [lane for flight in late if (lane := self._park_late(flight, now)) is not None]

    def _park_late(self, flight: Flight, now: float) -> Lane | None:
        """Have a stream wait whose row is overdue, if it is the row rather than the site."""
        row, lane = flight.row, self._lane(flight)
        answering = self._answered > flight.at
        if not answering and not flight.trial and row.id not in self._overdue:
            self._overdue.add(row.id)
            return None
        self._overdue.discard(row.id)
        if self._answered_at <= flight.at:
            self._silenced.add(row.stream_id)
        if lane is self.main:
            return self._park(row.stream_id, row.id, UNANSWERED, now)
        if lane.state is LaneState.PARKED:
            return None
        lane.park(row.id, UNANSWERED, now)
        return lane

    def _oldest(self) -> Iterator[tuple[float, Flight]]:
        """The oldest usual row and the oldest that is tried again, each with when its confirm is overdue."""
        timeout = self.limits.confirm_timeout
        if self._usual:
            flight = next(iter(self._usual.values()))
            yield max(flight.at, self._oldest_at) + timeout * self._patience, flight
        if self._trials:
            flight = next(iter(self._trials.values()))
            yield (
                flight.at + timeout * min(2 ** min(self._lane(flight).attempts + 1, 10), MAX_PATIENCE),
                flight,
            )

    def _due_at(self) -> float | None:
        if self.blocked is not None or not self.flights:
            return None
        return min(due for due, _ in self._oldest())

    def deadline(self) -> float | None:
        """When this site needs to be looked at, if nothing else happens."""
        times = [lane.retry_at for lane in self.lanes.values() if lane.state is LaneState.PARKED]
        due = self._due_at()
        if due is not None:
            times.append(due)
        return min(times, default=None)

    def restore_lane(self, stream_id: int, cursor: int, attempts: int, reason: str) -> None:
        """Take over a stream that was parked, or not proven, when the outbox was closed; it is tried at once."""
        lane = Lane(stream_id, cursor)
        if reason != UNSEEN:
            lane.state = LaneState.PARKED
        lane.attempts, lane.reason = attempts, reason
        self.lanes[stream_id] = lane

    def _park(self, stream_id: int, row_id: int, reason: str, now: float) -> Lane:
        """Have a stream wait in a lane of its own."""
        lane = self.lanes[stream_id] = self._separate(stream_id, row_id)
        lane.park(row_id, reason, now)
        return lane

    def _separate(self, stream_id: int, first: int) -> Lane:
        """A lane for a stream, from row `first` on and with what of it is in flight."""
        lane = Lane(stream_id, first)
        for flight in list(self.main.flights.values()):
            if flight.row.stream_id == stream_id:
                del self.main.flights[flight.row.id]
                lane.flights[flight.row.id] = flight
                flight.stream_id = lane.stream_id
        return lane

    def _note_answer(self, flight: Flight, now: float) -> None:
        """The site said something about a row: it is not silent, so what was parked for its silence is tried again."""
        self._answered_at = now
        self._answered = max(self._answered, flight.at)
        for stream_id in self._silenced:
            lane = self.lanes.get(stream_id)
            if lane is not None and lane.state is LaneState.PARKED:
                lane.retry_at = min(lane.retry_at, now)
        if self._silenced:
            self._silenced.clear()

    def _arrived(self, flight: Flight) -> None:
        """Nobody waits for the row any more."""
        row_id, lane = flight.row.id, self._lane(flight)
        (self.confirmed if lane.unproven is None else lane.unproven).add(row_id, row_id)
        if not self._usual:
            self._patience = 1
        if row_id == self._suspect:
            self._drops = 0
        if lane.state is LaneState.PROBING and not lane.flights:  # else it was in flight before the try
            lane.state = LaneState.FLOWING
            lane.attempts = 0
        if lane.trusted:
            self._settle(lane)

    def _land(self, row_id: int, now: float) -> Flight | None:
        if row_id == next(iter(self._usual), None):
            self._oldest_at = now
        flight = self.flights.pop(row_id, None)
        if flight is not None:
            del self._lane(flight).flights[row_id]
            self.bytes -= flight.row.size
            if flight.trial:
                del self._trials[row_id]
            else:
                del self._usual[row_id]
                self._usual_bytes -= flight.row.size
            if self._overdue:
                self._overdue.discard(row_id)
        return flight
