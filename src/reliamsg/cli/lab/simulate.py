"""``reliamsg lab simulate``: runs producers and consumers in a simulated world, seed by seed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from reliamsg.cli.options import SeedsType
from reliamsg.cli.status import Status
from reliamsg.errors import ConfigError
from reliamsg.terminal import say, say_json, say_text

if TYPE_CHECKING:
    from reliamsg.simulation.runner import Outcome, Summary

__all__ = ["simulate"]


class _Faults(click.ParamType[tuple[str, ...]]):
    """Names, separated by commas; ``none``."""

    name = "NAME,…"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        # On demand, here and below: every command imports this module, and the simulation takes half a second.
        from reliamsg.simulation.faults import FAULTS

        if isinstance(value, tuple):
            return value
        names = tuple(name for name in str(value).split(",") if name and name != "none")
        for name in names:
            if name not in FAULTS:
                self.fail(f"no such fault: {name!r}; choose from {', '.join(FAULTS)}", param, ctx)
        return names


@click.command("simulate")
@click.option("--seeds", type=SeedsType(), help="Run the seeds from A up to but not including B.")
@click.option("--seed", type=click.IntRange(0), help="Run one seed.")
@click.option(
    "--messages", type=click.IntRange(1), default=200, show_default=True, help="Messages in each run."
)
@click.option(
    "--faults", type=_Faults(), help="Inject only these faults, instead of those drawn by the seed."
)
@click.option("--trace", is_flag=True, help="Print all events (with --seed).")
@click.option("--shrink/--no-shrink", "shrinks", default=True, help="Reduce the first failing run.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write all journals to this new directory, for 'reliamsg audit DIR'.",
)
@click.option(
    "--jobs",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="The number of processes; 0 for one per core.",
)
@click.option(
    "--every-fault",
    is_flag=True,
    help="Fail if a fault never struck, a value was never drawn, or a situation was never reached.",
)
@click.option(
    "--settings", "shows_settings", is_flag=True, help="Show how often each setting had each value."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON in the last line.")
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
    """Run clients in a simulated world with all kinds of faults.

    Runs the real protocol, stores and engines of producers and consumers with one seeded clock and simulated brokers,
    networks and crashes: without threads, sockets or sleeping. A seed reproduces its run. The exit code is 1 if a
    promise was broken: the first such run is reduced and printed.
    """
    if (seeds is None) == (seed is None):
        raise click.UsageError("use --seeds A:B or --seed N")
    if trace and seed is None:
        raise click.UsageError("--trace requires --seed")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: it exists and is not empty")
    if find_spec("zstandard") is None:  # some simulated producers compress
        raise ConfigError("the simulator needs an extra: pip install 'reliamsg[zstd]'")
    from reliamsg.simulation.runner import run, run_many
    from reliamsg.simulation.scenario import draw

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
    if as_json:
        say_json(msgspec.json.encode(summary.as_dict()))
    else:
        _show(summary, every_fault, shows_settings)
    idle = summary.idle_faults if every_fault else []
    for name in idle:
        say(f"reliamsg: the fault {name} never struck", err=True)
    undrawn = summary.idle_values if every_fault else []
    for name in undrawn:
        say(f"reliamsg: {name} was never drawn", err=True)
    unreached = summary.unreached if every_fault else []
    for name in unreached:
        say(f"reliamsg: no run reached {name}", err=True)
    return Status.INCOMPLETE if failed or idle or undrawn or unreached else Status.OK


def _show(summary: Summary, every_fault: bool, shows_settings: bool) -> None:
    from reliamsg.simulation.faults import FAULTS
    from reliamsg.simulation.runner import REACHED

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
    from reliamsg.simulation.shrink import shrink

    small = shrink(outcome, lambda line: say(f"  {line}"))
    for line in small.lines:
        say(line)
    _tell(small)
