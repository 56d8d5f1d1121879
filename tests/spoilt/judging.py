"""Has spoilt journals judged, and judges the judgements."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.audit.equality import shared
from tests.spoilt.edits import Case
from tests.spoilt.effects import Effect, Expected, expected_of, told
from tests.spoilt.originals import finished, running
from tests.spoilt.reader import Files, Journals
from tests.spoilt.ways import Rules, Verdict, Way

__all__ = ["judged", "originals_of", "params"]

NOW_US = 2**60


def originals_of(factory: pytest.TempPathFactory) -> dict[str, Files]:
    """The journals of both runs, by name."""
    return {"finished": finished(factory.mktemp("finished")), "running": running(factory.mktemp("running"))}


def params(cases: Iterable[Case]) -> list[Any]:
    return [pytest.param(case, id=case.name, marks=[pytest.mark.full] if case.full else []) for case in cases]


def judged(case: Case, original: Files, ways: Mapping[str, Way], place: Path) -> Effect:
    """Judge a case in some ways, and compare each verdict with the expected one, and all with the first."""
    journals = Journals(original)
    effect = case.mutate(journals)
    drained = case.run == "finished" if effect.drained is None else effect.drained
    rules = Rules(drained, effect.until_us, effect.now_us or NOW_US)
    dice = random.Random(case.name)
    expected = expected_of(journals, effect, rules.now_us, rules.drained)
    verdicts = {name: way(journals, rules, place / name, dice) for name, way in ways.items()}
    for name, verdict in verdicts.items():
        check(name, verdict, effect, expected)
    first = shared(next(iter(verdicts.values())))
    for name, verdict in verdicts.items():
        own = shared(verdict)
        differ = {key: (first[key], value) for key, value in own.items() if value != first[key]}
        assert not differ, f"{name} and {next(iter(verdicts))} do not say the same: {differ}"
    return effect


def check(way: str, verdict: Verdict, effect: Effect, expected: Expected) -> None:
    """Compare everything in a verdict with what it has to be."""
    evidence = verdict["evidence"]
    matched("missing", evidence["missing"], effect.missing)
    matched("broken", evidence["broken"], effect.broken + effect.unclosed)
    found = told(verdict)
    for (kind, group), messages in effect.about.items():
        reported = {each for each in found if each[:2] == (kind, group)}
        assert messages <= {message for _, _, _, message in reported}, f"{way}: {kind} at {group!r}"
        assert {message[:2] for *_, message in reported} == {message[:2] for message in messages}
        found -= reported
    if not effect.unjudged:
        assert found == expected.found, f"{way}: {sorted(found ^ expected.found)}"
    got: dict[str, Any] = {
        "verdict": verdict["verdict"], "streams": verdict["streams"], "messages": verdict["messages"],
        "sites": verdict["sites"], "duplicated": evidence["duplicated"],
    }  # fmt: skip
    wanted = {name: getattr(expected, name) for name in got}
    differ = {name: (value, wanted[name]) for name, value in got.items() if value != wanted[name]}
    assert not differ, f"{way}: got, and wanted: {differ}"


def matched(what: str, lines: list[str], expected: list[str]) -> None:
    """Each line has one of these parts, and each part is in a line of its own."""
    left = list(lines)
    for part in expected:
        found = [line for line in left if part in line]
        assert found, f"{what}: nothing says {part!r}: {lines}"
        left.remove(found[0])
    assert not left, f"{what}: what else is said: {left}"
