"""Interval algebra on DataFrames: sets of sequence numbers as rows with `first` and `last`, both inclusive.

All operations sweep along sorted boundaries, so the cost depends on the number of ranges, not of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["EPOCH", "LAST", "STREAM", "coverage", "merged", "size", "tagged"]

LAST = 2**63 - 2
"""Beyond every sequence number: the end of a range of unknown extent. One less than the maximum of a 64-bit integer,
because a sweep needs the number behind a range's end."""

STREAM = ("producer", "topic", "part")
"""The columns that identify a stream."""
EPOCH = (*STREAM, "epoch")
"""The columns that identify an epoch of a stream."""


def tagged(ranges: DataFrame, keys: Sequence[str], tag: str) -> DataFrame:
    """`ranges` as input of :func:`coverage`: the columns `keys`, `first`, `last` and `tag`."""
    return ranges.select(*keys, "first", "last", F.lit(tag).alias("tag"))


def coverage(
    ranges: Sequence[DataFrame] | DataFrame, keys: Sequence[str], tags: Sequence[str], *, gaps: bool = False
) -> DataFrame:
    """Cut the numbers of each key at the ends of all ranges, and count by tag how many ranges cover each piece.

    `ranges`: columns `keys`, `first`, `last`, `tag`. Returns `keys`, `first`, `last`, and a column for each of `tags`;
    pieces are disjoint. Uncovered numbers are omitted, or with `gaps` included if they are between ranges. Ranges whose
    `last` is below `first` are empty.
    """
    frame = ranges if isinstance(ranges, DataFrame) else reduce(DataFrame.unionByName, ranges)
    frame = frame.where(F.col("first") <= F.col("last"))
    ends = F.explode(
        F.array(
            F.struct(F.col("first").cast("long").alias("at"), F.lit(1).alias("step")),
            F.struct(
                (F.least(F.col("last"), F.lit(LAST)) + 1).cast("long").alias("at"), F.lit(-1).alias("step")
            ),
        )
    )
    steps = frame.select(*keys, "tag", ends.alias("end")).groupBy(*keys, F.col("end.at").alias("first"))
    sums = steps.agg(
        *(F.sum(F.when(F.col("tag") == tag, F.col("end.step")).otherwise(0)).alias(tag) for tag in tags)
    )
    along = Window.partitionBy(*keys).orderBy("first")
    until_now = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    pieces = sums.select(
        *keys,
        "first",
        (F.lead("first").over(along) - 1).alias("last"),
        *(F.sum(tag).over(until_now).alias(tag) for tag in tags),
    ).where(F.col("last").isNotNull())
    if gaps:
        return pieces
    return pieces.where(reduce(Column.__or__, (F.col(tag) > 0 for tag in tags)))


def merged(ranges: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Merge ranges: columns `keys`, `first`, `last`, disjoint and not adjacent."""
    along = Window.partitionBy(*keys).orderBy("first", "last")
    before = along.rowsBetween(Window.unboundedPreceding, -1)
    starts = F.when(F.col("first") <= F.max("last").over(before) + 1, 0).otherwise(1)
    bounded = ranges.select(*keys, "first", F.least("last", F.lit(LAST)).alias("last"))
    islands = bounded.select(*keys, "first", "last", starts.alias("starts")).select(
        *keys,
        "first",
        "last",
        F.sum("starts").over(along.rowsBetween(Window.unboundedPreceding, 0)).alias("island"),
    )
    return (
        islands.groupBy(*keys, "island")
        .agg(F.min("first").alias("first"), F.max("last").alias("last"))
        .drop("island")
    )


def size() -> Column:
    """The number of sequence numbers in a range."""
    return F.col("last") - F.col("first") + 1
