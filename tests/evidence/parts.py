"""What the evidence consists of: parts, and the chunks that each is run in.

What decides the outcome of a chunk is in a hash, :attr:`Chunk.covers`: a result counts only while this stays the same.
Where it can be, this is a hash of the modules that the chunk's process runs, without their docstrings and comments
(:mod:`tests.closure`). The documentation is in none of them, since the figures are written into it; ``make lint types
test`` look after it.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.closure import Sources

__all__ = ["PARTS", "ROOT", "Chunk", "Data", "Part", "commit", "hash_of", "modules", "parts", "trees"]

ROOT = Path(__file__).parents[2]
SEEDS = 40_000
SEEDS_AT_ONCE = 500
SEED_MESSAGES = 200
TASK_SEEDS = 10_000
TASK_SEEDS_AT_ONCE = 250
TASK_SEED_MESSAGES = 60
RUNS = 300
RUNS_AT_ONCE = 10
FUZZ_SECONDS = 120
MUTANTS_TOGETHER = 12
Data = dict[str, Any]
Covers = Callable[[Path, Sources], str]
"""A hash of everything below a root that decides an outcome."""


@dataclass(frozen=True)
class Chunk:
    """What is run as a whole or counts as not run."""

    name: str
    """Unique in its part; also the name of a file."""
    command: tuple[str, ...]
    replay: Callable[[Data, str], list[str]]
    """Commands that repeat what failed, from what was read of the output and the output itself."""
    covers: Covers


@dataclass(frozen=True)
class Part:
    """Chunks of one kind."""

    name: str
    title: str
    chunks: tuple[Chunk, ...]
    read: Callable[[str], Data | None]
    """What a chunk's output says; None where it does not say how it ended: then the chunk has failed."""
    summary: Callable[[Sequence[Data]], str]
    """What all chunks together came to, for the table."""
    seconds: float
    """What a chunk takes on two cores, as long as none has been timed."""
    alone: bool = False
    """Needs the machine for itself."""
    together: int = 1
    """How many chunks one process may run, where that takes less time than a process each."""
    join: Callable[[Sequence[Chunk]], tuple[str, ...]] | None = None
    """The command that runs several chunks."""
    split: Callable[[str], Mapping[str, str]] = lambda output: {}
    """The output of such a command, by the names of the chunks that ended."""
    lacking: Callable[[Sequence[Data]], list[str]] = lambda found: []
    """What a part that is done should have met and did not."""
    unavailable: int | None = None
    """The exit status that says that this machine lacks something: nothing was tried, so nothing is recorded."""


def hash_of(root: Path, sources: Iterable[str]) -> str:
    """A hash of these files' names and contents."""
    found = hashlib.sha256()
    for source in sources:
        place = root / source
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.is_file() and not any(
                name == "__pycache__" or name.endswith(".egg-info") for name in file.parts
            ):
                found.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
                found.update(file.read_bytes())
    return found.hexdigest()[:16]


def trees(*sources: str) -> Covers:
    """The contents of files and directories."""
    return lambda root, _: hash_of(root, sources)


def modules(*entries: str, text: bool = False) -> Covers:
    """What these modules run. `text`: docstrings, comments and line numbers count."""
    return lambda _, sources: sources.digest(entries, text=text)


def _fresh(name: str, within: range, count: int, digest: str) -> int:
    """The first of `count` seeds that depend on the sources that decide the outcome: no earlier state has met them, but
    by chance."""
    number = int.from_bytes(hashlib.sha256(f"{name}/{digest}".encode()).digest()[:8], "big")
    return within.start + number % (len(within) - count)


def _last_json(output: str) -> Data | None:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


# -- tests ----------------------------------------------------------------------------------------------------


def _tests(root: Path, sources: Sources) -> Part:
    covers = trees("src", "tests", "examples", "benchmarks", "pyproject.toml", "Makefile", ".ci")

    def chunk(name: str) -> Chunk:
        return Chunk(name, ("make", "--no-print-directory", name), _failed_tests, covers)

    return Part(
        "tests",
        "all tests at full sizes (`make test-full`)",
        (chunk("test-full-most"), chunk("test-full-integrations")),
        _read_tests,
        lambda found: f"{sum(each['passed'] for each in found):,} passed, {_sum(found, 'failed')} failed",
        3_600,
        alone=True,
    )


def _read_tests(output: str) -> Data | None:
    """The numbers of all closing lines of pytest."""
    closing = re.findall(r"^=* ?((?:\d+ [a-z]+,? ?)+) in [\d.]+s", output, re.M)
    if not closing:
        return None
    counted: Counter[str] = Counter()
    for line in closing:
        for number, word in re.findall(r"(\d+) ([a-z]+)", line):
            counted[word] += int(number)
    failed = counted["failed"] + counted["error"] + counted["errors"]
    return {"passed": counted["passed"], "failed": failed, "ok": not failed and bool(counted["passed"])}


def _failed_tests(data: Data, output: str) -> list[str]:
    names = dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M))
    return [f".venv/bin/python -m pytest --full '{name}'" for name in names]


# -- the simulator --------------------------------------------------------------------------------------------


def _seeds(root: Path, sources: Sources) -> Part:
    entry = "tests/evidence/simulate.py"
    return Part(
        "seeds",
        "fresh simulated runs, each with settings and faults of its own",
        _chunks_of_seeds("seeds", entry, SEEDS, SEEDS_AT_ONCE, SEED_MESSAGES)(root, sources),
        lambda output: _read_seeds(output, SEEDS_AT_ONCE, sources.closure([entry]), {"faults", "settings"}),
        _summary_of_seeds,
        120,
        lacking=_never_struck,
    )


def _tasks(root: Path, sources: Sources) -> Part:
    entry = "tests/evidence/simulate_tasks.py"
    return Part(
        "tasks",
        "the same with asyncio applications, whose tasks are cancelled anywhere",
        _chunks_of_seeds("tasks", entry, TASK_SEEDS, TASK_SEEDS_AT_ONCE, TASK_SEED_MESSAGES)(root, sources),
        lambda output: _read_seeds(output, TASK_SEEDS_AT_ONCE, sources.closure([entry]), {"states"}),
        _summary_of_seeds,
        120,
        lacking=_never_cancelled,
    )


def _chunks_of_seeds(
    name: str, entry: str, count: int, at_once: int, messages: int
) -> Callable[[Path, Sources], tuple[Chunk, ...]]:
    """`entry`: the file that is called with seeds and a number of messages."""
    covers, module = modules(entry), entry.removesuffix(".py").replace("/", ".")

    def chunks(root: Path, sources: Sources) -> Iterable[Chunk]:
        first = _fresh(name, range(10**11, 10**12), count, covers(root, sources))
        for at in range(first, first + count, at_once):
            seeds = f"{at}:{at + at_once}"
            command = (sys.executable, "-m", module, seeds, str(messages))
            yield Chunk(seeds.replace(":", "-"), command, _failed_seeds, covers)

    return lambda root, sources: tuple(chunks(root, sources))


def _read_seeds(output: str, count: int, closure: Collection[str], also: Set[str]) -> Data | None:
    """All is well only if the hash covers every source that was used. `also`: keys that have to be there."""
    found = _last_json(output)
    if found is None or not {"seeds", "failing_seeds", "opened"} | also <= found.keys():
        return None
    outside = sorted(set(found.pop("opened")) - set(closure))
    ok = not found["failing_seeds"] and not outside and found["seeds"] == count
    return {**found, "outside": outside, "ok": ok}


def _summary_of_seeds(found: Sequence[Data]) -> str:
    failed = sum(len(each["failing_seeds"]) for each in found)
    return f"{_sum(found, 'seeds')} runs, {failed} with violations"


def _failed_seeds(data: Data, output: str) -> list[str]:
    return list(data.get("replay", ()))


def _never_struck(found: Sequence[Data]) -> list[str]:
    """Faults and values that no run of any chunk had."""
    times: Counter[str] = Counter()
    for each in found:
        times.update({f"the fault {name}": count for name, count in each["faults"].items()})
        for setting, values in each["settings"].items():
            times.update({f"{setting}={value}": count for value, count in values.items()})
    return sorted(name for name, count in times.items() if not count)


def _never_cancelled(found: Sequence[Data]) -> list[str]:
    """States in which no task of any chunk was cancelled."""
    times: Counter[str] = Counter()
    for each in found:
        times.update(each["states"])
    return sorted(name for name, count in times.items() if not count)


# -- deliberate defects, fuzzing, the model -------------------------------------------------------------------


def _mutants(root: Path, sources: Sources) -> Part:
    from tests.mutants.catalogue import MUTANTS
    from tests.mutants.mutant import Mutant
    from tests.mutants.sources import state_of

    def command(*names: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "tests.mutants.run", "--only", *names, "--jobs", "1", "--json")

    def chunk(mutant: Mutant) -> Chunk:
        return Chunk(
            mutant.name,
            command(mutant.name),
            lambda data, output: [f"python -m tests.mutants.run --only {mutant.name}"],
            lambda root, sources: state_of(mutant, sources, root),
        )

    return Part(
        "mutants",
        "deliberate defects (`make mutants`)",
        tuple(chunk(mutant) for mutant in MUTANTS),
        _read_mutant,
        lambda found: f"{len(found)} defects, {sum(not each['ok'] for each in found)} survived",
        15,
        together=MUTANTS_TOGETHER,
        join=lambda chunks: command(*(chunk.name for chunk in chunks)),
        split=_split_mutants,
    )


def _split_mutants(output: str) -> dict[str, str]:
    """The verdicts of several defects, each as if its defect had been run alone."""
    found = _last_json(output) or {}
    return {
        mutant["name"]: json.dumps(
            {
                "survivors": [name for name in found["survivors"] if name == mutant["name"]],
                "mutants": [mutant],
            }
        )
        for mutant in found.get("mutants", ())
    }


def _read_mutant(output: str) -> Data | None:
    found = _last_json(output)
    if found is None or len(found.get("mutants", ())) != 1:
        return None
    return {"mutant": found["mutants"][0], "ok": not found.get("survivors", True)}


def _fuzz(root: Path, sources: Sources) -> Part:
    from tests.fuzz.all import TARGETS

    def covers(name: str) -> Covers:
        """The module that has the target, what it runs, and how. Coverage is counted by lines, so all text counts."""
        module = TARGETS[name].run.__module__.replace(".", "/") + ".py"
        found = (f"tests/fuzz/found/{name}",) if (root / "tests" / "fuzz" / "found" / name).is_dir() else ()
        tools = trees("tests/fuzz/run.py", "tests/fuzz/all.py", *found)
        return lambda root, sources: sources.digest([module], text=True, more=tools(root, sources))

    def chunk(name: str) -> Chunk:
        command = ("env", f"FUZZ_SECONDS={FUZZ_SECONDS}", sys.executable, "-m", "tests.fuzz.run", name)
        return Chunk(
            name,
            command,
            lambda data, output: [f"FUZZ_SECONDS={FUZZ_SECONDS} python -m tests.fuzz.run {name}"],
            covers(name),
        )

    return Part(
        "fuzz",
        f"{FUZZ_SECONDS // 60} minutes of fuzzing for each decoder (`make fuzz`)",
        tuple(chunk(name) for name in TARGETS),
        _read_fuzz,
        lambda found: (
            f"{len(found)} targets, {_sum(found, 'inputs')} inputs,"
            f" {sum(not each['ok'] for each in found)} with defects"
        ),
        FUZZ_SECONDS + 10,
    )


def _read_fuzz(output: str) -> Data | None:
    """The line of a target: its name, inputs, places covered, size of the corpus, result."""
    found = re.search(r"^\S+ +(\d+) +(\d+|-) +\d+  (ok|DEFECT.*)$", output, re.M)
    return None if found is None else {"inputs": int(found[1]), "ok": found[3] == "ok" and int(found[1]) > 0}


def _model(root: Path, sources: Sources) -> Part:
    command = (sys.executable, "-m", "tests.model.check")
    return Part(
        "model",
        "the protocol's model (`make model`)",
        (Chunk("all-cases", command, lambda data, output: ["make model"], trees("tests/model")),),
        _read_model,
        lambda found: f"{_sum(found, 'cases')} cases, {_sum(found, 'surprises')} not as expected",
        600,
    )


def _read_model(output: str) -> Data | None:
    lines = [line for line in output.splitlines() if re.search(r"\d +[\d.]+(  <- not as expected)?$", line)]
    surprises = sum(line.endswith("not as expected") for line in lines)
    return {"cases": len(lines), "surprises": surprises, "ok": not surprises} if lines else None


# -- real processes -------------------------------------------------------------------------------------------


def _campaign(root: Path, sources: Sources) -> Part:
    covers = modules("tests/evidence/campaign.py")
    first = _fresh("campaign", range(2**28, 2**32), RUNS, covers(root, sources))
    chunks = []
    for at in range(first, first + RUNS, RUNS_AT_ONCE):
        seeds = f"{at}:{at + RUNS_AT_ONCE}"
        command = (sys.executable, "-m", "tests.evidence.campaign", seeds, "build/evidence/campaign-files")
        chunks.append(Chunk(seeds.replace(":", "-"), command, _failed_runs, covers))
    return Part(
        "campaign",
        "random faults at real brokers and processes (`reliamsg lab chaos campaign --black-box`)",
        tuple(chunks),
        _read_campaign,
        lambda found: (
            f"{_sum(found, 'runs')} runs, {_sum(found, 'messages')} messages: {_sum(found, 'lost')} lost,"
            f" {_sum(found, 'duplicates')} duplicated, {_sum(found, 'out_of_order')} out of order;"
            f" {sum(len(each['not_ok']) for each in found)} runs not ok, {_sum(found, 'idle')} with nothing at stake"
        ),
        200,
        unavailable=2,
    )


def _read_campaign(output: str) -> Data | None:
    found = _last_json(output)
    wanted = {"runs", "messages", "lost", "duplicates", "out_of_order", "idle", "not_ok", "missing"}
    if found is None or not wanted <= found.keys():
        return None
    return {**found, "ok": not found["not_ok"] and not found["missing"] and found["runs"] == RUNS_AT_ONCE}


def _failed_runs(data: Data, output: str) -> list[str]:
    return [
        f"reliamsg lab chaos campaign --black-box --runs 1 --seed {seed}" for seed in data.get("not_ok", ())
    ]


def _sum(found: Iterable[Mapping[str, Any]], name: str) -> str:
    return f"{sum(each[name] for each in found):,}"


PARTS: Mapping[str, Callable[[Path, Sources], Part]] = {
    "tests": _tests, "seeds": _seeds, "tasks": _tasks, "mutants": _mutants, "fuzz": _fuzz, "model": _model,
    "campaign": _campaign,
}  # fmt: skip


def parts(names: Iterable[str] = (), root: Path = ROOT) -> list[Part]:
    """Those parts, or all."""
    wanted = list(names) or list(PARTS)
    sources = Sources(root)
    return [PARTS[name](root, sources) for name in wanted]


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out, and whether the work tree differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with changes" if changed else "")
