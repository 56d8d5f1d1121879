"""``reliamsg lab simulate``: the product in a simulated world, seed by seed."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from reliamsg.cli.options import SeedsType
from reliamsg.cli.status import Status
from reliamsg.simulation.faults import FAULTS
from reliamsg.simulation.runner import REACHED, Outcome, Summary, run, run_many
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.shrink import shrink
from reliamsg.terminal import say, say_json, say_text

__all__ = ["simulate"]


class _Faults(click.ParamType[tuple[str, ...]]):
    """Names, separated by commas; ``none``."""

    name = "NAME,…"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name for name in str(value).split(",") if name and name != "none")
        for name in names:
            if name not in FAULTS:
                self.fail(f"there is no fault {name!r}: choose of {', '.join(FAULTS)}", param, ctx)
        return names


@click.command("simulate")
@click.option("--seeds", type=SeedsType(), help="Run these seeds: from A, up to B without it.")
@click.option("--seed", type=click.IntRange(0), help="Run one seed.")
@click.option(
    "--messages", type=click.IntRange(1), default=200, show_default=True, help="Messages in each run."
)
@click.option(
    "--faults", type=_Faults(), help="These faults and no others, instead of those that the seed draws."
)
@click.option("--trace", is_flag=True, help="Print what happened (with --seed).")
@click.option("--shrink/--no-shrink", "shrinks", default=True, help="Make the first failing run smaller.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Leave all journals in this new directory, for 'reliamsg audit DIR'.",
)
@click.option(
    "--jobs", type=click.IntRange(0), default=1, show_default=True, help="Processes; 0: one for each core."
)
@click.option(
    "--every-fault",
    is_flag=True,
    help="A fault that never struck is an error, and so is a value never drawn, or what no run came to.",
)
@click.option(
    "--settings", "shows_settings", is_flag=True, help="Show how often each setting had each value."
)
@click.option("--json", "as_json", is_flag=True, help="The last line is JSON.")
def simulate(
    seeds: range | None,
    seed: int | None,
    messages: int,
    faults: tuple[str, ...] | None,
    trace: bool,
    shrinks: bool,
    keep: Path | None,
    jobs: int,
    every_fault: bool,
    shows_settings: bool,
    as_json: bool,
) -> int:
    """Run producers and consumers in a simulated world in which everything fails, and judge what they did.

    The real protocol, stores, sending and receiving logic, under one seeded clock, with simulated brokers, networks and
    crashes: no threads, no sockets, no sleeping. A seed always makes the same run. Exit code 1 where a promise was
    broken: the first such run is made smaller, and printed.
    """
    if (seeds is None) == (seed is None):
        raise click.UsageError("give --seeds A:B, or --seed N")
    if trace and seed is None:
        raise click.UsageError("--trace needs --seed")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: it exists and is not empty")
    if trace and seed is not None:
        for line in run(draw(seed, messages, faults), keep=True).lines:
            say(line)
    failed: list[Outcome] = []

    def told(outcome: Outcome) -> None:
        if outcome.violations:
            failed.append(outcome)
            _tell(outcome)

    processes = jobs or os.cpu_count() or 1
    summary = run_many(seeds or [seed or 0], messages, faults, told, keep, processes)
    if failed and shrinks and not trace:
        _shrink(failed[0])
    idle = summary.idle_faults if every_fault else []
    if as_json:
        say_json(msgspec.json.encode(summary.as_dict()))
    else:
        for name, times in summary.faults.items():
            if times or every_fault:
                say(f"  {name:20} {times:8,}  {FAULTS[name][1]}")
        for name, times in summary.reached.items():
            if times or every_fault:
                say(f"  {name:20} {times:8,}  {REACHED[name]}")
        if shows_settings:
            _show_settings(summary)
        say(
            f"{summary.seeds:,} runs, {len(summary.failing_seeds)} with violations,"
            f" {summary.runs_per_minute:,.0f} a minute"
        )
    for name in idle:
        say(f"reliamsg: the fault {name} never struck", err=True)
    undrawn = summary.idle_values if every_fault else []
    for name in undrawn:
        say(f"reliamsg: {name} was never drawn", err=True)
    unreached = summary.unreached if every_fault else []
    for name in unreached:
        say(f"reliamsg: no run came to {name}", err=True)
    return Status.INCOMPLETE if failed or idle or undrawn or unreached else Status.OK


def _show_settings(summary: Summary) -> None:
    for name, values in summary.settings.items():
        say(f"  {name:36} " + ", ".join(f"{value}: {times:,}" for value, times in values.items()))


def _tell(outcome: Outcome) -> None:
    scenario = outcome.scenario
    say(f"seed {scenario.seed}: {scenario.described()}")
    for violation in outcome.violations[:10]:
        say(f"  {violation}")
    if len(outcome.violations) > 10:
        say(f"  and {len(outcome.violations) - 10} more")
    if outcome.error:
        say_text(outcome.error)
    for line in scenario.details():
        say(f"  {line}")
    say(
        f"  again: reliamsg lab simulate --seed {scenario.seed} --messages {scenario.messages}"
        f" --faults {','.join(scenario.faults) or 'none'} --trace"
    )


def _shrink(outcome: Outcome) -> None:
    small = shrink(outcome, lambda line: say(f"  {line}"))
    for line in small.lines:
        say(line)
    _tell(small)
