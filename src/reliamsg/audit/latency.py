"""Latencies of each hop, from the histograms in journal rows."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["quantiles"]

_HOPS = {
    "enqueued": "publish_to_durable",
    "confirmed": "durable_to_confirmed",
    "delivered": "received_to_delivered",
}
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_MAX_BUCKET = 255
"""Half a million years."""


def quantiles(rows: DataFrame) -> DataFrame:
    """`hop`, `p50`, `p95`, `p99`, `max` in seconds: upper bounds of buckets that are 19 % wide.

    Hops without rows are absent.
    """
    hop = F.lit(None)
    for kind, name in _HOPS.items():
        hop = F.when(F.col("kind") == kind, F.lit(name)).otherwise(hop)
    buckets = (
        rows.where(F.col("kind").isin(*_HOPS) & F.col("latency").isNotNull())
        .select(hop.alias("hop"), F.explode("latency").alias("bucket", "count"))
        .groupBy("hop", "bucket")
        .agg(F.sum("count").alias("count"))
    )
    by_hop = Window.partitionBy("hop")
    until_now = by_hop.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = buckets.select(
        "hop",
        "bucket",
        F.sum("count").over(until_now).alias("seen"),
        F.sum("count")
        .over(by_hop.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing))
        .alias("all"),
    )
    return counted.groupBy("hop").agg(*(_quantile(q).alias(name) for name, q in _QUANTILES.items()))


def _quantile(q: float) -> Column:
    reached = F.min(F.when(F.col("seen") >= F.col("all") * F.lit(q), F.col("bucket")))
    # Bucket b ends at 2**((b+1)/4) µs. _MAX_BUCKET bounds invalid values in journals.
    ends = (F.least(reached, F.lit(_MAX_BUCKET)) + 1) / F.lit(4.0)
    return F.round(F.pow(F.lit(2.0), ends) / F.lit(1e6), 6)
