"""The consumer for asyncio: the same engine as the blocking one's."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

from reliamsg.aio.dispatcher import Dispatcher
from reliamsg.aio.loop import Changed, LoopCalls, in_thread
from reliamsg.aio.opening import Opening
from reliamsg.arguments import MOST_SECONDS, check_count, check_number, check_timeout
from reliamsg.config import JournalExport, Site
from reliamsg.consumer import api as blocking
from reliamsg.consumer.dispatcher import LOOK_EVERY_S, OnGap
from reliamsg.consumer.status import ConsumerStatus, Remaining
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing
from reliamsg.message import Gap, Message
from reliamsg.runtime.observation import Observed, client_name, observed
from reliamsg.store.inbox_rows import DeadLetter

__all__ = ["Consumer"]

MAX_CONCURRENCY = 100_000
"""Most handlers that run at a time."""


class Consumer:
    """Reads a group's messages from all sites, and delivers each once, in order per stream.

    ::

        async with Consumer("billing", sites, topics=["orders"], inbox="billing.db") as consumer:
            await consumer.run(handle, concurrency=100)

    The arguments are those of :class:`reliamsg.Consumer`, which describes them. Nothing is opened before ``async with``
    or :meth:`open`, and arguments are checked there: they raise what the constructor of the blocking consumer raises.

    A consumer belongs to the event loop in which it was opened. `on_error`, `on_gap` and `on_late` are ordinary
    functions and are called in that loop. All coroutines may be cancelled: a message that was taken and not
    acknowledged is delivered again, and none is lost.
    """

    def __init__(
        self,
        group: str,
        sites: Sequence[Site],
        *,
        topics: Sequence[str],
        inbox: str | os.PathLike[str],
        begin: Literal["earliest", "latest"] = "earliest",
        gap_timeout: float = 30.0,
        on_gap: OnGap = "hold",
        on_late: Callable[[Message], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        max_deliveries: int = 20,
        max_unacknowledged: int = 1_000,
        max_inbox_bytes: int = 256 * 1024 * 1024,
        max_streams: int = 10_000,
        max_known_streams: int = 5_000_000,
        max_quarantine_bytes: int = 64 * 1024 * 1024,
        repair_delay: float = 0.5,
        repair_timeout: float = 300.0,
        standby: bool = False,
        takeover_timeout: float = 30.0,
        keys: KeyRing | None = None,
        on_dead_letter: Literal["continue", "halt"] = "continue",
        unsequenced: Literal["refuse", "deliver"] = "refuse",
        journal: str | os.PathLike[str] | JournalExport | None = None,
    ) -> None:
        self._group = group
        make = partial(
            blocking.Consumer, group, sites, topics=topics, inbox=inbox, begin=begin, gap_timeout=gap_timeout,
            on_gap=on_gap, on_late=on_late, max_deliveries=max_deliveries, max_unacknowledged=max_unacknowledged,
            max_inbox_bytes=max_inbox_bytes, max_streams=max_streams, max_known_streams=max_known_streams,
            max_quarantine_bytes=max_quarantine_bytes, repair_delay=repair_delay, repair_timeout=repair_timeout,
            standby=standby, takeover_timeout=takeover_timeout, keys=keys, on_dead_letter=on_dead_letter,
            unsequenced=unsequenced, journal=journal,
        )  # fmt: skip
        self._opening: Opening[blocking.Consumer, Remaining] = Opening("consumer", make, on_error)
        self._opened: _Opened | None = None
        self._stopped = False
        self._dispatchers: set[Dispatcher] = set()

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str] | None = None, name: str | None = None, **settings: Any
    ) -> Self:
        """The consumer that ``[consumers.NAME]`` of a configuration file describes.

        `path`: a TOML file; by default the one that the environment variable ``RELIAMSG_CONFIG`` names. `name`: the
        group; not needed if the file has one consumer only. `settings`: further arguments of the constructor, such as
        callbacks, which override those of the file.

        Raises :class:`ConfigError`, which names the file and the key, and what the constructor raises.
        """
        from reliamsg.configfile import read_config  # on demand: it loads ssl and tomllib

        return cls(**read_config(path).consumer(name) | settings)

    async def open(self) -> None:
        """Open the inbox and start to connect, as the constructor of the blocking consumer does, and raise the same
        errors. Once; ``async with`` does it. If this is cancelled, the consumer is closed again."""
        self._opened = opened = _Opened(*await self._opening.open())
        if self._stopped:
            opened.consumer.stop()

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise self._opening.not_open()
        self._opened.calls.check()
        return self._opened

    # -- messages -----------------------------------------------------------------------------------------

    @overload
    async def run(
        self, handler: Callable[[Message], Awaitable[None]], *, batch: None = None, concurrency: int = 100
    ) -> None: ...
    @overload
    async def run(
        self, handler: Callable[[list[Message]], Awaitable[None]], *, batch: int, concurrency: int = 100
    ) -> None: ...
    async def run(
        self,
        handler: Callable[[Any], Awaitable[None]],
        *,
        batch: int | None = None,
        concurrency: int = 100,
    ) -> None:
        """Call `handler`, a coroutine function, with every message, until :meth:`stop`.

        A message whose handler returns is acknowledged; one whose handler raises is delivered again, in place, after
        0.1 s, doubling up to 5 s. With `batch` the handler gets a list of up to `batch` messages of one stream;
        when it raises, or has ended the process more than once, they are delivered again one by one. Messages of one
        stream are handled one after the other, streams side by side in up to `concurrency` tasks.

        After :meth:`stop`, returns once running handlers have returned. If this is cancelled, so are they: their
        messages are delivered again, and that delivery does not count.

        Raises :class:`GapError`, errors of `on_gap` and `on_late`, fatal errors, and :class:`ConfigError` if what
        `handler` returns can't be awaited.
        """
        opened = self._open
        if not callable(handler):
            raise ConfigError("handler must be a coroutine function: async def handle(message)")
        if batch is not None:
            check_count("batch", batch)
        check_count("concurrency", concurrency, most=MAX_CONCURRENCY)
        parts = await self._parts(opened)
        if parts is None:
            return
        blocking.end_iteration(opened.consumer)
        dispatcher = Dispatcher(parts, opened.changed, handler, batch)
        self._dispatchers.add(dispatcher)
        try:
            if self._stopped:  # its handlers do not run, and a fatal error is raised
                dispatcher.stop()
            await dispatcher.run(concurrency)
        finally:
            self._dispatchers.discard(dispatcher)

    async def _parts(self, opened: _Opened) -> blocking.NonBlocking | None:
        """Those of an open consumer, once a standby has the inbox; None if it is stopped before."""
        while True:
            seen = opened.changed.count
            parts = blocking.non_blocking(opened.consumer)
            if parts is not None or self._stopped:
                return parts
            await opened.changed.wait(seen, LOOK_EVERY_S)

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there was none within `timeout` seconds, or after :meth:`stop`.

        0 does not wait; None waits without limit. Raises :class:`GapError`, errors of `on_gap` and `on_late`, and fatal
        errors. If this is cancelled, no message was taken.
        """
        check_timeout("timeout", timeout)
        opened = self._open
        return await self._get(opened, None if timeout is None else time.monotonic() + timeout)

    async def _get(self, opened: _Opened, deadline: float | None) -> Message | None:
        while True:
            seen = opened.changed.count
            message = None if self._opening.closing else opened.consumer.get(0.0)
            if message is not None or self._stopped:
                return message
            left = LOOK_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            await opened.changed.wait(seen, min(left, LOOK_EVERY_S))

    def __aiter__(self) -> Self:
        """Messages, until :meth:`stop`. See :meth:`get`; acknowledge each, or use ``async with message.process()``."""
        return self

    async def __anext__(self) -> Message:
        message = await self.get()
        if message is None:
            raise StopAsyncIteration
        return message

    def batches(self, max_messages: int, max_wait: float) -> AsyncIterator[list[Message]]:
        """Lists of up to `max_messages`, of any streams, gathered for up to `max_wait` seconds each.

        No list is empty. Ends after :meth:`stop`. Raises what :meth:`get` raises, once everything gathered
        before has been given. What a cancelled task had gathered is delivered again, flagged ``redelivered``.
        """
        check_count("max_messages", max_messages)
        check_number("max_wait", max_wait, least=-MOST_SECONDS)
        return self._batches(max_messages, max_wait)

    async def _batches(self, max_messages: int, max_wait: float) -> AsyncIterator[list[Message]]:
        while True:
            opened = self._open
            message = await self._get(opened, None)
            if message is None:
                return
            gathered = [message]
            deadline = time.monotonic() + max_wait
            raised: BaseException | None = None
            try:
                while len(gathered) < max_messages:
                    message = await self._get(opened, deadline)
                    if message is None:
                        break
                    gathered.append(message)
            except Exception as error:  # noqa: BLE001  (raised below)
                raised = error
            except BaseException:
                blocking.give_back(opened.consumer, gathered)
                raise
            yield gathered
            if raised is not None:
                raise raised

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge a message, and return when that is durable: ``message.ack(durable=True)`` without blocking the
        loop. (``message.ack()`` does not block.) If this is cancelled, it is acknowledged all the same."""
        message.ack()
        opened = self._open
        parts = await self._parts(opened)
        if parts is None:
            return
        durability = parts.engine.shared.durability
        number = parts.engine.shared.uninterrupted(durability.want_soon)
        while True:
            seen = opened.changed.count
            if durability.is_durable(number):
                return
            await opened.changed.wait(seen, LOOK_EVERY_S)

    async def accept(self, gap: Gap) -> bool:
        """Continue without the messages of a gap, and declare them lost; durable on return, and announced to a standby
        that listens.

        False when the gap was filled or passed meanwhile. Raises :class:`InboxWriteError` when it is not
        durable yet. If this is cancelled, the gap is accepted all the same.
        """
        return await in_thread(partial(self._open.consumer.accept, gap))

    # -- dead letters -------------------------------------------------------------------------------------

    async def dead_letters(self) -> list[DeadLetter]:
        """Messages that were given up, oldest first (at most 1,000)."""
        return await in_thread(self._open.consumer.dead_letters)

    async def replay(self, dead_letter_id: int) -> None:
        """Deliver a dead letter again, flagged ``replayed``, out of order.

        Once it is acknowledged it is no dead letter any more. One that is being replayed is not replayed once more
        before the application is done with it. Raises :class:`ConfigError` if there is no such dead letter, and
        :class:`InboxLocked` for a standby whose inbox another consumer has open. If this is cancelled,
        it is delivered all the same.
        """
        await in_thread(partial(self._open.consumer.replay, dead_letter_id))

    # -- state and end ------------------------------------------------------------------------------------

    def status(self) -> ConsumerStatus:
        """The state of sites, streams and waiting messages at this moment."""
        return self._open.consumer.status()

    def stop(self) -> None:
        """End iteration and :meth:`run` cleanly, for good. Safe in a signal handler, and on any thread.

        Messages whose handlers are running are finished; :meth:`close` does the rest.
        """
        self._stopped = True
        for dispatcher in list(self._dispatchers):
            dispatcher.stop()
        if self._opened is not None:
            self._opened.consumer.stop()
            self._opened.changed.notify()

    async def close(self, timeout: float = 10.0) -> Remaining:
        """Commit acknowledgements, disconnect, and close the inbox; returns what remains.

        Handlers that :meth:`run` has called are waited for, within `timeout` seconds; it may be called in one of
        them. Messages that were not acknowledged are delivered again, flagged ``redelivered``, when the inbox is opened
        again. Closing twice is harmless. If this is cancelled, closing continues, and another call waits for it.
        """
        check_number("timeout", timeout, least=-MOST_SECONDS)
        opened = self._open
        self.stop()
        return await self._opening.close(partial(self._close, opened, timeout, asyncio.current_task()))

    async def _close(self, opened: _Opened, timeout: float, caller: asyncio.Task[Any] | None) -> Remaining:
        deadline = time.monotonic() + timeout
        for dispatcher in list(self._dispatchers):
            await dispatcher.join(max(0.0, deadline - time.monotonic()), caller)
        return await in_thread(partial(opened.consumer.close, deadline - time.monotonic()))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self._group!r} not open>" if self._opened is None else repr(self._opened.consumer)


@client_name.register(Consumer)
def _name(consumer: Consumer) -> str:
    return consumer._group


@observed.register(Consumer)
def _observed(consumer: Consumer) -> Observed:
    return observed(consumer._open.consumer)


class _Opened:
    """The parts of a consumer that is open in an event loop."""

    def __init__(self, consumer: blocking.Consumer, calls: LoopCalls) -> None:
        self.consumer, self.calls = consumer, calls
        self.changed = Changed(calls)
        blocking.on_change(consumer, self.changed.notify)
