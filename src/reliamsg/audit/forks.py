"""Producers with two histories, since an outbox was put back from a backup or copied: remarks, which take nothing from
a verdict."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.schema import findings as as_findings

__all__ = ["forks"]


def forks(rows: DataFrame) -> DataFrame:
    """``fork``: each that a group met, that made a producer move messages, or by which one was fenced.

    `rows`: as of :func:`reliamsg.audit.renumbered.settled`. What two chains of one client begin with is told once.
    """
    kind, of_group = F.col("kind"), F.col("role") == "group"
    met, moved = of_group & (kind == "conflict"), ~of_group & (kind == "renumbered")
    fenced = ~of_group & (kind == "fenced")
    # Of an epoch that was only told of, no message may be there.
    ranged = moved | (met & (F.col("first") > 0) & (F.col("first") <= F.col("last")))
    other = F.coalesce(F.get_json_object("detail", "$.epoch"), F.lit("unknown"))
    text = (
        F.when(met & ranged, F.col("reason"))
        .when(met, F.concat(F.lit("in epoch "), _epoch(), F.lit(": "), F.col("reason")))
        .when(moved, F.concat(F.lit("they have epoch "), other, F.lit(" now")))
        .otherwise(
            F.concat(
                F.col("client"),
                F.lit(" was fenced in epoch "),
                _epoch(),
                F.lit(", by the one in epoch "),
                other,
            )
        )
    )
    # A fence is about all streams of its producer, so no stream is named.
    found = rows.where(met | moved | fenced).select(
        *(F.when(~fenced, F.col(name)).alias(name) for name in ("producer", "topic", "part")),
        F.when(met, F.col("client")).alias("grp"),
        "epoch",
        *(F.when(ranged, F.col(name)).alias(name) for name in ("first", "last")),
        text.alias("text"),
    )
    return as_findings(found.distinct(), "fork")


def _epoch() -> Column:
    return F.col("epoch").cast("string")
