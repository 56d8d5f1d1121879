"""What a publish returns: where its messages are now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

from reliamsg.aio.commits import Commits, Confirms
from reliamsg.aio.loop import LoopCalls
from reliamsg.arguments import check_callback, check_choice, check_timeout, unrun
from reliamsg.errors import ConfirmTimeout
from reliamsg.message import MessageId
from reliamsg.producer import receipt as blocking
from reliamsg.producer.status import MessageState

__all__ = ["Receipt"]


class Receipt:
    """One publish: of one message, or with ``publish_many`` of several consecutive ones.

    Await it, or :meth:`wait`, for the sites. A receipt keeps no message in memory, and need not be kept. Its coroutines
    and :meth:`add_done_callback` belong to the event loop of its producer.
    """

    __slots__ = ("_calls", "_commits", "_confirms", "_receipt")

    def __init__(
        self, receipt: blocking.Receipt, commits: Commits, confirms: Confirms, calls: LoopCalls
    ) -> None:
        self._receipt, self._commits, self._confirms, self._calls = receipt, commits, confirms, calls

    @property
    def durable(self) -> bool:
        """Whether the messages are committed and fsynced."""
        return self._receipt.durable

    @property
    def id(self) -> MessageId | None:
        """The identity of the message, of the first one with ``publish_many``; None before it is durable.

        It is final once any site was sent the message: before that, a group may report a later owner of this
        producer's name, and the epoch is raised above that one's.
        """
        return self._receipt.id

    @property
    def ids(self) -> tuple[MessageId, ...]:
        """The identities of all messages; empty before they are durable."""
        return self._receipt.ids

    @property
    def done(self) -> bool:
        """Whether the confirm policy is met for all messages, except those that were removed before it was
        (:meth:`Producer.remove`). False if all of them were. Once True it stays True."""
        return self._receipt.done

    @property
    def sites(self) -> dict[str, MessageState]:
        """The state of the messages at each site; of several messages, of the first that is not confirmed among those
        that were not removed. ``removed``: some were removed before the site had confirmed them, and it has all others.
        See :data:`MessageState`."""
        return self._receipt.sites

    @property
    def counted(self) -> tuple[str, ...]:
        """The sites that had confirmed when the policy was met; empty before."""
        return self._receipt.counted

    async def wait(
        self, timeout: float | None = None, until: Literal["durable", "confirmed", "consumed"] = "confirmed"
    ) -> None:
        """Wait until the messages are that far, at most `timeout` seconds (None: without limit).

        See :meth:`reliamsg.Receipt.wait` for the meaning of `until` and for the errors. Cancelling changes nothing
        about the messages: they stay in the outbox and are sent.
        """
        check_choice("until", until, blocking.UNTIL)
        check_timeout("timeout", timeout)
        self._calls.check()
        if timeout is None:
            await self._wait(until)
            return
        try:
            async with asyncio.timeout(timeout) as limit:
                await self._wait(until)
        except TimeoutError:
            if not limit.expired():
                raise
        else:
            return
        try:
            self._receipt.wait(0.0, until)
        except ConfirmTimeout as error:
            text = str(error).replace("within 0 s", f"within {timeout:.3g} s", 1)
            raise ConfirmTimeout(text, error.sites) from None

    async def _wait(self, until: Literal["durable", "confirmed", "consumed"]) -> None:
        """The same without limit."""
        await self._commits.wait_durable(self._receipt.commit)
        if until == "confirmed":
            await self._confirms.wait(self._receipt)
        elif until == "consumed":
            await self._consumed()
            self._receipt.wait(0.0, until)

    async def _consumed(self) -> None:
        """Return when waiting for groups has ended, for good or bad."""
        future: asyncio.Future[None] = self._calls.loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        self._receipt.add_done_callback(lambda _: self._calls.put(resolve), "consumed")
        await future

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until the confirm policy is met, without limit: ``await receipt`` is ``await receipt.wait()``."""
        return self.wait().__await__()

    def add_done_callback(
        self,
        callback: Callable[[Receipt], object],
        until: Literal["durable", "confirmed", "consumed"] = "confirmed",
    ) -> None:
        """Call ``callback(receipt)`` in the event loop once the messages are that far, or can't get there any more:
        they could not be stored, all that were left were removed, or the producer was closed or has failed. See
        :attr:`done`, or wait with a `timeout` of 0, for which of these it is.

        Every callback is called once; an exception goes to the loop's exception handler. `callback` is an ordinary
        function; to start a coroutine, let it create a task. Raises :class:`ConfigError` where :meth:`wait` does.
        """
        check_callback("callback", callback, optional=False)
        self._calls.check()
        self._receipt.add_done_callback(lambda _: self._calls.put(partial(self._call, callback)), until)

    def _call(self, callback: Callable[[Receipt], object]) -> None:
        mistake = unrun("the receipt's callback", callback(self))
        if mistake is not None:
            raise mistake

    def __repr__(self) -> str:
        return repr(self._receipt)
