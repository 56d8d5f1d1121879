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
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status
from reliamsg.terminal import say, say_json, say_text

if TYPE_CHECKING:
    from reliamsg.lab.chaos.registry import Entry
    from reliamsg.lab.chaos.result import Result

__all__ = ["chaos"]

_DIRECTORY = "reliamsg-chaos"


@click.group(epilog=SEE_EXIT_CODES)
def chaos() -> None:
    """Inject named faults into real clients and brokers.

    A run is ok only if the promise held, for every message, and something was at stake. Missing prerequisites, such as
    root or a broker, are reported, and the scenario is not ok.
    """


@chaos.command("list", epilog=SEE_EXIT_CODES)
@json_option
def list_scenarios(as_json: bool) -> None:
    """List all scenarios.

    Shows their numbers in the catalogue of faults, the promises that they threaten, and their prerequisites.
    """
    from reliamsg.lab.chaos.catalogue import scenarios

    if as_json:
        for entry in scenarios():
            found = entry.scenario
            say_json(
                {
                    "scenario": found.name, "numbers": list(found.numbers), "promises": found.promises.split(),
                    "needs": sorted(found.needs), "own_brokers": found.own_brokers,
                    "messages": found.messages, "title": found.title, "earlier": found.earlier,
                }
            )  # fmt: skip
        return
    width = min(100, shutil.get_terminal_size().columns)
    for entry in scenarios():
        found = entry.scenario
        numbers = ",".join(map(str, found.numbers)) or "-"
        needs = " ".join(sorted(found.needs))
        say(f"{numbers:>3}  {found.name:30} {found.promises:11}  {needs}")
        say_text(textwrap.indent(textwrap.fill(found.title, width - 5), " " * 5))
    names = [entry.scenario.name for entry in scenarios() if entry.scenario.earlier]
    say()
    say_text(
        textwrap.fill(f"Earlier runs with several faults: {', '.join(names)}.", width, break_on_hyphens=False)
    )


@chaos.command(epilog=SEE_EXIT_CODES)
@click.argument("names", metavar="NAME|all...", nargs=-1, required=True)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Reproduces a run's random choices; random by default."
)
@click.option(
    "--messages",
    type=click.IntRange(min=100),
    metavar="N",
    help="Messages to publish; each scenario has its own default.",
)
@click.option(
    "--site", type=SiteType(), multiple=True, envvar="RELIAMSG_SITES",
    help="A test site to use instead of starting brokers, as NAME=URL; repeatable.",
)  # fmt: skip
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), default=_DIRECTORY,
    show_default=True, help="Directory for reports and pictures, in a directory for each run.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the clients' files even if a run is ok.")
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
    """Run scenarios by name, or all of them.

    Reports the events of each run, what was at stake, what plain clients lost, and the verdict. A directory for each
    run gets the report and a picture of the run over time (timeline.svg). With --json, each run is one line on standard
    output, followed by a summary if there are several.

    Exits with 0 if all are ok, 1 if one is not, and 2 if a prerequisite is missing.
    """
    from reliamsg.lab.chaos.options import RunOptions
    from reliamsg.lab.chaos.runner import run_scenario

    chosen = _chosen(names)
    seed = secrets.randbelow(2**32) if seed is None else seed
    results = []
    _interrupt_on_sigterm()
    for entry in chosen:
        name = entry.scenario.name
        if not as_json:
            say(f"{name}: {entry.scenario.title} (seed {seed})")
        options = RunOptions(_place(directory, name, seed), seed, messages, site, keep)
        result = run_scenario(entry, options, on_event=lambda text: say(f"  {text}", err=True))
        results.append(result)
        if as_json:
            say_json(result.as_dict())
        else:
            say_text(result.text())
    if len(results) > 1:
        _show_summary(results, seed, as_json)
    return _status(results)


@chaos.command(epilog=SEE_EXIT_CODES)
@click.option("--runs", type=click.IntRange(min=1), metavar="N", help="Number of runs; 100 by default.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
              help="Runs in parallel, each with its own clients, brokers and ports.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**32 - 1),
              help="Seed of the first run; each run uses the next one. Random by default.")  # fmt: skip
@click.option("--seeds", type=SeedsType(), help="Run the seeds from A up to but not including B.")
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), default=_DIRECTORY,
    show_default=True, help="Directory for the files of runs that are not ok.",
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
    """Make many short runs with random faults.

    Processes, brokers and whole sites are killed, suspended, isolated and slowed down, and disks are filled, at up to
    three sites of RabbitMQ and Mosquitto, with a few faults in each run. Every public setting of every client and site
    is drawn at random, for up to three producers and two groups. When the faults are over, everything must arrive
    within a bound that follows from the settings. A run takes some ten seconds or more. The summary shows how many
    faults struck, how many messages were lost, duplicated and out of order, how long the slowest run took to drain, and
    how often each value of each setting was drawn.

    The applications log the messages that they published and received. A judge of forty lines detects losses, wrong
    order, unflagged duplicates and reused identities in these logs. The checker reads the clients' journals and files,
    and must find the same; with --black-box it is not used, and the logs are the only evidence.

    With --json, each run is one line on standard output, in the order of the seeds, with its seed, its faults, its
    settings, and whether it was ok or idle (nothing was at stake); the last line is the summary. To spread a campaign
    over several sessions, run --seeds 0:50, later --seeds 50:100, and add up the lines.

    Exits with 0 if all runs are ok, and with 1 if one is not: its files are kept, and --runs 1 with its seed makes the
    same choices again. Exits with 2 if a prerequisite is missing.
    """
    from reliamsg.lab.chaos.campaign import campaign as perform
    from reliamsg.lab.chaos.campaign import run_line

    def show(result: Result) -> None:
        line = run_line(result)
        if as_json:
            say_json(line)
        kept = f"; files: {line['files']}" if line["files"] else ""
        say(
            f"seed {result.seed}: {result.verdict}, {line['messages']:,} messages, {line['seconds']:.1f} s, drained in"
            f" {line['drain_seconds']:.1f} s ({', '.join(line['faults'])}){kept}", err=as_json,
        )  # fmt: skip
        for problem in (*line["problems"], *line["findings"]):
            say(f"  {problem}", err=as_json)

    if seeds is not None and (runs is not None or seed is not None):
        raise click.UsageError("--seeds can't be combined with --runs or --seed")
    if seeds is None:
        first = secrets.randbelow(2**31) if seed is None else seed
        seeds = range(first, first + (runs or 100))
    if seeds.stop > 2**32:
        raise click.UsageError("seeds are below 2**32")
    _interrupt_on_sigterm()
    summary = perform(seeds, directory.resolve(), jobs=jobs, black_box=black_box, on_result=show)
    if as_json:
        say_json(summary.as_dict())
    else:
        say_text(summary.text())
    if summary.missing:
        return Status.UNKNOWN
    return Status.OK if summary.ok else Status.INCOMPLETE


def _interrupt_on_sigterm() -> None:
    """Have SIGTERM terminate this command as Ctrl-C does, so that brokers, disks and networks are cleaned up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, before))


def _chosen(names: tuple[str, ...]) -> list[Entry]:
    from reliamsg.lab.chaos.catalogue import find, scenarios
    from reliamsg.lab.process import LabError  # on demand: every command imports this module

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
    """The worst status: not ok outranks missing."""
    if any(not result.ok and not result.missing for result in results):
        return Status.INCOMPLETE
    return Status.UNKNOWN if any(result.missing for result in results) else Status.OK


def _show_summary(results: list[Result], seed: int, as_json: bool) -> None:
    if as_json:
        say_json(_total(results, seed))
        return
    good = sum(result.ok for result in results)
    lacking = [result.scenario.name for result in results if result.missing]
    wrong = [result.scenario.name for result in results if not result.ok and not result.missing]
    say(f"{good} of {len(results)} scenarios are ok")
    for text, which in (("not ok", wrong), ("not run, a prerequisite is missing", lacking)):
        if which:
            say(f"{text}: {', '.join(which)}")


def _total(results: list[Result], seed: int) -> dict[str, Any]:
    """The summary, with the fields of each run."""
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
