"""Latencies from journals, including absurd values."""

from __future__ import annotations

from reliamsg.checker.latency import summarize
from reliamsg.store.journal import JournalRow


def row(latency: dict[int, int]) -> JournalRow:
    return JournalRow(
        1, "0" * 16, "enqueued", 1, 1, 1, "p", "t", 0, 1, 1, 1, 1, "", "", "", None, latency, None
    )


def test_quantiles_are_upper_bounds() -> None:
    assert summarize([row({8: 98, 40: 2})])["publish_to_durable"] == {
        "p50": 5e-06, "p95": 5e-06, "p99": 0.001218, "max": 0.001218
    }  # fmt: skip


def test_a_bucket_that_no_time_belongs_to_is_the_last() -> None:
    assert summarize([row({10**9: 1})]) == summarize([row({255: 1})])
