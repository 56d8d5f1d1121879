"""The work of a consumer's worker thread, and how it is shut down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from reliamsg.consumer.engine import MOST_IDLE_S, ConsumerEngine
from reliamsg.consumer.forgetting import Forgetting
from reliamsg.errors import FatalError, InboxLocked, ReliamsgError
from reliamsg.logs import Log
from reliamsg.message import Gap
from reliamsg.runtime.callbacks import CallbackThread
from reliamsg.runtime.wakeup import Waiters, Wakeup
from reliamsg.runtime.worker import Worker
from reliamsg.store.quarantine import LATER_VERSION, Selection
from reliamsg.store.requests import Answer, Request, RequestBox

__all__ = ["MOST_IDLE_S", "Opener", "Runner"]

log: Log = Log("reliamsg.consumer")

LEAST_END_S = 0.1
"""The worker has this long for its last step, even if there is no time left."""
LEAST_GOODBYE_S = 0.5
"""Closing a connection, and the last calls of ``on_error``, may take this long even if there is no time left."""
MAX_REPLAYING_BYTES = 64 * 1024 * 1024
"""Dead letters that operators have delivered again are in memory until they are handled."""
REPLAY_PAGE = 16
"""How many dead letters are read at a time."""
REQUESTS_EVERY_S = 0.25
"""How often requests of operators are looked for."""


class Opener:
    """Calls `attempt` every `every` seconds, on a thread of its own, for as long as it raises InboxLocked."""

    def __init__(self, attempt: Callable[[], None], every: float, name: str) -> None:
        self._attempt = attempt
        self._every = every
        self._ended = self._cancelled = False
        self._waiters = Waiters()
        self._wakeup = Wakeup()
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        """Why there will be no further attempt, where that is no success."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the inbox is open."""
        return self._ended and self.error is None

    def wait(self, timeout: float) -> bool:
        """Wait for up to `timeout` seconds until the inbox is open; raises what makes that impossible."""
        self._waiters.wait(lambda: self._ended, timeout)
        if self.error is not None:
            raise self.error
        return self.done

    def cancel(self) -> bool:
        """No further attempt begins; returns whether the inbox is open. Waits for one that has begun."""
        self._cancelled = True
        self._wakeup.set()
        with self._lock:
            return self.done

    def _run(self) -> None:
        while not self._ended:
            with self._lock:
                if self._cancelled:
                    return
                self._try()
            if not self._ended:
                self._wakeup.wait(self._every)

    def _try(self) -> None:
        try:
            self._attempt()
        except InboxLocked as error:
            log.debug("consumer.inbox_locked", "%(reason)s", reason=str(error))
            return
        except BaseException as error:  # noqa: BLE001  (raised by the next call that waits)
            self.error = error
        self._ended = True
        self._waiters.notify_all()


class Operating:
    """Carries out requests of operators, on the thread that owns the inbox."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._box = RequestBox(engine.shared.inbox.path)
        self.looks_at: float = float("-inf")
        """When :meth:`step` looks for requests again."""

    def step(self, now: float) -> None:
        """Carry out new requests. Each request is answered when it is durable; one that fails
        for want of room on the disk stays."""
        self.looks_at = now + REQUESTS_EVERY_S
        if not self._engine.shared.health.may_write:
            return
        for name, request in self._box.waiting():
            try:
                answer = self._carry_out(request, now)
            except ReliamsgError as error:
                log.warning(
                    "consumer.request_failed",
                    "operator: %(action)s is tried again: %(reason)s",
                    group=self._engine.shared.group, action=request.action, reason=str(error),
                )  # fmt: skip
                return
            log.info(
                "consumer.request_done", "operator: %(action)s: %(answer)s",
                group=self._engine.shared.group, action=request.action, answer=answer.text,
            )  # fmt: skip
            self._box.answer(name, answer)

    def _carry_out(self, request: Request, now: float) -> Answer:
        if request.action == "accept":
            return self._accept(request, now)
        if request.action == "forget":
            return self._forget(request, now)
        if request.action == "replay_dead":
            return self._replay_dead(request.ids or ())
        which = Selection(request.ids, request.reason, request.stream)
        return self._replay(which) if request.action == "replay" else self._discard(which, now)

    def _accept(self, request: Request, now: float) -> Answer:
        if request.stream is None:
            return Answer(False, "no stream is named")
        gap = Gap(request.stream, request.epoch, request.first, request.last, "accepted")
        done = self._engine.deliveries.accept(gap)
        self._make_durable(now)
        if done:
            self._engine.announce_accepted(gap.stream)
        return Answer(done, f"{gap.stream}: accepted" if done else f"{gap.stream}: this is no gap (any more)")

    def _forget(self, request: Request, now: float) -> Answer:
        what = Forgetting(request.streams, unused_since_us=request.unused_since_us)
        if request.epoch:
            what = replace(what, below=min(what.below, request.epoch))
        count = self._engine.forget(what, now)
        left = len(request.streams) - count
        text = f"{count:,} forgotten"
        if left:
            text += f"; {left:,} kept: in use, not settled to their end, or not known any more"
        return Answer(not left, text)

    def _replay_dead(self, ids: tuple[int, ...]) -> Answer:
        """Nothing of this is stored: if the consumer is closed before they are handled, they are still dead letters."""
        letters, queued, left = self._engine.dead_letters, 0, ids
        while left and letters.replaying_bytes < MAX_REPLAYING_BYTES:
            page, left = left[:REPLAY_PAGE], left[REPLAY_PAGE:]
            queued += letters.replay(page)[0]
        text = f"{queued:,} of {len(ids):,} dead letters are delivered again"
        if left:
            text += "; ask for the others when these are handled"
        return Answer(not left, text)

    def _make_durable(self, now: float) -> None:
        number = self._engine.shared.durability.want_soon()
        self._engine.flush(now)
        self._engine.shared.durability.is_durable(number)  # raises where it is not

    def _replay(self, which: Selection) -> Answer:
        shared = self._engine.shared
        count = shared.inbox.quarantine.mark(which, True)
        with shared.lock:
            shared.quarantine.replay(Selection(ids=()))
            shared.agenda.due(0.0)
        return Answer(True, f"{count:,} deliveries are replayed")

    def _discard(self, which: Selection, now: float) -> Answer:
        shared = self._engine.shared
        found = shared.inbox.quarantine.select(which)
        with shared.lock:
            gone = [one for one in found if one.id not in shared.quarantine.replaying]
            for one in gone:
                if one.reason == LATER_VERSION:  # its messages are unknown
                    shared.journal.note("rejected", site=one.site, reason="discarded", detail={"count": 1})
                    continue
                shared.journal.note(
                    "quarantine_discarded", stream=one.stream, epoch=one.epoch, incarnation=one.incarnation,
                    first=one.first, last=one.last, site=one.site, reason=one.reason,
                )  # fmt: skip
            shared.durability.pending.unquarantined.extend(one.id for one in gone)
        self._make_durable(now)
        return Answer(True, f"{len(gone):,} deliveries are discarded")


class _Work:
    """The steps of a consumer: its engine, requests of operators, and calls of ``on_error``."""

    def __init__(self, engine: ConsumerEngine, callbacks: CallbackThread) -> None:
        self._engine = engine
        self._callbacks = callbacks
        self._operating = Operating(engine)
        self._closer: threading.Thread | None = None
        """Closes connections that were given up."""
        self._stopped = False
        self._close_by: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether the application asked to end."""
        return self._stopped

    # -- what the application calls -----------------------------------------------------------------------

    def start(self) -> None:
        """Do what operators asked for while the inbox was closed, and let the sites connect."""
        self._operating.step(self._engine.shared.clock())
        self._engine.start()

    def stop(self) -> None:
        """Have everybody who waits for messages look up. Takes no lock: safe in a signal handler."""
        self._stopped = True
        self._engine.shared.changed.notify_all()

    def close_at_end(self, deadline: float) -> None:
        """Have the worker itself close, after its last step."""
        self._close_by = deadline

    # -- what the worker calls ----------------------------------------------------------------------------

    def step(self) -> float | None:
        """See :class:`~reliamsg.runtime.worker.Work`."""
        shared = self._engine.shared
        deadline, now = self._engine.step_when_due(shared.clock()), shared.clock()
        if self._engine.standby.gave_up:
            self._close_given_up()
        if now >= self._operating.looks_at:
            self._operating.step(now)
        if shared.health.errors:
            self._report_errors()
        if self._stopped:
            shared.changed.notify_all()
        return deadline

    def fail(self, error: FatalError) -> None:
        """See :class:`~reliamsg.runtime.worker.Work`."""
        self._engine.shared.health.fail(error)
        self._report_errors()

    def finish(self) -> None:
        """See :class:`~reliamsg.runtime.worker.Work`."""
        if self._close_by is not None:
            self.close(self._close_by)

    def _report_errors(self) -> None:
        """Have ``on_error`` called with what happened since the last time."""
        for error in self._engine.shared.health.take_errors():
            self._callbacks.report(error)
        self._callbacks.start()

    def _close_given_up(self) -> None:
        """Beside the steps, since it waits. Connections that are given up meanwhile are closed after a later step."""
        if self._closer is not None and self._closer.is_alive():
            return
        close = self._engine.standby.close_given_up
        self._closer = threading.Thread(
            target=close, name=f"{threading.current_thread().name} closer", daemon=True
        )
        try:
            self._closer.start()
        except RuntimeError:  # no thread can be started: the interpreter is shutting down
            self._closer = None
            close()

    # -- after the last step ------------------------------------------------------------------------------

    def close(self, deadline: float) -> bool:
        """Commit, disconnect, and give the inbox up; returns whether the stop was clean."""
        engine, shared = self._engine, self._engine.shared
        try:
            # Acknowledgements first, so that the brokers still receive them.
            engine.flush(shared.clock())
            engine.say_goodbye(shared.clock())
            if self._closer is not None:
                self._closer.join(max(0.0, deadline - time.monotonic()))
            engine.standby.close_given_up()
            for site in engine.sites.values():
                site.close(lambda: max(LEAST_GOODBYE_S, deadline - time.monotonic()))
            engine.flush(shared.clock(), closing=True)
            engine.finish_export(shared.clock() + deadline - time.monotonic())
        except ReliamsgError as error:
            log.error(
                "consumer.close_failed", "%(inbox)s: not closed cleanly: %(reason)s",
                group=shared.group, inbox=str(shared.inbox.path), reason=str(error),
            )  # fmt: skip
        self._report_errors()
        with shared.lock:
            clean = shared.health.may_write and shared.durability.write_error is None
        shared.health.close()
        shared.inbox.close()
        self._callbacks.close(max(LEAST_GOODBYE_S, deadline - time.monotonic()))
        return clean


class Runner:
    """Runs an engine until it is closed."""

    def __init__(self, engine: ConsumerEngine, worker: Worker, callbacks: CallbackThread) -> None:
        """`worker`: what the engine wakes. It is started here."""
        self._engine = engine
        self._worker = worker
        self._work = _Work(engine, callbacks)
        self._close_lock = threading.Lock()
        self._closed = False

    @property
    def stopped(self) -> bool:
        """Whether the application asked to end."""
        return self._work.stopped

    def start(self) -> None:
        """Once; :meth:`stop` may have been called before."""
        self._work.start()
        self._worker.start(self._work)

    def stop(self) -> None:
        """Have everybody who waits for messages look up. Takes no lock: safe in a signal handler."""
        self._work.stop()
        self._worker.wake()

    def close(self, timeout: float) -> bool:
        """Commit, disconnect, and give the inbox up. Returns whether the stop was clean; only once."""
        with self._close_lock:
            if self._closed:
                return False
            self._closed = True
        deadline = time.monotonic() + max(0.0, timeout)
        self.stop()
        if self._worker.is_current:  # it has collected a consumer that was not closed
            self._work.close_at_end(deadline)
        if self._worker.end(max(LEAST_END_S, timeout)):
            return self._work.close(deadline)
        if not self._worker.is_current:
            # It hangs in a write. The inbox can't be closed under it; the process's end will release it.
            log.error(
                "consumer.close_incomplete", "%(inbox)s: still being written; not closed cleanly",
                group=self._engine.shared.group, inbox=str(self._engine.shared.inbox.path),
            )  # fmt: skip
            self._engine.shared.health.close()
        return False
