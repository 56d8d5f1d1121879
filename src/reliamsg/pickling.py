"""Pickling of messages, without the connection to their consumer, which is in another process or closed."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

import msgspec

from reliamsg.errors import ClosedError
from reliamsg.message import Message

__all__: list[str] = []


class _Elsewhere:
    """The settler of messages that were pickled."""

    def acknowledge(self, message: Message, durable: bool) -> None:
        raise _not_here(message)

    def reject(self, message: Message, reason: str) -> None:
        raise _not_here(message)

    def failed(self, message: Message, error: BaseException) -> None:
        """Lets the application's exception propagate: it is more specific."""


_ELSEWHERE = _Elsewhere()


def _not_here(message: Message) -> ClosedError:
    return ClosedError(
        f"{message.id} was pickled: acknowledge or reject the message that the consumer delivered, in its process"
    )


def _unpickled(*content: Any) -> Message:
    return msgspec.structs.replace(Message(*content), _settler=_ELSEWHERE)


def _reduce(message: Message) -> tuple[Callable[..., Message], tuple[object, ...]]:
    return _unpickled, message.content()


copyreg.pickle(Message, _reduce)
