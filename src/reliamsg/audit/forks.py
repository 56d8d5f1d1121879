"""Producers with two histories, because an outbox was restored from a backup or copied: remarks, which do not affect
the verdict."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.schema import findings as as_findings

__all__ = ["forks"]


def forks(rows: DataFrame) -> DataFrame:
    """``fork``: forks that a group met, that made a producer renumber messages, or that fenced one.

    `rows`: from :func:`reliamsg.audit.renumbered.settled`. The common beginning of two chains is reported once.
    """
    kind, of_group = F.col("kind"), F.col("role") == "group"
    met, moved = of_group & (kind == "conflict"), ~of_group & (kind == "renumbered")
    fenced = ~of_group & (kind == "fenced")
    # An epoch that was only announced may have no messages.
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
    # A fence applies to all streams of its producer, so the finding has no stream.
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
