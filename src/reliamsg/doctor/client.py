"""The clients for which sites and files are examined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reliamsg.config import JournalExport, Site
from reliamsg.transport.base import Binding
from reliamsg.wire.address import call_address, group_address, producer_address, status_address, topic_address

__all__ = ["Client", "peers_of"]


@dataclass(frozen=True)
class Client:
    """A producer, or a consumer of a group, with what it needs."""

    role: Literal["producer", "group"]
    name: str
    sites: tuple[Site, ...] | None
    """None for all sites."""
    file: Path
    """Its outbox or inbox."""
    groups: dict[str, tuple[str, ...]]
    """By topic: the groups that a producer names; for a consumer, its own group."""
    max_bytes: int
    """How large the file may become, about."""
    journal: JournalExport | None = None
    peers: tuple[str, ...] = ()
    """Of a consumer, the producers of its topics, as far as they are known."""

    @property
    def subject(self) -> str:
        """For findings."""
        return f"{self.role} {self.name}"

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The queues that it declares."""
        return tuple(Binding(topic, 0, group) for topic, groups in self.groups.items() for group in groups)

    @property
    def listens(self) -> tuple[str, ...]:
        """The control addresses that it listens at."""
        if self.role == "producer":
            return (*map(call_address, self.groups), producer_address(self.name))
        return (*map(status_address, self.groups), group_address(self.name))

    @property
    def publishes(self) -> tuple[str, ...]:
        """The addresses that it publishes to."""
        if self.role == "producer":
            named = dict.fromkeys(group for groups in self.groups.values() for group in groups)
            return (
                *map(topic_address, self.groups),
                *map(status_address, self.groups),
                *map(group_address, named),
                producer_address(self.name),
            )
        return (
            *map(call_address, self.groups),
            *map(producer_address, self.peers),
            group_address(self.name),
        )

    def uses(self, site: Site) -> bool:
        """Whether it connects to the site."""
        return self.sites is None or site.name in {one.name for one in self.sites}


def peers_of(topics: Iterable[str], producers: Sequence[Client]) -> tuple[str, ...]:
    """The producers of any of these topics."""
    wanted = set(topics)
    return tuple(one.name for one in producers if wanted & one.groups.keys())
