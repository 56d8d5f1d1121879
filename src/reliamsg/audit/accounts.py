"""What became of every message: for each group, range by range.

One sweep cuts the numbers of a group's epoch wherever a row about them begins or ends, on either side; all numbers
of a piece share their fate. What a stream as a whole says (where it began, how far it got) is joined to the pieces.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit import groups, producers
from reliamsg.audit.ranges import EPOCH, LAST, STREAM, coverage, merged, size, tagged
from reliamsg.audit.schema import FINDINGS, union
from reliamsg.audit.schema import findings as as_findings

__all__ = ["counts", "findings", "losses", "ranges", "unverified"]

PRODUCER = ""
"""In the place of a group: the producer's own account of what it enqueued."""

_KEY = ("grp", *EPOCH)
_OF_STREAM = ("grp", *STREAM)
_CUT = "cut"
"""No tag of a piece's: it only makes one begin."""
_GROUP_TAGS = {
    "joined": _CUT,
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
}
_PRODUCER_TAGS = {
    "enqueued": "enqueued",
    "published": "published",
    "removed": "removed",
    "renumbered": "removed",
    "confirmed": "confirmed",
}
_TAGS = (
    "enqueued", "counted", "after", "published", "removed", "confirmed",
    "handed", "acknowledged", "declared", "before_join", "dead", "late", "received", "buffered",
)  # fmt: skip
_LOSSES = ("lost", "declared_gap", "removed")
_FATES = (*_LOSSES, "never_joined", "undelivered", "phantom", "unproven")
"""What is a finding by itself, at a group."""
_HOPS = ("confirmed", "received", "buffered")


def ranges(
    rows: DataFrame,
    chains: DataFrame,
    named: DataFrame,
    *,
    drained: bool = True,
    until_us: int | None = None,
    contested: DataFrame | None = None,
) -> DataFrame:
    """Disjoint pieces of the numbers of every group's streams, with what became of them.

    `named`: `topic`, `grp`, every group that someone says reads a topic. `drained`: the run is over, so that what is
    missing at the end of a finished group's stream is lost, not open. `until_us`, µs since 1970: only what was
    enqueued by then, by its producer's clock, is accounted for. `contested`: as of :func:`producers.contested`, made
    here where None.

    Columns: `grp` (``""`` for the producer's own account), EPOCH, `first`, `last`, and `fate`:

    - of what was enqueued: ``delivered``, ``declared_gap``, ``dead``, ``pending``, ``before_join``,
      ``never_joined``, ``removed``, ``undelivered``, ``lost``; in the producer's own account ``enqueued``, ``removed``
      or ``pending``;
    - of what was enqueued after `until_us`: ``after``;
    - of what was not: ``phantom``, ``unproven``, ``phantom_gap``, or ``strange`` for what can't be judged.

    Then `place`, of what is lost in its stream; of losses `hop`, the last that was reached, and `sites`, where; and
    flags of what can be so besides: `accounted` (enqueued, by `until_us`), `handed`, `pending`, `unacknowledged`,
    `late` (and not handed), `phantom_gap`, `unverifiable` (nothing can be said of its content, by no fault of
    anyone's). A job that uses the pieces more than once had better persist them.
    """
    if contested is None:
        contested = producers.contested(rows, chains)
    audience = _audience(rows, chains, named)
    events = _events(rows, audience, until_us)
    pieces = _pieces(events).join(_passages(events), list(_KEY), how="left")
    known = (
        pieces.join(F.broadcast(audience), ["topic", "grp"], how="left")
        .join(_streams(rows), list(_OF_STREAM), how="left")
        .join(F.broadcast(_clients(rows, chains, until_us)), "grp", how="left")
        .join(F.broadcast(_owners(chains)), "producer", how="left")
        .join(
            F.broadcast(contested.select(*EPOCH, F.lit(True).alias("is_contested"))),
            list(EPOCH),
            how="left",
        )
    )
    return _judged(_states(known), drained)


def _audience(rows: DataFrame, chains: DataFrame, named: DataFrame) -> DataFrame:
    """`topic`, `grp`, `named`: whose accounts what is enqueued to a topic goes to.

    Groups that left a journal and are named; and those that declared gaps of a topic that nobody says they read,
    whose gaps are judged and no more.
    """
    known = chains.where(F.col("role") == "group").select(F.col("client").alias("grp")).distinct()
    reading = named.join(F.broadcast(known), "grp", how="left_semi").select(
        "topic", "grp", F.lit(True).alias("named")
    )
    telling = rows.where((F.col("role") == "group") & (F.col("kind") == "declared")).select(
        "topic", F.col("client").alias("grp"), F.lit(False).alias("named")
    )
    return reading.unionByName(telling).groupBy("topic", "grp").agg(F.max("named").alias("named"))


def _tag(tags: dict[str, str]) -> Column:
    pairs = [F.lit(word) for pair in tags.items() for word in pair]
    return F.create_map(*pairs)[F.col("kind")]


def _events(rows: DataFrame, audience: DataFrame, until_us: int | None) -> DataFrame:
    """Everything that is said of numbers: _KEY, `first`, `last`, `tag`, `site`."""
    given = rows.where((F.col("role") == "group") & F.col("kind").isin(*_GROUP_TAGS)).select(
        F.col("client").alias("grp"),
        *EPOCH,
        "first",
        _end().alias("last"),
        _tag(_GROUP_TAGS).alias("tag"),
        "site",
    )
    # A place of joining is where a piece must begin.
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
        "client", "chain", "boot_lsn", *EPOCH, "first", "last", tag.alias("tag"), "site"
    )
    columns = ("grp", *EPOCH, "first", "last", "tag", "site")
    own = told.select(F.lit(PRODUCER).alias("grp"), *columns[1:])
    shared = told.join(F.broadcast(audience.select("topic", "grp")), "topic", how="inner").select(*columns)
    counted = (
        told.where(F.col("tag") == "enqueued")
        .join(
            F.broadcast(_named_by_boot(of_producers)), ["client", "chain", "boot_lsn", "topic"], how="inner"
        )
        .withColumn("tag", F.lit("counted"))
        .select(*columns)
    )
    return union([given.select(*columns), own, shared, counted])


def _end() -> Column:
    """A row's last number; an end below the start of what was declared means: all that the epoch still had."""
    unknown = F.col("kind").isin("declared", "before_join") & (F.col("last") < F.col("first"))
    return F.when(unknown, F.lit(LAST)).otherwise(F.least("last", F.lit(LAST)))


def _named_by_boot(of_producers: DataFrame) -> DataFrame:
    """The groups that each boot of a producer named: `client`, `chain`, `boot_lsn`, `topic`, `grp`."""
    by_topic = F.from_json(F.get_json_object("detail", "$.groups"), "map<string,string>")
    return (
        producers.opened(of_producers)
        .select("client", "chain", "boot_lsn", F.explode(by_topic).alias("topic", "names"))
        .select(
            "client", "chain", "boot_lsn", "topic", F.explode(producers.names_in(F.col("names"))).alias("grp")
        )
        .distinct()
    )


def _pieces(events: DataFrame) -> DataFrame:
    of_epoch = Window.partitionBy(*_KEY).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return coverage(events.select(*_KEY, "first", "last", "tag"), _KEY, _TAGS).select(
        *_KEY,
        "first",
        "last",
        *((F.col(tag) > 0).alias(tag) for tag in _TAGS),
        (F.max(F.greatest("enqueued", "after")).over(of_epoch) > 0).alias("has_original"),
        (F.max("before_join").over(of_epoch) > 0).alias("has_before_join"),
    )


def _passages(events: DataFrame) -> DataFrame:
    """Where the numbers of each key passed: _KEY, `passages` (tag, site, first, last), as few as can be."""
    passed = events.where(
        F.col("tag").isin(*_HOPS) & (F.col("site") != "") & (F.col("first") <= F.col("last"))
    )
    return (
        merged(passed, [*_KEY, "tag", "site"])
        .groupBy(*_KEY)
        .agg(F.collect_list(F.struct("tag", "site", "first", "last")).alias("passages"))
    )


def _streams(rows: DataFrame) -> DataFrame:
    """What a stream as a whole says at each group: `joined`, `reached`, `lowest` that was handed, `leaps`."""
    place = F.struct("epoch", F.col("first").alias("number"))
    handed = (
        rows.where(
            (F.col("role") == "group")
            & F.col("kind").isin("delivered", "redelivered")
            & (F.col("first") <= F.col("last"))
        )
        .groupBy(F.col("client").alias("grp"), *STREAM)
        .agg(F.min(place).alias("lowest"))
    )
    joined = groups.joined(rows).select(*_OF_STREAM, place.alias("joined"))
    reached = groups.reached(rows).select(
        *_OF_STREAM, F.struct("epoch", F.col("last").alias("number")).alias("reached")
    )
    leaps = groups.leaps(rows).select(*_OF_STREAM, F.struct("low", "high").alias("leap"))
    every = handed
    for other in (joined, reached, leaps):
        every = every.unionByName(other, allowMissingColumns=True)
    return every.groupBy(*_OF_STREAM).agg(
        F.max("joined").alias("joined"),
        F.max("reached").alias("reached"),
        F.max("lowest").alias("lowest"),
        F.collect_set("leap").alias("leaps"),
    )


def _clients(rows: DataFrame, chains: DataFrame, until_us: int | None) -> DataFrame:
    """Of each group: `sound`, and `finished`: what it lacks at the end of a stream it will not get."""
    found = producers.soundness(chains, "group").withColumnRenamed("client", "grp")
    if until_us is None:
        return found
    going_on = (
        rows.where((F.col("role") == "group") & (F.col("wall_us") > until_us))
        .select(F.col("client").alias("grp"), F.lit(True).alias("going_on"))
        .distinct()
    )
    return found.join(going_on, "grp", how="left").select(
        "grp", "sound", (F.col("finished") & F.col("going_on").isNull()).alias("finished")
    )


def _owners(chains: DataFrame) -> DataFrame:
    """Of each producer that left a journal: `owner_sound`."""
    return producers.soundness(chains, "producer").select(
        F.col("client").alias("producer"), F.col("sound").alias("owner_sound")
    )


def _states(known: DataFrame) -> DataFrame:
    """The pieces, with what each of verdict's questions is about as a column that is true or false."""
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
    joined_inside = F.coalesce((joined.epoch == F.col("epoch")) & (joined.number > 1), F.lit(False))
    flagged = known.withColumns(
        {
            "accounted": F.col("enqueued") & named,
            "original": F.col("enqueued") | F.col("after"),
            "gap": F.col("declared") | leapt,
            "sound": F.coalesce("sound", F.lit(False)),
            "finished": F.coalesce("finished", F.lit(False)),
            "contested": contested,
            "before": before,
            "unverifiable": contested
            | F.col("owner_sound").isNull()
            | F.col("has_before_join")
            | joined_inside,
        }
    ).withColumn("pending", F.col("accounted") & ~F.col("published") & ~F.col("removed"))
    missing = F.col("accounted") & ~F.col("handed") & ~F.col("dead") & ~F.col("gap") & ~F.col("pending")
    early = ~F.col("counted") & (F.col("before_join") | F.col("before"))
    return flagged.withColumns(
        {
            "early": missing & early,
            "gone": missing & ~early & F.col("removed"),
            "rest": missing & ~early & ~F.col("removed") & ~own,
            "stranger": ~F.col("original") & ~F.col("contested") & F.col("owner_sound").isNotNull(),
        }
    )


def _judged(states: DataFrame, drained: bool) -> DataFrame:
    own = F.col("grp") == PRODUCER
    along = Window.partitionBy(*_KEY).orderBy("first")
    until_now = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    goes_on = F.coalesce(
        F.lag("rest").over(along) & (F.lag("last").over(along) + 1 == F.col("first")), F.lit(False)
    )
    # Whether something is missing at the end of the stream is asked of what is missing in one go.
    begins = states.withColumn("begins", F.when(F.col("rest") & ~goes_on, F.col("first")))
    begins = begins.withColumn("begun", F.last("begins", ignorenulls=True).over(until_now))
    tail = F.col("reached").isNull() | (
        F.struct(F.col("epoch"), F.col("begun").alias("number")) > F.col("reached")
    )
    prefix = F.col("lowest").isNull() | (
        F.struct(F.col("epoch"), F.col("last").alias("number")) < F.col("lowest")
    )
    certain = F.col("sound") & (~tail | (F.lit(drained) & F.col("finished")))
    stranger = F.col("stranger")
    of_group = (
        F.when(F.col("accounted") & F.col("handed"), "delivered")
        .when(F.col("accounted") & F.col("gap"), "declared_gap")
        .when(F.col("accounted") & F.col("dead"), "dead")
        .when(F.col("pending"), "pending")
        .when(
            F.col("early"),
            F.when(F.col("joined").isNull() & F.col("sound"), "never_joined").otherwise("before_join"),
        )
        .when(F.col("gone"), "removed")
        .when(F.col("rest"), F.when(certain, "lost").otherwise("undelivered"))
        .when(F.col("after"), "after")
        .when(stranger & F.col("handed"), F.when(F.col("owner_sound"), "phantom").otherwise("unproven"))
        .when(F.col("stray_gap"), "phantom_gap")
        .otherwise("strange")
    )
    of_producer = (
        F.when(F.col("pending"), "pending")
        .when(F.col("after"), "after")
        .when(F.col("accounted"), F.when(F.col("removed"), "removed").otherwise("enqueued"))
        .otherwise("strange")
    )
    stray_gap = stranger & F.col("declared") & F.col("owner_sound") & F.col("has_original")
    hop = (
        F.when(F.col("received") & F.col("buffered"), "buffered")
        .when(F.col("received"), "received")
        .when(F.col("confirmed"), "confirmed")
        .otherwise("enqueued")
    )
    fates = (
        begins.withColumn("stray_gap", F.coalesce(stray_gap, F.lit(False)))
        .withColumn("fate", F.when(own, of_producer).otherwise(of_group))
        .withColumn("hop", F.when(~own & F.col("fate").isin(*_LOSSES), hop))
    )
    return fates.select(
        *_KEY,
        "first",
        "last",
        "fate",
        F.when(
            F.col("fate") == "lost", F.when(tail, "tail").when(prefix, "prefix").otherwise("middle")
        ).alias("place"),
        "hop",
        F.when(F.col("hop").isNotNull(), _sites()).alias("sites"),
        "accounted",
        "handed",
        "pending",
        (F.col("handed") & ~F.col("acknowledged") & ~F.col("dead") & ~F.col("after") & F.col("sound")).alias(
            "unacknowledged"
        ),
        (F.col("late") & ~F.col("handed")).alias("late"),
        F.col("stray_gap").alias("phantom_gap"),
        "unverifiable",
    )


def _sites() -> Column:
    """Where the hop was reached. Each piece lies whole within a passage, or outside of it."""
    here = F.filter(
        F.coalesce("passages", F.array()),
        lambda each: (
            (each.tag == F.col("hop")) & (each.first <= F.col("first")) & (F.col("last") <= each.last)
        ),
    )
    return F.array_sort(F.array_distinct(F.transform(here, lambda each: each.site)))


def losses(pieces: DataFrame) -> DataFrame:
    """What is lost, of the pieces that :func:`ranges` gives, as few ranges as can be.

    Columns: `kind` (``lost``, ``declared_gap``, ``removed``), `grp`, EPOCH, `first`, `last`, `place`, `hop`, `sites`.
    """
    lost = pieces.where((F.col("grp") != PRODUCER) & F.col("fate").isin(*_LOSSES))
    return merged(lost.withColumnRenamed("fate", "kind"), ["kind", *_KEY, "place", "hop", "sites"])


def findings(pieces: DataFrame) -> DataFrame:
    """The findings in the pieces that :func:`ranges` gives."""
    own = F.col("grp") == PRODUCER
    kinds = F.array(
        F.when(F.when(own, F.col("fate") == "pending").otherwise(F.col("fate").isin(*_FATES)), F.col("fate")),
        F.when(F.col("unacknowledged"), F.lit("unacknowledged")),
        F.when(F.col("phantom_gap"), F.lit("phantom_gap")),
    )
    found = pieces.select(
        *_KEY, "first", "last", "place", "hop", "sites",
        F.explode(F.filter(kinds, lambda kind: kind.isNotNull())).alias("kind"),
    )  # fmt: skip
    is_loss = F.col("kind").isin(*_LOSSES)
    keys = ["kind", *_KEY, "place", "hop", "sites"]
    plain = found.select(
        "kind",
        *_KEY,
        "first",
        "last",
        *(F.when(is_loss, F.col(name)).alias(name) for name in ("place", "hop", "sites")),
    )
    # A gap without an end may well reach beyond what was ever published.
    shown = merged(plain, keys).where((F.col("kind") != "phantom_gap") | (F.col("last") < LAST))
    where = F.when(F.size("sites") > 0, F.concat(F.lit(" at "), F.array_join("sites", ", "))).otherwise("")
    fields = {
        "grp": F.when(F.col("grp") != PRODUCER, F.col("grp")),
        "text": F.when(F.col("hop").isNotNull(), F.concat(F.lit("last seen: "), "hop", where)),
    }
    return shown.select(
        *(
            fields.get(field.name, F.col(field.name) if field.name in shown.columns else F.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in FINDINGS.fields
        )
    )


def counts(pieces: DataFrame) -> DataFrame:
    """Messages in the pieces that :func:`ranges` gives, by what became of them.

    `grp`, `enqueued`, `delivered`, `lost`, `declared_gaps`, `phantom`, `late`, `before_join`, `pending`. In the row
    of the group ``""``, `enqueued`, and `pending`: what is not published yet, or open at some group, each message
    once. Otherwise each message once for each group. Groups of which there are no pieces are absent.
    """
    own = F.col("grp") == PRODUCER

    def messages(condition: Column) -> Column:
        return F.sum(F.when(condition, size()).otherwise(0))

    def fate(*names: str) -> Column:
        return ~own & F.col("fate").isin(*names)

    told = pieces.groupBy("grp").agg(
        messages(own & F.col("accounted")).alias("enqueued"),
        messages(~own & F.col("handed") & (F.col("fate") != "after")).alias("delivered"),
        messages(fate("lost")).alias("lost"),
        messages(fate("declared_gap", "removed")).alias("declared_gaps"),
        messages(fate("phantom")).alias("phantom"),
        messages(~own & F.col("late") & (F.col("fate") != "after")).alias("late"),
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
    """``unverified``: content that no digest sum could be held against what was published.

    `pieces` as of :func:`ranges`, `compared` as of :func:`reliamsg.audit.contents.compared`; `others`: all other
    findings. A hole keeps the range around it from being compared, so nothing is said of a group's stream and epoch
    where something else is known; nor of the epoch in whose middle a group joined, which is no fault.
    """
    handed = pieces.where((F.col("grp") != PRODUCER) & F.col("handed") & ~F.col("unverifiable"))
    left = coverage(
        [tagged(handed, _KEY, "handed"), tagged(compared, _KEY, "compared")], _KEY, ["handed", "compared"]
    ).where((F.col("handed") > 0) & (F.col("compared") == 0))
    worse = others.where(F.col("topic").isNotNull() & F.col("epoch").isNotNull()).select(
        *(F.col(name).alias(f"worse_{name}") for name in EPOCH),
        F.coalesce("grp", F.lit("")).alias("worse_grp"),
    )
    same = F.col("worse_grp").isin(PRODUCER, F.col("grp"))
    for name in EPOCH:
        same &= F.col(f"worse_{name}") == F.col(name)
    return as_findings(merged(left, _KEY).join(worse, same, how="left_anti"), "unverified")
