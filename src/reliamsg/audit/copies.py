"""Histories that are an older state of another one, such as the segments of a backup: they prove nothing alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession

from reliamsg.audit.checkpoint import is_checkpoint
from reliamsg.audit.lineage import Histories
from reliamsg.audit.segment import Line, read_segment
from reliamsg.audit.sources import Found, read_file

__all__ = ["older_copies"]

_Row = tuple[str, int]
"""The boot and number of a row."""


def older_copies(spark: SparkSession, known: Histories, found: Found) -> None:
    """Remove the histories of which another one of the client contains every row, unchanged or extended.

    Only clients with several histories are concerned, and only the segments that these do not share are read again, on
    the driver.
    """
    by_client: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in known.journals:
        by_client[each.role, each.client].append(each.name)
    dropped: set[str] = set()
    for names in by_client.values():
        if len(names) > 1:
            dropped.update(_copies(spark, known, names, found))
    if dropped:
        known.journals[:] = [each for each in known.journals if each.name not in dropped]
        for name in dropped:
            del known.numbers[name]


def _copies(spark: SparkSession, known: Histories, names: Sequence[str], found: Found) -> Iterator[str]:
    shared = set.intersection(*(set(known.numbers[name]) for name in names))
    rows = {
        name: {
            (line.boot, line.lsn): (line.kind, line.first, line.last)
            for number in known.numbers[name] if number not in shared
            if not is_checkpoint(known.paths[number])
            for line in _lines(spark, known.paths[number], found)
        }
        for name in names
    }  # fmt: skip
    # The rows that a checkpoint covers are not read: nothing has all of them.
    compacted = {
        name for name in names
        if any(is_checkpoint(known.paths[number]) for number in known.numbers[name] if number not in shared)
    }  # fmt: skip
    kept: list[str] = []
    # The longest first; of two equal ones, the first by name stays.
    for name in sorted(names, key=lambda name: (name not in compacted, -len(rows[name]), name)):
        if name not in compacted and any(_is_older(rows[name], rows[other]) for other in kept):
            yield name
        else:
            kept.append(name)


def _is_older(own: dict[_Row, tuple[str, int, int]], other: dict[_Row, tuple[str, int, int]]) -> bool:
    for row, (kind, first, last) in own.items():
        twin = other.get(row)
        if twin is None or twin[:2] != (kind, first) or twin[2] < last:
            return False
    return True


def _lines(spark: SparkSession, path: str, found: Found) -> list[Line]:
    segment = read_segment(path, read_file(path) if found.local else _read_remote(spark, path))
    return segment.lines or [] if segment is not None else []


def _read_remote(spark: SparkSession, path: str) -> bytes:
    data: bytes = spark.sparkContext.binaryFiles(path.replace(",", "\\,")).values().first()
    return data
