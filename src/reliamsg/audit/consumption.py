"""Outboxes with ``release="consumed"``: their content, and messages that were released too early."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliamsg.audit import producers
from reliamsg.audit.ranges import EPOCH, coverage, merged, tagged
from reliamsg.audit.schema import findings as as_findings
from reliamsg.audit.schema import union

__all__ = ["held", "released_early"]

_CHAIN = ("client", "chain")
_RELEASED = ("released", "released_unsent")


def _keeping(of_producers: DataFrame) -> DataFrame:
    """`client`, `chain`, `boot_lsn` of the boots that retain messages until they are consumed."""
    keeps = F.get_json_object("detail", "$.release") == "consumed"
    return producers.opened(of_producers).where(keeps).select(*_CHAIN, "boot_lsn").distinct()


def held(rows: DataFrame) -> DataFrame:
    """Messages that such an outbox had not released at the end of its chain: EPOCH, `first`, `last`."""
    of_producers = rows.where(F.col("role") == "producer")
    last = of_producers.groupBy(*_CHAIN).agg(F.max("boot_lsn").alias("boot_lsn"))
    chains = last.join(_keeping(of_producers), [*_CHAIN, "boot_lsn"], how="left_semi").select(*_CHAIN)
    own = of_producers.join(F.broadcast(chains), list(_CHAIN), how="left_semi")
    key = (*_CHAIN, *EPOCH)
    pieces = coverage(
        [
            tagged(own.where(F.col("kind") == "enqueued"), key, "enqueued"),
            tagged(own.where(F.col("kind").isin("removed", *_RELEASED)), key, "left"),
        ],
        key,
        ["enqueued", "left"],
    )
    return pieces.where((F.col("enqueued") > 0) & (F.col("left") == 0)).select(*EPOCH, "first", "last")


def released_early(rows: DataFrame, chains: DataFrame, counted: DataFrame) -> DataFrame:
    """``released_early``: messages released before all counting groups had settled them.

    `counted`: from :func:`reliamsg.audit.membership.counted`.
    """
    of_producers = rows.where(F.col("role") == "producer")
    released = (
        of_producers.where(F.col("kind").isin(*_RELEASED))
        .join(F.broadcast(_keeping(of_producers)), [*_CHAIN, "boot_lsn"], how="left_semi")
        .join(
            F.broadcast(producers.whole_boots(of_producers, chains)), [*_CHAIN, "boot_lsn"], how="left_semi"
        )
        .select(*_CHAIN, *EPOCH, "first", "last")
    )
    groups = counted.where("counts").select(*_CHAIN, "grp").distinct()
    key = (*_CHAIN, "grp", *EPOCH)
    pieces = coverage(
        union(
            [
                tagged(counted.where("counts"), key, "counted"),
                tagged(released.join(F.broadcast(groups), list(_CHAIN), how="inner"), key, "released"),
                tagged(of_producers.where(F.col("kind") == "consumed"), key, "consumed"),
            ]
        ),
        key,
        ["counted", "released", "consumed"],
    )
    early = pieces.where((F.col("counted") > 0) & (F.col("released") > 0) & (F.col("consumed") == 0))
    return as_findings(merged(early, ["grp", *EPOCH]), "released_early")
