"""Applications for the simulation: correct ones, and the same with planted bugs.

Each is a test as a user would write it. The docstring of a planted bug says what is wrong; :data:`PLANTED` says how it
is convicted, and which seed does it. ``python -m tests.testing.planted`` looks for the first seeds; with ``A:B``, it
runs the correct applications with these seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from reliamsg import Message
from reliamsg.testing import DurableDatabase, Simulation, SimulationFailed, simulate


class Program(Protocol):
    __name__: str

    def __call__(self, simulation: Simulation, /) -> None: ...


Handler = Callable[[Any], Any]

SEEDS = 200
"""Within which each bug has to be convicted."""
MESSAGES = 30
FEW = 12
"""Messages of the short tests."""
TOGETHER = 10
"""Seeds of one correct application at a time: the first of them runs twice."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (number INTEGER PRIMARY KEY, body BLOB, CONSTRAINT once UNIQUE (body));
CREATE TABLE IF NOT EXISTS doubled (number INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS position (stream TEXT PRIMARY KEY, epoch INTEGER, seq INTEGER);
CREATE TABLE IF NOT EXISTS total (value INTEGER);
"""


def opened(database: DurableDatabase) -> sqlite3.Connection:
    connection = database.connect()
    connection.executescript(SCHEMA)
    return connection


def effects_in(database: DurableDatabase, table: str = "effects") -> Callable[[], Iterable[bytes]]:
    def read() -> Iterable[bytes]:
        with contextlib.closing(opened(database)) as connection:
            return [body for (body,) in connection.execute(f"SELECT body FROM {table} ORDER BY number")]

    return read


def run_with(
    simulation: Simulation, make: Callable[[sqlite3.Connection], Handler], table: str = "doubled", **more: Any
) -> None:
    """Run a handler that has a database, whose effects are in `table`."""
    database = simulation.database()
    simulation.run(start=lambda: make(opened(database)), effects=effects_in(database, table), **more)


def once(connection: sqlite3.Connection, message: Message) -> bool:
    """Remember a message, in the transaction that is open; False if it is known."""
    try:
        connection.execute("INSERT INTO seen VALUES (?)", (str(message.id),))
    except sqlite3.IntegrityError:
        return False
    return True


def add(connection: sqlite3.Connection, message: Message) -> None:
    connection.execute("INSERT INTO doubled (body) VALUES (?)", (message.body,))


# -- correct applications ----------------------------------------------------------------------------------


def unique_key(simulation: Simulation) -> None:
    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                connection.execute("INSERT OR IGNORE INTO effects (body) VALUES (?)", (message.body,))

        return handle

    run_with(simulation, make, "effects")


def identity_in_the_same_transaction(simulation: Simulation) -> None:
    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


def service_with_idempotency_keys(simulation: Simulation) -> None:
    """The service ignores what it has received before."""
    received = simulation.durable_dict("the service")

    def handle(message: Message) -> None:
        if message.body not in received:
            received[message.body] = True

    simulation.run(handle, effects=lambda: received)


def batches(simulation: Simulation) -> None:
    def make(connection: sqlite3.Connection) -> Handler:
        def handle(messages: list[Message]) -> None:
            with connection:
                for message in messages:
                    if once(connection, message):
                        add(connection, message)

        return handle

    run_with(simulation, make, batch=7)


def acknowledged_by_hand(simulation: Simulation) -> None:
    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with message.process():
                with connection:
                    if once(connection, message):
                        add(connection, message)
                message.ack(durable=True)

        return handle

    run_with(simulation, make)


def invalid_ones_are_rejected(simulation: Simulation) -> None:
    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            if int(message.body.rpartition(b"/")[2]) % 7 == 3:
                message.reject("invalid")
                return
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


def coroutine(simulation: Simulation) -> None:
    def make(connection: sqlite3.Connection) -> Handler:
        async def handle(message: Message) -> None:
            await asyncio.sleep(0.01)
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


def total_of_amounts(simulation: Simulation) -> None:
    """Its effects can't be told apart, so the test compares the sum itself."""
    database = simulation.database()

    def make() -> Handler:
        connection = opened(database)

        def handle(message: Message) -> None:
            with connection:
                if once(connection, message):
                    connection.execute("INSERT INTO total VALUES (?)", (int(message.body),))

        return handle

    simulation.run(start=make, messages=amounts, effects=None)
    with contextlib.closing(opened(database)) as connection:
        total = connection.execute("SELECT COALESCE(SUM(value), 0) FROM total").fetchone()[0]
    # A message may become a dead letter after its effect was committed.
    least = sum(int(message.body) for message in simulation.handled)
    assert least <= total <= least + sum(int(message.body) for message in simulation.given_up)


def amounts(chance: random.Random, number: int) -> bytes:
    return str(chance.randint(1, 100)).encode()


def slow_service_with_retries(simulation: Simulation) -> None:
    """Retries by itself, for a while."""
    received = simulation.durable_dict("the service")

    def handle(message: Message) -> None:
        for pause in (0.1, 1.0, None):
            try:
                received[message.body] = True
                return
            except ConnectionError:
                if pause is None:
                    raise
                time.sleep(pause)

    simulation.run(handle, effects=lambda: received)


CORRECT: tuple[Program, ...] = (
    unique_key, identity_in_the_same_transaction, service_with_idempotency_keys, batches,
    acknowledged_by_hand, invalid_ones_are_rejected, coroutine, total_of_amounts, slow_service_with_retries,
)  # fmt: skip


# -- planted bugs ------------------------------------------------------------------------------------------


def not_idempotent(simulation: Simulation) -> None:
    """A redelivered message has its effect again."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                add(connection, message)

        return handle

    run_with(simulation, make)


def acknowledges_too_early(simulation: Simulation) -> None:
    """A crash between the acknowledgement and the effect loses it."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            message.ack()
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


def acknowledges_durably_too_early(simulation: Simulation) -> None:
    """The same, for certain."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            message.ack(durable=True)
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


def swallows_errors(simulation: Simulation) -> None:
    """A message whose commit failed is acknowledged."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            try:
                with connection:
                    if once(connection, message):
                        add(connection, message)
            except sqlite3.Error:
                pass

        return handle

    run_with(simulation, make)


def swallows_everything(simulation: Simulation) -> None:
    """Even what is no Exception."""
    received = simulation.durable_dict("the service")

    def handle(message: Message) -> None:
        with contextlib.suppress(BaseException):
            received[message.body] = True

    simulation.run(handle, effects=lambda: received)


def keeps_state_across_redeliveries(simulation: Simulation) -> None:
    """What a failed attempt has gathered is written with the next one."""

    def make(connection: sqlite3.Connection) -> Handler:
        gathered: list[Message] = []

        def handle(message: Message) -> None:
            gathered.append(message)
            with connection:
                if once(connection, message):
                    for each in gathered:
                        add(connection, each)
            gathered.clear()

        return handle

    run_with(simulation, make)


def never_rolls_back(simulation: Simulation) -> None:
    """The transaction of a failed attempt is committed by the next one."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            add(connection, message)
            connection.commit()

        return handle

    run_with(simulation, make)


def remembers_in_memory_only(simulation: Simulation) -> None:
    """After a crash, it has forgotten which messages it knows."""

    def make(connection: sqlite3.Connection) -> Handler:
        known = set()

        def handle(message: Message) -> None:
            if message.id not in known:
                with connection:
                    add(connection, message)
                known.add(message.id)

        return handle

    run_with(simulation, make)


def writes_later(simulation: Simulation) -> None:
    """Effects are committed every three messages: those in memory are lost in a crash, though acknowledged."""

    def make(connection: sqlite3.Connection) -> Handler:
        pending: list[Message] = []

        def handle(message: Message) -> None:
            pending.append(message)
            if len(pending) >= 3:
                with connection:
                    for each in pending:
                        if once(connection, each):
                            add(connection, each)
                pending.clear()

        return handle

    run_with(simulation, make)


def takes_the_flag_for_done(simulation: Simulation) -> None:
    """``redelivered`` says that a message may have been delivered before, not that it was handled."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            if not message.redelivered:
                with connection:
                    add(connection, message)

        return handle

    run_with(simulation, make)


def remembers_before_the_effect(simulation: Simulation) -> None:
    """Two transactions: after a crash between them, the message is known, and its effect is missing."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                new = once(connection, message)
            if new:
                with connection:
                    add(connection, message)

        return handle

    run_with(simulation, make)


def remembers_after_the_effect(simulation: Simulation) -> None:
    """Two transactions: after a crash between them, the effect is made again."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            found = connection.execute("SELECT 1 FROM seen WHERE id = ?", (str(message.id),)).fetchone()
            if found is None:
                with connection:
                    add(connection, message)
                with connection:
                    once(connection, message)

        return handle

    run_with(simulation, make)


def assumes_one_order_of_all_producers(simulation: Simulation) -> None:
    """Skips messages whose number is not above that of the latest one, of whatever stream."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                place = message.epoch, message.seq
                found = connection.execute("SELECT epoch, seq FROM position WHERE stream = 'all'").fetchone()
                if place > (found or (0, 0)):
                    add(connection, message)
                    connection.execute("INSERT OR REPLACE INTO position VALUES ('all', ?, ?)", place)

        return handle

    run_with(simulation, make)


def assumes_numbers_without_epochs(simulation: Simulation) -> None:
    """The position per stream has no epoch, although numbers begin again in each."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                stream = str(message.stream)
                found = connection.execute("SELECT seq FROM position WHERE stream = ?", (stream,)).fetchone()
                if message.seq > (found or (0,))[0]:
                    add(connection, message)
                    connection.execute(
                        "INSERT OR REPLACE INTO position VALUES (?, 0, ?)", (stream, message.seq)
                    )

        return handle

    run_with(simulation, make)


def knows_messages_by_their_numbers(simulation: Simulation) -> None:
    """Messages of two producers have the same numbers."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection, contextlib.suppress(sqlite3.IntegrityError):
                connection.execute("INSERT INTO seen VALUES (?)", (str(message.seq),))
                add(connection, message)

        return handle

    run_with(simulation, make)


def insists_on_no_gaps(simulation: Simulation) -> None:
    """Refuses to go on after messages that were given up."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                stream = str(message.stream)
                found = connection.execute("SELECT seq FROM position WHERE stream = ?", (stream,)).fetchone()
                last = found[0] if found else message.seq - 1
                if message.seq > last + 1:
                    raise ValueError(f"{message.id} follows {last}")
                if message.seq == last + 1:
                    add(connection, message)
                    connection.execute(
                        "INSERT OR REPLACE INTO position VALUES (?, 0, ?)", (stream, message.seq)
                    )

        return handle

    run_with(simulation, make)


def retries_what_may_have_happened(simulation: Simulation) -> None:
    """A request whose answer was lost is repeated without an idempotency key."""
    received = simulation.durable_list("the service")

    def make() -> Handler:
        known = set(received)

        def handle(message: Message) -> None:
            if message.body in known:
                return
            for _ in range(3):
                try:
                    received.append(message.body)
                    break
                except ConnectionError:
                    time.sleep(0.1)
            known.add(message.body)

        return handle

    simulation.run(start=make, effects=lambda: received)


def handles_failures_last(simulation: Simulation) -> None:
    """Puts a message that failed at the end of its own queue, and acknowledges it: later ones overtake it."""
    received, later = simulation.durable_list("the service"), simulation.durable_list("the queue")

    def put(body: bytes) -> None:
        if body not in received:
            received.append(body)

    def handle(message: Message) -> None:
        try:
            put(message.body)
        except ConnectionError:
            later.append(message.body)
        if len(later) > 1:
            put(later[0])
            del later[0]

    simulation.run(handle, effects=lambda: [*received, *(body for body in later if body not in received)])


def rejects_after_the_effect(simulation: Simulation) -> None:
    """Validates only after the effect was committed."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            with connection:
                if once(connection, message):
                    add(connection, message)
            if message.body.endswith(b"7"):
                message.reject("invalid")

        return handle

    run_with(simulation, make)


def rejects_what_only_failed(simulation: Simulation) -> None:
    """Has a message rejected whose effect may have been made."""
    received = simulation.durable_dict("the service")

    def handle(message: Message) -> None:
        try:
            received[message.body] = True
        except ConnectionError as error:
            message.reject(str(error))

    simulation.run(handle, effects=lambda: received)


def batch_in_several_transactions(simulation: Simulation) -> None:
    """A batch that failed in the middle is handled again from its beginning."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(messages: list[Message]) -> None:
            for message in messages:
                with connection:
                    add(connection, message)

        return handle

    run_with(simulation, make, batch=5)


def acknowledges_in_background(simulation: Simulation) -> None:
    """Hands messages to a task, and returns: what the task has not done is lost in a crash."""

    def make(connection: sqlite3.Connection) -> Handler:
        tasks: set[asyncio.Task[None]] = set()

        async def work(message: Message) -> None:
            await asyncio.sleep(0.05)
            with connection:
                if once(connection, message):
                    add(connection, message)

        async def handle(message: Message) -> None:
            task = asyncio.get_running_loop().create_task(work(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return handle

    run_with(simulation, make)


def depends_on_chance(simulation: Simulation) -> None:
    """Handles only some messages, whatever the seed."""
    chance = random.SystemRandom()

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            if chance.random() < 0.2:
                message.reject("bad luck")
                return
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


_earlier = itertools.count()


def depends_on_earlier_runs(simulation: Simulation) -> None:
    """Uses state of the module: the outcome depends on what has run before."""

    def make(connection: sqlite3.Connection) -> Handler:
        def handle(message: Message) -> None:
            if next(_earlier) % 50 == 0:
                message.reject("one in fifty")
                return
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    run_with(simulation, make)


def setup_is_not_repeatable(simulation: Simulation) -> None:
    """The second start of the process fails, because its tables exist."""
    database = simulation.database()

    def start() -> Handler:
        connection = database.connect()
        connection.execute("CREATE TABLE effects (number INTEGER PRIMARY KEY, body BLOB UNIQUE)")
        connection.commit()

        def handle(message: Message) -> None:
            with connection:
                connection.execute("INSERT OR IGNORE INTO effects (body) VALUES (?)", (message.body,))

        return handle

    simulation.run(start=start, effects=effects_in(database))


@dataclass(frozen=True)
class Planted:
    """A bug, and how it is convicted."""

    test: Program
    kinds: tuple[str, ...]
    """One of these convicts it."""
    seed: int = 0
    """The first that does, with :data:`FEW` messages."""


PLANTED: tuple[Planted, ...] = (
    Planted(not_idempotent, ("effect_twice",), seed=3),
    Planted(acknowledges_too_early, ("effect_lost",), seed=1),
    Planted(acknowledges_durably_too_early, ("effect_lost",)),
    Planted(swallows_errors, ("effect_lost",), seed=1),
    Planted(swallows_everything, ("effect_lost",), seed=1),
    Planted(keeps_state_across_redeliveries, ("effect_twice",), seed=7),
    Planted(never_rolls_back, ("effect_twice",), seed=3),
    Planted(remembers_in_memory_only, ("effect_twice",), seed=3),
    Planted(writes_later, ("effect_lost",), seed=1),
    Planted(takes_the_flag_for_done, ("effect_lost",)),
    Planted(remembers_before_the_effect, ("effect_lost",), seed=1),
    Planted(remembers_after_the_effect, ("effect_twice",), seed=1),
    Planted(assumes_one_order_of_all_producers, ("effect_lost",)),
    Planted(assumes_numbers_without_epochs, ("effect_lost",), seed=5),
    Planted(knows_messages_by_their_numbers, ("effect_lost",)),
    Planted(insists_on_no_gaps, ("raised",), seed=2),
    Planted(retries_what_may_have_happened, ("effect_twice",), seed=1),
    Planted(handles_failures_last, ("effect_out_of_order",), seed=2),
    Planted(rejects_after_the_effect, ("effect_of_rejected",), seed=1),
    Planted(rejects_what_only_failed, ("effect_of_rejected",), seed=1),
    Planted(batch_in_several_transactions, ("effect_twice",)),
    Planted(acknowledges_in_background, ("effect_lost",)),
    Planted(depends_on_chance, ("not_deterministic",)),
    Planted(depends_on_earlier_runs, ("not_deterministic",)),
    Planted(setup_is_not_repeatable, ("raised",)),
)


def first_seed(planted: Planted, seeds: Iterable[int], messages: int) -> tuple[int | None, Counter[str]]:
    """The first of these seeds that convicts a bug for the right reason; and how many seeds had findings of each kind
    until then."""
    found = Counter[str]()
    for seed in seeds:
        kinds = convicted_by(planted.test, seed, messages)
        found.update(kinds)
        if kinds.intersection(planted.kinds):
            return seed, found
    return None, found


def convicted_by(test: Program, seed: int, messages: int) -> frozenset[str]:
    """What is wrong with an application, according to one seed."""
    try:
        simulate(test, seeds=range(seed, seed + 1), messages=messages, shrink=False)
    except SimulationFailed as failed:
        return failed.kinds
    return frozenset()


def false_alarm(test: Program, seeds: range, messages: int = MESSAGES) -> str:
    """Run a correct application; returns what is said to be wrong with it."""
    try:
        simulate(test, seeds=seeds, messages=messages)
    except SimulationFailed as failed:
        return f"{test.__name__}: {failed}"
    return ""


def _run_correct(seeds: range, jobs: int) -> int:
    """Each ten seeds with one of the correct applications, in turn."""
    parts = [seeds[at : at + TOGETHER] for at in range(0, len(seeds), TOGETHER)]
    applications = [CORRECT[part[0] // TOGETHER % len(CORRECT)] for part in parts]
    runs, alarms = 0, 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        for part, text in zip(parts, processes.map(false_alarm, applications, parts), strict=True):
            runs += len(part)
            if text:
                alarms += 1
                print(f"false alarm: {text}", flush=True)
            if runs % 500 == 0:
                print(f"{runs} runs, {alarms} false alarms", flush=True)
    print(json.dumps({"runs": runs, "false_alarms": alarms}))
    return 1 if alarms else 0


def _run_planted(messages: int, jobs: int) -> int:
    missed = 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        for planted, (seed, found) in zip(
            PLANTED,
            processes.map(partial(first_seed, seeds=range(SEEDS), messages=messages), PLANTED),
            strict=True,
        ):
            missed += seed is None
            shown = "NOT CONVICTED" if seed is None else f"seed {seed}"
            print(f"{planted.test.__name__:40} {shown:14} {dict(found)}", flush=True)
    print(json.dumps({"bugs": len(PLANTED), "missed": missed}))
    return 1 if missed else 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", metavar="A:B", nargs="?")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.seeds is None:
        return _run_planted(chosen.messages, chosen.jobs)
    first, _, last = chosen.seeds.partition(":")
    return _run_correct(range(int(first), int(last)), chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
