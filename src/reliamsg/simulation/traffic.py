"""The traffic at brokers: its messages, for the judge, and captured frames, for the attacker."""

from __future__ import annotations

from typing import Protocol

from reliamsg.message import MessageId
from reliamsg.simulation.trace import Trace
from reliamsg.transport.base import Delivery, Outgoing
from reliamsg.wire.data import CONTENT_TYPE, Frame, FrameError, open_frame
from reliamsg.wire.plain import decode_plain, is_plain

__all__ = ["Traffic", "Witness"]

CAPTURED = 40
"""How many frames of each kind an attacker remembers."""


class Witness(Protocol):
    """Is notified of the traffic at brokers."""

    def seen(self, message: MessageId, opening: int, body: bytes, *, orphaned: bool = False) -> None:
        """A producer sent this message. `opening`: the incarnation of its opening, as in all other methods.
        `orphaned`: over a connection that it no longer has."""

    def confirmed_at(self, site: str, message: MessageId, opening: int) -> None:
        """A broker confirmed this message."""

    def released_at(self, site: str, group: str, message: MessageId, opening: int) -> None:
        """A group's consumer acknowledged this message to a broker."""


class Traffic:
    """Decodes the traffic at brokers, notifies the witness, and captures frames."""

    def __init__(self, witness: Witness, trace: Trace) -> None:
        self.frames: list[tuple[str, bytes]] = []
        """Captured data frames, with their topics."""
        self.control_frames: list[tuple[str, bytes]] = []
        """Captured control frames, with their addresses."""
        self._witness = witness
        self._trace = trace
        self._decoded: dict[tuple[bytes, tuple[object, ...]], tuple[list[MessageId], Frame] | None] = {}

    def published(self, site: str, message: Outgoing, *, orphaned: bool) -> None:
        """A producer's message arrived at a broker. `orphaned`: over a connection that it no longer has."""
        if len(self.frames) < CAPTURED and message.content_type == CONTENT_TYPE:
            self.frames.append((message.topic, message.body))
        found = self._decode(message)
        if found is None:
            return
        messages, frame = found
        if self._trace.keeps:
            self._trace.note("network", site, f"receives {message.message_id} ({frame.envelope.count})")
        for identity, body in zip(messages, frame.records().bodies, strict=False):
            self._witness.seen(identity, frame.envelope.incarnation, body, orphaned=orphaned)

    def confirmed(self, site: str, message: Outgoing) -> None:
        """A broker confirms a message."""
        found = self._decode(message)
        if found is not None:
            messages, frame = found
            for identity in messages:
                self._witness.confirmed_at(site, identity, frame.envelope.incarnation)

    def acknowledged(self, site: str, group: str, delivery: Delivery) -> None:
        """A consumer acknowledged a delivery."""
        found = self._decode(delivery)
        if found is not None:
            messages, frame = found
            for identity in messages:
                self._witness.released_at(site, group, identity, frame.envelope.incarnation)

    def capture(self, address: str, body: bytes) -> None:
        """A control frame passed."""
        if len(self.control_frames) < CAPTURED:
            self.control_frames.append((address, body))

    # -- decoding -------------------------------------------------------------------------------------------

    def messages(self, delivery: Delivery) -> list[MessageId]:
        """The messages in a delivery; none if it is damaged."""
        found = self._decode(delivery)
        return [] if found is None else found[0]

    def frame(self, sent: Outgoing | Delivery) -> Frame | None:
        """The batch in a broker message; None if it is damaged."""
        found = self._decode(sent)
        return None if found is None else found[1]

    def repair(self, body: bytes) -> Frame | None:
        """The batch in a repair that is sent to one group; None if it is damaged."""
        return _open(body, None)

    def _decode(self, sent: Outgoing | Delivery) -> tuple[list[MessageId], Frame] | None:
        # Cached: the same message passes several times at several sites.
        key = sent.body, tuple((sent.headers or {}).items())
        if key not in self._decoded:
            frame = _open(sent.body, sent.headers)
            self._decoded[key] = None if frame is None else (_identities(frame), frame)
        return self._decoded[key]


def _open(body: bytes, headers: object) -> Frame | None:
    try:
        found = (
            decode_plain(body, headers)
            if isinstance(headers, dict) and is_plain(headers)
            else open_frame(body)
        )
        return found if found.intact() else None
    except FrameError:
        return None


def _identities(frame: Frame) -> list[MessageId]:
    envelope = frame.envelope
    return [
        MessageId(envelope.producer, envelope.epoch, envelope.topic, envelope.partition, seq)
        for seq in range(envelope.seq, envelope.seq + min(envelope.count, 100_000))
    ]
