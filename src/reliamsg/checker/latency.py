"""Latencies of each hop, from the histograms in journal rows."""

from __future__ import annotations

from collections.abc import Iterable

from reliamsg.store.journal import JournalRow

__all__ = ["summarize"]

_HOPS = {
    "enqueued": "publish_to_durable",
    "confirmed": "durable_to_confirmed",
    "delivered": "received_to_delivered",
    "acknowledged": "publish_to_acknowledged",
}
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_MAX_BUCKET = 255
"""Half a million years."""


def summarize(rows: Iterable[JournalRow]) -> dict[str, dict[str, float]]:
    """By hop, quantiles in seconds. They are upper bounds of buckets that are 19 % wide."""
    merged: dict[str, dict[int, int]] = {}
    for row in rows:
        hop = _HOPS.get(row.kind)
        if hop is not None and row.latency:
            buckets = merged.setdefault(hop, {})
            for number, count in row.latency.items():
                buckets[number] = buckets.get(number, 0) + count
    return {
        hop: {name: _quantile(buckets, q) for name, q in _QUANTILES.items()}
        for hop, buckets in merged.items()
    }


def _quantile(buckets: dict[int, int], q: float) -> float:
    needed = q * sum(buckets.values())
    seen = 0
    for number in sorted(buckets):
        seen += buckets[number]
        if seen >= needed:
            break
    # Bucket b ends at 2**((b+1)/4) µs. Numbers in a journal may be absurd, so they are limited.
    return round(2 ** ((min(number, _MAX_BUCKET) + 1) / 4) / 1e6, 6)
