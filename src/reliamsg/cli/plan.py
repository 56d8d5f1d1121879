"""``reliamsg plan``: how likely messages are lost, and what to change."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reliamsg.cli.options import json_option
from reliamsg.cli.status import SEE_EXIT_CODES, Status
from reliamsg.terminal import say, say_json

if TYPE_CHECKING:
    from reliamsg.plan import Compared, Estimated, Plan

__all__ = ["plan"]


@click.command(epilog=SEE_EXIT_CODES)
@click.argument("rates", metavar="RATES.toml", type=click.Path(dir_okay=False))
@click.argument("config", metavar="[CONFIG]", required=False, type=click.Path(dir_okay=False))
@click.option("--producer", metavar="ID", help="The producer in CONFIG; default: the only one.")
@click.option("--group", metavar="GROUP", help="The consumer in CONFIG; default: the only one.")
@click.option(
    "--target",
    type=float,
    metavar="P",
    help="The probability of loss per message to stay below, such as 1e-9.",
)
@click.option(
    "--audit",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Use the rates that an audit shows, where it does. DIR is the output of 'reliamsg audit --out'.",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False),
    metavar="FILE.html",
    help="Also write a page with the map, comparisons and sliders; it needs no network.",
)
@json_option
def plan(
    rates: str,
    config: str | None,
    producer: str | None,
    group: str | None,
    target: float | None,
    audit: str | None,
    page: str | None,
    as_json: bool,
) -> int:
    """Compute how likely messages are lost under given rates of incidents, and what to change.

    RATES.toml has the rates at which processes, disks and brokers fail; no rate has a default. CONFIG is a
    configuration file of clients; without it, default settings apply. The result is as good as the rates and the
    assumptions of the model, which the documentation lists.

    With --target, exits with 1 if the client does not reach it, and prints the cheapest change that does.
    """
    from reliamsg.plan import estimate, make_plan, read_client, read_rates, write_page

    if config is None and (producer is not None or group is not None):
        raise click.UsageError("--producer and --group choose from CONFIG: give a configuration file")
    found = read_rates(rates)
    client = read_client(config, producer, group) if config is not None else None
    estimated = estimate(found, audit) if audit is not None else None
    found = estimated.rates if estimated is not None else found
    result = make_plan(found, client, target=target)
    if page is not None:
        write_page(page, found, client)
    upper = make_plan(estimated.upper, client).client if estimated is not None else None
    if as_json:
        say_json(_as_json(result) | _estimates_json(estimated, upper))
    else:
        _print(result)
        if estimated is not None and upper is not None:
            _print_estimates(estimated, upper)
    return Status.OK if result.reached else Status.INCOMPLETE


def _as_json(plan: Plan) -> dict[str, Any]:
    return {
        "client": _compared_json(plan.client),
        "compared": [_compared_json(one) for one in plan.compared],
        "influences": [asdict(one) for one in plan.influences],
        "target": plan.target,
        "reached": plan.reached,
        "changes": [asdict(one) for one in plan.changes],
        "cheapest": asdict(plan.cheapest) if plan.cheapest is not None else None,
    }


def _compared_json(one: Compared) -> dict[str, Any]:
    fate = asdict(one.fate)
    fate["missing"] = one.fate.missing
    fate["edges"] = [{"from": a, "to": b, "probability": p} for (a, b), p in one.fate.edges.items()]
    return {
        "name": one.name,
        "lost_per_year": one.lost_per_year,
        "duplicated_per_year": one.duplicated_per_year,
        **fate,
    }


def _estimates_json(estimated: Estimated | None, upper: Compared | None) -> dict[str, Any]:
    if estimated is None or upper is None:
        return {}
    return {
        "estimates": [asdict(one) for one in estimated.estimates],
        "kept": list(estimated.kept),
        "upper": _compared_json(upper),
    }


def _print_estimates(estimated: Estimated, upper: Compared) -> None:
    say("estimated from the audit (intervals of 95 %; without an event, the upper end counts)")
    say(f"  {'':<36}{'in the file':>12}{'used':>10}   {'interval':<22}seen")
    for one in estimated.estimates:
        interval = seen = ""
        if one.events is not None:
            interval = f"{one.low:.3g} to {one.high:.3g}"
            seen = f"{one.events} in {one.years:.3g} years"
        say(f"  {one.name:<36}{one.given:>12.3g}{one.value:>10.3g}   {interval:<22}{seen}".rstrip())
    for line in estimated.kept:
        say(f"  from the file: {line}")
    say(f"  with all upper ends, {upper.fate.missing:.3g} of the messages are lost or declared missing")


def _print(plan: Plan) -> None:
    own = plan.client
    say(own.name)
    for label, value in (
        ("lost, per message", f"{own.fate.lost:.3g}"),
        ("declared missing, per message", f"{own.fate.declared:.3g}"),
        ("delivered again, per message", f"{own.fate.duplicated:.3g}"),
        ("lost or declared, per year", f"{own.lost_per_year:.3g}"),
        ("delivered again, per year", f"{own.duplicated_per_year:.3g}"),
        ("publishing possible", _percent(own.fate.accepting)),
        ("confirm policy can be met", _percent(own.fate.confirming)),
        ("delivery possible", _percent(own.fate.delivering)),
        ("confirmed after, on average", f"{own.fate.confirm_seconds:.3g} s"),
    ):
        say(f"  {label:<30}  {value}")
    say("the way of a message (probability per message)")
    for (start, end), probability in own.fate.edges.items():
        if probability:
            say(f"  {f'{start} -> {end}':<32}{probability:.3g}")
    say("what matters most (growth of loss if it grows by 1 %)")
    for one in plan.influences[:8]:
        lost = one.lost_per_incident
        incident = "" if lost is None else f"   {lost:.3g} messages lost per incident"
        if one.elasticity:
            say(f"  {one.name:<40}{one.elasticity:>8.3f} %{incident}")
    say("compared, under the same rates")
    width = max(len(other.name) for other in plan.compared)
    say(f"  {'':<{width}}{'lost':>10}{'per year':>10}{'again':>10}{'publishing':>12}{'confirmed':>11}")
    for other in plan.compared:
        fate = other.fate
        say(
            f"  {other.name:<{width}}{fate.missing:>10.2g}{other.lost_per_year:>10.2g}{fate.duplicated:>10.2g}"
            f"{_percent(fate.accepting):>12}{fate.confirm_seconds:>9.2g} s"
        )
    if plan.target is not None:
        _print_target(plan, plan.target)
    say("Small probabilities are extrapolated from a model: see its assumptions in the documentation.")


def _print_target(plan: Plan, target: float) -> None:
    if plan.reached:
        say(f"target {target:g}: reached")
        return
    say(f"target {target:g}: not reached")
    for change in plan.changes:
        mark = "reaches it" if change.reaches else "does not"
        say(f"  {mark:<11}{change.missing:>9.2g}  {change.text} (cost: {change.cost})")
    cheapest = plan.cheapest
    say(f"cheapest: {cheapest.text}" if cheapest is not None else "cheapest: no single change reaches it")


def _percent(share: float) -> str:
    return f"{100 * share:.5g} %"
