"""The dice of faults: a fault's effects are independent of other faults."""

from __future__ import annotations

from collections import defaultdict
from copy import copy

import pytest

from reliamsg.simulation.faults import FAULTS, Chances, Faults
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw

Rolled = dict[tuple[str, str], list[tuple[bool, float]]]
"""By place and fault: the outcome of each opportunity, and the first of its details."""
FROM_TIME_TO_TIME = {
    "broker_down", "broker_empty", "broker_stale", "broker_tail", "session_forgotten", "blocked", "login_refused",
    "cut", "cut_up", "cut_down", "reset", "delay", "clock_jump", "forged", "replayed", "flood", "far_epoch",
}  # fmt: skip
"""Opportunities every quarter of a second, whatever else happens."""


def test_a_fault_has_dice_of_its_own_at_each_place_and_for_the_details_of_each_time() -> None:
    def rolled(names: tuple[str, ...], most_details: int) -> list[tuple[bool, float]]:
        faults, found = Faults(5, names), []
        for _ in range(500):
            for place in ("dc1", "dc2"):
                for name in names:
                    chances = faults.at(place)
                    bites = chances.bites(name)
                    detail = chances.random(name).random() if bites else 0.0
                    for _ in range(most_details if bites else 0):
                        chances.random(name).random()
                    if (place, name) == ("dc2", "cut"):
                        found.append((bites, detail))
        return found

    alone = rolled(("cut",), 0)
    assert sum(bites for bites, _ in alone) > 3
    assert alone == rolled(("reset", "cut", "delay"), 9)
    assert Faults(5, ["cut"]).at("dc1").bites("reset") is False


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> Rolled:
    """The outcomes of all dice."""
    found: Rolled = defaultdict(list)
    bites = Chances.bites

    def watched(chances: Chances, name: str, times: float = 1.0) -> bool:
        happens = bites(chances, name, times)
        if not chances.over and name in chances.enabled:
            detail = copy(chances.random(name)).random() if happens else 0.0
            found[chances.place, name].append((happens, detail))
        return happens

    monkeypatch.setattr(Chances, "bites", watched)
    return found


@pytest.mark.parametrize("seed", [1, 12, 20])
def test_other_faults_stay_the_same_when_one_is_left_out(seed: int, rolled: Rolled) -> None:
    whole = run(draw(seed, 60))
    with_all = dict(rolled)
    assert len(whole.struck) >= 3, "choose a seed with more faults"
    for left_out in sorted(whole.struck)[:3]:
        rolled.clear()
        run(draw(seed, 60, [fault for fault in whole.scenario.faults if fault != left_out]))
        assert left_out not in {fault for _, fault in rolled}
        for (place, fault), those in with_all.items():
            if fault == left_out:
                continue
            these = rolled.get((place, fault), [])
            most = max(len(these), len(those)) if fault in FROM_TIME_TO_TIME else min(len(these), len(those))
            assert these[:most] == those[:most], (left_out, place, fault)


@pytest.mark.parametrize("seed", [1, 12])
def test_a_fault_that_did_not_happen_can_be_left_out(seed: int) -> None:
    whole = run(draw(seed, 60, FAULTS), keep=True)
    idle = sorted(set(FAULTS) - whole.bit)
    assert idle, "choose a seed of which some fault does not happen"
    for left_out in idle[:3]:
        again = run(draw(seed, 60, [fault for fault in FAULTS if fault != left_out]), keep=True)
        assert again.lines == whole.lines, left_out
