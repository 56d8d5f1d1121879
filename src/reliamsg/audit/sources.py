"""Finds and reads segments and heads, in local directories and at URLs that Spark's file systems know."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from reliamsg.audit.checkpoint import MAX_BYTES, is_checkpoint
from reliamsg.audit.directories import listed
from reliamsg.audit.segment import is_head, owner_of, parse_segment_name
from reliamsg.files import empty_directories, irregular, read_regular, special_kind

__all__ = [
    "Chunk", "File", "Found", "bundles", "check_local", "chunks", "find", "read_checkpoint_file",
    "read_file",
]  # fmt: skip

SUFFIX = ".ndjson"


@dataclass(frozen=True, slots=True)
class File:
    """A file whose name ends in ``.ndjson``, or is that of a head."""

    path: str
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class Found:
    """The files below a directory or URL, without hidden ones."""

    files: list[File]
    odd: list[tuple[str, str]] = field(default_factory=list)
    """Paths and descriptions of entries that are not regular files, and are not read."""
    local: bool = True
    """Whether every process of this machine can read them by their paths."""
    place: str = ""
    """The directory or URL, as given."""
    checkpoints: list[File] = field(default_factory=list)
    emptied: set[tuple[str, str]] = field(default_factory=set)
    """Role and name of clients that have an empty directory. Known of local directories only."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Files that one task reads, in this order. Files of one client are in the order of their rows."""

    number: int
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)


_Sized = TypeVar("_Sized", File, Chunk)


def find(spark: SparkSession, journals: str | os.PathLike[str]) -> Found:
    """Find the segments below a directory, or a URL that Spark can read.

    Symbolic links below a local directory are not followed. Raises :class:`FileNotFoundError`, and
    :class:`JournalTargetError` if a local directory can't be read.
    """
    local = check_local(journals)
    found = _find_local(local) if local is not None else _find_remote(spark, os.fspath(journals))
    return replace(found, place=os.fspath(journals))


def check_local(journals: str | os.PathLike[str]) -> str | None:
    """The path on this machine of a path or URL; None for remote URLs, and for patterns. Raises
    :class:`FileNotFoundError` for a local path that does not exist, or is a file without journals."""
    text = os.fspath(journals)
    path = text
    if not os.path.exists(path) and re.match("[A-Za-z][A-Za-z0-9+.-]+:", text) is not None:
        path = unquote(urlsplit(text).path) if text.startswith("file:") else ""
        if not path or not os.path.exists(path):
            return None
    if not os.path.exists(path):
        raise FileNotFoundError(f"{text}: no such directory")
    if not os.path.isdir(path) and not path.endswith(SUFFIX) and not is_checkpoint(os.path.abspath(path)):
        raise FileNotFoundError(
            f"{text}: neither a directory nor a segment (an outbox or inbox: 'reliamsg journal export' it first)"
        )
    return path


def _find_local(root: str) -> Found:
    if not os.path.isdir(root):
        file = File(os.path.abspath(root), os.path.getsize(root))
        return Found(
            [file] if root.endswith(SUFFIX) else [], checkpoints=[file] if is_checkpoint(file.path) else []
        )
    files, checkpoints = [], []
    for directory, entries in listed(root):
        for name in entries:
            path = os.path.join(directory, name)
            if (name.endswith(SUFFIX) and not name.startswith((".", "_"))) or is_head(name):
                state = os.lstat(path)
                if special_kind(state.st_mode) is None:
                    files.append(File(os.path.abspath(path), state.st_size))
            elif is_checkpoint(os.path.abspath(path)):
                state = os.lstat(path)
                if special_kind(state.st_mode) is None:
                    checkpoints.append(File(os.path.abspath(path), state.st_size))
    heads = [odd for odd in irregular(root, (".json",)) if is_head(os.path.basename(odd[0]))]
    others = [odd for odd in irregular(root, (".parquet",)) if is_checkpoint(os.path.abspath(odd[0]))]
    odd = sorted({*irregular(root, (SUFFIX,)), *heads, *others})
    empty = {owner_of(f"{os.path.abspath(directory)}/") for directory in empty_directories(root)}
    return Found(
        files, [(os.path.abspath(path), what) for path, what in odd], checkpoints=checkpoints,
        emptied={owner for owner in empty if owner is not None},
    )  # fmt: skip


def _find_remote(spark: SparkSession, url: str) -> Found:
    java = spark.sparkContext._jvm
    assert java is not None  # of a running session
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    root = java.org.apache.hadoop.fs.Path(url)
    system = root.getFileSystem(configuration)
    roots = system.globStatus(root)
    if not roots:
        raise FileNotFoundError(f"{url}: there are no such journals")
    files, checkpoints = [], []
    for status in roots:
        base = status.getPath().toString()
        found = system.listFiles(status.getPath(), True)
        while found.hasNext():
            each = found.next()
            path = each.getPath().toString()
            below = path.removeprefix(base).strip("/")
            hidden = any(part.startswith((".", "_")) for part in below.split("/"))
            if (path.endswith(SUFFIX) or is_head(path.rpartition("/")[2])) and not hidden:
                files.append(File(path, each.getLen()))
            elif is_checkpoint(path) and not hidden:
                checkpoints.append(File(path, each.getLen()))
    return Found(files, local=False, checkpoints=checkpoints)


def read_file(path: str) -> bytes:
    """The content of a local file."""
    return read_regular(path)


def read_checkpoint_file(path: str) -> bytes:
    """The content of a local checkpoint; of one that is too large, a beginning that is also too large."""
    return read_regular(path, MAX_BYTES + 1)


def chunks(files: Iterable[File], most_bytes: int) -> list[Chunk]:
    """Divide files among tasks: consecutive segments of a client stay together, up to about `most_bytes`.

    The names of segments tell their order. A client whose file was copied has two segments that begin with the same
    row; each segment of such a client is read separately, because its histories share some of them. Segments outside
    the directories of clients may be of any client. Further copies of a segment are read separately, too.
    """
    by_client: dict[tuple[str, str], list[tuple[int, File]]] = defaultdict(list)
    alone: list[File] = []
    known: set[str] = set()
    for file in sorted(files, key=lambda each: each.path):
        owner, name = owner_of(file.path), parse_segment_name(file.name)
        if owner is None or name is None or file.name in known:
            alone.append(file)
        else:
            known.add(file.name)
            by_client[owner].append((name.first_lsn, file))
    found: list[tuple[File, ...]] = []
    strays = {
        name.first_lsn for file in alone if file.name not in known and (name := parse_segment_name(file.name))
    }
    for own in by_client.values():
        own.sort(key=lambda each: (each[0], each[1].name))
        starts = {first_lsn for first_lsn, _ in own}
        if len(starts) < len(own) or starts & strays:
            found += [(file,) for _, file in own]
        else:
            found += map(tuple, bundles((file for _, file in own), most_bytes))
    found += [(file,) for file in alone]
    return [Chunk(number, own) for number, own in enumerate(found)]


def bundles(every: Iterable[_Sized], most_bytes: int) -> Iterator[list[_Sized]]:
    """Consecutive ones together, up to `most_bytes`; at least one each."""
    own: list[_Sized] = []
    size = 0
    for each in every:
        if own and size + each.size > most_bytes:
            yield own
            own, size = [], 0
        own.append(each)
        size += each.size
    if own:
        yield own
