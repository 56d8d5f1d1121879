"""Every judge gives every spoilt journal the one verdict that it deserves, in every way to judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.spoilt.catalogue import CASES
from tests.spoilt.edits import Case
from tests.spoilt.judging import judged, originals_of, params
from tests.spoilt.reader import Files, Journals
from tests.spoilt.ways import ways_for

pytestmark = pytest.mark.integrations


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return originals_of(tmp_path_factory)


@pytest.mark.parametrize("case", params(CASES))
def test_every_judge_gives_the_verdict_that_it_deserves(
    case: Case, originals: dict[str, Files], tmp_path: Path, full: bool
) -> None:
    judged(case, originals[case.run], ways_for(case.name, full), tmp_path)


def test_there_are_many_and_not_all_are_unknown(originals: dict[str, Files], full: bool) -> None:
    """At either size, by what the mutators expect."""
    cases = [case for case in CASES if full or not case.full]
    verdicts = Counter(case.mutate(Journals(originals[case.run])).verdict for case in cases)
    assert verdicts.total() >= 200
    assert verdicts["unknown"] <= 0.6 * verdicts.total(), verdicts
    assert min(verdicts[each] for each in ("complete", "lost", "violated")) >= 20, verdicts
    assert len({case.name for case in CASES}) == len(CASES)
