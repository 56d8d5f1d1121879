"""Both checkers find every kind of finding where it was planted, and nothing else."""

from __future__ import annotations

import re

import pytest

from reliamsg.audit import kinds as of_audit
from reliamsg.checker import Expect, check
from reliamsg.checker import report as of_verify
from tests.audit.equality import EVIDENCE, Outcome, plain
from tests.audit.planted import ELSEWHERE, MORE, PLANTS, Found, chains_of
from tests.audit.together import SOUND

ALL = PLANTS | MORE


def _of(outcome: Outcome, kind: str) -> set[Found]:
    """The findings about one plant's journals, which have its kind appended to their names."""
    found: dict[tuple[str, str, str, str, int], list[tuple[int, int]]] = {}
    tail = f"-{kind}"
    for (each, producer, topic, group, site, epoch, what), ranges in outcome.found.items():
        own = re.search(rf"{re.escape(tail)}( |$)", what) if each == "missing" else not (producer or group)
        if producer.endswith(tail) or group.endswith(tail) or own:
            place = (each, topic.removesuffix(tail), group.removesuffix(tail), site, epoch)
            found.setdefault(place, []).extend(ranges)
    return {(*place, tuple(sorted(ranges))) for place, ranges in found.items()}


ONLY_ASKED = {"ends_early", "mixed_clock", "not_retired", "skewed"}
"""Kinds that are found only if more is asked or said: see test_through.py, test_retired.py and test_offsets.py."""


def test_no_kind_is_left_out() -> None:
    assert set(PLANTS) == set(of_audit.KINDS) - ONLY_ASKED
    from_journals = {k: v for k, v in of_verify.KINDS.items() if k not in ELSEWHERE}
    assert from_journals == of_audit.KINDS
    assert set(of_verify.KINDS) >= ELSEWHERE
    for kind, plant in PLANTS.items():
        others = {found[0] for found in plant.found} - {kind}
        assert bool(others) == bool(plant.companions), kind


@pytest.mark.parametrize("kind", ALL)
def test_the_plain_checker_finds_the_planted_kind(kind: str) -> None:
    report = check(chains_of(kind), expect=Expect(drained=True))
    assert _of(plain(chains_of(kind), evidence=True), kind) == ALL[kind].found, report.text()


@pytest.mark.parametrize("kind", PLANTS)
def test_without_the_plant_all_is_well(kind: str) -> None:
    report = check(chains_of(kind, spoil=lambda run: None), expect=Expect(drained=True))
    assert report.verdict == "complete", report.text()
    assert report.findings == []
    assert report.messages.delivered == {f"g-{kind}": 50}


@pytest.mark.parametrize("kind", ALL)
def test_the_audit_finds_the_planted_kind(kind: str, judged: Outcome) -> None:
    assert _of(judged, kind) == {found for found in ALL[kind].found if found[0] not in EVIDENCE - {"missing"}}


@pytest.mark.parametrize("kind", SOUND)
def test_without_plants_the_audit_finds_nothing(kind: str, judged: Outcome) -> None:
    assert _of(judged, f"{kind}-sound") == set()
    assert judged.counts["delivered", f"g-{kind}-sound"] == 50
