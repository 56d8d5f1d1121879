"""What was published under one identity: one message, or one of each opening that happened to have the same epoch."""

from __future__ import annotations

__all__ = ["Bodies"]


class Bodies:
    """Bodies by opening. Two openings of copies of an outbox may have the same epoch; groups distinguish them by their
    incarnations (E5), and applications receive messages of one of them."""

    __slots__ = ("_delivered", "_sent")

    def __init__(self) -> None:
        self._sent: dict[int, bytes] = {}
        """By incarnation."""
        self._delivered: bytes | None = None

    def sent(self, opening: int, body: bytes) -> bytes | None:
        """The opening with this incarnation sent a message. Returns another body that it sent with this identity, if
        there is any."""
        before = self._sent.setdefault(opening, body)
        return None if before == body else before

    def delivered(self, body: bytes) -> bytes | None:
        """A group received a message. Returns what it should have been, if it is another one."""
        if self._delivered is None and (body in self._sent.values() or not self._sent):
            self._delivered = body
        expected = self.of(None)
        return None if expected == body else expected

    def of(self, opening: int | None) -> bytes:
        """The body that an opening sent. None, or an unknown opening: the one that a group received, or else the first
        that was sent."""
        if opening in self._sent:
            return self._sent[opening]
        return next(iter(self._sent.values())) if self._delivered is None else self._delivered
