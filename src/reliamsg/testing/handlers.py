"""Tests of a handler alone: messages in order, again, missing and late, and crashes; without threads or sleeps."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from reliamsg.arguments import check_callback, check_count
from reliamsg.errors import ConfigError
from reliamsg.message import Gap, Message, MessageId, Stream
from reliamsg.testing.application import Crash, Handler, HandlerProcess, Start, copy_message, starter
from reliamsg.testing.durable import DurableDatabase, DurableDict, DurableList
from reliamsg.testing.recording import Outcome, RecordingMessage

__all__ = ["Delivery", "HandlerTest"]


@dataclass(frozen=True)
class Delivery:
    """One call of the handler with a message."""

    message: Message
    outcome: Outcome | Literal["crashed"]
    """``"acknowledged"``, ``"rejected"``, ``"failed"`` (the handler raised; the message is delivered again, until it is
    a dead letter), or ``"crashed"``."""
    error: BaseException | None = None
    """What the handler raised."""
    points: int = 0
    """How many points at which the process can crash the call passed; see :meth:`HandlerTest.deliver`."""


class _Points:
    """Counts the points that a handler passes, and has it crash or fail at one of them. Outside of a call, as in the
    test itself and when the process starts, nothing counts."""

    def __init__(self) -> None:
        self._counting = False
        self.passed = 0
        self.dead = self.failed = False
        """The process has crashed; an operation has failed."""
        self._crash_at = self._fail_at = 0

    def begin(self, crash_at: int = 0, fail_at: int = 0) -> None:
        """A call begins: count anew."""
        self._counting = True
        self.passed, self.dead, self.failed = 0, False, False
        self._crash_at, self._fail_at = crash_at, fail_at

    def end(self) -> None:
        """The call has ended."""
        self._counting = False

    def before(self, what: str, error: Exception) -> None:
        """See :class:`~reliamsg.testing.durable.Hazards`."""
        self.after(what, error)

    def after(self, what: str, error: Exception | None = None) -> None:
        """See :class:`~reliamsg.testing.durable.Hazards`."""
        if not self._counting:
            return
        self.passed += 1
        if self.dead or self.passed == self._crash_at:
            self.dead = True
            raise Crash
        if self.passed == self._fail_at and error is not None:
            self.failed = True
            raise error


class HandlerTest:
    """Calls a handler as :meth:`~reliamsg.Consumer.run` does: in order, with redeliveries, gaps, late messages and
    crashes, in the thread of the caller and without waiting.

    ::

        with HandlerTest() as test:
            database = test.database()  # survives crashes
            test.start(lambda: Ledger(database.connect()).handle)
            test.deliver(b"one", b"two")
            test.redeliver()  # b"two" again, after a crash
            assert test.acknowledged == [b"one", b"two"]

    `handler`: a function or coroutine function that is called with a message, or, with `batch`, with a list of up to
    `batch` messages. For a handler that must be made anew after a crash, use :meth:`start` instead.

    `errors`: exceptions that the handler is expected to raise. The message is delivered again, up to `max_deliveries`
    times, and then it is a dead letter. Any other exception leaves :meth:`deliver`. `on_gap` and `on_late` are those
    of :class:`~reliamsg.Consumer`.

    As a context manager, it deletes its database, and closes the event loop of a coroutine function.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        batch: int | None = None,
        errors: type[Exception] | tuple[type[Exception], ...] = (),
        max_deliveries: int = 20,
        on_gap: Callable[[Gap], str] | None = None,
        on_late: Callable[[Message], object] | None = None,
    ) -> None:
        self._start = None if handler is None else starter(handler, None)
        for name, callback in (("on_gap", on_gap), ("on_late", on_late)):
            check_callback(name, callback)
        if batch is not None:
            check_count("batch", batch)
        check_count("max_deliveries", max_deliveries)
        self.deliveries: list[Delivery] = []
        """All calls of the handler, in order; a batch counts once for each message."""
        self.dead_letters: list[Message] = []
        """Messages that were rejected, or failed `max_deliveries` times."""
        self._batch, self._errors, self._max_deliveries = batch, errors, max_deliveries
        self._on_gap, self._on_late = on_gap, on_late
        self._points = _Points()
        self._waiting: list[Message] = []
        """Messages that are not settled, in the order in which they are delivered."""
        self._latest: dict[Stream, tuple[int, int]] = {}
        """By stream, epoch and number of the latest message."""
        self._missing: list[Message] = []
        """Messages of the default stream that were skipped, without their content."""
        self._settled: list[Message] = []
        """Acknowledged messages, in order."""
        self._attempts = Counter[MessageId]()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._databases: list[DurableDatabase] = []
        self._process: HandlerProcess | None = None

    def start(self, start: Start) -> None:
        """`start` returns the handler. It is called before the first message, and after each crash: what the handler
        keeps in memory is lost then. What must survive a crash belongs outside of `start`."""
        self._start = starter(None, start)

    # -- what survives crashes ----------------------------------------------------------------------------

    def database(self, name: str = "database") -> DurableDatabase:
        """An SQLite database that survives crashes up to its last commit."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="reliamsg-test-")
        made = DurableDatabase(Path(self._directory.name) / f"{name}.db", self._points)
        self._databases.append(made)
        return made

    def durable_list(self, name: str = "list") -> DurableList[Any]:
        """A list that survives crashes."""
        return DurableList(name, self._points)

    def durable_dict(self, name: str = "dict") -> DurableDict[Any, Any]:
        """A dictionary that survives crashes."""
        return DurableDict(name, self._points)

    def point(self, name: str = "a point", error: Exception | None = None) -> None:
        """To be called by the handler: a point at which the process may crash, or, with `error`, an operation that may
        fail with it."""
        self._points.after(name, error)

    # -- deliveries ---------------------------------------------------------------------------------------

    def deliver(self, *messages: bytes | Message, crash_at: int = 0, fail_at: int = 0) -> list[Delivery]:
        """Deliver messages, after those that still wait, until all are settled.

        A body becomes the next message of the stream of :class:`RecordingMessage`'s defaults. A :class:`Message` must
        follow the latest one of its stream; a stream may begin with any number.

        `crash_at`: crash at this point, counted from 1, of the first call of the handler. Points are before and after
        each change of a :meth:`database`, :meth:`durable_list` or :meth:`durable_dict`, and each call of
        :meth:`point`; the last one is when the handler has returned, and its message is not acknowledged yet. This
        method returns after the crash. Call it again, without messages, to start the process anew: it delivers what is
        not settled, first the message that was being handled, flagged.

        `fail_at`: what the handler does at this point fails, and raises an error in the handler; nothing happens if it
        can't. The handler may raise that error, or another one: the message is delivered again.

        Returns the calls of the handler that were made. Raises :class:`ConfigError` if the first one did not reach that
        point.
        """
        check_count("crash_at", crash_at, least=0)
        check_count("fail_at", fail_at, least=0)
        self._waiting += [self._next(each) for each in messages]
        begin = len(self.deliveries)
        while self._waiting:
            alive = self._handle_next(crash_at, fail_at)
            if alive and self._points.passed < max(crash_at, fail_at):
                name = "crash_at" if crash_at else "fail_at"
                raise ConfigError(
                    f"{name}={max(crash_at, fail_at)}: the handler returned after {self._points.passed} points"
                )
            if not alive:
                break
            crash_at = fail_at = 0
        return self.deliveries[begin:]

    def redeliver(self, count: int = 1) -> list[Delivery]:
        """Crash before the latest `count` acknowledgements are durable, and deliver these messages again, flagged."""
        self.crash(unacked=count)
        return self.deliver()

    def crash(self, unacked: int = 0) -> None:
        """The process crashes between two messages, and starts again: what the handler has in memory is lost.

        `unacked`: how many of the latest acknowledgements are lost with it. :meth:`deliver` delivers these
        messages again, flagged.
        """
        check_count("unacked", unacked, least=0)
        if unacked > len(self._settled):
            raise ConfigError(f"{unacked} acknowledgements can't be lost: there are {len(self._settled)}")
        kept = len(self._settled) - unacked
        self._waiting[:0] = [copy_message(each, redelivered=True) for each in self._settled[kept:]]
        del self._settled[kept:]
        self._end_process()

    def replay(self, dead_letter: int = 0) -> Delivery:
        """Deliver a dead letter again, out of order and flagged ``replayed``. Once it is acknowledged, it is no dead
        letter any more."""
        check_count("dead_letter", dead_letter, least=0)
        if dead_letter >= len(self.dead_letters):
            raise ConfigError(f"there is no dead letter {dead_letter}: there are {len(self.dead_letters)}")
        message = copy_message(self.dead_letters[dead_letter], replayed=True)
        found = self._call([message])
        if found == "acknowledged":
            del self.dead_letters[dead_letter]
            self._settled.append(message)
        return self.deliveries[-1]

    def gap(self, count: int = 1) -> str:
        """`count` messages of the default stream are missing. Calls `on_gap`, and returns its decision.

        After ``"skip"``, the next message has a higher number, and :meth:`late` can deliver those that are missing.
        After ``"wait"``, nothing is skipped. Without `on_gap` the answer is ``"skip"``.
        """
        check_count("count", count)
        stream = Message().stream
        epoch, last = self._latest.get(stream, (1, 0))
        gap = Gap(stream, epoch, last + 1, last + count, "expired")
        decision = "skip" if self._on_gap is None else self._on_gap(gap)
        if decision not in ("skip", "wait", "raise"):
            raise ConfigError(f"on_gap returned {decision!r}: it must return 'skip', 'wait' or 'raise'")
        if decision == "skip":
            self._latest[stream] = epoch, last + count
            self._missing += [Message(epoch=epoch, seq=last + n) for n in range(1, count + 1)]
        return decision

    def late(self, body: bytes = b"") -> Message:
        """The oldest message that :meth:`gap` skipped arrives. It is passed to `on_late`, and never to the handler."""
        if not self._missing:
            raise ConfigError("nothing is late: gap() has not skipped a message")
        message = copy_message(self._missing.pop(0), body=body)
        if self._on_late is not None:
            self._on_late(message)
        return message

    @property
    def acknowledged(self) -> list[bytes]:
        """The bodies of acknowledged messages, in order, each once."""
        return [message.body for message in self._settled]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_process()
        if self._directory is not None:
            self._directory.cleanup()

    # -- the consumer ---------------------------------------------------------------------------------------

    def _next(self, given: bytes | Message) -> Message:
        """A message that is to be delivered."""
        if isinstance(given, bytes):
            epoch, last = self._latest.get(Message().stream, (1, 0))
            given = Message(epoch=epoch, seq=last + 1, body=given)
        elif not isinstance(given, Message):
            raise ConfigError(f"a body must be bytes, not {type(given).__name__}; encode it first")
        place, latest = (given.epoch, given.seq), self._latest.get(given.stream, (0, 0))
        if place <= latest:
            raise ConfigError(
                f"{given.id} does not follow epoch {latest[0]}, number {latest[1]}: to deliver it again, use"
                " redeliver(); to deliver it late, gap() and late()"
            )
        self._latest[given.stream] = place
        return copy_message(given)

    def _handle_next(self, crash_at: int, fail_at: int) -> bool:
        """Call the handler once; returns whether the process is still there."""
        first = self._waiting[0]
        count = 1
        while (
            count < min(self._batch or 1, len(self._waiting)) and self._waiting[count].stream == first.stream
        ):
            count += 1
        messages = self._waiting[:count]
        try:
            outcome = self._call(messages, crash_at, fail_at)
        except Exception:
            self._waiting[:count] = [copy_message(each, redelivered=True) for each in messages]
            raise
        left = []
        for message, found in zip(messages, self.deliveries[-count:], strict=True):
            self._attempts[message.id] += 1
            if found.outcome == "acknowledged":
                self._settled.append(message)
            elif found.outcome == "rejected" or (
                found.outcome == "failed" and self._attempts[message.id] >= self._max_deliveries
            ):
                self.dead_letters.append(message)
            else:
                left.append(copy_message(message, redelivered=True))
        self._waiting[:count] = left
        return outcome != "crashed"

    def _call(self, messages: list[Message], crash_at: int = 0, fail_at: int = 0) -> str:
        """Call the handler, and record what becomes of the messages; returns what became of the last one."""
        fields: list[Any] = [each.content() for each in messages]
        given = [RecordingMessage(*each) for each in fields]
        process = self._process = self._process or HandlerProcess(self._started())
        crashed, raised = False, None
        self._points.begin(crash_at, fail_at)
        try:
            process.handle(given if self._batch is not None else given[0])
            self._points.after("the end of the handler")
        except Crash:
            crashed = True
        except Exception as error:  # noqa: BLE001  (any of the application's own)
            raised = error
        finally:
            self._points.end()
        crashed |= self._points.dead  # also where the handler has caught it
        for message, recorded in zip(messages, given, strict=True):
            outcome = _outcome(recorded, crashed, raised)
            reason = None if outcome in ("acknowledged", "rejected") else raised or recorded.error
            self.deliveries.append(Delivery(message, outcome, reason, self._points.passed))
        if crashed:
            self._end_process()
        elif raised is not None and not (self._points.failed or isinstance(raised, self._errors)):
            raise raised
        return "crashed" if crashed else self.deliveries[-1].outcome

    def _started(self) -> Start:
        if self._start is None:
            raise ConfigError("there is no handler: pass one to HandlerTest, or call start()")
        return self._start

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
        for database in self._databases:
            database.end_process()


def _outcome(
    recorded: RecordingMessage, crashed: bool, raised: Exception | None
) -> Outcome | Literal["crashed"]:
    """What became of a message: what the handler did itself, or else what a consumer does when it has returned."""
    if crashed:  # only what was durable counts
        return "acknowledged" if recorded.durable else "crashed"
    if recorded.outcome != "open":
        return recorded.outcome
    return "acknowledged" if raised is None else "failed"
