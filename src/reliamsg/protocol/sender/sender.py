"""The sending half of the protocol: what each site is sent next, and when a row is published.

:class:`Sender` combines the sites' windows (:mod:`~reliamsg.protocol.sender.window`) with the confirm policy
(:mod:`~reliamsg.protocol.sender.confirms`). It handles rows of the outbox; their contents stay with its caller. Not
thread-safe: the caller holds one lock around every call. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from reliamsg.policy import Confirm
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.sender.confirms import Confirms
from reliamsg.protocol.sender.window import RowLike, SendQueue, SiteLimits, SiteWindow

__all__ = ["Sender", "Timed"]

MAX_RELEASABLE = 1_000
"""At most about this many intervals of releasable rows are searched for at once."""


class Timed(NamedTuple):
    """What :meth:`Sender.on_deadline` asks its caller to do."""

    overdue: dict[str, list[SendQueue]]
    """Sites whose connection must be dropped because a confirm is overdue, and the queues that this parks."""
    published: list[int]
    """Rows that this publishes (``all-active``)."""
    retrying: list[str]
    """Sites at which a parked stream is retried now."""


class Sender:
    """All sites of one producer."""

    def __init__(
        self, sites: Mapping[str, SiteLimits], cursors: Mapping[str, int], policy: Confirm, published: int
    ) -> None:
        """`cursors`: each site's lowest unconfirmed row. Rows below `published` are published already."""
        self.sites: dict[str, SiteWindow] = {
            name: SiteWindow(name, limits, cursors[name]) for name, limits in sites.items()
        }
        self.confirms: Confirms = Confirms(policy, list(self.sites.values()), published)
        self.confirmed_rows: int = 0
        """Rows confirmed at some site since :meth:`take_confirmed` was called last."""
        self._dropping: set[str] = set()
        """Sites whose connection the caller was asked to drop."""

    def opened(self, top: int, held: Iterable[Span]) -> None:
        """`held`: the rows up to `top`, the highest there ever was, that the outbox still has. The others need no
        confirm: they were removed, or were released as published before an earlier row was."""
        for span in RangeSet(held).missing(1, top) if top else ():
            for window in self.sites.values():
                window.confirmed.add(*span)
            self.confirms.published.add(*span)

    # -- connections --------------------------------------------------------------------------------------

    def connected(self, site: str, window: int | None) -> None:
        self._dropping.discard(site)
        self.sites[site].connect(window)

    def disconnected(self, site: str, now: float) -> tuple[SendQueue | None, list[int]]:
        """Returns the queue that this parks, if any, and the rows that this publishes (``all-active``)."""
        asked = site in self._dropping
        self._dropping.discard(site)
        queue = self.sites[site].disconnect(now, asked)
        return queue, self.confirms.reconsider()

    def blocked(self, site: str, reason: str | None, now: float) -> list[int]:
        """The broker asked us to pause or, with None, to go on. Returns the rows that this publishes."""
        self.sites[site].block(reason, now)
        return self.confirms.reconsider() if reason is not None else []

    # -- answers ------------------------------------------------------------------------------------------

    def confirmed(self, site: str, rows: Sequence[int], now: float) -> tuple[dict[int, RowLike], list[int]]:
        """The site has `rows`. Returns those that were in flight and whose confirm counts, by id, and the ids of those
        that are published now."""
        confirmed = self.sites[site].confirm(rows, now)
        self.confirmed_rows += len(confirmed)
        return confirmed, self.confirms.decide(confirmed)

    def refused(self, site: str, row: int, reason: str, now: float) -> RowLike | None:
        """The site does not have the row; its stream is parked there."""
        return self.sites[site].refuse(row, reason, now)

    # -- changes of the outbox ----------------------------------------------------------------------------

    def removed(self, row: int, now: float) -> None:
        """The row was removed and needs no confirm any more."""
        for window in self.sites.values():
            window.discard(row, now)
        self.confirms.published.add(row, row)

    def changed(self, row: RowLike) -> None:
        """Some messages of the row were removed; it keeps its id."""
        for window in self.sites.values():
            window.replace(row)

    def split(self, row: int, new: int, now: float) -> None:
        """The last messages of `row` are row `new` from now on. Sites that have confirmed the one have the other."""
        for window in self.sites.values():
            if row in window.confirmed:
                window.discard(new, now)
        self.confirms.inherit(row, new)

    # -- time ---------------------------------------------------------------------------------------------

    def on_deadline(self, now: float) -> Timed:
        """Handle everything that is due; nothing is before :meth:`next_deadline`."""
        overdue: dict[str, list[SendQueue]] = {}
        retrying: list[str] = []
        for name, window in self.sites.items():
            if not window.connected:
                continue
            if now < window.due_at:
                continue
            if name not in self._dropping and window.is_overdue(now):
                overdue[name] = window.give_up(now)
                self._dropping.add(name)
            if window.probe(now):
                retrying.append(name)
            window.next_deadline()
        return Timed(overdue, self.confirms.reconsider() if overdue else [], retrying)

    def next_deadline(self) -> float:
        """Before this time :meth:`on_deadline` has nothing to do, if nothing else happens; infinite for never."""
        earliest = inf
        for name, window in self.sites.items():
            if window.due_at < earliest and window.connected and name not in self._dropping:
                earliest = window.due_at
        return earliest

    # -- what has to be stored ----------------------------------------------------------------------------

    def add_confirmed(self, rows: int) -> None:
        """This many rows more count differently from before, or could not be stored."""
        self.confirmed_rows += rows

    def take_confirmed(self) -> int:
        """How many rows were confirmed since this was called last."""
        taken, self.confirmed_rows = self.confirmed_rows, 0
        return taken

    # -- retention ----------------------------------------------------------------------------------------

    def releasable(self, above: int, consumed: RangeSet | None = None) -> tuple[list[Span], list[Span]]:
        """Rows above `above` that may be deleted, oldest first: those that every site has confirmed, and those that are
        published but lack a confirm.

        `consumed`: rows that all groups have settled, if the others must stay.
        """
        everywhere = self.confirms.everywhere()
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
    """The parts of `spans` that are in `rows`, up to a number that is more than is deleted at once."""
    found: list[Span] = []
    for first, last in spans:
        found += rows.overlap(first, last, MAX_RELEASABLE)
        if len(found) >= MAX_RELEASABLE:
            break
    return found
