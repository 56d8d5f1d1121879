"""What a fuzz target is: a decoder as a function of bytes, the errors it may raise, and real inputs to start from."""

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
    """A decoder that meets the network or a file. Calling it with bytes raises where there is a defect."""

    name: str
    run: Callable[[bytes], None]
    """Hands the bytes to the decoder, and asserts what must hold of whatever comes out."""
    allowed: tuple[type[Exception], ...]
    """How the decoder says no. Anything else that it raises is a defect."""
    seeds: Callable[[], Sequence[bytes]]
    """Inputs that the encoders of this library made."""
    slow_seconds: int = 10
    """An input that takes longer is a defect."""

    def __call__(self, data: bytes) -> None:
        with contextlib.suppress(*self.allowed):
            self.run(data)


@cache
def scratch() -> Path:
    """A directory of this process's own, gone at its end. In memory where there is such a place, since files are
    written there often, unless ``TMPDIR`` names one."""
    memory = "/dev/shm"
    base = memory if "TMPDIR" not in os.environ and os.access(memory, os.W_OK) else None
    made = tempfile.TemporaryDirectory(prefix="reliamsg-fuzz-", dir=base)
    atexit.register(made.cleanup)
    return Path(made.name)


def edited(template: bytes, edits: bytes) -> bytes:
    """A file with some bytes changed: each four of `edits` say where, in 24 bits, and to what.

    Only what is not zero is changed, since most of a database is empty space.
    """
    places = _places(template)
    found = bytearray(template)
    for at in range(0, len(edits) - 3, 4):
        found[places[int.from_bytes(edits[at : at + 3], "big") % len(places)]] = edits[at + 3]
    return bytes(found)


@cache
def _places(template: bytes) -> list[int]:
    return [place for place, byte in enumerate(template) if byte]
