"""Turns the sums and statuses of clients into the values of all metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from reliamsg.metrics.catalogue import (
    BOUNDS_S,
    CONSUMER_SITE_STATES,
    METRICS,
    PRODUCER_SITE_STATES,
)
from reliamsg.metrics.counts import DECLARED_REMOVED, FILLED, REPAIRED, Totals
from reliamsg.runtime.observation import State

if TYPE_CHECKING:
    from reliamsg.consumer.status import ConsumerStatus
    from reliamsg.export.exporter import JournalStatus
    from reliamsg.producer.status import ProducerStatus

__all__ = ["OTHER", "Distribution", "Labels", "Readings", "Role", "add_status", "add_totals"]

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of the metric's labels; first ``client``, if it is named."""
Role = Literal["producer", "consumer"]

OTHER = "other"
"""Stands for every value of a label that is not known beforehand, so that their number is bounded."""
RESULTS = ("confirmed", "nacked", "returned", "refused")
OUTCOMES = {"opened": "gap_opened", "filled": FILLED, "held": "gap_held", "declared": "declared",
            "removed": DECLARED_REMOVED}  # fmt: skip
QUARANTINE_REASONS = ("unreadable", "later-version", "held", "too-many-streams", "far-epoch")

_COUNTERS: Mapping[Role, Mapping[str, str]] = {
    "producer": {"enqueued": "enqueued", "policy_met": "published", "removed": "removed"},
    "consumer": {
        "delivered": "delivered", "redelivered": "redelivered", "acknowledged": "acknowledged",
        "dead_lettered": "dead_lettered", "replayed": "replayed", "late": "late", "asked": "asked",
    },
}  # fmt: skip
"""By name, the kind of entry whose messages are counted."""
_SITE_COUNTERS: Mapping[Role, Mapping[str, str]] = {
    "producer": {"repaired": "repaired", "released_unsent": "released_unsent"},
    "consumer": {
        "received": "received", "repairs_received": REPAIRED, "duplicates": "duplicate", "rejected": "rejected",
        "quarantined": "quarantined",
    },
}  # fmt: skip
"""The same, by site."""
_HISTOGRAMS: Mapping[Role, Mapping[str, str]] = {
    "producer": {"enqueue.duration": "enqueued"},
    "consumer": {"reorder.wait": "delivered", "acknowledge.duration": "acknowledged"},
}


@dataclass(slots=True)
class Distribution:
    """The value of a histogram."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """How many values are in each bucket, not cumulated; the last one has no upper bound."""
    sum_s: float = 0.0
    """The sum of all values in seconds, where each counts as the middle of its journal's bucket: within 10 %."""

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, histogram: Mapping[int, int]) -> None:
        """Add counts of the journal's buckets, see :mod:`reliamsg.protocol.histogram`."""
        for bucket, count in histogram.items():
            end_s = 2.0 ** ((bucket + 1) / 4) / 1e6
            at = sum(bound < end_s * (1 - 1e-9) for bound in BOUNDS_S)
            self.buckets[at] += count
            self.sum_s += count * 2.0 ** ((bucket + 0.5) / 4) / 1e6


@dataclass(slots=True)
class Readings:
    """The values of all metrics at one moment, by name and labels."""

    numbers: dict[str, dict[Labels, float]] = field(default_factory=lambda: {name: {} for name in METRICS})
    distributions: dict[str, dict[Labels, Distribution]] = field(
        default_factory=lambda: {name: {} for name in METRICS}
    )

    def add(self, name: str, client: str, value: float, *labels: str) -> None:
        """Add to a number. `labels`: the values of the metric's labels."""
        key = self._labels(name, client, labels)
        numbers = self.numbers[name]
        numbers[key] = numbers.get(key, 0) + value

    def highest(self, name: str, client: str, value: float) -> None:
        """Raise a number, if it is lower."""
        key = self._labels(name, client, ())
        self.numbers[name][key] = max(value, self.numbers[name].get(key, value))

    def distribute(self, name: str, client: str, histogram: Mapping[int, int], *labels: str) -> None:
        """Add to a histogram."""
        key = self._labels(name, client, labels)
        self.distributions[name].setdefault(key, Distribution()).add(histogram)

    def _labels(self, name: str, client: str, values: tuple[str, ...]) -> Labels:
        pairs = tuple(zip(METRICS[name].labels, values, strict=True))
        return (("client", client), *pairs) if client else pairs


def add_totals(readings: Readings, role: Role, client: str, sites: frozenset[str], totals: Totals) -> None:
    """Add the sums of journal entries. `sites`: those that have a label of their own. Counters start with 0, for every
    site and result, so that the first increase is visible."""
    sums = _Sums(sites, totals)
    for name, kind in _COUNTERS[role].items():
        readings.add(name, client, sums.of(kind))
    for name, kind in _SITE_COUNTERS[role].items():
        for site, count in sums.by_site(kind).items():
            readings.add(name, client, count, site)
    for site, count in sums.by_site("disconnected").items():
        readings.add("disconnects", client, count, role, site)
    readings.add("journal.truncated", client, sums.of("truncated"), role)
    for name, kind in _HISTOGRAMS[role].items():
        readings.distribute(name, client, totals.latencies.get((kind, ""), {}))
    if role == "producer":
        for result in RESULTS:
            for site, count in sums.by_site(result).items():
                readings.add("published", client, count, site, result)
        for site in sites:
            readings.distribute(
                "confirm.duration", client, totals.latencies.get(("confirmed", site), {}), site
            )
        return
    readings.add("takeovers", client, sums.of("took_over"))
    readings.add("conflicts", client, totals.events.get("conflict", 0))
    for outcome, kind in OUTCOMES.items():
        readings.add("gaps", client, totals.events.get(kind, 0), outcome)
    readings.add("declared", client, sums.of("declared"), "lost")
    readings.add("declared", client, sums.of(DECLARED_REMOVED), "removed")


class _Sums:
    """The messages of each kind."""

    def __init__(self, sites: frozenset[str], totals: Totals) -> None:
        self._sites = sites
        self._by_kind: dict[str, dict[str, int]] = {}
        for (kind, site), count in totals.messages.items():
            of_kind = self._by_kind.setdefault(kind, {})
            label = site if site in sites else OTHER
            of_kind[label] = of_kind.get(label, 0) + count

    def of(self, kind: str) -> int:
        """At all sites, or at none."""
        return sum(self._by_kind.get(kind, {}).values())

    def by_site(self, kind: str) -> dict[str, int]:
        return dict.fromkeys(sorted(self._sites), 0) | self._by_kind.get(kind, {})


def add_status(readings: Readings, role: Role, client: str, state: State) -> None:
    """Add what an open client shows."""
    if role == "producer":
        _add_producer(readings, client, state)
    else:
        _add_consumer(readings, client, state)


def _add_producer(readings: Readings, client: str, state: State) -> None:
    status: ProducerStatus = state.status
    for each in ("running", "failed"):
        readings.add("producers", client, (each == "failed") == state.failed, each)
    readings.add("outbox.messages", client, status.pending)
    readings.highest("outbox.oldest_age", client, status.oldest_age_s or 0.0)
    readings.add("outbox.used", client, state.used_bytes)
    readings.add("outbox.limit", client, state.limit_bytes)
    readings.add("outbox.stored", client, status.stored_bytes)
    for name, site in status.sites.items():
        readings.add("site.behind_batches", client, site.behind, name)
        readings.add("site.in_flight_batches", client, site.in_flight, name)
        readings.add("site.parked_streams", client, len(site.parked), name)
        readings.add("site.unseen_groups", client, len(site.unseen), name)
        _add_connection(readings, "producer", client, name, site.state)
    _add_journal(readings, "producer", client, status.journal)


def _add_consumer(readings: Readings, client: str, state: State) -> None:
    status: ConsumerStatus = state.status
    now = "failed" if state.failed else "blocked" if status.error else status.role
    for each in ("starting", "active", "standby", "blocked", "failed"):
        readings.add("consumers", client, now == each, each)
    readings.add("inbox.used", client, state.used_bytes)
    readings.add("inbox.limit", client, state.limit_bytes)
    readings.add("inbox.stalled", client, bool(status.stalled))
    streams = status.streams.values()
    readings.add("held_messages", client, sum(stream.held for stream in streams))
    readings.add("unacknowledged_messages", client, sum(stream.unacknowledged for stream in streams))
    readings.add("streams", client, len(streams), "in_memory")
    readings.add("streams", client, sum(stream.gap is not None for stream in streams), "gap")
    readings.add("streams", client, sum(stream.gap_held for stream in streams), "held")
    readings.add("streams", client, sum(stream.failing for stream in streams), "failing")
    readings.add("streams", client, sum(stream.halted for stream in streams), "halted")
    readings.highest("gap.longest", client, max((stream.gap_elapsed_s for stream in streams), default=0.0))
    readings.add("dead_letters", client, status.dead_letters)
    quarantined = dict.fromkeys(QUARANTINE_REASONS, 0)
    for reason, count in status.quarantined.items():
        label = reason if reason in quarantined else OTHER
        quarantined[label] = quarantined.get(label, 0) + count
    for reason, count in quarantined.items():
        readings.add("quarantined_deliveries", client, count, reason)
    for name, site in status.sites.items():
        readings.add("site.pending_deliveries", client, site.pending, name)
        _add_connection(readings, "consumer", client, name, site.state)
    _add_journal(readings, "consumer", client, status.journal)


def _add_connection(readings: Readings, role: Role, client: str, site: str, state: str) -> None:
    states = PRODUCER_SITE_STATES if role == "producer" else CONSUMER_SITE_STATES
    for each in states:
        readings.add("site.clients", client, each == state, role, site, each)


def _add_journal(readings: Readings, role: Role, client: str, journal: JournalStatus | None) -> None:
    readings.add("journal.backlog_rows", client, 0 if journal is None else journal.backlog_rows, role)
    readings.add("journal.full", client, journal is not None and journal.full, role)
