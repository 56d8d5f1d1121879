"""Simulations of an application: its own handler, in a world in which everything fails."""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliamsg.arguments import check_callback, check_count
from reliamsg.errors import ConfigError
from reliamsg.message import Message
from reliamsg.simulation.faults import FAULTS
from reliamsg.simulation.producer import LIKE_A_BATCH
from reliamsg.simulation.runner import MEMORY, quiet, run
from reliamsg.testing.application import Handler, Start, copy_message, starter
from reliamsg.testing.durable import DurableDatabase, DurableDict, DurableList
from reliamsg.testing.effects import Finding
from reliamsg.testing.simulated import Application, ApplicationWorld, Convicted, Crossing, compose

__all__ = ["Replay", "Simulation", "SimulationFailed", "simulate"]

MESSAGES = 30
MOST_RUNS = 100
"""How many runs it takes at most to reduce a failing one."""
SHOWN_LINES = 60
UNSTABLE = "Does the application use random numbers, or state of an earlier run?"

Effects = Callable[[], Iterable[Any]]
Body = Callable[[random.Random, int], bytes | Message]


@dataclass(frozen=True)
class Replay:
    """What determines a run: ``SEED/MESSAGES/FAULTS``."""

    seed: int
    messages: int = MESSAGES
    faults: tuple[str, ...] | None = None
    """None: those of the seed."""

    @classmethod
    def parse(cls, text: str) -> Replay:
        """Raises :class:`ConfigError`."""
        match text.split("/"):
            case [seed]:
                messages, faults = str(MESSAGES), None
            case [seed, messages]:
                faults = None
            case [seed, messages, listed]:
                faults = tuple(filter(None, listed.split(",")))
            case _:
                seed = messages = ""
        if not (seed.isdecimal() and messages.isdecimal()):
            raise ConfigError(f"{text!r} is not SEED/MESSAGES/FAULTS")
        unknown = set(faults or ()) - FAULTS.keys()
        if unknown:
            raise ConfigError(f"{text!r}: there is no fault {', '.join(sorted(unknown))}")
        return cls(int(seed), int(messages), faults)

    def __str__(self) -> str:
        return "/".join(
            [str(self.seed), str(self.messages)] + ([] if self.faults is None else [",".join(self.faults)])
        )


class SimulationFailed(AssertionError):
    """An application is wrong. The text has what is wrong, and the history of the smallest run that shows it."""

    def __init__(self, text: str, kinds: Iterable[str], replay: Replay) -> None:
        super().__init__(text)
        self.kinds: frozenset[str] = frozenset(kinds)
        """What is wrong: ``"effect_lost"``, ``"effect_twice"``, ``"raised"`` and others."""
        self.replay: Replay = replay
        """What determines the smallest run."""


class _Wrong(AssertionError):
    """The application is wrong in this run."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = tuple(findings)


class Simulation:
    """One run of an application in a simulated world; see :func:`simulate`.

    Create what survives crashes with :meth:`database`, :meth:`durable_list` or :meth:`durable_dict`, and call
    :meth:`run` once.
    """

    def __init__(self, replay: Replay, directory: Path, keep: bool = False) -> None:
        """`directory`: where databases are. `keep`: whether to record a history."""
        self.seed: int = replay.seed
        self._replay, self._directory, self._keep = replay, directory, keep
        self._crossing = Crossing()
        self._databases: list[DurableDatabase] = []
        self._application: Application | None = None

    # -- what survives crashes ----------------------------------------------------------------------------

    def database(self, name: str = "database") -> DurableDatabase:
        """An SQLite database that survives crashes up to its last commit. Commits may fail, and the process may
        crash before and after each."""
        made = DurableDatabase(self._directory / f"{name}.db", self._crossing)
        self._databases.append(made)
        return made

    def durable_list(self, name: str = "list") -> DurableList[Any]:
        """A list that survives crashes, for example the requests that an external service has received. The process
        may crash before and after each change."""
        return DurableList(name, self._crossing)

    def durable_dict(self, name: str = "dict") -> DurableDict[Any, Any]:
        """A dictionary that survives crashes. The process may crash before and after each change."""
        return DurableDict(name, self._crossing)

    def point(self, name: str = "a point", error: Exception | None = None) -> None:
        """To be called by the application: a point at which the process may crash, or, with `error`, an operation that
        may fail with it. For state of the application's own, which `start` has to restore."""
        self._crossing.after(name, error)

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass. In the handler, :func:`time.sleep` does the same."""
        self._crossing.sleep(seconds)

    # -- running --------------------------------------------------------------------------------------------

    def run(
        self,
        handler: Handler | None = None,
        *,
        effects: Effects | None,
        start: Start | None = None,
        batch: int | None = None,
        errors: type[Exception] | tuple[type[Exception], ...] = (),
        messages: Body | None = None,
        effect_of: Callable[[Message], object] | None = None,
    ) -> None:
        """Publish messages, and call the handler with them as :meth:`~reliamsg.Consumer.run` does, until everything is
        delivered or declared. Then compare the application's effects with the messages.

        `handler`, `start`, `batch`, `errors`: see :class:`HandlerTest`. `start` is called whenever the process starts,
        and must take up what the process that crashed has left.

        `effects`: called in the end; returns the effects that the application has then, in the order in which they
        were made, or as a set if the order is not known. Each message that was acknowledged must have one effect, one
        that was rejected none, and those of the messages of a stream must be in order. `effect_of` says which effect
        belongs to a message; by default its body. With None, the test itself compares :attr:`handled` with what the
        application has.

        `messages`: makes a body or message from dice (a :class:`random.Random`) and a number, another one for each
        message of the run; only body, key and headers of a message count. Its effect must not be that of another. By
        default bodies are like ``b"p1/orders/17"``.

        Raises an :class:`AssertionError` if the application is wrong.
        """
        if self._application is not None:
            raise ConfigError("a simulation runs once")
        for name, callback in (("effects", effects), ("messages", messages), ("effect_of", effect_of)):
            check_callback(name, callback)
        if batch is not None:
            check_count("batch", batch)
        kinds = errors if isinstance(errors, tuple) else (errors,)
        present = _Presentation(self.seed, messages)
        self._application = app = Application(
            starter(handler, start), batch, kinds, present, self._crossing, self._databases
        )
        scenario = compose(self.seed, self._replay.messages, self._replay.faults, batch)
        self._replay = Replay(self.seed, self._replay.messages, scenario.faults)
        try:
            outcome = run(scenario, self._keep, world=ApplicationWorld.of(app))
        except Convicted as convicted:
            raise _Wrong([convicted.finding]) from convicted.__cause__
        if outcome.violations:
            raise _Wrong(
                [Finding("reliamsg", "\n".join(filter(None, (str(outcome.violations[0]), outcome.error))))]
            )
        if effects is not None:
            found = app.witness.judge(effects(), effect_of or _body)
            if found:
                raise _Wrong(found)

    @property
    def handled(self) -> list[Message]:
        """After :meth:`run`: the messages that the application acknowledged, each once, in the order in which they were
        first delivered."""
        return [] if self._application is None else self._application.witness.handled

    @property
    def given_up(self) -> list[Message]:
        """After :meth:`run`: the messages that the handler was called with, and that are not acknowledged in the end:
        they were rejected, or are dead letters. The effect of a dead letter may have been made all the same."""
        return [] if self._application is None else self._application.witness.given_up

    @property
    def replay(self) -> Replay:
        """What determines this run."""
        return self._replay

    @property
    def history(self) -> tuple[str, ...]:
        """What happened, as far as it concerns the application: the same for the same seed."""
        return () if self._application is None else tuple(self._application.witness.history)

    @property
    def lines(self) -> tuple[str, ...]:
        """The trace of what concerns the application, if it was recorded."""
        app = self._application
        lines = () if app is None or app.trace is None else app.trace.lines
        return tuple(
            line
            for line in lines
            if line[12:21].strip() in ("fault", "world") or line[22:].startswith("g1-1")
        )

    @property
    def bit(self) -> frozenset[str]:
        """The faults that happened."""
        app = self._application
        return frozenset() if app is None or app.faults is None else frozenset(app.faults.bit)

    def close(self) -> None:
        """Close everything that is open."""
        if self._application is not None:
            self._application.end_process()
        for database in self._databases:
            database.end_process()


def _body(message: Message) -> bytes:
    return message.body


class _Presentation:
    """Gives simulated messages the contents that the application expects. Simulated producers publish bodies that name
    the producer, the topic and a number."""

    def __init__(self, seed: int, make: Body | None) -> None:
        self._seed, self._make = seed, make
        self._numbers: dict[bytes, int] = {}
        """By body as published."""

    def __call__(self, message: Message) -> Message:
        name = message.body.rstrip(b"\0").rstrip(b"/")
        for begin in LIKE_A_BATCH.values():
            name = name.removeprefix(begin)
        if self._make is None:
            return copy_message(message, body=name)
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        made = self._make(random.Random(f"{self._seed}/{name!r}"), number)
        if isinstance(made, bytes):
            return copy_message(message, body=made)
        return copy_message(message, body=made.body, key=made.key, headers=made.headers)


# -- many seeds -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Failure:
    """A run that failed."""

    replay: Replay
    findings: tuple[Finding, ...]
    error: BaseException
    bit: frozenset[str]
    """The faults that happened."""
    lines: tuple[str, ...]
    """The trace."""

    @property
    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.findings}


Test = Callable[[Simulation], object]


def simulate(
    test: Test,
    *,
    seeds: int | range = 200,
    messages: int = MESSAGES,
    shrink: bool = True,
    command: Callable[[Replay], str] = str,
) -> None:
    """Call `test` with a :class:`Simulation` for each seed, until it fails.

    ::

        def test_ledger(simulation):
            database = simulation.database()
            simulation.run(start=lambda: Ledger(database.connect()).handle, effects=lambda: read_effects(database))

        simulate(test_ledger, seeds=200)

    A seed determines the run: which faults strike, and when; how clients and sites are configured, and what producers
    publish, about `messages` messages. A seed that fails is reduced: faults and messages are removed as long as the
    test fails in the same way (not with ``shrink=False``). The first seed is run twice, to detect tests whose outcome
    depends on something else.

    `test` is called once for each run, in this thread, and must create everything that it uses anew.

    Raises :class:`SimulationFailed`. `command`: returns what runs the smallest run again, for its text. Exceptions of
    `test` that are no subclasses of :class:`Exception`, such as those of ``pytest.skip()``, pass through.
    """
    check_count("messages", messages)
    if not isinstance(seeds, range):
        check_count("seeds", seeds)
        seeds = range(seeds)
    with quiet():
        _run_all(test, [Replay(seed, messages) for seed in seeds], shrink, command)


def _run_all(test: Test, replays: Sequence[Replay], shrink: bool, command: Callable[[Replay], str]) -> None:
    for replay in replays:
        failure, history = _attempt(test, replay)
        if failure is None and replay is replays[0]:
            failure = _compare(test, replay, history)
        if failure is not None:
            raise _failed(test, failure, command) if shrink else _report(failure, failure.replay, command)


def replay_one(test: Test, replay: Replay, command: Callable[[Replay], str] = str) -> None:
    """Run one run again; raises :class:`SimulationFailed` with its history."""
    failure, _ = _attempt(test, replay, keep=True)
    if failure is not None:
        raise _report(failure, failure.replay, command) from failure.error


def _attempt(test: Test, replay: Replay, keep: bool = False) -> tuple[_Failure | None, tuple[str, ...]]:
    """Run a test once; returns how it failed, and its history."""
    with tempfile.TemporaryDirectory(
        prefix="reliamsg-test-", dir=MEMORY if MEMORY.is_dir() else None
    ) as directory:
        simulation = Simulation(replay, Path(directory), keep)
        try:
            test(simulation)
        except _Wrong as wrong:
            return _failure(simulation, wrong.findings, wrong), simulation.history
        except Exception as error:  # noqa: BLE001  (whatever the test raises)
            text = "".join(traceback.format_exception_only(error)).strip()
            return _failure(simulation, [Finding("assertion", text)], error), simulation.history
        finally:
            simulation.close()
        if not simulation.history:
            raise ConfigError("the test has not called simulation.run()")
    return None, simulation.history


def _failure(simulation: Simulation, findings: Sequence[Finding], error: BaseException) -> _Failure:
    return _Failure(simulation.replay, tuple(findings), error, simulation.bit, simulation.lines)


def _compare(test: Test, replay: Replay, before: tuple[str, ...]) -> _Failure | None:
    """Run a seed once more: it has to have the same history."""
    failure, history = _attempt(test, replay)
    if failure is None and history == before:
        return None
    pairs = zip((*before, "the end"), (*history, "the end"), strict=False)
    ends = ("the test passed", "the test failed")
    first, second = next(((a, b) for a, b in pairs if a != b), ends)
    text = f"first {first}; then {second}. {UNSTABLE}"
    error = AssertionError(text)
    return _Failure(replay, (Finding("not_deterministic", text),), error, frozenset(), ())


def _failed(test: Test, first: _Failure, command: Callable[[Replay], str]) -> SimulationFailed:
    """Reduce a failing run, and report it."""
    small, left = first, MOST_RUNS
    if "not_deterministic" not in first.kinds:
        small = _shrink(test, first, left)
        final, _ = _attempt(test, small.replay, keep=True)
        if final is None:
            text = f"it failed, and did not fail again. {UNSTABLE}"
            findings = (*first.findings, Finding("not_deterministic", text))
            small = _Failure(first.replay, findings, first.error, first.bit, ())
        else:
            small = final
    failed = _report(small, first.replay, command)
    failed.__cause__ = small.error
    return failed


def _report(failure: _Failure, original: Replay, command: Callable[[Replay], str]) -> SimulationFailed:
    """`original`: what failed first."""
    small = failure.replay
    said = [f"seed {small.seed}: {finding}" for finding in failure.findings]
    if original != small:
        said.append(
            f"reduced from {original.messages} messages and {len(original.faults or ())} faults to {small.messages}"
            f" and {', '.join(small.faults or ()) or 'none'}"
        )
    if failure.lines:
        left_out = len(failure.lines) - SHOWN_LINES
        said.append(
            "history, in simulated seconds:"
            + (f" (without the first {left_out} lines)" if left_out > 0 else "")
        )
        said += failure.lines[-SHOWN_LINES:]
    said += _raised(failure.error)
    said.append(f"again: {command(small)}")
    return SimulationFailed("\n".join(said), failure.kinds, small)


def _raised(error: BaseException) -> list[str]:
    """Where the application, or the test, has raised an error."""
    shown = error.__cause__ if isinstance(error, _Wrong) else error
    if shown is None or not shown.__traceback__:
        return []
    own = str(Path(__file__).parent.parent)
    frames = [
        frame for frame in traceback.extract_tb(shown.__traceback__) if not frame.filename.startswith(own)
    ]
    lines = traceback.format_list(frames) + traceback.format_exception_only(shown)
    return ["raised:", *"".join(lines).splitlines()]


def _shrink(test: Test, failure: _Failure, left: int) -> _Failure:
    """A smaller run that fails in the same way."""
    wanted = failure.kinds
    small = failure

    def fails(replay: Replay) -> bool:
        nonlocal small, left
        left -= 1
        found, _ = _attempt(test, replay)
        if found is None or not found.kinds & wanted:
            return False
        small = found
        return True

    again = True
    while again and left > 0:
        now = small.replay
        faults = now.faults or ()
        idle = tuple(name for name in faults if name in small.bit)
        again = len(idle) < len(faults) and fails(Replay(now.seed, now.messages, idle))
        for fault in small.replay.faults or ():
            others = tuple(name for name in small.replay.faults or () if name != fault)
            again |= left > 0 and fails(Replay(now.seed, now.messages, others))
        for fewer in (now.messages // 4, now.messages // 2, now.messages * 3 // 4, now.messages - 1):
            if 0 < fewer < now.messages and fails(Replay(now.seed, fewer, small.replay.faults)):
                again = True
                break
    return small
