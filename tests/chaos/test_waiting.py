"""Waits end at their bound, in seconds of an idle machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg.lab.chaos.waiting import STALL_S, Machine, MachineClock, Unmet, contention, wait_for


class World(Machine):
    """A clock that only sleeping advances, on a machine that `tasks` share, and that may stall."""

    def __init__(self, tasks: float = 1.0, stall: float = 0.0) -> None:
        self.time, self.tasks, self.stall = 100.0, tasks, stall

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + self.stall
        self.stall = 0.0

    def contention(self) -> float:
        return self.tasks

    def clock(self) -> MachineClock:
        return MachineClock(self)


def gave_up_after(world: World, seconds: float, condition: Callable[[], object] = lambda: False) -> float:
    began = world.time
    with pytest.raises(Unmet, match="hens have teeth"):
        wait_for(condition, "hens have teeth", seconds, 0.1, world.clock())
    return world.time - began


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_on_an_idle_machine_a_wait_ends_one_stall_after_the_promised_time(seconds: float) -> None:
    assert gave_up_after(World(), seconds) == pytest.approx(seconds + STALL_S, abs=0.3)


def test_a_second_counts_as_its_share() -> None:
    assert gave_up_after(World(tasks=4.0), 5.0) == pytest.approx(4 * (5.0 + STALL_S), abs=1.0)


def test_a_pause_of_the_machine_does_not_count() -> None:
    assert gave_up_after(World(stall=1_000.0), 5.0) == pytest.approx(1_000.0 + 5.0 + STALL_S, abs=0.3)


def test_the_time_of_the_condition_counts() -> None:
    """A slow condition is not a pause of the machine."""
    world = World()

    def slow() -> None:
        world.time += 3.0

    assert gave_up_after(world, 5.0, slow) == pytest.approx(5.0 + STALL_S, abs=3.2)


def test_the_value_of_the_condition_is_returned() -> None:
    world = World()
    assert wait_for(lambda: world.time > 105.0 and "yes", "it comes", 5.0, 0.1, world.clock()) == "yes"


@pytest.mark.parametrize(("running", "blocked", "expected"), [(1, 0, 1.0), (0, 0, 1.0), (9_999, 9, 8.0)])
def test_contention(tmp_path: Path, running: int, blocked: int, expected: float) -> None:
    stat = tmp_path / "stat"
    stat.write_text(f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked {blocked}\n")
    assert contention(stat) == expected


def test_a_machine_that_does_not_report_contention_is_idle(tmp_path: Path) -> None:
    assert contention(tmp_path / "none") == 1.0
