"""Spark judges spoilt journals as the audit's own functions do in :mod:`tests.spoilt`, in every way to judge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spoilt.catalogue import SINGLES
from tests.spoilt.edits import Case
from tests.spoilt.judging import judged, originals_of, params
from tests.spoilt.reader import Files
from tests.spoilt.ways import WAYS, Way, by_audit

OF_SPARK = [replace(case, full=number % 11 > 0) for number, case in enumerate(SINGLES[::12])]
"""Spark takes seconds for what the others do in milliseconds."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    return originals_of(tmp_path_factory)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", params(OF_SPARK))
def test_it_gives_the_same_verdict(
    case: Case, originals: dict[str, Files], spark: SparkSession, tmp_path: Path
) -> None:
    ways: dict[str, Way] = {"checker": WAYS["checker"], "spark": partial(by_audit, spark=spark)}
    judged(case, originals[case.run], ways, tmp_path)
