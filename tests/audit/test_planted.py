"""Every kind of finding is found where it was planted, by both checkers, and nothing else is."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit import kinds as of_audit
from reliamsg.verify import check
from reliamsg.verify import report as of_verify
from tests.audit.equality import EVIDENCE, Outcome, by_spark, differences, plain
from tests.audit.planted import ELSEWHERE, PLANTS, Found, chains_of


def _of(outcome: Outcome, kind: str) -> set[Found]:
    """What is said of one plant's journals, which have its kind behind their names."""
    found: dict[tuple[str, str, str, str, int], list[tuple[int, int]]] = {}
    tail = f"-{kind}"
    for (each, producer, topic, group, site, epoch, _), ranges in outcome.found.items():
        if producer.endswith(tail) or group.endswith(tail) or not (producer or group):
            place = (each, topic.removesuffix(tail), group.removesuffix(tail), site, epoch)
            found.setdefault(place, []).extend(ranges)
    return {(*place, tuple(sorted(ranges))) for place, ranges in found.items()}


def test_no_kind_is_left_out() -> None:
    assert set(PLANTS) == set(of_audit.KINDS)
    from_journals = {k: v for k, v in of_verify.KINDS.items() if k not in ELSEWHERE}
    assert from_journals == of_audit.KINDS
    assert set(of_verify.KINDS) >= ELSEWHERE
    for kind, plant in PLANTS.items():
        others = {found[0] for found in plant.found} - {kind}
        assert bool(others) == bool(plant.companions), kind


@pytest.mark.parametrize("kind", PLANTS)
def test_the_plain_checker_finds_what_was_planted(kind: str) -> None:
    report = check(chains_of(kind))
    assert _of(plain(chains_of(kind), evidence=True), kind) == PLANTS[kind].found, report.text()


@pytest.mark.parametrize("kind", PLANTS)
def test_without_the_plant_all_is_well(kind: str) -> None:
    report = check(chains_of(kind, spoil=lambda run: None))
    assert report.verdict == "complete", report.text()
    assert report.findings == []
    assert report.messages.delivered == {f"g-{kind}": 50}


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> Outcome:
    """All plants' journals together, judged by Spark at once."""
    return by_spark(spark, [chain for kind in PLANTS for chain in chains_of(kind)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", PLANTS)
def test_spark_finds_what_was_planted(kind: str, judged: Outcome) -> None:
    assert _of(judged, kind) == {found for found in PLANTS[kind].found if found[0] not in EVIDENCE}


def test_spark_counts_what_the_plain_checker_counts(judged: Outcome) -> None:
    assert not differences(plain([chain for kind in PLANTS for chain in chains_of(kind)]), judged)


@pytest.mark.timeout(300)
def test_without_plants_spark_finds_nothing(spark: SparkSession) -> None:
    found = by_spark(
        spark, [c for kind in ("lost", "corrupt") for c in chains_of(kind, spoil=lambda run: None)]
    )
    assert (found.found, found.verdict()) == ({}, "complete")
    assert found.counts == {
        ("enqueued", ""): 100,
        ("delivered", "g-lost"): 50,
        ("delivered", "g-corrupt"): 50,
    }
