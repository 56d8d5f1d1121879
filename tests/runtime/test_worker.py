"""The worker thread of a client: when it makes steps, what happens if one fails, and how it exits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from reliamsg.errors import FatalError, StoreCorrupt
from reliamsg.logs import Log
from reliamsg.runtime.worker import Worker
from tests.patience import patient, wait_for

LOG = Log("reliamsg.tests")
LONG_S = 60.0


class Steps:
    """Work that records its calls. `do` is called in each step and may return a deadline."""

    def __init__(self, do: Callable[[], float | None] = lambda: None) -> None:
        self.do = do
        self.made: list[str] = []
        self.failures: list[FatalError] = []
        self.gate = threading.Event()
        """Closed, it delays the end."""
        self.gate.set()

    def step(self) -> float | None:
        self.made.append("step")
        return self.do()

    def fail(self, error: FatalError) -> None:
        self.made.append("fail")
        self.failures.append(error)

    def finish(self) -> None:
        self.gate.wait()
        self.made.append(f"finish on {threading.current_thread().name}")


@pytest.fixture
def make() -> Iterator[Callable[..., Worker]]:
    """Makes workers, and stops those that the test leaves running."""
    made: list[Worker] = []

    def worker(most_idle_s: float | None = None) -> Worker:
        made.append(Worker("works", time.monotonic, LOG, most_idle_s))
        return made[-1]

    yield worker
    for one in made:
        assert one.end(patient(LONG_S))


def test_a_step_is_made_at_once_and_then_only_when_woken(make: Callable[..., Worker]) -> None:
    worker, work = make(), Steps()
    worker.start(work)
    wait_for(lambda: work.made, "the first step")
    time.sleep(0.05)
    assert work.made == ["step"]
    worker.wake()
    wait_for(lambda: len(work.made) == 2, "the second")
    assert worker.end(patient(LONG_S))
    assert work.made == ["step", "step", "finish on works"]


def test_wake_ups_before_the_start_or_during_a_step_are_not_lost(make: Callable[..., Worker]) -> None:
    worker = make()
    worker.wake()

    def wakes() -> None:
        if len(work.made) < 5:
            worker.wake()

    work = Steps(wakes)
    worker.start(work)
    wait_for(lambda: len(work.made) == 5, "each has led to another")


def test_a_step_is_made_at_its_deadline(make: Callable[..., Worker]) -> None:
    worker = make()
    times: list[float] = []

    def step() -> float | None:
        times.append(time.monotonic())
        return times[0] + 0.1 if len(times) == 1 else None

    worker.start(Steps(step))
    wait_for(lambda: len(times) == 2, "the second step")
    assert times[1] - times[0] >= 0.1


def test_steps_are_no_further_apart_than_they_may_be(make: Callable[..., Worker]) -> None:
    worker, work = make(most_idle_s=0.01), Steps(lambda: time.monotonic() + LONG_S)
    worker.start(work)
    wait_for(lambda: len(work.made) > 3, "it does not sleep for long")


def test_a_failing_step_is_reported_and_others_follow(
    make: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[Exception] = [ZeroDivisionError("first"), StoreCorrupt("second")]

    def step() -> None:
        if raised:
            raise raised.pop(0)

    worker, work = make(), Steps(step)
    worker.start(work)
    wait_for(lambda: len(work.failures) == 1, "the first failure")
    worker.wake()
    wait_for(lambda: len(work.failures) == 2, "the second")
    worker.wake()
    wait_for(lambda: work.made == ["step", "fail"] * 2 + ["step"], "it goes on")
    first, second = work.failures
    assert (type(first), str(first)) == (FatalError, "internal error: ZeroDivisionError('first')")
    assert (type(second), str(second)) == (StoreCorrupt, "second")
    assert [record.message for record in caplog.records] == ["works: a step failed"] * 2


def test_the_end_is_waited_for_no_longer_than_that(make: Callable[..., Worker]) -> None:
    worker, work = make(), Steps()
    work.gate.clear()
    worker.start(work)
    assert not worker.end(0.01)
    assert "finish on works" not in work.made
    work.gate.set()
    assert worker.end(patient(LONG_S))
    assert work.made[-1] == "finish on works"


def test_one_that_was_never_started_has_ended(make: Callable[..., Worker]) -> None:
    assert make().end(0.0)


def test_an_end_on_its_own_thread_comes_after_the_step(make: Callable[..., Worker]) -> None:
    worker = make()
    found: list[tuple[bool, bool]] = []

    def step() -> None:
        found.append((worker.is_current, worker.end(LONG_S)))
        work.made.append("step is over")

    work = Steps(step)
    worker.start(work)
    wait_for(lambda: len(work.made) == 3, "the end")
    assert found == [(True, False)]
    assert work.made == ["step", "step is over", "finish on works"]
    assert not worker.is_current


def test_an_end_during_a_step_is_not_slept_through(make: Callable[..., Worker]) -> None:
    """Wherever the end comes between two checks of it."""
    for number in range(50):
        worker = make()
        work = Steps()
        worker.start(work)
        if number % 2:
            time.sleep(number / 50_000)
        assert worker.end(patient(LONG_S))
        assert work.made[-1] == "finish on works"
