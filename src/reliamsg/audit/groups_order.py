"""A group's journals in the order of writing: the start of each stream and its progress.

The cursor of a stream is the highest position (epoch, number) of all rows about messages that were delivered or
skipped; if an operator had forged epochs forgotten, it returns to the position before them. A row that begins at or
before the cursor is out of order; a row that does not begin directly after it leaves a hole.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.ranges import EPOCH, LAST, STREAM

__all__ = [
    "ACKNOWLEDGED",
    "DEAD",
    "HANDED",
    "HELD",
    "REPLAYED",
    "SKIPPED",
    "behind",
    "bounds",
    "joined",
    "leap_until",
    "met",
    "ordered",
    "reached",
    "replaced",
]

HANDED = ("delivered", "redelivered")
"""Delivered to the application."""
SKIPPED = ("declared", "before_join")
"""Declared to the application as not delivered. An end below the start means the rest of the epoch."""
DEAD = "dead_lettered"
REPLAYED = "replayed"
ACKNOWLEDGED = "acknowledged"

_ADVANCING = (*HANDED, *SKIPPED, DEAD)
"""The kinds that move the cursor."""
_ORDERED = (*_ADVANCING, "late", REPLAYED)
HELD = "gap_held"
_FORGOTTEN = "forgotten"
_TOOK_OVER = "took_over"
"""The reason in ``joined`` rows of an inbox that continues from the position of another one."""
_FORGED, _UNREMEMBERED = "forged", "unremembered"
"""The reasons of ``forgotten`` rows that send a group back, to the named position or to the start."""
_CHAIN = ("grp", "chain")
_POSITION = "struct<epoch:bigint,number:bigint>"


def _end() -> Column:
    """A row's last number."""
    unknown = F.col("kind").isin(*SKIPPED) & (F.col("last") < F.col("first"))
    return F.when(unknown, F.lit(LAST)).otherwise(F.least(F.col("last"), F.lit(LAST)))


def leap_until() -> Column:
    """The epoch up to which a row declares all epochs after its own lost; NULL in most rows."""
    return F.get_json_object("detail", "$.until_epoch").try_cast("long")


def _position(epoch: Column, number: Column) -> Column:
    return F.struct(epoch.alias("epoch"), number.alias("number"))


def _events(rows: DataFrame, *others: str) -> DataFrame:
    """Rows of groups about a stream's progress, with `seed`: the initial cursor of a group that joins with
    ``begin="latest"``, from the chain's first row about the stream; and `back`, if a row sends the group back `to`."""
    of_groups = rows.where(F.col("role") == "group")
    latest = of_groups.where(
        (F.col("kind") == "opened")
        & (F.col("lsn") == F.col("boot_lsn"))
        & (F.get_json_object("detail", "$.begin") == "latest")
    ).select(F.col("client").alias("grp"), "chain", "boot_lsn", F.lit(True).alias("latest"))
    events = of_groups.where(F.col("kind").isin("joined", _FORGOTTEN, HELD, *_ORDERED, *others)).select(
        F.col("client").alias("grp"),
        "chain",
        "boot_lsn",
        "lsn",
        "kind",
        *EPOCH,
        "first",
        _end().alias("last"),
        F.when(F.col("kind") == "declared", leap_until()).alias("leap"),
        F.when(
            _sends_back(),
            F.struct(
                F.when(
                    F.col("reason") == _FORGED,
                    _position(F.col("epoch"), F.greatest("first", F.lit(1)) - 1),
                ).alias("to")
            ),
        ).alias("back"),
        ((F.col("kind") == "joined") & (F.get_json_object("detail", "$.unheard") == "true")).alias("unheard"),
        (F.col("reason") == _TOOK_OVER).alias("took_over"),
    )
    seed = F.when(
        F.col("latest") & (F.col("kind") == "joined"),
        _position(F.col("epoch"), F.greatest("first", F.lit(1)) - 1),
    )
    return events.join(F.broadcast(latest), [*_CHAIN, "boot_lsn"], how="left").select(
        *events.columns, seed.alias("seed")
    )


def _sends_back() -> Column:
    """Whether a row sends the group back."""
    return (F.col("kind") == _FORGOTTEN) & F.col("reason").isin(_FORGED, _UNREMEMBERED)


def _is_sent_back(rows: DataFrame) -> bool:
    """Whether any group is sent back: rarely, and the plan is simpler without."""
    return not rows.where((F.col("role") == "group") & _sends_back()).isEmpty()


def _followed(events: DataFrame, is_sent_back: bool) -> DataFrame:
    """The same with `cursor`, the highest position of all earlier rows, and `moved`, the position after the row.

    A row that sends the group back ends a phase of the stream. The next phase begins at the position in that row, or at
    the group's position if that is lower.
    """
    along = Window.partitionBy(*_CHAIN, *STREAM).orderBy("lsn")
    before = along.rowsBetween(Window.unboundedPreceding, -1)
    if not is_sent_back:
        earlier = F.count(F.when(_counts_as_first(), 1)).over(before)
        moved = F.coalesce(_advance(), F.when(earlier == 0, F.col("seed")))
        return events.withColumn("moved", moved).withColumn("cursor", F.max("moved").over(before))
    in_life = (
        Window.partitionBy(*_CHAIN, *STREAM, "life").orderBy("lsn").rowsBetween(Window.unboundedPreceding, -1)
    )
    back = F.col("back")
    fresh = F.col("sent").isNull() | F.col("sent.to").isNull()
    in_lives = (
        events.select(
            "*", F.count("back").over(before).alias("life"), F.last("back", True).over(before).alias("sent")
        )
        .withColumn("earlier", F.count(F.when(_counts_as_first(), 1)).over(in_life))
        .withColumn("moved", F.coalesce(_advance(), F.when((F.col("earlier") == 0) & fresh, F.col("seed"))))
        .withColumn("own", F.max("moved").over(in_life))
        .withColumn(
            "past",
            F.collect_list(F.when(back.isNotNull(), F.struct("own", back.to.alias("to")))).over(before),
        )
    )
    begun = F.aggregate(
        "past",
        F.lit(None).cast(_POSITION),
        lambda cursor, life: _sent_back(F.greatest(cursor, life.own), life.to),
    )
    return in_lives.withColumn("cursor", F.greatest(begun, "own")).drop(
        "life", "sent", "earlier", "own", "past"
    )


def _sent_back(cursor: Column, to: Column) -> Column:
    return F.when(cursor.isNotNull() & to.isNotNull(), F.least(cursor, to))


def _advance() -> Column:
    advances = F.col("kind").isin(*_ADVANCING) & (F.col("first") <= F.col("last"))
    return F.when(advances, _position(F.col("epoch"), F.col("last")))


def _counts_as_first() -> Column:
    return F.col("kind").isin(*_ORDERED) | F.col("seed").isNotNull()


def bounds(rows: DataFrame) -> DataFrame:
    """Each stream as a whole, for each group: `grp`, STREAM, and the following, NULL (`leaps`: empty) if unknown.

    `joined` (`epoch`, `number`): the lowest position in ``joined`` rows or, without any, the lowest with which a chain
    began. `joined_itself` (the same): without the rows of inboxes that continued from another one. `joined_unheard`:
    whether its producer had announced nothing by then. `reached` (the same): the last position. `lowest` (the same):
    the lowest delivered position. `held_at` (the same): the start of the gap that still holds it. `leaps`: pairs of
    epochs (`low`, `high`) between which everything was declared lost, including unknown epochs.
    """
    said = F.when(F.col("kind") == "joined", _position(F.col("epoch"), F.greatest("first", F.lit(1))))
    given = F.when(_advance().isNotNull(), _position(F.col("epoch"), F.col("first")))
    handed = F.when(F.col("kind").isin(*HANDED), given)
    leap = F.when(
        F.col("leap").isNotNull(), F.struct(F.col("epoch").alias("low"), F.col("leap").alias("high"))
    )
    holds = F.when(F.col("kind") == HELD, _position(F.col("epoch"), F.greatest("first", F.lit(1))))
    events = _events(rows)
    if _is_sent_back(rows):
        events = _followed(events, True)
        after = F.when(F.col("back").isNotNull(), _sent_back(F.col("cursor"), F.col("back.to"))).otherwise(
            F.greatest("cursor", "moved")
        )
        begun, reached = F.min(F.when(F.col("cursor").isNull(), given)), F.max_by(after, "lsn")
    else:  # the same result, without a window over all rows
        begun = F.min_by(given, F.when(given.isNotNull(), F.col("lsn")))
        opening = F.min(F.when(_counts_as_first(), F.struct("lsn", "seed")))
        reached = F.greatest(F.max(_advance()), opening.getField("seed"))
    of_chains = events.groupBy(*_CHAIN, *STREAM).agg(
        F.min(said).alias("said"),
        F.min(F.when(~F.col("took_over"), said)).alias("itself"),
        F.min(F.when(F.col("unheard"), said)).alias("unheard"),
        begun.alias("begun"),
        reached.alias("reached"),
        F.min(handed).alias("lowest"),
        F.collect_set(leap).alias("leaps"),
        F.collect_set(holds).alias("holds"),
    )
    of_groups = of_chains.groupBy("grp", *STREAM).agg(
        F.coalesce(F.min("said"), F.min("begun")).alias("joined"),
        F.coalesce(F.min("itself"), F.when(F.min("said").isNull(), F.min("begun"))).alias("joined_itself"),
        F.coalesce(F.min("unheard") == F.min("said"), F.lit(False)).alias("joined_unheard"),
        F.max("reached").alias("reached"),
        F.min("lowest").alias("lowest"),
        F.array_distinct(F.flatten(F.collect_list("leaps"))).alias("leaps"),
        F.flatten(F.collect_list("holds")).alias("holds"),
    )
    ahead = F.filter("holds", lambda place: F.col("reached").isNull() | (place > F.col("reached")))
    return of_groups.withColumn("held_at", F.array_min(ahead)).drop("holds")


def joined(rows: DataFrame) -> DataFrame:
    """The start of each stream for each group, see :func:`bounds`: `grp`, STREAM, `epoch`, `first`."""
    begun = bounds(rows).where(F.col("joined").isNotNull())
    return begun.select(
        "grp", *STREAM, F.col("joined.epoch").alias("epoch"), F.col("joined.number").alias("first")
    )


def reached(rows: DataFrame) -> DataFrame:
    """The last position of each stream for each group: `grp`, STREAM, `epoch`, `last`."""
    far = bounds(rows).where(F.col("reached").isNotNull())
    return far.select(
        "grp", *STREAM, F.col("reached.epoch").alias("epoch"), F.col("reached.number").alias("last")
    )


def behind(rows: DataFrame) -> DataFrame:
    """Ranges that were announced to inboxes as settled by their groups, and that they had not settled themselves:
    `grp`, `chain`, `boot_lsn`, STREAM, and positions (`epoch`, `number`): `low` (inclusive), `high` (exclusive), and
    `existed`, the end of all messages at that time, or NULL."""
    return (
        rows.where((F.col("role") == "group") & (F.col("kind") == "behind"))
        .select(
            F.col("client").alias("grp"),
            "chain",
            "boot_lsn",
            *STREAM,
            told_position("from").alias("low"),
            _position(F.col("epoch"), F.col("last")).alias("high"),
            told_position("existed").alias("existed"),
        )
        .where(F.col("low").isNotNull())
        .distinct()
    )


def told_position(name: str) -> Column:
    """A position in a row's detail, as a list."""
    told = F.from_json(F.get_json_object("detail", f"$.{name}"), "array<long>")
    epoch, number = (F.get(told, F.lit(each)) for each in (0, 1))
    sound = (F.size(told) == 2) & epoch.isNotNull() & number.isNotNull()
    return F.when(sound, _position(epoch, number))


def replaced(rows: DataFrame) -> DataFrame:
    """`grp`, `chain`, `boot_lsn`: inboxes that learned of settled positions which no other inbox's journal reaches, so
    that an inbox is lost with its journal; and the latest such opening."""
    settles = F.col("kind").isin(ACKNOWLEDGED, "declared", DEAD) & (F.col("first") <= F.col("last"))
    settled = (
        rows.where((F.col("role") == "group") & settles)
        .groupBy(F.col("client").alias("grp"), F.col("chain").alias("other"), *STREAM)
        .agg(F.max(_position(F.col("epoch"), F.col("last"))).alias("to"))
    )
    told = behind(rows).withColumn("at", _position(F.col("high.epoch"), F.col("high.number") - 1))
    accounted = (F.col("other") != F.col("chain")) & (F.col("to") >= F.col("at"))
    for name in ("grp", *STREAM):
        accounted &= F.col(f"told.{name}") == F.col(f"settled.{name}")
    unaccounted = told.alias("told").join(settled.alias("settled"), accounted, how="left_anti")
    return unaccounted.groupBy("grp", "chain").agg(F.max("boot_lsn").alias("boot_lsn"))


def met(rows: DataFrame) -> DataFrame:
    """`grp`, STREAM: the streams of which the inboxes of :func:`replaced` had any knowledge, from these openings on."""
    heard = (F.col("topic") != "") & (F.col("kind") != _FORGOTTEN)
    own = rows.where((F.col("role") == "group") & heard).select(
        F.col("client").alias("grp"), "chain", F.col("boot_lsn").alias("boot"), *STREAM
    )
    return (
        own.join(F.broadcast(replaced(rows)), ["grp", "chain"], how="inner")
        .where(F.col("boot") >= F.col("boot_lsn"))
        .select("grp", *STREAM)
        .distinct()
    )


def ordered(rows: DataFrame) -> DataFrame:
    """Rows about deliveries, skipped ranges, dead letters, replays and acknowledgements, with the state before them.

    Columns: `grp`, `chain`, `boot_lsn`, `lsn`, `kind`, EPOCH, `first`, `last`; `start`, the first number beyond the
    cursor (`last` + 1 if there is none); `hole_first` and `hole_last`, the hole before `start`; `begin`, the number
    with which the chain had begun to deliver messages by then (1 in later epochs, NULL in earlier ones, and if it had
    not begun); `next_boot`, the next boot of the chain that delivered new messages of the stream, and `next_pass`, the
    lsn of its first such row. Rows without numbers are omitted.
    """
    along = Window.partitionBy(*_CHAIN, *STREAM).orderBy("lsn")
    before = along.rowsBetween(Window.unboundedPreceding, -1)
    handed = F.col("kind").isin(*HANDED) & (F.col("first") <= F.col("last"))
    begun = F.when(handed, _position(F.col("epoch"), F.col("first")))
    follows = F.col("cursor.epoch") == F.col("epoch")
    start = (
        F.when(F.col("cursor").isNull() | (F.col("epoch") > F.col("cursor.epoch")), F.col("first"))
        .when(follows, F.least(F.greatest(F.col("first"), F.col("cursor.number") + 1), F.col("last") + 1))
        .otherwise(F.col("last") + 1)
    )
    placed = (
        _followed(_events(rows, ACKNOWLEDGED), _is_sent_back(rows))
        .select(
            *_CHAIN, "boot_lsn", "lsn", "kind", *EPOCH, "first", "last", "cursor",
            F.min(begun).over(before).alias("begin"),
        )
        .where((F.col("first") <= F.col("last")) & ~F.col("kind").isin("joined", _FORGOTTEN, HELD))
        .withColumn("start", start)
    )  # fmt: skip
    advances = F.col("kind").isin(*_ADVANCING) & (F.col("start") <= F.col("last"))
    expected = F.coalesce(F.when(follows, F.col("cursor.number") + 1), F.lit(1))
    # Messages from before the position of joining may arrive in any order, and incompletely.
    leaves = advances & (F.col("start") > expected) & (F.col("kind") != "before_join")
    begin = F.when(F.col("begin.epoch") == F.col("epoch"), F.col("begin.number")).when(
        F.col("begin.epoch") < F.col("epoch"), F.lit(1)
    )
    passes = F.when(handed & advances, F.struct("boot_lsn", "lsn"))
    later_boots = (
        Window.partitionBy(*_CHAIN, *STREAM)
        .orderBy(F.col("boot_lsn").desc())
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    return placed.withColumn("next", F.min(passes).over(later_boots)).select(
        *_CHAIN, "boot_lsn", "lsn", "kind", *EPOCH, "first", "last", "start", begin.alias("begin"),
        F.when(leaves, expected).alias("hole_first"),
        F.when(leaves, F.col("start") - 1).alias("hole_last"),
        F.col("next.boot_lsn").alias("next_boot"),
        F.col("next.lsn").alias("next_pass"),
    )  # fmt: skip
