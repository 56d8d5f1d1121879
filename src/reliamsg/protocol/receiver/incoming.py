"""What arrives of a stream, as ranges of numbers: the bytes are the caller's."""

from __future__ import annotations

import msgspec

from reliamsg.message import Prev, Stream

__all__ = ["Incoming"]


class Incoming(msgspec.Struct, frozen=True):
    """One verified envelope: numbers `first` to `last` of an epoch."""

    site: str
    """Where it came from."""
    stream: Stream
    epoch: int
    incarnation: int
    prev: Prev | None
    """The epoch before, and its last number; None for a stream's first epoch."""
    first: int
    last: int
    token: object = None
    """Names the delivery to its broker; what a commit releases has it."""
    repair: bool = False
    """It came at the group's own address: no broker waits for its acknowledgement, so `token` is not used."""
    size: int = 0
    """In bytes, where that bounds how much is in memory: of repairs, and of what is replayed."""
    replayed: bool = False
    """It comes from the quarantine, which keeps it as a broker would."""
    ts_us: int = 0
    """The newest timestamp in it, in µs since 1970."""
