"""Which named groups are proven to exist at which MQTT sites (rules P15 to P17)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.protocol.sender.presence import Place, Presence
from reliamsg.transport.base import Binding, Evidence, Mark
from reliamsg.wire.address import created_address
from reliamsg.wire.control import is_mark

__all__ = ["PresenceTracker", "advice", "needs_proof"]

SitePlace = tuple[str, Place]


class PresenceTracker:
    """One producer's. Not thread-safe."""

    def __init__(self, sites: Iterable[Site], keys: KeyRing | None) -> None:
        """`keys`: marks have to be signed with one of them."""
        self._keys = keys
        self._sites = {site.name: Presence(()) for site in sites if needs_proof(site)}

    def restore(self, stored: Mapping[SitePlace, bool]) -> None:
        """Take over what the outbox says is proven, and whether the group's mark was seen there."""
        for name in self._sites:
            self._sites[name] = Presence(
                (place, marked) for (site, place), marked in stored.items() if site == name
            )

    def is_needed(self, site: str) -> bool:
        """Whether a site's confirms count only for groups that are proven there."""
        return site in self._sites

    def connected(self, site: str) -> None:
        """A new connection to a site."""
        if site in self._sites:
            self._sites[site].connected()

    def found(self, site: str, evidence: Mapping[Binding, Evidence | Mark]) -> set[tuple[str, int]]:
        """The broker showed evidence of groups. Returns the topics and partitions for which more, or less, is proven
        now."""
        presence = self._sites.get(site)
        if presence is None:
            return set()
        return {
            (binding.topic, binding.partition)
            for binding, shown in evidence.items()
            if self._take(presence, (binding.topic, binding.partition, binding.group), shown)
        }

    def _take(self, presence: Presence, place: Place, shown: Evidence | Mark) -> bool:
        match shown:
            case Evidence.SUBSCRIBED:
                return presence.subscribed(place)
            case Evidence.NOT_SUBSCRIBED:
                return presence.not_subscribed(place)
            case Evidence.NOT_MARKED:
                return presence.not_marked(place)
            case _:
                genuine = is_mark(shown, created_address(*place), self._keys)
                return presence.marked(place) if genuine else presence.not_marked(place)

    def on_report(self, site: str, group: str, topics: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
        """A group sent its state over a site. Returns what :meth:`found` does."""
        presence = self._sites.get(site)
        if presence is None:
            return set()
        return {
            (topic, partition) for topic, partition in topics if presence.reported((topic, partition, group))
        }

    def listens_for(self, site: str, bindings: Iterable[Binding]) -> bool:
        """Whether a state of one of these groups would prove anything."""
        presence = self._sites.get(site)
        return presence is not None and not all(
            presence.has_reported((b.topic, b.partition, b.group)) for b in bindings
        )

    def unseen(self, site: str, topic: str, partition: int, groups: Iterable[str]) -> list[str]:
        """Those of `groups` that are not proven at a site."""
        presence = self._sites.get(site)
        if presence is None:
            return []
        return sorted(group for group in groups if not presence.is_proven((topic, partition, group)))

    def forget(self, place: Place) -> None:
        """A group is no longer named."""
        for presence in self._sites.values():
            presence.forget(place)

    @property
    def changed(self) -> bool:
        """Whether :meth:`take_changes` would return anything."""
        return bool(self._sites) and any(presence.changed for presence in self._sites.values())

    def take_changes(self) -> dict[SitePlace, bool | None]:
        """What has to be stored: whether a mark was seen, or None where a group is no longer proven."""
        return {
            (site, place): marked
            for site, presence in self._sites.items()
            for place, marked in presence.take_changes().items()
        }

    def put_back(self, changes: Iterable[SitePlace]) -> None:
        """These could not be stored."""
        for site, place in changes:
            self._sites[site].put_back([place])


def needs_proof(site: Site) -> bool:
    """Whether the site's confirms count only for groups that are proven there."""
    return site.protocol == "mqtt" and site.declare != "none"


def advice(unseen: Mapping[str, Iterable[str]], topic: str) -> str:
    """What to do about groups of a topic that are unknown at sites (`unseen`, by site); empty where there are none."""
    by_group: dict[str, list[str]] = {}
    for site, groups in unseen.items():
        for group in groups:
            by_group.setdefault(group, []).append(site)
    return "; ".join(
        f"group {group} is unseen at {', '.join(sites)}: start its consumer, or run"
        f" `reliamsg group create {group} --topic {topic} --site ...`"
        for group, sites in sorted(by_group.items())
    )
