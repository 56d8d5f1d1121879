"""The application under test: how it starts, and how its handler is called."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from reliamsg.arguments import check_callback, unrun
from reliamsg.errors import ConfigError
from reliamsg.message import Message
from reliamsg.simulation.disk import Crash

__all__ = ["Crash", "Handler", "HandlerProcess", "Start", "copy_message", "starter"]

Handler = Callable[[Any], object]
"""Called with a message, or a list of messages."""
Start = Callable[[], Handler]


def starter(handler: Handler | None, start: Start | None) -> Start:
    """What to call when a process starts; raises :class:`ConfigError` unless exactly one of the two is given."""
    if (handler is None) == (start is None):
        raise ConfigError("give a handler, or start=, which returns one")
    if start is not None:
        check_callback("start", start)
        return start
    if not callable(handler):
        raise ConfigError(f"handler is {handler!r}: it must be callable")
    return lambda: handler


def copy_message(message: Message, **changed: Any) -> Message:
    """An ordinary message with the same fields, except for those in `changed`."""
    fields: Any = message.content()
    return msgspec.structs.replace(Message(*fields), **changed)


class HandlerProcess:
    """One life of the application's process."""

    def __init__(
        self, start: Start, make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    ) -> None:
        """`make_loop`: makes the event loop of coroutine functions."""
        self._handler = start()
        if not callable(self._handler):
            raise ConfigError(f"start returned {self._handler!r}: it must return the handler")
        self._make_loop = make_loop
        self._runner: asyncio.Runner | None = None

    def handle(self, argument: Message | Sequence[Message]) -> None:
        """Call the handler; returns when it is done."""
        result = self._handler(argument)
        if inspect.iscoroutine(result):
            if self._runner is None:
                self._runner = asyncio.Runner(loop_factory=self._make_loop)
            self._runner.run(result)
            return
        mistake = unrun("the handler", result)
        if mistake is not None:
            raise mistake

    def end(self) -> None:
        """The process is gone."""
        if self._runner is not None:
            with contextlib.suppress(Exception, Crash):  # what its tasks raise is of no interest any more
                self._runner.close()
            self._runner = None
