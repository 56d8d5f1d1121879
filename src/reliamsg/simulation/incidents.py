"""Incidents of a simulated run that excuse something: journals that are gone, inboxes that were replaced, forgeries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

__all__ = ["Incidents"]

JournalPart = Literal["opening", "epoch"]
"""Part of a producer's journal: the rows of an opening, by its incarnation, or of an epoch."""


class Incidents:
    """Whoever causes an incident records it here; whoever judges looks it up."""

    def __init__(self) -> None:
        self.outbox_replaced = False
        """An outbox was replaced by an older copy of itself."""
        self.replaced_inboxes: set[str] = set()
        """Groups that had an inbox replaced."""
        self.unrepaired_groups: set[str] = set()
        """Groups that may have to do without repairs: with keys, what a replaced inbox requests looks like a replay."""
        self.counts: Counter[str] = Counter()
        """How often a run came to what :data:`reliamsg.simulation.runner.REACHED` lists."""
        self._impersonated: set[str] = set()
        self._unverifiable: set[tuple[str, JournalPart, int]] = set()
        self._forged: set[bytes] = set()

    # -- recording ------------------------------------------------------------------------------------------

    def outbox_went_back(self, producer: str, openings: Iterable[int], epochs: Iterable[int]) -> None:
        """An outbox was replaced, and with it went journal rows of these openings and epochs."""
        self.outbox_replaced = True
        self._unverifiable |= {(producer, "opening", opening) for opening in openings}
        self._unverifiable |= {(producer, "epoch", epoch) for epoch in epochs}

    def inbox_went_back(self, group: str, *, repairs: bool) -> None:
        """An inbox of a group was replaced. `repairs`: whether producers still accept its requests."""
        self.replaced_inboxes.add(group)
        if not repairs:
            self.unrepaired_groups.add(group)

    def impersonated(self, producer: str, incarnation: int) -> None:
        """Someone named an epoch far ahead, and an opening, in a producer's name."""
        self._impersonated.add(producer)
        self._unverifiable.add((producer, "opening", incarnation))

    def forged(self, frame: bytes) -> None:
        """Someone made up a control frame in a group's name."""
        self._forged.add(frame)

    def count(self, name: str, times: int) -> None:
        """A run came to something rare."""
        self.counts[name] += times

    # -- looking up -----------------------------------------------------------------------------------------

    def is_unverifiable(self, producer: str, part: str, number: int) -> bool:
        """Whether a part of a producer's journal is gone, or never existed because an attacker made it up."""
        return (producer, part, number) in self._unverifiable

    def names_impersonated(self, text: str) -> bool:
        """Whether a text names a producer that was impersonated."""
        return any(name in text for name in self._impersonated)

    def is_forged(self, frame: bytes) -> bool:
        """Whether a control frame was made up in a group's name."""
        return frame in self._forged
