"""Which of the groups that a producer names are proven to exist at one site: rules P15 and P16.

An MQTT broker confirms what it keeps for nobody. So a confirm says something about a group only where that group's
session is known to be there. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Place", "Presence"]

Place = tuple[str, int, str]
"""Topic, partition and group."""


class Presence:
    """The named groups of one site. Methods that take evidence return whether they changed what is proven."""

    def __init__(self, proven: Iterable[tuple[Place, bool]] = ()) -> None:
        """`proven`: what was stored, and whether the group's mark had been seen."""
        self._proven: dict[Place, bool] = dict(proven)
        """With whether its mark was seen there."""
        self._heard: set[Place] = set()
        """Groups whose state came in on this connection."""
        self._shown: set[Place] = set()
        """Groups that the broker itself has shown on this connection: if it does not any more, they are gone."""
        self._changes: set[Place] = set()

    def connected(self) -> None:
        """A new connection, perhaps to another broker: only what is proven stays."""
        self._heard.clear()
        self._shown.clear()

    # -- evidence -----------------------------------------------------------------------------------------

    def heard(self, place: Place) -> bool:
        """The group's consumer, connected to this site, told its state."""
        self._heard.add(place)
        return self._prove(place, marked=False)

    def subscribed(self, place: Place) -> bool:
        """The broker says that the group's session subscribes, and is known to say otherwise where nobody does."""
        self._shown.add(place)
        return self._prove(place, marked=False)

    def not_subscribed(self, place: Place) -> bool:
        """The same broker says that it does not."""
        return self._refute(place)

    def marked(self, place: Place) -> bool:
        """The group's mark is there, at a broker that does not tell who subscribes."""
        self._shown.add(place)
        return self._prove(place, marked=True)

    def not_marked(self, place: Place) -> bool:
        """There is no mark at such a broker. That says something only where there was one."""
        return self._proven.get(place, False) and self._refute(place)

    # -- questions ----------------------------------------------------------------------------------------

    def is_proven(self, place: Place) -> bool:
        """Whether the site keeps the topic's messages for the group, as far as anybody can know."""
        return place in self._proven

    def was_heard(self, place: Place) -> bool:
        """Whether the group's state came in on this connection."""
        return place in self._heard

    def forget(self, place: Place) -> None:
        """The group is not named any more."""
        self._heard.discard(place)
        self._shown.discard(place)
        if self._proven.pop(place, None) is not None:
            self._changes.add(place)

    @property
    def changed(self) -> bool:
        """Whether :meth:`take_changes` has something."""
        return bool(self._changes)

    def take_changes(self) -> dict[Place, bool | None]:
        """What has to be stored: whether a mark was seen, or None for what is not proven any more. The caller must
        store it, or :meth:`put_back`."""
        changes, self._changes = self._changes, set()
        return {place: self._proven.get(place) for place in changes}

    def put_back(self, places: Iterable[Place]) -> None:
        """These could not be stored."""
        self._changes.update(places)

    # -- inside -------------------------------------------------------------------------------------------

    def _prove(self, place: Place, marked: bool) -> bool:
        before = self._proven.get(place)
        if before is None or (marked and not before):
            self._proven[place] = marked
            self._changes.add(place)
        return before is None

    def _refute(self, place: Place) -> bool:
        if place in self._heard and place not in self._shown:
            return False  # the broker is mistaken: some answer reason 16 though there are subscribers
        self._heard.discard(place)
        self._shown.discard(place)
        if self._proven.pop(place, None) is None:
            return False
        self._changes.add(place)
        return True
