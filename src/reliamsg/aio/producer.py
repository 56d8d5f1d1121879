"""The producer for asyncio: the same engine as the blocking one's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from reliamsg.aio.commits import Commits, Confirms, Room
from reliamsg.aio.loop import LoopCalls, in_thread
from reliamsg.aio.opening import Opening
from reliamsg.aio.receipt import Receipt
from reliamsg.config import JournalExport, Site
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.message import MessageId
from reliamsg.policy import Confirm
from reliamsg.producer import api as blocking
from reliamsg.producer import receipt as blocking_receipt
from reliamsg.producer.contents import content_of, content_of_many
from reliamsg.producer.status import ProducerStatus, Remaining
from reliamsg.runtime.observation import Observed, client_name, observed

__all__ = ["Producer"]

log: Log = Log("reliamsg.producer")


class Producer:
    """Publishes durably: first to a file on this machine, from there to every site until the site has confirmed.

    The arguments are those of :class:`reliamsg.Producer`, which describes them. Nothing is opened before ``async with``
    or :meth:`open`, and arguments are checked there: they raise what the constructor of the blocking producer raises.

    A producer belongs to the event loop in which it was opened. `on_error`, and callbacks of receipts, are called in
    that loop. All coroutines may be cancelled; each says what that means. Messages are numbered in the order in which
    :meth:`publish` and :meth:`publish_many` begin to run, also while the outbox is full.

    A producer that is garbage-collected, or left open at the end of the program, is closed without waiting for sites.
    If messages are unconfirmed then, it emits a ``ResourceWarning`` and logs a WARNING.
    """

    def __init__(
        self,
        producer_id: str,
        sites: Sequence[Site],
        *,
        outbox: str | os.PathLike[str],
        groups: Mapping[str, Iterable[str]] | None = None,
        confirm: Confirm = "all",
        release: Literal["confirmed", "consumed"] = "confirmed",
        wire: Literal["batch", "plain"] = "batch",
        compression: Literal["zstd"] | None = None,
        max_bytes: int = 1024 * 1024 * 1024,
        retain_seconds: float = 300.0,
        retain_bytes: int = 64 * 1024 * 1024,
        when_full: Literal["block", "raise"] = "block",
        block_timeout: float = 30.0,
        max_batch_messages: int = 2048,
        max_batch_bytes: int = 256 * 1024,
        hello_timeout: float = 1.0,
        status_interval: float = 1.0,
        max_repair_bytes_per_second: float | None = 64 * 1024 * 1024,
        keys: KeyRing | None = None,
        journal: str | os.PathLike[str] | JournalExport | None = None,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._id = producer_id
        make = partial(
            blocking.Producer, producer_id, sites, outbox=outbox, groups=groups, confirm=confirm, release=release,
            wire=wire, compression=compression, max_bytes=max_bytes, retain_seconds=retain_seconds,
            retain_bytes=retain_bytes, when_full=when_full, block_timeout=block_timeout,
            max_batch_messages=max_batch_messages, max_batch_bytes=max_batch_bytes, hello_timeout=hello_timeout,
            status_interval=status_interval, max_repair_bytes_per_second=max_repair_bytes_per_second, keys=keys,
            journal=journal,
        )  # fmt: skip
        self._opening: Opening[blocking.Producer, Remaining] = Opening("producer", make, on_error)
        self._opened: _Opened | None = None

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str] | None = None, name: str | None = None, **settings: Any
    ) -> Self:
        """The producer that ``[producers.NAME]`` of a configuration file describes.

        `path`: a TOML file; by default the one that the environment variable ``RELIAMSG_CONFIG`` names. `name`: the
        producer's id; not needed if the file has one producer only. `settings`: further arguments of the constructor,
        such as `on_error`, which override those of the file.

        Raises :class:`ConfigError`, which names the file and the key, and what the constructor raises.
        """
        from reliamsg.configfile import read_config  # on demand: it loads ssl and tomllib

        return cls(**read_config(path).producer(name) | settings)

    async def open(self) -> None:
        """Open the outbox and start to connect, as the constructor of the blocking producer does, and raise the same
        errors. Once; ``async with`` does it. If this is cancelled, the producer is closed again."""
        self._opened = _Opened(*await self._opening.open())

    @property
    def _producer(self) -> blocking.Producer:
        return self._open.producer

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise self._opening.not_open()
        self._opened.calls.check()
        return self._opened

    # -- publishing -------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Receipt:
        """Publish one message. When this returns, the message is committed and fsynced: only the loss of the disk can
        lose it. ``await receipt`` waits for the sites.

        The arguments and errors are those of :meth:`reliamsg.Producer.publish`. Tasks that publish at the same time
        share transactions. While the outbox is full, they wait in the order in which they came, and raise
        :class:`OutboxFull` after `block_timeout` seconds.

        If this is cancelled while it waits for room, the message is not published. If it is cancelled later, the
        message is stored and sent all the same, unless the disk fails.
        """
        opened = self._open
        receipt = await opened.room.accept(content_of(topic, body, key, headers))
        await opened.commits.wait_durable(receipt.commit)
        return opened.receipt(receipt)

    def publish_nowait(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Receipt:
        """Publish one message without waiting for the disk: it is durable once
        ``await receipt.wait(until="durable")`` returns.

        Raises :class:`OutboxFull` (or :class:`JournalFull`) at once if there is no room, and otherwise the same errors
        as :meth:`publish`; errors of the disk are raised by the receipt.
        """
        opened = self._open
        return opened.receipt(opened.producer.publish_nowait(topic, body, key=key, headers=headers))

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Publish several messages, one after the other, with the same key and headers. They are durable when this
        returns.

        They are stored in one transaction, all or none, and share one receipt. Raises the same errors as
        :meth:`publish`, and :class:`ConfigError` if there are no bodies. Cancelling means the same for all of them as
        for one.
        """
        opened = self._open
        receipt = await opened.room.accept(content_of_many(topic, bodies, key, headers))
        await opened.commits.wait_durable(receipt.commit)
        return opened.receipt(receipt)

    # -- groups and removal -----------------------------------------------------------------------------------

    async def add_group(self, topic: str, group: str) -> None:
        """Name one more group for a topic: it counts for messages that are published after this returns.

        See :meth:`reliamsg.Producer.add_group`. If this is cancelled, the group is named all the same.
        """
        await in_thread(partial(self._producer.add_group, topic, group))

    async def remove_group(self, topic: str, group: str) -> None:
        """Stop naming a group for a topic: no messages are kept for it any longer, and those kept for it alone leave.

        See :meth:`reliamsg.Producer.remove_group`. If this is cancelled, it is done all the same.
        """
        await in_thread(partial(self._producer.remove_group, topic, group))

    async def remove(self, first: MessageId, last: MessageId | None = None) -> int:
        """Remove messages from the outbox, from `first` to `last` (only `first` if `last` is None), of one stream and
        epoch.

        See :meth:`reliamsg.Producer.remove`. If this is cancelled, they are removed all the same.
        """
        return await in_thread(partial(self._producer.remove, first, last))

    # -- waiting, status, closing -----------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was accepted before this call is confirmed, at most `timeout` seconds.

        Raises :class:`ConfirmTimeout`, which shows what each site is missing: everything stays in the outbox and is
        sent again.
        """
        await in_thread(partial(self._producer.flush, timeout))

    def pending(self) -> int:
        """The number of accepted messages that are not published yet: their confirm policy is not met."""
        return self._producer.pending()

    def status(self) -> ProducerStatus:
        """The current state of this producer and of every site."""
        return self._producer.status()

    async def close(self, timeout: float = 10.0) -> Remaining:
        """Accept nothing more, wait for confirms for at most `timeout` seconds, and close the outbox.

        Returns what remains unconfirmed, as :meth:`reliamsg.Producer.close` does, and within the same time. Tasks that
        wait for room or for a receipt get :class:`ClosedError`. Closing twice is harmless. If this is cancelled,
        closing continues, and another call waits for it.
        """
        producer = self._producer
        return await self._opening.close(lambda: in_thread(partial(producer.close, timeout)))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remaining = await self.close()
        if not remaining.nothing:
            log.warning(
                "producer.closed_unconfirmed", "producer %(producer)s: %(remaining)s",
                producer=self._id, messages=remaining.messages, remaining=str(remaining),
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Producer {self._id!r} not open>" if self._opened is None else repr(self._opened.producer)


@client_name.register(Producer)
def _name(producer: Producer) -> str:
    return producer._id


@observed.register(Producer)
def _observed(producer: Producer) -> Observed:
    return observed(producer._producer)


class _Opened:
    """The parts of a producer that is open in an event loop."""

    def __init__(self, producer: blocking.Producer, calls: LoopCalls) -> None:
        parts = blocking.non_blocking(producer)
        self.producer, self.calls = producer, calls
        self.commits, self.confirms = Commits(calls), Confirms(calls)
        self.room = Room(calls, parts.engine, parts.room, parts.block_timeout)

    def receipt(self, receipt: blocking_receipt.Receipt) -> Receipt:
        """The receipt for tasks."""
        return Receipt(receipt, self.commits, self.confirms, self.calls)
