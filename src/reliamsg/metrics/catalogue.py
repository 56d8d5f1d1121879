"""All metrics: their names, types, units and labels. docs/how-to/monitoring.md has the same table, with advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BOUNDS_S", "CONSUMER_SITE_STATES", "METRICS", "PRODUCER_SITE_STATES", "Metric"]

PRODUCER_SITE_STATES = (
    "connecting", "connected", "blocked", "unreachable", "refused credentials", "refused", "closed",
)  # fmt: skip
CONSUMER_SITE_STATES = ("connecting", "connected", "listening", "unreachable", "refused", "busy", "closed")

BOUNDS_S = tuple(2.0**exponent / 1e6 for exponent in (*range(10, 28), 30, 33, 36))
"""The upper bounds of histogram buckets, in seconds: powers of two from 1 ms to 19 hours. They are bounds of the
journal's own buckets too, so that no count is an estimate."""


_SUFFIXES = {"": "", "s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Whatever its labels are, it also has ``client`` if the application named the client."""

    name: str
    """Without ``reliamsg``, words separated by dots or underscores: what OpenTelemetry calls it."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    unit: Literal["", "s", "By"] = ""
    labels: tuple[str, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """Without the suffix that the type requires."""
        return f"reliamsg_{self.name.replace('.', '_')}{_SUFFIXES[self.unit]}"

    @property
    def otel_name(self) -> str:
        return f"reliamsg.{self.name}"


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "counter", text, labels=labels)


def _gauge(name: str, text: str, *labels: str, unit: Literal["", "s", "By"] = "") -> Metric:
    return Metric(name, "gauge", text, unit, labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "histogram", text, "s", labels)


METRICS = {
    metric.name: metric
    for metric in (
        # Producers
        _counter("enqueued", "Messages that became durable in the outbox"),
        _counter("published", "Messages by answer of a site", "site", "result"),
        _counter("policy_met", "Messages whose confirm policy was met"),
        _counter("repaired", "Messages that were sent again to a group that lacked them", "site"),
        _counter(
            "released_unsent",
            "Messages that left the full outbox though the site had not confirmed them",
            "site",
        ),
        _counter("removed", "Messages that the application removed from the outbox"),
        _histogram("enqueue.duration", "From publish() until the message is durable"),
        _histogram("confirm.duration", "From durable until confirmed, by batch", "site"),
        _gauge("producers", "Open producers", "state"),
        _gauge("outbox.messages", "Accepted messages whose confirm policy is not met"),
        _gauge("outbox.oldest_age", "Age of the oldest of them; 0 if there is none", unit="s"),
        _gauge("outbox.used", "Room in the outbox that is taken", unit="By"),
        _gauge("outbox.limit", "Room in the outbox: max_bytes", unit="By"),
        _gauge("outbox.stored", "Batches in the outbox, including those that are only retained", unit="By"),
        _gauge("site.behind_batches", "Batches that the site has not confirmed", "site"),
        _gauge("site.in_flight_batches", "Batches that are sent and unanswered", "site"),
        _gauge("site.parked_streams", "Streams that the site refuses for now", "site"),
        _gauge("site.unseen_groups", "Named groups that are not known to exist at the site", "site"),
        # Consumers
        _counter("received", "Messages in each site's order, also if another site was faster", "site"),
        _counter("repairs_received", "Messages that a producer sent again on request", "site"),
        _counter("duplicates", "Messages that were dropped as duplicates", "site"),
        _counter("delivered", "Messages delivered to the application for the first time"),
        _counter("redelivered", "Deliveries that were flagged as redelivered"),
        _counter("acknowledged", "Messages that the application acknowledged, durably"),
        _counter("dead_lettered", "Messages that were put into the dead letters"),
        _counter("replayed", "Dead letters that were delivered again"),
        _counter("late", "Messages that arrived after their gap was passed"),
        _counter("gaps", "Gaps by what became of them", "outcome"),
        _counter("declared", "Messages that were declared missing, where the number is known", "reason"),
        _counter("asked", "Messages that were requested from their producer"),
        _counter("rejected", "Deliveries that were not usable or not signed", "site"),
        _counter("quarantined", "Messages that were put into the quarantine", "site"),
        _counter("conflicts", "Signs of two producers with one identity, or of a restored outbox"),
        _counter("takeovers", "Take-overs of a group from another inbox"),
        _histogram("reorder.wait", "From received until delivered"),
        _histogram("acknowledge.duration", "From publish() until acknowledged, by two machines' clocks"),
        _gauge("consumers", "Open consumers", "state"),
        _gauge("inbox.used", "Room in the inbox that is taken", unit="By"),
        _gauge("inbox.limit", "Room in the inbox: max_inbox_bytes", unit="By"),
        _gauge("inbox.stalled", "Consumers whose inbox is full"),
        _gauge("held_messages", "Messages that arrived and are not settled"),
        _gauge("unacknowledged_messages", "Of those, messages that the application was given"),
        _gauge("streams", "Streams in memory by state", "state"),
        _gauge("gap.longest", "How long the oldest open gap has held its stream", unit="s"),
        _gauge("dead_letters", "Messages in the dead letters"),
        _gauge("quarantined_deliveries", "Deliveries in the quarantine", "reason"),
        _gauge("site.pending_deliveries", "Deliveries that the broker keeps until they are safe", "site"),
        # Both
        _gauge("site.clients", "Clients by the state of their connection", "role", "site", "state"),
        _counter("disconnects", "Connections that were lost or closed", "role", "site"),
        _gauge("journal.backlog_rows", "Journal rows that are not exported yet", "role"),
        _gauge("journal.full", "Clients that wait since their journal can't be exported", "role"),
        _counter("journal.truncated", "Journal rows about lost journal rows", "role"),
    )
}
"""By name."""
