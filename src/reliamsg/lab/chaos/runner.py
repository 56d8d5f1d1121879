"""Running a scenario, and judging what it leaves behind."""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from reliamsg.checker import Report, check_directory
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.scenario import Lacking, Scenario, missing
from reliamsg.lab.chaos.timeline import timeline

__all__ = ["TRIES", "run_scenario"]

TRIES = 3
"""How often a scenario is run at most, until its fault has hit something."""

_MOST_FINDINGS = 10
_REPORTS = ("timeline.svg", "report.txt", "result.json")


def run_scenario(
    scenario: Scenario,
    directory: Path,
    seed: int,
    *,
    messages: int | None = None,
    sites: Sequence[tuple[str, str]] = (),
    keep: bool = False,
    on_event: Callable[[str], object] = lambda text: None,
    judge: Callable[[Result, Path], None] | None = None,
    tries: int = TRIES,
) -> Result:
    """Run `scenario` in `directory`, which must be new or empty, and judge it.

    A run in which all went well but which proves nothing, since its fault hit nothing or did no harm to plain clients
    where that is its point, is repeated with the next seed, at most `tries` runs altogether; the last one counts.

    `seed`: of all chance in it. `messages`: the scenario's own number unless given. `sites`: names and URLs of a
    user's sites in place of brokers of our own. `keep`: keep the clients' files also when all is well; the report and
    the picture stay anyway. `judge`: given the result and the directory with the clients' files, in place of the
    checker. Never raises for what goes wrong in the run: the result says it.
    """
    lacks = _missing(scenario, sites)
    if lacks:
        return Result(scenario, seed, verdict="missing", missing=lacks)
    number = 1
    while True:
        result = _run_once(
            scenario, directory, (seed + number - 1) % 2**32, messages, sites, keep, on_event, judge, number
        )
        if number >= tries or result.missing or not _only_hollow(result):
            return result
        on_event(f"{result.hollow}: repeated")
        shutil.rmtree(directory)
        number += 1


def _only_hollow(result: Result) -> bool:
    """Whether nothing went wrong, and nothing was proven."""
    return bool(result.hollow) and not result.problems and result.verdict in result.expected


def _run_once(
    scenario: Scenario,
    directory: Path,
    seed: int,
    messages: int | None,
    sites: Sequence[tuple[str, str]],
    keep: bool,
    on_event: Callable[[str], object],
    judge: Callable[[Result, Path], None] | None,
    number: int,
) -> Result:
    directory.mkdir(parents=True, exist_ok=True)
    context = Context(scenario, directory, seed, messages or scenario.messages, sites, on_event)
    result = context.result
    result.tries = number
    try:
        with context:
            scenario.run(context)
    except Lacking as error:
        shutil.rmtree(directory)
        return Result(scenario, seed, verdict="missing", missing=[str(error)])
    except Exception as error:  # noqa: BLE001  (whatever happens in one run must not end those that follow)
        result.problems.append(f"{type(error).__name__}: {error}")
        (directory / "traceback.txt").write_text(traceback.format_exc())
    result.files = str(directory)
    if judge is None:
        _judge(result, check_directory(context.run.directory))
    else:
        judge(result, context.run.directory)
    _write(result, directory)
    if result.ok and not keep:
        _tidy(directory)
    return result


def _tidy(directory: Path) -> None:
    """Leave the report, and nothing that it was made from."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in _REPORTS:
            path.unlink()


def _missing(scenario: Scenario, sites: Sequence[tuple[str, str]]) -> list[str]:
    if sites and scenario.own_brokers:
        return ["brokers of its own: what it does to them is not done to a user's sites"]
    return missing(scenario.needs - {"mosquitto", "rabbitmq"} if sites else scenario.needs)


def _judge(result: Result, report: Report) -> None:
    counts = report.messages
    result.verdict = report.verdict
    result.messages = counts.enqueued
    result.lost = counts.lost
    result.declared = counts.declared_gaps
    result.duplicates = counts.duplicates
    result.out_of_order = counts.out_of_order
    if set(result.expected) <= {"complete", "unknown"}:
        for kind in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending"):
            if count := getattr(counts, kind):
                result.problems.append(f"{count} messages {kind.replace('_', ' ')}")
    if report.verdict == "unknown":
        result.problems += [
            f"unknown: {found}"
            for found in report.findings
            if found.severity == "unknown" and str(found) not in result.unproven
        ]
    if report.verdict not in result.expected:
        result.findings = [
            f"{found.severity}: {found}" for found in report.findings if found.severity != "remark"
        ][:_MOST_FINDINGS]


def _write(result: Result, directory: Path) -> None:
    texts = (timeline(result), result.text() + "\n", json.dumps(result.as_dict(), indent=1) + "\n")
    for name, text in zip(_REPORTS, texts, strict=True):
        (directory / name).write_text(text)
