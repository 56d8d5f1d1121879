"""What one run is made of, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from reliamsg.config import Confirm, Quorum, Site
from reliamsg.simulation.faults import FAULTS, ON_THEIR_OWN

__all__ = ["Scenario", "draw"]


@dataclass(frozen=True)
class Scenario:
    """See the fields. Everything else follows from `seed`."""

    seed: int
    messages: int
    faults: tuple[str, ...]
    sites: tuple[Site, ...]
    producers: tuple[str, ...] = ("p1",)
    topics: tuple[str, ...] = ("orders",)
    groups: tuple[str, ...] = ("g1",)
    created: bool = True
    """The groups' queues and sessions were made before anything was published."""
    standbys: bool = False
    """Each group has a second consumer, with an inbox of its own."""
    release: Literal["confirmed", "consumed"] = "confirmed"
    confirm: Confirm = "all"
    keys: bool = False
    wire: Literal["batch", "plain"] = "batch"
    on_gap: Literal["accept", "skip", "wait", "hold"] = "accept"
    gap_timeout: float = 5.0
    takeover_timeout: float = 16.0
    hello_timeout: float = 1.0
    retain_seconds: float = 300.0
    max_bytes: int = 1024 * 1024
    max_inbox_bytes: int = 1024 * 1024
    publish_s: float = 8.0
    """Publishing takes about so long."""
    faulty_s: float = 15.0
    """Faults end then."""

    @property
    def named_groups(self) -> dict[str, tuple[str, ...]]:
        """By topic."""
        return dict.fromkeys(self.topics, self.groups)

    @property
    def needed(self) -> int:
        """How many sites must have confirmed."""
        if self.confirm == "all":
            return len(self.sites)
        return self.confirm.k if isinstance(self.confirm, Quorum) else 1

    def without(self, fault: str) -> Scenario:
        """The same without one fault."""
        return replace(self, faults=tuple(name for name in self.faults if name != fault))

    def described(self) -> str:
        """In a line."""
        sites = ", ".join(f"{site.name} ({site.protocol})" for site in self.sites)
        return (
            f"{self.messages} messages from {', '.join(self.producers)} to {', '.join(self.topics)},"
            f" for {', '.join(self.groups)}{' with standbys' if self.standbys else ''}, over {sites};"
            f" confirm {self.confirm}, release {self.release}, wire {self.wire}{', keys' if self.keys else ''},"
            f" on_gap {self.on_gap}, gap timeout {self.gap_timeout} s; faults: {', '.join(self.faults) or 'none'}"
        )


def draw(seed: int, messages: int = 200, faults: Iterable[str] | None = None) -> Scenario:
    """The scenario of a seed. `faults` replaces those that it would have."""
    chance = random.Random(f"{seed}/scenario")
    sites = tuple(_site(chance, number) for number in range(1, chance.choice([1, 2, 2, 2, 2, 3]) + 1))
    fixed = None if faults is None else tuple(faults)
    standbys = chance.random() < 0.12
    consumed = standbys or chance.random() < 0.5
    confirm: Confirm = chance.choice(["all", "all", "any", "all-active", Quorum(min(2, len(sites)))])
    gaps: list[Literal["accept", "skip", "wait", "hold"]] = (
        ["wait", "hold", "hold", "accept", "skip"] if consumed else ["accept", "skip", "hold"]
    )
    keys = chance.random() < 0.2 or "forged" in (fixed or ())
    plain = chance.random() < 0.1
    chosen = _faults(chance, keys, seed) if fixed is None else fixed
    on_gap = chance.choice(gaps)
    return Scenario(
        seed, messages, chosen, sites,
        producers=("p1", "p2")[: chance.choice([1, 1, 1, 2])],
        topics=("orders", "bills")[: chance.choice([1, 1, 1, 2])],
        groups=("g1", "g2")[: chance.choice([1, 1, 1, 2])],
        created=chance.random() < 0.7,
        standbys=standbys,
        release="consumed" if consumed else "confirmed",
        confirm=confirm,
        keys=keys,
        wire="plain" if plain else "batch",
        on_gap=on_gap,
        gap_timeout=chance.choice([2.0, 5.0, 10.0]),
        takeover_timeout=chance.choice([8.0, 16.0]),
        hello_timeout=chance.choice([0.0, 1.0, 1.0]),
        retain_seconds=chance.choice([0.0, 1.0, 300.0, 300.0]),
        max_bytes=chance.choice([8 * 1024, 1024 * 1024, 1024 * 1024]),
        max_inbox_bytes=chance.choice([4 * 1024, 1024 * 1024, 1024 * 1024]),
    )  # fmt: skip


def _site(chance: random.Random, number: int) -> Site:
    scheme = chance.choice(["amqp", "mqtt"])
    return Site(
        f"dc{number}", f"{scheme}://simulated", confirm_timeout=chance.choice([1.0, 3.0]),
        window_batches=chance.choice([2, 8, 64]), prefetch=chance.choice([2, 8, 64]),
        mqtt_version="5" if scheme == "mqtt" else "auto",
    )  # fmt: skip


def _faults(chance: random.Random, keys: bool, seed: int) -> tuple[str, ...]:
    """Some of all; in one run of twenty none."""
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
