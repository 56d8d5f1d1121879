"""Gaps in a group's journals: how long they were open, and which epochs were declared lost as a whole."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.groups_order import leap_until
from reliamsg.audit.ranges import EPOCH, STREAM

__all__ = ["clock", "leaps"]

_BOOT = ("grp", "chain", "boot_lsn")


def leaps(rows: DataFrame) -> DataFrame:
    """Pairs of epochs between which everything was declared lost, including unknown epochs.

    Columns: `grp`, STREAM, `low`, `high`, both exclusive.
    """
    until = leap_until()
    return (
        rows.where((F.col("role") == "group") & (F.col("kind") == "declared") & until.isNotNull())
        .select(F.col("client").alias("grp"), *STREAM, F.col("epoch").alias("low"), until.alias("high"))
        .distinct()
    )


def clock(rows: DataFrame, gap_timeout: float | None, tolerance: float) -> DataFrame:
    """``gap_closed_early`` and ``gap_closed_late``: gaps that expired before or long after their timeout.

    A gap's clock may have been stopped for any time, so only a row with the reading of the clock proves that it expired
    late. Columns: `kind`, `grp`, EPOCH, `first`, `last`. `tolerance` and `gap_timeout` (None: that of the boot) are in
    seconds.
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
    gaps = of_groups.where(F.col("kind") == "gap_opened").select(
        *_BOOT, *EPOCH,
        F.col("lsn").alias("gap_lsn"),
        F.col("first").alias("gap_first"),
        F.greatest("first", "last").alias("gap_last"),
        F.col("mono_us").alias("gap_mono_us"),
    )  # fmt: skip
    same_gap = (
        F.col("expired.elapsed").isNull()
        & (F.col("gap_lsn") < F.col("lsn"))
        & (F.col("gap_first") <= F.col("last"))
        & (F.col("first") <= F.col("gap_last"))
    )
    for name in (*_BOOT, *EPOCH):
        same_gap &= F.col(f"expired.{name}") == F.col(f"gaps.{name}")
    row = [F.col(f"expired.{name}") for name in expired.columns]
    at_most = (F.col("mono_us") - F.min("gap_mono_us")) / F.lit(1e6)
    timed = (
        expired.alias("expired")
        .join(gaps.alias("gaps"), same_gap, how="left")
        .groupBy(*row)
        .agg(at_most.alias("at_most"))
    )
    early = F.coalesce("elapsed", "at_most") < F.col("timeout") - tolerance
    late = F.col("elapsed") > F.col("timeout") + tolerance
    kind = F.when(early, "gap_closed_early").when(late, "gap_closed_late")
    return timed.select(kind.alias("kind"), "grp", *EPOCH, "first", "last").where(F.col("kind").isNotNull())


def _number(name: str) -> Column:
    return F.get_json_object("detail", f"$.{name}").try_cast("double")
