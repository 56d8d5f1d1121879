"""Applications with tasks that are cancelled anywhere, in simulated worlds with all kinds of faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from reliamsg.aio.commits import Commits
from reliamsg.simulation.runner import Outcome
from tests.aio.simulated import STATES, replay, simulate
from tests.children import one_output_whatever_the_hash_seed
from tests.options import Size

PARTS = 4
INTEGRATIONS = range(1, PARTS)
"""Parts for which ``make test`` has no time."""
EACH = 25


@pytest.mark.parametrize(
    "part",
    [pytest.param(n, marks=[pytest.mark.integrations] if n in INTEGRATIONS else []) for n in range(PARTS)],
)
def test_no_cancellation_breaks_a_promise(part: int, size: Size) -> None:
    each = size(EACH, 500)
    failed: list[Outcome] = []
    reached = Counter[str]()
    for seed in range(part * each, (part + 1) * each):
        outcome = simulate(seed)
        reached += Counter(outcome.reached)
        if outcome.violations:
            failed.append(outcome)
    for outcome in failed:
        print(replay(outcome))
        print(*outcome.violations[:5], outcome.error, sep="\n")
    assert not failed
    assert part or set(STATES) <= set(reached), "tasks are cancelled in all of them"


def test_without_faults_all_is_well() -> None:
    for seed in range(5):
        outcome = simulate(seed, faults=())
        assert not outcome.violations, outcome.violations


def test_a_call_that_waits_in_the_event_loop_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_durable(self: Commits, commit: Any) -> None:
        commit.wait_durable(None)

    monkeypatch.setattr(Commits, "wait_durable", wait_durable)
    assert "internal_error" in simulate(0).kinds


@pytest.mark.integrations
def test_a_seed_makes_one_history_whatever_the_hash_seed() -> None:
    code = (
        "from tests.aio.simulated import simulate\n"
        "for seed in range(4):\n"
        "    print(*simulate(seed, keep=True).lines, sep='\\n')\n"
    )
    one_output_whatever_the_hash_seed(code)
