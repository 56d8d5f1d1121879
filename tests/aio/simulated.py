"""Simulated processes whose applications are written with asyncio: tasks that publish and consume with the parts of
:mod:`reliamsg.aio`, and are cancelled anywhere.

``python -m tests.aio.simulated A:B [--messages N] [--jobs N]`` runs these seeds, and ``python -m tests.aio.simulated
SEED --trace [--faults NAME,…]`` shows one. Everything else, the judge included, is that of ``reliamsg lab simulate``.

Beyond what is judged there, of each seed:

- A message whose task was cancelled, or refused, before it was accepted is never delivered; one that was accepted is
  stored and sent. Messages are numbered in the order in which their tasks began.
- A message whose handler was cancelled is delivered again, flagged, before later ones of its stream.
- When a client is closed, no task waits for it any more, and every callback was called once.
- Nothing that runs in the event loop waits for a lock, a disk or a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from unittest import mock

from reliamsg import Message, MessageId
from reliamsg.aio.commits import Commits, Confirms, Room
from reliamsg.aio.dispatcher import Dispatcher
from reliamsg.aio.loop import Changed, LoopCalls
from reliamsg.aio.receipt import Receipt
from reliamsg.consumer.api import NonBlocking
from reliamsg.consumer.dispatcher import Decisions
from reliamsg.consumer.engine import ConsumerEngine
from reliamsg.errors import OutboxFull, ReliamsgError
from reliamsg.message import Gap, Stream
from reliamsg.producer import receipt as blocking
from reliamsg.producer.accumulator import Accumulator
from reliamsg.producer.admission import Admission
from reliamsg.producer.commit import Content
from reliamsg.producer.contents import content_of
from reliamsg.producer.engine import ProducerEngine
from reliamsg.runtime.wakeup import Uninterrupted, Waiters
from reliamsg.simulation.consumer import SLOW_S, ConsumerProcess
from reliamsg.simulation.disk import Crash
from reliamsg.simulation.executor import SLOW_THREAD_S, THREAD_S, Executor
from reliamsg.simulation.oracle import Operation
from reliamsg.simulation.process import Process
from reliamsg.simulation.producer import BURSTS, RETRY_S, ProducerProcess, body_of
from reliamsg.simulation.runner import Outcome, run
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World
from tests.aio.virtual_loop import VirtualLoop

__all__ = ["STATES", "replay", "simulate"]

MESSAGES = 60
CANCELLED = 0.3
"""The share of tasks that are cancelled while faults last."""
SLEEPS = (0.0, 0.0, 0.0005, 0.002, 0.02, 0.3)
CANCELLED_FOR_ROOM, CANCELLED_FOR_DISK, CANCELLED_FOR_SITES, CANCELLED_HANDLER, CANCELLED_BATCH = STATES = (
    "cancelled while it waits for room",
    "cancelled while it waits for the disk",
    "cancelled while it waits for sites",
    "cancelled in a handler",
    "cancelled in a handler of several messages",
)
"""In which a task was cancelled: how often, is in the outcome's ``reached``."""
RUNS_S = (0.0, 0.001, 0.05, 0.5, 2.0)
"""How long the application consumes before it changes its mind."""


class WouldBlock(BaseException):
    """The event loop's thread was about to wait."""


def _never_wait(waiters: Waiters, condition: Callable[[], bool], timeout: float | None) -> bool:
    """In place of :meth:`Waiters.wait`."""
    if condition():
        return True
    if timeout is not None and timeout <= 0:
        return False
    raise WouldBlock


class _InPlace(Uninterrupted):
    """No signal handler interrupts a simulated process."""

    def call(self, function: Callable[[], Any]) -> Any:
        return function()


class _Callbacks:
    """In place of the thread on which a producer's callbacks run: one call at a time, when the process has time for
    it."""

    def __init__(self, executor: Executor, *_: object) -> None:
        self._executor = executor
        self._calls: deque[Callable[[], object]] = deque()
        self._scheduled = False
        self.has_started = True

    def put(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        self._schedule()

    def report(self, error: BaseException) -> None:
        """There is no ``on_error``."""

    def close(self, timeout: float) -> None:
        """What is called later is called as well."""

    def join(self, timeout: float) -> None:
        """See :meth:`close`."""

    def drain(self) -> bool:
        """Make all calls now; returns whether there were any."""
        found = bool(self._calls)
        while self._calls:
            self._calls.popleft()()
        return found

    def _schedule(self) -> None:
        if self._calls and not self._scheduled:
            self._scheduled = True
            self._executor.after(self._executor.uniform(0.0, THREAD_S), self._run)

    def _run(self) -> None:
        self._scheduled = False
        try:
            self._calls[0]()
        except WouldBlock:  # the thread waits here; it is called again, which finds the same
            pass
        else:
            self._calls.popleft()
        self._schedule()


class _Accepting:
    """In place of the producer's accumulator: notes which messages it accepts."""

    def __init__(
        self,
        engine: ProducerEngine,
        accepted: Callable[[Content, blocking.Receipt], object],
        missed: Callable[[], object],
    ) -> None:
        """`accepted`: called with all that is. `missed`: called when there was room only at the end of a wait."""
        self.accumulator: Any = self
        self.admission: Admission = engine.admission
        self._real: Accumulator = engine.accumulator
        self._accepted, self._missed = accepted, missed

    def accept_now(self, content: Content) -> blocking.Receipt | None:
        receipt = self._real.accept_now(content)
        if receipt is not None:
            self._accepted(content, receipt)
        return receipt

    def accept(self, content: Content) -> blocking.Receipt:
        receipt = self._real.accept(content)
        self._missed()
        self._accepted(content, receipt)
        return receipt


@dataclass
class _Shell:
    """The event loop of a producer that is open, and its parts there."""

    loop: VirtualLoop
    calls: LoopCalls
    room: Room
    commits: Commits
    confirms: Confirms


class _WithTasks(Process):
    """A process whose application runs in an event loop."""

    def probe(self, point: str) -> None:
        try:
            super().probe(point)
        except Crash as crash:
            if asyncio._get_running_loop() is not None:  # the task would catch it, and the process go on
                self.crash(str(crash))
            raise

    def wake(self) -> None:
        if self.executor.alive:  # else what a task did before it noticed that it is dead
            super().wake()


class AioProducer(_WithTasks, ProducerProcess):
    """Publishes from tasks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shell: _Shell | None = None
        self._callbacks: _Callbacks | None = None
        self._notified, self._room_at = Waiters(), 0.0
        """Notified when there may be room; and when there was last more, or room for another task."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that publish, or wait for a receipt."""
        self._program: asyncio.Task[None] | None = None
        self._operations: dict[bytes, Operation] = {}
        """By body, messages that are not accepted."""
        self._uncalled = 0
        """Callbacks that were not called."""

    # -- opening and terminating ----------------------------------------------------------------------------

    def open_client(self) -> None:
        made = partial(_Callbacks, self.executor)
        self._notified, self._uncalled = Waiters(), 0

        def callbacks(*arguments: object) -> _Callbacks:
            self._callbacks = made(*arguments)
            return self._callbacks

        with mock.patch("reliamsg.producer.engine.CallbackThread", callbacks):
            super().open_client()

    def after_open(self) -> None:
        loop = VirtualLoop(self.executor, self._raised)
        loop.call_soon(self._begin, loop)

    def _begin(self, loop: VirtualLoop) -> None:
        """In the loop."""
        engine = self.engine
        if engine is None:
            return
        calls = LoopCalls()
        parts: Any = _Accepting(engine, self._accepted, self._missed_room)
        room = Room(calls, parts, self._notified, self._block_timeout)
        self._shell = _Shell(loop, calls, room, Commits(calls), Confirms(calls))
        self._program = loop.create_task(self._publish_all(self._shell))

    def close_client(self) -> None:
        shell, callbacks = self._shell, self._callbacks
        super().close_client()
        assert callbacks is not None
        if self._program is not None:
            self._program.cancel()
        if shell is not None:
            shell.loop.drain()
            while callbacks.drain():
                shell.loop.drain()
        if self._tasks:
            self._raised(AssertionError(f"tasks wait for a producer that is closed: {self._tasks}"))
        if self._uncalled:
            self._raised(AssertionError(f"{self._uncalled} callbacks were not called"))

    def after_end(self) -> None:
        for operation in self._operations.values():
            operation.fail()  # it was not accepted
        self._operations.clear()
        self._tasks.clear()
        self._shell = self._program = self._callbacks = None
        super().after_end()

    def _raised(self, error: BaseException) -> None:
        self.judge.raised(self.name, error)

    @property
    def done(self) -> bool:
        return super().done and not self._tasks

    # -- publishing -----------------------------------------------------------------------------------------

    def _room_available(self) -> None:
        self._room_at = self.scheduler.now
        self._notified.notify_all()

    def _missed_room(self) -> None:
        if self.scheduler.now - self._room_at > SLOW_THREAD_S:
            self._oracle.violate(
                "stalled", f"a task of {self.name} waited for room, and was not notified of it"
            )

    def _publish(self) -> None:
        """What could not be stored is published again by :meth:`_publish_all`."""

    async def _publish_all(self, shell: _Shell) -> None:
        chance = self._application
        while True:
            count = min(self.left, chance.choice(BURSTS))
            tasks = [shell.loop.create_task(self._publish_in_task(shell)) for _ in range(count)]
            for task in tasks:
                self._tasks.add(task)
                task.add_done_callback(self._task_ended)
            await asyncio.sleep(chance.choice(SLEEPS))
            for task in tasks:
                if not self.faults.over and chance.random() < CANCELLED:
                    task.cancel()
            if count:
                self.executor.after(0.0, self._do_other_things)
            await asyncio.sleep(chance.expovariate(1.0) * self._interval_s * count or RETRY_S)

    def _do_other_things(self) -> None:
        if self.engine is not None and self._removing.random() < self.settings["remove"]:
            self._take_some_back(self.engine)
        if self.engine is not None and self._naming.random() < self.settings["add_group"]:
            self._change_groups(self.engine)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._raised(task.exception() or AssertionError())

    def _accepted(self, content: Content, receipt: blocking.Receipt) -> None:
        self._waiting.append((self._operations.pop(content.bodies[0]), receipt))
        self._check_room()

    async def _publish_in_task(self, shell: _Shell) -> None:
        if not self.left:
            return
        self.left -= 1
        operation, content = self._drawn()
        self._operations[content.bodies[0]] = operation
        try:
            receipt = await shell.room.accept(content)
        except BaseException as error:
            accepted = self._operations.pop(content.bodies[0], None) is None
            self._room_at = self.scheduler.now  # for a smaller one behind it
            if isinstance(error, ReliamsgError):
                if accepted:
                    raise
                operation.fail()
                self.left += isinstance(error, OutboxFull)
                self.note(f"can't publish: {type(error).__name__}")
                return
            if not accepted:
                operation.fail()
                self._incidents.counts[CANCELLED_FOR_ROOM] += 1
            raise
        try:
            await shell.commits.wait_durable(receipt.commit)
        except ReliamsgError:
            return  # judged with the receipt
        except asyncio.CancelledError:
            self._incidents.counts[CANCELLED_FOR_DISK] += 1
            raise
        assert receipt.durable
        await self._wait_for(shell, Receipt(receipt, shell.commits, shell.confirms, shell.calls))

    def _drawn(self) -> tuple[Operation, Content]:
        """See :meth:`ProducerProcess._publish_one`."""
        chance = self._application
        topic = chance.choice(self._scenario.read_topics)
        self._published += 1
        body = body_of(f"{self.name}/{topic}", self._published, chance.choice([0, 10, 200]))
        key = chance.choice([None, None, "k"])
        headers = {"account": "A"} if chance.random() < 0.2 else None
        operation = self._oracle.invoked(Stream(self.name, topic, 0), body, self._certain[topic])
        return operation, content_of(topic, body, key, headers)

    async def _wait_for(self, shell: _Shell, receipt: Receipt) -> None:
        chance = self._application
        kept = self.settings["release"] == "consumed" and self.named[receipt.ids[0].topic]
        kinds: list[Literal["durable", "confirmed", "consumed"]] = ["durable", "confirmed"]
        if kept:
            kinds.append("consumed")
        if chance.random() < 0.5:
            self._uncalled += 1
            receipt.add_done_callback(partial(self._called, shell), chance.choice(kinds))
        if chance.random() < 0.5:
            until = chance.choice(kinds)
            try:
                await receipt.wait(chance.choice([None, 0.0, 0.05, 5.0]), until)
            except ReliamsgError:
                return  # in time, or because messages were removed or the producer was closed
            except asyncio.CancelledError:
                self._incidents.counts[CANCELLED_FOR_SITES] += 1
                raise
            assert until != "confirmed" or receipt.done

    def _called(self, shell: _Shell, receipt: Receipt) -> None:
        if shell is self._shell:
            self._uncalled -= 1
        assert receipt.durable


class AioConsumer(_WithTasks, ConsumerProcess):
    """Consumes with handlers in tasks."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loop: VirtualLoop | None = None
        self._program: asyncio.Task[None] | None = None
        self._running: set[MessageId] = set()
        """Messages whose handlers run."""
        self._ending: list[Message] = []
        """Those that are acknowledged when their handler returns, which it is about to."""

    def open_client(self) -> None:
        super().open_client()
        if self.engine is None:
            return
        self._busy = True  # the application of the base class has nothing to do
        self._loop = loop = VirtualLoop(self.executor, partial(self.judge.raised, self.name))
        loop.call_soon(self._begin, loop, self.engine)

    def _begin(self, loop: VirtualLoop, engine: ConsumerEngine) -> None:
        """In the loop."""
        changed = Changed(LoopCalls())
        engine.shared.changed.listen(changed.notify)
        self._program = loop.create_task(self._consume(loop, engine, changed))

    def close_client(self) -> None:
        if self._program is not None and self._loop is not None:
            self._program.cancel()
            self._loop.drain()
            if not self._program.done() or self._running:
                self.judge.raised(self.name, AssertionError("handlers run in a consumer that is closed"))
        super().close_client()

    def after_end(self) -> None:
        self._acked += [message.id for message in self._ending if not message.replayed]
        self._ending.clear()
        self._running.clear()
        self._loop = self._program = None
        super().after_end()

    # -- the application ------------------------------------------------------------------------------------

    async def _consume(self, loop: VirtualLoop, engine: ConsumerEngine, changed: Changed) -> None:
        chance, batch = self._application, self.settings["batch"]
        decisions = Decisions(self._decided, None, _InPlace("calls"))
        while True:
            dispatcher = Dispatcher(
                NonBlocking(engine, decisions), changed, partial(self._handle_in_task, engine), batch
            )
            task = asyncio.ensure_future(dispatcher.run(chance.choice([1, 2, 100])))
            try:
                await self._let_run(loop, task, dispatcher)
            except asyncio.CancelledError:  # the consumer is being closed
                task.cancel()
                await asyncio.wait([task])
                raise
            task.cancel()
            await asyncio.wait([task])
            if self._running:
                raise AssertionError("a handler outlives its dispatcher")
            if not task.cancelled() and task.exception() is not None:
                error = task.exception()
                if not isinstance(error, ReliamsgError):
                    self.judge.raised(self.name, error or AssertionError())
                return  # the next step notices fatal errors
            await asyncio.sleep(chance.choice(SLEEPS))

    async def _let_run(self, loop: VirtualLoop, task: asyncio.Task[None], dispatcher: Dispatcher) -> None:
        """Let it run for a while; then it is cancelled."""
        chance = self._application
        if self.faults.over:
            await asyncio.wait([task])
            return
        if chance.random() < 0.2:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            loop.cancel_all()
            return
        await asyncio.wait([task], timeout=chance.choice(RUNS_S))
        if chance.random() < 0.5:
            dispatcher.stop()
            await asyncio.wait([task], timeout=chance.choice(SLEEPS))

    def _decided(self, gap: Gap) -> Literal["wait"]:
        assert self.engine is not None
        self._decide(self.engine, gap)
        return "wait"

    async def _handle_in_task(self, engine: ConsumerEngine, argument: Any) -> None:
        messages: list[Message] = argument if isinstance(argument, list) else [argument]
        for message in messages:
            self._receive(message)
        if self._crashes_in_handler():
            raise Crash
        self._running |= {message.id for message in messages}
        try:
            await self._work()
            if self.faults.bites("handler_failed"):
                self.faults.strikes("handler_failed")
                raise RuntimeError("as simulated")
        except BaseException as error:
            tries = self.journal.max_attempts if isinstance(error, RuntimeError) else 1_000
            if isinstance(error, asyncio.CancelledError):
                self._incidents.counts[CANCELLED_HANDLER if len(messages) == 1 else CANCELLED_BATCH] += 1
            for message in messages:
                self._failed(message, tries)
            raise
        finally:
            self._running -= {message.id for message in messages}
        if len(messages) == 1 and self.faults.bites("rejected"):
            self.faults.strikes("rejected")
            self._reject(messages[0])
            return
        # They are acknowledged once this has returned.
        self._ending += messages
        assert self._loop is not None
        self._loop.after_this_call(partial(self._returned, engine))

    def _returned(self, engine: ConsumerEngine) -> None:
        messages, self._ending = self._ending, []
        for message in messages:
            self._acknowledged(engine, message)

    async def _work(self) -> None:
        chance = self._application
        if chance.random() < 0.05:
            await asyncio.sleep(chance.uniform(*SLOW_S))
        elif chance.random() < 0.8:
            await asyncio.sleep(chance.uniform(0.0, self.settings["handling_s"]))


class AioWorld(World):
    """Has these applications."""

    producer_type = AioProducer
    consumer_type = AioConsumer


def simulate(
    seed: int, messages: int = MESSAGES, faults: tuple[str, ...] | None = None, keep: bool = False
) -> Outcome:
    """Run a seed."""
    with mock.patch.object(Waiters, "wait", _never_wait):
        outcome = run(draw(seed, messages, faults), keep, world=AioWorld)
        VirtualLoop.forget_all()
        return outcome


def replay(outcome: Outcome) -> str:
    """The command that repeats a run."""
    scenario = outcome.scenario
    faults = ",".join(scenario.faults) or "none"
    return f"python -m tests.aio.simulated {scenario.seed} --messages {scenario.messages} --faults {faults} --trace"


def _run_all(seeds: Iterable[int], one: Callable[[int], Outcome], jobs: int) -> int:
    failed = 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        for outcome in processes.map(one, seeds, chunksize=4):
            if outcome.violations:
                failed += 1
                print(
                    f"seed {outcome.scenario.seed}: {outcome.violations[0]}\n    again: {replay(outcome)}",
                    flush=True,
                )
    return failed


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", metavar="A:B")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--faults")
    parser.add_argument("--trace", action="store_true")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition(":")
    faults = None
    if chosen.faults is not None:
        faults = () if chosen.faults == "none" else tuple(chosen.faults.split(","))
    one = partial(simulate, messages=chosen.messages, faults=faults, keep=chosen.trace)
    if last:
        failed = _run_all(range(int(first), int(last)), one, chosen.jobs)
        print(f"{int(last) - int(first)} runs, {failed} with violations")
        return 1 if failed else 0
    outcome = one(int(first))
    print(*outcome.lines, *outcome.violations, outcome.error, sep="\n")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
