"""Opening and closing a blocking client beside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from reliamsg.aio.loop import LoopCalls, in_thread
from reliamsg.arguments import check_callback
from reliamsg.errors import ClosedError

__all__ = ["Opening"]


class Blocking(Protocol):
    """A blocking client."""

    def close(self, timeout: float = ...) -> object:
        """Close it within `timeout` seconds."""


Client = TypeVar("Client", bound=Blocking)
Remaining = TypeVar("Remaining")
OnError = Callable[[BaseException], object]


class Opening(Generic[Client, Remaining]):
    """A blocking client that is opened once, in the event loop that it belongs to from then on, and closed once."""

    def __init__(self, kind: str, make: Callable[..., Client], on_error: OnError | None) -> None:
        """`make`: the client's constructor, with all arguments but ``on_error``."""
        self._kind, self._make, self._on_error = kind, make, on_error
        self._begun = False
        self._closing: asyncio.Future[Remaining] | None = None

    @property
    def closing(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closing is not None

    async def open(self) -> tuple[Client, LoopCalls]:
        """Make the client, and calls in this loop."""
        if self._begun:
            raise ClosedError(f"a {self._kind} is opened once")
        self._begun = True
        calls, on_error = LoopCalls(), self._on_error
        check_callback("on_error", on_error)
        make = self._make if on_error is None else partial(self._make, on_error=_in_loop(calls, on_error))
        try:
            return await in_thread(make, _abandon), calls
        except BaseException:
            self._begun = False
            raise

    async def close(self, close: Callable[[], Coroutine[Any, Any, Remaining]]) -> Remaining:
        """Close the client with `close`, once. A caller that is cancelled does not cancel that."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(close())
        return await asyncio.shield(self._closing)

    def not_open(self) -> ClosedError:
        """What a call raises before the client is open."""
        return ClosedError(f"this {self._kind} is not open: use `async with`, or await open()")


def _abandon(client: Blocking) -> None:
    """Close a client that nobody waits for any more."""
    client.close(0.0)


def _in_loop(calls: LoopCalls, on_error: OnError) -> OnError:
    return lambda error: calls.put(partial(on_error, error))
