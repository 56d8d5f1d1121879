"""The parameter sets with which the model is compared with the simulation.

They were committed, with their seeds and sizes, before the first of them was run, and are not changed afterwards. Rates
are far above real ones, so that each set has at least 100 expected losses (or duplicates). Rates are per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.plan.simulation import SiteSetup, WorldSetup

__all__ = ["LONG_SETS", "QUICK", "SETS", "ParameterSet"]


@dataclass(frozen=True)
class ParameterSet:
    """A world, how much of it is simulated, and what is counted."""

    name: str
    world: WorldSetup
    messages: int
    seed: int
    counts: Literal["missing", "duplicated"] = "missing"


def _site(**values: float) -> SiteSetup:
    return SiteSetup(**values)


_LOSES = _site(loss=1 / 150, outage=5)
_CRASHES = _site(crash=1 / 400, outage=30, confirm=0.5)

_PLAIN = [
    ("pika: the broker loses everything",
     WorldSetup(kind="pika", sites=(_site(loss=1 / 500, outage=5),), broker_wait=4, inbox_wait=0)),
    ("pika: the broker loses what it had not saved",
     WorldSetup(kind="pika", sites=(_site(crash=1 / 400, crash_window=1.5, outage=5),), broker_wait=5, inbox_wait=0)),
    ("pika: both, with a window beyond the wait",
     WorldSetup(kind="pika", sites=(_site(crash=1 / 500, crash_window=60, loss=1 / 900, outage=10),), broker_wait=3,
                inbox_wait=0)),
    ("pika: the consumer is away",
     WorldSetup(kind="pika", sites=(_site(loss=1 / 400, outage=5),), broker_wait=1, inbox_wait=0,
                consumer_crash=1 / 500, consumer_outage=60)),
    ("pika: a cluster that heals itself",
     WorldSetup(kind="pika", sites=(_site(split=1 / 900, split_seconds=20, outage=5),), broker_wait=1, inbox_wait=0)),
    ("pika: a cluster that heals itself and loses nodes, with outages of the consumer",
     WorldSetup(kind="pika", sites=(_site(split=1 / 900, split_seconds=10, loss=1 / 700, outage=8),), broker_wait=2,
                inbox_wait=0, consumer_crash=1 / 900, consumer_outage=30)),
    ("paho: the process crashes",
     WorldSetup(kind="paho", sites=(_site(crash=1 / 600, outage=30, confirm=0.5),), broker_wait=1, inbox_wait=0,
                producer_crash=1 / 300, producer_restart=5)),
    ("paho: long outages of the broker",
     WorldSetup(kind="paho", sites=(_site(crash=1 / 2000, outage=100, confirm=0.1),), broker_wait=1, inbox_wait=0,
                producer_crash=1 / 200, producer_restart=2)),
    ("paho: everything fails",
     WorldSetup(kind="paho", sites=(_site(crash=1 / 900, crash_window=2, loss=1 / 900, outage=15, confirm=0.2),),
                broker_wait=3, inbox_wait=0, producer_crash=1 / 500, producer_restart=5, producer_disk=1 / 2000,
                consumer_crash=1 / 900, consumer_outage=20)),
]  # fmt: skip

_CONFIRMED = [
    ("confirmed: one site, no retention",
     WorldSetup(sites=(_site(loss=1 / 500, outage=5),), broker_wait=5)),
    ("confirmed: one site, retention shorter than outages of the consumer",
     WorldSetup(sites=(_site(loss=1 / 300, outage=5),), retain=10, consumer_crash=1 / 700, consumer_outage=30)),
    ("confirmed: a cluster, retention shorter than partitions",
     WorldSetup(sites=(_site(split=1 / 800, split_seconds=30),), retain=10)),
    ("confirmed: two sites, no retention",
     WorldSetup(sites=(_LOSES, _LOSES), needed=2, broker_wait=15)),
    ("confirmed: two unlike sites",
     WorldSetup(sites=(_site(loss=1 / 100, outage=4, confirm=0.2), _site(crash=1 / 80, crash_window=3, outage=6)),
                needed=2, broker_wait=10)),
    ("confirmed: two sites that fail together",
     WorldSetup(sites=(_site(loss=1 / 400, outage=5), _site(loss=1 / 400, outage=5)), needed=2, common_loss=1 / 800,
                broker_wait=4)),
    ("confirmed: two sites, retention, outages of the consumer",
     WorldSetup(sites=(_LOSES, _LOSES), needed=2, retain=20, consumer_crash=1 / 400, consumer_outage=60)),
    ("confirmed: two sites are away and the disk fails",
     WorldSetup(sites=(_CRASHES, _CRASHES), needed=2, producer_disk=1 / 500)),
    ("confirmed: three sites",
     WorldSetup(sites=(_site(loss=1 / 60, outage=3),) * 3, needed=3, broker_wait=12)),
    ("confirmed: a cluster and a broker",
     WorldSetup(sites=(_site(split=1 / 200, split_seconds=20), _site(loss=1 / 100, outage=5)), needed=2,
                broker_wait=8)),
    ("confirmed: the inbox is lost, no retention",
     WorldSetup(sites=(_site(), _site()), needed=2, inbox_loss=1 / 500, inbox_wait=4)),
    ("confirmed: the inbox is lost, retention",
     WorldSetup(sites=(_site(), _site()), needed=2, inbox_loss=1 / 400, inbox_wait=20, retain=15)),
    ("confirmed: the inbox and the outbox are lost",
     WorldSetup(sites=(_site(), _site()), needed=2, inbox_loss=1 / 200, inbox_wait=12, retain=10,
                producer_disk=1 / 100)),
    ("confirmed, any: the outbox overflows while a site is away",
     WorldSetup(sites=(_site(loss=1 / 200, outage=5), _site(crash=1 / 400, outage=60)), needed=1, fill=15,
                broker_wait=5, consumer_crash=1 / 200, consumer_outage=40)),
    ("confirmed, all: the outbox is full while a site is away",
     WorldSetup(sites=(_site(loss=1 / 100, outage=5), _site(loss=1 / 200, outage=60)), needed=2, fill=15,
                broker_wait=8)),
    ("confirmed, skip: the producer is away",
     WorldSetup(sites=(_site(loss=1 / 100, outage=2),), broker_wait=8, retain=1000, patience=10,
                producer_crash=1 / 200, producer_restart=30)),
    ("confirmed, skip: the other site is away",
     WorldSetup(sites=(_site(loss=1 / 100, outage=5), _site(crash=1 / 200, outage=40)), needed=2, broker_wait=10,
                patience=5)),
]  # fmt: skip

_CONSUMED = [
    ("consumed: the disk fails before the site has it",
     WorldSetup(sites=(_site(confirm=1.0),), consumed=True, producer_disk=1 / 300)),
    ("consumed: the disk and the site fail",
     WorldSetup(sites=(_site(loss=1 / 100, outage=5),), consumed=True, broker_wait=20, producer_disk=1 / 200)),
    ("consumed: two sites are away and the disk fails",
     WorldSetup(sites=(_site(crash=1 / 200, outage=30),) * 2, needed=2, consumed=True, producer_disk=1 / 150)),
    ("consumed: all sites are away at once and the disk fails",
     WorldSetup(sites=(_site(outage=30),) * 2, needed=2, consumed=True, common_loss=1 / 400, producer_disk=1 / 100)),
    ("consumed: two sites and the disk fail during outages of the consumer",
     WorldSetup(sites=(_site(loss=1 / 80, outage=4),) * 2, needed=2, consumed=True, producer_disk=1 / 150,
                consumer_crash=1 / 300, consumer_outage=50)),
    ("consumed: the inbox and the disk fail",
     WorldSetup(sites=(_site(),), consumed=True, inbox_loss=1 / 200, inbox_wait=20, producer_disk=1 / 200)),
    ("consumed: a cluster and the disk fail",
     WorldSetup(sites=(_site(split=1 / 400, split_seconds=40),), consumed=True, producer_disk=1 / 200)),
    ("consumed: three sites are away and the disk fails",
     WorldSetup(sites=(_site(crash=1 / 60, outage=30, confirm=0.05),) * 3, needed=3, consumed=True,
                producer_disk=1 / 100)),
    ("consumed, skip: both sites lose it while the producer is away",
     WorldSetup(sites=(_site(loss=1 / 80, outage=4),) * 2, needed=2, consumed=True, broker_wait=15, patience=10,
                producer_crash=1 / 200, producer_restart=40)),
]  # fmt: skip

_DUPLICATED = [
    ("duplicated: the consumer crashes",
     WorldSetup(sites=(_site(), _site()), needed=2, consumer_crash=1 / 200, consumer_outage=2, handle=1.5)),
    ("duplicated: the inbox is lost while the outbox retains messages",
     WorldSetup(sites=(_site(), _site()), needed=2, inbox_loss=1 / 500, retain=15)),
    ("duplicated, consumed: the inbox is lost",
     WorldSetup(sites=(_site(),), consumed=True, inbox_loss=1 / 150, report=3)),
    ("duplicated, paho: the consumer crashes",
     WorldSetup(kind="paho", sites=(_site(),), inbox_wait=0, consumer_crash=1 / 200, consumer_outage=5, handle=2)),
]  # fmt: skip

MESSAGES = 150_000

SETS = tuple(
    ParameterSet(name, world, MESSAGES, 4000 + number, "duplicated" if "duplicated" in name else "missing")
    for number, (name, world) in enumerate([*_PLAIN, *_CONFIRMED, *_CONSUMED, *_DUPLICATED])
)

LONG_MESSAGES = 1_500_000

LONG_SETS = tuple(
    ParameterSet(one.name, one.world, LONG_MESSAGES, one.seed + 1000, one.counts) for one in SETS
)
"""The same worlds, ten times as long and with other seeds, for intervals that are a third as wide. They were committed
after the results of `SETS` were known in part, and before any of these was run."""

QUICK = (
    "pika: the broker loses everything",
    "confirmed: two sites, no retention",
    "consumed: the disk and the site fail",
)
"""The sets of which every test run repeats a part."""
