"""Findings from a group's own journals: order, duplicates, acknowledgements and gaps.

Order and duplicates only need the group's own chains. The history of every piece of numbers decides all questions about
repeated numbers; the order of a stream's rows decides questions about the stream as a whole.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reliamsg.audit.groups_gaps import clock, leaps
from reliamsg.audit.groups_order import (
    ACKNOWLEDGED,
    HANDED,
    REPLAYED,
    SKIPPED,
    behind,
    bounds,
    joined,
    met,
    ordered,
    reached,
    replaced,
)
from reliamsg.audit.groups_pieces import histories
from reliamsg.audit.ranges import EPOCH, STREAM, coverage, merged, size, tagged
from reliamsg.audit.schema import findings as as_findings
from reliamsg.audit.schema import union

__all__ = [
    "behind",
    "bounds",
    "count",
    "counts",
    "findings",
    "instances",
    "joined",
    "leaps",
    "merge",
    "met",
    "reached",
    "replaced",
]


_UNLESS_SETTLED = ("undeclared_gap", "not_redelivered")
"""Kinds that are not findings if an inbox was told that its group had settled the messages."""


def findings(
    rows: DataFrame, chains: DataFrame, *, gap_timeout: float | None = None, tolerance: float = 1.0
) -> DataFrame:
    """All findings from groups' own journals, merged.

    `gap_timeout` (None: that in each journal) and `tolerance` are in seconds.
    """
    return merge(instances(rows, chains, gap_timeout=gap_timeout, tolerance=tolerance))


def counts(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """`grp`, `duplicates`, `out_of_order`, in messages, counted once per occurrence. Groups without findings are
    absent."""
    return count(instances(rows, chains))


def instances(
    rows: DataFrame, chains: DataFrame, *, gap_timeout: float | None = None, tolerance: float = 1.0
) -> DataFrame:
    """Findings, once per occurrence: the input of :func:`merge` and :func:`count`.

    Columns: `kind`, `grp`, EPOCH, `first`, `last`.
    """
    return union([_by_piece(ordered(rows), rows, chains), clock(rows, gap_timeout, tolerance)])


def merge(instances: DataFrame) -> DataFrame:
    """Findings of :func:`instances`, with adjacent and repeated ones merged."""
    return as_findings(merged(instances, ["kind", "grp", *EPOCH]))


def count(instances: DataFrame) -> DataFrame:
    """:func:`counts` of :func:`instances`."""
    return instances.groupBy("grp").agg(
        _messages("duplicates", "duplicate", "duplicate_apart"), _messages("out_of_order", "out_of_order")
    )


def _messages(name: str, *kinds: str) -> Column:
    return F.coalesce(F.sum(F.when(F.col("kind").isin(*kinds), size())), F.lit(0)).alias(name)


def _by_piece(order: DataFrame, rows: DataFrame, chains: DataFrame) -> DataFrame:
    found = [*_deliveries(), *_declared_gaps(), *_acknowledged()]
    each = F.explode(F.filter(F.array(*found), lambda one: one.isNotNull()))
    wrong = (
        histories(order, chains)
        .where(F.coalesce(*found).isNotNull())  # so that an array is built for few rows only
        .select("grp", *EPOCH, each.alias("found"))
        .select("found.kind", "grp", *EPOCH, "found.first", "found.last")
    )
    # Skipped epochs are declared as a whole, although no row names their numbers.
    leapt = leaps(rows)
    between = (F.col("wrong.kind") == "undeclared_gap") & (
        (F.col("leapt.low") < F.col("wrong.epoch")) & (F.col("wrong.epoch") < F.col("leapt.high"))
    )
    for name in ("grp", *STREAM):
        between &= F.col(f"wrong.{name}") == F.col(f"leapt.{name}")
    left = wrong.alias("wrong").join(F.broadcast(leapt.alias("leapt")), between, how="left_anti")
    doubtful = F.col("kind").isin(*_UNLESS_SETTLED)
    return left.where(~doubtful).unionByName(_not_settled(left.where(doubtful), behind(rows)))


def _not_settled(found: DataFrame, behind: DataFrame) -> DataFrame:
    """These without the ranges that were announced to an inbox as settled."""
    keys = ("kind", "grp", *EPOCH)
    low, high, epoch = F.col("low"), F.col("high"), F.col("epoch")
    settled = (
        found.join(F.broadcast(behind), ["grp", *STREAM], how="inner")
        .where((low.epoch <= epoch) & (epoch <= high.epoch))
        .select(
            *keys,
            F.when(epoch == low.epoch, F.greatest("first", low.number))
            .otherwise(F.col("first"))
            .alias("first"),
            F.when(epoch == high.epoch, F.least("last", high.number - 1))
            .otherwise(F.col("last"))
            .alias("last"),
        )
    )
    pieces = coverage(
        [tagged(found, keys, "found"), tagged(settled, keys, "settled")], keys, ["found", "settled"]
    )
    return pieces.where((F.col("found") > 0) & (F.col("settled") == 0)).select(*keys, "first", "last")


def _found(kind: str, condition: Column, first: Column | None = None, last: Column | None = None) -> Column:
    return F.when(
        condition,
        F.struct(
            F.lit(kind).alias("kind"),
            (F.col("first") if first is None else first).alias("first"),
            (F.col("last") if last is None else last).alias("last"),
        ),
    )


def _is(*kinds: str) -> Column:
    return F.col("kind").isin(*kinds)


def _before(label: str) -> Column:
    """Whether an earlier row of the chain has that label."""
    return F.coalesce(F.col(f"first_{label}") < F.col("lsn"), F.lit(False))


def _deliveries() -> list[Column]:
    """Findings about deliveries to the application."""
    delivered = _is("delivered")
    # No journal records which of two inboxes was first, nor what the other one knew by then.
    elsewhere = F.coalesce(F.col("unflagged_rank") < F.col("rank"), F.lit(False))
    durable = F.coalesce(F.col("acknowledged_boot") < F.col("boot_lsn"), F.lit(False))
    begun = F.coalesce(F.col("acknowledged_start_boot") == F.col("boot_lsn"), F.lit(False))
    return [
        _found("duplicate", delivered & _before("handed")),
        _found("duplicate_apart", delivered & ~_before("handed") & elsewhere),
        _found(
            "delivered_after_gap",
            _is(*HANDED)
            & _before("skipped")
            & (~_before("handed") | (_is("redelivered") & _before("given_up"))),
        ),
        _found(
            "out_of_order",
            delivered & ~_before("handed") & ~_before("skipped") & (F.col("first") < F.col("start")),
            last=F.least(F.col("last"), F.col("start") - 1),
        ),
        _found(
            "redelivered_after_ack",
            _is("redelivered") & ~_before("replayed") & (durable | begun),
            # Of an acknowledgement that may have been extended since, only the first number is known to be older.
            last=F.when(durable, F.col("last")).otherwise(F.col("first")),
        ),
        _found("false_replay", _is(REPLAYED) & ~_before("dead")),
        # A boot that delivers new messages must redeliver earlier ones that were neither acknowledged, dead-lettered
        # nor declared by then: seen at the next row that gives the number again, or at the last one. Another inbox
        # of the group may have dealt with it meanwhile.
        _found(
            "not_redelivered",
            _is(*HANDED)
            & ~F.coalesce("dealt_elsewhere", F.lit(False))
            & (
                _passed(
                    "previous_next_boot", "previous_next_pass", F.col("previous_next_pass") < F.col("lsn")
                )
                | _passed("next_boot", "next_pass", F.col("lsn") == F.col("last_handed"))
            ),
        ),
    ]


def _passed(boot: str, row: str, unmet: Column) -> Column:
    owed = F.col("acknowledged_boot").isNull() | (F.col("acknowledged_boot") >= F.col(boot))
    for label in ("first_dead", "first_given_up"):
        owed &= F.col(label).isNull() | (F.col(label) > F.col(row))
    return F.coalesce(F.col(row).isNotNull() & unmet & owed, F.lit(False))


def _declared_gaps() -> list[Column]:
    """Findings about gaps that were declared to the application, or should have been."""
    # A first delivery of the numbers fills a hole; it is then out of order, and no longer a hole.
    filled = _before("delivered") & (F.col("first_delivered") == F.col("first_handed"))
    return [
        _found("false_gap", _is(*SKIPPED) & _before("handed") & ~_given_up()),
        _found("declared_late", _is("declared") & _before("hole") & ~_before("skipped") & ~filled),
        # Messages from before the position of joining may arrive at any time; later ones must not be reported as such.
        _found("false_before_join", _is("before_join") & (F.col("begin") <= F.col("first"))),
        _found("undeclared_gap", _is("hole") & ~F.col("broken") & ~F.col("told")),
    ]


def _given_up() -> Column:
    """Whether it is declared instead of redelivered: messages that no earlier boot acknowledged may be lost by now."""
    return F.coalesce(_is("declared") & (F.col("first_given_up") <= F.col("lsn")), F.lit(False))


def _acknowledged() -> list[Column]:
    """Each inbox acknowledges at most once, and only messages that it delivered."""
    acknowledged = _is(ACKNOWLEDGED)
    replayed = F.coalesce(F.col("replayed_boot") <= F.col("boot_lsn"), F.lit(False))
    given = F.col("first_handed").isNotNull() | F.col("first_dead").isNotNull()
    return [
        _found("acknowledged_twice", acknowledged & _before("acknowledged") & ~replayed),
        _found("acknowledged_undelivered", acknowledged & F.col("whole") & ~given),
    ]
