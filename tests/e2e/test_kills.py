"""A process is killed at each commit of the control plane, and another one continues: nothing is lost, duplicated or
out of order."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.e2e.lives import LIVES, Life, in_a_process, log_of, points_of
from tests.options import Size

pytestmark = pytest.mark.integrations
"""Each of them kills a process at every commit."""


def chosen(points: list[str], rng: random.Random, more: int) -> list[int]:
    """The first and the last pass of each point, and some others."""
    first = {point: at for at, point in reversed(list(enumerate(points)))}
    last = {point: at for at, point in enumerate(points)}
    found = {*first.values(), *last.values()}
    rest = sorted(set(range(len(points))) - found)
    return sorted({*found, *rng.sample(rest, min(more, len(rest)))})


def numbers(seen: Iterable[list[str]], *kinds: str) -> list[int]:
    return [int(number) for kind, number in seen if kind in kinds]


def judge(seen: list[list[str]]) -> None:
    """Accepted messages were delivered once, in order; redeliveries were flagged."""
    unflagged = numbers(seen, "got")
    assert unflagged == sorted(set(unflagged)), "duplicated or out of order, and not flagged"
    delivered = numbers(seen, "got", "again")
    firsts = list(dict.fromkeys(delivered))
    assert firsts == sorted(firsts), "out of order"
    assert set(firsts) <= set(numbers(seen, "try"))
    lost = set(numbers(seen, "accepted")) - set(numbers(seen, "removed")) - set(firsts)
    assert not lost, f"lost: {sorted(lost)}"


@pytest.mark.parametrize("name", LIVES)
def test_a_process_is_killed_at_each_commit(
    name: str, tmp_path: Path, size: Size, seeded: random.Random
) -> None:
    what, expected = LIVES[name]
    whole = tmp_path / "whole"
    whole.mkdir()
    assert in_a_process(whole, what) == 0
    judge(log_of(whole))
    points = points_of(whole)
    assert expected <= set(points)
    print(f"{len(points)} points")
    for at in chosen(points, seeded, size(0, len(points))):
        directory = tmp_path / str(at)
        directory.mkdir()
        assert in_a_process(directory, what, at) == -signal.SIGKILL
        assert points_of(directory)[-1] == points[at]
        assert in_a_process(directory, Life.finish) == 0, f"after {points[at]}, number {at}"
        try:
            judge(log_of(directory))
        except AssertionError as error:
            raise AssertionError(
                f"killed at {points[at]}, number {at}: {error}\n{log_of(directory)}"
            ) from None
