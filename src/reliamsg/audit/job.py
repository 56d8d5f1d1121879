"""The audit as a Spark job: from segments to a verdict.

Three steps: tasks read and fold segments into facts by stream (:mod:`reliamsg.audit.fold`); the driver puts the parts
of each client into histories and learns what they say of clients (:mod:`reliamsg.audit.clients`); tasks judge the
streams (:mod:`reliamsg.audit.streams`), and their sums become the verdict. No row reaches the driver, except those that
are about clients rather than messages, and a bounded number of findings.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import add
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import SparkSession

from reliamsg.audit import compacted, verdict
from reliamsg.audit.accepted import Brief
from reliamsg.audit.checkpoint import is_checkpoint
from reliamsg.audit.clients import Clients, StreamTraces, gather
from reliamsg.audit.context import Context, Journal
from reliamsg.audit.copies import older_copies
from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import Part, StreamName
from reliamsg.audit.hook import Hook, news
from reliamsg.audit.keeping import keep, kept_records
from reliamsg.audit.kept import Kept, Plan, storable
from reliamsg.audit.lineage import Damaged, Histories, Placed, histories
from reliamsg.audit.offsets import compare_clocks
from reliamsg.audit.output import Output
from reliamsg.audit.retired import check_retired, retire
from reliamsg.audit.segment import StatedIdle, owner_of
from reliamsg.audit.signatures import NOT_SIGNED, UnsignedHead, accepted, unsigned_in
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
from reliamsg.audit.windows import Audited, Baseline, Reach, Scope
from reliamsg.trust import Owner, Trust

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
    baseline: Baseline | None = None,
    hook: Hook | None = None,
) -> dict[str, Any]:
    """Reconstruct the fate of every message from the segments below `journals`, a directory or a URL that Spark can
    read.

    `out` is a local directory for tables, ``verdict.json`` and ``report.html``; the output of an earlier audit is
    replaced. `state` is a directory that all machines of the cluster share, in which audits keep what they have read:
    the next audit with the same state reads only new segments, and gives the same verdict. `expect` has the rules of
    the audit. `baseline` is where the window begins: by default where the latest audit with the state ended. `hook` is
    called for incidents that are new or have grown since that audit. The machines of Spark's executors need this
    package, too; and if signatures are checked, the file of keys at the same path.

    Returns the content of ``verdict.json``. Raises :class:`FileNotFoundError` if `journals` does not exist,
    :class:`ConfigError` if `out` or `state` contains other files, is damaged, or is in use, or if a state is signed and
    `expect` has no keys for it, or is not signed by one of them, and Spark's exceptions.
    """
    started = time.perf_counter()
    rules = expect or Expect()
    output = Output(out) if out is not None else None
    kept = Kept(state, rules.state_keys) if state is not None else None
    try:
        found = find(spark, journals)
        scope = Scope(baseline or Baseline())
        if kept is not None:
            scope = Scope(baseline or Baseline.after(kept.audited), kept.acceptances)
        if output is not None:
            output.begin()
        return _Audit(spark, rules, kept, output, scope, hook).run(found, started)
    finally:
        if kept is not None:
            kept.close()


class _Audit:
    def __init__(
        self,
        spark: SparkSession,
        rules: Expect,
        kept: Kept | None,
        output: Output | None,
        scope: Scope,
        hook: Hook | None,
    ) -> None:
        self._spark, self._rules, self._scope, self._hook = spark, rules, scope, hook
        self._kept, self._output = kept, output

    def run(self, found: Found, started: float) -> dict[str, Any]:
        """Read, judge, and write the results; returns the content of ``verdict.json``."""
        read = compacted.read_checkpoints(self._spark, found).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            keys = self._rules.checkpoint_keys
            checkpoints = compacted.check(
                read.filter(_is_no_record).collect(), keys, required=self._rules.trust is not None
            )
            plan = Plan(found, self._rules.trust)
            if self._kept is not None:
                own = {owner: [each.digests for each in every] for owner, every in checkpoints.valid.items()}
                plan = self._kept.plan(found, own, self._rules.trust)
            plan = plan.with_checkpoints(checkpoints)
            folded = _fold(self._spark, plan).persist(StorageLevel.MEMORY_AND_DISK)
            try:
                records = folded.filter(_is_record).union(_records_of(self._spark, read, plan))
                return self._judge(folded, records, plan, started)
            finally:
                folded.unpersist()
        finally:
            read.unpersist()

    def _judge(self, folded: RDD[Any], records: RDD[Any], plan: Plan, started: float) -> dict[str, Any]:
        """`folded`: what was read of segments and heads; `records`: all facts but those that are kept."""
        spark, kept, output, rules = self._spark, self._kept, self._output, self._rules
        placed, damaged, heads, duplicated = _parts(folded, plan)
        known = histories(
            placed, damaged, heads,
            checkpoints=plan.checkpoints, checkpoint_signatures_checked=rules.checkpoint_keys is not None,
        )  # fmt: skip
        check_retired(rules.retired, known.journals)
        older_copies(spark, known, plan.found)
        journals = {each.name: each.sketch() for each in known.journals}
        if kept is not None:
            records = records.union(kept_records(spark, kept, plan.placed))
        traces = _traces(spark, records, known, journals)
        clients = gather(known.journals, rules, traces, self._scope.acceptances, plan.found.emptied)
        streams = _Streams(spark, records, _count(placed), known.numbers, clients.context)
        judged = streams.judge(tables=output is not None)
        if output is not None:
            judged = judged.persist(StorageLevel.MEMORY_AND_DISK)
        total = Summary()
        for each in judged.filter(_is_summary).collect():
            total.add(each)
        clients = retire(clients, rules.retired, known.journals, total.lacking_of)
        clients = compare_clocks(clients, total.offsets, rules.max_skew)
        proof = self._prove(total, clients, known, streams)
        places = plan.found.place, output.place if output else ""
        result = verdict.compose(total, clients, known, duplicated, proof, self._scope, places)
        result["seconds"] = round(time.perf_counter() - started, 3)
        if output is not None:
            output.finish(spark, result, total, clients, known, judged)
            judged.unpersist()
        if kept is not None:
            incidents, _ = verdict.briefs(total, verdict.evidence_of(total, clients, known, proof))
            unreported = self._report(result, incidents, kept.audited)
            audited = Audited(proof.through.us, incidents, unreported)
            keep(spark, kept, records, storable(known, placed), audited)
        return result

    def _prove(self, total: Summary, clients: Clients, known: Histories, streams: _Streams) -> verdict.Proof:
        """Find up to when everything is proven, and count the messages by then."""
        rules, scope = self._rules, self._scope
        now_us = time.time_ns() // 1000 if rules.now_us is None else rules.now_us
        through = of_window = verdict.time_of(total, clients, known, rules, now_us)
        if scope.acceptances.by_id:
            of_window = verdict.time_of(total, clients, known, rules, now_us, scope.acceptances)
        since_us, until_us = scope.baseline.since_us, rules.until_us
        before = None if since_us is None else since_us - 1
        counts = streams.enqueued_by({through.us, of_window.us, before}, total)
        enqueued = total.enqueued - counts[before]
        proven = max(0, counts[of_window.us] - counts[before])
        return verdict.Proof(
            through,
            counts[through.us],
            rules.all_counts,
            [] if until_us is None else list(demands_at(until_us, clients.proven, now_us)),
            Reach(of_window, enqueued, proven, rules.all_counts),
            rules.trust is not None,
            None if self._kept is None else self._kept.is_verified,
        )

    def _report(
        self, result: Mapping[str, Any], incidents: Sequence[Brief], before: Audited | None
    ) -> set[str]:
        """Tell the hook of new incidents; returns those of which it has not been told."""
        if self._hook is not None:
            return self._hook.report(
                news(result["incidents"], incidents, self._scope.acceptances, before), result
            )
        return set() if before is None else before.unreported & {each.id for each in incidents}


class _Streams:
    """The facts of all streams, and what is needed to judge them."""

    def __init__(
        self,
        spark: SparkSession,
        records: RDD[Any],
        count: int,
        numbers: Mapping[str, Sequence[int]],
        context: Context,
    ) -> None:
        most = 4 * spark.sparkContext.defaultParallelism
        self._records = records
        self._partitions = min(max(1, count // _RECORDS_PER_PARTITION), most)
        self._numbers = spark.sparkContext.broadcast(numbers)
        self._context = spark.sparkContext.broadcast(context)

    def judge(self, *, tables: bool) -> RDD[Any]:
        """See :func:`~reliamsg.audit.tasks.judge_streams`."""
        numbers, context = self._numbers, self._context

        def judge(own: Iterable[tuple[Key, bytes]]) -> Iterator[Any]:
            return judge_streams(own, numbers.value, context.value, tables)

        return _by_stream(self._records, self._partitions).mapPartitions(judge)

    def enqueued_by(self, times: Collection[int | None], total: Summary) -> dict[int | None, int]:
        """The numbers of messages that were enqueued by some times; none by None."""
        found = {us: 0 if us is None else total.enqueued for us in times}
        earlier = sorted(us for us in times if us is not None and us < total.latest_us)
        if earlier:
            numbers, context = self._numbers, self._context

            def count(own: Iterable[tuple[Key, bytes]]) -> Iterator[list[int]]:
                return count_enqueued(own, numbers.value, context.value, earlier)

            sums = [0] * len(earlier)
            for each in _by_stream(self._records, self._partitions).mapPartitions(count).collect():
                sums = list(map(add, sums, each))
            found |= dict(zip(earlier, sums, strict=True))
        return found


def _fold(spark: SparkSession, plan: Plan) -> RDD[Any]:
    context, found, trust = spark.sparkContext, plan.found, plan.trust
    total = sum(file.size for file in found.files)
    if not found.local:
        return _fold_remote(spark, found, trust)
    share = max(total // max(1, 2 * context.defaultParallelism), _LEAST_CHUNK_BYTES)
    work = list(bundles(chunks(found.files, min(share, _CHUNK_BYTES)), share))

    def read(own: Iterable[list[Chunk]]) -> Iterator[Any]:
        for bundle in own:
            for chunk in bundle:
                yield from fold(chunk, read_file, trust)

    return context.parallelize(work, max(1, len(work))).mapPartitions(read)


def _fold_remote(spark: SparkSession, found: Found, trust: Trust | None) -> RDD[Any]:
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
                yield from fold(chunk, lambda _, data=data: data, trust)  # type: ignore[misc]

    def nothing(own: Iterable[Chunk]) -> Iterator[Any]:
        for chunk in own:
            yield from fold(chunk, lambda _: b"")

    return contents.mapPartitions(read).union(context.parallelize(empty, 1).mapPartitions(nothing))


def _records_of(spark: SparkSession, read: RDD[Any], plan: Plan) -> RDD[Any]:
    """The facts of the checkpoints that are used."""
    numbers = spark.sparkContext.broadcast({each.number for each in plan.placed})
    return read.filter(lambda each: _is_record(each) and each[0][1] in numbers.value)


def _parts(folded: RDD[Any], plan: Plan) -> tuple[list[Placed], list[Damaged], list[StatedIdle], int]:
    """Parts, unusable files, heads, and the number of further copies of segments."""
    placed = list(plan.placed)
    damaged = [
        Damaged(path, path.rpartition("/")[2], owner_of(path), f"not a file: {what}")
        for path, what in plan.found.odd
    ]
    damaged += plan.damaged
    checkpoints = {(each.part.role, each.part.client): each for each in placed if is_checkpoint(each.path)}
    collected = folded.filter(_is_no_record).collect()
    if plan.trust is not None:
        collected = list(_without_unsigned(collected, placed, plan.trust))
    known = {(each.part.role, each.part.client, digest) for each in placed for digest in each.part.digests}
    duplicated = plan.duplicated
    for each in sorted(
        (each for each in collected if isinstance(each, Placed)), key=lambda each: each.number
    ):
        digests = {(each.part.role, each.part.client, digest) for digest in each.part.digests}
        if digests <= known:
            duplicated += len(digests)
            continue
        used = checkpoints.get((each.part.role, each.part.client))
        if used is not None and each.part.first_lsn <= used.part.last_lsn:  # else it was compared before
            why = compacted.outside(used.name)
            damaged.append(Damaged(each.path, each.name, owner_of(each.path), why))
            continue
        known |= digests
        placed.append(each)
    damaged += [each for each in collected if isinstance(each, Damaged)]
    heads = [each for each in collected if isinstance(each, StatedIdle)]
    return placed, damaged, heads, duplicated


def _without_unsigned(collected: Iterable[Any], kept: Iterable[Placed], trust: Trust) -> Iterator[Any]:
    """What was collected, where segments and heads are damaged that are not signed and not accepted nevertheless."""
    found = list(collected)
    parts: dict[Owner, list[Part]] = defaultdict(list)
    for each in (*kept, *found):
        if isinstance(each, Placed):
            parts[each.part.role, each.part.client].append(each.part)
    used = {
        owner: accepted(own, trust.accepts_unsigned(*owner)) & unsigned_in(own)
        for owner, own in parts.items()
    }
    for each in found:
        path = None
        if isinstance(each, Placed):
            if not used[each.part.role, each.part.client].issuperset(each.part.unsigned):
                path = each.path
        elif isinstance(each, UnsignedHead):
            if each.head.digest in used.get((each.head.role, each.head.client), ()):
                continue  # it is a remnant, and states nothing
            path = each.path
        yield each if path is None else Damaged(path, path.rpartition("/")[2], owner_of(path), NOT_SIGNED)


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
