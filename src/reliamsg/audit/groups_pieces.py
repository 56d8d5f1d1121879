"""The history of every number within a group: the rows about it, in order.

The numbers of a group's epoch are cut wherever a row begins or ends, so that each row covers whole pieces, and all
numbers of a piece have the same history. A row is matched with its pieces by counting cuts, not by a range join.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.groups_order import ACKNOWLEDGED, DEAD, HANDED, REPLAYED, SKIPPED
from reliamsg.audit.ranges import EPOCH

__all__ = ["histories"]

_HOLE = "hole"
"""The kind of a hole before a row: a separate mark besides that of the row."""
_KEY = ("grp", *EPOCH)
_MARK = (
    "chain", "rank", "broken", "whole", "boot_lsn", "lsn", "kind",
    "row_first", "start", "begin", "next_boot", "next_pass",
)  # fmt: skip
_WHOLE = (Window.unboundedPreceding, Window.unboundedFollowing)


def histories(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """One row for each row of :func:`~reliamsg.audit.groups_order.ordered`, or hole, and each of its pieces.

    Columns: `grp`, EPOCH, `first` and `last` of the piece. Of the row: `chain`, `rank`, `broken`, `boot_lsn`, `lsn`,
    `kind` (``hole`` for a hole), `row_first`, `start`, `begin`, `next_boot`, `next_pass`; and `whole`: no chain of the
    group is broken, and all were closed. The other columns aggregate all rows about the piece.

    In the row's own chain: `first_LABEL`, the lsn of the first row that is handed, delivered, skipped, dead, replayed,
    acknowledged or a hole; `last_handed`, the lsn of the last handed one; `acknowledged_boot` and `replayed_boot`, the
    first boot that acknowledged or replayed; `acknowledged_start_boot`, the boot of the newest earlier acknowledgement
    that begins with the piece; `previous_next_boot` and `previous_next_pass`, those of the previous row that handed it;
    `first_given_up`, the lsn of the first row that declares messages which earlier boots delivered and this one must
    redeliver, before any later delivery.

    In all chains: `unflagged_rank`, the lowest rank of a chain that first delivered it without a flag; `told`: it was
    handed, skipped or dead-lettered.
    """
    return _with_others(_pairs(_marks(rows, chains)))


def _marks(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """Rows and holes as marks, `mark_first` to `mark_last`, with the state of their chains."""
    group = Window.partitionBy("client").rowsBetween(*_WHOLE)
    of_groups = chains.where(F.col("role") == "group").select(
        F.col("client").alias("grp"), "chain", "rank", "broken",
        F.min(~F.col("broken") & F.col("finished")).over(group).alias("whole"),
    )  # fmt: skip
    own = F.struct("kind", "first", "last")
    hole = F.struct(
        F.lit(_HOLE).alias("kind"), F.col("hole_first").alias("first"), F.col("hole_last").alias("last")
    )
    marks = F.when(F.col("hole_first").isNull(), F.array(own)).otherwise(F.array(own, hole))
    return (
        rows.join(F.broadcast(of_groups), ["grp", "chain"], how="inner")
        .select(
            *_KEY, "chain", "rank", "broken", "whole", "boot_lsn", "lsn", F.explode(marks).alias("mark"),
            F.col("first").alias("row_first"), "start", "begin", "next_boot", "next_pass",
        )
        .select(
            "*",
            F.col("mark.kind").alias("kind"),
            F.col("mark.first").alias("mark_first"),
            F.col("mark.last").alias("mark_last"),
        )
    )  # fmt: skip


def _pairs(marks: DataFrame) -> DataFrame:
    """Each mark with each of the pieces that it covers."""
    ends = F.explode(F.array(F.col("mark_first"), F.col("mark_last") + 1))
    numbered = marks.select(*_KEY, *_MARK, ends.alias("at")).withColumn(
        "cut", F.dense_rank().over(Window.partitionBy(*_KEY).orderBy("at"))
    )
    # Partitioned by its key once, the data can be grouped, exploded and windowed without another shuffle.
    spread = (
        numbered.groupBy(*_KEY, *_MARK)
        .agg(
            F.min("cut").alias("low"),
            F.max("cut").alias("high"),
            F.min("at").alias("from"),
            F.max("at").alias("until"),
        )
        .select("*", F.explode(F.sequence("low", "high")).alias("cut"))
    )
    # A mark begins or ends at each cut, and thus has its number.
    known = F.when(F.col("cut") == F.col("low"), F.col("from")).when(
        F.col("cut") == F.col("high"), F.col("until")
    )
    along = Window.partitionBy(*_KEY).orderBy("cut")
    return spread.select(
        *_KEY, *_MARK, "cut", "high",
        F.max(known).over(along.rangeBetween(0, 0)).alias("first"),
        (F.max(known).over(along.rangeBetween(1, 1)) - 1).alias("last"),
    ).where(F.col("cut") < F.col("high"))  # fmt: skip


def _with_others(pairs: DataFrame) -> DataFrame:
    kind = F.col("kind")
    labels = {
        "handed": kind.isin(*HANDED),
        "delivered": kind == HANDED[0],
        "skipped": kind.isin(*SKIPPED),
        "dead": kind == DEAD,
        "replayed": kind == REPLAYED,
        "acknowledged": kind == ACKNOWLEDGED,
        "hole": kind == _HOLE,
    }
    handed, acknowledged = labels["handed"], labels["acknowledged"]
    unflagged = labels["delivered"] & (F.col("first_handed") == F.col("lsn"))
    settled, dealt = handed | labels["dead"], acknowledged | labels["dead"]
    piece = (*_KEY, "cut")
    # In this order, one sort serves all three.
    before = Window.partitionBy(*piece, "chain").orderBy("lsn").rowsBetween(Window.unboundedPreceding, -1)
    in_chain = Window.partitionBy(*piece, "chain").rowsBetween(*_WHOLE)
    anywhere = Window.partitionBy(*piece).rowsBetween(*_WHOLE)
    begins = acknowledged & (F.col("row_first") == F.col("first"))

    def when_handed(column: str) -> Column:
        return F.when(handed, F.struct(F.col(column).alias("value")))

    return (
        pairs.select(
            "*",
            F.max(F.when(begins, F.struct("lsn", "boot_lsn"))).over(before).alias("began"),
            F.last(when_handed("next_boot"), ignorenulls=True).over(before).alias("previous_boot"),
            F.last(when_handed("next_pass"), ignorenulls=True).over(before).alias("previous_pass"),
            F.last(when_handed("boot_lsn"), ignorenulls=True).over(before).alias("previous_handed"),
        )
        .select(
            "*",
            *(F.min(F.when(is_so, F.col("lsn"))).over(in_chain).alias(f"first_{label}")
              for label, is_so in labels.items()),
            F.max(F.when(handed, F.col("lsn"))).over(in_chain).alias("last_handed"),
            F.min(F.when(acknowledged, F.col("boot_lsn"))).over(in_chain).alias("acknowledged_boot"),
            F.min(F.when(labels["replayed"], F.col("boot_lsn"))).over(in_chain).alias("replayed_boot"),
            F.col("began.boot_lsn").alias("acknowledged_start_boot"),
            F.col("previous_boot.value").alias("previous_next_boot"),
            F.col("previous_pass.value").alias("previous_next_pass"),
        )
        .withColumn("first_given_up", F.min(F.when(_gives_up(), F.col("lsn"))).over(in_chain))
        .select(
            "*",
            F.min(F.when(unflagged, F.col("rank"))).over(anywhere).alias("unflagged_rank"),
            F.max(settled | labels["skipped"]).over(anywhere).alias("told"),
            *(
                least_or_most(F.when(dealt, F.col("rank"))).over(anywhere).alias(f"dealt_{end}")
                for end, least_or_most in (("low", F.min), ("high", F.max))
            ),
        )
        .withColumn(
            "dealt_elsewhere", (F.col("dealt_low") != F.col("rank")) | (F.col("dealt_high") != F.col("rank"))
        )
        .drop("dealt_low", "dealt_high", "began", "previous_boot", "previous_pass", "previous_handed")
    )  # fmt: skip


def _gives_up() -> Column:
    """Whether a row declares messages that an earlier boot delivered, neither acknowledged nor passed by then."""
    return (
        (F.col("kind") == SKIPPED[0])
        & (F.col("previous_handed.value") < F.col("boot_lsn"))
        & (F.col("acknowledged_boot").isNull() | (F.col("acknowledged_boot") >= F.col("boot_lsn")))
        & (F.col("first_dead").isNull() | (F.col("first_dead") > F.col("lsn")))
        & (F.col("previous_next_pass").isNull() | (F.col("previous_next_pass") > F.col("lsn")))
    )
