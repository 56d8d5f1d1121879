"""Messages that passed through each site, that were lost there, and that were saved by repairs or other sites."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit import producers
from reliamsg.audit.ranges import EPOCH, LAST, coverage, merged, size, tagged
from reliamsg.audit.schema import union

__all__ = ["counts", "lost", "saved"]

_KEY = ("grp", *EPOCH)
_REPAIR = "repair"
"""The reason in rows about messages that did not come from a queue."""


def counts(rows: DataFrame, lost: DataFrame) -> DataFrame:
    """`site`, `confirmed`, `received`, `lost_after_confirm`, `saved_alone`, in messages.

    All but `confirmed` count a message once for each group. `lost`: from :func:`lost`. Repairs do not come from a
    site's queue, and are not counted as received.
    """
    confirmed = (F.col("role") == "producer") & (F.col("kind") == "confirmed")
    passed = rows.where((confirmed | _arrived()) & (F.col("first") <= F.col("last"))).select(
        "role", F.col("client").alias("grp"), *EPOCH, "site", "first", "last"
    )
    merged_passed = merged(passed, ["role", *_KEY, "site"])
    totals = merged_passed.groupBy("site").agg(
        F.sum(F.when(F.col("role") == "producer", size()).otherwise(0)).alias("confirmed"),
        F.sum(F.when(F.col("role") == "group", size()).otherwise(0)).alias("received"),
    )
    alone = _alone(rows, merged_passed.where(F.col("role") == "group"))
    gone = lost.groupBy("site").agg(F.sum(size()).alias("lost_after_confirm"))
    zero = F.lit(0).cast("long")
    return (
        totals.join(gone, "site", how="left")
        .join(alone, "site", how="left")
        .select(
            "site",
            "confirmed",
            "received",
            F.coalesce("lost_after_confirm", zero).alias("lost_after_confirm"),
            F.coalesce("saved_alone", zero).alias("saved_alone"),
        )
    )


def _arrived() -> Column:
    """Whether a message came from a site's queue."""
    return (
        (F.col("role") == "group")
        & F.col("kind").isin("received", "duplicate")
        & (F.col("reason") != _REPAIR)
    )


def lost(rows: DataFrame, chains: DataFrame, counted: DataFrame) -> DataFrame:
    """Messages that sites had confirmed and then lost: provably no longer stored there, and not received.

    If a site's queue was seen empty, or its session found missing, after a producer had announced a position of its
    journal, everything confirmed up to this position has left the queue. No two clocks are compared. Only groups with
    complete journals prove anything. `counted`: from :func:`reliamsg.audit.membership.counted`.

    Columns: `grp`, EPOCH, `site`, `first`, `last`, disjoint.
    """
    key = (*_KEY, "site")
    confirmed = _confirmed_by_then(rows, _proofs(rows, chains))
    places = confirmed.select(*key).distinct()
    expected = (
        counted.where("counts")
        .select(*_KEY, "first", "last")
        .join(F.broadcast(places), list(_KEY), how="inner")
    )
    stray = F.col("kind").isin("late", "before_join", "declared", "quarantined", "let_go") & (
        F.col("site") != ""
    )
    came = rows.where(
        _arrived() | ((F.col("role") == "group") & stray & (F.col("reason") != _REPAIR))
    ).select(F.col("client").alias("grp"), *EPOCH, "site", "first", "last")
    pieces = coverage(
        [
            tagged(confirmed, key, "confirmed"),
            tagged(expected, key, "counted"),
            tagged(came.join(F.broadcast(places), list(key), how="left_semi"), key, "came"),
        ],
        key,
        ["confirmed", "counted", "came"],
    )
    gone = (F.col("confirmed") > 0) & (F.col("counted") > 0) & (F.col("came") == 0)
    return merged(pieces.where(gone), key)


def _proofs(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """`grp`, `site`, `producer`, `incarnation` (of its boot), `told_lsn`: the site's queue was empty after this row."""
    whole = producers.soundness(chains, "group").where(F.col("sound") & F.col("finished")).select("client")
    heard = F.from_json(F.get_json_object("detail", "$.heard"), "map<string,array<string>>")
    gone = F.get_json_object("detail", "$.session_present") == "false"
    emptied = (F.col("kind") == "drained") | ((F.col("kind") == "connected") & gone)
    lsn = F.get("told", F.lit(0)).try_cast("long")
    incarnation = F.get("told", F.lit(1))
    return (
        rows.where((F.col("role") == "group") & emptied)
        .join(F.broadcast(whole), "client", how="left_semi")
        .select(F.col("client").alias("grp"), "site", F.explode(heard).alias("name", "told"))
        .where((F.size("told") == 2) & lsn.isNotNull() & incarnation.rlike("^[0-9a-f]{16}$"))
        .groupBy("grp", "site", F.col("name").alias("client"), incarnation.alias("incarnation"))
        .agg(F.max(lsn).alias("told_lsn"))
    )


def _confirmed_by_then(rows: DataFrame, proofs: DataFrame) -> DataFrame:
    """`grp`, EPOCH, `site`, `first`, `last`: ranges confirmed in the chain of the proof's boot."""
    of_producers = rows.where(F.col("role") == "producer")
    boots = of_producers.where(F.col("kind") == "opened").select("client", "chain", "incarnation").distinct()
    told = proofs.join(boots, ["client", "incarnation"], how="inner").select(
        "grp", "client", "chain", "site", "told_lsn"
    )
    return (
        of_producers.where(F.col("kind") == "confirmed")
        .select("client", "chain", "lsn", *EPOCH, "site", "first", "last")
        .join(F.broadcast(told), ["client", "chain", "site"], how="inner")
        .where(F.col("lsn") <= F.col("told_lsn"))
        .select(*_KEY, "site", "first", "last")
    )


def saved(rows: DataFrame, lost: DataFrame) -> DataFrame:
    """One row: `saved_by_repair`, `saved_by_second_site`, in messages, each once for each group.

    By repair: confirmed and delivered, and received only because its producer resent it. By a second site:
    delivered, lost by a site (:func:`lost`) and received from another one.
    """
    of_groups = rows.where(F.col("role") == "group").withColumn("grp", F.col("client"))
    repaired = of_groups.where((F.col("kind") == "received") & (F.col("reason") == _REPAIR))
    concerned = (
        repaired.select(*_KEY).unionByName(lost.select(*_KEY)).distinct()
    )  # so that all other rows are skipped
    confirmed = rows.where((F.col("role") == "producer") & (F.col("kind") == "confirmed")).select(
        *EPOCH, "first", "last"
    )
    handed = of_groups.where(F.col("kind").isin("delivered", "redelivered"))
    pieces = coverage(
        union(
            [
                tagged(repaired, _KEY, "repaired"),
                tagged(lost, _KEY, "lost"),
                tagged(confirmed.join(concerned, list(EPOCH), how="inner"), _KEY, "confirmed"),
                *(
                    tagged(frame.join(concerned, list(_KEY), how="left_semi"), _KEY, tag)
                    for frame, tag in ((handed, "handed"), (of_groups.where(_arrived()), "arrived"))
                ),
            ]
        ),
        _KEY,
        ["repaired", "lost", "confirmed", "handed", "arrived"],
    )

    def is_so(tag: str) -> Column:
        return F.col(tag) > 0

    by_repair = is_so("repaired") & is_so("confirmed") & ~is_so("arrived")
    zero = F.lit(0).cast("long")
    return pieces.where(is_so("handed")).agg(
        F.coalesce(F.sum(F.when(by_repair, size())), zero).alias("saved_by_repair"),
        F.coalesce(F.sum(F.when(is_so("lost") & is_so("arrived"), size())), zero).alias(
            "saved_by_second_site"
        ),
    )


def _alone(rows: DataFrame, received: DataFrame) -> DataFrame:
    """`site`, `saved_alone`: delivered messages that were received from no other site.

    One sweep counts the sites that cover each piece, and sums up their numbers: if only one covers it, the sum is its
    number. `received`: the ranges of each site are disjoint.
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
