"""Reduces a failing run: fewer faults, fewer messages, the same kind of violation."""

from __future__ import annotations

from collections.abc import Callable

from reliamsg.simulation.runner import Outcome, run
from reliamsg.simulation.scenario import draw

__all__ = ["shrink"]

MOST_RUNS = 150


def shrink(outcome: Outcome, on_step: Callable[[str], object] = lambda line: None) -> Outcome:
    """A smaller run with a violation of a kind that `outcome` has. `on_step` is called with a line for each step."""
    wanted, runs = outcome.kinds, 0

    def smaller(found: Outcome, what: str) -> bool:
        nonlocal outcome, runs
        runs += 1
        if not found.kinds & wanted:
            return False
        outcome = found
        on_step(f"still {', '.join(sorted(found.kinds & wanted))} {what}")
        return True

    again = True
    while again and runs < MOST_RUNS:
        again = False
        for fault in outcome.scenario.faults:
            seed, messages = outcome.scenario.seed, outcome.scenario.messages
            others = tuple(name for name in outcome.scenario.faults if name != fault)
            again |= smaller(run(draw(seed, messages, others)), f"without {fault}")
        seed, messages = outcome.scenario.seed, outcome.scenario.messages
        for fewer in (messages // 4, messages // 2, messages * 3 // 4, messages - 1):
            if 0 < fewer < messages and smaller(
                run(draw(seed, fewer, outcome.scenario.faults)), f"with {fewer} messages"
            ):
                again = True
                break
    return run(outcome.scenario, keep=True)
