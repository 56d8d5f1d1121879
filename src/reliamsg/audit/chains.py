"""Orders segments into chains: a client's histories, their rows, and problems between segments.

Every segment names the previous one, its parent. If no two segments of a client have the same parent or first row, they
form one chain, in order of rows, even if some are missing. Otherwise the client's file was copied or restored: then
each segment without a successor ends a separate chain, and chains share their beginning. For such clients, which are
rare, the driver orders the headers (never rows).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliamsg.audit.schema import ROWS, driver_frame

__all__ = ["Header", "Members", "accepted", "chains", "lines", "members", "rows", "without_copies"]

_CLIENT = ("role", "client")
_CHAIN = (*_CLIENT, "chain")
_ORDER = ("first_lsn", "last_lsn", "digest")
_MEMBER = {
    "role": "string", "client": "string", "digest": "string", "chain": "string", "alone": "boolean",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The fields of a segment for finding the previous one."""

    digest: str
    parent: str | None
    boot: str
    first_lsn: int
    last_lsn: int


@dataclass(frozen=True)
class Members:
    """Segments in their chains: see :func:`members`."""

    frame: DataFrame
    forked: bool
    """Whether any client has several chains."""


def accepted(segments: DataFrame) -> DataFrame:
    """The segments without a problem, without further copies."""
    copies = Window.partitionBy(*_CLIENT, "digest").orderBy("path")
    return (
        segments.where(F.col("problem").isNull())
        .withColumn("copy", F.row_number().over(copies))
        .where(F.col("copy") == 1)
        .drop("copy")
    )


def members(accepted: DataFrame) -> Members:
    """Segments in their chains. Segments shared by several chains appear in each.

    The columns of :func:`accepted`, and `chain`, `alone` (the only one of its client), `place` (in its chain, from 1),
    `previous_lsn` (the last row before it, 0 for the first), `previous_digest`, `boot_lsn` (the first row of its boot),
    `begins` (it begins its boot), `returns` (its boot continues after another one began).
    """
    by_client = accepted.groupBy(*_CLIENT).agg(
        F.count(F.lit(1)).alias("segments"),
        F.countDistinct(F.coalesce("parent", F.lit(""))).alias("parents"),
        F.countDistinct("first_lsn").alias("starts"),
    )
    doubtful = by_client.where(F.least("parents", "starts") < F.col("segments")).select(*_CLIENT)
    headers = (
        accepted.join(F.broadcast(doubtful), list(_CLIENT), how="left_semi")
        .select(*_CLIENT, "digest", "parent", "boot", "first_lsn", "last_lsn")
        .collect()
    )
    forked: dict[tuple[str, str], list[Header]] = defaultdict(list)
    for row in headers:
        forked[row["role"], row["client"]].append(
            Header(row["digest"], row["parent"], row["boot"], row["first_lsn"], row["last_lsn"])
        )
    return Members(_placed(_named(accepted, forked)), bool(forked))


def _named(accepted: DataFrame, forked: dict[tuple[str, str], list[Header]]) -> DataFrame:
    single = accepted.withColumns({"chain": F.concat_ws("/", *_CLIENT), "alone": F.lit(True)})
    if not forked:
        return single
    places = []
    for (role, client), headers in sorted(forked.items()):
        found = lines(headers)
        for number, line in enumerate(found, 1):
            name = f"{role}/{client}" if len(found) == 1 else f"{role}/{client}#{number:04}"
            places += [(role, client, header.digest, name, len(found) == 1) for header in line]
    known = driver_frame(accepted.sparkSession, _MEMBER, places)
    of_forked = known.select(*_CLIENT).distinct()
    return single.join(F.broadcast(of_forked), list(_CLIENT), how="left_anti").unionByName(
        accepted.join(F.broadcast(known), [*_CLIENT, "digest"], how="inner")
    )


def _placed(named: DataFrame) -> DataFrame:
    along = Window.partitionBy(*_CHAIN).orderBy(*_ORDER)
    boots = Window.partitionBy(*_CHAIN, "boot")
    earlier = boots.orderBy(*_ORDER).rowsBetween(Window.unboundedPreceding, -1)
    previous_boot = F.lag("boot").over(along)
    begins = ~F.col("boot").eqNullSafe(previous_boot)
    return named.withColumns(
        {
            "place": F.row_number().over(along),
            "previous_lsn": F.coalesce(F.lag("last_lsn").over(along), F.lit(0)),
            "previous_digest": F.lag("digest").over(along),
            "boot_lsn": F.min("first_lsn").over(boots),
            "begins": begins,
            "returns": begins & (F.count(F.lit(1)).over(earlier) > 0),
        }
    )


def lines(headers: Sequence[Header]) -> list[list[Header]]:
    """All chains of one client, each from its first segment to one without a successor."""
    ordered = sorted(headers, key=lambda header: (header.first_lsn, header.last_lsn, header.digest))
    known = {header.digest: header for header in ordered}
    before = {
        header.digest: known[header.parent]
        for header in ordered
        if header.parent is not None and header.parent in known
    }
    followed = {header.digest for header in before.values()}
    for header in ordered:
        if header.parent is None or header.digest in before:
            continue
        # Its parent is missing: it continues a chain whose rows end before it, without a successor, of its boot if
        # possible.
        ends = [
            (other.boot == header.boot, other.last_lsn, place)
            for place, other in enumerate(ordered)
            if other.digest not in followed and other.last_lsn < header.first_lsn
        ]
        if ends:
            before[header.digest] = ordered[max(ends)[2]]
            followed.add(before[header.digest].digest)
    found = []
    for header in ordered:
        if header.digest in followed:
            continue
        line = [header]
        while line[-1].digest in before:
            line.append(before[line[-1].digest])
        found.append(line[::-1])
    return found


def without_copies(members: DataFrame) -> DataFrame:
    """`members` without chains that are an older state of another chain, such as the segments of a backup.

    The other chain contains every row of such a chain, unchanged or extended.
    """
    several = members.where(~F.col("alone"))
    each = several.select(*_CHAIN, F.explode("lines").alias("line")).select(
        *_CHAIN,
        *(F.col(f"line.{name}").alias(name) for name in ("boot", "lsn", "kind")),
        *(F.coalesce(F.col(f"line.{name}"), F.lit(0)).alias(name) for name in ("first", "last")),
    )
    sizes = each.groupBy(*_CHAIN).agg(F.count(F.lit(1)).alias("size"))
    twin = each.select(*(F.col(name).alias(f"twin_{name}") for name in each.columns))
    same = F.col("last") <= F.col("twin_last")
    for name in (*_CLIENT, "boot", "lsn", "kind", "first"):
        same &= F.col(name) == F.col(f"twin_{name}")
    shared = (
        each.join(twin, same & (F.col("chain") != F.col("twin_chain")), how="inner")
        .groupBy(*_CHAIN, "twin_chain")
        .agg(F.count(F.lit(1)).alias("shared"))
    )
    other = sizes.select(
        *(F.col(name).alias(f"of_{name}") for name in _CLIENT),
        F.col("chain").alias("twin_chain"),
        F.col("size").alias("twin_size"),
    )
    # Of two equal chains, the first one stays.
    longer = (F.col("twin_size") > F.col("size")) | (
        (F.col("twin_size") == F.col("size")) & (F.col("twin_chain") < F.col("chain"))
    )
    copies = (
        shared.join(sizes, list(_CHAIN), how="inner")
        .join(other, "twin_chain", how="inner")
        .where((F.col("of_role") == F.col("role")) & (F.col("of_client") == F.col("client")))
        .where((F.col("shared") == F.col("size")) & longer)
        .select(*_CHAIN)
        .distinct()
    )
    return members.join(copies, list(_CHAIN), how="left_anti")


def rows(members: DataFrame) -> DataFrame:
    """The rows of all chains: ROWS."""
    line = F.col("line")
    no_name, zero = F.lit(""), F.lit(0)
    values: dict[str, Column] = {name: F.col(name) for name in (*_CHAIN, "boot", "boot_lsn")}
    values |= {name: line[name] for name in ("lsn", "kind", "wall_us", "wall_last_us", "mono_us", "detail")}
    values |= {name: F.coalesce(line[name], no_name) for name in ("producer", "topic", "site", "reason")}
    values |= {name: F.coalesce(line[name], zero) for name in ("part", "epoch", "first", "last")}
    values["incarnation"] = F.lpad(F.coalesce(line["incarnation"], F.lit("0")), 16, "0")
    values["grp"] = F.when(F.col("role") == "group", F.col("client")).otherwise(
        F.coalesce(line["group"], no_name)
    )
    values["digest"] = F.conv(line["digest"], 16, 10)
    values["latency"] = F.transform_keys(line["latency"], lambda bucket, _: bucket.cast("int"))
    exploded = members.select(*_CHAIN, "boot", "boot_lsn", F.explode("lines").alias("line"))
    return exploded.select(
        *(values[field.name].cast(field.dataType).alias(field.name) for field in ROWS.fields)
    )


def chains(members: DataFrame, broken: DataFrame) -> DataFrame:
    """The chains: CHAINS, and `source`, their location; `first_us`, `last_us`, the times of the earliest and latest
    row.

    `broken`: `role`, `client`, `chain` of chains whose rows may be missing; may have duplicates.
    """
    wall = F.transform("lines", lambda line: line["wall_us"])
    last = F.struct("place", "boot")
    closed = F.exists("lines", lambda line: line["kind"] == "closed")
    directory = F.coalesce(
        F.nullif(F.regexp_extract("path", "^(.*)/date=", 1), F.lit("")),
        F.regexp_extract("path", "^(.*)/[^/]*$", 1),
    )
    source = F.when(F.col("alone"), directory).otherwise(F.concat(directory, F.lit(" up to "), "name"))
    found = (
        members.select(
            *_CHAIN,
            "boot",
            "place",
            source.alias("source"),
            F.element_at(wall, 1).alias("starts_us"),
            F.array_min(wall).alias("first_us"),
            F.array_max(wall).alias("last_us"),
            closed.alias("closed"),
        )
        .withColumn("last_boot", F.max(last).over(Window.partitionBy(*_CHAIN))["boot"])
        .groupBy(*_CHAIN)
        .agg(
            F.max_by("source", "place").alias("source"),
            F.min_by("starts_us", "place").alias("starts_us"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
            F.max(F.col("closed") & (F.col("boot") == F.col("last_boot"))).alias("finished"),
        )
    )
    known = broken.select(*_CHAIN).distinct().withColumn("is_broken", F.lit(True))
    by_time = Window.partitionBy(*_CLIENT).orderBy("starts_us", "chain")
    return found.join(known, list(_CHAIN), how="left").select(
        *_CHAIN,
        F.row_number().over(by_time).alias("rank"),
        F.col("is_broken").isNotNull().alias("broken"),
        "finished",
        "source",
        "first_us",
        "last_us",
    )
