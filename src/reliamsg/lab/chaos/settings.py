"""Random public settings for the clients of a campaign's run.

Every argument of :class:`~reliamsg.Producer`, :class:`~reliamsg.Consumer`, :class:`~reliamsg.Site` and
:class:`~reliamsg.JournalExport` is either drawn here or listed in :data:`NOT_DRAWN` with the reason. A test compares
both with the signatures, so that no new setting is forgotten. Values come from the documented ranges, including the
extremes, unless a run of some ten seconds could not distinguish a client that is stuck from one that waits as
configured.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["NOT_DRAWN", "Drawn", "draw", "fit_small_disks", "journal_secret", "tally"]

KB = 1024
MB = 1024 * 1024

SITE: dict[str, tuple[Any, ...]] = {
    "confirm_timeout": (0.5, 2.0, 30.0),
    "connect_timeout": (1.0, 2.0, 10.0),
    "backoff_min": (0.01, 0.05, 0.2),
    "backoff_max": (0.2, 0.5, 1.0),
    "heartbeat": (1.0, 2.0),
    "window_batches": (1, 2, 16, 256),
    "window_bytes": (1, 4 * KB, 8 * MB),
    "prefetch": (2, 3, 16, 64, 1000),
    "max_frame_bytes": (4 * KB, 60_000, 16 * MB),
    "queue_type": ("quorum", "classic"),
    "mqtt_version": ("auto", "5", "3.1.1"),
}
PRODUCER: dict[str, tuple[Any, ...]] = {
    "confirm": ("all", "all", "any", "all-active", {"quorum": 1}, {"quorum": 2}),
    "release": ("consumed", "consumed", "confirmed"),
    "wire": ("batch", "batch", "plain"),
    "compression": (None, "zstd"),
    "max_bytes": (64 * KB, 1 * MB, 1024 * MB),
    "retain_seconds": (0.0, 1.0, 300.0),
    "retain_bytes": (0, 64 * KB, 64 * MB),
    "when_full": ("block", "raise"),
    "block_timeout": (0.0, 1.0, 30.0),
    "max_batch_messages": (1, 20, 2048),
    "max_batch_bytes": (1 * KB, 16 * KB, 256 * KB),
    "hello_timeout": (0.0, 1.0),
    "status_interval": (0.2, 1.0, 3.0),
    "max_repair_bytes_per_second": (None, 256 * KB, 64 * MB),
}
CONSUMER: dict[str, tuple[Any, ...]] = {
    "begin": ("earliest", "earliest", "latest"),
    "gap_timeout": (0.5, 2.0, 30.0),
    "on_gap": ("hold", "hold", "call:wait", "call:skip", "raise", "skip"),
    "max_deliveries": (1, 3, 5),
    "on_dead_letter": ("continue", "continue", "halt"),
    "max_unacknowledged": (1, 50, 1_000),
    "max_inbox_bytes": (32 * KB, 1 * MB, 256 * MB),
    "max_quarantine_bytes": (1 * MB, 64 * MB),
    "max_streams": (2, 8, 10_000),
    "max_known_streams": (16, 5_000_000),
    "repair_delay": (0.05, 0.5, 2.0),
    "repair_timeout": (60.0, 300.0),
    "standby": (False, False, True),
    "takeover_timeout": (6.0, 15.0, 30.0),
    "unsequenced": ("refuse", "refuse", "deliver"),
}
JOURNAL: dict[str, tuple[Any, ...]] = {
    "interval": (0.2, 1.0, 60.0),
    "segment_rows": (10, 10_000),
    "max_backlog_rows": (20, 200, 20_000, 100_000),
    "when_full": ("block", "truncate"),
}
HANDLING: dict[str, tuple[Any, ...]] = {
    "way": ("single", "batch", "get", "iterate", "batches"),
    "batch": (2, 50, 1_000),
    "workers": (1, 4),
    "delay": (0.0, 0.001, 0.01),
    "fails": (0.0, 0.02),
}
PUBLISHING: dict[str, tuple[Any, ...]] = {
    "way": ("publish", "publish_nowait", "publish_many"),
    "chunk": (1, 10, 50),
    "size": (0, 100, 3_000),
    "removes": (False, False, True),
    "regroups": (False, False, True),
}
ROLES: dict[str, dict[str, tuple[Any, ...]]] = {
    "site": SITE,
    "producer": PRODUCER,
    "consumer": CONSUMER,
    "journal": JOURNAL,
    "handling": HANDLING,
    "publishing": PUBLISHING,
}

NOT_DRAWN: dict[str, dict[str, str]] = {
    "site": {
        "name": "an address", "url": "an address", "tls": "fault proxies support plain connections only",
        "credentials": "brokers of the run admit everyone", "auth": "brokers of the run admit everyone",
        "declare": "topology that others declare has its own tests",
    },
    "producer": {
        "producer_id": "a name", "sites": "drawn separately", "outbox": "a path", "groups": "all groups of the run",
        "keys": "drawn for the whole run", "journal": "drawn for the whole run, each option separately",
        "on_error": "always given",
    },
    "consumer": {
        "group": "a name", "sites": "drawn separately", "topics": "all topics of the run", "inbox": "a path",
        "keys": "drawn for the whole run", "journal": "drawn for the whole run, each option separately",
        "on_error": "always given", "on_late": "always given",
    },
    "journal": {"target": "a path", "key": "each client has its own; whether they sign is drawn for the whole run"},
}  # fmt: skip
"""Arguments that are not drawn, by role, with the reason."""


@dataclass(frozen=True)
class Drawn:
    """The settings of one run, as JSON values for the applications' configuration."""

    sites: tuple[dict[str, Any], ...]
    """For each site, the arguments of Site for producers, followed by those for consumers."""
    producers: tuple[dict[str, Any], ...]
    consumers: tuple[dict[str, Any], ...]
    publishing: tuple[dict[str, Any], ...]
    handling: tuple[dict[str, Any], ...]
    topics: tuple[str, ...]
    key: str
    """A shared secret in hexadecimal; empty if nothing is signed."""
    journal: Mapping[str, Any] | None
    """Arguments of the clients' JournalExport; None if journals stay in the files."""
    journal_signed: bool
    """Whether exported journals are signed, each client with a key of its own."""

    def chosen(self) -> Iterable[tuple[str, Any]]:
        """The name and value of every setting that was drawn."""
        for role, many in (
            ("site", self.sites),
            ("producer", self.producers),
            ("consumer", self.consumers),
            ("publishing", self.publishing),
            ("handling", self.handling),
            ("journal", () if self.journal is None else (self.journal,)),
        ):
            for one in many:
                yield from ((f"{role}.{name}", value) for name, value in one.items())
        yield "run.producers", len(self.producers)
        yield "run.groups", len(self.consumers)
        yield "run.topics", len(self.topics)
        yield "run.keys", bool(self.key)
        yield "run.journal", self.journal is not None
        yield "run.journal_signed", self.journal_signed

    def text(self) -> str:
        """All settings in one line, for a report."""
        return ", ".join(f"{name}={value}" for name, value in self.chosen())


def tally(runs: Iterable[Drawn]) -> dict[str, dict[str, int]]:
    """How often each value of each setting was drawn."""
    found: dict[str, Counter[str]] = {}
    for drawn in runs:
        for name, value in drawn.chosen():
            found.setdefault(name, Counter())[str(value)] += 1
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def draw(rng: random.Random, protocols: tuple[str, ...]) -> Drawn:
    """Draw settings for a run over sites that speak `protocols` (``amqp`` or ``mqtt``)."""
    producers = [_values(rng, PRODUCER) for _ in range(rng.choice((1, 1, 2, 3)))]
    consumers = [_values(rng, CONSUMER) for _ in range(rng.choice((1, 1, 2)))]
    sites = [site for protocol in protocols for site in _both_sides(rng, protocol)]
    key = rng.randbytes(32).hex() if rng.random() < 0.25 else ""
    journal = _values(rng, JOURNAL) if rng.random() < 0.5 else None
    if journal is not None:
        journal["max_backlog_rows"] = max(journal["max_backlog_rows"], 2 * journal["segment_rows"])
    for producer in producers:
        _consistent_producer(producer, sites, len(protocols))
    lasting = all(producer["release"] == "consumed" for producer in producers)
    for consumer in consumers:
        _consistent_consumer(consumer, lasting, bool(key))
    publishing = [_values(rng, PUBLISHING) for _ in producers]
    for one, producer in zip(publishing, producers, strict=True):
        one["chunk"] = max(1, min(one["chunk"], producer["max_bytes"] // 2 // max(1, one["size"])))
    return Drawn(
        tuple(sites), tuple(producers), tuple(consumers), tuple(publishing),
        tuple(_values(rng, HANDLING) for _ in consumers),
        ("t1", "t2", "t3")[: rng.choice((1, 1, 2, 3))], key, journal, journal is not None and rng.random() < 0.5,
    )  # fmt: skip


def journal_secret(role: str, client: str) -> bytes:
    """The secret with which a producer or group signs its journal."""
    return hashlib.sha256(f"campaign {role}/{client}".encode()).digest()


def fit_small_disks(drawn: Drawn) -> None:
    """Limit the first outbox and the first inbox to less than a disk of 2 MB holds; otherwise it would stay full."""
    drawn.producers[0]["max_bytes"] = 64 * KB
    publishing = drawn.publishing[0]
    publishing["chunk"] = max(1, min(publishing["chunk"], 32 * KB // max(1, publishing["size"])))
    drawn.consumers[0].update(max_inbox_bytes=32 * KB, max_streams=10_000)


def _values(rng: random.Random, of: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: rng.choice(values) for name, values in of.items()}


def _both_sides(rng: random.Random, protocol: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a site for producers, and for consumers."""
    outwards, inwards = _site(rng, protocol), _site(rng, protocol)
    if "queue_type" in outwards:
        inwards["queue_type"] = outwards["queue_type"]  # the first client to connect declares the queue
    return outwards, inwards


def _site(rng: random.Random, protocol: str) -> dict[str, Any]:
    """Settings of the other protocol keep their defaults."""
    found = _values(rng, SITE)
    del found["queue_type" if protocol == "mqtt" else "mqtt_version"]
    found["backoff_max"] = max(found["backoff_max"], found["backoff_min"])
    return found


def _consistent_producer(producer: dict[str, Any], sites: list[dict[str, Any]], count: int) -> None:
    """Resolve contradictions between arguments; `count` is the number of sites."""
    if producer["confirm"] == {"quorum": 2} and count < 2:
        producer["confirm"] = {"quorum": 1}
    if any(site.get("mqtt_version") not in (None, "5") for site in sites):
        producer["wire"] = "batch"  # the plain form needs the user properties of MQTT 5
    if producer["wire"] == "plain":
        producer["compression"] = None


def _consistent_consumer(consumer: dict[str, Any], lasting: bool, signed: bool) -> None:
    """Resolve contradictions between arguments. `lasting`: producers keep everything until it is consumed, so no gap
    ever has to be skipped. `signed`: messages without an identity have no signature either."""
    if signed:
        consumer["unsequenced"] = "refuse"
    if not lasting:
        # Missing messages may be gone everywhere: a policy that skips gaps must tell the application, and one that
        # waits must name the gap.
        consumer["standby"] = False  # it needs producers that keep what the active consumer had received
        if consumer["on_gap"] == "skip":
            consumer["on_gap"] = "call:skip"
    elif consumer["on_gap"] in ("skip", "call:skip", "raise"):
        # Longer than all faults: messages that a producer still keeps must not be skipped, however long it was away.
        consumer["gap_timeout"] = 30.0
