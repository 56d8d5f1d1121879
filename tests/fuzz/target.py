"""A fuzz target: a decoder as a function of bytes, the errors that it may raise, and real inputs as seeds."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Target", "edited", "scratch"]


@dataclass(frozen=True)
class Target:
    """A decoder of data from the network or a file. Calling it with bytes raises if there is a defect."""

    name: str
    run: Callable[[bytes], None]
    """Passes the bytes to the decoder, and asserts what must hold of any result."""
    allowed: tuple[type[Exception], ...]
    """The errors by which the decoder may refuse. Any other error is a defect."""
    seeds: Callable[[], Sequence[bytes]]
    """Inputs from this library's encoders."""
    slow_seconds: int = 10
    """An input that takes longer is a defect."""

    def __call__(self, data: bytes) -> None:
        with contextlib.suppress(*self.allowed):
            self.run(data)


@cache
def scratch() -> Path:
    """A temporary directory of this process. In memory if possible, since files are written there often, unless
    ``TMPDIR`` names one."""
    memory = "/dev/shm"
    base = memory if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) else None
    made = tempfile.TemporaryDirectory(prefix="reliamsg-fuzz-", dir=base)
    atexit.register(made.cleanup)
    return Path(made.name)


def edited(template: bytes, edits: bytes) -> bytes:
    """A file with some changed bytes: each four bytes of `edits` are an offset of 24 bits, and the new value.

    Only non-zero bytes are changed, since most of a database is empty space.
    """
    places = _places(template)
    found = bytearray(template)
    for at in range(0, len(edits) - 3, 4):
        found[places[int.from_bytes(edits[at : at + 3], "big") % len(places)]] = edits[at + 3]
    return bytes(found)


@cache
def _places(template: bytes) -> list[int]:
    return [place for place, byte in enumerate(template) if byte]
