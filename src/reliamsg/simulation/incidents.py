"""Incidents of a simulated run that excuse something: lost journals, replaced inboxes, forgeries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

__all__ = ["Incidents"]

JournalPart = Literal["opening", "epoch"]
"""Part of a producer's journal: the rows of an opening, by its incarnation, or of an epoch."""


class Incidents:
    """The causes of incidents record them here, and judges look them up."""

    def __init__(self) -> None:
        self.outbox_replaced: bool = False
        """An outbox was replaced by an older copy of itself."""
        self._replaced_outboxes: set[str] = set()
        self.truncated: set[str] = set()
        """Producers and groups that discarded rows of their journals."""
        self.replaced_inboxes: set[str] = set()
        """Groups of which an inbox was replaced."""
        self.unrepaired_groups: set[str] = set()
        """Groups that may not get repairs: with keys, requests of a replaced inbox look like replays."""
        self.counts: Counter[str] = Counter()
        """How often a run reached the conditions in :data:`reliamsg.simulation.runner.REACHED`."""
        self._impersonated: set[str] = set()
        self._unverifiable: set[tuple[str, JournalPart, int]] = set()
        self._forged: set[bytes] = set()
        self._lost_inbox_rows: set[tuple[str, str]] = set()

    # -- recording ------------------------------------------------------------------------------------------

    def outbox_went_back(self, producer: str, openings: Iterable[int], epochs: Iterable[int]) -> None:
        """An outbox was replaced, and its journal rows of these openings and epochs are lost."""
        self.outbox_replaced = True
        self._replaced_outboxes.add(producer)
        self._unverifiable |= {(producer, "opening", opening) for opening in openings}
        self._unverifiable |= {(producer, "epoch", epoch) for epoch in epochs}

    def inbox_went_back(self, group: str, *, repairs: bool) -> None:
        """An inbox of a group was replaced. `repairs`: whether producers still accept its requests."""
        self.replaced_inboxes.add(group)
        if not repairs:
            self.unrepaired_groups.add(group)

    def inbox_rows_lost(self, group: str, openings: Iterable[str]) -> None:
        """An inbox of a group was replaced, and journal rows of these openings are lost."""
        self._lost_inbox_rows |= {(group, opening) for opening in openings}

    def journal_truncated(self, client: str) -> None:
        """A producer, or a consumer of a group, discarded rows of its journal that it could not export."""
        self.truncated.add(client)

    def impersonated(self, producer: str, incarnation: int) -> None:
        """Someone named an epoch far ahead, and an opening, in a producer's name."""
        self._impersonated.add(producer)
        self._unverifiable.add((producer, "opening", incarnation))

    def forged(self, frame: bytes) -> None:
        """Someone forged a control frame in a group's name."""
        self._forged.add(frame)

    def count(self, name: str, times: int) -> None:
        """A run reached a rare condition."""
        self.counts[name] += times

    # -- lookups --------------------------------------------------------------------------------------------

    def is_unverifiable(self, producer: str, part: str, number: int) -> bool:
        """Whether a part of a producer's journal is lost, or never existed because an attacker forged it."""
        return (producer, part, number) in self._unverifiable

    def was_outbox_replaced(self, producer: str) -> bool:
        """Whether an outbox of that producer was replaced by an older copy, which may be an empty file."""
        return producer in self._replaced_outboxes

    def lost_rows_of(self, group: str, opening: str) -> bool:
        """Whether journal rows of that opening of one of the group's inboxes are lost."""
        return (group, opening) in self._lost_inbox_rows

    def names_impersonated(self, text: str) -> bool:
        """Whether a text names a producer that was impersonated."""
        return any(name in text for name in self._impersonated)

    def is_forged(self, frame: bytes) -> bool:
        """Whether a control frame was forged in a group's name."""
        return frame in self._forged
