"""``Consumer.run()``: handlers on a small pool of threads, one message or batch of a stream at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from reliamsg.arguments import unrun
from reliamsg.message import Message
from reliamsg.receiving.aside import LateItem, ReplayItem
from reliamsg.receiving.engine import GapItem, ReceivingEngine
from reliamsg.receiving.lane import Chunk, fail
from reliamsg.receiving.state import log
from reliamsg.runtime.environment import no_probe
from reliamsg.runtime.wakeup import Waiters

__all__ = ["Dispatcher"]

TURN_MESSAGES = 256
TURN_S = 0.05
"""A stream keeps its worker for so many messages and so many seconds while others wait."""
LOOK_EVERY_S = 0.5
"""Some of what is waited for comes with time alone."""


class Dispatcher:
    """Runs one handler until it is told to stop, or something is to be raised."""

    def __init__(
        self,
        engine: ReceivingEngine,
        handler: Callable[[Any], object],
        batch: int | None,
        decide_gap: Callable[[GapItem], None],
        see_late: Callable[[LateItem], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._batch = batch
        self._decide_gap = decide_gap
        self._see_late = see_late
        self._stopped = stopped
        self._raised: BaseException | None = None
        self._interrupted = False
        self._working: set[threading.Thread] = set()
        """Threads that were started and have not ended."""
        self._ended = Waiters()

    def run(self, workers: int) -> None:
        """Handle messages until stopped. Raises what a consumer's iteration would raise. When this is interrupted, the
        workers end, after what they are handling; it waits for them, unless it is interrupted again."""
        shared = self._engine.shared
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
        return self._engine.shared.health.fatal is not None

    def _raise(self, error: BaseException) -> None:
        """End all workers; the first error is what ``run()`` raises."""
        shared = self._engine.shared
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
        engine = self._engine
        changed = engine.shared.changed
        try:
            while not self._over:
                item = engine.take(self._batch or 1, self._batch or TURN_MESSAGES)
                if item is None:
                    changed.wait(lambda: self._over or engine.may_take, LOOK_EVERY_S)
                elif isinstance(item, Chunk):
                    self._chunk(item)
                elif isinstance(item, GapItem):
                    self._decide_gap(item)
                elif isinstance(item, LateItem):
                    self._see_late(item)
                else:
                    self._replay(item)
        except BaseException as error:  # noqa: BLE001  (raised by run(), on the caller's thread)
            self._raise(error)

    def _chunk(self, chunk: Chunk) -> None:
        if self._batch is not None:
            self._handle_batch(chunk, self._batch)
            return
        clock = self._engine.shared.clock
        until = clock() + TURN_S
        lane = chunk.lane
        try:
            while not self._over:
                message = chunk.next() if self._engine.shared.role.holds else None
                if message is None or not self._handle([message], message):
                    break
                lane.acknowledge(message, False)
                if clock() > until:
                    break
        finally:
            self._engine.release(chunk)

    def _handle(self, messages: list[Message], argument: Message | list[Message]) -> bool:
        """Call the handler; a failure is recorded, and what is no Exception ends ``run()`` as well."""
        try:
            result = self._handler(argument)
        except Exception as error:  # noqa: BLE001  (any of the application's own)
            log.warning("handling %s failed: %s: %s", messages[0].id, type(error).__name__, error)
            self._failed(messages, error)
            return False
        except BaseException as error:
            self._failed(messages, error)
            raise
        mistake = unrun("the handler", result)
        if mistake is not None:
            self._failed(messages, mistake)
            raise mistake
        if self._engine.probe is not no_probe:
            self._engine.probe("handled")
        return True

    def _failed(self, messages: list[Message], error: BaseException) -> None:
        shared = self._engine.shared
        with shared.lock:
            for message in messages:
                fail(message, error)
            shared.health.report(error)
            shared.agenda.due(0.0)

    def _handle_batch(self, chunk: Chunk, most: int) -> None:
        engine = self._engine
        messages: list[Message] = []
        runs: list[tuple[Message, Message]] = []
        """First and last message of each chunk's share."""
        lane = chunk.lane
        current = chunk
        try:
            while True:
                run = current.take(most - len(messages)) if engine.shared.role.holds else None
                if run:
                    messages += run
                    runs.append((run[0], run[-1]))
                if len(messages) >= most or current.offer.alone:
                    break
                more = engine.take_more(current, most, most - len(messages))
                if more is None:
                    break
                current = more
            if messages and self._handle(messages, messages):
                for first, last in runs:
                    lane.acknowledge_run(first, last)
        finally:
            engine.release(current)

    def _replay(self, item: ReplayItem) -> None:
        message = item.message
        argument: Message | list[Message] = [message] if self._batch is not None else message
        if self._handle([message], argument):
            message.ack()
