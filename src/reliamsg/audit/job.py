"""The audit as one job: from a directory of segments to a verdict.

Only this module decides which intermediate results are stored, and collects data to the driver: counts, and a bounded
number of findings.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from reliamsg.audit import (
    accounts,
    chains,
    consumption,
    contents,
    evidence,
    forks,
    groups,
    latency,
    membership,
    producers,
    read,
    renumbered,
    sites,
    verdict,
)
from reliamsg.audit.expect import Expect
from reliamsg.audit.kinds import KINDS, PRECEDENCE
from reliamsg.audit.output import Output
from reliamsg.audit.schema import CHAINS, union
from reliamsg.audit.session import adapt_session, separate_session

__all__ = ["MAX_FINDINGS", "audit"]

_NO_JOURNALS = "there are no journals"
_IDENTITY = ("role", "client", "digest")
MAX_FINDINGS = 1000
"""The maximum number of findings, and of lost ranges, that are collected by the driver; the tables contain all."""


def audit(
    spark: SparkSession,
    journals: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    expect: Expect | None = None,
) -> dict[str, Any]:
    """Reconstruct the fate of every message from the segments below `journals`, a directory or a URL that Spark can
    read.

    `out` is a local directory for tables, ``verdict.json`` and ``report.html``; the output of an earlier audit is
    replaced. `expect` has the rules of the audit.

    Returns the content of ``verdict.json``. Raises :class:`FileNotFoundError` if `journals` does not exist,
    :class:`ConfigError` if `out` contains other files, and Spark's exceptions.
    """
    started = time.perf_counter()
    rules = expect or Expect()
    output = Output(out) if out is not None else None
    own = separate_session(spark)
    segments = _keep(read.segments(own, journals))
    copies, journalled = _extent(segments)
    adapt_session(own, spark, journalled)
    if output is not None:
        output.clear()
    members = _members(segments)
    problems = evidence.problems(members.frame, segments)
    known = _keep(chains.chains(members.frame, problems))
    rows = _keep(renumbered.settled(chains.rows(members.frame)))
    of_chains = known.select(*CHAINS.fieldNames())
    named = _keep(evidence.named(rows, rules))
    counted = _keep(membership.counted(rows))
    contested = _keep(producers.contested(rows, of_chains))
    instances = _keep(
        groups.instances(rows, of_chains, gap_timeout=rules.gap_timeout, tolerance=rules.tolerance)
    )
    stretches = _keep(contents.stretches(rows, contested))
    pieces = _keep(
        accounts.ranges(
            rows, of_chains, named, drained=rules.drained, until_us=rules.until_us, contested=contested,
            counted=counted,
        )
    )  # fmt: skip
    others = _keep(
        union(
            [
                groups.merge(instances),
                producers.findings(rows, of_chains),
                producers.incarnations(rows),
                consumption.released_early(rows, of_chains, counted),
                contents.corrupt(stretches),
                accounts.findings(pieces),
                evidence.of_chains(known, problems, segments, rules.until_us),
                evidence.missing(rows, of_chains, named, rules),
            ]
        )
    )
    unverified = accounts.unverified(pieces, contents.verified(stretches), others)
    findings = _keep(union([others, unverified, forks.forks(rows)]))
    proven = _keep(sites.lost(rows, of_chains, counted))
    by_site, by_hop = _keep(sites.counts(rows, proven)), _keep(latency.quantiles(rows))
    saved = sites.saved(rows, proven)
    found = _verdict(_Frames(findings, pieces, instances, by_site, by_hop, saved, known, rows), copies)
    found["seconds"] = round(time.perf_counter() - started, 3)
    if output is not None:
        tables = {
            "findings": findings,
            "ranges": pieces,
            "sites": by_site,
            "latency": by_hop,
            "chains": of_chains,
        }
        for name, frame in tables.items():
            output.table(name, frame)
        output.finish(found, rows, findings)
    return found


@dataclass(frozen=True)
class _Frames:
    """The frames that the verdict summarizes."""

    findings: DataFrame
    pieces: DataFrame
    instances: DataFrame
    by_site: DataFrame
    by_hop: DataFrame
    saved: DataFrame
    chains: DataFrame
    rows: DataFrame


def _members(segments: DataFrame) -> chains.Members:
    """The accepted segments, each in its chain."""
    members = chains.members(chains.accepted(segments))
    if not members.forked:
        return members
    return chains.Members(_keep(chains.without_copies(members.frame)), True)


def _keep(frame: DataFrame) -> DataFrame:
    """Compute a step and cut its lineage: a plan of all steps together would be too large for Spark. The data is stored
    by the executors; if one is lost, the audit has to be run again."""
    return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK)


def _extent(segments: DataFrame) -> tuple[int, int]:
    """The number of further copies of valid segments, and the total number of rows."""
    sound = segments.where(F.col("problem").isNull())
    found = sound.agg(
        F.count(F.lit(1)) - F.countDistinct(*_IDENTITY),
        F.coalesce(F.sum(F.col("last_lsn") - F.col("first_lsn") + 1), F.lit(0)),
    ).collect()[0]
    return found[0], found[1]


def _verdict(frames: _Frames, duplicated: int) -> dict[str, Any]:
    findings, pieces, by_site, by_hop = frames.findings, frames.pieces, frames.by_site, frames.by_hop
    kinds = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
    clients = frames.chains.groupBy("role", "client").count().collect()
    count = sum(row["count"] for row in clients)
    missing = _lines(findings, "missing")
    if not count:
        missing = [_NO_JOURNALS, *missing]
        kinds["missing"] = kinds.get("missing", 0) + 1
    lost = [
        verdict.as_dict(row) for row in _worst_first(accounts.losses(pieces)).limit(MAX_FINDINGS).collect()
    ]
    worst = [verdict.as_dict(row) for row in _worst_first(findings).limit(MAX_FINDINGS).collect()]
    if not count:
        text = {"kind": "missing", "severity": KINDS["missing"][0], "text": _NO_JOURNALS}
        worst.append({**text, "source": "journal"})
    read = frames.rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.countDistinct(F.when(_of_stream(), F.struct("producer", "topic", "part"))).alias("streams"),
    ).collect()[0]
    return {
        "verdict": verdict.worst(kinds),
        "messages": verdict.messages(
            accounts.counts(pieces).collect(),
            groups.count(frames.instances).collect(),
            frames.saved.collect(),
            (row["client"] for row in clients if row["role"] == "group"),
        ),
        "streams": read["streams"],
        "sites": {
            row["site"]: {name: int(row[name]) for name in by_site.columns[1:]}
            for row in by_site.orderBy("site").collect()
        },
        "lost_ranges": lost,
        "lost_ranges_total": accounts.losses(pieces).count() if len(lost) == MAX_FINDINGS else len(lost),
        "evidence": {
            "clients": count,
            "missing": missing,
            "duplicated": duplicated,
            "broken": _lines(findings, "broken", "unclosed"),
        },
        "latency": {
            row["hop"]: {name: row[name] for name in by_hop.columns[1:]}
            for row in by_hop.orderBy("hop").collect()
        },
        "findings": worst,
        "findings_total": sum(kinds.values()),
        "rows": read["rows"],
    }


def _of_stream() -> Column:
    """Whether a row shows that its stream was used: messages were enqueued or delivered."""
    enqueued = (F.col("role") == "producer") & (F.col("kind") == "enqueued")
    handed = (F.col("role") == "group") & F.col("kind").isin("delivered", "redelivered")
    return enqueued | handed


def _lines(findings: DataFrame, *kinds: str) -> list[str]:
    found = findings.where(F.col("kind").isin(*kinds)).select("text").orderBy("text").limit(MAX_FINDINGS)
    return [row["text"] for row in found.collect()]


def _worst_first(findings: DataFrame) -> DataFrame:
    rank = F.create_map(
        *(F.lit(each) for kind, (severity, _) in KINDS.items() for each in (kind, PRECEDENCE.index(severity)))
    )
    more = [name for name in ("site", "text") if name in findings.columns]
    return findings.orderBy(
        rank[F.col("kind")], "kind", "grp", "producer", "topic", "part", "epoch", "first", *more
    )
