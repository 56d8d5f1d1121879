"""Convict every deliberate defect, each for its own reason: ``make mutants``.

One defect at a time is put into a copy of the sources. The catalogue says what has to convict it: the simulator of the
copy, which runs plain seeds until one has a violation of the expected kind that it does not have without the defect; or
a test that is run against the copy, and has to fail in the expected statement, and to pass without the defect. Anything
else convicts nobody: another kind of violation, another failure, a copy that can't be imported, a run without an end.
A defect that no longer fits the sources is reported as such, and the others are tried all the same.

The catalogue may name the seed that convicted a defect last (``BySimulator("lost", seed=7)``). It is tried first, and
convicts by the same rules as any other; where it does not, all seeds are searched. ``--refresh`` has all defects that
the simulator convicts convicted, and writes the seeds into the catalogue.

Prints a line for each defect. Convictions are kept in ``build/mutants/convictions.json``, by what they follow from
(:mod:`tests.mutants.sources`). A later run begins where an earlier one was ended.

Exit status: 0; 1 when a defect was not convicted: either it survived, and a test is missing, or the simulator or its
judge is blind; or it could not be tried, and the catalogue has to follow the sources; 2 for wrong arguments. With
--json the last line is an object: `sources` (a hash), `commit`, `survivors` (the names of all that were not convicted),
and `mutants`, the fields of a :class:`Verdict` each.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.closure import Sources
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import BySimulator, ByTest, DoesNotFit, Mutant
from tests.mutants.sources import entries_of, state_of

__all__ = ["ROOT", "SOURCES", "Copies", "Verdict", "convict"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
BUILD = ROOT / "build" / "mutants"
KEPT = BUILD / "convictions.json"
CATALOGUE = ROOT / "tests" / "mutants" / "catalogue.py"
SEEDS = range(2_000)
TRIAL_S = 300
"""A test that takes longer is given up."""


@dataclass(frozen=True)
class Verdict:
    """What became of one defect."""

    name: str
    breaks: str
    by: str
    """"simulator" or "test"."""
    expected: str
    convicted: bool
    kind: str = ""
    """Of the violation, or the name of the exception that the test ended with."""
    seed: int | None = None
    """The one that convicted it."""
    test: str = ""
    """The one that convicted it."""
    text: str = ""
    """The violation, or the failure; of a survivor of a test, what happened instead."""
    tried: int = 0
    """Seeds, or trials."""
    others: dict[str, int] = field(default_factory=dict)
    """What else was seen, by kind, in how many seeds."""
    untried: str = ""
    """Why it could not be tried at all."""


class Copies:
    """Copies of the sources, each for one defect at a time. They stay where they are, so that most of them is compiled
    only once."""

    def __init__(self, build: Path) -> None:
        self._build = build
        self._idle: list[Path] = []
        self._locks: list[IO[str]] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def having(self, mutant: Mutant) -> Iterator[Path]:
        """A copy with a defect. DoesNotFit if the sources have no place for it."""
        original = SOURCES / "reliamsg" / mutant.file
        if not original.is_file():
            raise DoesNotFit(f"there is no {mutant.file}")
        defective = mutant.applied(original.read_text())
        with self._lock:
            copy = self._idle.pop() if self._idle else self._new()
        file = copy / "reliamsg" / mutant.file
        file.write_text(defective)
        os.utime(file, (next(_TIMES),) * 2)  # by its time Python knows what it has compiled
        try:
            yield copy
        finally:
            shutil.copy2(original, file)
            with self._lock:
                self._idle.append(copy)

    def _new(self) -> Path:
        """The first that no other process has."""
        self._build.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            lock = (self._build / f"copy{number}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            self._locks.append(lock)
            copy = self._build / f"copy{number}"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
            return copy
        raise AssertionError("numbers do not end")


_TIMES = itertools.count(int(time.time()))


def convict(
    mutant: Mutant, copies: Copies, seeds: range = SEEDS, hints: Iterable[int | None] = ()
) -> Verdict:
    """Have a defect convicted. `seeds`: those that the simulator may try. `hints`: seeds to try first, after the one in
    the catalogue. DoesNotFit if the sources have no place for it."""
    with copies.having(mutant) as copy:
        if isinstance(mutant.expected, ByTest):
            return _by_test(mutant, mutant.expected, copy)
        first = dict.fromkeys(seed for seed in (mutant.expected.seed, *hints) if seed is not None)
        ranges = [*(range(seed, seed + 1) for seed in first), seeds]
        return _by_simulator(mutant, mutant.expected, copy, ranges)


# -- by the simulator ---------------------------------------------------------------------------------------


def _by_simulator(mutant: Mutant, expected: BySimulator, copy: Path, ranges: list[range]) -> Verdict:
    tried = 0
    others: dict[str, int] = {}
    for seeds in ranges:
        at = seeds.start
        while at < seeds.stop:
            found = _search(copy, range(at, seeds.stop), expected.kinds)
            tried += found["tried"]
            for kind, times in found["others"].items():
                others[kind] = others.get(kind, 0) + times
            seed, kind = found["seed"], found["kind"]
            if seed is None:
                break
            if _is_sound(seed, kind):
                return Verdict(
                    mutant.name, mutant.breaks, "simulator", str(expected), True, kind, seed, "", found["text"],
                    tried, others,
                )  # fmt: skip
            at = seed + 1
    return Verdict(mutant.name, mutant.breaks, "simulator", str(expected), False, tried=tried, others=others)


@functools.cache
def _is_sound(seed: int, kind: str) -> bool:
    """Whether a seed has no such violation without any defect."""
    return _search(SOURCES, range(seed, seed + 1), (kind,))["seed"] is None


def _search(sources: Path, seeds: range, kinds: tuple[str, ...]) -> dict[str, Any]:
    done = _python(sources, "tests.mutants.search", f"{seeds.start}:{seeds.stop}", *kinds, limit=None)
    if done is None or not done:
        return {"tried": 0, "seed": None, "kind": "", "text": "", "others": {"did not run": 1}}
    return done


# -- by a test ----------------------------------------------------------------------------------------------


def _by_test(mutant: Mutant, expected: ByTest, copy: Path) -> Verdict:
    found = _trial(copy, expected.test)
    kind, test, text = "", "", ""
    for failure in found["failures"]:
        if failure["error"] == expected.error and expected.statement in failure["statement"]:
            kind, test, text = failure["error"], failure["test"], failure["statement"]
            break
    else:
        text = f"{found['ran']} ran; " + "; ".join(
            f"{failure['error']} in {failure['statement']}" for failure in found["failures"]
        )
    convicted = bool(kind) and _passes(expected.test)
    if kind and not convicted:
        kind, text = "", "it does not pass without the defect"
    sources = Sources(ROOT)
    outside = set(found.get("opened", ())) - sources.closure(entries_of(mutant, sources, ROOT))
    if convicted and outside:
        convicted, kind, text = False, "", f"its hash does not cover {', '.join(sorted(outside))}"
    return Verdict(mutant.name, mutant.breaks, "test", str(expected), convicted, kind, None, test, text, 1)


_LOCKS: dict[str, threading.Lock] = {}
_PASSED: dict[str, bool] = {}


def pass_together(tests: Iterable[str]) -> None:
    """Have tests run without any defect, all in one process, since its start takes longer than most of them. Those that
    pass need not be run again; any other one is run alone when it is needed."""
    wanted = sorted(set(tests) - _PASSED.keys())
    if len(wanted) > 1:
        passed = _trial(SOURCES, *wanted)["passed"]
        _PASSED.update((test, True) for test in wanted if _is_among(f"tests/{test}", passed))


def _is_among(test: str, passed: dict[str, bool]) -> bool:
    """Whether a test passed, with all its parameters if it is named without them."""
    found = [good for name, good in passed.items() if name == test or name.startswith(f"{test}[")]
    return bool(found) and all(found)


def _passes(test: str) -> bool:
    """Whether a test passes without any defect."""
    with _LOCKS.setdefault(test, threading.Lock()):
        if test not in _PASSED:
            found = _trial(SOURCES, test)
            _PASSED[test] = found["status"] == 0 and found["ran"] > 0
        return _PASSED[test]


def _trial(sources: Path, *tests: str) -> dict[str, Any]:
    done = _python(
        sources, "tests.mutants.trial", *(f"tests/{test}" for test in tests), limit=len(tests) * TRIAL_S
    )
    if not done or Path(done["product"]) != (sources / "reliamsg").resolve():
        return {"status": -1, "ran": 0, "failures": [], "passed": {}}
    return done


def _environment(sources: Path) -> dict[str, str]:
    """With everything compiled once, also where the environment forbids Python to write beside the sources."""
    own = {"PYTHONPATH": str(sources.resolve()), "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
    return {**{name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}, **own}


def _python(sources: Path, *arguments: str, limit: float | None) -> dict[str, Any] | None:
    """The last line that a module prints, from JSON; None if it does not get that far within `limit` seconds."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=_environment(sources),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return None
    with contextlib.suppress(ValueError):
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return None


# -- all of them --------------------------------------------------------------------------------------------


class Convictions:
    """Those of earlier runs, by what they follow from."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept = self._read()
        self._sources = Sources(ROOT)

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return found

    def find(self, mutant: Mutant) -> Verdict | None:
        """The conviction of a defect, if nothing has changed since."""
        kept = self._kept.get(mutant.name)
        return (
            Verdict(**kept["verdict"]) if kept is not None and kept["state"] == self._state(mutant) else None
        )

    def hint(self, mutant: Mutant) -> int | None:
        """The seed that convicted it last, in whatever state."""
        seed: int | None = self._kept.get(mutant.name, {}).get("verdict", {}).get("seed")
        return seed

    def keep(self, mutant: Mutant, verdict: Verdict) -> None:
        """Remember a conviction."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._kept = self._read()  # another run may have added some
            self._kept[mutant.name] = {"state": self._state(mutant), "verdict": asdict(verdict)}
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self._kept, indent=1))
            new.replace(self._file)

    def _state(self, mutant: Mutant) -> str:
        return state_of(mutant, self._sources, ROOT)


def digest(path: Path) -> str:
    """Of a file, or of all sources below a directory."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    total = hashlib.sha256()
    for file in files:
        if not file.is_file() or "__pycache__" in file.parts:
            continue
        total.update(f"{file.relative_to(ROOT)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def convict_all(
    mutants: Iterable[Mutant], seeds: range, jobs: int, kept: Convictions
) -> Iterator[tuple[Mutant, Verdict]]:
    """All of them, `jobs` side by side, in the order in which they are done."""
    copies = Copies(BUILD)
    with ThreadPoolExecutor(jobs) as pool:
        begun = {
            pool.submit(convict, mutant, copies, seeds, [kept.hint(mutant)]): mutant for mutant in mutants
        }
        for done in as_completed(begun):
            mutant = begun[done]
            try:
                yield mutant, done.result()
            except DoesNotFit as error:
                yield mutant, _untried(mutant, f"does not fit: {error}")
            except Exception as error:  # noqa: BLE001  (else the rest would be tried, and nobody would hear of it)
                yield mutant, _untried(mutant, f"could not be tried: {error!r}")


def refreshed(catalogue: str, seeds: Mapping[str, int]) -> str:
    """The text of the catalogue with the seeds that convict defects, by name."""
    lines = catalogue.splitlines(keepends=True)
    for node in sorted(_calls(ast.parse(catalogue), "Mutant"), key=lambda call: call.lineno, reverse=True):
        name = node.args[0]
        (expected,) = _calls(node.args[5], "BySimulator") or (None,)
        seed = seeds.get(str(name.value)) if isinstance(name, ast.Constant) else None
        if expected is None or seed is None:
            continue
        kinds = [json.dumps(kind.value) for kind in expected.args if isinstance(kind, ast.Constant)]
        assert expected.end_lineno is not None
        assert expected.end_col_offset is not None
        before = lines[expected.lineno - 1][: expected.col_offset]
        after = lines[expected.end_lineno - 1][expected.end_col_offset :]
        call = f"BySimulator({', '.join(kinds)}, seed={seed})"
        lines[expected.lineno - 1 : expected.end_lineno] = [f"{before}{call}{after}"]
    return "".join(lines)


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


def _refresh(verdicts: Iterable[Verdict]) -> None:
    """Write the seeds that convict into the catalogue."""
    known = {m.name: m.expected.seed for m in MUTANTS if isinstance(m.expected, BySimulator)}
    found = {each.name: each.seed for each in verdicts if each.convicted and each.seed is not None}
    changed = {name: seed for name, seed in found.items() if known[name] != seed}
    CATALOGUE.write_text(refreshed(CATALOGUE.read_text(), changed))
    print(f"the catalogue has {len(changed)} other seeds: {', '.join(changed) or 'none'}")


def _untried(mutant: Mutant, why: str) -> Verdict:
    return Verdict(mutant.name, mutant.breaks, _by(mutant), str(mutant.expected), False, untried=why)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these defects, also separated by commas"
    )
    parser.add_argument("--by", choices=["simulator", "test"], help="those that this has to convict")
    parser.add_argument("--seeds", default=f"{SEEDS.start}:{SEEDS.stop}", help="from A, up to B without it")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--again", action="store_true", help="also those that are convicted already")
    parser.add_argument(
        "--refresh", action="store_true", help="those by the simulator; write their seeds into the catalogue"
    )
    parser.add_argument("--list", action="store_true", help="what there is, and what has to convict it")
    parser.add_argument(
        "--markdown", action="store_true", help="end with the table of docs/reference/evidence.md"
    )
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    options = parser.parse_args()
    wanted = {name for names in options.only for name in names.split(",") if name}
    if unknown := wanted - {mutant.name for mutant in MUTANTS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    by = "simulator" if options.refresh else options.by
    mutants = [
        mutant for mutant in MUTANTS if (not wanted or mutant.name in wanted) and by in (None, _by(mutant))
    ]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:40} {_by(mutant):10} {mutant.expected}")
        return 0
    first, last = map(int, options.seeds.split(":"))
    verdicts = _run(mutants, range(first, last), options.jobs, options.again)
    survivors = [verdict.name for verdict in verdicts if not verdict.convicted]
    print(summary(verdicts))
    if options.refresh:
        _refresh(verdicts)
    if options.markdown:
        print(_markdown(verdicts))
    if options.json:
        told = [asdict(verdict) for verdict in sorted(verdicts, key=lambda each: each.name)]
        print(
            json.dumps(
                {"sources": digest(SOURCES), "commit": _commit(), "survivors": survivors, "mutants": told}
            )
        )
    return 1 if survivors else 0


def _run(mutants: list[Mutant], seeds: range, jobs: int, again: bool) -> list[Verdict]:
    kept = Convictions(KEPT)
    verdicts = []
    left = []
    for mutant in mutants:
        verdict = None if again else kept.find(mutant)
        if verdict is None:
            left.append(mutant)
        else:
            verdicts.append(verdict)
            print(_line(verdict), "(before)", flush=True)
    pass_together(mutant.expected.test for mutant in left if isinstance(mutant.expected, ByTest))
    for mutant, verdict in convict_all(left, seeds, jobs, kept):
        verdicts.append(verdict)
        if verdict.convicted:
            kept.keep(mutant, verdict)
        print(_line(verdict), flush=True)
    return verdicts


def summary(verdicts: Iterable[Verdict]) -> str:
    """How many there are, and the names of those that were not convicted."""
    verdicts = list(verdicts)
    survived = [verdict.name for verdict in verdicts if not (verdict.convicted or verdict.untried)]
    untried = [verdict.name for verdict in verdicts if verdict.untried]
    told = f"{len(verdicts)} defects, {len(survived)} survived{': ' if survived else ''}{', '.join(survived)}"
    return f"{told}; {len(untried)} not tried: {', '.join(untried)}" if untried else told


def _by(mutant: Mutant) -> str:
    return "simulator" if isinstance(mutant.expected, BySimulator) else "test"


def _line(verdict: Verdict) -> str:
    if verdict.untried:
        told = f"NOT TRIED: it {verdict.untried}"
    elif not verdict.convicted:
        seen = ", ".join(f"{times} × {kind}" for kind, times in verdict.others.items()) or verdict.text
        told = f"SURVIVED {verdict.tried} tried; expected {verdict.expected}; seen: {seen or 'nothing'}"
    elif verdict.by == "simulator":
        told = f"{verdict.kind} in seed {verdict.seed}, {verdict.tried} tried"
    else:
        told = f"{verdict.kind} in {verdict.test}: {verdict.text}"
    return f"{verdict.name:40} {told}"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _markdown(verdicts: Iterable[Verdict]) -> str:
    lines = ["| defect | breaks | detected as | detected by |", "|---|---|---|---|"]
    for verdict in sorted(verdicts, key=lambda each: (each.by, each.breaks, each.name)):
        if not verdict.convicted:
            kind, by = "**not tried**" if verdict.untried else "**survived**", ""
        elif verdict.by == "simulator":
            kind, by = verdict.kind.replace("_", " "), f"seed {verdict.seed}"
        else:
            kind, by = f"`{verdict.text}`".replace("|", "\\|"), f"`{verdict.test}`"
        lines.append(f"| `{verdict.name}` | {verdict.breaks} | {kind} | {by} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
