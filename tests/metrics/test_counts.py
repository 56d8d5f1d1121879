"""Journal entries become sums, without clients."""

from __future__ import annotations

import pytest

from reliamsg.message import Stream
from reliamsg.metrics.catalogue import BOUNDS_S, METRICS
from reliamsg.metrics.counts import DECLARED_REMOVED, FILLED, REPAIRED, Counts
from reliamsg.metrics.readings import Distribution, Readings, add_totals
from reliamsg.protocol.histogram import bucket
from reliamsg.store.journal import Entry

STREAM, OTHER_STREAM = Stream("p", "orders"), Stream("q", "orders")


def entry(kind: str, first: int = 0, last: int = 0, stream: Stream = STREAM, **more: object) -> Entry:
    return Entry(kind, stream, 1, 7, first, last, **more)  # type: ignore[arg-type]


def test_ranges_count_as_messages_and_the_rest_as_one() -> None:
    counts = Counts()
    counts(
        [
            entry("confirmed", 1, 10, site="a"),
            entry("confirmed", 1, 4, site="b"),
            entry("disconnected", site="a"),
        ]
    )
    counts(
        [entry("confirmed", 11, 11, site="a"), entry("rejected", site="a", reason="x", detail={"count": 5})]
    )
    assert counts.totals().messages == {
        ("confirmed", "a"): 11, ("confirmed", "b"): 4, ("disconnected", "a"): 1, ("rejected", "a"): 5,
    }  # fmt: skip


def test_repairs_are_not_counted_as_received() -> None:
    counts = Counts()
    counts([entry("received", 1, 3, site="a"), entry("received", 4, 5, site="a", reason="repair")])
    assert counts.totals().messages == {("received", "a"): 3, (REPAIRED, "a"): 2}


def test_a_closed_gap_was_filled_unless_the_same_commit_declares_it() -> None:
    counts = Counts()
    counts([entry("gap_opened", 3, 5), entry("gap_opened", 3, 5, OTHER_STREAM)])
    counts([entry("gap_closed", 3, 5, reason="changed")])
    counts(
        [
            entry("declared", 3, 5, OTHER_STREAM, reason="expired"),
            entry("gap_closed", 3, 5, OTHER_STREAM, reason="changed"),
            entry("gap_closed", 7, 7, reason="changed"),
            entry("declared", 9, 9, reason="removed"),
        ]
    )
    totals = counts.totals()
    assert totals.events == {"gap_opened": 2, FILLED: 2, "declared": 1, "gap_closed": 1, DECLARED_REMOVED: 1}
    assert totals.messages["declared", ""] == 3


def test_a_gap_of_unknown_extent_is_a_gap_of_no_known_messages() -> None:
    counts = Counts()
    counts(
        [
            entry("gap_opened", 3),
            entry("declared", 3, reason="extent unknown"),
            entry("gap_closed", 3, reason="changed"),
        ]
    )
    assert counts.totals().messages == {("gap_opened", ""): 0, ("declared", ""): 0, ("gap_closed", ""): 0}
    assert FILLED not in counts.totals().events


def test_many_gaps_in_one_commit_take_linear_time() -> None:
    counts = Counts()
    number = 20_000  # with quadratic time, this is a matter of minutes
    entries = [entry("declared", n, n, Stream("p", str(n))) for n in range(1, number)]
    counts(entries + [entry("gap_closed", n, n, Stream("p", str(n))) for n in range(1, number)])
    assert FILLED not in counts.totals().events


def test_what_was_copied_does_not_change() -> None:
    counts = Counts()
    counts([entry("confirmed", 1, 1, site="a", latency={40: 1})])
    before = counts.totals()
    counts([entry("confirmed", 2, 2, site="a", latency={40: 1}), entry("delivered", 1, 1, latency={3: 1})])
    assert before.messages == {("confirmed", "a"): 1}
    assert before.latencies == {("confirmed", "a"): {40: 1}}
    assert counts.totals().latencies == {("confirmed", "a"): {40: 2}, ("delivered", ""): {3: 1}}


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 0.0009, 0.0011, 0.5, 1.0, 60.0, 3_600.0, 68_000.0, 1e6])
def test_a_latency_is_in_the_bucket_of_its_bounds(seconds: float) -> None:
    distribution = Distribution()
    distribution.add({bucket(seconds * 1e6): 3})
    at = next(i for i, count in enumerate(distribution.buckets) if count)
    assert distribution.count == distribution.buckets[at] == 3
    assert at == len(BOUNDS_S) or seconds <= BOUNDS_S[at]
    assert at == 0 or seconds >= BOUNDS_S[at - 1]
    if seconds > 1e-5:
        assert distribution.sum_s / 3 == pytest.approx(seconds, rel=0.1)


def test_sites_that_are_not_configured_share_one_label() -> None:
    counts = Counts()
    counts(
        [
            entry("confirmed", 1, 1, site="a"),
            entry("confirmed", 1, 2, site="x"),
            entry("confirmed", 1, 4, site="y"),
        ]
    )
    readings = Readings()
    add_totals(readings, "producer", "", frozenset({"a"}), counts.totals())
    published = {dict(labels)["site"]: n for labels, n in readings.numbers["published"].items() if n}
    assert published == {"a": 1, "other": 6}


def test_names_are_valid_and_unique() -> None:
    names = {metric.prometheus_name for metric in METRICS.values()}
    assert len(names) == len(METRICS)
    assert all(name.replace("_", "").isalnum() and name.islower() for name in names)
