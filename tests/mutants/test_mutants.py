"""The catalogue of defects fits the sources; and the simulator convicts those that it finds soon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.run import SOURCES, convict

QUICK = (
    "number-used-twice",
    "one-site-counts-as-all",
    "hole-passed",
    "failed-message-overtaken",
    "repeat-not-flagged",
    "acknowledged-before-commit",
    "gap-skipped-without-a-word",
)
"""Convicted within a few seeds."""
QUICK_SEEDS = range(40)


def test_there_are_many_in_many_files() -> None:
    assert len(MUTANTS) >= 44
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.file for mutant in MUTANTS}) >= 15
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} >= {"core", "store", "sending", "receiving"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fits_its_file(mutant: Mutant) -> None:
    before = (SOURCES / "reliamsg" / mutant.file).read_text()
    after = mutant.applied(before)
    assert after != before
    compile(after, mutant.file, "exec")
    assert re.match(r"P\d(, P\d)*: ", mutant.breaks)


@pytest.mark.parametrize("name", QUICK)
def test_the_simulator_convicts(name: str, tmp_path: Path) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    verdict = convict(mutant, QUICK_SEEDS, tmp_path)
    assert verdict.seed is not None, f"{name} survived {verdict.tried} seeds"
