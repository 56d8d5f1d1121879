"""Reads and writes the state of audits (:mod:`reliamsg.audit.kept`) with Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec
from pyspark import RDD
from pyspark.sql import SparkSession

from reliamsg.audit.fold import Fact
from reliamsg.audit.joining import Seam, join_facts
from reliamsg.audit.kept import Kept, KeptFile, Merge, Record, merges, read_facts, write_facts
from reliamsg.audit.lineage import Placed
from reliamsg.audit.tasks import partition_of
from reliamsg.audit.windows import Audited

__all__ = ["keep", "kept_records"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Fact]).decode


def kept_records(spark: SparkSession, kept: Kept, placed: Sequence[Placed]) -> RDD[Any]:
    """The facts of the parts that are kept and stay valid."""
    files, directory = kept.facts, kept.place
    numbers = spark.sparkContext.broadcast({each.number for each in placed})

    def read(own: Iterable[KeptFile]) -> Iterator[Record]:
        for file in own:
            yield from read_facts(directory, file, numbers.value)

    return spark.sparkContext.parallelize(files, max(1, len(files))).mapPartitions(read)


def keep(
    spark: SparkSession, kept: Kept, records: RDD[Any], placed: Sequence[Placed], audited: Audited
) -> None:
    """Keep the result of an audit, and these parts, of which `records` has the facts, and no others."""
    known = {each.number for each in kept.placed}
    lowest = min([0, *known])
    new = [each for each in placed if each.number not in known]
    if not new and len(placed) == len(known):
        kept.note(audited)
        return
    if kept.is_scattered or len(placed) - len(new) < len(known):
        merged = merges(placed, lowest)
        files = _write(kept, _joined(spark, records, merged))
        kept.commit([each.placed for each in merged], files, audited, anew=True)
        return
    renumbered = {each.number: lowest - 1 - place for place, each in enumerate(new)}
    wanted = spark.sparkContext.broadcast(renumbered)

    def renumber(own: Iterable[Record]) -> Iterator[Record]:
        for (stream, number), data in own:
            if number in wanted.value:
                yield (stream, wanted.value[number]), data

    files = _write(kept, records.mapPartitions(renumber))
    stayed = [each for each in placed if each.number in known]
    added = [replace(each, number=renumbered[each.number]) for each in new]
    kept.commit([*stayed, *added], files, audited, anew=False)


def _write(kept: Kept, records: RDD[Any]) -> list[KeptFile]:
    """Write records in as many files as there are processors, at most."""
    directory = kept.place
    most = records.context.defaultParallelism
    if records.getNumPartitions() > most:
        records = records.coalesce(most)

    def write(own: Iterable[Record]) -> Iterator[KeptFile]:
        file = write_facts(directory, own)
        if file is not None:
            yield file

    return records.mapPartitions(write).collect()


def _joined(spark: SparkSession, records: RDD[Any], merged: Sequence[Merge]) -> RDD[Any]:
    """The facts of all parts of a client, joined."""
    of_number = spark.sparkContext.broadcast({number: each for each in merged for number in each.places})
    seams = spark.sparkContext.broadcast({each.placed.number: each.seams for each in merged})

    def is_wanted(record: Record) -> bool:
        return record[0][1] in of_number.value

    def join(own: Iterable[Record]) -> Iterator[Record]:
        for stream, group in groupby(own, key=lambda record: record[0][0]):
            pieces: dict[int, list[tuple[int, bytes]]] = {}
            for (_, number), data in group:
                merge = of_number.value[number]
                pieces.setdefault(merge.placed.number, []).append((merge.places[number], data))
            for number, parts in pieces.items():
                yield (stream, number), _join(sorted(parts), seams.value[number])

    partitions = records.context.defaultParallelism
    return (
        records.filter(is_wanted)
        .repartitionAndSortWithinPartitions(partitions, partition_of)
        .mapPartitions(join)
    )


def _join(parts: Sequence[tuple[int, bytes]], seams: Sequence[Seam]) -> bytes:
    """The facts of one stream, by part. A part without any changes nothing."""
    (_, first), *others = parts
    found = _decode(first)
    for place, data in others:
        found = join_facts(found, _decode(data), seams[place - 1])
    return _encode(found)
