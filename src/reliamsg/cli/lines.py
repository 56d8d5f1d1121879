"""Reads lines of a file or of standard input as they arrive, byte for byte."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator

from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import Failure, Status
from reliamsg.config import MAX_MESSAGE_BYTES

__all__ = ["LineReader", "open_input"]

_CHUNK = 256 * 1024


class LineReader:
    """Iterates over lists of lines, those that one read completes, so that lines of a slow writer are not delayed.

    Lines are separated by newlines; the last newline may be missing. Stops at the end of the input or on a stop
    request, and after `size` bytes if that is given. `before` lines precede them in the input.
    """

    def __init__(self, descriptor: int, stop: StopRequest, size: int | None = None, before: int = 0) -> None:
        self._descriptor = descriptor
        self._stop = stop
        self._left = size
        self._before = before
        self.count: int = 0
        """The number of lines returned so far."""

    def __iter__(self) -> Iterator[list[bytes]]:
        rest: list[bytes] = []
        size = 0
        while (data := self._read()) is not None:
            *complete, tail = data.split(b"\n")
            if complete:
                complete[0] = b"".join([*rest, complete[0]])
                rest, size = [], 0
            size += len(tail)
            rest.append(tail)
            # Lines before one that is too long are valid, and are returned first.
            good = next((n for n, line in enumerate(complete) if len(line) > MAX_MESSAGE_BYTES), None)
            yield from self._given(complete[:good])
            if good is not None:
                self._refuse()
            if size > MAX_MESSAGE_BYTES:
                self._refuse()
        last = b"".join(rest)
        if last and not self._stop:
            yield from self._given([last])

    def _read(self) -> bytes | None:
        select.select([self._descriptor, self._stop.fileno()], [], [])
        if self._stop:
            return None
        data = os.read(self._descriptor, _CHUNK if self._left is None else min(_CHUNK, self._left))
        if self._left is not None:
            self._left -= len(data)
        return data or None

    def _given(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        if lines:
            self.count += len(lines)
            yield lines

    def _refuse(self) -> None:
        limit = f"{MAX_MESSAGE_BYTES:,} bytes, the largest message"
        raise Failure(Status.DATA, f"line {self._before + self.count + 1} is longer than {limit}")


@contextlib.contextmanager
def open_input(path: str | None) -> Iterator[int]:
    """Open a file descriptor for reading `path`, or standard input for None or ``-``."""
    if path is None or path == "-":
        yield 0
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Failure(Status.NO_INPUT, f"{path}: {error.strerror}") from None
    try:
        os.read(descriptor, 0)
        yield descriptor
    except IsADirectoryError as error:
        raise Failure(Status.NO_INPUT, f"{path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
