"""A short part of the comparison with the simulation; ``python -m tests.plan.validate`` runs all of it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.plan.sets import QUICK, SETS
from tests.plan.simulation import SiteSetup, World, WorldSetup
from tests.plan.validate import compare, modelled

MESSAGES = 15_000


@pytest.mark.parametrize("name", QUICK)
def test_the_model_agrees_with_the_simulation(name: str) -> None:
    (one,) = (each for each in SETS if each.name == name)
    found = compare(dataclasses.replace(one, messages=MESSAGES))
    assert found.counted > 50
    assert found.hit, found


def test_the_comparison_can_fail() -> None:
    """A third of the rate is noticed."""
    (one,) = (each for each in SETS if each.name == QUICK[0])
    found = compare(dataclasses.replace(one, messages=2 * MESSAGES))
    assert found.hit
    slower = dataclasses.replace(one.world, sites=(SiteSetup(loss=1 / 1500, outage=5),))
    assert not found.low <= modelled(slower).missing * found.accepted <= found.high


def test_sets_are_large_enough() -> None:
    assert len(SETS) >= 30
    assert len({one.seed for one in SETS}) == len({one.name for one in SETS}) == len(SETS)
    for one in SETS:
        fate = modelled(one.world)
        assert one.messages * (fate.missing if one.counts == "missing" else fate.duplicated) >= 100, one.name


def test_the_simulation_loses_nothing_without_faults() -> None:
    result = World(WorldSetup(sites=(SiteSetup(), SiteSetup()), needed=2), 1).run(500)
    assert result.accepted == 500
    assert result.missing == result.duplicated == Counter()
