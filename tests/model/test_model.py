"""The smallest of the model's cases; ``make model`` checks all of them."""

from __future__ import annotations

import pytest

from tests.model.check import CASES, Case, run

QUICKEST = "a gap passed and not declared"
QUICK = (QUICKEST, "gaps that expire early", "numbers used again after a restore")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case.name == QUICKEST else pytest.mark.integrations)
        for case in CASES
        if case.name in QUICK
    ],
    ids=lambda case: case.name,
)
def test_quick_cases(case: Case) -> None:
    assert run(case).broken == case.breaks


@pytest.mark.full
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in QUICK], ids=lambda case: case.name
)
def test_all_other_cases(case: Case) -> None:
    assert run(case).broken == case.breaks
