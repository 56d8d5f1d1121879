"""What a group's journals say of gaps: when they were closed, and what was said to be older than the group."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.ranges import EPOCH, STREAM
from reliamsg.audit.schema import findings, union

__all__ = ["clock", "early_history", "leaps"]

_BOOT = ("grp", "chain", "boot_lsn")


def leaps(rows: DataFrame) -> DataFrame:
    """Pairs of epochs between which everything was declared lost, whatever epochs there were.

    Columns: `grp`, STREAM, `low`, `high`, both exclusive.
    """
    until = F.get_json_object("detail", "$.until_epoch").try_cast("long")
    return (
        rows.where((F.col("role") == "group") & (F.col("kind") == "declared") & until.isNotNull())
        .select(F.col("client").alias("grp"), *STREAM, F.col("epoch").alias("low"), until.alias("high"))
        .distinct()
    )


def early_history(ordered: DataFrame) -> DataFrame:
    """``false_before_join``: what arrives from before the place of joining; nothing beyond it may be called so."""
    begin = F.col("begin.epoch"), F.col("begin.number")
    first = F.when(F.col("epoch") > begin[0], F.col("first")).otherwise(F.greatest("first", begin[1]))
    wrong = ordered.where(
        (F.col("kind") == "before_join") & (F.col("epoch") >= begin[0]) & (first <= F.col("last"))
    )
    return findings(wrong, "false_before_join", first=first)


def clock(rows: DataFrame, gap_timeout: float | None, tolerance: float) -> DataFrame:
    """``gap_closed_early`` and ``gap_closed_late``: a gap expires no sooner than its clock could have run out.

    The clock may have stood still for any time, so only a row that gives the clock's reading shows one that ran too
    long. `gap_timeout`, where None the one that the boot was opened with, and `tolerance` are in seconds.
    """
    of_groups = rows.where(F.col("role") == "group").withColumn("grp", F.col("client"))
    said = _number("gap_timeout")
    opened = of_groups.where((F.col("kind") == "opened") & (F.col("lsn") == F.col("boot_lsn"))).select(
        *_BOOT, said.alias("said")
    )
    timeout = F.col("said") if gap_timeout is None else F.lit(float(gap_timeout))
    expired = (
        of_groups.where((F.col("kind") == "declared") & (F.col("reason") == "expired"))
        .select(*_BOOT, "lsn", *EPOCH, "first", "last", "mono_us", _number("elapsed").alias("elapsed"))
        .join(F.broadcast(opened), list(_BOOT), how="left")
        .withColumn("timeout", timeout)
        .where(F.col("timeout").isNotNull())
    )
    low, high = F.col("timeout") - tolerance, F.col("timeout") + tolerance
    unread = expired.where(F.col("elapsed").isNull())
    gaps = of_groups.where(F.col("kind") == "gap_opened").select(
        *_BOOT, *EPOCH,
        F.col("lsn").alias("gap_lsn"),
        F.col("first").alias("gap_first"),
        F.greatest("first", "last").alias("gap_last"),
        F.col("mono_us").alias("gap_mono_us"),
    )  # fmt: skip
    own = (F.col("gap_lsn") < F.col("lsn")) & (F.col("gap_first") <= F.col("last"))
    clocked = (
        unread.join(gaps, [*_BOOT, *EPOCH], how="inner")
        .where(own & (F.col("first") <= F.col("gap_last")))
        .groupBy(*_BOOT, *EPOCH, "lsn", "first", "last", "mono_us", "timeout")
        .agg(F.min("gap_mono_us").alias("gap_mono_us"))
    )
    seconds = (F.col("mono_us") - F.col("gap_mono_us")) / F.lit(1e6)
    return union(
        [
            findings(expired.where(F.col("elapsed") < low), "gap_closed_early"),
            findings(expired.where(F.col("elapsed") > high), "gap_closed_late"),
            findings(clocked.where(seconds < low), "gap_closed_early"),
        ]
    )


def _number(name: str) -> Column:
    return F.get_json_object("detail", f"$.{name}").try_cast("double")
