"""References to missing journals: openings of producers, parts of them, and clients.

If files are omitted, the remaining rows may look complete: a journal that ends with ``closed`` may continue in another
opening. But received messages and statuses name the opening of their origin by its incarnation, 64 random bits; so do
fenced outboxes and groups that met two histories. Also, a producer must have enqueued every message that a group
received or that was announced to it. If no journal has such an opening or message, the fate of its messages is unknown.

Nothing is reported for producers whose journals obviously lack rows, nor for rows that may be in later segments.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.groups_order import told_position
from reliamsg.audit.ranges import EPOCH, LAST, STREAM
from reliamsg.audit.renumbered import destination
from reliamsg.audit.schema import union

__all__ = ["groups", "missing", "producers"]

_CHAIN = ("client", "chain")
_NOBODY = "0" * 16
_NAME = "^[0-9a-f]{16}$"
_HAD = ("received", "duplicate", "buffered", "late", "before_join", "dead_lettered", "quarantined", "let_go")
"""Kinds of rows about messages that a group received or that were announced to it, which may have no other finding."""
_SPOKE = ("consumed", "repaired", "surpassed")
"""Kinds of a producer's rows that are caused by announcements or requests of a group."""


def missing(rows: DataFrame, chains: DataFrame, until_us: int | None) -> DataFrame:
    """`text`, one line for each opening or epoch of which other journals tell more than its producer's journals.

    Rows that may be in a journal that continues after `until_us` are not missing.
    """
    has = _has(rows, chains, until_us).localCheckpoint()
    told = _openings(rows).join(F.broadcast(has), "client", how="inner").where(~F.col("broken"))
    is_known = F.array_contains("incarnations", F.col("incarnation"))
    opening = F.concat(F.lit("the opening "), "incarnation", F.lit(" of producer "), "client")
    lacks = is_known & (F.col("told") > F.try_element_at("rows", F.col("incarnation")))
    lacks &= ~F.array_contains("growing", F.col("incarnation"))
    is_absent = ~is_known & _is_behind()
    of_openings = told.select(
        F.when(is_absent, F.concat(F.lit("no journal of "), opening))
        .when(lacks, F.concat(F.lit("the journal of "), opening, F.lit(" lacks rows that it had")))
        .alias("text")
    )
    absent = told.where(is_absent).select(F.col("client").alias("producer"), "epoch").distinct()
    ends = (
        _ends(rows)
        .withColumn("client", F.col("producer"))
        .join(F.broadcast(has), "client", how="inner")
        .where(~F.col("broken") & _is_behind())
        .join(F.broadcast(absent), ["producer", "epoch"], how="left_anti")
        .join(_enqueued(rows), list(EPOCH), how="left")
    )
    epoch = F.concat(F.lit("epoch "), F.col("epoch").cast("string"), F.lit(" of producer "), "producer")
    of_epochs = ends.select(
        F.when(~F.array_contains("epochs", F.col("epoch")), F.concat(F.lit("no journal of "), epoch))
        .when(
            F.col("end") > F.coalesce("has", F.lit(0)),
            F.concat(F.lit("the journal of "), epoch, F.lit(" lacks messages to which others refer")),
        )
        .alias("text")
    )
    return of_openings.unionByName(of_epochs).where(F.col("text").isNotNull()).distinct()


def producers(rows: DataFrame) -> DataFrame:
    """`client`: the producers in groups' journals."""
    named = _of_groups(rows).where(F.col("producer") != "").select(F.col("producer").alias("client"))
    return named.unionByName(_emptied(rows).select("client")).distinct()


def groups(rows: DataFrame) -> DataFrame:
    """`client`: the groups that sent anything, according to producers' journals."""
    spoke = (F.col("role") == "producer") & F.col("kind").isin(*_SPOKE) & (F.col("grp") != "")
    return rows.where(spoke).select(F.col("grp").alias("client")).distinct()


def _has(rows: DataFrame, chains: DataFrame, until_us: int | None) -> DataFrame:
    """The content of each producer's journals: `client`; whether one is `broken`; `incarnations` and `epochs`; `rows`,
    the last row by opening; `growing`, the last openings of journals that continue; and `goes_on_from`, the epoch from
    which more rows may follow, or NULL."""
    of_producers = rows.where(F.col("role") == "producer")
    begins = F.col("lsn") == F.col("boot_lsn")
    boots = of_producers.groupBy(*_CHAIN, "boot_lsn").agg(
        F.coalesce(F.max(F.when(begins, F.col("incarnation"))), F.lit(_NOBODY)).alias("incarnation"),
        F.max("lsn").alias("last"),
        F.max("wall_us").alias("last_us"),
        F.max(F.greatest("written_epoch", F.coalesce(destination(), F.lit(0)))).alias("end"),
    )
    goes_on = ~F.col("finished")
    if until_us is not None:
        goes_on |= F.col("last_us") > until_us
    ends = (
        boots.groupBy(*_CHAIN)
        .agg(
            F.max("end").alias("end"),
            F.max("last_us").alias("last_us"),
            F.max_by("incarnation", "boot_lsn").alias("opening"),
        )
        .join(chains.where(F.col("role") == "producer"), list(_CHAIN), how="inner")
        .groupBy("client")
        .agg(
            F.max("broken").alias("broken"),
            F.collect_set(F.when(goes_on, F.col("opening"))).alias("growing"),
            F.min(F.when(goes_on, F.col("end"))).alias("goes_on_from"),
        )
    )
    last = boots.groupBy("client", "incarnation").agg(F.max("last").alias("last"))
    by_opening = F.map_from_entries(F.collect_list(F.struct("incarnation", "last"))).alias("rows")
    names = of_producers.groupBy("client").agg(
        F.collect_set("incarnation").alias("incarnations"),
        F.array_union(F.collect_set("written_epoch"), F.collect_set(destination())).alias("epochs"),
    )
    return ends.join(names, "client").join(last.groupBy("client").agg(by_opening), "client")


def _is_behind() -> Column:
    """Whether an epoch is before all epochs for which more rows may follow."""
    return F.coalesce(F.col("epoch") < F.col("goes_on_from"), F.col("goes_on_from").isNull())


def _enqueued(rows: DataFrame) -> DataFrame:
    """EPOCH, `has`: the last number in producers' journals, in any epoch."""
    found = rows.where((F.col("role") == "producer") & (F.col("kind") == "enqueued"))
    names = F.explode(F.array("epoch", "written_epoch"))
    return found.select(*STREAM, names.alias("epoch"), "last").groupBy(*EPOCH).agg(F.max("last").alias("has"))


def _of_groups(rows: DataFrame) -> DataFrame:
    return rows.where((F.col("role") == "group") & (F.col("kind") != "rejected"))


def _long(path: str) -> Column:
    return F.get_json_object("detail", path).try_cast("long")


def _text(path: str) -> Column:
    return F.get_json_object("detail", path)


def _openings(rows: DataFrame) -> DataFrame:
    """The openings that rows refer to: `client`, the producer; `incarnation`; `epoch`, or NULL; and `told`, the number
    of rows that its journal had."""
    of_groups = _of_groups(rows)
    nothing = F.lit(0).cast("long").alias("told")
    heard = F.coalesce(F.when(F.col("kind") == "heard", _long("$.lsn")), F.lit(0))
    named = of_groups.where((F.col("producer") != "") & (F.col("incarnation") != _NOBODY)).select(
        F.col("producer").alias("client"), "incarnation", F.col("written_epoch").alias("epoch"), heard.alias("told")
    )  # fmt: skip
    known = of_groups.where((F.col("kind") == "conflict") & (F.col("producer") != "")).select(
        F.col("producer").alias("client"),
        _text("$.known[1]").alias("incarnation"),
        _long("$.known[0]").alias("epoch"),
        nothing,
    )
    fenced = rows.where((F.col("role") == "producer") & (F.col("kind") == "fenced")).select(
        "client", _text("$.incarnation").alias("incarnation"), _long("$.epoch").alias("epoch"), nothing
    )
    found = union([named, union([known, fenced]).where(F.col("epoch").isNotNull()), _emptied(rows)])
    return found.where(F.col("incarnation").rlike(_NAME) & (F.col("incarnation") != _NOBODY)).distinct()


def _emptied(rows: DataFrame) -> DataFrame:
    """The openings that groups knew when a site's queue was empty, in the form of :func:`_openings`."""
    heard = F.from_json(_text("$.heard"), "map<string,array<string>>")
    lsn = F.get("said", F.lit(0)).try_cast("long")
    incarnation = F.get("said", F.lit(1))
    return (
        rows.where((F.col("role") == "group") & F.col("kind").isin("drained", "connected"))
        .select(F.explode(heard).alias("client", "said"))
        .where((F.size("said") == 2) & lsn.isNotNull() & incarnation.rlike(_NAME))
        .select(
            "client",
            incarnation.alias("incarnation"),
            F.lit(None).cast("long").alias("epoch"),
            lsn.alias("told"),
        )
    )


def _ends(rows: DataFrame) -> DataFrame:
    """The last existing numbers of streams' epochs according to rows: EPOCH, `end`; 0 if only the epoch existed."""
    of_group = F.col("role") == "group"
    kind = F.col("kind")
    surpassed, conflict = ~of_group & (kind == "surpassed"), of_group & (kind == "conflict")
    behind = of_group & (kind == "behind")
    none = F.lit(0).cast("long")

    def place(epoch: Column, end: Column, condition: Column) -> Column:
        return F.when(
            condition & epoch.isNotNull() & end.isNotNull(), F.struct(epoch.alias("epoch"), end.alias("end"))
        )

    def position(name: str) -> Column:
        told = told_position(name)
        return place(told["epoch"], told["number"] - 1, surpassed | behind)

    said = F.array(
        place(_long("$.entered"), none, surpassed | conflict),
        position("position"),
        position("existed"),
        place(
            _long("$.known[0]"),
            _long("$.known[2]"),
            conflict & _text("$.known[1]").rlike(_NAME) & (_text("$.known[1]") != _NOBODY),
        ),
        place(F.col("written_epoch"), F.col("last") - 1, behind),
        place(
            F.col("written_epoch"),
            F.when(kind.isin(*_HAD), F.col("last")).otherwise(none),
            of_group & ~kind.isin("rejected", "conflict", "behind"),
        ),
    )
    at = F.col("at")
    return (
        rows.where(F.col("topic") != "")
        .select(*STREAM, F.explode(F.array_compact(said)).alias("at"))
        .where(at["epoch"] > 0)
        .select(*STREAM, at["epoch"].alias("epoch"), F.when(at["end"] <= LAST, at["end"]).otherwise(none).alias("end"))
        .groupBy(*EPOCH)
        .agg(F.max("end").alias("end"))
    )  # fmt: skip
