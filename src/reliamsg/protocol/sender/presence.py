"""Which of a producer's named groups are proven to exist at one site: rules P15 and P16.

An MQTT broker also confirms messages that it keeps for nobody. So a confirm is evidence for a group only if the group's
session is known to exist there. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Place", "Presence"]

Place = tuple[str, int, str]
"""Topic, partition and group."""


class Presence:
    """The named groups of one site. Methods that record evidence return whether it changed what is proven."""

    def __init__(self, proven: Iterable[tuple[Place, bool]] = ()) -> None:
        """`proven`: the stored groups, and whether the mark of each was seen."""
        self._proven: dict[Place, bool] = dict(proven)
        """The groups, and whether the mark of each was seen there."""
        self._reported: set[Place] = set()
        """Groups that reported their state over this connection."""
        self._shown: set[Place] = set()
        """Groups that the broker itself showed on this connection: once it shows them no more, they are gone."""
        self._changes: set[Place] = set()

    def connected(self) -> None:
        """A new connection, perhaps to another broker: only proofs are kept."""
        self._reported.clear()
        self._shown.clear()

    # -- evidence -----------------------------------------------------------------------------------------

    def reported(self, place: Place) -> bool:
        """The group's consumer, connected to this site, reported its state."""
        self._reported.add(place)
        return self._prove(place, marked=False)

    def subscribed(self, place: Place) -> bool:
        """The broker shows that the group's session subscribes, and is known to tell when nobody does."""
        self._shown.add(place)
        return self._prove(place, marked=False)

    def not_subscribed(self, place: Place) -> bool:
        """The same broker shows that it does not."""
        return self._refute(place)

    def marked(self, place: Place) -> bool:
        """The group's mark exists, at a broker that does not tell who subscribes."""
        self._shown.add(place)
        return self._prove(place, marked=True)

    def not_marked(self, place: Place) -> bool:
        """There is no mark at such a broker, which is evidence only if there was one before."""
        return self._proven.get(place, False) and self._refute(place)

    # -- queries ------------------------------------------------------------------------------------------

    def is_proven(self, place: Place) -> bool:
        """Whether the site keeps the topic's messages for the group, as far as can be known."""
        return place in self._proven

    def has_reported(self, place: Place) -> bool:
        """Whether the group reported its state over this connection."""
        return place in self._reported

    def forget(self, place: Place) -> None:
        """The group is not named any more."""
        self._reported.discard(place)
        self._shown.discard(place)
        if self._proven.pop(place, None) is not None:
            self._changes.add(place)

    @property
    def changed(self) -> bool:
        """Whether :meth:`take_changes` has any."""
        return bool(self._changes)

    def take_changes(self) -> dict[Place, bool | None]:
        """The changes to store: whether a group's mark was seen, or None if the group is not proven any more. The
        caller must store them, or :meth:`put_back` them."""
        changes, self._changes = self._changes, set()
        return {place: self._proven.get(place) for place in changes}

    def put_back(self, places: Iterable[Place]) -> None:
        """These could not be stored."""
        self._changes.update(places)

    # -- proofs -------------------------------------------------------------------------------------------

    def _prove(self, place: Place, marked: bool) -> bool:
        before = self._proven.get(place)
        if before is None or (marked and not before):
            self._proven[place] = marked
            self._changes.add(place)
        return before is None

    def _refute(self, place: Place) -> bool:
        if place in self._reported and place not in self._shown:
            return False  # the broker is mistaken: some answer reason 16 although there are subscribers
        self._reported.discard(place)
        self._shown.discard(place)
        if self._proven.pop(place, None) is None:
            return False
        self._changes.add(place)
        return True
