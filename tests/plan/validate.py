"""Compares the model with the simulation: ``python -m tests.plan.validate [--long] [--write] [--only TEXT]``.

Each set is simulated once, with its seed. The interval is for the number of losses that the simulation would have on
average. Losses of one incident are one cluster, and the number of clusters varies like that of a Poisson process, so
the variance of the sum is estimated by the sum of the squared sizes of the clusters. All intervals together contain
what they should with a probability of 95 % (Bonferroni). ``--write`` writes the table of all sets to
docs/reference/plan.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from statistics import NormalDist

from reliamsg.plan import (
    AllSites,
    Client,
    ConsumerRates,
    Partitions,
    ProducerRates,
    Rates,
    SiteRates,
    Traffic,
)
from reliamsg.plan.model import Fate, fate_of
from reliamsg.plan.rates import YEAR
from reliamsg.plan.system import plain_system, system_of
from reliamsg.policy import Quorum
from tests.plan.sets import LONG_SETS, SETS, ParameterSet
from tests.plan.simulation import SiteSetup, World, WorldSetup

__all__ = ["Comparison", "compare", "modelled"]

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "plan.md"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Comparison:
    """One set: how many losses the model expects, and the simulation's count with its interval."""

    name: str
    accepted: int
    expected: float
    counted: int
    incidents: int
    low: float
    high: float

    @property
    def hit(self) -> bool:
        return self.low <= self.expected <= self.high


def modelled(world: WorldSetup) -> Fate:
    """What the model says about a world."""
    sites = {f"s{number}": _site(site) for number, site in enumerate(world.sites)}
    rates = Rates(
        traffic=Traffic(messages_per_second=world.message_rate, message_bytes=1.0),
        producer=ProducerRates(
            crashes_per_year=world.producer_crash * YEAR,
            restart_seconds=world.producer_restart,
            disk_losses_per_year=world.producer_disk * YEAR,
        ),
        consumer=ConsumerRates(
            outages_per_year=world.consumer_crash * YEAR,
            outage_seconds=world.consumer_outage,
            inbox_losses_per_year=world.inbox_loss * YEAR,
            broker_wait_seconds=world.broker_wait,
            inbox_wait_seconds=world.inbox_wait,
            handle_seconds=world.handle,
        ),
        sites=sites,
        all_sites=AllSites(losses_per_year=world.common_loss * YEAR),
    )
    if world.kind == "pika":
        return fate_of(plain_system("pika", rates, sites["s0"], "s0"))
    if world.kind == "paho":
        return fate_of(plain_system("paho", rates, sites["s0"], "s0"))
    client = Client(
        sites=tuple(sites),
        confirm=Quorum(world.needed),
        release="consumed" if world.consumed else "confirmed",
        retain_seconds=world.retain,
        retain_bytes=2**60,
        max_bytes=2**60 if world.fill == inf else int(world.fill * world.message_rate),
        status_interval=world.report,
        on_gap="hold" if world.patience == inf else "skip",
        gap_timeout=world.patience,
    )
    return fate_of(system_of(rates, client))


def _site(site: SiteSetup) -> SiteRates:
    rates = SiteRates(
        crashes_per_year=site.crash * YEAR,
        crash_loses_seconds=site.crash_window,
        losses_per_year=site.loss * YEAR,
        outage_seconds=site.outage,
        confirm_seconds=site.confirm,
    )
    if not site.split:
        return rates
    partitions = Partitions(
        per_year=site.split * YEAR, seconds=site.split_seconds, handling="autoheal", losing_share=1.0
    )
    return SiteRates(
        **{name: getattr(rates, name) for name in rates.__struct_fields__ if name != "partitions"},
        partitions=partitions,
    )


def compare(one: ParameterSet, sets: int = len(SETS)) -> Comparison:
    """Simulate one of so many sets that are judged together."""
    result = World(one.world, one.seed).run(one.messages)
    fate = modelled(one.world)
    found: Counter[int] = getattr(result, one.counts)
    probability = fate.missing if one.counts == "missing" else fate.duplicated
    total = sum(found.values())
    width = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / sets) * sqrt(
        sum(size**2 for size in found.values())
    )
    return Comparison(
        one.name,
        result.accepted,
        probability * result.accepted,
        total,
        len(found),
        total - width,
        total + width,
    )


def table(compared: list[Comparison]) -> str:
    hits = sum(one.hit for one in compared)
    lines = [
        f"{hits} of {len(compared)} sets are within their intervals.",
        "",
        "| set | messages | incidents | counted | interval | model | |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {one.name} | {one.accepted:,} | {one.incidents:,} | {one.counted:,} |"
            f" {one.low:,.0f} to {one.high:,.0f} | {one.expected:,.0f} | {'hit' if one.hit else '**miss**'} |"
            for one in compared
        ),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="the long sets: about a quarter of an hour")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="sets whose names contain this")
    parser.add_argument(
        "--expected", action="store_true", help="print what the model expects; simulate nothing"
    )
    given = parser.parse_args()
    name, sets = ("long", LONG_SETS) if given.long else ("short", SETS)
    chosen = [one for one in sets if given.only in one.name]
    if given.write and len(chosen) < len(sets):
        parser.error("--write publishes all sets: leave out --only")
    if given.expected:
        for one in chosen:
            fate = modelled(one.world)
            share = fate.missing if one.counts == "missing" else fate.duplicated
            print(f"{share * one.messages:10.1f} {share:.3e} {one.name}")
        return 0
    compared = []
    for one in chosen:
        start = time.process_time()
        compared.append(compare(one))
        last = compared[-1]
        print(
            f"{'hit ' if last.hit else 'MISS'} {last}  {time.process_time() - start:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    print(table(compared))
    if given.write:
        text = PAGE.read_text()
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        PAGE.write_text(f"{before}{begin}\n\n{table(compared)}\n\n{end}{after}")
    return 0 if all(one.hit for one in compared) else 1


if __name__ == "__main__":
    raise SystemExit(main())
