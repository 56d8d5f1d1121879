"""The audit as a Spark job: from segments to a verdict.

Three steps: tasks read and fold segments into facts by stream (:mod:`reliamsg.audit.fold`); the driver puts the parts
of each client into histories and learns what they say of clients (:mod:`reliamsg.audit.clients`); tasks judge the
streams (:mod:`reliamsg.audit.streams`), and their sums become the verdict. No row reaches the driver, except those that
are about clients rather than messages, and a bounded number of findings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark import RDD, Broadcast, StorageLevel
from pyspark.sql import SparkSession

from reliamsg.audit import verdict
from reliamsg.audit.clients import StreamTraces, gather
from reliamsg.audit.context import Journal
from reliamsg.audit.copies import older_copies
from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import StreamName
from reliamsg.audit.keeping import keep, kept_records
from reliamsg.audit.kept import Kept, Plan, storable
from reliamsg.audit.lineage import Damaged, Histories, Placed, histories
from reliamsg.audit.output import Output
from reliamsg.audit.segment import StatedIdle
from reliamsg.audit.sources import Chunk, Found, bundles, chunks, find, read_file
from reliamsg.audit.tasks import (
    Key,
    Summary,
    count_enqueued,
    fold,
    judge_streams,
    partition_of,
    trace_streams,
)
from reliamsg.audit.through import demands_at

__all__ = ["audit"]

_CHUNK_BYTES = 64 * 1024 * 1024
"""The most bytes of segments that a task folds as one part, except for a single larger segment."""
_LEAST_CHUNK_BYTES = 1024 * 1024
_RECORDS_PER_PARTITION = 20_000
"""About the number of pairs of a stream and a part that one task judges."""
_TRACED = ("conflict", "surpassed", "behind")
"""Kinds of rows for which the driver has to know more of their streams."""


def audit(
    spark: SparkSession,
    journals: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    state: str | os.PathLike[str] | None = None,
    expect: Expect | None = None,
) -> dict[str, Any]:
    """Reconstruct the fate of every message from the segments below `journals`, a directory or a URL that Spark can
    read.

    `out` is a local directory for tables, ``verdict.json`` and ``report.html``; the output of an earlier audit is
    replaced. `state` is a directory that all machines of the cluster share, in which audits keep what they have read:
    the next audit with the same state reads only new segments, and gives the same verdict. `expect` has the rules of
    the audit. The machines of Spark's executors need this package, too.

    Returns the content of ``verdict.json``. Raises :class:`FileNotFoundError` if `journals` does not exist,
    :class:`ConfigError` if `out` or `state` contains other files, is damaged, or is in use, and Spark's exceptions.
    """
    started = time.perf_counter()
    rules = expect or Expect()
    output = Output(out) if out is not None else None
    kept = Kept(state) if state is not None else None
    try:
        found = find(spark, journals)
        plan = Plan(found) if kept is None else kept.plan(found)
        if output is not None:
            output.begin()
        folded = _fold(spark, plan.found).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            return _judge(spark, folded, kept, plan, rules, output, started)
        finally:
            folded.unpersist()
    finally:
        if kept is not None:
            kept.close()


def _judge(
    spark: SparkSession,
    folded: RDD[Any],
    kept: Kept | None,
    plan: Plan,
    rules: Expect,
    output: Output | None,
    started: float,
) -> dict[str, Any]:
    found = plan.found
    placed, damaged, heads, duplicated = _parts(folded, plan)
    known = histories(placed, damaged, heads)
    older_copies(spark, known, found)
    journals = {each.name: each.sketch() for each in known.journals}
    records = folded.filter(_is_record)
    if kept is not None:
        records = records.union(kept_records(spark, kept, plan.placed))
    clients = gather(known.journals, rules, _traces(spark, records, known, journals))
    partitions = min(
        max(1, _count(placed) // _RECORDS_PER_PARTITION), 4 * spark.sparkContext.defaultParallelism
    )
    numbers = spark.sparkContext.broadcast(known.numbers)
    context = spark.sparkContext.broadcast(clients.context)
    tables = output is not None

    def judge(own: Iterable[tuple[Key, bytes]]) -> Iterator[Any]:
        return judge_streams(own, numbers.value, context.value, tables)

    judged = _by_stream(records, partitions).mapPartitions(judge)
    if tables:
        judged = judged.persist(StorageLevel.MEMORY_AND_DISK)
    total = Summary()
    for each in judged.filter(_is_summary).collect():
        total.add(each)
    now_us = time.time_ns() // 1000 if rules.now_us is None else rules.now_us
    through = verdict.time_of(total, clients, known, rules, now_us)
    proven = _enqueued_by(through.us, total, records, partitions, numbers, context)
    until_us = rules.until_us
    demands = [] if until_us is None else list(demands_at(until_us, clients.proven, now_us))
    proof = verdict.Proof(through, proven, rules.all_counts, demands)
    result = verdict.compose(
        total, clients, known, duplicated, proof, found.place, output.place if output else ""
    )
    result["seconds"] = round(time.perf_counter() - started, 3)
    if output is not None:
        output.finish(spark, result, total, clients, known, judged)
        judged.unpersist()
    if kept is not None:
        keep(spark, kept, records, storable(known, placed))
    return result


def _enqueued_by(
    us: int | None,
    total: Summary,
    records: RDD[Any],
    partitions: int,
    numbers: Broadcast[Any],
    context: Broadcast[Any],
) -> int:
    """The number of messages that were enqueued by that time."""
    if us is None:
        return 0
    if us >= total.latest_us:
        return sum(account.enqueued for account in total.accounts.values())

    def count(own: Iterable[tuple[Key, bytes]]) -> Iterator[int]:
        return count_enqueued(own, numbers.value, context.value, us)

    return int(_by_stream(records, partitions).mapPartitions(count).sum())


def _fold(spark: SparkSession, found: Found) -> RDD[Any]:
    context = spark.sparkContext
    total = sum(file.size for file in found.files)
    if not found.local:
        return _fold_remote(spark, found)
    share = max(total // max(1, 2 * context.defaultParallelism), _LEAST_CHUNK_BYTES)
    work = list(bundles(chunks(found.files, min(share, _CHUNK_BYTES)), share))

    def read(own: Iterable[list[Chunk]]) -> Iterator[Any]:
        for bundle in own:
            for chunk in bundle:
                yield from fold(chunk, read_file)

    return context.parallelize(work, max(1, len(work))).mapPartitions(read)


def _fold_remote(spark: SparkSession, found: Found) -> RDD[Any]:
    """Files that only Spark's file systems can read: each is folded separately."""
    context = spark.sparkContext
    numbered = {file.path: chunk for chunk in chunks(found.files, 0) for file in chunk.files}
    known = context.broadcast(numbered)
    if not numbered:
        return context.parallelize([], 1)
    paths = ",".join(path.replace(",", "\\,") for path in numbered)
    contents = context.binaryFiles(paths, context.defaultParallelism)
    empty = [chunk for chunk in numbered.values() if not chunk.size]

    def read(own: Iterable[tuple[str, bytes]]) -> Iterator[Any]:
        for path, data in own:
            chunk = known.value.get(path)
            if chunk is not None and chunk.size:
                yield from fold(chunk, lambda _, data=data: data)  # type: ignore[misc]

    def nothing(own: Iterable[Chunk]) -> Iterator[Any]:
        for chunk in own:
            yield from fold(chunk, lambda _: b"")

    return contents.mapPartitions(read).union(context.parallelize(empty, 1).mapPartitions(nothing))


def _parts(folded: RDD[Any], plan: Plan) -> tuple[list[Placed], list[Damaged], list[StatedIdle], int]:
    """Parts, unusable files, heads, and the number of further copies of segments."""
    placed = list(plan.placed)
    damaged = [
        Damaged(path, path.rpartition("/")[2], None, f"not a file: {what}") for path, what in plan.found.odd
    ]
    collected = folded.filter(_is_no_record).collect()
    known: set[tuple[str, str, str]] = set()
    duplicated = plan.duplicated
    for each in sorted(
        (each for each in collected if isinstance(each, Placed)), key=lambda each: each.number
    ):
        digests = {(each.part.role, each.part.client, digest) for digest in each.part.digests}
        if digests <= known:
            duplicated += len(digests)
            continue
        known |= digests
        placed.append(each)
    damaged += [each for each in collected if isinstance(each, Damaged)]
    heads = [each for each in collected if isinstance(each, StatedIdle)]
    return placed, damaged, heads, duplicated


def _traces(
    spark: SparkSession, records: RDD[Any], known: Histories, journals: Mapping[str, Journal]
) -> StreamTraces:
    """What the driver has to know of streams that conflicts are about, and of those with renumbered messages."""
    streams: set[StreamName] = set()
    producers: set[str] = set()
    for each in known.journals:
        for stream, fact in each.rows:
            if fact.kind in _TRACED:
                streams.add(stream)
            elif fact.kind == "renumbered":
                producers.add(each.client)
    total = StreamTraces()
    if not streams and not producers:
        return total
    chosen = spark.sparkContext.broadcast((streams, producers))
    numbers = spark.sparkContext.broadcast(known.numbers)
    sketches = spark.sparkContext.broadcast(journals)

    def is_chosen(record: tuple[Key, bytes]) -> bool:
        (stream, _), _ = record
        return stream in chosen.value[0] or stream[0] in chosen.value[1]

    def trace(own: Iterable[tuple[Key, bytes]]) -> Iterator[StreamTraces]:
        yield trace_streams(own, numbers.value, sketches.value)

    partitions = spark.sparkContext.defaultParallelism
    for found in _by_stream(records.filter(is_chosen), partitions).mapPartitions(trace).collect():
        total.add(found)
    return total


def _by_stream(records: RDD[Any], partitions: int) -> RDD[Any]:
    return records.repartitionAndSortWithinPartitions(partitions, partition_of)


def _count(placed: Iterable[Placed]) -> int:
    return sum(each.streams for each in placed)


def _is_record(each: object) -> bool:
    return isinstance(each, tuple)


def _is_no_record(each: object) -> bool:
    return not isinstance(each, tuple)


def _is_summary(each: object) -> bool:
    return isinstance(each, Summary)
