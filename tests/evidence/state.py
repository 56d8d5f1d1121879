"""What has been run: a file for each chunk that ended, below a directory for the sources that it was run with."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.evidence.parts import Chunk, Data, Part, hash_of

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
    """A file with the output."""


class State:
    """The results of one part at the sources as they are now."""

    def __init__(self, part: Part, root: Path) -> None:
        self.part = part
        self.hash = hash_of(root, part.sources)
        self.directory = root / "build" / "evidence" / part.name / self.hash
        self._root = root

    def fits(self) -> bool:
        """Whether the sources are still what they were."""
        return hash_of(self._root, self.part.sources) == self.hash

    def records(self) -> dict[str, Record]:
        """By chunk, what ended. Chunks that this part no longer has don't count."""
        found = {}
        for chunk in self.part.chunks:
            with contextlib.suppress(FileNotFoundError):
                raw = (self.directory / f"{chunk.name}.json").read_bytes()
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
        self.directory.mkdir(parents=True, exist_ok=True)
        return self.directory / f"{chunk.name}.log"

    def add(self, record: Record) -> None:
        """Keep it. It is there as a whole or not at all, whenever this process or the machine ends."""
        place = self.directory / f"{record.chunk}.json"
        new = place.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
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
