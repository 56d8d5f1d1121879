"""The data of the report's plots: sums computed by Spark, a few hundred numbers for journals of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from reliamsg.audit.kinds import LOSSES
from reliamsg.audit.ranges import EPOCH, LAST, STREAM, size
from reliamsg.audit.schema import union

__all__ = ["HOPS", "TIMES", "data"]

HOPS = {
    "enqueued": "publish_to_durable",
    "confirmed": "durable_to_confirmed",
    "delivered": "received_to_delivered",
}
"""Rows with latencies, and their hop."""

TIMES = {
    "lost": LOSSES,
    "open": ("undelivered", "pending", "never_joined"),
    "duplicate": ("duplicate", "redelivered_after_ack"),
    "out_of_order": ("out_of_order",),
}
"""Measures over time besides published, delivered and late, with their kinds of findings."""

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
"""Possible widths of a bin of time, in µs."""
_MEASURES = ["published", "delivered", "late", *TIMES]


def data(rows: DataFrame, findings: DataFrame, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Small sums for :func:`reliamsg.audit.report.write`, from ROWS, FINDINGS and the content of ``verdict.json``.

    At most 120 bins of time, 6 groups with a separate line, 40 streams (those that lack most messages first), 12 sites.
    The messages of a row are spread evenly over its time; those of a finding are placed at their time of publishing.
    Both frames are read twice, so they should be persisted.
    """
    delivered = verdict["messages"]["delivered"]
    groups = _largest(delivered, _MAX_GROUPS)
    timed = rows.where(F.col("kind").isin("enqueued", "delivered", "late"))
    found, bounds = _tables(rows, timed, findings, groups, sorted(verdict["sites"])[:_MAX_SITES])
    if bounds is None:
        return found
    shown = groups[:_MAX_GROUPS_IN_PLOTS]
    width = _width(bounds[1] - bounds[0])
    start = bounds[0] // width * width
    bins = (bounds[1] - start) // width + 1
    axis = {
        "start_us": start,
        "width_us": width,
        "bins": bins,
        "groups_left_out": len(delivered) - len(shown),
    }
    return found | axis | _over_time(_spread(_events(timed, findings), start, width), shown, bins)


def _largest(counts: Mapping[str, int], limit: int) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))[:limit]


def _start() -> Column:
    return F.least("wall_us", "wall_last_us")


def _end() -> Column:
    """After a clock was set back, a row may end before it began."""
    return F.greatest("wall_us", "wall_last_us")


def _width(span_us: int) -> int:
    fitting = (width for width in _WIDTHS if span_us // width < _MAX_BINS - 1)
    # Journals of years: a multiple of weeks.
    return next(fitting, _WIDTHS[-1] * (span_us // (_WIDTHS[-1] * (_MAX_BINS - 2)) + 1))


def _events(timed: DataFrame, findings: DataFrame) -> DataFrame:
    """Events, their numbers of messages and times: `what`, `grp`, STREAM, `n`, `start`, `end`."""
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


def _over_time(spread: DataFrame, groups: Sequence[str], bins: int) -> dict[str, Any]:
    """For each measure, the messages in each bin (``delivered`` for each of `groups`), and ``streams``.

    One query for both, whose halves share the shuffle of `spread`.
    """
    cells = spread.groupBy("what", "grp", *STREAM, "bin").agg(F.sum("n").alias("n"))
    both = _series(cells, groups).unionByName(_streams(cells), allowMissingColumns=True).collect()
    found: dict[str, Any] = {name: [0.0] * bins for name in _MEASURES if name != "delivered"}
    found["delivered"] = {group: [0.0] * bins for group in groups}
    streams = []
    for row in both:
        if row["cells"] is not None:
            streams.append(_stream(row, bins))
            continue
        series = found["delivered"][row["grp"]] if row["what"] == "delivered" else found[row["what"]]
        series[min(row["bin"], bins - 1)] += round(row["n"], 2)
    streams.sort(
        key=lambda each: (-each["missing_total"], -sum(each["published"]), *(each[k] for k in STREAM))
    )
    return found | {"streams": streams}


def _series(cells: DataFrame, groups: Sequence[str]) -> DataFrame:
    """`what`, `grp`, `bin`, `n`."""
    own = (F.col("what") == "delivered") & F.col("grp").isin(*groups)
    return (
        cells.where((F.col("what") != "delivered") | own)
        .groupBy("what", F.when(own, F.col("grp")).alias("grp"), "bin")
        .agg(F.sum("n").alias("n"))
    )


def _streams(cells: DataFrame) -> DataFrame:
    """The streams that lack most messages, otherwise the largest: STREAM and `cells`, an array of bins with published
    messages, and those missing at the group that lacks most."""
    missing = F.col("what").isin("lost", "open")
    return (
        cells.where(missing | (F.col("what") == "published"))
        # At one group, lost and open messages are added.
        .groupBy(*STREAM, "bin", "grp")
        .agg(
            F.sum(F.when(missing, F.col("n"))).alias("missing"),
            F.sum(F.when(~missing, F.col("n"))).alias("published"),
        )
        .groupBy(*STREAM, "bin")
        .agg(
            F.coalesce(F.max("missing"), F.lit(0.0)).alias("missing"),
            F.coalesce(F.sum("published"), F.lit(0.0)).alias("published"),
        )
        .groupBy(*STREAM)
        .agg(
            F.sum("missing").alias("total"),
            F.sum("published").alias("all"),
            F.collect_list(F.struct("bin", "missing", "published")).alias("cells"),
        )
        .orderBy(F.col("total").desc(), F.col("all").desc(), *STREAM)
        .limit(_MAX_STREAMS)
        .select(*STREAM, "cells")
    )


def _stream(row: Row, bins: int) -> dict[str, Any]:
    published, missing = [0.0] * bins, [0.0] * bins
    for cell in row["cells"]:
        at = min(cell["bin"], bins - 1)
        published[at] += round(cell["published"], 2)
        missing[at] += round(cell["missing"], 2)
    name = {each: row[each] for each in STREAM}
    return name | {"published": published, "missing": missing, "missing_total": round(sum(missing))}


def _tables(
    rows: DataFrame, timed: DataFrame, findings: DataFrame, groups: Sequence[str], sites: Sequence[str]
) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Histograms (bucket → count) of each hop, and of ``confirmed`` for each of `sites`; findings and their messages by
    kind and each of `groups`; and the first and last time, or None. One query."""
    latencies = (
        rows.where(F.col("kind").isin(*HOPS) & F.col("latency").isNotNull())
        .select(
            "kind",
            F.when((F.col("kind") == "confirmed") & F.col("site").isin(*sites), F.col("site")).alias("name"),
            F.explode("latency").alias("bucket", "count"),
        )
        .groupBy("kind", "name", "bucket")
        .agg(F.sum("count").alias("count"))
        .select(F.lit("latency").alias("table"), "kind", "name", F.col("bucket").cast("long").alias("one"),
                F.col("count").alias("two"))
    )  # fmt: skip
    bounded = F.when(F.col("last") < LAST, size()).otherwise(F.lit(0))
    kinds = (
        findings.groupBy("kind", F.when(F.col("grp").isin(*groups), F.col("grp")).alias("name"))
        .agg(F.count("*").alias("one"), F.coalesce(F.sum(bounded), F.lit(0)).alias("two"))
        .select(F.lit("kind").alias("table"), "kind", "name", "one", "two")
    )
    bounds = timed.agg(F.min(_start()).alias("one"), F.max(_end()).alias("two")).select(
        F.lit("bounds").alias("table"),
        F.lit("").alias("kind"),
        F.lit(None).cast("string").alias("name"),
        "one",
        "two",
    )
    found: dict[str, Any] = {"kinds": [], "latency": {}, "confirmed": {}}
    within: tuple[int, int] | None = None
    sums = union([latencies, kinds, bounds]).collect()
    for row in sorted(sums, key=lambda each: (each["kind"], each["name"] or "", each["one"] or 0)):
        if row["table"] == "bounds":
            within = None if row["one"] is None else (row["one"], row["two"])
        elif row["table"] == "kind":
            found["kinds"].append(
                {"kind": row["kind"], "grp": row["name"], "findings": row["one"], "messages": row["two"]}
            )
        else:
            targets = [found["latency"].setdefault(HOPS[row["kind"]], {})]
            if row["name"] is not None:
                targets.append(found["confirmed"].setdefault(row["name"], {}))
            for target in targets:
                target[row["one"]] = target.get(row["one"], 0) + row["two"]
    return found, within
