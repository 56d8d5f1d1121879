"""Simulations of applications: planted bugs are convicted, and correct applications raise no false alarm."""

from __future__ import annotations

import pytest

from tests.options import Size
from tests.testing.planted import (
    CORRECT,
    FEW,
    MESSAGES,
    PLANTED,
    SEEDS,
    Planted,
    Program,
    false_alarm,
    first_seed,
)

SEEDS_EACH = 12
"""Of each correct application."""


def test_there_are_bugs_of_at_least_twenty_kinds() -> None:
    assert len({planted.test for planted in PLANTED}) >= 20
    assert all(planted.test.__doc__ for planted in PLANTED)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.test.__name__)
def test_a_planted_bug_is_convicted(planted: Planted) -> None:
    """The seed that is known to do it comes first; after a change of the simulator, another one may be needed."""
    seed, found = first_seed(planted, [planted.seed, *range(SEEDS)], FEW)
    assert seed is not None, f"not convicted by {SEEDS} seeds; found {dict(found)}"


@pytest.mark.parametrize("test", CORRECT[1::3], ids=lambda test: test.__name__)
def test_a_correct_application_is_acquitted(test: Program) -> None:
    assert not false_alarm(test, range(1), FEW)


@pytest.mark.integrations
@pytest.mark.parametrize("test", CORRECT, ids=lambda test: test.__name__)
def test_correct_applications_raise_no_false_alarm(test: Program, size: Size) -> None:
    begin = 1_000_000 * CORRECT.index(test)
    assert not false_alarm(test, range(begin, begin + size(SEEDS_EACH, 2_000)))


@pytest.mark.integrations
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.test.__name__)
def test_a_planted_bug_is_convicted_within_the_seeds_that_are_promised(planted: Planted) -> None:
    seed, found = first_seed(planted, range(SEEDS), MESSAGES)
    assert seed is not None, f"not convicted; found {dict(found)}"
