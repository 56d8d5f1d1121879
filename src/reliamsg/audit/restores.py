"""Missing parts of a producer's journal, because its outbox was replaced by an older copy.

The copy continued from its own state, and its journal does not show that there was more. The evidence is in other rows:

- ``conflict``: a group had received messages of which the next opening has no knowledge.
- ``fenced``: the other history had the later epoch; the row names an opening without a journal.
- ``heard``: the journal of an opening was committed further than it is now. The missing part extends to the next
opening
  in the journal.
- ``surpassed`` (by the producer itself): a group's position was beyond the outbox's knowledge.

A ``conflict`` and a ``surpassed`` row are about one stream, and the copy may have been opened before without publishing
to it. So the missing part may be anywhere behind the last opening that published to the stream. But a ``conflict`` also
names the known position: if the journal has this opening, but not up to this position, the copy is as old as the
opening, and the missing part is between it and the next one.

If the copy's clock was set back, all these rows tell that the group's position was higher. The extent of the other
history is unknown: anything behind it may be missing, except epochs that the copy itself entered. Messages before a
journal may be missing too, because the outbox may have replaced a lost one. Openings without messages are never met by
groups: if the last openings are such, the first of them may belong to a copy whose clock was behind. If an inbox
continued (``behind``) without having met an opening, the inbox that met it is lost. Groups need not have received
messages of the openings after a lost one, but an epoch that a row names and that no journal has was between the epochs
before and after it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.groups_order import told_position
from reliamsg.audit.ranges import EPOCH, LAST
from reliamsg.audit.renumbered import destination

__all__ = ["cuts", "may_lack_rows", "touches"]

_CHAIN = ("client", "chain")
_BOOT = (*_CHAIN, "boot_lsn")
_NOBODY = "0" * 16


def cuts(rows: DataFrame) -> DataFrame:
    """Missing parts of producers' journals: `producer`, `cuts`. A cut is between two consecutive openings in the
    journal, or extends to an opening that is not in it.

    Each cut has `low`, the epoch in which the opening before it ended; `goes_on`, whether that opening was not closed,
    so that its epoch may have continued; and `high`, the epoch of the opening after it, or one beyond all that may be
    missing.
    """
    begins = F.col("lsn") == F.col("boot_lsn")
    enters = begins | (F.col("kind") == "epoch")
    entered = F.array(F.when(enters, F.col("written_epoch")), destination())
    end = F.greatest(F.array_max(entered), F.lit(0))
    of_producers = rows.where(F.col("role") == "producer")
    boots = of_producers.groupBy(*_BOOT).agg(
        F.max(F.when(begins, F.col("incarnation"))).alias("incarnation"),
        F.max(F.when(begins, F.col("written_epoch"))).alias("began"),
        F.max(end).alias("end"),
        F.max(F.col("kind") == "closed").alias("closed"),
        F.max(F.col("kind").isin("enqueued", "renumbered")).alias("published"),
        F.max("lsn").alias("has"),
    )
    along = Window.partitionBy(*_CHAIN).orderBy("boot_lsn")
    before = along.rowsBetween(Window.unboundedPreceding, -1)
    after = boots.select(
        *_BOOT,
        "incarnation",
        "began",
        F.coalesce(F.max("end").over(before), F.lit(0)).alias("low"),
        F.coalesce(~F.lag("closed").over(along), F.lit(False)).alias("goes_on"),
        F.struct(
            F.col("end").alias("low"),
            (~F.col("closed")).alias("goes_on"),
            F.lead("began").over(along).alias("high"),
        ).alias("behind"),
    )
    epochs = (
        of_producers.select(*_BOOT, F.explode(entered).alias("epoch"))
        .where(F.col("epoch").isNotNull())
        .groupBy(*_CHAIN)
        .agg(F.collect_set(F.struct("boot_lsn", "epoch")).alias("entered"))
    )
    between = _between(rows, after.join(epochs, list(_CHAIN)))
    known = boots.groupBy("client", F.col("incarnation").alias("other")).agg(F.max("has").alias("has"))
    fenced = (
        rows.where((F.col("role") == "producer") & (F.col("kind") == "fenced"))
        .select(
            *_CHAIN,
            F.col("client").alias("producer"),
            F.col("written_epoch").alias("low"),
            F.get_json_object("detail", "$.epoch").try_cast("long").alias("by"),
            F.get_json_object("detail", "$.incarnation").alias("other"),
        )
        .where((F.col("by") > F.col("low")) & F.col("other").rlike("^[0-9a-f]{16}$"))
        .join(F.broadcast(known), ["client", "other"], how="left_anti")
        .join(epochs, list(_CHAIN))
        .withColumns({"from": F.lit(0), "goes_on": F.lit(False), "high": F.lit(LAST)})
        .select("producer", _pieces())
    )
    heard = (
        rows.where((F.col("role") == "group") & (F.col("kind") == "heard"))
        .where(F.col("incarnation") != _NOBODY)
        .select(
            F.col("producer").alias("client"),
            F.col("incarnation").alias("other"),
            F.col("written_epoch").alias("at"),
            F.get_json_object("detail", "$.lsn").try_cast("long").alias("told"),
        )
        .join(F.broadcast(known), ["client", "other"], how="left")
        .where(F.col("told") > F.coalesce("has", F.lit(0)))
        .select("client", "other", "at", F.col("has").isNotNull().alias("known"))
        .distinct()
    )
    until_now = along.rowsBetween(Window.unboundedPreceding, 0)
    ends = boots.select(
        *_BOOT,
        "incarnation",
        "began",
        F.max("end").over(until_now).alias("low"),
        F.coalesce(F.max(F.when(F.col("published"), F.col("boot_lsn"))).over(until_now), F.lit(0)).alias(
            "since"
        ),
        (~F.col("closed")).alias("goes_on"),
        F.lead("began").over(along).alias("next"),
    )
    behind = _behind(heard, ends)
    return (
        between.unionByName(fenced)
        .unionByName(_before(boots))
        .unionByName(_unmet(ends, epochs))
        .unionByName(_around_unknown(rows, boots, epochs))
        .unionByName(behind)
        .groupBy("producer")
        .agg(F.collect_set(F.struct("low", "goes_on", "high")).alias("cuts"))
    )


def _before(boots: DataFrame) -> DataFrame:
    """The cut before each producer's journals: `producer` and the columns of :func:`cuts`."""
    began = boots.groupBy(*_CHAIN).agg(F.min_by("began", "boot_lsn").alias("began"))
    return began.groupBy(F.col("client").alias("producer")).agg(
        F.lit(0).cast("long").alias("low"), F.lit(False).alias("goes_on"), F.min("began").alias("high")
    )


def _unmet(openings: DataFrame, epochs: DataFrame) -> DataFrame:
    """The cut behind the last opening of each chain that published messages, if others follow: `producer` and the
    columns of :func:`cuts`. `epochs`: the epochs that each chain `entered`."""
    everywhere = epochs.groupBy("client").agg(F.flatten(F.collect_list("entered")).alias("entered"))
    last = F.max_by(F.struct("low", "goes_on"), F.when(F.col("boot_lsn") == F.col("since"), F.col("since")))
    return (
        openings.groupBy(*_CHAIN)
        .agg(last.alias("last"), F.max("since").alias("since"), F.max("boot_lsn").alias("at"))
        .where(F.col("since") < F.col("at"))
        .join(everywhere, ["client"])
        .select(
            F.col("client").alias("producer"),
            "entered",
            F.lit(0).alias("from"),
            F.coalesce("last.low", F.lit(0)).alias("low"),
            F.coalesce("last.goes_on", F.lit(False)).alias("goes_on"),
            F.lit(LAST).alias("high"),
        )
        .select("producer", _pieces())
    )


def _around_unknown(rows: DataFrame, boots: DataFrame, epochs: DataFrame) -> DataFrame:
    """The cuts around epochs before an opening that groups refer to and no journal of the producer has: `producer` and
    the columns of :func:`cuts`. `epochs`: the epochs that each chain `entered`."""
    of_group = F.col("role") == "group"
    told = F.when(of_group, F.get_json_object("detail", "$.known[0]")).otherwise(
        F.get_json_object("detail", "$.entered")
    )
    complete = (
        F.get_json_object("detail", "$.known[1]").rlike("^[0-9a-f]{16}$")
        & F.get_json_object("detail", "$.known[2]").try_cast("long").isNotNull()
        & F.get_json_object("detail", "$.known[3]").isNull()
    )
    found = (
        rows.where(F.col("kind") == F.when(of_group, "conflict").otherwise("surpassed"))
        .where(~of_group | F.coalesce(complete, F.lit(False)))
        .select(
            F.when(of_group, F.col("producer")).otherwise(F.col("client")).alias("client"),
            told.try_cast("long").alias("told"),
            F.col("written_epoch").alias("opening"),
        )
        .where((F.col("told") > 0) & (F.col("told") < F.col("opening")))
        .distinct()
    )
    everywhere = epochs.groupBy("client").agg(F.flatten(F.collect_list("entered")).alias("everywhere"))
    going_on = boots.groupBy(*_CHAIN).agg(
        F.collect_set(F.when(~F.col("closed"), F.col("end"))).alias("going_on")
    )
    own = F.transform("entered", lambda one: one.epoch)
    low = F.coalesce(F.array_max(F.filter(own, lambda each: each < F.col("told"))), F.lit(0))
    return (
        epochs.join(everywhere, ["client"])
        .join(going_on, list(_CHAIN))
        .join(F.broadcast(found), ["client"])
        .where(F.array_contains(own, F.col("opening")))
        .where(~F.exists("everywhere", lambda one: one.epoch == F.col("told")))
        .select(
            F.col("client").alias("producer"),
            low.alias("low"),
            F.array_contains("going_on", low).alias("goes_on"),
            F.array_min(F.filter(own, lambda each: each > F.col("told"))).alias("high"),
        )
    )


def _between(rows: DataFrame, openings: DataFrame) -> DataFrame:
    """The cuts between openings of a chain: `producer` and the columns of :func:`cuts`. `openings`: with the epoch with
    which each `began`, the one before, the one `behind` it, and the epochs that the chain `entered`, with their
    openings."""
    found = _met(rows, openings)
    meeting, behind = found.where(F.col("behind").isNull()), found.where(F.col("behind").isNotNull())
    published = rows.where((F.col("role") == "producer") & (F.col("kind") == "enqueued")).select(
        *_BOOT, "topic", "part"
    )
    since = (
        meeting.join(published, [*_CHAIN, "topic", "part"], how="left")
        .groupBy(*_CHAIN, "at", "topic", "part", "met")
        .agg(
            F.coalesce(F.max(F.when(F.col("boot_lsn") < F.col("at"), F.col("boot_lsn"))), F.lit(0)).alias(
                "since"
            )
        )
    )
    last = F.col("boot_lsn") == F.col("at")
    anywhere = (
        openings.join(F.broadcast(since), [*_CHAIN], how="inner")
        .where((F.col("since") < F.col("boot_lsn")) & (F.col("boot_lsn") <= F.col("at")))
        .where(~last | (F.col("met") > F.col("low")))
        .select(
            F.col("client").alias("producer"),
            F.col("at").alias("from"),
            "low",
            "goes_on",
            "entered",
            F.when(last, F.col("met")).otherwise(F.col("began")).alias("high"),
        )
    )
    has = (
        rows.where((F.col("role") == "producer") & (F.col("kind") == "enqueued"))
        .groupBy(*EPOCH)
        .agg(F.max("last").alias("has"))
    )
    exactly = (
        behind.withColumn("producer", F.col("client"))
        .withColumn("epoch", F.col("known.epoch"))
        .join(has, list(EPOCH), how="left")
        .where(F.col("known.last") > F.coalesce("has", F.lit(0)))
        .select(
            "producer",
            F.lit(0).alias("from"),
            "behind.low",
            "behind.goes_on",
            "entered",
            F.when(F.col("above"), F.lit(LAST)).otherwise(F.col("behind.high")).alias("high"),
        )
    )
    passed = (
        _passed(rows)
        .join(openings, ["client"])
        .where(_enters(F.col("epoch"), F.col("boot_lsn")) & F.col("behind.high").isNotNull())
        .withColumn("producer", F.col("client"))
        .join(has, list(EPOCH), how="left")
        .where(F.col("to") > F.coalesce("has", F.lit(0)))
        .select("producer", F.lit(0).alias("from"), "behind.low", "behind.goes_on", "entered", "behind.high")
    )
    return anywhere.unionByName(exactly).unionByName(passed).select("producer", _pieces())


def _enters(epoch: Column, opening: Column) -> Column:
    """Whether a chain `entered` that epoch with an opening, given by its first row."""
    return F.exists("entered", lambda one: (one.boot_lsn == opening) & (one.epoch == epoch))


def _passed(rows: DataFrame) -> DataFrame:
    """Epochs that an inbox had settled up to a number (`to`) and whose end it never met, because it continued from the
    position of another one: the inbox that met the next opening is lost. `client`, `topic`, `part`, `epoch`, `to`."""
    return (
        rows.where((F.col("role") == "group") & (F.col("kind") == "behind"))
        .select(
            F.col("producer").alias("client"),
            "topic",
            "part",
            told_position("from").alias("own"),
            F.col("epoch").alias("end"),
        )
        .where((F.col("own.epoch") > 0) & (F.col("own.epoch") < F.col("end")))
        .select(
            "client",
            "topic",
            "part",
            F.col("own.epoch").alias("epoch"),
            (F.col("own.number") - 1).alias("to"),
        )
        .distinct()
    )


def _pieces() -> Column:
    """`low`, `goes_on` and `high` of a cut without the epochs that the chain `entered` with openings that begin at or
    behind row `from`, which are complete in the journal. One row for each piece."""
    own = F.filter(
        "entered",
        lambda one: (
            (one.boot_lsn >= F.col("from")) & (F.col("low") < one.epoch) & (one.epoch < F.col("high"))
        ),
    )
    epochs = F.array_sort(F.array_distinct(F.transform(own, lambda one: one.epoch)))
    ends = F.concat(epochs, F.array("high"))
    pieces = F.transform(
        ends,
        lambda end, number: F.struct(
            F.when(number == 0, F.col("low")).otherwise(ends[number - 1]).alias("low"),
            (F.col("goes_on") & (number == 0)).alias("goes_on"),
            end.alias("high"),
        ),
    )
    return F.inline(pieces)


def _met(rows: DataFrame, openings: DataFrame) -> DataFrame:
    """Openings that provably lacked knowledge: _CHAIN, `at`, their first row, `topic`, `part`, `met`, the epoch beyond
    all that may be missing, whether the group had entered an epoch `above`, and the `known` position, if recorded:
    epoch, incarnation and last number. If an earlier part of the chain has its opening, also the opening `behind` it,
    and the epochs that the chain `entered`."""
    told = F.get_json_object("detail", "$.entered").try_cast("long")
    above = F.coalesce(told > F.col("written_epoch"), F.lit(False))
    known = F.struct(
        F.get_json_object("detail", "$.known[0]").try_cast("long").alias("epoch"),
        F.get_json_object("detail", "$.known[1]").alias("incarnation"),
        F.get_json_object("detail", "$.known[2]").try_cast("long").alias("last"),
    )
    met = (
        rows.where(F.col("kind") == F.when(F.col("role") == "group", "conflict").otherwise("surpassed"))
        .where(F.col("incarnation") != _NOBODY)
        .select(
            F.col("producer").alias("client"),
            "incarnation",
            "topic",
            "part",
            F.when(above, F.lit(LAST)).otherwise(F.col("written_epoch")).alias("met"),
            above.alias("above"),
            known.alias("known"),
        )
        .distinct()
    )
    meeting = openings.join(F.broadcast(met), ["client", "incarnation"], how="inner").select(
        *_CHAIN, F.col("boot_lsn").alias("at"), "topic", "part", "met", "above", "known"
    )
    its = openings.select(
        *_CHAIN, F.col("boot_lsn").alias("its"), F.col("incarnation").alias("other"), "behind", "entered"
    )
    same = [F.col(f"m.{name}") == F.col(f"o.{name}") for name in _CHAIN]
    earlier = (F.col("known.incarnation") == F.col("other")) & (F.col("its") < F.col("at"))
    has = _enters(F.col("known.epoch"), F.col("its"))
    left = [*(f"m.{name}" for name in _CHAIN), "at", "topic", "part", "met", "above", "known"]
    joined = meeting.alias("m").join(its.alias("o"), [*same, earlier, has], how="left")
    return joined.select(*left, "behind", "entered")


def _behind(heard: DataFrame, openings: DataFrame) -> DataFrame:
    """The cuts behind openings that announced more than a chain has of them or, if no chain has the opening, behind the
    one before it. They extend to the next opening in the chain. An earlier opening without messages may belong to the
    copy, whose clock was behind, so more may be missing before it. `openings`: with the last one `since` which the
    chain published nothing."""
    own = F.col("incarnation") == F.col("other")
    taken = F.when(F.col("known"), own).otherwise(F.col("began") < F.col("at"))
    last = F.max_by(F.struct("low", "goes_on", "next", "since", "boot_lsn"), F.when(taken, F.col("boot_lsn")))
    first = F.min_by("began", "boot_lsn")
    found = (
        openings.join(F.broadcast(heard), ["client"], how="inner")
        .groupBy(*_CHAIN, "other", "at", "known")
        .agg(last.alias("last"), first.alias("first"))
        .where(~F.col("known") | F.col("last").isNotNull())
    )
    silent = found.where(~F.col("known")).select(*_CHAIN, "last").distinct()
    earlier = (
        openings.join(F.broadcast(silent), list(_CHAIN), how="inner")
        .where((F.col("last.since") <= F.col("boot_lsn")) & (F.col("boot_lsn") < F.col("last.boot_lsn")))
        .select("client", "low", "goes_on", "next")
    )
    return (
        found.select(
            F.col("client").alias("producer"),
            F.coalesce("last.low", F.lit(0)).alias("low"),
            F.col("known") | F.coalesce("last.goes_on", F.lit(False)),
            F.greatest(
                F.when(F.col("known"), F.col("last.low")).otherwise(F.col("at") + 1),
                F.when(F.col("last").isNull(), F.col("first")).otherwise(F.col("last.next")),
            ).alias("high"),
        )
        .toDF("producer", "low", "goes_on", "high")
        .unionByName(earlier.toDF("producer", "low", "goes_on", "high"))
    )


def touches(found: Column, epoch: Column) -> Column:
    """Whether an epoch may have messages that are not in its producer's journal."""
    return F.coalesce(
        F.exists(
            found,
            lambda cut: ((cut.low < epoch) & (epoch < cut.high)) | (cut.goes_on & (cut.low == epoch)),
        ),
        F.lit(False),
    )


def may_lack_rows(found: Column, epoch: Column) -> Column:
    """Whether messages of an epoch may have been removed, or offered to sites in this epoch, without a row in its
    producer's journal."""
    return F.coalesce(F.exists(found, lambda cut: epoch <= cut.low), F.lit(False))
