"""The catalogue of defects fits the sources and the tests; and what is convicted soon is, for the expected reason."""

from __future__ import annotations

import ast
import json
import re
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reliamsg.message import MessageId
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.verdicts import KINDS
from tests.mutants import run, search
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import BySimulator, ByTest, Mutant
from tests.mutants.run import ROOT, SOURCES, Copies, convict

QUICK = (
    "number-used-twice",
    "window-full-drops",
    "prev-last-ignored",
    "columns-not-counted",
)
"""Convicted within seconds, two by the simulator and two by tests."""
QUICK_SEEDS = range(40)
UNTRIED = {"stopped", "internal_error"}
"""Kinds that any exception leads to: they say nothing about what is wrong."""


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_there_are_many_in_many_files() -> None:
    assert len(MUTANTS) >= 90
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.file for mutant in MUTANTS}) >= 30
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} >= {
        "protocol", "store", "producer", "consumer", "transport", "wire",
    }  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fits_its_file_and_names_what_convicts_it(mutant: Mutant) -> None:
    before = (SOURCES / "reliamsg" / mutant.file).read_text()
    after = mutant.applied(before)
    assert after != before
    compile(after, mutant.file, "exec")
    assert re.match(r"P\d(, P\d)*: ", mutant.breaks)
    if isinstance(mutant.expected, BySimulator):
        kinds = {kind.partition("/")[0] for kind in mutant.expected.kinds}
        assert kinds <= set(KINDS) - UNTRIED
        assert "checker" not in mutant.expected.kinds, "which of the checker's findings?"
        assert kinds
    else:
        assert _exists(mutant.expected), f"{mutant.expected.test}: there is no such test"


def _exists(expected: ByTest) -> bool:
    """Whether there is such a test, which runs at small size, and the statement in its file or in another one of the
    tests."""
    file, *names = expected.test.partition("[")[0].split("::")
    body: list[ast.stmt] = list(_parsed(ROOT / "tests" / file).body)
    for name in names:
        found = [one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name]
        if not found or "pytest.mark.full" in map(ast.unparse, found[0].decorator_list):
            return False
        body = found[0].body
    return bool(names) and bool(expected.statement) and _flat(ROOT / "tests", expected.statement)


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def _sources(directory: Path) -> str:
    files = (file for file in sorted(directory.rglob("*.py")) if file.parent.name != "mutants")
    return " ".join(" ".join(file.read_text().split()) for file in files)


def _flat(directory: Path, statement: str) -> bool:
    return statement in _sources(directory)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return Copies(tmp_path_factory.mktemp("copies"))


@pytest.mark.integrations
@pytest.mark.parametrize("name", QUICK)
def test_it_is_convicted(name: str, copies: Copies) -> None:
    verdict = convict(named(name), copies, QUICK_SEEDS)
    assert verdict.convicted, f"{name} survived: {verdict}"


@pytest.mark.integrations
@pytest.mark.parametrize("name", ["number-used-twice", "prev-last-ignored"])
def test_what_does_not_start_is_not_convicted(name: str, copies: Copies) -> None:
    mutant = named(name)
    old = "from __future__ import annotations\n"
    broken = Mutant(mutant.name, mutant.file, old, f"{old}raise RuntimeError\n", "", mutant.expected)
    verdict = convict(broken, copies, range(2))
    assert not verdict.convicted


@pytest.mark.integrations
def test_another_kind_of_violation_convicts_nobody(copies: Copies) -> None:
    mutant = named("number-used-twice")
    other = Mutant(
        mutant.name, mutant.file, mutant.old, mutant.new, mutant.breaks, BySimulator("two_readers")
    )
    verdict = convict(other, copies, range(1))
    assert not verdict.convicted
    assert verdict.others
    assert verdict.tried == 1


@pytest.mark.parametrize(
    ("statement", "error"),
    [("assert something_else", "AssertionError"), ("assert (found.kind, found.last)", "TypeError")],
)
def test_a_test_that_fails_otherwise_convicts_nobody(statement: str, error: str, copies: Copies) -> None:
    mutant = named("prev-last-ignored")
    assert isinstance(mutant.expected, ByTest)
    expected = ByTest(mutant.expected.test, statement, error)
    other = Mutant(mutant.name, mutant.file, mutant.old, mutant.new, "", expected)
    assert not convict(other, copies).convicted


def test_what_does_not_fit_is_reported_and_the_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = named("prev-last-ignored")
    table = (
        replace(good, name="of-another-time", old="    return what_is_no_longer_there\n"),
        replace(good, name="twice", old="return"),
        replace(good, name="of-another-file", file="protocol/no_longer_there.py"),
        good,
    )
    monkeypatch.setattr(run, "MUTANTS", table)
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "KEPT", tmp_path / "convictions.json")
    monkeypatch.setattr(sys, "argv", ["run", "--jobs", "1", "--json"])
    assert run.main() == 1
    *lines, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert {mutant["name"]: mutant["convicted"] for mutant in told["mutants"]} == {
        "of-another-time": False, "twice": False, "of-another-file": False, good.name: True,
    }  # fmt: skip
    unfit = {line.split()[0] for line in lines if "does not fit: " in line}
    assert unfit == set(told["survivors"]) == {"of-another-time", "twice", "of-another-file"}
    assert lines[-1].startswith("4 defects, 0 survived; 3 not tried: ")


def test_an_error_of_one_trial_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(mutant: Mutant, *_: object) -> None:
        raise OSError(f"no room for {mutant.name}")

    monkeypatch.setattr(run, "MUTANTS", (named("number-used-twice"), named("window-full-drops")))
    monkeypatch.setattr(run, "BUILD", tmp_path)
    monkeypatch.setattr(run, "KEPT", tmp_path / "convictions.json")
    monkeypatch.setattr(run, "convict", fails)
    monkeypatch.setattr(sys, "argv", ["run", "--jobs", "1"])
    assert run.main() == 1
    assert "2 not tried: number-used-twice, window-full-drops" in capsys.readouterr().out


def test_the_search_ends_with_an_expected_violation_however_it_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = ("g", MessageId("p", 1, "t", 0, 1))
    for kind, arguments in {"lost": ("lost", "t 1 at g", about), "phantom": ("phantom", "t 2")}.items():

        def ran(seed: int, arguments: Any = arguments) -> SimpleNamespace:
            oracle = Oracle.__new__(Oracle)
            oracle.violations, oracle._scheduler = [], SimpleNamespace(now=1.0)  # type: ignore[assignment]
            oracle.violate("stalled", "before it")
            oracle.violate(*arguments)
            raise AssertionError("the run goes on")

        with monkeypatch.context() as patched:
            patched.setattr(Oracle, "violate", Oracle.violate)
            patched.setattr(search, "run", ran)
            patched.setattr(search, "draw", lambda seed, messages: seed)
            patched.setattr(signal, "signal", lambda *_: None)
            patched.setattr(signal, "setitimer", lambda *_: None)
            found = search.search(range(3), frozenset({kind}))
        assert found == {"tried": 1, "seed": 0, "kind": kind, "text": arguments[1], "others": {}}


CATALOGUE = """MUTANTS = (
    Mutant(
        "a",
        "f.py",
        "old",
        "new",
        "P1: BySimulator(",
        BySimulator("lost"),  # why
    ),
    Mutant("b", "f.py", "old", "new", "P2: b", ByTest("t.py::test", "assert x")),
    Mutant(
        "c", "f.py", "old", "new", "P3: c",
        BySimulator(
            "lost",
            "checker/lost",
            seed=4,
        ),
    ),
    Mutant("d", "f.py", "old", "new", "P4: d", BySimulator("lost", seed=9)),
)
"""


def test_hints_are_written_into_the_catalogue() -> None:
    found = run.refreshed(CATALOGUE, {"a": 3, "b": 4, "c": 5, "gone": 6})
    assert found == CATALOGUE.replace('BySimulator("lost"),', 'BySimulator("lost", seed=3),').replace(
        'BySimulator(\n            "lost",\n            "checker/lost",\n            seed=4,\n        ),',
        'BySimulator("lost", "checker/lost", seed=5),',
    )
    assert run.refreshed(CATALOGUE, {}) == CATALOGUE
    text = run.CATALOGUE.read_text()
    seeds = {m.name: 77 for m in MUTANTS if isinstance(m.expected, BySimulator)}
    assert run.refreshed(text, seeds).count("seed=77)") == len(seeds)


def test_every_defect_for_the_simulator_has_a_hint() -> None:
    """Or else each run would search for it: ``python -m tests.mutants.run --refresh``."""
    assert not [m.name for m in MUTANTS if isinstance(m.expected, BySimulator) and m.expected.seed is None]


@pytest.mark.integrations
def test_a_hint_is_tried_first_and_is_only_a_hint(copies: Copies) -> None:
    mutant = named("hole-passed")  # which not every run meets
    assert isinstance(mutant.expected, BySimulator)

    def tried(seed: int | None, seeds: range) -> tuple[bool, int | None, int]:
        hinted = replace(mutant, expected=BySimulator(*mutant.expected.kinds, seed=seed))  # type: ignore[union-attr]
        verdict = convict(hinted, copies, seeds)
        return verdict.convicted, verdict.seed, verdict.tried

    first = tried(None, QUICK_SEEDS)
    convicting = first[1]
    assert convicting is not None
    assert tried(convicting, range(0)) == (True, convicting, 1)
    other = BySimulator("two_readers", seed=convicting)
    assert not convict(replace(mutant, expected=other), copies, range(0)).convicted, (
        "for its own reason alone"
    )
    wrong = next(seed for seed in range(1000, 1100) if not tried(seed, range(0))[0])
    assert tried(wrong, QUICK_SEEDS) == (first[0], first[1], first[2] + 1), "then all are searched"
