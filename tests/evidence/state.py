"""What has been run: a small file for each chunk that ended, ``PART/HASH/CHUNK.json``, HASH being that of the sources
that decided the outcome. Files of several machines can be copied into one directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.closure import Sources
from tests.evidence.parts import Chunk, Data, Part

__all__ = ["Busy", "Record", "State", "alone"]


class Busy(Exception):
    """Another process is adding to the same results."""


class Record(msgspec.Struct, frozen=True):
    """A chunk that ended."""

    part: str
    chunk: str
    ok: bool
    command: list[str]
    replay: list[str]
    """Commands that repeat what failed."""
    data: Data
    seconds: float
    ended: str
    """When, in UTC."""
    commit: str
    """What was checked out then."""
    log: str
    """A file with the output, on the machine that ran it."""
    output: str = ""
    """The end of the output, if it failed."""


class State:
    """The results of one part at the sources as they are now."""

    def __init__(self, part: Part, root: Path, place: Path | None = None) -> None:
        """`place`: where results are kept; by default in ``build/evidence``."""
        self.part = part
        self._root = root
        self._place = (place or root / "build" / "evidence") / part.name
        self._hashes = self._hash()

    @property
    def hash(self) -> str:
        """Stands for the sources of all chunks."""
        hashes = set(self._hashes.values())
        return (
            hashes.pop() if len(hashes) == 1 else hashlib.sha256(repr(self._hashes).encode()).hexdigest()[:16]
        )

    def _hash(self) -> dict[str, str]:
        sources = Sources(self._root)
        return {chunk.name: chunk.covers(self._root, sources) for chunk in self.part.chunks}

    def fits(self, chunk: Chunk) -> bool:
        """Whether the sources that decide a chunk's outcome are still what they were."""
        return chunk.covers(self._root, Sources(self._root)) == self._hashes[chunk.name]

    def records(self) -> dict[str, Record]:
        """By chunk, what ended. Chunks that this part no longer has don't count."""
        found = {}
        for chunk in self.part.chunks:
            with contextlib.suppress(FileNotFoundError):
                raw = self._file(chunk.name).read_bytes()
                found[chunk.name] = msgspec.json.decode(raw, type=Record)
        return found

    def remaining(self) -> list[Chunk]:
        """Chunks that have not ended, in order."""
        ended = self.records()
        return [chunk for chunk in self.part.chunks if chunk.name not in ended]

    def seconds_each(self) -> float:
        """What a chunk takes: as those that ended did, on average, else as expected."""
        times = [record.seconds for record in self.records().values()]
        return sum(times) / len(times) if times else self.part.seconds

    def log(self, chunk: Chunk) -> Path:
        """Where the output of a chunk goes."""
        logs = self._root / "build" / "evidence" / "logs" / self.part.name
        logs.mkdir(parents=True, exist_ok=True)
        return logs / f"{chunk.name}.log"

    def _file(self, chunk: str) -> Path:
        return self._place / self._hashes[chunk] / f"{chunk}.json"

    def add(self, record: Record) -> None:
        """Keep it. It is there as a whole or not at all, whenever this process or the machine ends."""
        place = self._file(record.chunk)
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f"{place.stem}.{os.getpid()}.new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        new.replace(place)


@contextlib.contextmanager
def alone(root: Path) -> Iterator[int]:
    """Nobody else adds results meanwhile. Raises :class:`Busy`.

    The lock ends with all processes that have its descriptor, however they end. Commands are given it as well: where
    one goes on whose parent was killed, nobody begins the same beside it.
    """
    place = root / "build" / "evidence"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"another process, or a command that one had begun, is still at work in {place}"
            ) from None
        yield file.fileno()
