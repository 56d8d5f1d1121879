"""The composition of one run, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.policy import Quorum
from reliamsg.simulation.faults import FAMILIES, FAULTS, SHARES
from reliamsg.simulation.settings import HOLDS, VALUES, ClientSettings, choose, draw_client, site_settings

__all__ = ["Scenario", "draw"]


@dataclass(frozen=True)
class Scenario:
    """See the fields. Everything is determined by `seed`, `messages` and `faults`."""

    seed: int
    messages: int
    faults: tuple[str, ...]
    sites: tuple[Site, ...]
    """Their names and protocols: each client has settings of its own for them."""
    producers: Mapping[str, ClientSettings]
    groups: Mapping[str, ClientSettings]
    """Each group's first consumer."""
    standbys: Mapping[str, ClientSettings]
    """Each group's second consumer, with an inbox of its own, if there is one."""
    brokers: Mapping[str, ClientSettings]
    """By site, what its broker is like."""
    topics: tuple[str, ...] = ("orders",)
    created: bool = True
    """The groups' queues and sessions were created before anything was published."""
    keys: bool = False
    publish_s: float = 8.0
    """How long publishing takes, approximately."""
    faulty_s: float = 15.0
    """When faults end, after the start."""

    @property
    def consumers(self) -> dict[str, ClientSettings]:
        """By name."""
        first = {f"{group}-1": settings for group, settings in self.groups.items()}
        return first | {f"{group}-2": settings for group, settings in self.standbys.items()}

    def topics_of(self, group: str) -> tuple[str, ...]:
        """The topics that a group reads."""
        return self.topics[:1] if self.groups[group]["topics"] == "one" else self.topics

    @property
    def read_topics(self) -> tuple[str, ...]:
        """The topics that any group reads."""
        return tuple(topic for topic in self.topics if any(topic in self.topics_of(g) for g in self.groups))

    def named_by(self, producer: str) -> dict[str, list[str]]:
        """By topic, the groups that a producer names when it is first opened."""
        groups = list(self.groups)
        if self.producers[producer]["groups"] == "some":
            del groups[-1]
        return {topic: [g for g in groups if topic in self.topics_of(g)] for topic in self.read_topics}

    def needed(self, producer: str) -> int:
        """How many sites must confirm a producer's messages."""
        confirm = self.producers[producer]["confirm"]
        if confirm == "all":
            return len(self.sites)
        return confirm.k if isinstance(confirm, Quorum) else 1

    def key_ring(self) -> KeyRing | None:
        """The clients' key ring, if they sign."""
        return KeyRing({"k": b"the key of simulated worlds"}, sign_with="k") if self.keys else None

    @property
    def longest_gap_timeout(self) -> float:
        """Of all consumers."""
        return float(max(settings["gap_timeout"] for settings in self.consumers.values()))

    def drawn(self) -> Iterator[tuple[str, Any]]:
        """The settings and values that were drawn, for each client and site."""
        for settings in (*self.producers.values(), *self.consumers.values(), *self.brokers.values()):
            yield from settings.drawn()

    def described(self) -> str:
        """A line about it."""
        sites = ", ".join(f"{site.name} ({site.protocol})" for site in self.sites)
        return (
            f"{self.messages} messages from {', '.join(self.producers)} to {', '.join(self.topics)},"
            f" for {', '.join(self.groups)}{' with standbys' if self.standbys else ''}, over {sites}"
            f"{'; keys' if self.keys else ''}; faults: {', '.join(self.faults) or 'none'}"
        )

    def details(self) -> list[str]:
        """Each client's settings, in lines."""
        lines = []
        for name, client in (*self.producers.items(), *self.consumers.items(), *self.brokers.items()):
            lines.append(f"{name}: " + ", ".join(f"{key}={value}" for key, value in client.values.items()))
            for site in client.sites:
                shown = (f"{key}={value}" for key, value in site_settings(site).items() if key != "url")
                lines.append(f"  {site.name}: " + ", ".join(shown))
        return lines


SITES = (1, 2, 2, 2, 2, 3)
TOPICS = (("orders",), ("orders",), ("orders",), ("orders", "bills"))
PRODUCERS = (("p1",), ("p1",), ("p1",), ("p1", "p2"))
GROUPS = (("g1",), ("g1",), ("g1",), ("g1", "g2"))
CREATED = (True,) * 7 + (False,) * 3
SHARES_OF_FAULTS = (
    0.0, 0.04, 0.06, 0.06, 0.08, 0.08, 0.1, 0.1, 0.12, 0.12, 0.14, 0.16, 0.16, 0.18, 0.2, 0.24, 0.28, 0.32, 0.36, 0.4,
)  # fmt: skip
"""Which share of all faults a run has, approximately. One in twenty has none."""
FAMILIES_DRAWN = ("stores", "stores", *FAMILIES) + ("",) * 3 * (2 + len(FAMILIES))
"""One run in four has faults of one family only."""
SHARE_OF_FAMILY = 0.75
"""Which share of its family a run has whose faults are of one family."""


def draw(seed: int, messages: int = 200, faults: Iterable[str] | None = None) -> Scenario:
    """The scenario of a seed. `faults` replaces those that it would have, and changes nothing else, except that forging
    requires keys."""

    def own(what: str, values: Sequence[Any]) -> Any:
        return choose(seed, what, values)

    sites = tuple(
        Site(
            name, f"{own(f'{name}/url', VALUES['Site.url'])}://simulated",
            queue_type=own(f"{name}/queue_type", VALUES["Site.queue_type"]),
        )
        for number in range(1, own("sites", SITES) + 1)
        for name in [f"dc{number}"]
    )  # fmt: skip
    topics, producers = own("topics", TOPICS), own("producers", PRODUCERS)
    groups = own("groups", GROUPS)
    standbys = own("standby", VALUES["Consumer.standby"])
    drawn_keys = own("keys", VALUES["Producer.keys"])
    chosen = _faults(seed, drawn_keys) if faults is None else tuple(faults)
    keys = drawn_keys or "forged" in chosen

    sending = {
        name: draw_client(
            seed, name, "Producer", sites, {"keys": keys} | ({"release": "consumed"} if standbys else {}), 0
        )
        for name in producers
    }
    plain = any(client["wire"] == "plain" for client in sending.values())
    frame = max(site.max_frame_bytes for client in sending.values() for site in client.sites)
    # Waiting at a gap makes sense only if every producer keeps the missing messages.
    waits = all(client["release"] == "consumed" for client in sending.values())
    gaps = [value for value in VALUES["Consumer.on_gap"] if waits or value != "wait"]

    holds = _has_hole(seed)

    def reading(name: str, group: str) -> ClientSettings:
        fixed = {
            "standby": name != f"{group}-1", "reads_plain": plain, "on_gap": own(f"{group}/on_gap", gaps),
            "topics": own(f"{group}/topics", VALUES["Consumer.topics"]),
            "begin": own(f"{group}/begin", VALUES["Consumer.begin"]),
        }  # fmt: skip
        if holds:
            fixed |= {key.split(".")[1]: own(f"{name}/hole/{key}", HOLDS[key]) for key in HOLDS}
        return draw_client(seed, name, "Consumer", sites, fixed, frame)

    first = {group: reading(f"{group}-1", group) for group in groups}
    second = {group: reading(f"{group}-2", group) for group in groups if standbys}
    brokers = {site.name: draw_client(seed, site.name, "Broker", (), {}, 0) for site in sites}
    return Scenario(
        seed, messages, chosen, sites, sending, first, second, brokers, topics, own("created", CREATED), keys
    )


def _has_hole(seed: int) -> bool:
    return random.Random(f"{seed}/faults/hole").random() < SHARES["hole"]


def _faults(seed: int, keys: bool) -> tuple[str, ...]:
    """Some of all faults, each drawn with dice of its own."""
    share: float = choose(seed, "faults", SHARES_OF_FAULTS)
    family: tuple[str, ...] | None = FAMILIES.get(choose(seed, "family", FAMILIES_DRAWN))

    def drawn(name: str) -> bool:
        if name == "forged":
            return keys
        roll = random.Random(f"{seed}/faults/{name}").random()
        if family is not None:
            return name in family and roll < SHARE_OF_FAMILY
        return share > 0 and roll < SHARES.get(name, share)

    return tuple(name for name in FAULTS if drawn(name))
