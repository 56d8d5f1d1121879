"""``Consumer.run()``: handlers on a small pool of threads, one message or batch of a stream at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

from reliamsg.arguments import unrun
from reliamsg.consumer.buffer import DeliverySlice, fail
from reliamsg.consumer.dead_letters import LateItem, ReplayItem
from reliamsg.consumer.deliveries import Deliveries, GapItem
from reliamsg.consumer.shared import Shared
from reliamsg.errors import ConfigError
from reliamsg.logs import Log
from reliamsg.message import Gap, Message
from reliamsg.runtime.environment import no_probe
from reliamsg.runtime.wakeup import Uninterrupted, Waiters

__all__ = ["Batch", "Decisions", "Dispatcher", "OnGap", "record_failure"]

log: Log = Log("reliamsg.consumer")

TURN_MESSAGES = 256
TURN_S = 0.05
"""A stream keeps its worker for this many messages and seconds while others wait."""
LOOK_EVERY_S = 0.5
"""Some conditions become true with time alone, and no notification follows."""


T = TypeVar("T")
GapDecision = Literal["skip", "wait", "raise"]
OnGap = Literal["hold", "raise", "skip"] | Callable[[Gap], GapDecision]


class Decisions:
    """Calls ``on_gap`` and ``on_late``, on the threads that ask for messages."""

    def __init__(
        self, on_gap: OnGap, on_late: Callable[[Message], object] | None, calls: Uninterrupted
    ) -> None:
        self._on_gap = on_gap
        self._on_late = on_late
        self._calls = calls
        self.deciding: set[int] = set()
        """Threads in which one of the two runs."""

    @property
    def running_here(self) -> bool:
        """Whether one of the two runs in this thread."""
        return threading.get_ident() in self.deciding

    def decide(self, item: GapItem, deliveries: Deliveries) -> None:
        """Do with a gap as the application wants; raises GapError where it wants that."""
        if isinstance(self._on_gap, str):
            raise item.asked()
        decision = self._call(self._on_gap, item.gap)
        mistake = unrun("on_gap", decision)
        if mistake is not None:
            raise mistake
        if decision == "skip":
            self._calls.call(partial(_skip, item, deliveries))
        elif decision == "raise":
            raise item.asked()
        elif decision == "wait":
            item.decided()
        else:
            raise ConfigError(f"on_gap returned {decision!r}: it must return 'skip', 'wait' or 'raise'")

    def show_late(self, item: LateItem) -> None:
        """Show late messages. One for which `on_late` raises an error counts as shown; one for which it is interrupted
        is shown again."""
        while not item.done:
            if self._on_late is not None:
                try:
                    result = self._call(self._on_late, item.messages[0])
                except Exception:
                    item.seen()
                    raise
                mistake = unrun("on_late", result)
                if mistake is not None:
                    raise mistake  # it was not shown
            item.seen()

    def _call(self, callback: Callable[[T], object], about: T) -> object:
        """A callback that asked for messages would be called about the same once more."""
        thread = threading.get_ident()
        try:
            self.deciding.add(thread)
            return callback(about)
        finally:
            self.deciding.discard(thread)


def _skip(item: GapItem, deliveries: Deliveries) -> None:
    deliveries.accept(item.gap)
    item.decided()


class Batch:
    """Messages of one stream for one call of a handler, from as many slices as that takes."""

    def __init__(self, shared: Shared, deliveries: Deliveries, portion: DeliverySlice) -> None:
        """`portion`: the first slice. Call :meth:`release` in the end, whatever happens."""
        self.messages: list[Message] = []
        self._shared, self._deliveries, self._portion = shared, deliveries, portion
        self._runs: list[tuple[Message, Message]] = []
        """First and last message of each slice."""

    def gather(self, most: int) -> None:
        """Take up to `most` messages, as far as they are there."""
        shared, messages = self._shared, self.messages
        while True:
            run = self._portion.take(most - len(messages)) if shared.role.holds else None
            if run:
                messages += run
                self._runs.append((run[0], run[-1]))
            if len(messages) >= most or self._portion.offer.alone:
                return
            take = partial(self._deliveries.take_more, self._portion, most, most - len(messages))
            more = shared.uninterrupted(take)
            if more is None:
                return
            self._portion = more

    def acknowledge(self) -> None:
        """The handler has returned."""
        for first, last in self._runs:
            self._portion.buffer.acknowledge_run(first, last)

    def release(self) -> None:
        """Let the stream go on."""
        self._shared.uninterrupted(partial(self._deliveries.release, self._portion))


def record_failure(shared: Shared, messages: list[Message], error: BaseException, *, report: bool) -> None:
    """Have messages delivered again whose handler raised `error`. `report`: tell ``on_error``."""
    with shared.lock:
        for message in messages:
            fail(message, error)
        if report:
            shared.health.report(error)
        shared.agenda.due(0.0)


class Dispatcher:
    """Runs a handler until the application stops it, or an error is to be raised."""

    def __init__(
        self,
        shared: Shared,
        deliveries: Deliveries,
        decisions: Decisions,
        handler: Callable[[Any], object],
        batch: int | None,
        stopped: Callable[[], bool],
    ) -> None:
        self._shared = shared
        self._deliveries = deliveries
        self._decisions = decisions
        self._handler = handler
        self._batch = batch
        self._stopped = stopped
        self._raised: BaseException | None = None
        self._interrupted = False
        self._working: set[threading.Thread] = set()
        """Threads that were started and have not ended."""
        self._ended = Waiters()

    def run(self, workers: int) -> None:
        """Handle messages until stopped. Raises what a consumer's iteration would raise. When this is interrupted, the
        workers end, after what they are handling; it waits for them, unless it is interrupted again."""
        shared = self._shared
        try:
            shared.uninterrupted(partial(self._start, workers))
            while not self._over:
                shared.changed.wait(lambda: self._over, LOOK_EVERY_S)
        except BaseException:
            self._interrupted = True
            shared.changed.notify_all()
            self.join(None)
            raise
        self.join(None)
        ended_by = self._raised or shared.health.fatal
        if ended_by is not None:
            raise ended_by

    def _start(self, workers: int) -> None:
        for i in range(workers):
            if self._over:
                return
            thread = threading.Thread(target=self._work, name=f"reliamsg handler {i + 1}", daemon=True)
            self._working.add(thread)
            try:
                thread.start()
            except BaseException:
                self._working.discard(thread)
                raise

    def join(self, timeout: float | None, caller: threading.Thread | None = None) -> None:
        """Wait until no handler runs any more, but for one in the thread `caller`; at most `timeout` seconds."""
        others = {caller}
        self._ended.wait(lambda: self._working <= others, timeout)

    def runs_in(self, thread: threading.Thread) -> bool:
        """Whether a handler runs in that thread."""
        return thread in self._working

    @property
    def _over(self) -> bool:
        if self._raised is not None or self._interrupted or self._stopped():
            return True
        return self._shared.health.fatal is not None

    def _raise(self, error: BaseException) -> None:
        """End all workers; the first error is what ``run()`` raises."""
        shared = self._shared
        with shared.lock:
            if self._raised is None:
                self._raised = error
        shared.changed.notify_all()

    def _work(self) -> None:
        try:
            self._handle_all()
        finally:
            self._working.discard(threading.current_thread())
            self._ended.notify_all()

    def _handle_all(self) -> None:
        deliveries, changed = self._deliveries, self._shared.changed
        try:
            while not self._over:
                item = deliveries.take(self._batch or 1, self._batch or TURN_MESSAGES)
                if item is None:
                    changed.wait(lambda: self._over or deliveries.may_take, LOOK_EVERY_S)
                elif isinstance(item, DeliverySlice):
                    self._handle_slice(item)
                elif isinstance(item, GapItem):
                    self._decisions.decide(item, deliveries)
                elif isinstance(item, LateItem):
                    self._show_late(item)
                else:
                    self._replay(item)
        except BaseException as error:  # noqa: BLE001  (raised by run(), on the caller's thread)
            self._raise(error)

    def _show_late(self, item: LateItem) -> None:
        """If this fails, another thread shows the rest."""
        try:
            self._decisions.show_late(item)
        finally:
            self._deliveries.give_back(item)

    def _handle_slice(self, portion: DeliverySlice) -> None:
        if self._batch is not None:
            self._handle_batch(portion, self._batch)
            return
        clock = self._shared.clock
        until = clock() + TURN_S
        buffer = portion.buffer
        try:
            while not self._over:
                message = portion.next() if self._shared.role.holds else None
                if message is None or not self._handle([message], message):
                    break
                buffer.acknowledge(message, False)
                if clock() > until:
                    break
        finally:
            self._deliveries.release(portion)

    def _handle(self, messages: list[Message], argument: Message | list[Message]) -> bool:
        """Call the handler; a failure is recorded, and a BaseException also terminates ``run()``."""
        try:
            result = self._handler(argument)
        except Exception as error:  # noqa: BLE001  (any of the application's own)
            log.warning(
                "consumer.handler_failed", "handling %(message_id)s failed: %(error)s: %(reason)s",
                group=self._shared.group, message_id=str(messages[0].id), messages=len(messages),
                error=type(error).__name__, reason=str(error),
            )  # fmt: skip
            self._failed(messages, error)
            return False
        except BaseException as error:
            self._failed(messages, error)
            raise
        mistake = unrun("the handler", result)
        if mistake is not None:
            self._failed(messages, mistake)
            raise mistake
        if self._deliveries.probe is not no_probe:
            self._deliveries.probe("handled")
        return True

    def _failed(self, messages: list[Message], error: BaseException) -> None:
        record_failure(self._shared, messages, error, report=True)

    def _handle_batch(self, portion: DeliverySlice, most: int) -> None:
        batch = Batch(self._shared, self._deliveries, portion)
        try:
            batch.gather(most)
            if batch.messages and self._handle(batch.messages, batch.messages):
                batch.acknowledge()
        finally:
            batch.release()

    def _replay(self, item: ReplayItem) -> None:
        message = item.message
        argument: Message | list[Message] = [message] if self._batch is not None else message
        if self._handle([message], argument):
            message.ack()
