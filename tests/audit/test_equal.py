"""Random journals with random corruptions are judged alike by the audit and by the plain checker.

A universe is the journals of a hundred runs. Each run has its own names, which attribute a difference to it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.tasks import MAX_FINDINGS
from reliamsg.checker import Expect, check, check_directory
from reliamsg.checker.journals import collect, merge_copies
from tests.audit.equality import Outcome, by_audit, differences, plain, shared
from tests.audit.generated import Journals, journals
from tests.chance import examples

_RUNS = 100


@dataclass
class Universe:
    """Runs that are judged together, and their options."""

    runs: list[Journals] = field(default_factory=list)
    drained: bool = True
    until_us: int | None = None

    @property
    def expect(self) -> Expect:
        return Expect(drained=self.drained, until_us=self.until_us)

    def plain(self) -> Outcome:
        return plain([chain for run in self.runs for chain in run.chains()], self.expect)

    def by_audit(self, seed: int = 0) -> Outcome:
        chains = [chain for run in self.runs for chain in run.chains()]
        return by_audit(chains, drained=self.drained, until_us=self.until_us, seed=seed)


def universe(seed: int) -> Universe:
    """`_RUNS` runs: some sound, most with up to four changes; one universe in three is judged up to a point in time."""
    rng = random.Random(seed)
    runs = [
        journals(
            rng.getrandbits(32), f"-{number}", clean=rng.random() < 0.4, changes=rng.choice((0, 1, 1, 2, 4))
        )
        for number in range(_RUNS)
    ]
    until_us = None
    if rng.random() < 0.4:
        walls = sorted(row.wall_us for run in runs for _, _, rows in run.clients for row in rows)
        until_us = walls[len(walls) // rng.randint(2, 3)]
    return Universe(runs, drained=rng.random() < 0.8, until_us=until_us)


def _culprit(judged: Universe, found: Sequence[tuple[str, object, object, object]]) -> str:
    """Of the journals in the differences, the smallest that are judged differently alone."""
    text = " ".join(map(repr, found))
    named = [run for run in judged.runs if any(f"{run.tag}{end}" in text for end in "'\" ")]
    named.sort(key=lambda run: sum(len(rows) for _, _, rows in run.clients))
    for run in named[:5]:
        alone = Universe([run], judged.drained, judged.until_us)
        if differ := differences(alone.plain(), alone.by_audit()):
            return f"{run}\nuntil {judged.until_us}, drained {judged.drained}\n" + "\n".join(map(str, differ))
    return f"none of {[run.tag for run in named]} alone: " + "\n".join(map(str, found[:20]))


@settings(
    max_examples=examples(4, full=100),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a smaller universe shows nothing more, and takes as long
    suppress_health_check=list(HealthCheck),
)
@example(seed=5043)  # a boot continues after another one began
@given(seed=st.integers(0, 2**32 - 1))
def test_random_journals_are_judged_alike(seed: int) -> None:
    judged = universe(seed)
    found = differences(judged.plain(), judged.by_audit(seed))
    assert not found, f"universe({seed}):\n{_culprit(judged, found)}"


@given(seed=st.integers(0, 2**32 - 1))
def test_sound_journals_are_complete(seed: int) -> None:
    run = journals(seed, "-x")
    report = check(run.chains(), expect=Expect(drained=True))
    assert report.verdict == "complete", f"{run}\n{report.text()}"


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32 - 1))
def test_segments_have_the_same_content_as_the_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    run = journals(seed, "-x", clean=rng.random() < 0.5)
    target = tmp_path_factory.mktemp("journals")
    run.write(target, rng)
    found = collect(target)
    assert found.problems == []
    assert not differences(
        plain(found.chains, evidence=True), plain(merge_copies(run.chains()), evidence=True)
    )


@pytest.mark.full  # test_evidence.py has some of them
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [4, 1])
def test_verdicts_on_segments_are_equal(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The whole job, clones and missing rows included."""
    made = universe(seed)
    rng = random.Random(seed)
    for run in made.runs[:40]:
        run.write(tmp_path, rng)
    report = check_directory(tmp_path, made.expect)
    verdict = audit(spark, tmp_path, expect=AuditExpect(until_us=made.until_us, drained=made.drained))
    assert verdict["findings_total"] < MAX_FINDINGS, "not all findings are here to be compared"
    by_audit, plainly = shared(verdict), shared(report.as_dict())
    found, others = by_audit.pop("found"), plainly.pop("found")
    differ = [(each, others.get(each), found.get(each)) for each in sorted(found.keys() | others.keys())]
    assert [each for each in differ if each[1] != each[2]] == []
    assert by_audit == plainly
