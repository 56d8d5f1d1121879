"""The producer that applications use: a blocking shell with threads around
:class:`~reliamsg.producer.engine.ProducerEngine`."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from reliamsg import forks
from reliamsg.arguments import (
    MOST_SECONDS,
    check_callback,
    check_number,
    check_path,
    check_timeout,
)
from reliamsg.config import (
    MAX_MESSAGE_BYTES,
    JournalExport,
    Site,
    check_name,
    check_sites,
    journal_export,
)
from reliamsg.errors import ClosedError, ConfirmTimeout, FatalError, ForkedError
from reliamsg.injection import injected
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.message import MessageId
from reliamsg.policy import Confirm
from reliamsg.producer.commit import Content
from reliamsg.producer.contents import content_of, content_of_many
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.flushing import flush
from reliamsg.producer.receipt import Receipt
from reliamsg.producer.settings import Settings, check_blocking, check_groups, check_message_id
from reliamsg.producer.status import ProducerStatus, Remaining, messages_remain
from reliamsg.runtime.clock import Clock, microseconds, wall_us
from reliamsg.runtime.environment import Environment, no_probe
from reliamsg.runtime.export_step import CLOSING_EXPORT_S
from reliamsg.runtime.observation import (
    JournalListener,
    JournalListeners,
    Observed,
    State,
    client_name,
    observed,
)
from reliamsg.runtime.wakeup import Waiters
from reliamsg.runtime.worker import Worker
from reliamsg.store.outbox import Outbox
from reliamsg.transport import factory
from reliamsg.wire.application import check_body

__all__ = ["NonBlocking", "Producer", "non_blocking"]

log: Log = Log("reliamsg.producer")

CLOSING_S = 5.0
"""How long disconnecting and storing what is left may take, however little time :meth:`Producer.close` was given."""
STORING_S = 2.0
"""The part of it that is reserved for the file, after a journal target that used up all the time."""
CALLBACKS_S = 1.0
"""How long :meth:`Producer.close` waits for callbacks of receipts, beside that."""
MIN_DISCONNECT_S = 0.1
"""How long a site gets to disconnect, even if others used up the time."""


class Producer:
    """Publishes durably: first to a file on this machine, from there to every site until the site has confirmed.

    Opening a producer locks the outbox for this process and starts a new epoch; what the outbox still holds from
    earlier epochs is sent first. Sites need not be reachable: construction succeeds, messages wait, and :meth:`status`
    shows why.

    `producer_id` identifies this publisher everywhere and permanently, and owns exactly one outbox. `groups` names, for
    each topic, the consumer groups whose AMQP queues are declared before the first publish. `confirm` selects which
    sites must have confirmed before a message counts as published, see :data:`~reliamsg.policy.Confirm`.

    `release`: with ``confirmed``, published messages leave the outbox after `retain_seconds`, when they exceed
    `retain_bytes`, or earlier if room is needed. With ``consumed``, a message also stays until every group that was
    named for its topic when it was published has acknowledged it or declared it missing. So no broker can lose it for
    good, but a group that never connects fills the outbox (:meth:`status` names the group). In this mode a group that
    is no longer in `groups` stays named until :meth:`remove_group`. Messages in the outbox are sent again to groups
    that lack them, at most `max_repair_bytes_per_second` in total. `max_bytes` bounds what must be held; when it is
    reached, `when_full` decides whether ``publish`` blocks for up to `block_timeout` seconds before it raises
    :class:`OutboxFull`, or raises at once.

    `wire`: ``batch`` sends many messages as one broker message. ``plain`` sends each message as a broker message of its
    own, with an unchanged body and its identity in headers, for consumers without reliamsg (not at MQTT 3.1.1 sites);
    the header ``content-type`` is its content type as well.
    `compression` of batches needs the extra ``zstd``. `max_batch_messages` and `max_batch_bytes` limit batches; a
    larger message is sent alone.

    `hello_timeout`: messages that are published after opening are durable at once, but first sent when the named groups
    have reported the epoch that they have entered, or `hello_timeout` seconds after the first connection (0: at once).
    This keeps an outbox that was restored from a backup from publishing messages that groups would treat as old:
    whenever a named group turns out to be in a later epoch, sending waits that long again, and at least one second.
    `status_interval`: groups that have not acknowledged everything get an announcement this many seconds after a stream
    has gone quiet, and then at intervals that double up to a minute. `keys`: all frames are signed, and frames of
    groups are accepted only if they are signed.

    `journal`: a directory, fsspec URL or :class:`~reliamsg.config.JournalExport` to which the journal is exported, in
    segments; without it the journal stays in the outbox. While the target is unavailable and the backlog is used up,
    publishing waits as it does for room in the outbox, and raises :class:`JournalFull`.

    `on_error` is called with errors of background work: a fatal error, which every later call raises as well, or an
    exception of a callback.

    A producer that is garbage-collected, or left open at the end of the program, is closed without waiting for sites.
    If messages are unconfirmed then, it emits a ``ResourceWarning`` and logs a WARNING.

    Threads: any thread may call any method. One writer thread uses the file, each site has one I/O thread, and
    callbacks run on a thread of their own. Signal handlers may call :meth:`publish_nowait`, :meth:`pending` and
    :meth:`status`, whatever they interrupt, but no method that waits. A ``KeyboardInterrupt`` in any method leaves the
    producer in order; whether a message that was being published is stored is unknown then. After ``fork()`` the child
    must open a producer of its own (:class:`ForkedError`).

    Raises at construction: :class:`ConfigError` for invalid arguments, :class:`OutboxLocked` if another process or
    object has opened this outbox, :class:`StoreMismatch` if it belongs to another producer, :class:`StoreCorrupt`,
    :class:`StoreTooNew`, :class:`StoreRetired`, and :class:`OutboxWriteError` if the file can't be written.
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
        check_name("producer id", producer_id)
        self._sites = check_sites(sites)
        settings = Settings(
            confirm=confirm, release=release, wire=wire, compression=compression, max_bytes=max_bytes,
            retain_seconds=retain_seconds, retain_bytes=retain_bytes, max_batch_messages=max_batch_messages,
            max_batch_bytes=max_batch_bytes, hello_timeout=hello_timeout, status_interval=status_interval,
            max_repair_bytes_per_second=max_repair_bytes_per_second, keys=keys,
        ).checked(self._sites)  # fmt: skip
        named = check_groups({} if groups is None else groups)
        check_path("outbox", outbox)
        check_callback("on_error", on_error)
        hooks = injected()
        export = journal_export(journal)
        self._block = check_blocking(when_full, block_timeout)
        self._topics = set(named)
        self._generation = forks.generation
        self._closed = self._finished = False
        worker, room = Worker("reliamsg-writer", time.monotonic, log), Waiters()
        store = Outbox(outbox, producer_id, wall_us(), microseconds(time.monotonic()), os.urandom(8).hex())
        try:
            self._engine = ProducerEngine(
                store,
                self._sites,
                named,
                settings,
                hooks.transports or factory,
                Environment(Clock(wall_us=wall_us), worker, hooks.probe or no_probe, on_error, room=room),
                export,
            )
        except BaseException:
            store.close()
            raise
        self._accumulator = self._engine.accumulator
        self._room = room
        self._journal = store.journal
        self._journal_listeners = JournalListeners(log)
        self._threads = _Threads(self._engine, worker)
        self._threads.start()
        # Stops the threads and closes the file if the application forgets to.
        self._finalizer = weakref.finalize(self, _forgotten, self._threads, self._engine)

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

    # -- publishing -------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Receipt:
        """Publish one message. When this returns, the message is committed and fsynced: only the loss of the disk can
        lose it.

        `body`: at most 4 MiB. `key` is delivered with the message and does not affect order. `headers`: at most 64
        strings, with names of up to 255 bytes that do not begin with ``rm-``, values of up to 8 KiB, and 64 KiB in
        total. ``receipt.wait()`` waits for the sites.

        Raises :class:`ConfigError` (a name or header), :class:`MessageTooLarge`, :class:`OutboxFull`,
        :class:`OutboxWriteError` (disk full or read-only: nothing was stored, publishing works again when
        there is room), or the error that stopped this producer, such as :class:`OutboxIndeterminate`.
        """
        receipt = self._accept(topic, body, key, headers, self._block)
        receipt.commit.wait_durable(None)
        return receipt

    def publish_nowait(
        self, topic: str, body: bytes, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Receipt:
        """Publish one message without waiting for the disk: it is durable once
        ``receipt.wait(until="durable")`` returns.

        Raises :class:`OutboxFull` (or :class:`JournalFull`) at once if there is no room, and otherwise the same errors
        as :meth:`publish`; errors of the disk are raised by the receipt.
        """
        if (
            key is None
            and headers is None
            and type(body) is bytes
            and len(body) <= MAX_MESSAGE_BYTES
            and type(topic) is str
            and topic in self._topics
            and self._generation == forks.generation
        ):  # the usual case
            return self._accumulator.accept_one(topic, body)
        return self._accept(topic, body, key, headers, 0.0)

    def publish_many(
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
        :meth:`publish`, and :class:`ConfigError` if there are no bodies.
        """
        receipt = self._accept_content(content_of_many(topic, bodies, key, headers), self._block)
        receipt.commit.wait_durable(None)
        return receipt

    def _accept(
        self, topic: str, body: bytes, key: str | None, headers: Mapping[str, str] | None, block: float
    ) -> Receipt:
        if (
            key is None
            and headers is None
            and type(topic) is str
            and topic in self._topics
            and self._generation == forks.generation
        ):
            return self._accumulator.accept_one(topic, check_body(body), block)
        return self._accept_content(content_of(topic, body, key, headers), block)

    def _accept_content(self, content: Content, block: float) -> Receipt:
        self._check()
        self._topics.add(content.topic)
        return self._accumulator.accept(content, block)

    # -- groups and removal -----------------------------------------------------------------------------------

    def add_group(self, topic: str, group: str) -> None:
        """Name one more group for a topic: it counts for messages that are published after this returns.

        Its queues are declared at AMQP sites, and with ``release="consumed"`` messages are kept for it. Naming a group
        twice changes nothing. Journalled and durable when this returns. Raises :class:`ConfigError` for an invalid
        name, or more than 100 groups, and :class:`OutboxWriteError`.
        """
        check_name("topic", topic)
        check_name("group", group)
        self._check()
        self._engine.commands.run(lambda: self._engine.add_group(topic, group))

    def remove_group(self, topic: str, group: str) -> None:
        """Stop naming a group for a topic: no messages are kept for it any longer, and those kept for it alone leave.

        Its queues at brokers stay; delete them there. Journalled and durable when this returns. Raises
        :class:`ConfigError` if the group is not named, and :class:`OutboxWriteError`.
        """
        check_name("topic", topic)
        check_name("group", group)
        self._check()
        self._engine.commands.run(lambda: self._engine.remove_group(topic, group))

    def remove(self, first: MessageId, last: MessageId | None = None) -> int:
        """Remove messages from the outbox, from `first` to `last` (only `first` if `last` is None), of one stream and
        epoch.

        They are no longer sent, neither to sites nor as repairs, and groups that lack them stop waiting: they declare
        them missing with the reason ``removed``. Messages that sites already have may still be delivered. Returns how
        many were held. Journalled and durable when this returns.

        Receipts then stand for the messages that are left: ``done`` is True once those are confirmed, and never if none
        are left. ``wait()`` waits for the same, and then raises :class:`MessageRemoved` with the removed numbers.

        Raises :class:`ConfigError` unless the arguments are such a range, and :class:`OutboxWriteError`.
        """
        check_message_id("first", first)
        if last is not None:
            check_message_id("last", last)
        self._check()
        return self._engine.commands.run(lambda: self._engine.remove(first, first if last is None else last))

    # -- waiting, status, closing -----------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was accepted before this call is confirmed, at most `timeout` seconds.

        Raises :class:`ConfirmTimeout`, which shows what each site is missing: everything stays in the outbox and is
        sent again.
        """
        check_timeout("timeout", timeout)
        self._check()
        flush(self._engine, timeout)

    def pending(self) -> int:
        """The number of accepted messages that are not published yet: their confirm policy is not met."""
        self._check()
        return self._engine.pending()

    def status(self) -> ProducerStatus:
        """The current state of this producer and of every site."""
        self._check(dead=True)
        return self._engine.status()

    def close(self, timeout: float = 10.0) -> Remaining:
        """Accept nothing more, wait for confirms for at most `timeout` seconds, and close the outbox.

        The last segment of the journal is exported if its target answers within the time that is left, or half a
        second. Returns within `timeout` plus five seconds: a site or disk that hangs longer is abandoned, and logged.

        Returns what remains unconfirmed: it stays in the outbox, and is sent when the outbox is opened again. Threads
        that wait for room or for a receipt get :class:`ClosedError`. Closing twice is harmless. Does not raise the
        error that stopped the producer.
        """
        check_number("timeout", timeout, least=-MOST_SECONDS)
        if self._generation != forks.generation:
            raise ForkedError("this producer belongs to the parent process")
        self._closed = True
        if not self._finished:  # also after a close() that was interrupted
            export_by = time.monotonic() + timeout
            self._engine.begin_close(export_by)
            with contextlib.suppress(FatalError, ConfirmTimeout):  # the return value shows it
                flush(self._engine, timeout)
            self._threads.end(CLOSING_S, export_by)
            self._finalizer.detach()
            self._finished = True
        return self._engine.remaining()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remaining = self.close()
        if not remaining.nothing:
            log.warning(
                "producer.closed_unconfirmed", "producer %(producer)s: %(remaining)s",
                producer=self._engine.producer_id, messages=remaining.messages, remaining=str(remaining),
            )  # fmt: skip

    def _listen_to_journal(self, listener: JournalListener) -> None:
        self._journal_listeners.add(listener)
        self._journal.listen(self._journal_listeners)

    def _look(self) -> State:
        engine = self._engine
        admission = engine.admission
        return State(self.status(), admission.used, admission.max_bytes, engine.fatal is not None)

    def _check(self, dead: bool = False) -> None:
        """Refuse use after fork() and close(), and raise the error that stopped this producer."""
        if self._generation != forks.generation:
            raise ForkedError(
                "a producer can't be used after fork(): open one of its own, with an outbox of its own"
            )
        if self._closed:
            raise ClosedError("this producer is closed")
        if self._engine.fatal is not None and not dead:
            raise self._engine.fatal

    def __repr__(self) -> str:
        return f"<Producer {self._engine.producer_id!r} {'closed' if self._closed else 'open'}>"


class NonBlocking(NamedTuple):
    """The parts of a producer that never block, for shells around event loops."""

    engine: ProducerEngine
    room: Waiters
    """Notified when there may be room in the outbox."""
    block_timeout: float
    """The number of seconds to wait for room; 0: none."""


def non_blocking(producer: Producer) -> NonBlocking:
    """The parts of a producer that is open in this process."""
    producer._check()
    return NonBlocking(producer._engine, producer._room, producer._block)


@client_name.register(Producer)
def _name(producer: Producer) -> str:
    return producer._engine.producer_id


@observed.register(Producer)
def _observed(producer: Producer) -> Observed:
    producer._check(dead=True)
    return Observed(
        producer, "producer", tuple(producer._engine.sites), producer._journal_listeners,
        producer._listen_to_journal, producer._look,
    )  # fmt: skip


class _Threads:
    """The writer thread and the transports of one producer, without a reference to the producer itself."""

    def __init__(self, engine: ProducerEngine, worker: Worker) -> None:
        """`worker`: what the engine wakes. It is started here."""
        self._engine = engine
        self._worker = worker
        self.generation = forks.generation

    def start(self) -> None:
        self._worker.start(self._engine)
        for site in self._engine.sites.values():
            site.transport.start()

    def end(self, timeout: float, export_by: float | None = None) -> None:
        """Disconnect, store what is left, close the file. Nothing in a child process after fork(). `export_by`: until
        when the last segment of the journal may take."""
        if self.generation != forks.generation:
            return
        engine, now = self._engine, time.monotonic()
        engine.begin_close()
        by = now + timeout
        if export_by is not None:
            by = max(by, export_by + STORING_S)
        elif engine.export.has_target:
            by += CLOSING_EXPORT_S
        # Sites share half of the time, so that one that hangs takes neither the others' time nor the file's.
        self._disconnect(now + (by - now) / 2)
        ended = self._worker.end(max(MIN_DISCONNECT_S, by - time.monotonic()))
        if ended:
            engine.callbacks.join(CALLBACKS_S)
        elif not self._worker.is_current:  # else it has garbage-collected a producer
            log.error(
                "producer.close_incomplete",
                "producer %(producer)s: the outbox is still being written; it is closed once the disk answers",
                producer=engine.producer_id,
            )

    def _disconnect(self, by: float) -> None:
        sites = list(self._engine.sites.values())
        for number, site in enumerate(sites):
            share = (by - time.monotonic()) / (len(sites) - number)
            site.transport.close(max(MIN_DISCONNECT_S, share))


def _forgotten(threads: _Threads, engine: ProducerEngine) -> None:
    """The producer was garbage-collected, or the program ended, without close()."""
    if threads.generation != forks.generation:
        return
    threads.end(1.0)
    left = engine.remaining().messages
    if left:
        text = (
            f"producer {engine.producer_id} was never closed: {messages_remain(left)} unconfirmed in its outbox until"
            " that is opened again. Use `with Producer(...)`, or close()"
        )
        log.warning(
            "producer.never_closed", "%(advice)s", producer=engine.producer_id, messages=left, advice=text
        )
        warnings.warn(text, ResourceWarning, stacklevel=2)
