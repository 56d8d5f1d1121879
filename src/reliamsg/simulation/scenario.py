"""What one run is made of, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.config import Quorum, Site
from reliamsg.simulation.faults import FAULTS, ON_THEIR_OWN
from reliamsg.simulation.settings import VALUES, ClientSettings, draw_client, site_settings

__all__ = ["Scenario", "draw"]


@dataclass(frozen=True)
class Scenario:
    """See the fields. Everything follows from `seed`, `messages` and `faults`."""

    seed: int
    messages: int
    faults: tuple[str, ...]
    sites: tuple[Site, ...]
    """Their names and protocols: each client has its own settings of them."""
    producers: Mapping[str, ClientSettings]
    groups: Mapping[str, ClientSettings]
    """Each group's first consumer."""
    standbys: Mapping[str, ClientSettings]
    """By group: its second consumer, with an inbox of its own."""
    topics: tuple[str, ...] = ("orders",)
    created: bool = True
    """The groups' queues and sessions were made before anything was published."""
    keys: bool = False
    publish_s: float = 8.0
    """Publishing takes about so long."""
    faulty_s: float = 15.0
    """Faults end then."""

    @property
    def consumers(self) -> dict[str, ClientSettings]:
        """By name."""
        first = {f"{group}-1": settings for group, settings in self.groups.items()}
        return first | {f"{group}-2": settings for group, settings in self.standbys.items()}

    def topics_of(self, group: str) -> tuple[str, ...]:
        """What a group reads."""
        return self.topics[:1] if self.groups[group]["topics"] == "one" else self.topics

    @property
    def read_topics(self) -> tuple[str, ...]:
        """The topics that some group reads."""
        return tuple(topic for topic in self.topics if any(topic in self.topics_of(g) for g in self.groups))

    def named_by(self, producer: str) -> dict[str, list[str]]:
        """By topic, the groups that a producer names when it is opened first."""
        groups = list(self.groups)
        if self.producers[producer]["groups"] == "some":
            del groups[-1]
        return {topic: [g for g in groups if topic in self.topics_of(g)] for topic in self.read_topics}

    def needed(self, producer: str) -> int:
        """How many sites must have confirmed."""
        confirm = self.producers[producer]["confirm"]
        if confirm == "all":
            return len(self.sites)
        return confirm.k if isinstance(confirm, Quorum) else 1

    @property
    def longest_gap_timeout(self) -> float:
        """Of any consumer."""
        return float(max(settings["gap_timeout"] for settings in self.consumers.values()))

    def drawn(self) -> Iterator[tuple[str, Any]]:
        """Settings and values, for each client and site."""
        for settings in (*self.producers.values(), *self.consumers.values()):
            yield from settings.drawn()

    def described(self) -> str:
        """In a line."""
        sites = ", ".join(f"{site.name} ({site.protocol})" for site in self.sites)
        return (
            f"{self.messages} messages from {', '.join(self.producers)} to {', '.join(self.topics)},"
            f" for {', '.join(self.groups)}{' with standbys' if self.standbys else ''}, over {sites}"
            f"{'; keys' if self.keys else ''}; faults: {', '.join(self.faults) or 'none'}"
        )

    def details(self) -> list[str]:
        """What each client is set to, in lines."""
        lines = []
        for name, client in (*self.producers.items(), *self.consumers.items()):
            lines.append(f"{name}: " + ", ".join(f"{key}={value}" for key, value in client.values.items()))
            for site in client.sites:
                shown = (f"{key}={value}" for key, value in site_settings(site).items() if key != "url")
                lines.append(f"  {site.name}: " + ", ".join(shown))
        return lines


def draw(seed: int, messages: int = 200, faults: Iterable[str] | None = None) -> Scenario:
    """The scenario of a seed. `faults` replaces those that it would have, and changes nothing else."""
    chance = random.Random(f"{seed}/scenario")
    count = chance.choice([1, 2, 2, 2, 2, 3])
    sites = tuple(
        Site(f"dc{number}", f"{chance.choice(VALUES['Site.url'])}://simulated")
        for number in range(1, count + 1)
    )
    topics = ("orders", "bills")[: chance.choice([1, 1, 1, 2])]
    producers = ("p1", "p2")[: chance.choice([1, 1, 1, 2])]
    groups = ("g1", "g2")[: chance.choice([1, 1, 1, 2])]
    created = chance.random() < 0.7
    standbys = chance.choice(VALUES["Consumer.standby"])
    drawn_keys = chance.choice(VALUES["Producer.keys"])
    chosen = _faults(seed, drawn_keys) if faults is None else tuple(faults)
    keys = drawn_keys or "forged" in chosen

    def own(client: str) -> random.Random:
        return random.Random(f"{seed}/settings/{client}")

    sending = {
        name: draw_client(
            own(name), "Producer", sites, {"keys": keys} | ({"release": "consumed"} if standbys else {}), 0
        )
        for name in producers
    }
    plain = any(client["wire"] == "plain" for client in sending.values())
    frame = max(site.max_frame_bytes for client in sending.values() for site in client.sites)
    # To wait for a gap makes sense where every producer holds what is missing.
    waits = all(client["release"] == "consumed" for client in sending.values())

    def reading(name: str, **fixed: Any) -> ClientSettings:
        fixed |= {"standby": name.endswith("-2"), "reads_plain": plain}
        fixed["operator_s"] = own(f"{name}/operator").choice(VALUES["Consumer.operator_s"])
        return draw_client(own(name), "Consumer", sites, fixed, frame)

    first = {
        group: reading(
            f"{group}-1",
            on_gap=own(group).choice(
                [value for value in VALUES["Consumer.on_gap"] if waits or value != "wait"]
            ),
        )
        for group in groups
    }
    second = {
        group: reading(f"{group}-2", on_gap=first[group]["on_gap"], topics=first[group]["topics"])
        for group in groups
        if standbys
    }
    return Scenario(seed, messages, chosen, sites, sending, first, second, topics, created, keys)


def _faults(seed: int, keys: bool) -> tuple[str, ...]:
    """Some of all; in one run of twenty none."""
    chance = random.Random(f"{seed}/faults")
    possible = [name for name in FAULTS if (keys or name != "forged") and name not in ON_THEIR_OWN]
    count = chance.choice([0, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 8, 9, 10, 12, 14, 16, 18, 20])
    chosen = set(chance.sample(possible, min(count, len(possible))))
    if keys:
        chosen.add("forged")
    if count:
        chosen |= {
            name for name, share in ON_THEIR_OWN.items() if random.Random(f"{seed}/{name}").random() < share
        }
    return tuple(name for name in FAULTS if name in chosen)
