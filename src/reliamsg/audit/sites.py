"""What passed through each site, and what was delivered thanks to it alone."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.ranges import EPOCH, LAST, merged, size

__all__ = ["counts"]

_KEY = ("grp", *EPOCH)


def counts(rows: DataFrame) -> DataFrame:
    """`site`, `confirmed`, `received`, `lost_after_confirm`, `saved_alone`, in messages.

    All but `confirmed` count a message once for each group. `lost_after_confirm` takes the proof that a queue was
    seen empty after the confirm, and "after" never compares two clocks: it is 0 until a client's journal says up to
    where it had heard of its producers when it saw the queue empty, which none does yet.
    """
    confirmed = (F.col("role") == "producer") & (F.col("kind") == "confirmed")
    received = (F.col("role") == "group") & F.col("kind").isin("received", "duplicate")
    passed = rows.where((confirmed | received) & (F.col("first") <= F.col("last"))).select(
        "role", F.col("client").alias("grp"), *EPOCH, "site", "first", "last"
    )
    merged_passed = merged(passed, ["role", *_KEY, "site"])
    totals = merged_passed.groupBy("site").agg(
        F.sum(F.when(F.col("role") == "producer", size()).otherwise(0)).alias("confirmed"),
        F.sum(F.when(F.col("role") == "group", size()).otherwise(0)).alias("received"),
    )
    alone = _alone(rows, merged_passed.where(F.col("role") == "group"))
    return totals.join(alone, "site", how="left").select(
        "site",
        "confirmed",
        "received",
        F.lit(0).cast("long").alias("lost_after_confirm"),
        F.coalesce("saved_alone", F.lit(0)).alias("saved_alone"),
    )


def _alone(rows: DataFrame, received: DataFrame) -> DataFrame:
    """`site`, `saved_alone`: what was delivered, and received from no other site.

    One sweep counts the sites that cover each piece, and adds up their numbers: where one covers it alone, the sum is
    its number. `received`: each site's own ranges are disjoint.
    """
    numbers = received.agg(F.array_sort(F.collect_set("site")).alias("sites")).select(
        F.posexplode("sites").alias("number", "site")
    )
    handed = rows.where(
        (F.col("role") == "group")
        & F.col("kind").isin("delivered", "redelivered")
        & (F.col("first") <= F.col("last"))
    ).select(
        F.col("client").alias("grp"),
        *EPOCH,
        "first",
        "last",
        F.lit(None).cast("int").alias("number"),
    )
    numbered = received.join(F.broadcast(numbers), "site", how="inner").select(
        *_KEY, "first", "last", "number"
    )
    ends = F.explode(
        F.array(
            F.struct(F.col("first").alias("at"), F.lit(1).cast("long").alias("step")),
            F.struct((F.least("last", F.lit(LAST)) + 1).alias("at"), F.lit(-1).cast("long").alias("step")),
        )
    )
    from_site = F.col("number").isNotNull()
    step = F.col("end.step")
    steps = (
        handed.unionByName(numbered)
        .select(*_KEY, "number", ends.alias("end"))
        .groupBy(*_KEY, F.col("end.at").alias("at"))
        .agg(
            F.sum(F.when(from_site, 0).otherwise(step)).alias("handed"),
            F.sum(F.when(from_site, step).otherwise(0)).alias("sites"),
            F.sum(F.when(from_site, step * F.col("number")).otherwise(0)).alias("number"),
        )
    )
    along = Window.partitionBy(*_KEY).orderBy("at")
    until_now = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    pieces = steps.select(
        (F.lead("at").over(along) - F.col("at")).alias("messages"),
        F.sum("handed").over(until_now).alias("handed"),
        F.sum("sites").over(until_now).alias("sites"),
        F.sum("number").over(until_now).alias("number"),
    )
    return (
        pieces.where((F.col("sites") == 1) & (F.col("handed") > 0))
        .join(F.broadcast(numbers), "number", how="inner")
        .groupBy("site")
        .agg(F.sum("messages").alias("saved_alone"))
    )
