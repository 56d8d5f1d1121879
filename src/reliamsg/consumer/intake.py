"""Examines deliveries: each is a batch in one of its two forms, a message without identity, or unusable.

Nothing here changes any state. Limits are checked before anything is decoded. With a key ring, frames that are not
signed with one of its keys are rejected before anything in them is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reliamsg.keys import KeyRing
from reliamsg.store.quarantine import LATER_VERSION
from reliamsg.transport.base import Delivery
from reliamsg.wire import plain
from reliamsg.wire.address import topic_address
from reliamsg.wire.data import (
    BODY_VERSION,
    CONTENT_TYPE,
    FLAG_ZSTD,
    KNOWN_FLAGS,
    MAGIC,
    Frame,
    FrameError,
    open_frame,
    verify,
)

__all__ = [
    "UNREADABLE", "Forms", "LaterVersion", "Rejected", "Unsequenced", "examine", "examine_repair", "installed_forms",
]  # fmt: skip

UNREADABLE = "unreadable"
"""The reason for rejecting a sound batch in a form that is unknown here: it is compressed with zstd and the extra is
not installed, or its producer has a later version. It must not be lost: a better installation can read it."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of a batch's body that an installation can read."""

    version: int = BODY_VERSION
    flags: int = KNOWN_FLAGS
    magic: bytes = MAGIC
    """The latest version of the whole format."""

    def include(self, frame: Frame) -> bool:
        """Whether the body of a frame is in one of them."""
        return frame.envelope.version == self.version and not frame.envelope.flags & ~self.flags

    def precede(self, data: bytes) -> bool:
        """Whether data is a batch in a later version of the whole format, as far as its first bytes tell."""
        return data[:3] == self.magic[:3] and self.magic[3:] < data[3:4] <= b"9"


def installed_forms() -> Forms:
    """What this installation can read, with or without the extra ``zstd``."""
    try:
        import zstandard  # noqa: F401  (an extra)
    except ImportError:
        return Forms(flags=KNOWN_FLAGS & ~FLAG_ZSTD)
    return Forms()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A delivery that can't be used."""

    reason: str
    """One of a few fixed words."""
    frame: Frame | None = None
    """Its envelope, where that is sound: then it is known which messages the delivery would have held."""


@dataclass(frozen=True, slots=True)
class LaterVersion:
    """A batch in a later version of the whole format: its messages are unknown."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Unsequenced:
    """A message of an ordinary client, without our identity."""

    topic: str
    partition: int


def examine(
    delivery: Delivery,
    topics: Mapping[str, tuple[str, int]],
    limit: int,
    ring: KeyRing | None = None,
    forms: Forms = Forms(),
) -> Frame | LaterVersion | Unsequenced | Rejected:
    """Decide what a delivery is; `limit` is in bytes, `topics` holds (topic, partition) by address. With a `ring` only
    signed deliveries are used. `forms`: what can be read.

    A sound frame is taken whether or not it is marked as retained: some brokers mark whatever waited for an
    absent session, and a frame that really was retained is a duplicate at worst. Nothing else can tell.
    """
    place = topics.get(delivery.address)
    if len(delivery.body) > limit:
        return Rejected("oversized")
    # The body of a plain message is the application's: it may begin like a batch. Not all protocols have content types.
    in_plain = delivery.content_type != CONTENT_TYPE and plain.is_plain(delivery.headers)
    if not in_plain and forms.precede(delivery.body):
        return Rejected("wrong-topic") if place is None else LaterVersion(*place)
    try:
        if not in_plain and (delivery.content_type == CONTENT_TYPE or delivery.body[:3] == MAGIC[:3]):
            frame = open_frame(delivery.body, limit)
            if ring is not None:
                _verify(frame, ring)
        elif delivery.damaged is not None:
            return Rejected("damaged")
        elif in_plain:
            frame = plain.decode_plain(delivery.body, delivery.headers, limit, ring)
        elif delivery.retained:
            return Rejected("retained")
        elif ring is not None:
            return Rejected("unsigned")
        else:
            return Rejected("wrong-topic") if place is None else Unsequenced(*place)
    except FrameError as error:
        return Rejected(error.reason)
    if place != (frame.envelope.topic, frame.envelope.partition):
        return Rejected("wrong-topic")
    return _check_body(frame, forms)


def examine_repair(
    body: bytes,
    topics: Mapping[str, tuple[str, int]],
    limit: int,
    ring: KeyRing | None = None,
    forms: Forms = Forms(),
) -> Frame | Rejected:
    """The same for a batch that a producer resent, to the group's own control address."""
    if len(body) > limit:
        return Rejected("oversized")
    if forms.precede(body):
        return Rejected(LATER_VERSION)
    try:
        frame = open_frame(body, limit)
        if ring is not None:
            _verify(frame, ring)
    except FrameError as error:
        return Rejected(error.reason)
    if (frame.envelope.topic, frame.envelope.partition) not in topics.values():
        return Rejected("wrong-topic")
    return _check_body(frame, forms)


def _check_body(frame: Frame, forms: Forms) -> Frame | Rejected:
    if not frame.intact():
        return Rejected("undecodable", frame)
    return frame if forms.include(frame) else Rejected(UNREADABLE, frame)


def _verify(frame: Frame, ring: KeyRing) -> None:
    """Check a frame's signature. Its address is compared by the caller."""
    if not frame.intact():
        # The signature is over the body's bytes: without them nothing tells whose envelope it is.
        raise FrameError("corrupt", "the body's checksum does not match")
    verify(frame, topic_address(frame.envelope.topic, frame.envelope.partition), ring)
