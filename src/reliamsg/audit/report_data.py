"""What the report's plots show: sums made by Spark, a few hundred numbers however large the journals are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.ranges import EPOCH, LAST, STREAM, size

__all__ = ["HOPS", "TIMES", "data"]

HOPS = {
    "enqueued": "publish_to_durable",
    "confirmed": "durable_to_confirmed",
    "delivered": "received_to_delivered",
}
"""Rows that carry latencies, and the hop that these are of."""

TIMES = {
    "lost": ("lost", "declared_gap", "removed"),
    "open": ("undelivered", "pending", "never_joined"),
    "duplicate": ("duplicate", "redelivered_after_ack"),
    "out_of_order": ("out_of_order",),
}
"""What is shown over time beside published, delivered and late, and the kinds of findings that are counted there."""

_MAX_BINS = 120
_MAX_GROUPS_IN_PLOTS = 6
_MAX_GROUPS = 50
_MAX_SITES = 12
_MAX_STREAMS = 40
_SECOND = 1_000_000
_WIDTHS = [
    *(round(each * _SECOND) for each in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30)),
    *(each * 60 * _SECOND for each in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 2880, 10080)),
]
"""Widths that a bin of time may have, in µs."""
_MEASURES = ["published", "delivered", "late", *TIMES]


def data(rows: DataFrame, findings: DataFrame, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Small sums for :func:`reliamsg.audit.report.write`, from ROWS, FINDINGS and the content of ``verdict.json``.

    At most 120 bins of time, 6 groups with a line of their own, 40 streams (those that lack most come first), 12
    sites. A message is placed where its row's time puts it, a row's messages spread evenly over its time; what a
    finding is about is placed when it was published.
    """
    groups = _largest(verdict.get("messages", {}).get("delivered", {}), _MAX_GROUPS)
    found: dict[str, Any] = {
        "kinds": _kinds(findings, groups),
        **_latency(rows, sorted(verdict.get("sites", {}))[:_MAX_SITES]),
    }
    timed = rows.where(F.col("kind").isin("enqueued", "delivered", "late"))
    bounds = timed.agg(F.min(_start()).alias("start"), F.max(_end()).alias("end")).first()
    if bounds is None or bounds["start"] is None:
        return found
    shown = groups[:_MAX_GROUPS_IN_PLOTS]
    width = _width(bounds["end"] - bounds["start"])
    start = bounds["start"] // width * width
    bins = (bounds["end"] - start) // width + 1
    spread = _spread(_events(timed, findings), start, width)
    return found | {
        "start_us": start,
        "width_us": width,
        "bins": bins,
        "groups_left_out": len(verdict["messages"]["delivered"]) - len(shown),
        **_series(spread, shown, bins),
        "streams": _streams(spread, bins),
    }


def _largest(counts: Mapping[str, int], limit: int) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))[:limit]


def _start() -> Column:
    return F.least("wall_us", "wall_last_us")


def _end() -> Column:
    """A clock that was set back leaves a row that ends before it began."""
    return F.greatest("wall_us", "wall_last_us")


def _width(span_us: int) -> int:
    fitting = (width for width in _WIDTHS if span_us // width < _MAX_BINS - 1)
    # Journals of years: as many weeks as it takes.
    return next(fitting, _WIDTHS[-1] * (span_us // (_WIDTHS[-1] * (_MAX_BINS - 2)) + 1))


def _events(timed: DataFrame, findings: DataFrame) -> DataFrame:
    """What happened to how many messages of a stream between two times: `what`, `grp`, STREAM, `n`, `start`, `end`."""
    enqueued = F.col("kind") == "enqueued"
    happened = timed.select(
        F.when(enqueued, "published").otherwise(F.col("kind")).alias("what"),
        F.when(~enqueued, F.col("client")).alias("grp"),
        *STREAM,
        size().cast("double").alias("n"),
        _start().alias("start"),
        _end().alias("end"),
    )
    what = F.coalesce(*(F.when(F.col("kind").isin(*kinds), name) for name, kinds in TIMES.items()))
    wrong = findings.select(what.alias("what"), "grp", *EPOCH, "first", "last").where(
        F.col("what").isNotNull()
    )
    published = timed.where(enqueued).select(
        *EPOCH,
        F.col("first").alias("low"),
        F.col("last").alias("high"),
        _start().alias("begun"),
        (_end() - _start()).alias("took"),
    )
    first, last = F.greatest("first", "low"), F.least("last", "high")
    share = (F.col("took") / (F.col("high") - F.col("low") + 1)).cast("double")
    both = (
        wrong.join(published, list(EPOCH), how="inner")
        .where((F.col("first") <= F.col("high")) & (F.col("last") >= F.col("low")))
        .select(
            "what",
            "grp",
            *STREAM,
            (last - first + 1).cast("double").alias("n"),
            (F.col("begun") + share * (first - F.col("low"))).cast("long").alias("start"),
            (F.col("begun") + share * (last - F.col("low") + 1)).cast("long").alias("end"),
        )
    )
    return happened.unionByName(both)


def _spread(events: DataFrame, start: int, width: int) -> DataFrame:
    """Events cut at the bins' bounds: `what`, `grp`, STREAM, `bin`, `n`."""

    def at(time: str) -> Column:
        return F.floor((F.col(time) - F.lit(start)) / F.lit(width)).cast("long")

    cut = events.select("*", F.explode(F.sequence(at("start"), at("end"))).alias("bin"))
    low = F.lit(start) + F.col("bin") * F.lit(width)
    inside = F.least(F.col("end"), low + width) - F.greatest(F.col("start"), low)
    took = F.col("end") - F.col("start")
    share = F.when(took > 0, inside / F.greatest(took, F.lit(1))).otherwise(F.lit(1.0))
    return cut.select("what", "grp", *STREAM, "bin", (F.col("n") * share).alias("n"))


def _series(spread: DataFrame, groups: Sequence[str], bins: int) -> dict[str, Any]:
    """For each measure its messages in each bin; for ``delivered``, so for each of `groups`."""
    own = (F.col("what") == "delivered") & F.col("grp").isin(*groups)
    sums = (
        spread.where((F.col("what") != "delivered") | own)
        .groupBy("what", F.when(own, F.col("grp")).alias("grp"), "bin")
        .agg(F.sum("n").alias("n"))
        .collect()
    )
    found: dict[str, Any] = {name: [0.0] * bins for name in _MEASURES if name != "delivered"}
    found["delivered"] = {group: [0.0] * bins for group in groups}
    for row in sums:
        series = found["delivered"][row["grp"]] if row["what"] == "delivered" else found[row["what"]]
        series[min(row["bin"], bins - 1)] += round(row["n"], 2)
    return found


def _streams(spread: DataFrame, bins: int) -> list[dict[str, Any]]:
    """The streams that lack most, else the largest: published in each bin, and missing at the group that lacks most."""
    missing = F.col("what").isin("lost", "open")
    by_group = (
        spread.where(missing | (F.col("what") == "published"))
        .groupBy(*STREAM, "bin", "what", "grp")
        .agg(F.sum("n").alias("n"))
        # Lost and still open add up at one group; what no group is named for is missing for all alike.
        .groupBy(*STREAM, "bin", "grp")
        .agg(
            F.sum(F.when(missing, F.col("n"))).alias("missing"),
            F.sum(F.when(~missing, F.col("n"))).alias("published"),
        )
    )
    cells = by_group.groupBy(*STREAM, "bin").agg(
        F.coalesce(F.max("missing"), F.lit(0.0)).alias("missing"),
        F.coalesce(F.sum("published"), F.lit(0.0)).alias("published"),
    )
    streams = (
        cells.groupBy(*STREAM)
        .agg(
            F.sum("missing").alias("total"),
            F.sum("published").alias("all"),
            F.sort_array(F.collect_list(F.struct("bin", "missing", "published"))).alias("cells"),
        )
        .orderBy(F.col("total").desc(), F.col("all").desc(), *STREAM)
        .limit(_MAX_STREAMS)
        .collect()
    )
    found = []
    for row in streams:
        published, lacking = [0.0] * bins, [0.0] * bins
        for cell in row["cells"]:
            published[min(cell["bin"], bins - 1)] += round(cell["published"], 2)
            lacking[min(cell["bin"], bins - 1)] += round(cell["missing"], 2)
        name = {each: row[each] for each in STREAM}
        found.append(
            name | {"published": published, "missing": lacking, "missing_total": round(row["total"])}
        )
    return found


def _latency(rows: DataFrame, sites: Sequence[str]) -> dict[str, Any]:
    """Histograms (bucket → count): of each hop, and of ``confirmed`` for each of `sites`."""
    buckets = (
        rows.where(F.col("kind").isin(*HOPS) & F.col("latency").isNotNull())
        .select(
            "kind",
            F.when((F.col("kind") == "confirmed") & F.col("site").isin(*sites), F.col("site")).alias("site"),
            F.explode("latency").alias("bucket", "count"),
        )
        .groupBy("kind", "site", "bucket")
        .agg(F.sum("count").alias("count"))
        .collect()
    )
    hops: dict[str, dict[int, int]] = {}
    confirmed: dict[str, dict[int, int]] = {}
    for row in sorted(buckets, key=lambda each: each["bucket"]):
        targets = [hops.setdefault(HOPS[row["kind"]], {})]
        if row["site"] is not None:
            targets.append(confirmed.setdefault(row["site"], {}))
        for target in targets:
            target[row["bucket"]] = target.get(row["bucket"], 0) + row["count"]
    return {"latency": hops, "confirmed": confirmed}


def _kinds(findings: DataFrame, groups: Sequence[str]) -> list[dict[str, Any]]:
    """How many findings of each kind there are, for each of `groups`, and how many messages they are about."""
    bounded = F.when(F.col("last") < LAST, size()).otherwise(F.lit(0))
    group = F.when(F.col("grp").isin(*groups), F.col("grp"))
    sums = (
        findings.groupBy("kind", group.alias("grp"))
        .agg(F.count("*").alias("findings"), F.coalesce(F.sum(bounded), F.lit(0)).alias("messages"))
        .collect()
    )
    return [row.asDict() for row in sorted(sums, key=lambda row: (row["kind"], row["grp"] or ""))]
