"""Compares delivered with published content by the digest sums of ranges.

The rows of a client's chain about a stream's epoch form a line; adjacent rows of a line form a run, along which digest
sums can be added. If a run of the producer and a run of a group are both cut at the same two numbers, the sums between
them must be equal, modulo 2**64.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.ranges import EPOCH, merged
from reliamsg.audit.schema import findings as as_findings

__all__ = ["compared", "corrupt", "findings", "stretches", "verified"]

_LINE = ("role", "client", "chain", *EPOCH)
_TOGETHER = ""
"""Used as the chain for all chains of a group."""
_SUM = "decimal(38,0)"


def findings(rows: DataFrame, contested: DataFrame) -> DataFrame:
    """``corrupt``: ranges whose content differs from the published content, merged.

    `contested`: EPOCH; these epochs are omitted because their numbers have more than one content.
    """
    return corrupt(stretches(rows, contested))


def compared(rows: DataFrame, contested: DataFrame) -> DataFrame:
    """Ranges that were compared with the producer's account, equal or not: `grp`, EPOCH, `first`, `last`."""
    return verified(stretches(rows, contested))


def corrupt(stretches: DataFrame) -> DataFrame:
    """The findings among :func:`stretches`."""
    return as_findings(merged(stretches.where(~F.col("agrees")), ["grp", *EPOCH]), "corrupt")


def verified(stretches: DataFrame) -> DataFrame:
    """:func:`compared` of :func:`stretches`."""
    return merged(stretches.where("by_producer"), ["grp", *EPOCH])


def stretches(rows: DataFrame, contested: DataFrame) -> DataFrame:
    """Every stretch between two consecutive cuts that a run of a group and a run of its reference have in common.

    The reference is the producer's journal or, without it, the journal of the first group by name. Columns:
    `grp`, EPOCH, `first`, `last`, `agrees`, `by_producer`.
    """
    cuts = _cuts(_lines(rows, contested))
    # For each epoch, use the producer's lines, or those of the first group.
    client = F.struct((F.col("role") != "producer").alias("other"), "client")
    anywhere = Window.partitionBy(*EPOCH)
    ranked = cuts.withColumn("source", F.min(client).over(anywhere)).withColumn(
        "refers", (client == F.col("source")) | (~F.col("source.other") & (F.col("role") == "producer"))
    )
    reference = ranked.where("refers").select(
        *EPOCH,
        "at",
        F.col("chain").alias("reference_chain"),
        F.col("run").alias("reference_run"),
        F.col("total").alias("reference_total"),
        (F.col("role") == "producer").alias("by_producer"),
    )
    # Within a pair of runs, the common cuts have the same order.
    along = Window.partitionBy(*_LINE, "run", "reference_chain", "reference_run").orderBy("at")
    apart = F.col("total") - F.col("reference_total")
    return (
        ranked.where(~F.col("refers"))
        .join(reference, [*EPOCH, "at"], how="inner")
        .select(
            F.col("client").alias("grp"),
            *EPOCH,
            (F.lag("at").over(along) + 1).alias("first"),
            F.col("at").alias("last"),
            (_modulo(apart - F.lag(apart).over(along)) == 0).alias("agrees"),
            "by_producer",
        )
        .where(F.col("first").isNotNull())
    )


def _modulo(value: Column) -> Column:
    return F.pmod(value.cast(_SUM), F.lit(str(2**64)).cast(_SUM))


def _lines(rows: DataFrame, contested: DataFrame) -> DataFrame:
    """Rows with a digest sum, and whether each lies beyond all earlier rows of its line.

    Rows that repeat numbers are separate: a repetition, in the middle or after a restart, does not interrupt a run.
    """
    content = ((F.col("role") == "producer") & (F.col("kind") == "enqueued")) | (
        (F.col("role") == "group") & F.col("kind").isin("delivered", "redelivered")
    )
    before = Window.partitionBy(*_LINE).orderBy("lsn").rowsBetween(Window.unboundedPreceding, -1)
    told = (
        rows.where(content & F.col("digest").isNotNull() & (F.col("first") <= F.col("last")))
        .select(*_LINE, "lsn", "first", "last", "digest")
        .join(contested.select(*EPOCH), list(EPOCH), how="left_anti")
    )
    return told.unionByName(_together(told)).withColumn(
        "fresh", F.col("first") > F.coalesce(F.max("last").over(before), F.lit(-1))
    )


def _together(lines: DataFrame) -> DataFrame:
    """If one inbox of a group continued for another one, their rows only form a run together: a line in order of
    numbers, in addition to those of the chains."""
    apart = ["role", "client", *EPOCH]
    by_number = Window.partitionBy(*apart).orderBy("first", F.col("last").desc(), "digest")
    anywhere = Window.partitionBy(*apart)
    several = F.min("chain").over(anywhere) < F.max("chain").over(anywhere)
    return (
        lines.where(F.col("role") == "group")
        .withColumn("several", several)
        .where("several")
        .select(
            *apart, F.lit(_TOGETHER).alias("chain"), F.row_number().over(by_number).cast("long").alias("lsn"),
            "first", "last", "digest",
        )
    )  # fmt: skip


def _cuts(lines: DataFrame) -> DataFrame:
    """The positions where runs can be compared: _LINE, `run`, `at`, and `total`, the sum of the line up to there.

    Sums continue across runs; only differences within a run are meaningful.
    """
    along = Window.partitionBy(*_LINE, "fresh").orderBy("lsn")
    until_now = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    begins = F.coalesce(F.lag("last").over(along) + 1 != F.col("first"), F.lit(True))
    summed = lines.select(
        *_LINE, "fresh", "lsn", "first", "last", "digest",
        F.when(begins, F.col("lsn")).alias("begun"),
        F.sum(F.col("digest").cast("decimal(20,0)")).over(until_now).cast(_SUM).alias("total"),
    ).withColumn("run", F.max("begun").over(until_now))  # fmt: skip
    end = F.struct(F.col("last").alias("at"), "total")
    start = F.struct(
        (F.col("first") - 1).alias("at"), (F.col("total") - F.col("digest")).cast(_SUM).alias("total")
    )
    both = F.when(F.col("begun").isNotNull(), F.array(start, end)).otherwise(F.array(end))
    return summed.select(*_LINE, "run", F.explode(both).alias("cut")).select(
        *_LINE, "run", "cut.at", "cut.total"
    )
