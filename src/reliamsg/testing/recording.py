"""A message that no consumer delivered, and that records what a handler does with it."""

from __future__ import annotations

from typing import Literal

import msgspec

from reliamsg.message import Message, Settler

__all__ = ["Outcome", "RecordingMessage"]

Outcome = Literal["open", "acknowledged", "rejected", "failed"]


class _Recorder:
    """The settler of a message: the first acknowledgement or rejection counts, as with a consumer."""

    __slots__ = ("durable", "error", "outcome", "reason")

    def __init__(self) -> None:
        self.outcome: Outcome = "open"
        self.durable = False
        self.reason: str | None = None
        self.error: BaseException | None = None

    @property
    def settled(self) -> bool:
        return self.outcome in ("acknowledged", "rejected")

    def acknowledge(self, message: Message, durable: bool) -> None:
        if not self.settled:
            self.outcome = "acknowledged"
        self.durable |= durable

    def reject(self, message: Message, reason: str) -> None:
        if not self.settled:
            self.outcome, self.reason = "rejected", reason

    def failed(self, message: Message, error: BaseException) -> None:
        if not self.settled:
            self.outcome, self.error = "failed", error


class RecordingMessage(Message, eq=False, gc=False):
    """A :class:`~reliamsg.Message` for tests of handlers. It records what becomes of it.

    ::

        message = RecordingMessage(body=b"42 widgets", seq=7, redelivered=True)
        handle(message)
        assert message.outcome == "acknowledged"

    All fields are keyword arguments with defaults. It is equal to any message with the same fields.
    """

    _settler: Settler = msgspec.field(default_factory=_Recorder)

    @property
    def outcome(self) -> Outcome:
        """What the handler did first: ``"acknowledged"``, ``"rejected"`` or ``"failed"`` (in ``with
        message.process()``); ``"open"`` if it did nothing. Once it is acknowledged or rejected, that is final."""
        return self._recorder.outcome

    @property
    def durable(self) -> bool:
        """Whether it was acknowledged with ``ack(durable=True)``."""
        return self._recorder.durable

    @property
    def reason(self) -> str | None:
        """The reason of :meth:`~reliamsg.Message.reject`."""
        return self._recorder.reason

    @property
    def error(self) -> BaseException | None:
        """The error with which ``with message.process()`` was left."""
        return self._recorder.error

    @property
    def _recorder(self) -> _Recorder:
        assert isinstance(self._settler, _Recorder)
        return self._settler
