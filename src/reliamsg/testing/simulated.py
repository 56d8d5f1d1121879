"""Simulated processes that run an application's own handler, and the worlds that they live in."""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest import mock

from reliamsg.consumer.buffer import DeliverySlice, fail
from reliamsg.consumer.engine import ConsumerEngine
from reliamsg.errors import ReliamsgError
from reliamsg.message import Message
from reliamsg.simulation.consumer import SLOW_S, ConsumerProcess
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.scenario import Scenario, draw
from reliamsg.simulation.settings import ClientSettings
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.world import World
from reliamsg.testing.application import Crash, HandlerProcess, Start, copy_message
from reliamsg.testing.durable import DurableDatabase
from reliamsg.testing.effects import Finding, Witness

__all__ = ["Application", "ApplicationWorld", "Convicted", "Crossing", "compose"]

BEYOND = ("restored", "restored_inbox", "wal_lost")
"""Faults that applications are spared: after them, a message may come with another identity, and unflagged."""
OF_APPLICATIONS = ("crash", "crash_inside", "handler_failed", "pause", "restart")
"""Faults that concern handlers most."""
SHARE = 0.6
"""The chance that a seed has one of these."""
UNUSED = ("rejected",)
"""Faults of the application that the simulator has otherwise."""
PUBLISH_S, FAULTY_S = 4.0, 8.0
SLICE_S = 0.02
"""While a handler waits, the world goes on in steps of this many seconds. It takes longer to open a process again."""
WAITS = 0.2
"""How often a point in a handler takes time ..."""
WAITS_S = (0.001, 0.01, 0.1, 0.5)
"""... and how much."""
RISK = 20
"""A point in a handler counts as this many opportunities to fail or to crash."""


def compose(seed: int, messages: int, faults: tuple[str, ...] | None, batch: int | None) -> Scenario:
    """The scenario of a seed: one consumer, whose application is under test. `faults` replaces those that it would
    have."""
    if faults is None:
        chance = random.Random(f"{seed}/application")
        drawn = set(draw(seed, messages).faults) - {*BEYOND, *UNUSED}
        drawn |= {name for name in OF_APPLICATIONS if chance.random() < SHARE}
        faults = tuple(sorted(drawn))
    whole = draw(seed, messages, faults)
    group, first = next(iter(whole.groups.items()))
    # A message that its handler always refuses must not keep the group from finishing.
    own = _with(first, batch=batch, topics="all", journal=False, on_dead_letter="continue")
    # Applications do not notice compression, which needs an extra.
    producers = {
        name: _with(client, groups="all", remove=0.0, add_group=0.0, journal=False, compression=None)
        for name, client in whole.producers.items()
    }
    return replace(
        whole, producers=producers, groups={group: own}, standbys={}, publish_s=PUBLISH_S, faulty_s=FAULTY_S
    )


def _with(client: ClientSettings, **values: Any) -> ClientSettings:
    return replace(client, values={**client.values, **values})


class Convicted(BaseException):
    """The application is wrong, and the run ends here."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class Application:
    """The application under test, and what is known of it. See the fields."""

    start: Start
    batch: int | None
    errors: tuple[type[Exception], ...]
    """What its handler may raise."""
    present: Callable[[Message], Message]
    """Makes a message that a simulated producer has published one of the application's."""
    crossing: Crossing
    databases: list[DurableDatabase]
    witness: Witness = field(default_factory=Witness)
    running: HandlerProcess | None = None
    """The process, while it runs."""
    faults: Faults | None = None
    trace: Trace | None = None
    """Both of the run, once it has begun."""

    def begin(self, faults: Faults, trace: Trace) -> None:
        """The run begins."""
        self.faults, self.trace = faults, trace

    def start_process(self) -> None:
        """Raises what the application raises."""
        self.running = HandlerProcess(self.start, lambda: _VirtualLoop(self.crossing))

    def end_process(self) -> None:
        """The process is gone, and with it what the application has not committed."""
        if self.running is not None:
            self.running.end()
            self.running = None
        for database in self.databases:
            database.end_process()


class Crossing:
    """Where the application meets the simulation: passes calls on to the process that the application runs in, and
    does nothing outside of it."""

    def __init__(self) -> None:
        self._process: ApplicationProcess | None = None

    def enter(self, process: ApplicationProcess | None) -> None:
        """From now on, calls are made in this process."""
        self._process = process

    def before(self, what: str, error: Exception) -> None:
        """See :class:`~reliamsg.testing.durable.Hazards`."""
        if self._process is not None:
            self._process.before(what, error)

    def after(self, what: str, error: Exception | None = None) -> None:
        """See :class:`~reliamsg.testing.durable.Hazards`."""
        if self._process is not None:
            self._process.after(what, error)

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""
        if self._process is not None:
            self._process.let_pass(seconds)

    def now(self) -> float:
        """The simulated monotonic clock, in seconds."""
        return 0.0 if self._process is None else self._process.scheduler.now


Settling = Literal["acknowledge", "acknowledge durably", "reject", "fail"]


class _Settler:
    """Of a message that the handler has: settles the one that the consumer delivered."""

    __slots__ = ("_original", "_settle", "settled")

    def __init__(
        self, original: Message, settle: Callable[[Message, Message, Settling, Any], object]
    ) -> None:
        """`settle` is called with both messages, what is to be done, and a reason or an error."""
        self._original, self._settle = original, settle
        self.settled = False

    def acknowledge(self, message: Message, durable: bool) -> None:
        """See :class:`~reliamsg.message.Settler`."""
        if not self.settled or durable:
            self._do(message, "acknowledge durably" if durable else "acknowledge", None)

    def reject(self, message: Message, reason: str) -> None:
        """See :class:`~reliamsg.message.Settler`."""
        if not self.settled:
            self._do(message, "reject", reason)

    def failed(self, message: Message, error: BaseException) -> None:
        """See :class:`~reliamsg.message.Settler`."""
        if not self.settled:
            self._do(message, "fail", error)

    def _do(self, message: Message, what: Settling, why: Any) -> None:
        self.settled = True
        self._settle(self._original, message, what, why)


class ApplicationProcess(ConsumerProcess):
    """Consumes with a handler of the application, as :meth:`Consumer.run` does with one worker.

    While the handler waits, everything else goes on, the other threads of its own process included. The process may
    terminate meanwhile: then :class:`Crash` is raised in the handler, again and again if it goes on.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._hosted: Application | None = None
        self._life: int | None = None
        """The life of the process that the application's code runs in, while it does."""
        self._failed_here = False
        """An operation was made to fail in the handler that runs."""

    def host(self, application: Application) -> None:
        """Run this application."""
        self._hosted = application

    @property
    def _app(self) -> Application:
        assert self._hosted is not None
        return self._hosted

    # -- opening and terminating ----------------------------------------------------------------------------

    def open_client(self) -> None:
        """See :class:`Process`."""
        super().open_client()
        if self.engine is None:
            return
        self._app.witness.happened(f"{self.scheduler.now:.4f} the process starts")
        self._busy = True  # nothing is handled before it has started
        try:
            with self._inside():
                self._app.start_process()
        except Exception as error:  # noqa: BLE001  (any of the application's own)
            self._raised("start", error)
            self.crash("as it starts")
        else:
            self._busy = False

    def after_end(self) -> None:
        """See :class:`Process`."""
        super().after_end()
        self._app.witness.happened(f"{self.scheduler.now:.4f} the process ends")
        if self._life is None:  # else its code is still on the stack
            self._app.end_process()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Run the application's code here."""
        app, life = self._app, self.executor.life
        self._life, self._failed_here = life, False
        app.crossing.enter(self)
        try:
            with mock.patch.object(time, "sleep", _sleep_here(self.let_pass)):
                yield
        finally:
            if self.executor.life != life:
                app.end_process()
            app.crossing.enter(None)
            self._life = None

    # -- hazards --------------------------------------------------------------------------------------------

    def before(self, what: str, error: Exception) -> None:
        """See :class:`~reliamsg.testing.durable.Hazards`."""
        self._pass_by(f"before {what}")
        self._perhaps_fail(f"{what} fails", error)

    def after(self, what: str, error: Exception | None = None) -> None:
        """See :class:`~reliamsg.testing.durable.Hazards`."""
        self._pass_by(f"after {what}")
        if error is not None:
            self._perhaps_fail(f"{what} was made, and seems to have failed", error)

    def _perhaps_fail(self, what: str, error: Exception) -> None:
        if self.faults.bites("handler_failed", RISK):
            self.faults.strikes("handler_failed")
            self._failed_here = True
            self.note(what)
            raise error

    def _pass_by(self, what: str) -> None:
        self._check_alive()
        if self.traced:
            self.note(f"is {what}")
        if self._application.random() < WAITS:
            self.let_pass(self._application.choice(WAITS_S))
        if self.faults.bites("crash_inside", RISK):
            self.faults.strikes("crash_inside")
            self.crash(f"in its handler, {what}")
            self._check_alive()

    def _check_alive(self) -> None:
        if self.executor.life != self._life:
            raise Crash

    def let_pass(self, seconds: float) -> None:
        """The handler waits."""
        self._check_alive()
        until = self.scheduler.now + seconds
        while self.scheduler.now < until or self.executor.suspended:
            end = self.scheduler.now + SLICE_S
            self.scheduler.run(end if self.executor.suspended else min(until, end))
            self._check_alive()

    def _wait_durable(self) -> None:
        """The handler waits until its acknowledgements are durable. Raises what ``ack(durable=True)`` raises."""
        assert self.engine is not None  # the process is alive
        durability, acked = self.engine.shared.durability, self._acked
        self._acked = []
        number = durability.want_soon()
        try:
            while not durability.is_durable(number):
                self.let_pass(SLICE_S)
        except ReliamsgError:
            self._failed_here = True
            raise
        finally:
            if self.executor.life == self._life and not durability.synced >= number:
                self._acked = acked + self._acked
        self._oracle.acknowledged_durably(self.group, self.name, acked)

    # -- the application ------------------------------------------------------------------------------------

    @property
    def _portion(self) -> tuple[int, int]:
        most = self._app.batch or 1
        return most, most

    def _handle_replayed(self, engine: ConsumerEngine, message: Message) -> None:
        self._call(engine, [message])

    def _handle_slice(self, engine: ConsumerEngine, portion: DeliverySlice) -> None:
        shared = engine.shared
        holds = shared.health.fatal is None and shared.role.holds
        messages = portion.take(self._app.batch or 1) if holds else None
        life = self.executor.life
        if messages:
            self._call(engine, messages)
        if self.executor.life != life:
            return
        engine.deliveries.release(portion)
        self._chunk = None
        slow = self._application.random() < 0.05
        self._handle_after(
            self._application.uniform(*(SLOW_S if slow else (0.0, self.settings["handling_s"])))
        )

    def _call(self, engine: ConsumerEngine, messages: list[Message]) -> None:
        """Call the handler."""
        app, life = self._app, self.executor.life
        settlers = [_Settler(message, self._settle) for message in messages]
        shown = [
            copy_message(app.present(message), _settler=settler)
            for message, settler in zip(messages, settlers, strict=True)
        ]
        for message, own in zip(messages, shown, strict=True):
            self._receive(message)
            app.witness.delivered(own)
        raised: Exception | None = None
        self._busy = True  # nothing else is handled meanwhile
        try:
            with self._inside():
                assert app.running is not None
                app.running.handle(shown if app.batch is not None else shown[0])
                self._pass_by("at the end of the handler")
        except Crash:
            assert self.executor.life != life
            return
        except Exception as error:  # noqa: BLE001  (any of the application's own)
            raised = error
        if self.executor.life != life:  # the handler has caught it
            return
        self._busy = False
        if raised is not None:
            self._raised("the handler", raised)
        for message, own, settler in zip(messages, shown, settlers, strict=True):
            if settler.settled:
                if raised is not None:
                    fail(message, raised)
            elif raised is None:
                self._settle(message, own, "acknowledge")
            else:
                self._settle(message, own, "fail", raised)

    def _raised(self, what: str, error: Exception) -> None:
        """Part of the application has raised an error."""
        text = f"{what} raises {type(error).__name__}: {error}"
        self._app.witness.happened(text)
        self.note(text)
        if not self._failed_here and not isinstance(error, self._app.errors):
            raise Convicted(Finding("raised", text)) from error

    def _settle(self, message: Message, shown: Message, what: Settling, why: Any = None) -> None:
        """Do with a message as the handler wants. `shown`: as the handler has it."""
        if self._life is not None:
            self._check_alive()
        assert self.engine is not None  # the process is alive
        if self.traced:
            self.note(f"{message.id}: {what}")
        if what == "fail":
            self.faults.strikes("handler_failed")  # whoever made it fail
            self._app.witness.failed(shown)
            fail(message, why)
            self._failed(message, self.journal.max_attempts)
        elif what == "reject":
            self._app.witness.settled(shown, "rejected")
            message.reject(why)
            if message.replayed:
                self.replays.failed(message.id)
            else:
                self._oracle.rejected(self.group, self.name, message.id)
                self._acked.append(message.id)
        else:
            self._app.witness.settled(shown, "acknowledged")
            self._acknowledge(self.engine, message)
        if self._life is not None:
            self.after("settling a message")
        if what == "acknowledge durably":
            self._wait_durable()


def _sleep_here(sleep: Callable[[float], object]) -> Callable[[float], None]:
    """In place of :func:`time.sleep`: simulated in this thread, real in all others."""
    thread, real = threading.get_ident(), time.sleep

    def called(seconds: float) -> None:
        if threading.get_ident() == thread:
            sleep(seconds)
        else:
            real(seconds)

    return called


class _VirtualSelector(selectors.SelectSelector):
    """Simulated time passes where an event loop would wait."""

    def __init__(self, crossing: Crossing) -> None:
        super().__init__()
        self._crossing = crossing

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError(
                "the handler waits for something outside of the simulation, such as a thread or socket"
            )
        if timeout > 0:
            self._crossing.sleep(timeout)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self, crossing: Crossing) -> None:
        super().__init__(_VirtualSelector(crossing))
        self._crossing = crossing

    def time(self) -> float:
        return self._crossing.now()


class ApplicationWorld(World):
    """A world with an application under test. See :meth:`of`."""

    consumer_type: ClassVar[type[ConsumerProcess]] = ApplicationProcess
    application: ClassVar[Application]

    def __init__(self, scenario: Scenario, directory: Path, keep: bool = False) -> None:
        super().__init__(scenario, directory, keep)
        self.application.begin(self.faults, self.trace)
        for consumer in self.consumers:
            assert isinstance(consumer, ApplicationProcess)
            consumer.host(self.application)

    @classmethod
    def of(cls, hosted: Application) -> type[ApplicationWorld]:
        """The worlds of an application."""

        class Own(cls):  # type: ignore[misc,valid-type]
            application = hosted

        return Own

    def run(self) -> None:
        """See :class:`World`."""
        try:
            super().run()
        except BaseException:  # it ends here; nothing may stay open
            for process in self.processes:
                process.drive.abandon(process.abandon_client)
            raise

    def compare(self) -> None:
        """Journals are not judged: they say nothing about the application."""
