"""Messages that were renumbered before they were offered to a site: maps their old epochs to the new ones."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.ranges import STREAM

__all__ = ["SETTLED", "destination", "moved", "settled"]

_CHAIN = ("client", "chain")
_AS_WRITTEN = ("epoch", "renumbered")
"""Kinds about an epoch itself."""
SETTLED = ("written_epoch", "moves")
"""The columns that :func:`settled` adds."""


def destination() -> Column:
    """The epoch to which a ``renumbered`` row moves messages; NULL in other rows."""
    return F.when(F.col("kind") == "renumbered", F.get_json_object("detail", "$.epoch").try_cast("long"))


def settled(rows: DataFrame) -> DataFrame:
    """ROWS with the current epoch of their messages, and two further columns.

    A ``renumbered`` row moves all messages of its chain's stream in the old epoch up to then, with the same sequence
    numbers. `written_epoch`: the epoch in the row. `moves`: for the row's stream in its chain, in order, arrays of
    `lsn`, `old`, `new`; NULL if there are none.
    """
    told = destination()
    moves = (
        rows.where((F.col("role") == "producer") & told.isNotNull())
        .groupBy(*_CHAIN, *STREAM)
        .agg(
            F.array_sort(
                F.collect_list(F.struct("lsn", F.col("epoch").alias("old"), told.alias("new")))
            ).alias("moves")
        )
    )
    found = rows.join(F.broadcast(moves), [*_CHAIN, *STREAM], how="left")
    epoch = F.when(
        F.col("moves").isNotNull() & ~F.col("kind").isin(*_AS_WRITTEN), moved(F.col("epoch"))
    ).otherwise(F.col("epoch"))
    return found.select(
        *((epoch if name == "epoch" else F.col(name)).alias(name) for name in rows.columns),
        F.col("epoch").alias("written_epoch"),
        "moves",
    )


def moved(epoch: Column) -> Column:
    """The current epoch of messages that were in that epoch when the row was written."""
    later = F.filter(F.coalesce("moves", F.array()), lambda move: move["lsn"] > F.col("lsn"))
    return F.aggregate(later, epoch, lambda now, move: F.when(move["old"] == now, move["new"]).otherwise(now))
