"""What the control plane did is judged by Spark as by the plain checker."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from reliamsg.verify import Chain, check_directory
from tests.audit.equality import by_spark, differences, plain, shared
from tests.audit.fleet import renamed
from tests.audit.generated import segments
from tests.verify.controlled import SCENARIOS


def _chains(name: str) -> list[Chain]:
    number = list(SCENARIOS).index(name)
    return renamed(SCENARIOS[name].chains(), f"-{number}")


@pytest.mark.timeout(600)
def test_scenarios_are_judged_alike(spark: SparkSession) -> None:
    """All of them at once, as one fleet."""
    chains = [chain for name in SCENARIOS for chain in _chains(name)]
    mine, theirs = plain(chains), by_spark(spark, chains)
    assert not differences(mine, theirs)
    assert mine.counts["saved_by_second_site", ""] > 0
    assert mine.sites["dc1"]["lost_after_confirm"] > 0


@pytest.mark.timeout(600)
def test_scenarios_from_segments(spark: SparkSession, tmp_path: Path) -> None:
    """The whole job, with what segments and expectations show."""
    rng = random.Random(7)
    for name in SCENARIOS:
        for chain in _chains(name):
            for segment in segments(chain.role, chain.client, chain.rows, rng):
                path = tmp_path / segment.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(segment.data)
    by_job, plainly = shared(audit(spark, tmp_path)), shared(check_directory(tmp_path).as_dict())
    found, others = by_job.pop("found"), plainly.pop("found")
    differ = [(each, others.get(each), found.get(each)) for each in sorted(found.keys() | others.keys())]
    assert [each for each in differ if each[1] != each[2]] == []
    assert by_job == plainly
