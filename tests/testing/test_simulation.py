"""Simulations of applications: what handlers can do in them, and what a failing seed says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable

import pytest

from reliamsg import Message
from reliamsg.errors import ConfigError
from reliamsg.testing import Replay, Simulation, SimulationFailed, simulate
from reliamsg.testing.simulation import replay_one
from tests.testing.planted import (
    Handler,
    acknowledges_too_early,
    add,
    not_idempotent,
    once,
    opened,
    setup_is_not_repeatable,
    unique_key,
)

FEW = 6


def failed(
    program: Callable[[Simulation], object], seeds: int | range = 1, messages: int = FEW, shrink: bool = False
) -> SimulationFailed:
    """How a program fails."""
    with pytest.raises(SimulationFailed) as found:
        simulate(program, seeds=seeds, messages=messages, shrink=shrink)
    return found.value


def quiet_seed(program: Callable[[Simulation], object]) -> None:
    """Run a program once, without faults."""
    replay_one(program, Replay(0, FEW, ()))


# -- what a failing seed says ---------------------------------------------------------------------------------


def does_nothing(simulation: Simulation) -> None:
    simulation.run(lambda message: None, effects=list)


def test_a_failing_seed_is_reduced_and_can_be_replayed() -> None:
    found = failed(does_nothing, messages=12, shrink=True)
    assert found.kinds == {"effect_lost"}
    assert found.replay.messages <= 2
    assert found.replay.faults == ()
    text = str(found)
    assert "seed 0: effect_lost (acknowledged, and its effect is missing): p" in text
    assert "reduced from 12 messages and " in text
    assert f"to {found.replay.messages} and none" in text
    assert ": acknowledge" in text, "the history"
    assert text.splitlines()[-1] == f"again: {found.replay}"
    with pytest.raises(SimulationFailed) as again:
        replay_one(does_nothing, Replay.parse(str(found.replay)))
    assert again.value.kinds == found.kinds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("xx", "'xx' is not SEED/MESSAGES/FAULTS"),
        ("1/2/crash/3", "is not SEED/MESSAGES/FAULTS"),
        ("1/2/handler_filed", "there is no fault handler_filed"),
    ],
)
def test_a_run_that_does_not_exist(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Replay.parse(text)


def test_an_application_that_commits_when_it_starts() -> None:
    def program(simulation: Simulation) -> None:
        database = simulation.database()

        def start() -> Callable[[Message], None]:
            connection = database.connect()
            with connection:
                connection.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY, body BLOB)")
                connection.execute("CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY)")
                connection.execute("INSERT OR IGNORE INTO settings VALUES ('opened')")

            def handle(message: Message) -> None:
                with connection:
                    values = (str(message.id), message.body)
                    connection.execute("INSERT OR IGNORE INTO effects VALUES (?, ?)", values)

            return handle

        def effects() -> list[bytes]:
            with contextlib.closing(database.connect()) as connection:
                return [body for (body,) in connection.execute("SELECT body FROM effects ORDER BY rowid")]

        simulation.run(start=start, effects=effects)

    simulate(program, seeds=range(5, 11), messages=20)


def test_the_numbers_of_made_messages_do_not_repeat() -> None:
    numbers: dict[bytes, int] = {}

    def program(simulation: Simulation) -> None:
        received = simulation.durable_dict()
        numbers.clear()

        def make(dice: random.Random, number: int) -> bytes:
            numbers[b"%d" % number] = number
            return b"%d" % number

        def handle(message: Message) -> None:
            received[message.body] = True

        simulation.run(handle, effects=lambda: set(received), messages=make)
        assert {message.body for message in simulation.handled} <= numbers.keys()

    simulate(program, seeds=4, messages=FEW)


@pytest.mark.integrations
def test_the_faults_that_a_bug_needs_remain() -> None:
    found = failed(acknowledges_too_early, seeds=20, messages=30, shrink=True)
    assert found.replay.messages < 30
    assert found.replay.faults in [(name,) for name in ("crash", "crash_inside", "handler_failed", "restart")]
    assert f"{found.replay.faults[0]}" in str(found)


def test_what_the_application_raised_is_shown_with_its_place() -> None:
    text = str(failed(setup_is_not_repeatable, seeds=20))
    assert "raised (the application raised an error, and no operation of the simulation had failed)" in text
    assert "tests/testing/planted.py" in text
    assert "table effects already exists" in text
    assert "reliamsg/simulation" not in text


def test_a_failed_assertion_of_the_test_is_a_finding() -> None:
    def program(simulation: Simulation) -> None:
        simulation.run(lambda message: None, effects=None)
        assert len(simulation.handled) == 0, "nothing is ever handled"

    found = failed(program)
    assert found.kinds == {"assertion"}
    assert "nothing is ever handled" in str(found)


def test_a_test_that_runs_nothing_is_a_mistake() -> None:
    def twice(simulation: Simulation) -> None:
        unique_key(simulation)
        unique_key(simulation)

    with pytest.raises(ConfigError, match=r"has not called simulation\.run"):
        simulate(lambda simulation: None, seeds=1)
    with pytest.raises(SimulationFailed, match="a simulation runs once"):
        simulate(twice, seeds=1, messages=2, shrink=False)


def test_effects_that_can_not_be_told_apart_are_a_mistake() -> None:
    def program(simulation: Simulation) -> None:
        simulation.run(lambda message: None, effects=list, effect_of=lambda message: message.topic)

    assert "each message needs one of its own" in str(failed(program))


@pytest.mark.parametrize("text", ["7", "7/20", "7/20/", "7/20/crash,pause"])
def test_a_replay_has_a_text(text: str) -> None:
    assert str(Replay.parse(text)) == (text if "/" in text else f"{text}/30")


# -- what happens in a run ------------------------------------------------------------------------------------


def test_without_faults_each_message_is_delivered_once_and_in_order() -> None:
    def program(simulation: Simulation) -> None:
        effects = simulation.durable_list()
        simulation.run(lambda message: effects.append(message.body), effects=lambda: effects)
        assert [message.body for message in simulation.handled] == list(effects)
        assert simulation.given_up == []
        assert len(effects) == FEW

    quiet_seed(program)


def test_the_first_seed_is_compared_with_itself() -> None:
    runs: list[tuple[str, ...]] = []

    def program(simulation: Simulation) -> None:
        unique_key(simulation)
        runs.append(simulation.history)

    simulate(program, seeds=2, messages=FEW)
    assert len(runs) == 3
    assert runs[0] == runs[1] != runs[2]


def test_the_order_of_a_set_is_not_judged() -> None:
    def backwards(made: type[list[bytes]] | type[set[bytes]]) -> Callable[[Simulation], object]:
        def program(simulation: Simulation) -> None:
            effects = simulation.durable_list()
            simulation.run(lambda message: effects.insert(0, message.body), effects=lambda: made(effects))

        return program

    quiet_seed(backwards(set))
    with pytest.raises(SimulationFailed) as found:
        quiet_seed(backwards(list))
    assert found.value.kinds == {"effect_out_of_order"}


def test_a_test_that_fails_the_second_time_is_not_deterministic() -> None:
    runs: list[int] = []

    def program(simulation: Simulation) -> None:
        simulation.run(lambda message: None, effects=None)
        runs.append(simulation.seed)
        assert len(runs) == 1

    found = failed(program, messages=2)
    assert found.kinds == {"not_deterministic"}
    assert "first the test passed; then the test failed" in str(found)


def test_messages_have_the_contents_that_the_test_makes() -> None:
    made: dict[bytes, Message] = {}

    def message(chance: random.Random, number: int) -> Message:
        found = Message(body=b"%d: %d" % (number, chance.randrange(100)), key="k", headers={"a": "b"})
        made[found.body] = found
        return found

    def program(simulation: Simulation) -> None:
        def handle(message: Message) -> None:
            assert (message.key, message.headers) == ("k", {"a": "b"})
            effects.append((message.id, message.body))

        effects = simulation.durable_list()
        simulation.run(
            handle, messages=message, effects=lambda: effects, effect_of=lambda each: (each.id, each.body)
        )

    quiet_seed(program)
    assert len(made) == FEW


def test_sleeping_takes_simulated_time_in_this_thread_only() -> None:
    handled: list[int] = []

    def program(simulation: Simulation) -> None:
        def handle(message: Message) -> None:
            time.sleep(100.0)
            thread = threading.Thread(target=time.sleep, args=(0.0,))
            thread.start()
            thread.join()

        simulation.run(handle, effects=None)
        ended = float(simulation.history[-1].split()[0])
        assert ended > 1_000 + 100 * len(simulation.handled), "simulated seconds; a run begins at 1000"
        handled.append(len(simulation.handled))

    replay_one(program, Replay(0, 3, ()))
    assert handled[0] > 1


def test_coroutine_functions_wait_in_simulated_time() -> None:
    def program(simulation: Simulation) -> None:
        effects = simulation.durable_list()

        async def handle(message: Message) -> None:
            begin = asyncio.get_running_loop().time()
            await asyncio.gather(asyncio.sleep(50.0), asyncio.sleep(20.0))
            assert asyncio.get_running_loop().time() == pytest.approx(begin + 50.0, abs=1.0)
            effects.append(message.body)

        simulation.run(handle, effects=lambda: effects)

    replay_one(program, Replay(0, 3, ()))


def test_a_process_that_crashed_changes_nothing_any_more() -> None:
    """Whatever its handler catches."""
    crashes: list[BaseException] = []

    def program(simulation: Simulation) -> None:
        def make() -> Handler:
            connection = opened(database)

            def handle(message: Message) -> None:
                try:
                    with connection:
                        if once(connection, message):
                            add(connection, message)
                except Exception:
                    raise
                except BaseException as crash:  # noqa: BLE001  (what a handler should not do)
                    crashes.append(crash)
                    for _ in range(3):
                        with pytest.raises(type(crash)):
                            late.append(message.body)

            return handle

        database, late = simulation.database(), simulation.durable_list()
        simulation.run(start=make, effects=None)
        assert list(late) == []

    for seed in range(2):
        replay_one(program, Replay(seed, FEW, ("crash_inside",)))
    assert crashes


def test_the_application_is_told_of_errors_that_it_may_raise() -> None:
    def program(simulation: Simulation) -> None:
        def handle(message: Message) -> None:
            if message.body.endswith(b"1"):
                raise ValueError(message.body)

        simulation.run(handle, effects=None, errors=ValueError)
        assert [message.body[-1:] for message in simulation.given_up] == [b"1"] * len(simulation.given_up)
        assert simulation.given_up

    for seed in range(3):
        replay_one(program, Replay(seed, FEW, ()))


def test_points_of_the_application_crash_and_fail() -> None:
    happened: set[str] = set()

    def program(simulation: Simulation) -> None:
        def handle(message: Message) -> None:
            happened.add("handled")
            try:
                simulation.point("a request", TimeoutError("no answer"))
            except TimeoutError:
                happened.add("failed")
                raise
            except BaseException:
                happened.add("crashed")
                raise

        simulation.run(handle, effects=None)

    for seed in range(2):
        replay_one(program, Replay(seed, FEW, ("crash_inside", "handler_failed")))
    assert happened == {"handled", "failed", "crashed"}


def test_an_application_that_is_wrong_leaves_nothing_open(recwarn: pytest.WarningsRecorder) -> None:
    assert failed(not_idempotent, seeds=20, messages=12).kinds == {"effect_twice"}
    assert [str(each.message) for each in recwarn if "unclosed" in str(each.message)] == []
