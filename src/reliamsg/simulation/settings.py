"""The settings of clients: each client draws every public setting independently, and anew for each site.

:data:`VALUES` has the values that each setting is drawn from, within what its documentation allows, including extremes.
:data:`NOT_DRAWN` has the other settings, and why they are not drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliamsg.config import JournalExport, Site
from reliamsg.keys import KeyRing
from reliamsg.policy import Quorum
from reliamsg.trust import Owner

__all__ = [
    "DRAWN",
    "HOLDS",
    "JOURNAL_KEY",
    "NOT_DRAWN",
    "VALUES",
    "ClientSettings",
    "choose",
    "draw_client",
    "journal_export",
    "journal_secret",
    "site_settings",
]

JOURNAL_KEY = "j"
"""The id of all keys of journals."""
KIB = 1024
MIB = 1024 * 1024

VALUES: dict[str, tuple[Any, ...]] = {
    "Site.url": ("amqp", "mqtt"),
    "Site.confirm_timeout": (1.0, 3.0, 30.0),
    "Site.connect_timeout": (1.0, 3.0, 10.0),
    "Site.backoff_min": (0.05, 0.2, 0.5),
    "Site.backoff_max": (0.5, 2.0, 10.0),
    "Site.heartbeat": (2.0, 4.0, 10.0),
    "Site.window_batches": (1, 2, 8, 64, 256),
    "Site.window_bytes": (1, KIB, 64 * KIB, 8 * MIB),
    "Site.prefetch": (2, 8, 64, 1_000),
    "Site.max_frame_bytes": (KIB, 2 * KIB, 64 * KIB, 16 * MIB),
    "Site.queue_type": ("quorum", "classic"),
    "Site.mqtt_version": ("auto", "5", "3.1.1"),
    "Producer.groups": ("all", "all", "some"),
    "Producer.confirm": ("all", "all", "any", "all-active", "quorum"),
    "Producer.release": ("confirmed", "consumed"),
    "Producer.wire": ("batch",) * 9 + ("plain",),
    "Producer.compression": (None, None, "zstd"),
    "Producer.max_bytes": (8 * KIB, MIB, 1024 * MIB),
    "Producer.retain_seconds": (0.0, 1.0, 300.0),
    "Producer.retain_bytes": (0, 4 * KIB, 64 * MIB),
    "Producer.max_batch_messages": (1, 4, 16, 2_048),
    "Producer.max_batch_bytes": (1, 512, 4 * KIB, 256 * KIB),
    "Producer.hello_timeout": (0.0, 1.0, 1.0, 5.0),
    "Producer.status_interval": (0.05, 1.0, 1.0, 5.0),
    "Producer.max_repair_bytes_per_second": (None, KIB, 64 * KIB, 64 * MIB),
    "Producer.keys": (False, False, False, False, True),
    "Producer.when_full": ("raise", "block"),
    "Producer.block_timeout": (0.05, 1.0, 30.0),
    "Producer.remove": (0.0, 0.0, 0.01, 0.05),
    "Producer.add_group": (0.0, 0.0, 0.02),
    "Producer.journal": (False,) * 5 + (True,),
    "Producer.journal_interval": (0.2, 1.0, 60.0),
    "Producer.journal_rows": (3, 10, 10_000),
    "Producer.journal_backlog": (1, 2, 1_000),
    "Producer.journal_full": ("block", "truncate"),
    "Producer.journal_signed": (False, True),
    "Consumer.topics": ("all", "all", "all", "one"),
    "Consumer.begin": ("earliest", "earliest", "earliest", "latest"),
    "Consumer.gap_timeout": (2.0, 5.0, 10.0, 30.0),
    "Consumer.on_gap": ("accept", "skip", "wait", "hold", "hold"),
    "Consumer.max_deliveries": (1, 3, 50),
    "Consumer.on_dead_letter": ("continue", "continue", "halt"),
    "Consumer.max_unacknowledged": (1, 10, 50, 1_000),
    "Consumer.max_inbox_bytes": (4 * KIB, 64 * KIB, 256 * MIB),
    "Consumer.max_streams": (1, 2, 8, 10_000),
    "Consumer.max_known_streams": (8, 5_000_000),
    "Consumer.max_quarantine_bytes": (MIB, 64 * MIB),
    "Consumer.repair_delay": (0.1, 0.5, 2.0),
    "Consumer.repair_timeout": (20.0, 60.0, 300.0),
    "Consumer.standby": (False,) * 7 + (True,),
    "Consumer.takeover_timeout": (8.0, 16.0, 30.0),
    "Consumer.journal": (False,) * 5 + (True,),
    "Consumer.journal_interval": (0.2, 1.0, 60.0),
    "Consumer.journal_rows": (3, 10, 10_000),
    "Consumer.journal_backlog": (1, 2, 1_000),
    "Consumer.journal_full": ("block", "truncate"),
    "Consumer.journal_signed": (False, True),
    "Consumer.held_bytes": (2 * KIB, 32 * MIB),
    "Consumer.batch": (None, None, 1, 7, 64),
    "Consumer.handling_s": (0.0001, 0.002, 0.05),
    "Consumer.operator_s": (3.0, 3.0, 30.0),
    "Broker.tells": ("always", "always", "wrongly", "never", "never"),
    "Broker.inflight": (None, None, 20),
    "Broker.refuses": ("closing", "closing", "answering"),
}
"""By class and parameter. Each has separate dice, so one more setting does not change the others.

In addition to parameters there are:

- ``remove`` and ``add_group``: how often a publish is followed by removing messages, and by adding or removing a
  group
- ``batch`` and ``handling_s``: how many messages a handler is called with, and how many seconds it takes at most
- ``operator_s``: how many seconds it takes at most until an operator looks at a stream that a gap holds, and again
  after that
- ``held_bytes``: how many bytes a receiver of an MQTT site holds before it drops messages beyond its window
- ``journal``: whether a client exports its journal, with ``journal_interval``, ``journal_rows`` (the rows of a
  segment), ``journal_backlog`` (the limit for rows that are not exported, in multiples of the lowest that is allowed),
  ``journal_full`` (what happens at this limit) and ``journal_signed`` (whether it has a key): the arguments of
  :class:`~reliamsg.JournalExport`
- the behaviour of MQTT brokers: whether they report missing subscribers (``tells``), how much they send ahead of
  acknowledgements (``inflight``), and how they refuse control addresses (``refuses``)
"""

HOLDS: dict[str, tuple[Any, ...]] = {
    "Consumer.on_gap": ("hold",),
    "Consumer.gap_timeout": (2.0,),
    "Consumer.repair_timeout": (1.0,),
    "Consumer.max_inbox_bytes": (4 * KIB,),
    "Consumer.max_quarantine_bytes": (16 * KIB, 64 * KIB, MIB),
    "Consumer.max_streams": (8, 10_000),
    "Consumer.operator_s": (30.0,),
}
"""Settings of groups in seeds with a hole in a stream: gaps are held early and long enough that small inboxes run out
of room. Drawn with dice of their own, instead of :data:`VALUES`."""

DRAWN: dict[str, tuple[Any, ...]] = {
    name: tuple(dict.fromkeys((*values, *HOLDS.get(name, ())))) for name, values in VALUES.items()
}
"""Every value that a setting can have."""

NOT_DRAWN: dict[str, str] = {
    "Site.name": "a name",
    "Site.tls": "simulated networks carry no bytes that could be encrypted",
    "Site.credentials": "a callable; logins are refused by a fault",
    "Site.declare": "the model's brokers have no topology that could be missing",
    "Site.auth": "the model's brokers require no login",
    "Producer.producer_id": "a name",
    "Producer.sites": "each has settings of its own",
    "Producer.outbox": "a path",
    "Producer.on_error": "a callable",
    "Consumer.group": "a name",
    "Consumer.sites": "each has settings of its own",
    "Consumer.inbox": "a path",
    "Consumer.on_late": "a callable",
    "Consumer.on_error": "a callable",
    "Consumer.keys": "those of the producers: clients with others are refused",
    "Consumer.unsequenced": "messages of ordinary clients have no identity that could be judged",
}
"""Parameters that are not drawn, and why."""

PER_SITE = (
    "confirm_timeout", "connect_timeout", "backoff_min", "backoff_max", "heartbeat", "window_batches", "window_bytes",
    "prefetch",
)  # fmt: skip


@dataclass(frozen=True)
class ClientSettings:
    """The settings of one client or broker, by parameter: ``settings["max_bytes"]``."""

    role: str
    """``Producer``, ``Consumer`` or ``Broker``."""
    values: Mapping[str, Any]
    sites: tuple[Site, ...]

    def __getitem__(self, parameter: str) -> Any:
        return self.values[parameter]

    def drawn(self) -> Iterator[tuple[str, Any]]:
        """The settings that were drawn, and their values."""
        for name, value in self.values.items():
            yield f"{self.role}.{name}", "quorum" if isinstance(value, Quorum) else value
        for site in self.sites:
            for name, value in site_settings(site).items():
                yield f"Site.{name}", value


def site_settings(site: Site) -> dict[str, Any]:
    """The settings of a site that were drawn."""
    found = {"url": site.scheme} | {name: getattr(site, name) for name in (*PER_SITE, "max_frame_bytes")}
    own = "mqtt_version" if site.protocol == "mqtt" else "queue_type"
    return found | {own: getattr(site, own)}


def journal_secret(role: str, client: str) -> bytes:
    """The secret with which a producer or group signs its journal."""
    return hashlib.sha256(f"simulated {role}/{client}".encode()).digest()


def journal_export(settings: ClientSettings, target: Path, owner: Owner) -> JournalExport | None:
    """Where a client exports its journal to; None if it does not."""
    if not settings["journal"]:
        return None
    key = KeyRing({JOURNAL_KEY: journal_secret(*owner)}, sign_with=JOURNAL_KEY)
    rows = settings["journal_rows"]
    return JournalExport(
        target, interval=settings["journal_interval"], segment_rows=rows, when_full=settings["journal_full"],
        max_backlog_rows=max(10, 2 * rows) * settings["journal_backlog"],
        key=key if settings["journal_signed"] else None,
    )  # fmt: skip


def choose(seed: int, what: str, values: Sequence[Any]) -> Any:
    """One of these values, drawn with dice that are used for nothing else."""
    return random.Random(f"{seed}/{what}").choice(values)


def draw_client(
    seed: int, name: str, role: str, sites: tuple[Site, ...], fixed: Mapping[str, Any], least_frame: int
) -> ClientSettings:
    """The settings of one client. `fixed`: values that it does not draw. `least_frame`: the size of the largest frames
    that it receives at any site; 0 for a sender."""
    values = {
        parameter: choose(seed, f"{name}/{parameter}", VALUES[key])
        for key in VALUES
        for of, parameter in [key.split(".")]
        if of == role and parameter not in fixed
    } | dict(fixed)  # fmt: skip
    if values.get("confirm") == "quorum":
        values["confirm"] = Quorum(min(2, len(sites)))
    plain = values.get("wire") == "plain" or bool(values.pop("reads_plain", False))
    return ClientSettings(role, values, tuple(_site(seed, name, site, plain, least_frame) for site in sites))


def _site(seed: int, client: str, site: Site, plain: bool, least_frame: int) -> Site:
    def own(parameter: str) -> Any:
        return choose(seed, f"{client}/{site.name}/{parameter}", VALUES[f"Site.{parameter}"])

    drawn = {name: own(name) for name in PER_SITE}
    drawn["backoff_max"] = max(drawn["backoff_max"], drawn["backoff_min"])
    version = own("mqtt_version")
    if plain and version == "3.1.1":  # that version has no headers
        version = "5"
    return Site(
        site.name, f"{site.scheme}://simulated", max_frame_bytes=max(own("max_frame_bytes"), least_frame),
        mqtt_version=version if site.protocol == "mqtt" else "auto", queue_type=site.queue_type, **drawn,
    )  # fmt: skip
