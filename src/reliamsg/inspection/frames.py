"""Decodes the stored frame of a batch into messages. A damaged frame is a result, not an error."""

from __future__ import annotations

import msgspec

from reliamsg.message import Stream
from reliamsg.wire.data import Envelope, FrameError, open_frame

__all__ = ["DIFFERS", "Claim", "Content", "Decoded", "decode"]

DIFFERS = "the row and its frame differ"


class Claim(msgspec.Struct, frozen=True):
    """The messages that a row claims its frame to contain: `first` to `last` of an epoch of a stream."""

    stream: Stream | None
    """None if the row refers to a stream that does not exist."""
    epoch: int
    first: int
    last: int
    incarnation: str | None = None
    """Hexadecimal; None if the row does not have it."""
    whole: bool = False
    """The frame must not contain further messages."""

    def describes(self, envelope: Envelope) -> bool:
        """Whether a frame with this envelope contains these messages."""
        first, last = envelope.seq, envelope.last
        return (
            (self.stream, self.epoch) == (envelope.stream, envelope.epoch)
            and self.incarnation in (None, f"{envelope.incarnation:016x}")
            and first <= self.first <= self.last <= last
            and (not self.whole or (first, last) == (self.first, self.last))
        )


class Content(msgspec.Struct, frozen=True):
    """A message of a batch."""

    seq: int
    key: str | None
    headers: dict[str, str]
    body: bytes


class Decoded(msgspec.Struct, frozen=True):
    """The messages of a batch."""

    messages: list[Content]
    published_us: tuple[int, int] | None
    """When the first and the last message of the frame were published, by the producer's clock, in µs since 1970."""
    problem: str | None
    """Why there are no messages; None if they were decoded."""


def decode(data: bytes, claim: Claim) -> Decoded:
    """Decode the messages that a row claims to have. Takes up to a few times the size of the frame in memory."""
    try:
        frame = open_frame(data)
        envelope = frame.envelope
        if not claim.describes(envelope):
            return Decoded([], None, DIFFERS)
        records = frame.records(trusted=True)
    except FrameError as error:
        return Decoded([], None, str(error))
    start = claim.first - envelope.seq
    found = []
    for at in range(start, start + claim.last - claim.first + 1):
        key = None if records.keys is None else records.keys[at]
        headers = None if records.headers is None else records.headers[at]
        found.append(Content(envelope.seq + at, key, headers or {}, records.bodies[at]))
    return Decoded(found, (envelope.ts_first, envelope.ts_last), None)
