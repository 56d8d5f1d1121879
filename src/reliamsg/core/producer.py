"""The sending side of the protocol: what goes to which site next, and when a row is published.

:class:`ProducerCore` composes the sites' windows (:mod:`~reliamsg.core.window`) and the confirm policy
(:mod:`~reliamsg.core.confirms`). It takes and gives rows of the outbox; their bytes are its caller's. Not
thread-safe: the caller holds one lock around every call. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reliamsg.config import Confirm
from reliamsg.core.confirms import Confirms
from reliamsg.core.ranges import RangeSet, Span
from reliamsg.core.window import Flight, Lane, RowLike, SiteLimits, SiteWindow

__all__ = ["ProducerCore"]

MAX_LEAVING = 1_000
"""Runs of rows that may leave, of which more are not looked at in one go."""


class ProducerCore:
    """All sites of one producer."""

    def __init__(
        self, sites: Mapping[str, SiteLimits], cursors: Mapping[str, int], policy: Confirm, published: int
    ) -> None:
        """`cursors`: each site's lowest unconfirmed row; rows below `published` were published before."""
        self.sites = {name: SiteWindow(name, limits, cursors[name]) for name, limits in sites.items()}
        self.confirms = Confirms(policy, list(self.sites.values()), published)
        self.top = 0
        """The highest row that is committed."""
        self._asked: set[str] = set()

    def opened(self, top: int, held: Iterable[Span]) -> None:
        """`held`: what the outbox still has of the rows up to `top`, the highest that ever was. Nobody waits for a
        confirm of the others: they were removed, or left as published while an earlier row was not."""
        self.top = top
        for span in RangeSet(held).missing(1, top) if top else ():
            for window in self.sites.values():
                window.confirmed.add(*span)
            self.confirms.published.add(*span)

    # -- connections --------------------------------------------------------------------------------------

    def connected(self, site: str, window: int | None) -> None:
        self._asked.discard(site)
        self.sites[site].connect(window)

    def disconnected(self, site: str, now: float) -> tuple[Lane | None, list[int]]:
        """Returns the lane that was parked by it, and rows that are published by it (``all-active``)."""
        asked = site in self._asked
        self._asked.discard(site)
        lane = self.sites[site].disconnect(now, asked)
        return lane, self.confirms.reconsider()

    def blocked(self, site: str, reason: str | None, now: float) -> list[int]:
        """The broker asked to stop, or (None) to go on. Returns rows that are published by it."""
        self.sites[site].block(reason, now)
        return self.confirms.reconsider() if reason is not None else []

    # -- sending ------------------------------------------------------------------------------------------

    def may_send(self, site: str, lane: Lane, row: RowLike) -> bool:
        """Whether `row` goes out on `lane` now. Where it need not, the lane passes it; where it can't, it
        waits.

        After True the caller must send the row and call :meth:`sent`; after False it looks at ``lane.next``:
        if that is beyond the row, the row was passed.
        """
        window = self.sites[site]
        if not window.takes(lane, row):
            lane.skip_to(row.id + 1)
            return False
        return window.room(lane, row.size)

    def sent(self, site: str, lane: Lane, row: RowLike, now: float) -> None:
        self.sites[site].sent(lane, row, now)

    def confirmed(self, site: str, rows: Sequence[int], now: float) -> tuple[list[Flight], list[int]]:
        """The site has `rows`. Returns what was in flight of them, and which rows are published now."""
        window = self.sites[site]
        flights = [flight for row in rows if (flight := window.confirm(row, now)) is not None]
        return flights, self.confirms.decide(flight.row.id for flight in flights)

    def refused(self, site: str, row: int, reason: str, now: float) -> Flight | None:
        """The site does not have the row; its stream is parked there."""
        return self.sites[site].refuse(row, reason, now)

    def gone(self, row: int, now: float) -> None:
        """The row was removed: nobody waits for a confirm of it any more."""
        for window in self.sites.values():
            window.skip(row, now)
        self.confirms.published.add(row, row)

    def changed(self, row: RowLike) -> None:
        """Some of what the row held was removed; it keeps its id."""
        for window in self.sites.values():
            window.change(row)

    def split(self, row: int, new: int, now: float) -> None:
        """What row `row` ended with is row `new` from now on. Whoever has confirmed the one has the other."""
        for window in self.sites.values():
            if row in window.confirmed:
                window.skip(new, now)
        self.confirms.inherit(row, new)

    # -- time ---------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> tuple[dict[str, list[Lane]], list[int]]:
        """Sites whose connection must be dropped since a confirm is overdue, each with the lanes that are parked for
        it; and rows published by that."""
        found: dict[str, list[Lane]] = {}
        for name, window in self.sites.items():
            if window.connected and name not in self._asked and window.overdue(now):
                found[name] = window.give_up(now)
                self._asked.add(name)
        return found, self.confirms.reconsider() if found else []

    def due(self, now: float) -> list[str]:
        """Sites at which a parked stream is tried again from now on."""
        return [name for name, window in self.sites.items() if window.connected and window.probe(now)]

    def deadline(self) -> float | None:
        """When :meth:`overdue` or :meth:`due` will have something, if nothing else happens."""
        times = [
            time
            for name, window in self.sites.items()
            if window.connected and name not in self._asked and (time := window.deadline()) is not None
        ]
        return min(times, default=None)

    # -- what may leave -------------------------------------------------------------------------------------

    def releasable(self, above: int, consumed: RangeSet | None = None) -> tuple[list[Span], list[Span]]:
        """Rows above `above` that may leave, oldest first: those that every site has, and those that are published
        only.

        `consumed`: rows that all groups are done with, where others must stay.
        """
        everywhere: RangeSet = self.confirms.everywhere()
        full: list[Span] = []
        partly: list[Span] = []
        for first, last in self.confirms.published:
            if last > above:
                low = max(first, above + 1)
                full += everywhere.overlap(low, last)
                partly += everywhere.missing(low, last)
        if consumed is not None:
            full, partly = _within(full, consumed), _within(partly, consumed)
        return full, partly


def _within(spans: Sequence[Span], rows: RangeSet) -> list[Span]:
    """What of `spans` is in `rows`, up to a number that is more than leaves at once."""
    found: list[Span] = []
    for first, last in spans:
        found += rows.overlap(first, last, MAX_LEAVING)
        if len(found) >= MAX_LEAVING:
            break
    return found
