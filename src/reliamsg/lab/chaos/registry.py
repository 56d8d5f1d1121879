"""The registry of scenarios: for each one its facts, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.process import LabError

__all__ = ["Entry", "register", "registered"]

Body = Callable[[Context], None]


@dataclass(frozen=True)
class Entry:
    """A scenario that can be run."""

    scenario: Scenario
    run: Body


_entries: dict[str, Entry] = {}


def register(scenario: Scenario) -> Callable[[Body], Body]:
    """Register the decorated function as the code of `scenario`."""

    def add(run: Body) -> Body:
        if scenario.name in _entries:
            raise LabError(f"there are two scenarios called {scenario.name}")
        _entries[scenario.name] = Entry(scenario, run)
        return run

    return add


def registered() -> list[Entry]:
    """All registered scenarios by their numbers; those without a number come last."""
    return sorted(_entries.values(), key=lambda e: (e.scenario.numbers or (1000,), e.scenario.name))
