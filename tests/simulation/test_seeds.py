"""The product in simulated worlds: hundreds of seeds, each judged by the simulator and by the plain checker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from reliamsg.simulation.faults import FAULTS
from reliamsg.simulation.runner import Outcome, run, run_many
from reliamsg.simulation.scenario import draw

PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_promise(part: int, size: Callable[[int, int], int]) -> None:
    each = size(300, 3_000) // PARTS
    failed: list[Outcome] = []

    def told(outcome: Outcome) -> None:
        if outcome.violations:
            failed.append(outcome)

    run_many(range(part * each, (part + 1) * each), 200, told=told)
    for outcome in failed:
        print(f"reliamsg simulate --seed {outcome.scenario.seed} --trace")
        print(*outcome.violations[:5], outcome.error, sep="\n")
    assert not failed


def test_without_faults_all_is_well_and_soon_over() -> None:
    for seed in range(5):
        outcome = run(draw(seed, 60, ()))
        assert not outcome.violations, outcome.violations
        assert not outcome.struck


def test_a_seed_makes_one_history_whatever_the_hash_seed() -> None:
    code = (
        "from reliamsg.simulation.runner import run\n"
        "from reliamsg.simulation.scenario import draw\n"
        "for seed in range(6):\n"
        "    print(*run(draw(seed, 60), keep=True).lines, sep='\\n')\n"
    )
    histories = set()
    for hash_seed in ("0", "1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        histories.add(done.stdout)
    assert len(histories) == 1
    assert len(histories.pop().splitlines()) > 200


TAKES = {"two_sessions": ("reset",), "restored": ("crash",)}
"""Faults that can't change anything unless something else happens."""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_strikes(fault: str) -> None:
    struck = 0
    for seed in range(400, 430):
        outcome = run(draw(seed, 40, (fault, *TAKES.get(fault, ()))))
        assert not outcome.violations, (seed, outcome.violations)
        assert set(outcome.struck) <= {fault, *TAKES.get(fault, ())}
        struck += outcome.struck.get(fault, 0)
        if struck:
            return
    pytest.fail(f"{fault} never struck")
