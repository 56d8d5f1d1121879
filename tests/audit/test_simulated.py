"""The journals of simulated runs with all kinds of faults are judged alike by Spark and by the plain checker.

One audit judges many runs, each unchanged and corrupted; the run's tag is appended to clients, topics and groups, which
attributes findings to it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.tasks import MAX_FINDINGS
from reliamsg.audit.verdict import worst
from reliamsg.checker import Expect, check_directory
from reliamsg.simulation.clock import START_S, START_WALL_US
from reliamsg.simulation.journals import chains_of
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw
from tests.audit.equality import shared
from tests.audit.generated import Journals, spoil
from tests.options import Size

MESSAGES = 60
RUNS = 40
"""The runs in one audit, each unchanged and corrupted."""
IN_THE_MIDDLE_S = 4.0
"""By then a run has published about half."""


def simulated(seeds: range, place: Path, tmp: Path) -> dict[str, str]:
    """Simulate runs, and write the journals of each below `place`, unchanged and corrupted, in a directory named after
    its tag. Returns the corruptions by tag."""
    spoilt: dict[str, str] = {}
    for seed in seeds:
        rng = random.Random(seed)
        files = tmp / f"files-{seed}"
        files.mkdir()
        run(draw(seed, MESSAGES), directory=files)
        for tag, changes in ((f"-{seed}", 0), (f"-{seed}x", rng.choice((1, 1, 2, 4)))):
            made = Journals(tag, [(chain.role, chain.client, chain.rows) for chain in chains_of(files, tag)])
            for _ in range(changes):
                spoil(rng, made)
            made.write(place / tag, rng)
            spoilt[tag] = ", ".join(made.changes) or "nothing"
    return spoilt


def by_run(verdict: dict[str, Any]) -> dict[str, str]:
    """The verdict about each run that has any finding."""
    kinds: dict[str, set[str]] = {}
    for each in verdict["findings"]:
        tags = set(re.findall(r"\b(?:p|g|orders|bills)[12]?(-\d+x?)\b", str(each)))
        assert len(tags) == 1, each
        kinds.setdefault(tags.pop(), set()).add(each["kind"])
    return {tag: worst(found) for tag, found in kinds.items()}


@pytest.mark.integrations
@pytest.mark.timeout(3000)
def test_all_are_judged_as_by_the_plain_checker(spark: SparkSession, tmp_path: Path, size: Size) -> None:
    verdicts: set[str] = set()
    for batch in range(size(1, 6)):
        place = tmp_path / f"journals-{batch}"
        seeds = range(batch * RUNS, (batch + 1) * RUNS)
        spoilt = simulated(seeds, place, tmp_path)
        middle_us = START_WALL_US + int((START_S + IN_THE_MIDDLE_S) * 1e6)
        rules = Expect(drained=batch % 3 != 1, until_us=middle_us if batch % 3 == 2 else None)
        verdict = audit(spark, place, expect=AuditExpect(drained=rules.drained, until_us=rules.until_us))
        assert verdict["findings_total"] < MAX_FINDINGS, "not all findings are here to be compared"
        theirs, plainly = shared(verdict), shared(check_directory(place, rules).as_dict())
        found, others = theirs.pop("found"), plainly.pop("found")
        differ = [(key, others.get(key), found.get(key)) for key in sorted(found.keys() | others.keys())]
        assert [each for each in differ if each[1] != each[2]] == [], f"seeds {seeds}, spoilt: {spoilt}"
        assert theirs == plainly, f"seeds {seeds}"
        runs = by_run(verdict)
        for tag, what in spoilt.items():
            alone = check_directory(place / tag, rules).verdict
            assert runs.get(tag, "complete") == alone, f"run {tag}, spoilt: {what}"
            verdicts.add(alone)
    assert verdicts == {"violated", "lost", "unknown", "complete"}
