"""Messages in pickles: without the way back to their consumer, which is in another process or gone."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

from reliamsg.errors import ClosedError
from reliamsg.message import Message

__all__: list[str] = []


class _Elsewhere:
    """What a message reports to that was pickled."""

    def acknowledge(self, message: Message, durable: bool) -> None:
        raise _not_here(message)

    def reject(self, message: Message, reason: str) -> None:
        raise _not_here(message)

    def failed(self, message: Message, error: BaseException) -> None:
        """The application's own exception goes on: it says more."""


_ELSEWHERE = _Elsewhere()


def _not_here(message: Message) -> ClosedError:
    return ClosedError(
        f"{message.id} was pickled: acknowledge or reject the message that the consumer delivered, in its process"
    )


def _unpickled(*content: Any) -> Message:
    message = Message(*content)
    message._settler = _ELSEWHERE
    return message


def _reduce(message: Message) -> tuple[Callable[..., Message], tuple[object, ...]]:
    return _unpickled, message.content()


copyreg.pickle(Message, _reduce)
