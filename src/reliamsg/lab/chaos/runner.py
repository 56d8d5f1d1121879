"""Running a scenario, and judging the files that it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from reliamsg.checker import Expect, Report, check_directory
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.options import RunOptions
from reliamsg.lab.chaos.record import Record
from reliamsg.lab.chaos.registry import Entry
from reliamsg.lab.chaos.requirements import MissingRequirement, missing
from reliamsg.lab.chaos.result import Judgement, Observations, Result
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.timeline import timeline

__all__ = ["Judge", "run_scenario"]

Judge = Callable[[Record, Path], Judgement]
"""Judges a run by its record and by the clients' files in a directory."""

_MAX_FINDINGS = 10
_REPORTS = ("timeline.svg", "report.txt", "result.json")
_ZERO = ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending")
"""Counts of the checker that must be zero in a complete run."""


def check(record: Record, directory: Path) -> Judgement:
    """Have the checker judge the clients' journals and files."""
    return _judgement(record.observations(), check_directory(directory, Expect(drained=True)))


def run_scenario(
    entry: Entry,
    options: RunOptions,
    *,
    on_event: Callable[[str], object] = lambda text: None,
    judge: Judge = check,
) -> Result:
    """Run a scenario and judge it.

    A run in which everything went well but which proves nothing is repeated with the next seed, up to `options.tries`
    runs in total; the last one counts. A run proves nothing if its fault hit nothing, or did not harm plain clients
    although that is its point.

    `on_event`: called with each event as it happens. `judge`: used instead of the checker. Errors in the run are
    problems in the result; they are never raised.
    """
    scenario = entry.scenario
    if found := _missing(scenario, options):
        return Result(scenario, options.seed, missing=tuple(found))
    number = 1
    while True:
        seed = (options.seed + number - 1) % 2**32
        result = _run_once(entry, dataclasses.replace(options, seed=seed), on_event, judge)
        result = dataclasses.replace(result, tries=number)
        if not result.missing:
            _write(result, options.directory)
        if number >= options.tries or result.missing or not _only_inconclusive(result):
            break
        on_event(f"{result.inconclusive}: repeated")
        shutil.rmtree(options.directory)
        number += 1
    if result.ok and not options.keep:
        _tidy(options.directory)
    return result


def _only_inconclusive(result: Result) -> bool:
    """Whether nothing went wrong, and nothing was proven."""
    return bool(result.inconclusive) and not result.problems and result.verdict in result.observed.expected


def _run_once(entry: Entry, options: RunOptions, on_event: Callable[[str], object], judge: Judge) -> Result:
    scenario, directory = entry.scenario, options.directory
    directory.mkdir(parents=True, exist_ok=True)
    record = Record(on_event)
    context = Context(scenario, options, record)
    try:
        with context:
            entry.run(context)
    except MissingRequirement as error:
        shutil.rmtree(directory)
        return Result(scenario, options.seed, missing=(str(error),))
    except Exception as error:  # noqa: BLE001  (an error in one run must not terminate those that follow)
        record.add_problem(f"{type(error).__name__}: {error}")
        (directory / "traceback.txt").write_text(traceback.format_exc())
    judgement = judge(record, context.run.directory)
    return Result(scenario, options.seed, record.observations(), judgement, files=str(directory))


def _tidy(directory: Path) -> None:
    """Keep the reports, and delete the evidence."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in _REPORTS:
            path.unlink()


def _missing(scenario: Scenario, options: RunOptions) -> list[str]:
    if not options.sites:
        return missing(scenario.needs)
    if scenario.own_brokers:
        return ["brokers of its own: the scenario would damage a user's brokers"]
    return missing(scenario.needs - {"mosquitto", "rabbitmq"})


def _judgement(observed: Observations, report: Report) -> Judgement:
    """The judgement that follows from the checker's report."""
    counts = report.messages
    problems: list[str] = []
    if set(observed.expected) <= {"complete", "unknown"}:
        for kind in _ZERO:
            if count := getattr(counts, kind):
                problems.append(f"{count} messages {kind.replace('_', ' ')}")
    if report.verdict == "unknown":
        problems += [
            f"unknown: {found}"
            for found in report.findings
            if found.severity == "unknown" and str(found) not in observed.expected_unknown
        ]
    findings: list[str] = []
    if report.verdict not in observed.expected:
        findings = [f"{found.severity}: {found}" for found in report.findings if found.severity != "remark"]
    return Judgement(
        verdict=report.verdict,
        messages=counts.enqueued,
        lost=counts.lost,
        declared=counts.declared_gaps,
        duplicates=counts.duplicates,
        out_of_order=counts.out_of_order,
        problems=tuple(problems),
        findings=tuple(findings[:_MAX_FINDINGS]),
    )


def _write(result: Result, directory: Path) -> None:
    texts = (timeline(result), result.text() + "\n", json.dumps(result.as_dict(), indent=1) + "\n")
    for name, text in zip(_REPORTS, texts, strict=True):
        (directory / name).write_text(text)
