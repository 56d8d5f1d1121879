"""Deliveries that are not durable here yet, so that their brokers must keep them.

A delivery is released when all of its numbers are settled or persisted, and that is committed. A delivery that waits
too long is *overdue*: its bytes are persisted ahead of their turn, so that no gap and no slow handler uses up a site's
prefetch window. If a stream's handler is fast, and only the broker's backlog waits, the window turns over by itself,
and persisting all of it would only cost disk time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reliamsg.message import Stream
from reliamsg.protocol.ranges import Span
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer

__all__ = ["QUARANTINE", "REPAIRS", "SPILL_AFTER_S", "UnackedDeliveries", "Waiting"]

REPAIRS = ""
"""Instead of a site: a repair, which no broker keeps. It is persisted like anything else; a crash before that costs
another request."""
QUARANTINE = "#"
"""Instead of a site: a delivery replayed from the quarantine, which keeps it until it is durable elsewhere. No site has
this name."""
REPAIRS_CROWDED_BYTES = 4 * 1024 * 1024
"""With this many bytes of repairs in memory, they are persisted as early as deliveries of a crowded site."""
REPAIRS_AFTER_S = 1.0
"""A repair that is not durable at this age is overdue. It does not use a broker's window, and most are settled by
then."""

SPILL_AFTER_S = 0.1
"""A delivery that is not durable at this age is overdue."""
SPILL_CROWDED_S = 0.02
"""The same at a site of which half the prefetch window is used."""
MOVING_S, MOVING_MESSAGES, MOVING_DELIVERY = 0.1, 10_000, 300
"""A stream moves if it releases this many messages within this many seconds, or has just begun to wait; each delivery
counts as MOVING_DELIVERY messages at least. Persisting would not be faster, so nobody behind it would benefit."""
SPILL_MOVING_S = 5.0
"""A delivery of a stream that moves is overdue at this age. Once any was overdue, and as long as anything of the stream
is persisted, it has no more time than others."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A delivery that its broker must keep until it is durable here."""

    number: int
    site: str
    token: object
    stream: Stream
    known: ReorderBuffer | None
    """None: it only waits for the commit `after`."""
    first: int
    last: int
    at: float
    ahead: bool
    """It arrived out of order: persist it at once."""
    size: int = 0
    """In bytes, if they count."""
    after: int = 0
    """The earliest commit that may release it."""
    spilling: bool = False
    released: bool = False


class _Stream:
    """The deliveries of one stream, and how fast it releases them."""

    __slots__ = ("moved", "since", "stalled_at", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.start(0.0)

    def start(self, now: float) -> None:
        """Start counting."""
        self.since = now
        self.moved = 0
        """Messages released since then."""
        self.stalled_at: float | None = None
        """When deliveries became overdue of which some may still be persisted."""


class _Site:
    __slots__ = ("ahead", "bytes", "grace", "pending", "prefetch", "turns_over")

    def __init__(self, prefetch: float, grace: float = SPILL_AFTER_S) -> None:
        self.prefetch = prefetch
        self.grace = grace
        """Seconds after which a delivery is overdue."""
        self.turns_over = prefetch < float("inf")
        """Whether its window bounds memory, so that deliveries of streams that move may stay there."""
        self.pending: dict[int, Waiting] = {}
        """Oldest first."""
        self.ahead: dict[int, Waiting] = {}
        """Those that arrived out of order and are not being persisted yet."""
        self.bytes = 0
        """Bytes of pending deliveries, if known."""


class UnackedDeliveries:
    """The waiting deliveries of all sites."""

    def __init__(self, sites: Mapping[str, int]) -> None:
        """`sites`: the prefetch window of each site."""
        self._sites = {name: _Site(prefetch) for name, prefetch in sites.items()}
        self._sites[REPAIRS] = _Site(float("inf"), REPAIRS_AFTER_S)
        self._sites[QUARANTINE] = _Site(float("inf"), REPAIRS_AFTER_S)
        self._streams: dict[Stream, _Stream] = {}
        self._connected: set[str] = set()
        self._entered = 0

    def connected(self, site: str) -> None:
        self._connected.add(site)

    def disconnected(self, site: str) -> None:
        """Every delivery of the connection is void: the broker will deliver again."""
        void = self._sites[site]
        self._connected.discard(site)
        for waiting in void.pending.values():
            waiting.released = True
        for stream in {waiting.stream for waiting in void.pending.values()}:
            found = self._streams[stream]
            found.waiting = [waiting for waiting in found.waiting if not waiting.released]
        void.pending.clear()
        void.bytes = 0
        void.ahead.clear()

    @property
    def any_connected(self) -> bool:
        return bool(self._connected)

    def of(self, stream: Stream) -> Sequence[Waiting]:
        """The waiting deliveries of a stream, oldest first."""
        found = self._streams.get(stream)
        return () if found is None else found.waiting

    def forget(self, stream: Stream) -> None:
        """The stream leaves memory. Nothing of it waits."""
        self._streams.pop(stream, None)

    def pending(self, site: str) -> int:
        """The number of deliveries that the site's broker must keep."""
        return len(self._sites[site].pending)

    def is_used_up(self, site: str) -> bool:
        """Whether the broker delivers nothing more until something is acknowledged."""
        found = self._sites[site]
        return len(found.pending) >= found.prefetch

    @property
    def repair_bytes(self) -> int:
        """Bytes of repairs that are neither settled nor persisted."""
        return self._sites[REPAIRS].bytes

    @property
    def replayed_bytes(self) -> int:
        """The same for deliveries replayed from the quarantine."""
        return self._sites[QUARANTINE].bytes

    def enter(
        self, incoming: Incoming, known: ReorderBuffer | None, now: float, ahead: bool, after: int
    ) -> None:
        """Add a delivery. `known`: the epoch in which its numbers must become durable; None if it only waits for the
        commit number `after`. `ahead`: it arrived out of order, and is overdue at once."""
        stream = incoming.stream
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = _Stream()
        if not found.waiting and found.stalled_at is None:
            found.start(now)
        self._entered += 1
        site, token = incoming.site, incoming.token
        if incoming.repair:
            site, token = REPAIRS, None
        elif incoming.replayed:
            site = QUARANTINE
        waiting = Waiting(
            self._entered,
            site,
            token,
            stream,
            known,
            incoming.first,
            incoming.last,
            now,
            ahead,
            incoming.size,
            after,
        )
        found.waiting.append(waiting)
        place = self._sites[site]
        place.pending[waiting.number] = waiting
        place.bytes += incoming.size
        if ahead:
            place.ahead[waiting.number] = waiting

    def reopen(self, stream: Stream, known: ReorderBuffer, span: Span, site: str, after: int) -> set[str]:
        """The bytes of these numbers that came from `site` are unreadable: those deliveries only wait for the commit
        `after`. Returns the other sites that delivered them."""
        sites = set()
        for waiting in self.of(stream):
            if waiting.known is not known or waiting.first > span[1] or waiting.last < span[0]:
                continue
            if waiting.site == site:
                waiting.known, waiting.after = None, after
            elif waiting.site not in (REPAIRS, QUARANTINE):  # what was repaired is asked for again
                sites.add(waiting.site)
        return sites

    def leave(self, stream: Stream, commit: int) -> list[tuple[str, object]]:
        """Release a stream's deliveries that are durable after `commit`; returns (site, token) of each."""
        state = self._streams.get(stream)
        released: list[tuple[str, object]] = []
        if state is None or not state.waiting:
            return released
        kept: list[Waiting] = []
        for waiting in state.waiting:
            known = waiting.known
            if waiting.after > commit or (
                known is not None
                and waiting.last >= known.safe_position
                and not known.is_safe(waiting.first, waiting.last)
            ):
                kept.append(waiting)
                continue
            waiting.released = True
            state.moved += max(MOVING_DELIVERY, waiting.last - waiting.first + 1)
            site = self._sites[waiting.site]
            del site.pending[waiting.number]
            site.bytes -= waiting.size
            site.ahead.pop(waiting.number, None)
            if waiting.site != REPAIRS:
                released.append((waiting.site, waiting.token))
        state.waiting = kept
        return released

    def overdue(self, now: float) -> tuple[list[Waiting], float | None]:
        """Deliveries to persist now, and when the next will be due."""
        due: list[Waiting] = []
        later: float | None = None
        for site in self._sites.values():
            if not site.pending:  # those that are ahead are among them
                continue
            crowded = 2 * len(site.pending) >= site.prefetch or site.bytes >= REPAIRS_CROWDED_BYTES
            grace = SPILL_CROWDED_S if crowded else site.grace
            due += site.ahead.values()
            for waiting in site.pending.values():
                if waiting.spilling or waiting.ahead or waiting.known is None:
                    continue
                at = waiting.at + grace
                young = at > now
                if not young and site.turns_over:
                    at = self._stalls_at(waiting, waiting.known, now)
                if at <= now:
                    due.append(waiting)
                    continue
                later = at if later is None else min(later, at)
                if young:  # and those behind it are younger still
                    break
        return due, later

    def spilling(self, waiting: Waiting, doing: bool) -> None:
        """The delivery is about to be persisted, or (`doing` is False) persisting it failed."""
        waiting.spilling = doing
        if waiting.ahead and not waiting.released:
            ahead = self._sites[waiting.site].ahead
            if doing:
                ahead.pop(waiting.number, None)
            else:
                ahead[waiting.number] = waiting

    def _stalls_at(self, waiting: Waiting, known: ReorderBuffer, now: float) -> float:
        """When a delivery that has waited for some time becomes overdue, given how its stream moves."""
        pace = self._streams[waiting.stream]
        if pace.stalled_at is not None:
            if pace.stalled_at == now or not known.persisted.empty:
                return now
            pace.start(now)
        if pace.moved >= MOVING_MESSAGES:
            pace.start(now)
        at = min(waiting.at + SPILL_MOVING_S, pace.since + MOVING_S)
        if at <= now:
            pace.stalled_at = now
        return at
