"""What happened in a simulated world: a record that a person can read, and what was seen on the way through brokers."""

from __future__ import annotations

from typing import Protocol

from reliamsg.message import MessageId
from reliamsg.simulation.clock import Scheduler
from reliamsg.transport.base import Delivery, Outgoing
from reliamsg.wire.data import CONTENT_TYPE, Frame, FrameError, open_frame
from reliamsg.wire.plain import decode_plain, is_plain

__all__ = ["History", "Witness"]

CAPTURED = 40
"""Frames of each kind that an attacker remembers."""


class Witness(Protocol):
    """Who is told of what passes brokers."""

    def seen(self, message: MessageId, body: bytes, *, orphaned: bool = False) -> None:
        """A producer sent this. `orphaned`: over a connection that it has not any more."""

    def confirmed_at(self, site: str, message: MessageId) -> None:
        """A broker says that it has this."""

    def let_go_at(self, site: str, group: str, message: MessageId) -> None:
        """A group's consumer told a broker that this is safe."""


class History:
    """Records what happens. `lines` are for people; the same seed makes the same lines."""

    def __init__(self, scheduler: Scheduler, witness: Witness, keep: bool) -> None:
        self.lines: list[str] = []
        self.frames: list[tuple[str, bytes]] = []
        """Data frames that an attacker captured, with their topics."""
        self.control: list[tuple[str, bytes]] = []
        """The same of control frames, with their addresses."""
        self._scheduler = scheduler
        self._witness = witness
        self.keeps = keep
        """Whether lines are recorded. What happens all the time need not be put into words where they are not."""
        self._known: dict[tuple[bytes, tuple[object, ...]], tuple[list[MessageId], Frame] | None] = {}

    def note(self, kind: str, who: str, what: str) -> None:
        """Record a line."""
        if self.keeps:
            self.lines.append(f"{self._scheduler.now:10.4f}  {kind:9} {who:10} {what}")

    # -- what passes brokers --------------------------------------------------------------------------------

    def sent(self, site: str, message: Outgoing, *, orphaned: bool) -> None:
        """A producer's message arrived at a broker. `orphaned`: over a connection that it has not any more."""
        if len(self.frames) < CAPTURED and message.content_type == CONTENT_TYPE:
            self.frames.append((message.topic, message.body))
        found = self._messages(message)
        if found is None:
            return
        messages, frame = found
        if self.keeps:
            self.note("network", site, f"gets {message.message_id} ({frame.envelope.count})")
        for identity, body in zip(messages, frame.records().bodies, strict=False):
            self._witness.seen(identity, body, orphaned=orphaned)

    def confirmed(self, site: str, message: Outgoing) -> None:
        """A broker confirms a message."""
        found = self._messages(message)
        for identity in () if found is None else found[0]:
            self._witness.confirmed_at(site, identity)

    def let_go(self, site: str, group: str, delivery: Delivery) -> None:
        """A consumer acknowledged a delivery."""
        found = self._messages(delivery)
        for identity in () if found is None else found[0]:
            self._witness.let_go_at(site, group, identity)

    def _messages(self, sent: Outgoing | Delivery) -> tuple[list[MessageId], Frame] | None:
        """What a broker message holds, where it is sound. Remembered: it passes several times at several sites."""
        key = sent.body, tuple((sent.headers or {}).items())
        if key not in self._known:
            frame = _frame(sent.body, sent.headers)
            self._known[key] = None if frame is None else (_identities(frame), frame)
        return self._known[key]

    def messages(self, delivery: Delivery) -> list[MessageId]:
        """The messages in a delivery, where it is sound."""
        found = self._messages(delivery)
        return [] if found is None else found[0]

    def frame(self, sent: Outgoing | Delivery) -> Frame | None:
        """The batch that a broker message is, where it is sound."""
        found = self._messages(sent)
        return None if found is None else found[1]

    def repair(self, body: bytes) -> Frame | None:
        """The same of what is sent again to a group alone."""
        return _frame(body, None)

    def captured(self, address: str, body: bytes) -> None:
        """A control frame passed."""
        if len(self.control) < CAPTURED:
            self.control.append((address, body))


def _frame(body: bytes, headers: object) -> Frame | None:
    """What a broker message holds, where it is sound."""
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
