"""What became of every message: hundreds of journals in one run of Spark, each judged as by the plain checker."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from reliamsg.audit import accounts, contents, forks, groups, latency, membership, producers, sites
from reliamsg.audit.ranges import LAST
from reliamsg.audit.schema import FINDINGS, union
from reliamsg.verify import Expect, Report, check
from reliamsg.verify.journals import Chain, merge_copies
from reliamsg.verify.spans import Spans
from tests.audit.equality import named_groups
from tests.audit.fleet import SECOND_US, T, Writer, frames, renamed, soup, sum_of
from tests.verify import test_random_mutants
from tests.verify.histories import make
from tests.verify.test_random_mutants import MUTANTS

GROUPS_ALONE = {
    "out_of_order", "duplicate", "redelivered_after_ack", "acknowledged_twice", "acknowledged_undelivered",
    "not_redelivered", "undeclared_gap", "declared_late", "delivered_after_gap", "false_gap", "gap_closed_early",
    "gap_closed_late", "false_before_join", "false_replay",
}  # fmt: skip
"""Held against the plain checker elsewhere."""
EVIDENCE = {"missing", "broken", "unclosed"}
SOUPS, HISTORIES = 300, 60
pytestmark = pytest.mark.timeout(600)
"""Seconds; the first test waits for Spark to judge all of them."""

Place = tuple[str, str, str, str, str, int, str]
"""Kind, producer, topic, group, site, epoch, place; what it does not have is empty or 0."""
Found = dict[Place, list[tuple[int, int]]]


def spoilt(seed: int) -> list[Chain]:
    """A run as real clients journal it, most often with one thing wrong."""
    history = make(seed, size=30, logs=False)
    if seed % 4:
        name = sorted(MUTANTS)[seed % len(MUTANTS)]
        getattr(test_random_mutants, name)(random.Random(seed), history)
    return renamed(history.chains(), f"-{seed}")


def unverified() -> list[Chain]:
    """A group whose only two rows meet where the producer's journal has no cut, after a repetition that has one."""
    producer, group = Writer("producer", "p-unverified"), Writer("group", "g-unverified")
    place: dict[str, Any] = {"epoch": 1, "stream": ("p-unverified", "t-unverified")}
    producer.boot(groups={"t-unverified": ["g-unverified"]}, sites=["dc1"], confirm="all")
    for first, last in ((1, 10), (11, 20)):
        producer.add("enqueued", first, last, digest=sum_of("it", first, last), **place)
        producer.add("confirmed", first, last, site="dc1", **place).add("published", first, last, **place)
    group.boot(topics=["t-unverified"])
    group.add("delivered", 1, 14, digest=sum_of("it", 1, 14), **place)
    group.add("redelivered", 12, 16, digest=sum_of("it", 12, 16), **place)
    group.add("delivered", 17, 20, digest=sum_of("it", 17, 20), **place).add("acknowledged", 1, 20, **place)
    return [producer.add("closed").chain(), group.add("closed").chain()]


def held_back() -> list[Chain]:
    """A group that lost what it had in its inbox, and what it had only received."""
    producer, group = Writer("producer", "p-held"), Writer("group", "g-held")
    place: dict[str, Any] = {"epoch": 1, "stream": ("p-held", "t-held")}
    producer.boot(groups={"t-held": ["g-held"]}, sites=["dc1", "dc2"], confirm="all")
    producer.add("enqueued", 1, 6, digest=sum_of("held", 1, 6), **place)
    for site in ("dc1", "dc2"):
        producer.add("confirmed", 1, 6, site=site, **place)
    producer.add("published", 1, 6, **place)
    group.boot(topics=["t-held"])
    group.add("received", 1, 4, site="dc1", **place).add("received", 2, 5, site="dc2", **place)
    group.add("buffered", 2, 3, site="dc2", **place).add("delivered", 1, 1, **place).add(
        "acknowledged", 1, 1, **place
    )
    return [producer.add("closed").chain(), group.add("closed").chain()]


def fleets() -> list[list[Chain]]:
    return (
        [unverified(), held_back()]
        + [soup(seed) for seed in range(SOUPS)]
        + [spoilt(seed) for seed in range(HISTORIES)]
    )


@dataclass
class Run:
    """All that Spark says of all fleets together."""

    found: list[Row]
    counts: list[Row]
    sites: list[Row]
    latency: list[Row]
    losses: list[Row]


@pytest.fixture(scope="module")
def all_fleets() -> list[list[Chain]]:
    return fleets()


@pytest.fixture(scope="module")
def run(spark: SparkSession, all_fleets: list[list[Chain]]) -> Run:
    return judge(spark, [chain for fleet in all_fleets for chain in merge_copies(fleet)])


def judge(
    spark: SparkSession, chains: list[Chain], *, drained: bool = True, until_us: int | None = None
) -> Run:
    """What the job's steps say, each run once."""
    rows, known = (frame.localCheckpoint() for frame in frames(spark, chains))
    contested = producers.contested(rows, known).localCheckpoint()
    pieces = accounts.ranges(
        rows, known, named_groups(spark, chains), contested=contested, drained=drained, until_us=until_us
    ).localCheckpoint()
    stretches = contents.stretches(rows, contested).localCheckpoint()
    others = union(
        [
            producers.findings(rows, known),
            producers.incarnations(rows),
            contents.corrupt(stretches),
            accounts.findings(pieces),
            groups.findings(rows, known, gap_timeout=None, tolerance=1.0),
        ]
    ).localCheckpoint()
    uncompared = accounts.unverified(pieces, contents.verified(stretches), others)
    found = union([others, uncompared, forks.forks(rows)])
    assert [(f.name, f.dataType) for f in found.schema.fields] == [
        (f.name, f.dataType) for f in FINDINGS.fields
    ]
    return Run(
        found.collect(),
        accounts.counts(pieces).collect(),
        sites.counts(rows, sites.lost(rows, known, membership.counted(rows))).collect(),
        latency.quantiles(rows).collect(),
        accounts.losses(pieces).collect(),
    )


def expected(reports: Iterable[Report]) -> Found:
    spans: dict[Place, Spans] = {}
    for report in reports:
        for each in report.findings:
            if each.kind in GROUPS_ALONE | EVIDENCE:
                continue
            producer, topic, _ = each.stream or ("", "", 0)
            place = (each.kind, producer, topic, each.group, each.site, each.epoch or 0, each.where)
            ranges = spans.setdefault(place, Spans())
            if each.first is not None and each.last is not None:
                ranges.add(each.first, min(each.last, LAST))
    return {place: list(ranges) for place, ranges in spans.items()}


def observed(rows: Iterable[Row]) -> Found:
    spans: dict[Place, Spans] = {}
    for row in rows:
        if row.kind in GROUPS_ALONE:
            continue
        names = (row.producer or "", row.topic or "", row.grp or "", row.site or "")
        ranges = spans.setdefault((row.kind, *names, row.epoch or 0, row.place or ""), Spans())
        if row.first is not None:
            ranges.add(row.first, row.last)
    return {place: list(ranges) for place, ranges in spans.items()}


def test_findings_are_those_of_the_plain_checker(run: Run, all_fleets: list[list[Chain]]) -> None:
    plain = expected(check(fleet) for fleet in all_fleets)
    by_spark = observed(run.found)
    kinds = {place[0] for place in plain}
    assert kinds == {
        "seq_reused", "seq_skipped", "old_epoch", "wrong_prev", "confirmed_unknown", "published_unconfirmed",
        "two_incarnations", "corrupt", "pending", "undelivered", "unacknowledged", "never_joined", "unproven",
        "phantom", "phantom_gap", "lost", "declared_gap", "removed", "unverified", "fork",
    }  # fmt: skip
    differ = {place for place in plain.keys() | by_spark.keys() if plain.get(place) != by_spark.get(place)}
    assert not differ, [(place, plain.get(place), by_spark.get(place)) for place in sorted(differ)[:10]]


def test_losses_had_got_as_far_as_the_plain_checker_says(run: Run, all_fleets: list[list[Chain]]) -> None:
    plain: dict[tuple[object, ...], Spans] = {}
    for each in (each for fleet in all_fleets for each in check(fleet).findings if each.hop):
        key = (each.kind, *(each.stream or ()), each.group, each.epoch, each.where, each.hop, each.sites)
        assert each.first is not None
        assert each.last is not None
        plain.setdefault(key, Spans()).add(each.first, each.last)
    by_spark: dict[tuple[object, ...], Spans] = {}
    for row in run.losses:
        stream = (row.producer, row.topic, row.part)
        key = (row.kind, *stream, row.grp, row.epoch, row.place or "", row.hop, tuple(row.sites))
        by_spark.setdefault(key, Spans()).add(row.first, row.last)
    assert {key[-2] for key in plain} == {"enqueued", "confirmed", "received", "buffered"}
    assert by_spark == plain


def test_every_message_is_counted_as_by_the_plain_checker(run: Run, all_fleets: list[list[Chain]]) -> None:
    rows = {row.grp: row for row in run.counts}
    reports = [check(fleet) for fleet in all_fleets]
    for name in ("lost", "declared_gaps", "phantom", "late", "before_join"):
        assert sum(row[name] for row in rows.values()) == sum(getattr(r.messages, name) for r in reports), (
            name
        )
    for name in ("enqueued", "pending"):
        assert rows[accounts.PRODUCER][name] == sum(getattr(r.messages, name) for r in reports), name
    for report in reports:
        for group, count in report.messages.delivered.items():
            assert (rows[group].delivered if group in rows else 0) == count


def test_sites_are_counted_as_by_the_plain_checker(run: Run, all_fleets: list[list[Chain]]) -> None:
    totals: dict[str, dict[str, int]] = {}
    for fleet in all_fleets:
        for site, counts in check(fleet).sites.items():
            sums = totals.setdefault(site, {})
            for name, count in vars(counts).items():
                sums[name] = sums.get(name, 0) + count
    assert {row.site: {k: v for k, v in row.asDict().items() if k != "site"} for row in run.sites} == totals


def test_latencies_are_those_of_the_plain_checker(run: Run, all_fleets: list[list[Chain]]) -> None:
    # Histograms merge by addition, so all journals together have the quantiles of one that holds all their rows.
    plain = check([chain for fleet in all_fleets for chain in fleet]).latency
    assert {row.hop: {k: v for k, v in row.asDict().items() if k != "hop"} for row in run.latency} == plain


def test_a_run_that_goes_on_is_judged_up_to_a_time(spark: SparkSession) -> None:
    some = [soup(seed) for seed in range(1000, 1100)]
    until_us = T + 12 * SECOND_US
    by_spark = judge(
        spark, [chain for fleet in some for chain in merge_copies(fleet)], drained=False, until_us=until_us
    )
    reports = [check(fleet, expect=Expect(drained=False, until_us=until_us)) for fleet in some]
    assert observed(by_spark.found) == expected(reports)
    rows = {row.grp: row for row in by_spark.counts}
    assert rows[accounts.PRODUCER].enqueued == sum(r.messages.enqueued for r in reports)
    assert rows[accounts.PRODUCER].pending == sum(r.messages.pending for r in reports)
    assert sum(row.delivered for row in rows.values()) == sum(
        sum(r.messages.delivered.values()) for r in reports
    )
