"""Cuts the numbers of every group's streams into pieces, and collects all evidence about each piece.

One sweep cuts a group's epoch wherever a row about it begins or ends, on either side, so that the same rows apply to
all numbers of a piece. Evidence about a whole stream, client or epoch is joined to its pieces.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit import groups, producers, restores
from reliamsg.audit.consumption import held
from reliamsg.audit.groups_order import HELD
from reliamsg.audit.membership import left
from reliamsg.audit.ranges import EPOCH, LAST, STREAM, coverage, merged
from reliamsg.audit.schema import union

__all__ = ["DECLINED", "KEY", "PRODUCER", "known"]

PRODUCER = ""
"""Used as the group in the producer's own account."""

KEY = ("grp", *EPOCH)
"""The key within which pieces are disjoint."""
_OF_STREAM = ("grp", *STREAM)
_CUT = "cut"
"""A tag that only starts a new piece."""
DECLINED = ("nacked", "refused", "returned")
"""Responses of a site other than a confirm."""
_GROUP_TAGS = {
    "joined": _CUT,
    HELD: _CUT,
    "delivered": "handed",
    "redelivered": "handed",
    "acknowledged": "acknowledged",
    "declared": "declared",
    "before_join": "before_join",
    "dead_lettered": "dead",
    "late": "late",
    "received": "received",
    "duplicate": "received",
    "buffered": "buffered",
    "quarantined": "quarantined",
    "quarantine_discarded": "discarded",
}
_PRODUCER_TAGS = {
    "enqueued": "enqueued",
    "published": "published",
    "removed": "removed",
    "renumbered": "moved",
    "confirmed": "confirmed",
    **{kind: kind for kind in DECLINED},
}
_TAGS = (
    "enqueued", "counted", "excused", "after", "published", "removed", "moved", "confirmed", "held", "consumed",
    "handed", "acknowledged", "declared", "said_removed", "before_join", "dead", "late", "received", "buffered",
    "quarantined", "discarded",
)  # fmt: skip
_PASSED = ("confirmed", "received", "buffered", *DECLINED)


def known(
    rows: DataFrame,
    chains: DataFrame,
    named: DataFrame,
    contested: DataFrame,
    counted: DataFrame,
    until_us: int | None,
) -> DataFrame:
    """The pieces: KEY, `first`, `last`, whether rows of each tag cover it, and further evidence.

    `has_original`, `has_before_join`, `has_excused`: whether the key has a number that was enqueued, was reported as
    older than the group's joining, or was enqueued when the group no longer counted. `passages`: the ranges of the key
    that passed each site, or were declined by it. `named`: the group consumes the topic. `joined`, `joined_itself`,
    `reached`, `lowest`, `held_at`, `leaps`: of the stream at the group; `epochs`: of the stream, if the group met it;
    `unseen`, likewise, the ranges that an inbox was told to be settled, and `existed`, the ranges that existed then
    from the same positions on, or NULL; and `met`, whether the successor of a lost inbox was told of it, or NULL.
    `sound`, `finished`, `latest`, `replaced`: of the group. `parked`: the sites where the stream was parked at the end,
    or NULL. `told`, `going_on`: of the producer, NULL without a journal. `is_contested`: NULL if the epoch is not
    contested. `cuts`: of the producer, from :func:`restores.cuts`, or NULL.
    """
    audience = _audience(rows, chains, named)
    events = _events(rows, audience, counted, until_us)
    pieces = _pieces(events).join(_passages(events), list(KEY), how="left")
    return (
        pieces.join(F.broadcast(audience), ["topic", "grp"], how="left")
        .join(groups.bounds(rows).join(_epochs(rows), list(STREAM), how="left"), list(_OF_STREAM), how="left")
        .join(F.broadcast(_behind(rows)), list(_OF_STREAM), how="left")
        .join(F.broadcast(groups.met(rows).withColumn("met", F.lit(True))), list(_OF_STREAM), how="left")
        .join(F.broadcast(_parked(rows)), list(STREAM), how="left")
        .join(F.broadcast(_clients(rows, chains)), "grp", how="left")
        .join(F.broadcast(_owners(rows, chains, until_us)), "producer", how="left")
        .join(F.broadcast(restores.cuts(rows)), "producer", how="left")
        .join(
            F.broadcast(contested.select(*EPOCH, F.lit(True).alias("is_contested"))),
            list(EPOCH),
            how="left",
        )
    )


def _epochs(rows: DataFrame) -> DataFrame:
    """STREAM, and its `epochs` according to its producer's journals."""
    entered = rows.where((F.col("role") == "producer") & (F.col("kind") == "epoch") & (F.col("topic") != ""))
    return entered.groupBy(*STREAM).agg(F.collect_set("epoch").alias("epochs"))


def _audience(rows: DataFrame, chains: DataFrame, named: DataFrame) -> DataFrame:
    """`topic`, `grp`, `named`: the groups whose accounts include a topic.

    These are the named groups with a journal, and groups that are not named but have declared gaps of the topic or told
    a producer that they had settled some of it; of the latter only these claims are judged.
    """
    known = chains.where(F.col("role") == "group").select(F.col("client").alias("grp")).distinct()
    reading = named.join(F.broadcast(known), "grp", how="left_semi").select(
        "topic", "grp", F.lit(True).alias("named")
    )
    telling = rows.where((F.col("role") == "group") & (F.col("kind") == "declared")).select(
        "topic", F.col("client").alias("grp"), F.lit(False).alias("named")
    )
    told = (
        rows.where((F.col("role") == "producer") & (F.col("kind") == "consumed"))
        .select("topic", "grp", F.lit(False).alias("named"))
        .join(F.broadcast(known), "grp", how="left_semi")
    )
    return (
        union([reading, telling, told.select("topic", "grp", "named")])
        .groupBy("topic", "grp")
        .agg(F.max("named").alias("named"))
    )


def _tag(tags: dict[str, str]) -> Column:
    pairs = [F.lit(word) for pair in tags.items() for word in pair]
    return F.create_map(*pairs)[F.col("kind")]


def _events(rows: DataFrame, audience: DataFrame, counted: DataFrame, until_us: int | None) -> DataFrame:
    """All evidence about numbers: KEY, `first`, `last`, `tag`, `site`."""
    given = rows.where((F.col("role") == "group") & F.col("kind").isin(*_GROUP_TAGS)).select(
        F.col("client").alias("grp"),
        *EPOCH,
        "first",
        _end().alias("last"),
        _tag(_GROUP_TAGS).alias("tag"),
        "site",
    )
    # A piece must begin where a group joined.
    place = F.greatest("first", F.lit(1))
    given = given.withColumn(
        "first", F.when(F.col("tag") == _CUT, place).otherwise(F.col("first"))
    ).withColumn("last", F.when(F.col("tag") == _CUT, F.col("first")).otherwise(F.col("last")))
    tag = _tag(_PRODUCER_TAGS)
    if until_us is not None:
        late = (F.col("kind") == "enqueued") & (F.col("wall_last_us") > until_us)
        tag = F.when(late, F.lit("after")).otherwise(tag)
    of_producers = rows.where(F.col("role") == "producer")
    told = of_producers.where(F.col("kind").isin(*_PRODUCER_TAGS)).select(
        *EPOCH, "first", "last", tag.alias("tag"), "site"
    )
    columns = ("grp", *EPOCH, "first", "last", "tag", "site")
    own = told.select(F.lit(PRODUCER).alias("grp"), *columns[1:])
    nowhere = F.lit("").alias("site")
    keeps = held(rows).select(*EPOCH, "first", "last", F.lit("held").alias("tag"), nowhere)
    shared = (
        told.unionByName(keeps)
        .join(F.broadcast(audience.select("topic", "grp")), "topic", how="inner")
        .select(*columns)
    )
    counts = counted.select(
        "grp",
        *EPOCH,
        "first",
        "last",
        F.when(F.col("counts"), "counted").otherwise("excused").alias("tag"),
        nowhere,
    )
    consumed = of_producers.where(F.col("kind") == "consumed").select(
        "grp", *EPOCH, "first", "last", F.lit("consumed").alias("tag"), nowhere
    )
    # Once more, with its reason as the tag.
    removed = (F.col("kind") == "declared") & (F.col("reason") == "removed")
    said = rows.where((F.col("role") == "group") & removed).select(
        F.col("client").alias("grp"),
        *EPOCH,
        "first",
        _end().alias("last"),
        F.lit("said_removed").alias("tag"),
        nowhere,
    )
    # A piece must also begin and end where a client learned of a group's progress that this inbox may not have made.
    unseen = _settled_elsewhere(rows).select(
        "grp",
        *STREAM,
        F.explode(F.array_compact(F.array("low", "high", "existed"))).alias("place"),
        F.lit(_CUT).alias("tag"),
        nowhere,
    )
    edges = unseen.select(
        "grp",
        *STREAM,
        F.col("place.epoch").alias("epoch"),
        F.greatest("place.number", F.lit(1)).alias("first"),
        F.greatest("place.number", F.lit(1)).alias("last"),
        "tag",
        "site",
    )
    every = [given.select(*columns), own, shared, edges.select(*columns)]
    return union([*every, *(frame.select(*columns) for frame in (counts, consumed, said))])


def _behind(rows: DataFrame) -> DataFrame:
    """_OF_STREAM, `unseen` and `existed`: the ranges of :func:`_settled_elsewhere`, to `high` and to `existed`."""
    existed = F.struct("low", F.col("existed").alias("high"))
    return (
        _settled_elsewhere(rows)
        .groupBy(*_OF_STREAM)
        .agg(
            F.collect_set(F.struct("low", "high")).alias("unseen"),
            F.collect_set(F.when(F.col("existed").isNotNull(), existed)).alias("existed"),
        )
    )


def _settled_elsewhere(rows: DataFrame) -> DataFrame:
    """The ranges that were announced to an inbox or a producer as settled: _OF_STREAM, `low`, `high`; and `existed`."""
    return groups.behind(rows).drop("chain", "boot_lsn").unionByName(left(rows), allowMissingColumns=True)


def _end() -> Column:
    """A row's last number; for declared gaps, an end below the start means the rest of the epoch."""
    unknown = F.col("kind").isin("declared", "before_join") & (F.col("last") < F.col("first"))
    return F.when(unknown, F.lit(LAST)).otherwise(F.least("last", F.lit(LAST)))


def _pieces(events: DataFrame) -> DataFrame:
    of_epoch = Window.partitionBy(*KEY).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return coverage(events.select(*KEY, "first", "last", "tag"), KEY, _TAGS).select(
        *KEY,
        "first",
        "last",
        *((F.col(tag) > 0).alias(tag) for tag in _TAGS),
        (F.max(F.greatest("enqueued", "after")).over(of_epoch) > 0).alias("has_original"),
        (F.max("before_join").over(of_epoch) > 0).alias("has_before_join"),
        (F.max("excused").over(of_epoch) > 0).alias("has_excused"),
    )


def _passages(events: DataFrame) -> DataFrame:
    """The passages of each key's numbers: KEY, `passages` (tag, site, first, last), merged."""
    passed = events.where(
        F.col("tag").isin(*_PASSED) & (F.col("site") != "") & (F.col("first") <= F.col("last"))
    )
    return (
        merged(passed, [*KEY, "tag", "site"])
        .groupBy(*KEY)
        .agg(F.collect_list(F.struct("tag", "site", "first", "last")).alias("passages"))
    )


def _parked(rows: DataFrame) -> DataFrame:
    """STREAM, `parked`: the sites where a stream was parked when its producer's journal ended, sorted."""
    of_producers = rows.where(F.col("role") == "producer")
    ends = of_producers.groupBy("chain").agg(F.max("boot_lsn").alias("boot_lsn"))
    told = of_producers.where(F.col("kind").isin("parked", "resumed"))
    return (
        told.join(ends, ["chain", "boot_lsn"], how="left_semi")
        .groupBy("chain", *STREAM, "site")
        .agg(F.max_by("kind", "lsn").alias("kind"))
        .where(F.col("kind") == "parked")
        .groupBy(*STREAM)
        .agg(F.array_sort(F.collect_set("site")).alias("parked"))
    )


def _clients(rows: DataFrame, chains: DataFrame) -> DataFrame:
    """For each group: `sound`; `finished`: it will not receive messages missing at the end of a stream; `latest`: it
    joins streams at the first message that arrives, regardless of the producers; `replaced`: an inbox is lost with its
    journal."""
    of_groups = rows.where(F.col("role") == "group")
    begins = F.get_json_object("detail", "$.begin") == "latest"
    latest = producers.opened(of_groups).groupBy("client").agg(F.max(begins).alias("latest"))
    sound = producers.soundness(chains, "group").join(F.broadcast(latest), ["client"], how="left")
    gone = groups.replaced(rows).select("grp", F.lit(True).alias("replaced")).distinct()
    return sound.withColumnRenamed("client", "grp").join(F.broadcast(gone), "grp", how="left")


def _owners(rows: DataFrame, chains: DataFrame, until_us: int | None) -> DataFrame:
    """For each producer with a journal: `told` (messages that are not in it were never enqueued) and `going_on`
    (messages that may be missing in it were enqueued after `until_us`)."""
    own = chains.where(F.col("role") == "producer").select("client", "chain", "broken", "finished")
    later = rows.where(F.lit(False)) if until_us is None else rows.where(F.col("wall_us") > until_us)
    beyond = (
        later.where(F.col("role") == "producer")
        .select("client", "chain", F.lit(True).alias("beyond"))
        .distinct()
    )
    return (
        own.join(beyond, ["client", "chain"], how="left")
        .groupBy(F.col("client").alias("producer"))
        .agg(
            F.min(~F.col("broken") & F.col("finished")).alias("told"),
            F.min(~F.col("broken") & (F.col("finished") | F.col("beyond").isNotNull())).alias("excused"),
            F.max(~F.col("finished")).alias("open"),
        )
        .select("producer", "told", (F.col("excused") & F.col("open")).alias("going_on"))
    )
