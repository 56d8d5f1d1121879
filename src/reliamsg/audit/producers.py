"""Findings from producers' journals: rows that contradict the rules of the protocol."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.ranges import EPOCH, STREAM, coverage, merged, tagged
from reliamsg.audit.renumbered import destination
from reliamsg.audit.schema import findings as as_findings
from reliamsg.audit.schema import union

__all__ = [
    "contested",
    "enqueued",
    "findings",
    "incarnations",
    "names_in",
    "opened",
    "soundness",
    "whole_boots",
]

_CHAIN = ("client", "chain")
_BOOT = (*_CHAIN, "boot_lsn")
_CLAIMED = ("rejected", "conflict", "quarantined", "quarantine_discarded", "let_go")
"""Kinds whose identity is that claimed by a frame, not accepted by the client."""
_ANY = ""
"""Used as the site for any site."""
_NAMES = "array<string>"


def findings(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """``seq_reused``, ``seq_skipped``, ``old_epoch``, ``wrong_prev``, ``confirmed_unknown``,
    ``published_unconfirmed`` and ``enqueued_after_fence``, merged.

    `rows`: from :func:`reliamsg.audit.renumbered.settled`. The sequence of numbers and epochs is judged as written.
    """
    of_producers = rows.where(F.col("role") == "producer")
    replayed = _replayed(of_producers, chains)
    ranged = union(
        [
            _numbers(of_producers, chains),
            _steps(replayed),
            _unconfirmed(of_producers, chains),
            _after_fence(of_producers),
        ]
    )
    return union(
        [
            _shaped(merged(ranged, ["kind", "site", *EPOCH])),
            _epochs_entered(replayed, of_producers),
        ]
    )


def contested(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """EPOCH: epochs whose contents can't be compared, because a number was used twice or they have two histories."""
    pieces = coverage(tagged(enqueued(rows), EPOCH, "enqueued"), EPOCH, ["enqueued"])
    reused = pieces.where(F.col("enqueued") > 1).select(*EPOCH)
    double = (
        _identified(rows)
        .select(*EPOCH)
        .join(_double(rows).select("producer", "epoch"), ["producer", "epoch"], how="left_semi")
        .select(*EPOCH)
    )
    return reused.unionByName(double).distinct()


def incarnations(rows: DataFrame) -> DataFrame:
    """``two_incarnations``: one epoch of a producer with two histories."""
    text = F.concat(
        F.col("producer"),
        F.lit(" has incarnations "),
        F.array_join("incarnations", ", "),
        F.lit(" in epoch "),
        F.col("epoch").cast("string"),
    )
    # This applies to an epoch of all streams, so the finding has no stream.
    return as_findings(_double(rows).select("epoch", text.alias("text")), "two_incarnations")


def enqueued(rows: DataFrame) -> DataFrame:
    """Enqueued ranges, without copies of rows in clones: `client`, `boot`, `lsn`, EPOCH, `first`, `last`,
    `wall_last_us`.

    A clone's chain begins with the rows of its original; of two states of a row, the longer one is used. If only one of
    the two was renumbered, both are used.
    """
    longest = F.max(F.struct("last", "first", "wall_last_us")).alias("row")
    return (
        rows.where((F.col("role") == "producer") & (F.col("kind") == "enqueued"))
        .groupBy("client", "boot", "lsn", *EPOCH)
        .agg(longest)
        .select(
            "client", "boot", "lsn", *EPOCH, *(f"row.{name}" for name in ("first", "last", "wall_last_us"))
        )
    )


def opened(rows: DataFrame) -> DataFrame:
    """The ``opened`` rows at the start of boots."""
    return rows.where((F.col("kind") == "opened") & (F.col("lsn") == F.col("boot_lsn")))


def whole_boots(of_producers: DataFrame, chains: DataFrame) -> DataFrame:
    """The boots of producers with a complete journal: another boot follows, or the boot was closed, and no row of the
    chain is missing. Rows of other boots may be extended later, so they do not prove anything about missing rows."""
    of_chains = chains.where((F.col("role") == "producer") & ~F.col("broken")).select(*_CHAIN, "finished")
    last = F.max("boot_lsn").over(Window.partitionBy(*_CHAIN))
    return (
        opened(of_producers)
        .select(*_BOOT, last.alias("last_boot_lsn"))
        .join(F.broadcast(of_chains), list(_CHAIN), how="inner")
        .where(F.col("finished") | (F.col("boot_lsn") < F.col("last_boot_lsn")))
        .select(*_BOOT)
    )


def names_in(json: Column) -> Column:
    """Names from JSON text: the elements of a list, or the keys of an object."""
    return F.coalesce(F.json_object_keys(json), F.from_json(json, _NAMES))


def soundness(chains: DataFrame, role: str) -> DataFrame:
    """For each client of a role: `client`, `sound` (no row is missing, so that only recorded events happened) and
    `finished` (no rows can follow)."""
    return (
        chains.where(F.col("role") == role)
        .groupBy("client")
        .agg((~F.max("broken")).alias("sound"), F.min("finished").alias("finished"))
    )


def _shaped(frame: DataFrame) -> DataFrame:
    """Ranges with `kind` and `site` as findings."""
    return as_findings(frame, site=F.when(F.col("site") != _ANY, F.col("site")))


def _identified(rows: DataFrame) -> DataFrame:
    return rows.where(
        (F.col("epoch") != 0)
        & (F.col("incarnation") != "0" * 16)
        & (F.col("incarnation") != "")
        & (F.col("topic") != "")
        & ~F.col("kind").isin(*_CLAIMED)
    )


def _double(rows: DataFrame) -> DataFrame:
    """`producer`, `epoch`, `incarnations`, for epochs with several incarnations."""
    return (
        _identified(rows)
        .groupBy("producer", "epoch")
        .agg(F.array_sort(F.collect_set("incarnation")).alias("incarnations"))
        .where(F.size("incarnations") > 1)
    )


def _numbers(of_producers: DataFrame, chains: DataFrame) -> DataFrame:
    """Ranges enqueued twice, and ranges confirmed but not enqueued: `kind`, `site`, EPOCH, a range."""
    confirmed = of_producers.where(F.col("kind") == "confirmed")
    pieces = coverage(
        [tagged(enqueued(of_producers), EPOCH, "enqueued"), tagged(confirmed, EPOCH, "confirmed")],
        EPOCH,
        ["enqueued", "confirmed"],
    )
    reused = pieces.where(F.col("enqueued") > 1)
    unknown = (
        pieces.where((F.col("enqueued") == 0) & (F.col("confirmed") > 0))
        .join(
            F.broadcast(soundness(chains, "producer").where("sound AND finished")),
            F.col("producer") == F.col("client"),
            how="left_semi",
        )
        .alias("piece")
        .join(
            confirmed.select(*EPOCH, "site", F.col("first").alias("from"), F.col("last").alias("to")),
            list(EPOCH),
            how="inner",
        )
        .where((F.col("from") <= F.col("first")) & (F.col("last") <= F.col("to")))
    )
    return union([_ranged(reused, "seq_reused"), _ranged(unknown, "confirmed_unknown", F.col("site"))])


def _ranged(
    frame: DataFrame,
    kind: str,
    site: Column | None = None,
    first: Column | None = None,
    last: Column | None = None,
) -> DataFrame:
    return frame.select(
        F.lit(kind).alias("kind"),
        (F.lit(_ANY) if site is None else site).alias("site"),
        *EPOCH,
        (F.col("first") if first is None else first).alias("first"),
        (F.col("last") if last is None else last).alias("last"),
    )


def _replayed(of_producers: DataFrame, chains: DataFrame) -> DataFrame:
    """Rows that enqueue, enter an epoch or renumber messages, with the state of their chain before them.

    `epoch` is as written. Adds `broken`; `newest`, the newest epoch of any stream; `tip`, the last position of the
    row's stream.
    """
    place = F.struct(
        F.col("goes_on").alias("epoch"),
        "last",
        (-F.col("lsn")).alias("age"),
        F.col("incarnation").alias("incarnation"),
    )
    chain = Window.partitionBy(*_CHAIN).orderBy("lsn").rowsBetween(Window.unboundedPreceding, -1)
    stream = Window.partitionBy(*_CHAIN, *STREAM).orderBy("lsn").rowsBetween(Window.unboundedPreceding, -1)
    known = chains.where(F.col("role") == "producer").select(*_CHAIN, "broken")
    return (
        of_producers.where(F.col("kind").isin("enqueued", "epoch") | destination().isNotNull())
        .select(
            *_CHAIN,
            "lsn",
            "kind",
            *STREAM,
            F.col("written_epoch").alias("epoch"),
            "incarnation",
            "first",
            "last",
            "detail",
        )
        .withColumn("goes_on", F.coalesce(destination(), "epoch"))
        .withColumn("newest", F.coalesce(F.max("goes_on").over(chain), F.lit(0)))
        .withColumn("tip", F.max(F.when(F.col("kind") != "epoch", place)).over(stream))
        .join(F.broadcast(known), list(_CHAIN), how="inner")
    )


def _steps(replayed: DataFrame) -> DataFrame:
    """Ranges enqueued in an epoch that had ended, and skipped numbers."""
    rows = replayed.where(F.col("kind") == "enqueued")
    old = F.col("epoch") < F.col("newest")
    follows = F.col("tip.epoch") == F.col("epoch")
    expected = F.coalesce(F.when(follows, F.col("tip.last") + 1), F.lit(1))
    skipped = rows.where(~old & ~F.col("broken") & (F.col("first") > expected))
    return union(
        [
            _ranged(rows.where(old), "old_epoch"),
            _ranged(skipped, "seq_skipped", first=expected, last=F.col("first") - 1),
        ]
    )


def _after_fence(of_producers: DataFrame) -> DataFrame:
    """Ranges that a boot enqueued although it knew of another live owner."""
    fenced = (
        of_producers.where(F.col("kind") == "fenced").groupBy(*_BOOT).agg(F.min("lsn").alias("fenced_lsn"))
    )
    after = (
        of_producers.where(F.col("kind") == "enqueued")
        .join(F.broadcast(fenced), list(_BOOT), how="inner")
        .where(F.col("lsn") > F.col("fenced_lsn"))
    )
    return _ranged(after, "enqueued_after_fence")


def _epochs_entered(replayed: DataFrame, of_producers: DataFrame) -> DataFrame:
    """The previous epoch in an ``epoch`` row must be that in its journal. Epochs with renumbered messages are not
    judged, because those of the previous epoch may have been renumbered with them."""
    moved_to = of_producers.select(*_CHAIN, *STREAM, destination().alias("epoch")).where(
        F.col("epoch").isNotNull()
    )
    rows = replayed.where(F.col("kind") == "epoch")
    of_stream = F.col("topic") != ""
    old = rows.where(F.col("epoch") < F.col("newest"))
    # An epoch that is entered again must have the same previous epoch.
    again = F.coalesce(F.col("tip.epoch") >= F.col("epoch"), F.lit(False))
    has = F.coalesce(F.array_contains(F.json_object_keys("detail"), "prev"), F.lit(False))
    told = F.struct(F.col("tip.epoch"), F.col("tip.incarnation"), F.col("tip.last"))
    wrong = (
        rows.where(of_stream & ~F.col("broken") & has & ~again)
        .join(F.broadcast(moved_to.distinct()), [*_CHAIN, *EPOCH], how="left_anti")
        .withColumn("said", _prev(F.get_json_object("detail", "$.prev")))
        .withColumn("told", F.when(F.col("tip").isNotNull(), told))
        .where(~F.col("said").eqNullSafe(F.col("told")))
    )
    text = F.concat(F.lit("it names "), _place("said"), F.lit(", where the journal has "), _place("told"))
    nothing = F.lit(None)
    return union(
        [
            as_findings(
                old.select(*EPOCH).distinct(),
                "old_epoch",
                **{name: F.when(of_stream, F.col(name)) for name in STREAM},
            ),
            as_findings(wrong, "wrong_prev", first=nothing, last=nothing, text=text),
        ]
    )


def _prev(json: Column) -> Column:
    """(epoch, incarnation, last), with the incarnation as a number or quoted hex digits; NULL for anything else."""
    parts = F.from_json(json, _NAMES)
    incarnation = F.when(json.contains('"'), F.lower(F.get(parts, F.lit(1)))).otherwise(
        F.lower(F.conv(F.get(parts, F.lit(1)), 10, 16))
    )
    return F.when(
        F.size(parts) == 3,
        F.struct(
            F.get(parts, F.lit(0)).try_cast("long").alias("epoch"),
            F.lpad(incarnation, 16, "0").alias("incarnation"),
            F.get(parts, F.lit(2)).try_cast("long").alias("last"),
        ),
    )


def _place(name: str) -> Column:
    fields = (F.col(f"{name}.{field}").cast("string") for field in ("epoch", "incarnation", "last"))
    return F.when(F.col(name).isNotNull(), F.concat_ws(":", *fields)).otherwise("nothing")


def _unconfirmed(of_producers: DataFrame, chains: DataFrame) -> DataFrame:
    """Published ranges must have been confirmed before, according to their chain: by every site of the boot with
    ``all``, otherwise by any site."""
    site_names = F.when(
        F.get_json_object("detail", "$.confirm") == "all", names_in(F.get_json_object("detail", "$.sites"))
    )
    needed = opened(of_producers).select(*_BOOT, site_names.alias("sites"))
    some = F.when(F.size("sites") > 0, F.col("sites")).otherwise(F.array(F.lit(_ANY)))
    published = (
        of_producers.where(F.col("kind") == "published")
        .select(*_BOOT, *EPOCH, "first", "last")
        .join(F.broadcast(whole_boots(of_producers, chains)), list(_BOOT), how="left_semi")
        .join(F.broadcast(needed), list(_BOOT), how="left")
        .select(*_BOOT, *EPOCH, "first", "last", F.explode(some).alias("site"))
    )
    asked = published.select(*_BOOT, *EPOCH, "site").distinct()
    confirmed = of_producers.where(F.col("kind") == "confirmed").select(
        *_CHAIN, *EPOCH, "first", "last", F.col("boot_lsn").alias("by_boot"), F.col("site").alias("by_site")
    )
    covered = confirmed.join(asked, [*_CHAIN, *EPOCH], how="inner").where(
        (F.col("by_boot") <= F.col("boot_lsn")) & F.col("site").isin(_ANY, F.col("by_site"))
    )
    keys = (*_BOOT, *EPOCH, "site")
    pieces = coverage(
        [tagged(published, keys, "published"), tagged(covered, keys, "confirmed")],
        keys,
        ["published", "confirmed"],
    )
    wrong = pieces.where((F.col("published") > 0) & (F.col("confirmed") == 0))
    return _ranged(wrong, "published_unconfirmed", F.col("site"))
