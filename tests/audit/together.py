"""All journals that one run of Spark judges together: planning takes longer than judging thousands of rows.

Every client and topic has its own name, so that they are independent and a difference can be attributed.
"""

from __future__ import annotations

import random
from typing import Any

from reliamsg.checker.journals import Chain
from tests.audit.fleet import Writer, renamed, soup, sum_of
from tests.audit.planted import MORE, PLANTS, chains_of
from tests.chance import examples
from tests.checker import test_random_mutants
from tests.checker.controlled import SCENARIOS
from tests.checker.histories import make
from tests.checker.test_random_mutants import MUTANTS

__all__ = ["SOUND", "all_chains", "of_scenario", "wild"]

SOUPS, HISTORIES = examples(120, full=300), examples(36, full=60)
SOUND = ("lost", "corrupt")
"""Plants whose journals also exist without the plant."""


def spoilt(seed: int) -> list[Chain]:
    """A run as real clients journal it, usually with one error."""
    history = make(seed, size=30, logs=False)
    if seed % 4:
        name = sorted(MUTANTS)[seed % len(MUTANTS)]
        getattr(test_random_mutants, name)(random.Random(seed), history)
    return renamed(history.chains(), f"-{seed}")


def uncut() -> list[Chain]:
    """A group whose only two rows meet where the producer's journal has no cut, after a repetition that has one."""
    producer, group = Writer("producer", "p-uncut"), Writer("group", "g-uncut")
    place: dict[str, Any] = {"epoch": 1, "stream": ("p-uncut", "t-uncut")}
    producer.boot(groups={"t-uncut": ["g-uncut"]}, sites=["dc1"], confirm="all")
    for first, last in ((1, 10), (11, 20)):
        producer.add("enqueued", first, last, digest=sum_of("it", first, last), **place)
        producer.add("confirmed", first, last, site="dc1", **place).add("published", first, last, **place)
    group.boot(topics=["t-uncut"])
    group.add("delivered", 1, 14, digest=sum_of("it", 1, 14), **place)
    group.add("redelivered", 12, 16, digest=sum_of("it", 12, 16), **place)
    group.add("delivered", 17, 20, digest=sum_of("it", 17, 20), **place).add("acknowledged", 1, 20, **place)
    return [producer.add("closed").chain(), group.add("closed").chain()]


def held_back() -> list[Chain]:
    """A group that lost the messages in its inbox, and those that it had only received."""
    producer, group = Writer("producer", "p-heldback"), Writer("group", "g-heldback")
    place: dict[str, Any] = {"epoch": 1, "stream": ("p-heldback", "t-heldback")}
    producer.boot(groups={"t-heldback": ["g-heldback"]}, sites=["dc1", "dc2"], confirm="all")
    producer.add("enqueued", 1, 6, digest=sum_of("held", 1, 6), **place)
    for site in ("dc1", "dc2"):
        producer.add("confirmed", 1, 6, site=site, **place)
    producer.add("published", 1, 6, **place)
    group.boot(topics=["t-heldback"])
    group.add("received", 1, 4, site="dc1", **place).add("received", 2, 5, site="dc2", **place)
    group.add("buffered", 2, 3, site="dc2", **place).add("delivered", 1, 1, **place).add(
        "acknowledged", 1, 1, **place
    )
    return [producer.add("closed").chain(), group.add("closed").chain()]


def wild() -> list[Chain]:
    """Journals in which anything may be wrong, and those of real clients with one error."""
    fleets = [uncut(), held_back()]
    fleets += [soup(seed) for seed in range(SOUPS)]
    fleets += [spoilt(seed) for seed in range(HISTORIES)]
    return [chain for fleet in fleets for chain in fleet]


def of_scenario(name: str) -> list[Chain]:
    """A scenario's journals, with its number appended to all names."""
    return renamed(SCENARIOS[name].chains(), f"-s{list(SCENARIOS).index(name)}")


def all_chains() -> list[Chain]:
    """The random ones, one for every kind of finding, some of these without it, and all scenarios."""
    chains = wild()
    chains += [chain for kind in (*PLANTS, *MORE) for chain in chains_of(kind)]
    chains += [
        chain for kind in SOUND for chain in renamed(chains_of(kind, spoil=lambda run: None), "-sound")
    ]
    chains += [chain for name in SCENARIOS for chain in of_scenario(name)]
    return chains
