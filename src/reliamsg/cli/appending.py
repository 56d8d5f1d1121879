"""``sub --resume``: appends lines to a file, and recognizes the messages that it has already written.

A consumer delivers at least once: what was written, but not acknowledged durably before the process died, is delivered
again, flagged as redelivered. A file beside the output, ``FILE.resume``, is therefore replaced before lines are
written. It has the size of the output by then, the latest written message of each stream, and the messages that come
now, with the sizes of their lines. So after any end, the size of the output tells which of these were written
completely.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from reliamsg.cli.resume_file import ResumeFile
from reliamsg.cli.status import Failure, Status
from reliamsg.message import Message

__all__ = ["AppendedFile"]

_Stream = tuple[str, str, int]
_Place = tuple[str, str, int, int, int]
"""Producer, topic, partition, epoch and sequence number."""


class _Written(msgspec.Struct, frozen=True):
    group: str
    size: int
    """Of the output, before the lines of `next` were written."""
    latest: list[_Place]
    """The latest message of each stream in this part of the output."""
    next: list[tuple[_Place, int]]
    """The messages that were about to be written, and the sizes of their lines in bytes."""


class AppendedFile:
    """An output file, created if it does not exist. Use it as a context manager.

    Raises :class:`Failure` where the file is not as the latest run left it.
    """

    def __init__(self, path: str, group: str, line: Callable[[Message], bytes]) -> None:
        self._path, self._group, self._line = path, group, line
        self._beside = ResumeFile(path, _Written)
        self._latest: dict[_Stream, tuple[int, int]] = {}
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._size = self._recover()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> AppendedFile:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)

    def append(self, messages: Sequence[Message]) -> int:
        """Write those that are not in the file, durably; returns their number."""
        fresh = [message for message in messages if not self._has(message)]
        if not fresh:
            return 0
        lines = [self._line(message) for message in fresh]
        self._save([(_place(m), len(line)) for m, line in zip(fresh, lines, strict=True)])
        data = b"".join(lines)
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)
        self._size += sum(map(len, lines))
        for message in fresh:
            self._add(_place(message))
        return len(fresh)

    def _has(self, message: Message) -> bool:
        """Whether it was written: only what is flagged can have been. Replayed dead letters are wanted again."""
        latest = self._latest.get((message.producer, message.topic, message.partition))
        return (
            message.redelivered
            and not message.replayed
            and latest is not None
            and (message.epoch, message.seq) <= latest
        )

    def _add(self, place: _Place) -> None:
        stream, position = place[:3], place[3:]
        self._latest[stream] = max(position, self._latest.get(stream, position))

    def _recover(self) -> int:
        """Read what was written, and remove an incomplete line. Returns the size of the output."""
        size = os.fstat(self._descriptor).st_size
        found = self._beside.load()
        if found is None:
            return size
        if found.group != self._group:
            raise Failure(
                Status.DATA, f"{self._path}: has the messages of group {found.group}: use another file"
            )
        if not found.size <= size <= found.size + sum(length for _, length in found.next):
            raise Failure(
                Status.DATA,
                f"{self._path}: was changed since the latest run; to begin a new file, move it and"
                f" {self._beside.path} away",
            )
        for place in found.latest:
            self._add(place)
        end = found.size
        for place, length in found.next:
            if end + length > size:
                os.ftruncate(self._descriptor, end)
                break
            self._add(place)
            end += length
        return end

    def _save(self, following: list[tuple[_Place, int]]) -> None:
        latest = [(*stream, *position) for stream, position in self._latest.items()]
        self._beside.save(_Written(self._group, self._size, latest, following))


def _place(message: Message) -> _Place:
    return message.producer, message.topic, message.partition, message.epoch, message.seq
