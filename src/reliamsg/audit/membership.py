"""The groups that count for producers, and the messages for which they count."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit import producers
from reliamsg.audit.ranges import EPOCH, LAST, STREAM, coverage, tagged
from reliamsg.audit.renumbered import moved
from reliamsg.audit.schema import union

__all__ = ["counted", "left", "named"]

_CHAIN = ("client", "chain")
_BOOT = (*_CHAIN, "boot_lsn")
_KEY = (*_CHAIN, "grp", *EPOCH)
_CHANGES = ("group_added", "group_removed")


def _position() -> Column:
    """The position where a change takes effect: `epoch`, `number`, as written."""
    told = F.from_json(F.get_json_object("detail", "$.position"), "array<long>")
    since = F.struct(F.col("written_epoch").alias("epoch"), F.col("first").alias("number"))
    position = F.struct(F.get(told, F.lit(0)).alias("epoch"), F.get(told, F.lit(1)).alias("number"))
    return F.when((F.col("kind") == "group_removed") & (F.size(told) == 2), position).otherwise(since)


def _by_boot(of_producers: DataFrame) -> DataFrame:
    """The groups that each boot names: _BOOT, `lsn`, `topic`, `grp`; `grp` is NULL if it names none for a topic."""
    by_topic = F.from_json(F.get_json_object("detail", "$.groups"), "map<string,string>")
    return (
        producers.opened(of_producers)
        .select(*_BOOT, "lsn", F.explode(by_topic).alias("topic", "names"))
        .select(*_BOOT, "lsn", "topic", F.explode_outer(producers.names_in(F.col("names"))).alias("grp"))
    )


def named(rows: DataFrame) -> DataFrame:
    """`topic`, `grp`: the groups that producers name, or named while messages were delivered to them; `grp` is NULL if
    they name none for a topic."""
    of_producers = rows.where(F.col("role") == "producer")
    changes = of_producers.where(F.col("kind").isin(*_CHANGES)).withColumn("at", _position())
    untouched = (F.col("at.epoch") == F.col("written_epoch")) & (F.col("at.number") == F.col("first"))
    added = F.col("kind") == "group_added"
    told = changes.where(added | untouched).select(*_CHAIN, "topic", "grp", "lsn", added.alias("is_named"))
    by_boot = _by_boot(of_producers)
    opened = by_boot.where(F.col("grp").isNotNull()).select(
        *_CHAIN, "topic", "grp", "lsn", F.lit(True).alias("is_named")
    )
    groups = (
        told.unionByName(opened)
        .groupBy(*_CHAIN, "topic", "grp")
        .agg(F.max_by("is_named", "lsn").alias("is_named"))
        .select("topic", F.when(F.col("is_named"), F.col("grp")).alias("grp"))
    )
    return groups.unionByName(by_boot.select("topic", F.lit(None).cast("string").alias("grp"))).distinct()


def left(rows: DataFrame) -> DataFrame:
    """Ranges that groups had announced as settled when their producers removed them, and thereby forgot this: `grp`,
    STREAM, `low` (inclusive), `high` (exclusive), both `epoch` and `number`."""
    at, since = F.col("at"), F.struct(F.col("written_epoch").alias("epoch"), F.col("first").alias("number"))
    return (
        rows.where((F.col("role") == "producer") & (F.col("kind") == "group_removed"))
        .withColumn("at", _position())
        .where(at != since)
        .select(
            "grp",
            *STREAM,
            F.struct(moved(F.col("written_epoch")).alias("epoch"), F.col("first").alias("number")).alias(
                "low"
            ),
            F.struct(moved(at["epoch"]).alias("epoch"), at["number"].alias("number")).alias("high"),
        )
        .distinct()
    )


def counted(rows: DataFrame) -> DataFrame:
    """The enqueued messages of each chain for which each group counts, or is excused.

    Columns: `client`, `chain`, `grp`, EPOCH, `first`, `last`, and `counts`, false where it is excused.

    A group counts for messages of a boot that names it, and from the position in a ``group_added`` row on; it does not
    count from the position in a ``group_removed`` row on, until it is added again.
    """
    of_producers = rows.where(F.col("role") == "producer")
    enqueued = of_producers.where(F.col("kind") == "enqueued").select(*_BOOT, *EPOCH, "first", "last")
    by_boot = enqueued.join(
        F.broadcast(_by_boot(of_producers).where(F.col("grp").isNotNull()).drop("lsn").distinct()),
        [*_BOOT, "topic"],
        how="inner",
    )
    spans = _spans(of_producers)
    same_epoch = F.col("epoch") == F.col("at.epoch")
    low = F.when(same_epoch, F.greatest("first", F.col("at.number"))).otherwise(F.col("first"))
    ends_here = F.col("epoch") == F.col("until.epoch")
    high = F.when(ends_here, F.least(F.col("last"), F.col("until.number") - 1)).otherwise(F.col("last"))
    changed = (
        enqueued.join(F.broadcast(spans), [*_CHAIN, *STREAM], how="inner")
        .where((F.col("epoch") >= F.col("at.epoch")) & (F.col("epoch") <= F.col("until.epoch")))
        .select(*_KEY, low.alias("first"), high.alias("last"), "added")
    )
    pieces = coverage(
        union(
            [
                tagged(by_boot, _KEY, "named"),
                tagged(changed.where("added"), _KEY, "added"),
                tagged(changed.where(~F.col("added")), _KEY, "removed"),
            ]
        ),
        _KEY,
        ["named", "added", "removed"],
    )
    return pieces.select(*_KEY, "first", "last", (F.col("removed") == 0).alias("counts"))


def _spans(of_producers: DataFrame) -> DataFrame:
    """From each change to the next: `client`, `chain`, STREAM, `grp`, `added`, `at`, `until` (exclusive)."""
    at = F.col("at")
    along = Window.partitionBy(*_CHAIN, *STREAM, "grp").orderBy("lsn", "added", "at")
    forever = F.struct(F.lit(LAST).alias("epoch"), F.lit(0).cast("long").alias("number"))
    return (
        of_producers.where(F.col("kind").isin(*_CHANGES))
        .withColumn("at", _position())
        .withColumn("at", F.struct(moved(at["epoch"]).alias("epoch"), at["number"].alias("number")))
        .withColumn("added", F.col("kind") == "group_added")
        .select(
            *_CHAIN, *STREAM, "grp", "added", "at",
            F.coalesce(F.lead("at").over(along), forever).alias("until"),
        )
    )  # fmt: skip
