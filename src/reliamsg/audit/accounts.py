"""The fate of every message, for each group, in ranges."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit import membership, producers, restores
from reliamsg.audit.accounts_pieces import DECLINED, KEY, PRODUCER, known
from reliamsg.audit.kinds import LOSSES
from reliamsg.audit.ranges import EPOCH, LAST, coverage, merged, size, tagged
from reliamsg.audit.schema import findings as as_findings

__all__ = ["PRODUCER", "counts", "findings", "losses", "ranges", "unverified"]

_FATES = (*LOSSES, "never_joined", "undelivered", "settled_unseen", "phantom", "unproven")
"""Fates that are findings of a group."""


def ranges(
    rows: DataFrame,
    chains: DataFrame,
    named: DataFrame,
    *,
    drained: bool = True,
    until_us: int | None = None,
    contested: DataFrame | None = None,
    counted: DataFrame | None = None,
) -> DataFrame:
    """Disjoint pieces of the numbers of every group's streams, with their fates.

    `named`: `topic`, `grp`, the groups that consume a topic according to any client. `drained`: the run is over, so
    that messages missing at the end of a finished group's stream are lost, not open. `until_us` (µs since 1970): only
    messages enqueued by then, by their producer's clock, are accounted for. `rows`: from
    :func:`reliamsg.audit.renumbered.settled`. `contested`: from :func:`producers.contested`. `counted`: from
    :func:`reliamsg.audit.membership.counted`, which is called if None.

    Columns: `grp` (``""`` for the producer's own account), EPOCH, `first`, `last`, and `fate`:

    - of enqueued messages: ``delivered``, ``declared_gap``, ``dead``, ``pending``, ``before_join``,
      ``never_joined``, ``excused``, ``removed``, ``discarded``, ``undelivered``, ``settled_unseen``,
      ``joined_unheard``, ``lost``;
      in the producer's own account ``enqueued``, ``removed`` or ``pending``;
    - of messages that were, or may have been, enqueued after `until_us`: ``after``;
    - of messages that were not enqueued: ``phantom``, ``unproven``, ``phantom_gap``, ``unproven_gap``, or ``strange``
      for those that can't be judged.

    Further columns: `why`, the known reason of open messages; `place`, the place of losses in their stream; of losses
    `hop`, the last hop that they reached, and `sites`, where; and independent flags: `accounted` (enqueued by
    `until_us`), `handed`, `pending`, `unacknowledged`, `late` (and not handed), `phantom_gap`, `unproven_gap`,
    `false_removal`, `unproven_removal`, `consumed_unsettled`, `unverifiable` (the content can't be verified, without a
    fault). A caller that uses the pieces more than once should persist them.
    """
    if contested is None:
        contested = producers.contested(rows, chains)
    if counted is None:
        counted = membership.counted(rows)
    return _judged(_states(known(rows, chains, named, contested, counted, until_us)), drained)


def _states(pieces: DataFrame) -> DataFrame:
    """The pieces, with a boolean column for each question that decides a fate."""
    own = F.col("grp") == PRODUCER
    named = own | F.coalesce("named", F.lit(False))
    contested = F.col("is_contested").isNotNull()
    joined = F.col("joined")
    leapt = F.coalesce(
        F.exists("leaps", lambda leap: (leap.low < F.col("epoch")) & (F.col("epoch") < leap.high)),
        F.lit(False),
    )
    before = (
        joined.isNull()
        | (F.col("epoch") < joined.epoch)
        | ((F.col("epoch") == joined.epoch) & (F.col("first") < joined.number))
    )
    place = F.struct(F.col("epoch"), F.col("first").alias("number"))
    aside = (F.col("quarantined") | F.col("discarded")) & ~F.col("received")
    unseen, existed = (
        F.coalesce(F.exists(name, lambda each: (each.low <= place) & (place < each.high)), F.lit(False))
        for name in ("unseen", "existed")
    )
    # Messages settled before the group joined, according to the available journals, were settled by an inbox that is
    # lost with its journal.
    itself = F.col("joined_itself")
    gone = F.coalesce(
        F.exists(
            "unseen",
            lambda each: (each.low <= place) & (place < each.high) & (itself.isNull() | (each.high < itself)),
        ),
        F.lit(False),
    )
    # If an inbox is lost with its journal, all announcements to producers may have come from it; they certainly did for
    # a stream that no available journal has joined.
    replaced = F.coalesce("replaced", F.lit(False))
    word = (replaced | joined.isNull()) & F.col("consumed")
    # All of a stream that its successor has no knowledge of.
    existed = existed | (replaced & F.col("met").isNull())
    joined_inside = F.coalesce((joined.epoch == F.col("epoch")) & (joined.number > 1), F.lit(False))
    flagged = pieces.withColumns(
        {
            "accounted": F.col("enqueued") & ~F.col("after") & named,
            "original": F.col("enqueued") | F.col("after"),
            "gap": F.col("declared") | leapt,
            "sound": F.coalesce("sound", F.lit(False)),
            "finished": F.coalesce("finished", F.lit(False)),
            "contested": contested,
            "owned": F.col("told").isNotNull(),
            "told": F.coalesce("told", F.lit(False)),
            "beyond": F.col("after")
            | (F.coalesce("going_on", F.lit(False)) & ~(F.col("enqueued") | F.col("after"))),
            "before": before,
            "aside": aside,
            "held_up": F.coalesce(F.col("held_at") <= place, F.lit(False)),
            "unverifiable": contested
            | F.col("told").isNull()
            | F.col("has_before_join")
            | F.col("has_excused")
            | joined_inside,
        }
    ).withColumn("pending", F.col("accounted") & ~F.col("published") & ~F.col("removed"))
    missing = F.col("accounted") & ~F.col("handed") & ~F.col("dead") & ~F.col("gap") & ~F.col("pending")
    excused = F.col("excused") & ~F.col("counted")
    unmet = F.col("joined").isNull() & F.col("aside")
    counted = F.col("counted") & ~F.coalesce("latest", F.lit(False))
    early = ~counted & (F.col("before_join") | F.col("before")) & ~unmet & ~gone
    removed = F.col("removed") & ~gone
    return flagged.withColumns(
        {
            "early": missing & early,
            "taken_back": missing & ~early & ~excused & removed,
            "rest": missing & ~early & ~excused & ~removed & ~own,
            "let_off": missing & ~early & excused & ~own,
            "stranger": ~F.col("original") & ~F.col("contested") & F.col("owned"),
            "settled_unseen": unseen | word,
            "perhaps_settled": existed,
            "cut": restores.touches(F.col("cuts"), F.col("epoch")),
            "may_lack": restores.may_lack_rows(F.col("cuts"), F.col("epoch")),
        }
    )


def _judged(states: DataFrame, drained: bool) -> DataFrame:
    own = F.col("grp") == PRODUCER
    along = Window.partitionBy(*KEY).orderBy("first")
    until_now = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    goes_on = F.coalesce(
        F.lag("rest").over(along) & (F.lag("last").over(along) + 1 == F.col("first")), F.lit(False)
    )
    # The end of the stream is only determined for contiguous missing ranges.
    begins = states.withColumn("begins", F.when(F.col("rest") & ~goes_on, F.col("first")))
    begins = begins.withColumn("begun", F.last("begins", ignorenulls=True).over(until_now))
    tail = (
        F.col("reached").isNull()
        | (F.struct(F.col("epoch"), F.col("begun").alias("number")) > F.col("reached"))
        | _is_of_another_history()
    )
    prefix = F.col("lowest").isNull() | (
        F.struct(F.col("epoch"), F.col("last").alias("number")) < F.col("lowest")
    )
    certain = F.col("sound") & (~tail | (F.lit(drained) & F.col("finished")))
    stray_gap = (
        F.col("stranger") & F.col("declared") & F.col("told") & F.col("has_original") & ~F.col("moved")
    )
    fates = (
        begins.withColumn("stray_gap", F.coalesce(stray_gap, F.lit(False)))
        .withColumn("fate", F.when(own, _fate_of_producer()).otherwise(_fate_of_group(certain, tail)))
        .withColumn("hop", F.when(~own & F.col("fate").isin(*LOSSES), _hop()))
    )
    return fates.select(
        *KEY,
        "first",
        "last",
        "fate",
        F.when(F.col("fate") == "pending", _why_pending())
        .when(F.col("fate") == "undelivered", _why_undelivered())
        .alias("why"),
        F.when(
            F.col("fate") == "lost", F.when(tail, "tail").when(prefix, "prefix").otherwise("middle")
        ).alias("place"),
        "hop",
        F.when(F.col("hop").isNotNull(), _sites()).alias("sites"),
        "accounted",
        (F.col("handed") & ~F.col("beyond")).alias("handed"),
        "pending",
        (F.col("handed") & ~F.col("acknowledged") & ~F.col("dead") & ~F.col("beyond") & F.col("sound")).alias(
            "unacknowledged"
        ),
        (F.col("late") & ~F.col("handed") & ~F.col("beyond")).alias("late"),
        (F.col("stray_gap") & ~F.col("cut")).alias("phantom_gap"),
        (F.col("stray_gap") & F.col("cut")).alias("unproven_gap"),
        (~own & _false_removal() & ~F.col("may_lack")).alias("false_removal"),
        (~own & _false_removal() & F.col("may_lack")).alias("unproven_removal"),
        (~own & _unsettled()).alias("consumed_unsettled"),
        "unverifiable",
    )


def _is_of_another_history() -> Column:
    """Whether an epoch below the group's current one may still be unknown to it: it has passed no later epoch of the
    same history. If an outbox is lost while clocks are set back, the next epoch is lower."""
    epoch, reached = F.col("epoch"), F.col("reached.epoch")
    passed = F.exists("epochs", lambda other: (other > epoch) & (other <= reached))
    return (epoch < reached) & ~F.coalesce(passed, F.lit(False))


def _fate_of_group(certain: Column, tail: Column) -> Column:
    """The fate of a range at a group. `certain`: missing messages are lost, unless the outbox still holds the end of
    the stream (`tail`)."""
    stranger = F.col("stranger")
    kept = F.col("held") & ~F.col("consumed")
    return (
        F.when(F.col("accounted") & F.col("handed"), "delivered")
        .when(
            F.col("accounted") & F.col("gap"), F.when(F.col("removed"), "removed").otherwise("declared_gap")
        )
        .when(F.col("accounted") & F.col("dead"), "dead")
        .when(F.col("pending"), "pending")
        .when(
            F.col("early"),
            F.when(F.col("joined").isNull() & F.col("sound"), "never_joined").otherwise("before_join"),
        )
        .when(F.col("let_off"), "excused")
        .when(F.col("taken_back"), "removed")
        .when(
            F.col("rest"),
            F.when(F.col("aside") & F.col("discarded"), "discarded")
            .when(F.col("aside") | (F.col("held_up") & F.col("received")), "undelivered")
            .when(
                certain & ~(tail & kept),
                F.when(F.col("settled_unseen") | (tail & F.col("perhaps_settled")), "settled_unseen")
                .when(F.col("before") & F.coalesce("joined_unheard", F.lit(False)), "joined_unheard")
                .otherwise("lost"),
            )
            .otherwise("undelivered"),
        )
        .when(F.col("beyond"), "after")
        .when(
            stranger & F.col("handed"),
            F.when(
                F.col("told") & ~F.col("cut") & ~(F.col("moved") & F.col("may_lack")), "phantom"
            ).otherwise("unproven"),
        )
        .when(F.col("stray_gap"), F.when(F.col("cut"), "unproven_gap").otherwise("phantom_gap"))
        .otherwise("strange")
    )


def _fate_of_producer() -> Column:
    """The fate of a range at its producer."""
    return (
        F.when(F.col("pending"), "pending")
        .when(F.col("after"), "after")
        .when(F.col("accounted"), F.when(F.col("removed"), "removed").otherwise("enqueued"))
        .otherwise("strange")
    )


def _why_undelivered() -> Column:
    return F.when(F.col("aside"), "in quarantine").when(
        F.col("held_up"), "behind a gap that holds its stream"
    )


def _why_pending() -> Column:
    """The responses of sites that did not confirm it, or where its stream was parked."""
    passages = F.coalesce("passages", F.array())
    covering = F.filter(passages, lambda each: (each.first <= F.col("first")) & (F.col("last") <= each.last))
    declined = F.filter(
        covering,
        lambda each: (
            each.tag.isin(*DECLINED)
            & ~F.exists(covering, lambda other: (other.tag == "confirmed") & (other.site == each.site))
        ),
    )
    said = F.array_sort(
        F.array_distinct(F.transform(declined, lambda each: F.concat(each.tag, F.lit(" by "), each.site)))
    )
    return F.when(F.size(said) > 0, F.array_join(said, ", ")).when(
        F.col("parked").isNotNull(), F.concat(F.lit("parked at "), F.array_join("parked", ", "))
    )


def _hop() -> Column:
    """The last hop that an undelivered range reached."""
    return (
        F.when(F.col("received") & F.col("buffered"), "buffered")
        .when(F.col("received"), "received")
        .when(F.col("confirmed"), "confirmed")
        .otherwise("enqueued")
    )


def _judgeable() -> Column:
    return F.col("enqueued") & ~F.col("after") & ~F.col("contested")


def _false_removal() -> Column:
    """The group received a removal that is not in its producer's journal."""
    return _judgeable() & F.col("said_removed") & F.col("told") & ~F.col("removed")


def _unsettled() -> Column:
    """The group announced messages to the producer as settled that it had not settled, according to its journal."""
    skipped = F.col("before_join") | (F.col("joined").isNotNull() & F.col("before"))
    done = F.col("acknowledged") | F.col("dead") | F.col("gap") | F.col("settled_unseen") | skipped
    return _judgeable() & F.col("consumed") & F.col("sound") & F.col("finished") & ~done


def _sites() -> Column:
    """The sites where the hop was reached. Each piece lies entirely within a passage, or outside."""
    here = F.filter(
        F.coalesce("passages", F.array()),
        lambda each: (
            (each.tag == F.col("hop")) & (each.first <= F.col("first")) & (F.col("last") <= each.last)
        ),
    )
    return F.array_sort(F.array_distinct(F.transform(here, lambda each: each.site)))


def losses(pieces: DataFrame) -> DataFrame:
    """The lost pieces of :func:`ranges`, merged into as few ranges as possible.

    Columns: `kind` (one of LOSSES), `grp`, EPOCH, `first`, `last`, `place`, `hop`, `sites`.
    """
    lost = pieces.where((F.col("grp") != PRODUCER) & F.col("fate").isin(*LOSSES))
    return merged(lost.withColumnRenamed("fate", "kind"), ["kind", *KEY, "place", "hop", "sites"])


def findings(pieces: DataFrame) -> DataFrame:
    """The findings in the pieces of :func:`ranges`."""
    own = F.col("grp") == PRODUCER
    kinds = F.array(
        F.when(F.when(own, F.col("fate") == "pending").otherwise(F.col("fate").isin(*_FATES)), F.col("fate")),
        F.when(F.col("unacknowledged"), F.lit("unacknowledged")),
        F.when(F.col("unproven_removal"), F.lit("unproven")),
        *(
            F.when(F.col(kind), F.lit(kind))
            for kind in ("phantom_gap", "unproven_gap", "false_removal", "consumed_unsettled")
        ),
    )
    found = pieces.select(
        *KEY, "first", "last", "place", "hop", "sites", "why",
        F.explode(F.filter(kinds, lambda kind: kind.isNotNull())).alias("kind"),
    )  # fmt: skip
    is_loss = F.col("kind").isin(*LOSSES)
    keys = ["kind", *KEY, "place", "hop", "sites", "why"]
    plain = found.select(
        "kind",
        *KEY,
        "first",
        "last",
        *(F.when(is_loss, F.col(name)).alias(name) for name in ("place", "hop", "sites")),
        F.when(F.col("kind").isin("pending", "undelivered"), F.col("why")).alias("why"),
    )
    # A gap without an end may extend beyond the published messages.
    endless = F.col("kind").isin("phantom_gap", "unproven_gap") & (F.col("last") >= LAST)
    shown = merged(plain, keys).where(~endless)
    where = F.when(F.size("sites") > 0, F.concat(F.lit(" at "), F.array_join("sites", ", "))).otherwise("")
    return as_findings(
        shown,
        grp=F.when(F.col("grp") != PRODUCER, F.col("grp")),
        text=F.when(F.col("hop").isNotNull(), F.concat(F.lit("last seen: "), "hop", where)).otherwise(
            F.col("why")
        ),
    )


def counts(pieces: DataFrame) -> DataFrame:
    """The numbers of messages in the pieces of :func:`ranges`, by fate.

    `grp`, `enqueued`, `delivered`, `lost`, `declared_gaps`, `phantom`, `late`, `before_join`, `pending`. In the row
    of the group ``""``: `enqueued`, and `pending`, messages that are not published yet or open at any group, counted
    once. In the other rows messages are counted once for each group. Groups without pieces are absent.
    """
    own = F.col("grp") == PRODUCER

    def messages(condition: Column) -> Column:
        return F.sum(F.when(condition, size()).otherwise(0))

    def fate(*names: str) -> Column:
        return ~own & F.col("fate").isin(*names)

    told = pieces.groupBy("grp").agg(
        messages(own & F.col("accounted")).alias("enqueued"),
        messages(~own & F.col("handed")).alias("delivered"),
        messages(fate("lost", "joined_unheard")).alias("lost"),
        messages(fate("declared_gap", "removed", "discarded")).alias("declared_gaps"),
        messages(fate("phantom")).alias("phantom"),
        messages(~own & F.col("late")).alias("late"),
        messages(fate("before_join")).alias("before_join"),
        F.lit(0).cast("long").alias("pending"),
    )
    open_ends = merged(
        pieces.where(F.when(own, F.col("pending")).otherwise(F.col("fate") == "undelivered")), EPOCH
    )
    zero = F.lit(0).cast("long")
    pending = open_ends.agg(F.coalesce(F.sum(size()), zero).alias("pending")).select(
        F.lit(PRODUCER).alias("grp"), *(zero.alias(name) for name in told.columns[1:-1]), "pending"
    )
    return (
        told.unionByName(pending).groupBy("grp").agg(*(F.sum(name).alias(name) for name in told.columns[1:]))
    )


def unverified(pieces: DataFrame, compared: DataFrame, others: DataFrame) -> DataFrame:
    """``unverified``: content that could not be compared with the published content by a digest sum.

    `pieces` from :func:`ranges`, `compared` from :func:`reliamsg.audit.contents.compared`; `others`: all other
    findings. A hole prevents the comparison of the range around it, so nothing is reported for a group's stream and
    epoch with other findings, nor for an epoch in which a group joined or was removed, which is no fault.
    """
    handed = pieces.where((F.col("grp") != PRODUCER) & F.col("handed") & ~F.col("unverifiable"))
    left = coverage(
        [tagged(handed, KEY, "handed"), tagged(compared, KEY, "compared")], KEY, ["handed", "compared"]
    ).where((F.col("handed") > 0) & (F.col("compared") == 0))
    worse = others.where(F.col("topic").isNotNull() & F.col("epoch").isNotNull()).select(
        *(F.col(name).alias(f"worse_{name}") for name in EPOCH),
        F.coalesce("grp", F.lit("")).alias("worse_grp"),
    )
    same = F.col("worse_grp").isin(PRODUCER, F.col("grp"))
    for name in EPOCH:
        same &= F.col(f"worse_{name}") == F.col(name)
    return as_findings(merged(left, KEY).join(worse, same, how="left_anti"), "unverified")
