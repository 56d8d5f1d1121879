"""Problems of the journals as evidence: missing, damaged and unclosed journals."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit import membership, producers, references
from reliamsg.audit.expect import Expect
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.ranges import coverage, tagged
from reliamsg.audit.schema import driver_frame, union
from reliamsg.audit.schema import findings as as_findings

__all__ = ["missing", "named", "of_chains", "problems"]

_CLIENT = ("role", "client")
_CHAIN = (*_CLIENT, "chain")


def problems(members: DataFrame, segments: DataFrame) -> DataFrame:
    """The reasons why rows of a chain may be missing: `role`, `client`, `chain`, `text`, one line each."""
    return union(
        [
            _between(members),
            _given_up(members),
            _holes(members),
            _damaged(members, segments),
            _abandoned(members),
        ]
    )


def _between(members: DataFrame) -> DataFrame:
    """Inconsistencies between a segment and the previous one."""
    first = F.col("first_lsn").cast("string")
    kind = F.element_at("lines", 1)["kind"]
    lines = F.array(
        F.when(
            F.col("first_lsn") <= F.col("previous_lsn"),
            F.concat(F.lit("row "), first, F.lit(" comes after row "), F.col("previous_lsn").cast("string")),
        ),
        F.when(
            (F.col("place") > 1)
            & (F.col("first_lsn") == F.col("previous_lsn") + 1)
            & ~F.col("parent").eqNullSafe(F.col("previous_digest")),
            F.concat(F.lit("the rows from "), first, F.lit(" on do not continue the rows before them")),
        ),
        F.when(
            F.col("returns"),
            F.concat(F.lit("boot "), "boot", F.lit(" continues at row "), first, F.lit(", after another one began")),
        ),
        F.when(
            F.col("begins") & (kind != "opened"),
            F.concat(
                F.lit("boot "), "boot", F.lit(" begins with '"), kind, F.lit("' at row "), first,
                F.lit(", not with 'opened'"),
            ),
        ),
    )  # fmt: skip
    return members.select(*_CHAIN, F.explode(F.array_compact(lines)).alias("text"))


def _truncated(members: DataFrame) -> DataFrame:
    """Rows that clients report as deleted: `first`, `last`, `count` of each ``truncated`` row, if it has them."""
    said = F.filter("lines", lambda line: line["kind"] == "truncated")
    return members.select(*_CHAIN, F.explode(said).alias("line")).select(
        *_CHAIN,
        *(
            _number(f"$.{path}").alias(name)
            for path, name in (("first_lsn", "first"), ("last_lsn", "last"), ("rows", "count"))
        ),
    )


def _number(path: str) -> Column:
    return F.get_json_object(F.col("line.detail"), path).try_cast("long")


def _given_up(members: DataFrame) -> DataFrame:
    span = F.concat(
        F.lit("rows "), F.col("first").cast("string"), F.lit(" to "), F.col("last").cast("string"),
        F.lit(" were discarded by the client: its target was unreachable"),
    )  # fmt: skip
    unwritten = F.concat(
        F.coalesce(F.col("count").cast("string"), F.lit("some")),
        F.lit(" rows were discarded by the client: its file could not be written"),
    )
    return _truncated(members).select(*_CHAIN, F.coalesce(span, unwritten).alias("text"))


def _holes(members: DataFrame) -> DataFrame:
    """Missing rows that the client does not report as deleted."""
    holes = members.where(F.col("first_lsn") > F.col("previous_lsn") + 1).select(
        *_CHAIN, (F.col("previous_lsn") + 1).alias("first"), (F.col("first_lsn") - 1).alias("last")
    )
    told = _truncated(members).where(F.col("first").isNotNull() & F.col("last").isNotNull())
    left = coverage(
        [tagged(holes, _CHAIN, "hole"), tagged(told, _CHAIN, "told")], _CHAIN, ["hole", "told"]
    ).where((F.col("hole") > 0) & (F.col("told") == 0))
    text = F.concat(
        F.lit("rows "), F.col("first").cast("string"), F.lit(" to "), F.col("last").cast("string"),
        F.lit(" are missing"),
    )  # fmt: skip
    return left.select(*_CHAIN, text.alias("text"))


def _damaged(members: DataFrame, segments: DataFrame) -> DataFrame:
    """Unusable segments, for each chain of the client to which they belong: rows of any chain may be missing."""
    bad = segments.where(F.col("problem").isNotNull() & F.col("owner_role").isNotNull()).select(
        F.col("owner_role").alias("role"),
        F.col("owner_client").alias("client"),
        F.concat_ws(": ", "name", "problem").alias("line"),
    )
    own = (
        members.select(*_CHAIN)
        .distinct()
        .withColumn("number", F.row_number().over(Window.partitionBy(*_CLIENT).orderBy("chain")))
    )
    text = F.when(F.col("number") == 1, F.col("line")).otherwise("segments of this client are damaged")
    return own.join(bad, list(_CLIENT), how="inner").select(*_CHAIN, text.alias("text")).distinct()


def _abandoned(members: DataFrame) -> DataFrame:
    """Inboxes of a group without a journal, from which another inbox took over."""
    lines = members.where(F.col("role") == "group").select(*_CHAIN, F.explode("lines").alias("line"))
    kind = F.col("line.kind")
    known = lines.where(kind == "opened").select(*_CLIENT, _name("inbox").alias("inbox")).distinct()
    told = lines.where(kind == "took_over").select(*_CHAIN, _name("from").alias("inbox"))
    text = F.concat(F.lit("inbox "), "inbox", F.lit(", from which it took over, left no journal"))
    return (
        told.where(F.col("inbox") != "")
        .distinct()
        .join(F.broadcast(known), [*_CLIENT, "inbox"], how="left_anti")
        .select(*_CHAIN, text.alias("text"))
    )


def _name(name: str) -> Column:
    return F.get_json_object(F.col("line.detail"), f"$.{name}")


def of_chains(
    chains: DataFrame, problems: DataFrame, segments: DataFrame, until_us: int | None = None
) -> DataFrame:
    """``broken`` and ``unclosed``: existing journals that can't be relied on, one line each."""
    name = F.concat(F.col("source"), F.lit(" ("), "role", F.lit(" "), "client", F.lit("): "))
    of_problems = problems.join(chains, list(_CHAIN), how="inner").select(
        F.concat(name, "text").alias("text")
    )
    ends = ~F.col("broken") & ~F.col("finished")
    if until_us is not None:
        ends &= F.col("last_us") <= until_us
    unclosed = chains.where(ends).select(F.concat(name, F.lit(KINDS["unclosed"][1])).alias("text"))
    # Of clients without other segments, and of unknown clients.
    stray = segments.where(F.col("problem").isNotNull()).join(
        chains.select(F.col("role").alias("owner_role"), F.col("client").alias("owner_client")).distinct(),
        ["owner_role", "owner_client"],
        how="left_anti",
    )
    owner = F.concat(F.col("owner_role"), F.lit(" "), "owner_client", F.lit(": "), "name")
    lines = stray.select(F.concat(F.coalesce(owner, F.col("path")), F.lit(": "), "problem").alias("text"))
    return union(
        [as_findings(of_problems, "broken"), as_findings(lines, "broken"), as_findings(unclosed, "unclosed")]
    )


def named(rows: DataFrame, expect: Expect) -> DataFrame:
    """`topic`, `grp`: the groups that consume a topic according to any client."""
    expected = [(topic, group) for topic, groups in expect.groups.items() for group in groups]
    return union(
        [
            driver_frame(rows.sparkSession, {"topic": "string", "grp": "string"}, expected),
            membership.named(rows).where(F.col("grp").isNotNull()),
            _read_by_groups(rows),
        ]
    ).distinct()


def _read_by_groups(rows: DataFrame) -> DataFrame:
    """`topic`, `grp` according to the groups' ``opened`` rows and their deliveries."""
    of_groups = rows.where(F.col("role") == "group")
    topics = producers.names_in(F.get_json_object("detail", "$.topics"))
    said = producers.opened(of_groups).select(F.explode(topics).alias("topic"), F.col("client").alias("grp"))
    given = of_groups.where(_handed()).select("topic", F.col("client").alias("grp"))
    return said.unionByName(given)


def _handed() -> Column:
    return F.col("kind").isin("delivered", "redelivered") & (F.col("first") <= F.col("last"))


def missing(rows: DataFrame, chains: DataFrame, named: DataFrame, expect: Expect) -> DataFrame:
    """``missing``: expected or named clients without a journal, topics without a producer, and openings of producers
    that only other journals refer to."""
    known = chains.select(*_CLIENT).distinct()
    expected = driver_frame(rows.sparkSession, {"client": "string"}, [(name,) for name in expect.producers])
    reading = named.select(F.col("grp").alias("client")).unionByName(references.groups(rows))
    wanted = (
        expected.unionByName(references.producers(rows))
        .select(F.lit("producer").alias("role"), "client")
        .unionByName(reading.select(F.lit("group").alias("role"), "client"))
        .distinct()
    )
    absent = wanted.join(known, list(_CLIENT), how="left_anti")
    clients = absent.select(F.concat(F.lit("no journal of "), "role", F.lit(" "), "client").alias("text"))
    enqueued = rows.where((F.col("role") == "producer") & (F.col("kind") == "enqueued")).select("topic")
    published = enqueued.unionByName(membership.named(rows).select("topic")).distinct()
    # If a producer's journal is missing, it may contain the topic.
    no_producer = absent.where(F.col("role") == "producer").limit(1).select(F.lit(True).alias("unknown"))
    orphans = (
        named.select("topic")
        .distinct()
        .join(published, "topic", how="left_anti")
        .join(no_producer, F.col("unknown"), how="left_anti")
        .select(F.concat(F.lit("no journal of any producer of topic "), "topic").alias("text"))
    )
    parts = references.missing(rows, chains, expect.until_us)
    return as_findings(union([clients, orphans, parts]), "missing")
