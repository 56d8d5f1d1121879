"""``reliamsg lab chaos``: named faults at real brokers, each judged."""

from __future__ import annotations

import secrets
import shutil
import signal
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reliamsg.cli.options import SeedsType, SiteType, json_option
from reliamsg.cli.status import EXIT_CODES_HELP, Failure, Status
from reliamsg.lab.process import LabError
from reliamsg.terminal import say, say_json, say_text

if TYPE_CHECKING:
    from reliamsg.lab.chaos.result import Result
    from reliamsg.lab.chaos.scenario import Scenario

__all__ = ["chaos"]

_DIRECTORY = "reliamsg-chaos"


@click.group(epilog=EXIT_CODES_HELP)
def chaos() -> None:
    """Put real clients and real brokers through named faults, and see what becomes of every message.

    A run is ok only when the promise held and the fault had something to hit. What a machine lacks (root, a broker) is
    said, and never counts as ok.
    """


@chaos.command("list", epilog=EXIT_CODES_HELP)
@json_option
def list_scenarios(as_json: bool) -> None:
    """Name all scenarios: number in the catalogue of faults, promises that are threatened, what they need."""
    from reliamsg.lab.chaos.catalogue import scenarios

    if as_json:
        for found in scenarios():
            say_json(
                {
                    "scenario": found.name, "numbers": list(found.numbers), "promises": found.promises.split(),
                    "needs": sorted(found.needs), "own_brokers": found.own_brokers,
                    "messages": found.messages, "title": found.title, "earlier": found.earlier,
                }
            )  # fmt: skip
        return
    width = min(100, shutil.get_terminal_size().columns)
    for found in scenarios():
        numbers = ",".join(map(str, found.numbers)) or "-"
        needs = " ".join(sorted(found.needs))
        say(f"{numbers:>3}  {found.name:30} {found.promises:11}  {needs}")
        say_text(textwrap.indent(textwrap.fill(found.title, width - 5), " " * 5))
    names = [found.name for found in scenarios() if found.earlier]
    say()
    say_text(
        textwrap.fill(f"Earlier runs with several faults: {', '.join(names)}.", width, break_on_hyphens=False)
    )


@chaos.command(epilog=EXIT_CODES_HELP)
@click.argument("names", metavar="NAME|all...", nargs=-1, required=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of all chance; a new one unless given.")
@click.option(
    "--messages", type=click.IntRange(min=100), metavar="N", help="Each scenario has its own unless given."
)
@click.option(
    "--site", type=SiteType(), multiple=True, envvar="RELIAMSG_SITES",
    help="A test site of yours, as NAME=URL, in place of brokers that are started here. Repeat it.",
)  # fmt: skip
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), default=_DIRECTORY,
    show_default=True, help="For reports and pictures, a directory for each run.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the clients' files of runs that are ok, too.")
@json_option
def run(
    names: tuple[str, ...],
    seed: int | None,
    messages: int | None,
    site: tuple[tuple[str, str], ...],
    directory: Path,
    keep: bool,
    as_json: bool,
) -> int:
    """Run scenarios by their names, or all.

    Says what was done when, what was at stake, what plain clients lost, and our verdict; a directory for each run gets
    the report and a picture of it over time (timeline.svg). With --json each run is one line on standard output, and
    of several the last line is about all.

    Ends with 0 when all are ok, 1 when one is not, 2 when something that one needs is missing here.
    """
    from reliamsg.lab.chaos.runner import run_scenario

    chosen = _chosen(names)
    seed = secrets.randbelow(2**32) if seed is None else seed
    results = []
    _end_like_interrupted()
    for scenario in chosen:
        if not as_json:
            say(f"{scenario.name}: {scenario.title} (seed {seed})")
        result = run_scenario(
            scenario, _place(directory, scenario.name, seed), seed, messages=messages, sites=site, keep=keep,
            on_event=lambda text: say(f"  {text}", err=True),
        )  # fmt: skip
        results.append(result)
        if as_json:
            say_json(result.as_dict())
        else:
            say_text(result.text())
    if len(results) > 1:
        _say_all(results, seed, as_json)
    return _status(results)


@chaos.command(epilog=EXIT_CODES_HELP)
@click.option("--runs", type=click.IntRange(min=1), metavar="N", help="How many; 100 unless given.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
              help="Runs side by side, each with clients, brokers and ports of its own.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**32 - 1),
              help="Of the first run; each has the next. A new one unless given.")  # fmt: skip
@click.option("--seeds", type=SeedsType(), help="Run these seeds: from A, up to B without it.")
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), default=_DIRECTORY,
    show_default=True, help="For the files of runs that are not ok.",
)  # fmt: skip
@click.option("--black-box", is_flag=True,
              help="Judge by the applications' own logs alone.")  # fmt: skip
@json_option
def campaign(
    runs: int | None,
    jobs: int,
    seed: int | None,
    seeds: range | None,
    directory: Path,
    black_box: bool,
    as_json: bool,
) -> int:
    """Do many short runs with faults at random.

    Processes, brokers and whole sites are killed, stopped, cut off, slowed down, and disks filled, at up to three sites
    of RabbitMQ and Mosquitto, a few faults in each run. Every public setting of every client and site is drawn at
    random; up to three producers and two groups take part. When the faults are over, everything must come within a
    bound that follows from the settings. A run takes some ten seconds and more. Says in the end how many faults struck,
    what was lost, doubled and out of order, how long the slowest took until everything was handed out, and how often
    each value of each setting was drawn.

    The applications log what publish() returned for and what handlers were given, and forty lines judge loss, order,
    unflagged duplicates and reused identities. The checker reads the clients' journals and files, and must find the
    same; with --black-box it is left out, and those logs are all that is looked at.

    With --json each run is one line on standard output as soon as it and those before it have ended, with its seed,
    whether it was ok or idle (nothing was at stake), its faults and settings; the last line is about all. So a campaign
    can be spread over several sittings: --seeds 0:50, later --seeds 50:100, and the lines are added up.

    Ends with 0 when all runs are ok, 1 when one is not: its files are kept, and its seed with --runs 1 does the same
    again. 2 when something that is needed is missing.
    """
    from reliamsg.lab.chaos.campaign import campaign as perform
    from reliamsg.lab.chaos.campaign import run_line
    from reliamsg.lab.chaos.environment_faults import struck

    def tell(result: Result) -> None:
        if as_json:
            say_json(run_line(result))
        kept = "" if result.verdict == "complete" and not result.problems else f"; files: {result.files}"
        say(
            f"seed {result.seed}: {result.verdict}, {result.messages:,} messages, {result.seconds:.1f} s, drained in"
            f" {result.drain_seconds:.1f} s ({', '.join(struck(result))}){kept}", err=as_json,
        )  # fmt: skip
        for problem in (*result.problems, *result.findings):
            say(f"  {problem}", err=as_json)

    if seeds is not None and (runs is not None or seed is not None):
        raise click.UsageError("--seeds says which runs: give it without --runs and --seed")
    if seeds is None:
        first = secrets.randbelow(2**31) if seed is None else seed
        seeds = range(first, first + (runs or 100))
    if seeds.stop > 2**32:
        raise click.UsageError("seeds are below 2**32")
    _end_like_interrupted()
    summary = perform(seeds, directory.resolve(), jobs=jobs, black_box=black_box, on_result=tell)
    if as_json:
        say_json(summary.as_dict())
    else:
        say_text(summary.text())
    if summary.missing:
        return Status.UNKNOWN
    return Status.OK if summary.ok else Status.INCOMPLETE


def _end_like_interrupted() -> None:
    """Have SIGTERM end this command as Ctrl-C does: brokers, disks and networks end with it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, before))


def _chosen(names: tuple[str, ...]) -> list[Scenario]:
    from reliamsg.lab.chaos.catalogue import find, scenarios

    if "all" in names:
        return scenarios()
    try:
        return [find(name) for name in names]
    except LabError as error:
        raise Failure(Status.USAGE, str(error)) from None


def _place(directory: Path, name: str, seed: int) -> Path:
    """A directory that does not exist yet."""
    place = directory.resolve() / f"{name}-{seed}"
    number = 1
    while place.exists():
        number += 1
        place = directory.resolve() / f"{name}-{seed}-{number}"
    return place


def _status(results: list[Result]) -> Status:
    """The worst: not ok before missing."""
    if any(not result.ok and not result.missing for result in results):
        return Status.INCOMPLETE
    return Status.UNKNOWN if any(result.missing for result in results) else Status.OK


def _say_all(results: list[Result], seed: int, as_json: bool) -> None:
    if as_json:
        say_json(_total(results, seed))
        return
    good = sum(result.ok for result in results)
    lacking = [result.scenario.name for result in results if result.missing]
    wrong = [result.scenario.name for result in results if not result.ok and not result.missing]
    say(f"{good} of {len(results)} scenarios are ok")
    for text, which in (("not ok", wrong), ("not run, something is missing", lacking)):
        if which:
            say(f"{text}: {', '.join(which)}")


def _total(results: list[Result], seed: int) -> dict[str, Any]:
    """One line about all, in the form of each."""
    each = [result.as_dict() for result in results]
    controlled = [one["control"]["lost"] for one in each if one["control"]["lost"] is not None]
    total: dict[str, Any] = {"scenario": "all", "seed": seed, "ok": all(one["ok"] for one in each)}
    total["verdict"] = "ok" if total["ok"] else "missing" if _status(results) == Status.UNKNOWN else "not ok"
    for name in ("messages", "lost", "duplicates", "out_of_order"):
        total[name] = sum(one[name] for one in each)
    total["control"] = {"lost": sum(controlled) if controlled else None}
    total["seconds"] = round(sum(one["seconds"] for one in each), 1)
    total["not_ok"] = [one["scenario"] for one in each if not one["ok"] and not one["missing"]]
    total["missing"] = [one["scenario"] for one in each if one["missing"]]
    return total
