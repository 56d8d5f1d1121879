"""The consumer that applications use."""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, overload

from reliamsg import forks
from reliamsg.arguments import (
    MOST_SECONDS,
    NotRun,
    check_callback,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_list,
    check_number,
    check_path,
    check_timeout,
)  # fmt: skip
from reliamsg.config import JournalExport, Site, check_name, check_sites, journal_export
from reliamsg.consumer.buffer import DeliverySlice, fail
from reliamsg.consumer.dead_letters import LateItem, ReplayItem
from reliamsg.consumer.deliveries import GapItem, Item
from reliamsg.consumer.dispatcher import Decisions, Dispatcher, OnGap
from reliamsg.consumer.engine import ConsumerEngine, EngineSettings
from reliamsg.consumer.runner import MOST_IDLE_S, Opener, Runner
from reliamsg.consumer.status import ConsumerStatus, Remaining, remaining, status_of, waiting_status
from reliamsg.errors import ClosedError, ConfigError, ForkedError, InboxLocked
from reliamsg.injection import injected
from reliamsg.keys import KeyRing, check_keys
from reliamsg.logs import Log
from reliamsg.message import Gap, Message
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.runtime.callbacks import CallbackThread, OnError
from reliamsg.runtime.clock import Clock, elapsed_clock
from reliamsg.runtime.closing import Closing
from reliamsg.runtime.environment import Environment, Waker, no_probe
from reliamsg.runtime.observation import (
    JournalListener,
    JournalListeners,
    Observed,
    State,
    client_name,
    observed,
)
from reliamsg.runtime.wakeup import Uninterrupted, can_be_interrupted
from reliamsg.runtime.worker import Worker
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import DeadLetter
from reliamsg.store.inbox_view import read_dead_letters
from reliamsg.transport import factory

__all__ = [
    "Consumer", "NonBlocking", "check_signing", "check_topics", "give_back", "non_blocking", "on_change",
]  # fmt: skip

log: Log = Log("reliamsg.consumer")

SLICE_MESSAGES = 256
MAX_WORKERS = 1_000
"""Most threads that handlers run on."""
EXIT_TIMEOUT_S = 2.0
"""How long closing may take at the interpreter's exit, for a consumer that was never closed."""


class Consumer:
    """Reads a group's messages from all sites, and delivers each once, in order per stream.

    ::

        consumer = Consumer("billing", sites, topics=["orders"], inbox="billing.db")
        consumer.run(handle)

    The constructor opens the inbox and starts to connect. Connecting to unreachable sites, and to sites that refuse, is
    retried without limit, and ``status()`` shows it. All durations are seconds, all sizes bytes.

    `begin`: where a stream that is new to the group starts: with the oldest message that arrives within
    `gap_timeout`, or with the first one that arrives.

    `on_gap`: what happens when messages of a stream are missing for `gap_timeout` seconds and nothing else of it can be
    delivered. ``"hold"``: the stream waits, and all others continue; `on_error` is called with a :class:`GapHeld`, once
    for each gap, and ``status()`` shows it. The stream continues by itself if the messages arrive, and without them
    after :meth:`accept` or ``reliamsg inbox accept``. Messages that their producer has removed hold no stream.
    ``"raise"``: calls that ask for messages, of any stream, raise :class:`GapError`; call :meth:`accept` to continue.
    ``"skip"``: continue without them. A callable decides with the :class:`Gap`, on the thread that asks for messages,
    by returning ``"skip"``, ``"wait"`` or ``"raise"``.

    `on_late` is called, on such a thread, with messages that arrive after their gap was passed; they are not delivered
    otherwise. Neither callback can ask for messages itself (:class:`ConfigError`).

    `on_error` is called on a thread of the consumer's own with errors of handlers, conflicts between producers,
    :class:`GapHeld`, :class:`InboxFull` when the inbox stays full for a second, the failure to write the inbox, and
    errors that terminate the consumer. It is also called with a :class:`GapError` if messages were missing when a
    stream was joined and this is detected afterwards; there is nothing to accept then.

    `max_deliveries`: a message that was delivered this often without success goes to the dead letters, and counts as
    acknowledged; with ``on_dead_letter="halt"`` :class:`DeadLetterHalt` is raised instead. Between deliveries its
    stream waits, first 0.1 seconds and each time twice as long, up to 5 seconds: with 20 deliveries, 71 seconds in all.

    `max_unacknowledged`: messages of one stream that are delivered and not acknowledged. `max_inbox_bytes`: messages
    that are held back or not acknowledged. When it is used up, brokers keep the rest until the application continues,
    or the missing messages arrive, and ``status().stalled`` shows which streams fill it.

    `max_streams`: streams (producers times topics) in memory, because something of them is not settled; idle streams
    are on disk only. As many streams again may be in memory while gaps hold them. `max_known_streams`: streams
    that the group ever reads, except those removed with ``reliamsg inbox forget``. Beyond either limit, messages go
    into the quarantine, and leave it when there is room.

    `max_quarantine_bytes`: sound messages that can't be taken in are stored whole in the inbox's quarantine. When that
    is full, :class:`QuarantineFull` terminates the consumer. While a quarter of it is in use, messages behind a held
    gap are left to their producer, if it keeps them for the group.

    `repair_delay`: messages that are missing for this long are requested from their producer. `repair_timeout`: how
    long, at most, a gap's clock waits for a producer that states that it still holds the messages.

    `takeover_timeout`: if another consumer has read for the group for this long, this one fails with
    :class:`GroupBusy`, unless it is a `standby`. A standby waits without limit, and takes over when the other has been
    silent for `takeover_timeout`, or was closed. An AMQP broker takes up to twice ``Site.heartbeat`` to notice that a
    connection was cut, and keeps its lock until then; with a shorter `takeover_timeout`, a consumer that is restarted
    after a cut may fail because of its predecessor. A standby with the same inbox continues exactly where the other
    stopped. With an inbox of its own it continues at the last position that was announced, and flags messages that the
    other may have delivered as ``redelivered``; it needs producers with ``release="consumed"``, for messages that the
    other had taken in. A consumer that can't prove for half of `takeover_timeout` that it is the one that reads
    delivers nothing until it can.

    `keys`: the keys with which producers and consumers sign frames; everything unsigned is rejected, messages of
    ordinary clients included. `unsequenced`: messages of ordinary clients are rejected (counted, and samples kept), or
    delivered in a stream of their own, whose producer is ``""``. They are numbered as they arrive, and, since they have
    no identity, are delivered twice if they arrive twice.

    `journal`: a directory, fsspec URL or :class:`~reliamsg.config.JournalExport` to which the journal is exported, in
    segments; without it the journal stays in the inbox. While the target is unavailable and the backlog is used up,
    nothing more is delivered, and ``status()`` shows it.

    Raises :class:`ConfigError`, :class:`InboxLocked`, :class:`StoreMismatch`, :class:`StoreCorrupt`,
    :class:`StoreTooNew`, :class:`StoreRetired` or :class:`InboxWriteError`.

    Threads: all methods may be called from any thread. Messages may be acknowledged on any thread. A consumer
    can't be used in a child process after ``fork()`` (:class:`ForkedError`). The next call that asks for messages
    raises fatal errors of background work.
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
        on_error: OnError | None = None,
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
        check_name("group", group)
        sites = check_sites(sites)
        names = check_topics(topics)
        _check_choices(begin=begin, on_gap=on_gap, on_dead_letter=on_dead_letter, unsequenced=unsequenced)
        _check_seconds(
            gap_timeout=gap_timeout, repair_delay=repair_delay, repair_timeout=repair_timeout,
            takeover_timeout=takeover_timeout,
        )  # fmt: skip
        _check_counts(
            max_deliveries=max_deliveries, max_unacknowledged=max_unacknowledged, max_inbox_bytes=max_inbox_bytes,
            max_streams=max_streams, max_known_streams=max_known_streams,
            max_quarantine_bytes=max_quarantine_bytes,
        )  # fmt: skip
        for name, callback in (("on_late", on_late), ("on_error", on_error)):
            check_callback(name, callback)
        check_flag("standby", standby)
        check_path("inbox", inbox)
        check_signing(keys, unsequenced)
        self._generation = forks.generation
        self._group, self._topics, self._inbox_path = group, names, inbox
        self._closed = False
        self._calls = Uninterrupted(f"reliamsg consumer {group} calls")
        self._decisions = Decisions(on_gap, on_late, self._calls)
        self._take_lock = threading.RLock()
        """Held while messages are taken from :attr:`_items`, in the main thread as well."""
        self._items: deque[Item] = deque()
        """Items from the engine that are not dealt with."""
        self._fetch_lock = threading.Lock()
        """Held while :attr:`_items` is changed, never in the main thread."""
        self._given: list[Message] = []
        """Messages taken for the main thread, which may be interrupted before it has them."""
        self._dispatcher: Dispatcher | None = None
        self._listener: Callable[[], object] | None = None
        self._journal_listeners = JournalListeners(log)
        self._has_engine = False
        self._closing = Closing()
        rules = Rules(
            max_unacknowledged=max_unacknowledged, max_deliveries=max_deliveries, halt=on_dead_letter == "halt",
            begin=begin, gap_timeout=gap_timeout, max_streams=max_streams, max_known_streams=max_known_streams,
            skip_gaps=on_gap == "skip", hold_gaps=on_gap == "hold", repair_delay=repair_delay,
            repair_timeout=repair_timeout, seed=secrets.randbits(32), signed=keys is not None,
        )  # fmt: skip
        settings = EngineSettings(
            group, names, on_late is not None, unsequenced == "deliver", max_inbox_bytes, takeover_timeout,
            on_gap if isinstance(on_gap, str) else "callable", standby, keys=keys,
            max_quarantine_bytes=max_quarantine_bytes,
        )  # fmt: skip
        self._make = _engines(settings, rules, sites, journal_export(journal), self._calls)
        self._site_names, self._max_inbox_bytes = tuple(site.name for site in sites), max_inbox_bytes
        self._on_error = on_error
        self._runner: Runner | None = None
        self._stopped = False
        self._opener: Opener | None = None
        self._start(standby, takeover_timeout)

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

    def _start(self, standby: bool, takeover_timeout: float) -> None:
        """Open the inbox; a standby does so once its holder has left it."""
        try:
            self._open_inbox()
        except InboxLocked:
            if not standby:
                raise
            every = min(1.0, takeover_timeout / 8)
            self._opener = Opener(self._open_inbox, every, f"reliamsg standby {self._group}")

    def _open_inbox(self) -> None:
        """Take the inbox, and start. Called again and again by a standby whose inbox another process has."""
        store = Inbox(self._inbox_path, self._group)
        name = f"reliamsg consumer {self._group}"
        worker = Worker(name, elapsed_clock(), log, MOST_IDLE_S)
        try:
            engine = self._make(store, self._opener is not None, worker)
        except BaseException:
            store.close()
            raise
        self._engine, self._has_engine = engine, True
        # A listener that comes later finds the engine. One that comes at this very moment is added twice.
        if self._listener is not None:
            engine.shared.changed.listen(self._listener)
        if self._journal_listeners:
            store.exported.journal.listen(self._journal_listeners)
        callbacks = CallbackThread(f"{name} errors", self._on_error, log, worker.wake)
        self._runner = runner = Runner(engine, worker, callbacks)
        self._finalizer = weakref.finalize(self, _at_exit, runner, self._calls, self._generation)
        if self._stopped:
            runner.stop()
        runner.start()

    # -- messages -----------------------------------------------------------------------------------------

    @overload
    def run(self, handler: Callable[[Message], None], *, batch: None = None, workers: int = 4) -> None: ...
    @overload
    def run(self, handler: Callable[[list[Message]], None], *, batch: int, workers: int = 4) -> None: ...
    def run(self, handler: Callable[[Any], None], *, batch: int | None = None, workers: int = 4) -> None:
        """Call `handler` with every message, until :meth:`stop`.

        A message whose handler returns is acknowledged; one whose handler raises is delivered again, in place, after
        0.1 s, doubling up to 5 s. With `batch` the handler gets a list of up to `batch` messages of one stream;
        when it raises, or has ended the process more than once, they are delivered again one by one. Messages of one
        stream are handled one after the other, streams side by side on up to `workers` threads.

        `handler` is an ordinary function. A coroutine function or a generator function is a :class:`ConfigError`: its
        body would not run. So is a handler that returns an awaitable: none of its messages is acknowledged, and
        that delivery does not count. Nothing looks at what else a handler returns; for type checkers it returns None,
        so that they refuse those functions as well.

        Raises :class:`GapError`, errors of `on_gap` and `on_late`, and fatal errors.
        """
        self._check()
        check_callback("handler", handler, optional=False)
        if batch is not None:
            check_count("batch", batch)
        check_count("workers", workers, most=MAX_WORKERS)
        if not self._await_inbox(None):
            return
        self._give_back()
        self._calls.call(partial(self._hand_back, self._given_here()))
        dispatcher = Dispatcher(
            self._engine.shared,
            self._engine.deliveries,
            self._decisions,
            handler,
            batch,
            lambda: self._stopped,
        )
        self._dispatcher = dispatcher
        dispatcher.run(workers)

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there was none within `timeout` seconds, or after :meth:`stop`.

        0 does not wait; None waits without limit. Raises :class:`GapError`, errors of `on_gap` and `on_late`, and fatal
        errors. Where an exception such as ``KeyboardInterrupt`` ends the call, a message that it had taken is
        the first that the next call returns (of this thread: the main one, since no other is interrupted).
        """
        check_timeout("timeout", timeout)
        given = self._given_here()
        if not given and not self._some(given, 1, timeout):
            return None
        # From here on nothing interrupts this.
        message = given[0]
        del given[:1]
        return message

    def _given_here(self) -> list[Message]:
        """The messages taken for this thread and not returned: to be filled, and emptied as messages are returned."""
        self._check()
        if self._decisions.deciding and self._decisions.running_here:
            raise ConfigError(
                "on_gap and on_late can't ask for messages: the call that they are called in does so, once they return"
            )
        if not can_be_interrupted():
            return []
        if self._given:  # from a call that was interrupted
            self._calls.call(self._drop_behind_failures)
        return self._given

    def _some(self, given: list[Message], most: int, timeout: float | None) -> bool:
        """Take the next messages of a stream, at most `most`, once there are any; see :meth:`get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._opener is not None and not self._await_inbox(deadline):
            return False
        engine = self._engine
        while not self._next(given, most):
            if self._stopped:
                if engine.shared.health.fatal is not None:
                    raise engine.shared.health.fatal
                return False
            left = 0.5 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            engine.shared.changed.wait(lambda: self._stopped or engine.deliveries.may_take, min(left, 0.5))
        return True

    def __iter__(self) -> Iterator[Message]:
        """Messages, until :meth:`stop`. See :meth:`get`; acknowledge each, or use ``with message.process()``."""
        while True:
            given = self._given_here()
            if not given and not self._some(given, 1, None):
                return
            message = given[0]  # from here on nothing interrupts this
            del given[:1]
            yield message

    def batches(self, max_messages: int, max_wait: float) -> Iterator[list[Message]]:
        """Lists of up to `max_messages`, of any streams, gathered for up to `max_wait` seconds each.

        No list is empty. Ends after :meth:`stop`. Raises what :meth:`get` raises, once everything gathered
        before has been given.
        """
        check_count("max_messages", max_messages)
        check_number("max_wait", max_wait, least=-MOST_SECONDS)
        return self._batches(max_messages, max_wait)

    def _batches(self, max_messages: int, max_wait: float) -> Iterator[list[Message]]:
        while True:
            given = self._given_here()
            if not given and not self._some(given, max_messages, None):
                return
            deadline = time.monotonic() + max_wait
            raised: BaseException | None = None
            try:
                while len(given) < max_messages:
                    left = max(0.0, deadline - time.monotonic())
                    if not self._some(given, max_messages - len(given), left):
                        break
            except Exception as error:  # noqa: BLE001  (raised below)
                raised = error
            gathered = given[:max_messages]  # from here on nothing interrupts this
            del given[:max_messages]
            yield gathered
            if raised is not None:
                raise raised

    def _next(self, given: list[Message], most: int) -> bool:
        """Take messages of a stream that are there now, at most `most`. Gaps and late messages on the way are dealt
        with. Wherever this is interrupted, messages that were taken are in `given`, and the rest in :attr:`_items`."""
        shared = self._engine.shared
        with self._take_lock:
            while not self._stopped:
                item = self._items[0] if self._items else None
                if isinstance(item, DeliverySlice):
                    if shared.health.fatal is None and shared.role.holds and item.take(most, given):
                        return True
                    item.end()
                elif isinstance(item, ReplayItem) and not item.done:
                    item.take(given)
                    return True
                elif isinstance(item, LateItem):
                    self._decisions.show_late(item)
                elif isinstance(item, GapItem) and not item.done:
                    self._decisions.decide(item, self._engine.deliveries)
                if not self._calls.call(partial(self._fetch, most)):
                    return False
            self._give_back()
            return False

    def _fetch(self, most: int) -> bool:
        """Put an item into :attr:`_items` that is not done, if there is one. Not in the main thread."""
        with self._fetch_lock:
            items = self._items
            while items:
                if not items[0].done:
                    return True
                self._engine.deliveries.give_back(items[0])
                items.popleft()
            item = self._engine.deliveries.take(1, max(SLICE_MESSAGES, most))
            if item is None:
                return False
            items.append(item)
            return True

    def _give_back(self) -> None:
        """End the run of messages that iteration is in the middle of."""
        with self._take_lock:
            self._calls.call(self._return_items)

    def _return_items(self) -> None:
        with self._fetch_lock:
            while self._items:
                item = self._items[0]
                if isinstance(item, DeliverySlice):
                    item.end()
                self._engine.deliveries.give_back(item)
                self._items.popleft()

    def _hand_back(self, given: list[Message]) -> None:
        """Have messages that were taken and never returned delivered again."""
        for message in given:
            if message.replayed:
                self._engine.dead_letters.put_back(ReplayItem(message))
            else:
                fail(message, NotRun("it was not returned"))
        del given[:]

    def _drop_behind_failures(self) -> None:
        """A message that was returned has failed since: those of its stream that were taken with it come again, behind
        it."""
        shared = self._engine.shared
        with shared.lock:
            failing = {stream for stream, state in shared.core.streams.items() if state.epochs.is_failing}
        dropped = [message for message in self._given if message.stream in failing and not message.replayed]
        self._given[:] = [message for message in self._given if message not in dropped]
        self._hand_back(dropped)

    def accept(self, gap: Gap) -> bool:
        """Continue without the messages of a gap, and declare them lost; durable on return, and announced to a standby
        that listens.

        False when the gap was filled or passed meanwhile. Raises :class:`InboxWriteError` when it is not
        durable yet.
        """
        check_instance("gap", gap, Gap, "a Gap, as GapError and on_gap give it")
        self._check()
        if not self._is_open:
            return False
        accepted: bool = self._calls.call(partial(self._engine.deliveries.accept, gap))
        self._engine.deliveries.wait_durable()
        if accepted:
            self._calls.call(partial(self._engine.announce_accepted, gap.stream))
        return accepted

    # -- dead letters -------------------------------------------------------------------------------------

    def dead_letters(self) -> list[DeadLetter]:
        """Messages that were given up, oldest first (at most 1,000)."""
        self._check()
        if self._is_open:
            self._engine.deliveries.wait_durable()
        return read_dead_letters(self._inbox_path)

    def replay(self, dead_letter_id: int) -> None:
        """Deliver a dead letter again, flagged ``replayed``, out of order.

        Once it is acknowledged it is no dead letter any more. One that is being replayed is not replayed once more
        before the application is done with it. Raises :class:`ConfigError` if there is no such dead letter, and
        :class:`InboxLocked` for a standby whose inbox another consumer has open.
        """
        check_count("dead_letter_id", dead_letter_id, least=0, most=2**63 - 1)
        self._check()
        if not self._is_open:
            raise InboxLocked(f"{self._inbox_path}: this standby waits for it; replay where it is open")
        if self._calls.call(partial(self._engine.dead_letters.replay, [dead_letter_id])) == (0, 1):
            raise ConfigError(f"there is no dead letter {dead_letter_id}")

    # -- state and end ------------------------------------------------------------------------------------

    def status(self) -> ConsumerStatus:
        """The state of sites, streams and waiting messages at this moment."""
        self._check()
        if not self._is_open:
            return waiting_status(self._group)
        return self._calls.call(partial(status_of, self._engine))

    def stop(self) -> None:
        """End iteration and :meth:`run` cleanly, for good. Safe in a signal handler.

        Messages whose handlers are running are finished; :meth:`close` does the rest.
        """
        self._stopped = True
        if self._runner is not None:
            self._runner.stop()

    def close(self, timeout: float = 10.0) -> Remaining:
        """Commit acknowledgements, disconnect, and close the inbox; returns what remains.

        Handlers that :meth:`run` has called are waited for, within `timeout` seconds; it may be called in one of
        them. The journal's last segment goes out if its target answers within what is left of that time (or half a
        second). Called again, it does nothing more, but waits for one that has begun: where an interruption ends the
        call, closing continues. Messages that were not acknowledged are delivered again, flagged ``redelivered``, when
        the inbox is opened again.
        """
        check_number("timeout", timeout, least=-MOST_SECONDS)
        if self._generation != forks.generation:
            raise ForkedError("this consumer was opened before fork(); it belongs to the parent process")
        if self._opener is not None and not self._opener.cancel():
            self._closed = self._stopped = True
            return Remaining(0, 0, True)
        self._closed = True
        self.stop()
        self._give_back()
        caller = threading.current_thread()
        close = partial(self._close, time.monotonic() + timeout, caller)
        begin = partial(self._closing.begin, close, f"reliamsg consumer {self._group} closes")
        begun = self._calls.call(begin)
        waits_for_us = self._dispatcher is not None and self._dispatcher.runs_in(caller)
        clean = (begun or not waits_for_us) and self._closing.wait()
        return self._calls.call(partial(remaining, self._engine, clean))

    def _close(self, deadline: float, caller: threading.Thread) -> bool:
        if self._dispatcher is not None:
            self._dispatcher.join(deadline - time.monotonic(), caller)
        assert self._runner is not None  # the inbox is open
        clean = self._runner.close(deadline - time.monotonic())
        self._finalizer.detach()
        self._calls.end()
        return clean

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self._group!r} of {', '.join(self._topics)}>"

    def _listen(self, listener: Callable[[], object]) -> None:
        self._listener = listener
        if self._has_engine:
            self._engine.shared.changed.listen(listener)

    def _listen_to_journal(self, listener: JournalListener) -> None:
        self._journal_listeners.add(listener)
        if self._has_engine:  # else a standby opens the inbox later
            self._engine.shared.inbox.exported.journal.listen(self._journal_listeners)

    def _look(self) -> State:
        status = self.status()
        failed = self._is_open and self._engine.shared.health.fatal is not None
        return State(status, status.inbox_bytes, self._max_inbox_bytes, failed)

    @property
    def _is_open(self) -> bool:
        return self._opener is None or self._opener.done

    def _await_inbox(self, deadline: float | None) -> bool:
        """Wait until the inbox is open; False at `deadline`, and after :meth:`stop`."""
        opener = self._opener
        while opener is not None and not opener.done:
            left = 0.5 if deadline is None else deadline - time.monotonic()
            if self._stopped or not (opener.wait(max(0.0, min(left, 0.5))) or left > 0):
                return False
        return True

    def _check(self) -> None:
        if self._generation != forks.generation:
            raise ForkedError("this consumer was opened before fork(); open one in the child process")
        if self._closed:
            raise ClosedError("this consumer was closed")


class NonBlocking(NamedTuple):
    """The parts of a consumer that never block, for shells around event loops."""

    engine: ConsumerEngine
    decisions: Decisions


def non_blocking(consumer: Consumer) -> NonBlocking | None:
    """The parts of a consumer; None for a standby whose inbox another consumer has."""
    consumer._check()
    return NonBlocking(consumer._engine, consumer._decisions) if consumer._is_open else None


@client_name.register(Consumer)
def _name(consumer: Consumer) -> str:
    return consumer._group


@observed.register(Consumer)
def _observed(consumer: Consumer) -> Observed:
    consumer._check()
    return Observed(
        consumer, "consumer", consumer._site_names, consumer._journal_listeners, consumer._listen_to_journal,
        consumer._look,
    )  # fmt: skip


def on_change(consumer: Consumer, listener: Callable[[], object]) -> None:
    """Call `listener` whenever there may be a message, something was committed, or the consumer has stopped: on any
    thread, possibly with locks held or in a signal handler. It must only schedule a look."""
    consumer._listen(listener)


def end_iteration(consumer: Consumer) -> None:
    """End the run of messages that iteration is in the middle of, so that others can take the rest of it."""
    consumer._give_back()


def give_back(consumer: Consumer, messages: list[Message]) -> None:
    """The same, and have `messages`, which were taken and never returned, delivered again."""
    consumer._give_back()
    consumer._calls.call(partial(consumer._hand_back, messages))


def _at_exit(runner: Runner, calls: Uninterrupted, generation: int) -> None:
    """The consumer was forgotten: leave the inbox clean all the same, where it is ours."""
    if forks.generation == generation:
        runner.close(EXIT_TIMEOUT_S)
        calls.end()


def _engines(
    settings: EngineSettings,
    rules: Rules,
    sites: Sequence[Site],
    export: JournalExport | None,
    calls: Uninterrupted,
) -> Callable[[Inbox, bool, Waker], ConsumerEngine]:
    """Make engines of an inbox, once that is open: an engine for a successor of another inbox's holder, or not, and for
    whoever steps it."""
    hooks = injected()

    def make(store: Inbox, successor: bool, waker: Waker) -> ConsumerEngine:
        environment = Environment(Clock(elapsed_clock()), waker, hooks.probe or no_probe, calls=calls)
        return ConsumerEngine(
            replace(settings, successor=successor), rules, sites, store, hooks.transports or factory, environment,
            export,
        )  # fmt: skip

    return make


def check_topics(topics: Sequence[str]) -> tuple[str, ...]:
    """The names of topics; raises :class:`ConfigError` for an invalid list."""
    names = tuple(
        check_name("topic", name) for name in check_list("topics", topics, 'names: topics=["orders"]')
    )
    if not names:
        raise ConfigError("topics is empty: there is nothing to read")
    if len(set(names)) < len(names):
        raise ConfigError("topics names one topic twice")
    return names


def _check_choices(**found: object) -> None:
    choices = {
        "begin": ("earliest", "latest"),
        "on_gap": ("hold", "raise", "skip"),
        "on_dead_letter": ("continue", "halt"),
        "unsequenced": ("refuse", "deliver"),
    }
    for name, value in found.items():
        if name == "on_gap" and callable(value):
            check_callback(name, value)
        else:
            check_choice(name, value, choices[name], ", or a callable" if name == "on_gap" else "")


def check_signing(keys: KeyRing | None, unsequenced: str) -> None:
    """Raise :class:`ConfigError` for keys that can't sign, or that `unsequenced` excludes."""
    check_keys(keys)
    if keys is not None and unsequenced == "deliver":
        raise ConfigError("unsequenced='deliver' and keys exclude each other: such messages are not signed")


def _check_seconds(**found: float) -> None:
    for name, value in found.items():
        check_number(name, value, above=0)


def _check_counts(**found: int) -> None:
    for name, value in found.items():
        check_count(name, value)
