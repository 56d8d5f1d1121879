"""When a row counts as published: the confirm policies, and which sites' confirms met them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reliamsg.policy import Confirm, confirms_needed
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.sender.window import SiteWindow

__all__ = ["Confirms"]

MAX_COUNTED = 1_000
"""Intervals of rows for which the counted sites are remembered; for older ones, all that have confirmed are counted."""


class Confirms:
    """Decides for each row whether it is published. A decision is final."""

    def __init__(self, policy: Confirm, sites: Sequence[SiteWindow], published: int) -> None:
        """Rows below `published` are published already."""
        self._sites = tuple(sites)
        self._active_only = policy == "all-active"
        self._needed = confirms_needed(policy, len(sites))
        """At least so many sites must have confirmed."""
        self.published: RangeSet = RangeSet()
        """Rows whose policy is met."""
        if published > 1:
            self.published.add(1, published - 1)
        self._counted: list[tuple[int, int, tuple[str, ...]]] = []

    @property
    def cursor(self) -> int:
        """All rows below it are published."""
        return (self.published.run_from(1) or 0) + 1

    def decide(self, rows: Iterable[int]) -> list[int]:
        """Which of `rows`, whose confirms have changed, are published from now on."""
        decided = []
        for row in rows:
            counted: list[str] = []
            for site in self._sites:
                if row in site.confirmed:
                    counted.append(site.name)
            if len(counted) < self._needed or row in self.published:
                continue
            if self._active_only and not all(site.name in counted for site in self._sites if site.up):
                continue
            self.published.add(row, row)
            self._remember(row, tuple(counted))
            decided.append(row)
        return decided

    def reconsider(self) -> list[int]:
        """:meth:`decide` for all rows that some site has confirmed: a site that was waited for is down."""
        if not self._active_only:
            return []
        rows: list[int] = []
        for first, last in self.candidates():
            rows += self.decide(range(first, last + 1))
        return rows

    def inherit(self, row: int, new: int) -> None:
        """`new` contains messages of `row`: it is published if that is."""
        if row in self.published and new not in self.published:
            self.published.add(new, new)
            self._remember(new, self.counted(row))

    def candidates(self) -> list[Span]:
        """Rows that some site has confirmed but that are not published."""
        found = RangeSet()
        for site in self._sites:
            for first, last in site.confirmed:
                for span in self.published.missing(first, last):
                    found.add(*span)
        return list(found)

    def counted(self, row: int) -> tuple[str, ...]:
        """The sites whose confirms counted for a published row."""
        for first, last, names in reversed(self._counted):
            if first <= row <= last:
                return names
        return tuple(site.name for site in self._sites if row in site.confirmed)

    def everywhere(self) -> RangeSet:
        """Published rows that every site has confirmed."""
        found = self.published
        for site in self._sites:
            found = RangeSet(part for span in site.confirmed for part in found.overlap(*span))
        return found

    def _remember(self, row: int, counted: tuple[str, ...]) -> None:
        if self._counted:
            first, last, names = self._counted[-1]
            if names == counted and row == last + 1:
                self._counted[-1] = (first, row, names)
                return
        self._counted.append((row, row, counted))
        if len(self._counted) > MAX_COUNTED:
            del self._counted[0]
