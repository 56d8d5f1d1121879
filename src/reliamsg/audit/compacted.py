"""Lets the audit use checkpoints instead of the segments that they list.

Every checkpoint is read once, by a task, which checks it and hands over its facts. The driver checks signatures, and
decides by digests and names of segments which checkpoints are used: docs/reference/audit.md, "Checkpoints".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession

from reliamsg.audit.checkpoint import Checkpoint, read_checkpoint
from reliamsg.audit.fold import Part, StreamName
from reliamsg.audit.lineage import Damaged, Placed
from reliamsg.audit.segment import SegmentName, is_head, owner_of, parse_segment_name
from reliamsg.audit.signed import CHECKPOINT, Signature, signature_problem
from reliamsg.audit.sources import File, Found, read_checkpoint_file
from reliamsg.keys import KeyRing

__all__ = ["Checked", "Checkpoints", "check", "choose", "outside", "read_checkpoints"]

UNVERIFIED = "whether segments in it were signed is unknown: --journal-keys needs --checkpoint-keys"
FIRST = 1 << 61
"""The number of the first checkpoint's part; those of segments are lower, those that are kept negative."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A checkpoint that was read."""

    number: int
    path: str
    problem: str | None = None
    part: Part | None = None
    streams: int = 0
    header: bytes = b""
    signature: Signature | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def digests(self) -> list[str]:
        return [] if self.part is None else self.part.digests

    @property
    def last_lsn(self) -> int:
        return 0 if self.part is None else self.part.last_lsn

    def placed(self) -> Placed:
        """It as a part of its client."""
        assert self.part is not None  # only valid ones are used
        directory = self.path.rpartition("/")[0]
        return Placed(self.number, self.part, directory, self.name, self.path, self.streams)


@dataclass(slots=True)
class Checkpoints:
    """All checkpoints."""

    valid: dict[tuple[str, str], list[Checked]] = field(default_factory=dict)
    """By client."""
    damaged: list[Damaged] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.valid.values()))


def read_checkpoints(spark: SparkSession, found: Found) -> RDD[Any]:
    """Read all checkpoints: records, as segments are folded to, and a :class:`Checked` for each."""
    context = spark.sparkContext
    files = sorted(found.checkpoints, key=lambda each: (-each.size, each.path))
    numbered = {file.path: FIRST + number for number, file in enumerate(files)}
    if found.local or not files:
        count = max(1, min(len(files), 4 * context.defaultParallelism))
        work = context.parallelize([files[start::count] for start in range(count)], count)

        def read(own: Iterable[Sequence[File]]) -> Iterator[Any]:
            for file in (file for bundle in own for file in bundle):
                yield from _read(numbered[file.path], file.path, read_checkpoint_file(file.path))

        return work.mapPartitions(read)
    contents = context.binaryFiles(
        ",".join(path.replace(",", "\\,") for path in numbered), context.defaultParallelism
    )
    empty = context.parallelize([file.path for file in files if not file.size], 1)

    def read_remote(own: Iterable[tuple[str, bytes]]) -> Iterator[Any]:
        for path, data in own:
            if path in numbered and data:
                yield from _read(numbered[path], path, data)

    def read_empty(own: Iterable[str]) -> Iterator[Any]:
        for path in own:
            yield from _read(numbered[path], path, b"")

    return contents.mapPartitions(read_remote).union(empty.mapPartitions(read_empty))


def _read(number: int, path: str, data: bytes) -> Iterator[tuple[tuple[StreamName, int], bytes] | Checked]:
    found = read_checkpoint(path, data)
    if not isinstance(found, Checkpoint):
        yield Checked(number, path, found)
        return
    for stream, facts in found.facts:
        yield (stream, number), facts
    yield Checked(number, path, None, found.part, len(found.facts), found.header, found.signature)


def check(every: Iterable[Checked], keys: KeyRing | None, *, required: bool = False) -> Checkpoints:
    """Separate the valid ones from the others. `required`: without keys, none is valid, since segments that nobody has
    verified could hide in them."""
    found = Checkpoints()
    for each in sorted(every, key=lambda each: each.path):
        problem = each.problem or signature_problem(each.header, each.signature, keys, CHECKPOINT)
        if problem is None and keys is None and required:
            problem = UNVERIFIED
        if problem is not None or each.part is None:
            found.damaged.append(Damaged(each.path, each.name, owner_of(each.path), problem or ""))
        else:
            found.valid.setdefault((each.part.role, each.part.client), []).append(each)
    return found


def outside(checkpoint: str) -> str:
    """Why a segment is not used that is of a client with a checkpoint, but not in the client's directory."""
    return (
        f"it forks off before the end of {checkpoint}, and is not in the client's directory, so its rows aren't"
        " compared"
    )


def choose(
    found: Found, valid: Mapping[tuple[str, str], Sequence[Checked]]
) -> tuple[Found, list[Checked], list[Damaged], int]:
    """Decide which checkpoints are used: the files that remain to be read, these checkpoints, what can't be compared
    with them, and the number of further copies of segments that are not read."""
    if not valid:
        return found, [], [], 0
    segments: dict[tuple[str, str], list[tuple[File, SegmentName]]] = defaultdict(list)
    for file in found.files:
        owner = owner_of(file.path)
        name = None if is_head(file.name) else parse_segment_name(file.name)
        if owner in valid and owner is not None and name is not None:
            segments[owner].append((file, name))
    used: list[Checked] = []
    damaged: list[Damaged] = []
    unread: set[str] = set()
    duplicated = 0
    for owner, own in valid.items():
        last, *others = sorted(own, key=lambda each: (-each.last_lsn, each.name))
        covered, forks, present = [], [], set()
        listed = set(last.digests)
        for file, name in segments[owner]:
            present.add(name.digest)
            if name.digest in listed:
                covered.append(file)
            elif name.first_lsn <= last.last_lsn:
                forks.append(file)
        against = [each for each in others if last.digests[: len(each.digests)] != each.digests]
        needed = listed.union(*(each.digests for each in against))
        if (forks or against) and needed <= present:
            continue
        used.append(last)
        unread.update(file.path for file in (*covered, *forks))
        duplicated += len(covered) - len({file.name for file in covered})
        why = f"it forks off before the end of {last.name}, whose segments are gone, so its rows can't be compared"
        paths = {file.name: file.path for file in forks} | {each.name: each.path for each in against}
        damaged += [Damaged(path, name, owner, why) for name, path in sorted(paths.items())]
    files = [file for file in found.files if file.path not in unread]
    return replace(found, files=files), used, damaged, duplicated
