"""The thread on which an application's callbacks run: its start, the order of calls, and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from reliamsg.logs import Log
from reliamsg.runtime import callbacks
from reliamsg.runtime.callbacks import CallbackThread, OnError
from reliamsg.runtime.wakeup import Wakeup
from tests.interruptions import interrupt, points
from tests.patience import wait_for

LOG = Log("reliamsg.tests")


class Host:
    """Owns a callback thread, as a worker does."""

    def __init__(self, on_error: OnError | None = None) -> None:
        self.wakes = 0
        self.calls = CallbackThread("called back", on_error, LOG, self.wake)

    def wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def blocked() -> Iterator[threading.Event]:
    """What keeps a callback from returning until it is set."""
    event = threading.Event()
    yield event
    event.set()


def test_the_thread_is_started_by_the_worker_alone() -> None:
    host, called = Host(), list[str]()
    host.calls.start()
    assert "called back" not in {thread.name for thread in threading.enumerate()}
    host.calls.put(lambda: called.append(threading.current_thread().name))
    assert (host.wakes, called) == (1, [])
    host.calls.start()
    wait_for(lambda: called, "it was called")
    assert called == ["called back"]
    host.calls.put(lambda: called.append("more"))
    host.calls.close(60.0)
    assert (host.wakes, called) == (1, ["called back", "more"])


def test_close_makes_waiting_calls_although_nothing_was_started() -> None:
    host, called = Host(), list[int]()
    for number in range(10):
        host.calls.put(partial(called.append, number))
    host.calls.close(60.0)
    assert called == list(range(10))


def test_close_does_not_wait_for_longer_calls(blocked: threading.Event) -> None:
    host, called = Host(), list[int]()
    host.calls.put(blocked.wait)
    host.calls.put(lambda: called.append(1))
    host.calls.close(0.0)
    assert called == []
    blocked.set()
    wait_for(lambda: called, "what waits is called all the same")


def test_calls_that_come_after_the_end_are_made_all_the_same_one_at_a_time(blocked: threading.Event) -> None:
    host, called, at_once = Host(), list[int](), list[int]()
    running: list[int] = []

    def call(number: int) -> None:
        running.append(number)
        at_once.append(len(running))
        called.append(number)
        running.remove(number)

    host.calls.put(blocked.wait)
    host.calls.close(0.0)  # it continues
    for number in range(50):
        host.calls.put(partial(call, number))
    assert called == []
    blocked.set()
    wait_for(lambda: len(called) == 50, "all of them")
    assert called == list(range(50))
    assert set(at_once) == {1}
    host.calls.put(partial(call, 50))
    wait_for(lambda: len(called) == 51, "and this one, when the thread has ended")


def test_a_callback_may_close() -> None:
    closed: list[bool] = []
    host = Host()

    def close() -> None:
        host.calls.close(60.0)
        closed.append(True)

    host.calls.put(close)
    host.calls.start()
    wait_for(lambda: closed, "it does not wait for itself")


def test_errors_are_reported_in_the_order_of_all_calls() -> None:
    seen: list[str] = []
    host = Host(lambda error: seen.append(str(error)))

    def fails() -> None:
        raise ValueError("of a callback")

    host.calls.report(ValueError("first"))
    host.calls.put(fails)
    host.calls.put(lambda: seen.append("called"))
    host.calls.report(ValueError("last"))
    host.calls.start()
    wait_for(lambda: len(seen) == 4, "all of it")
    assert seen == ["first", "called", "last", "of a callback"]
    host.calls.close(60.0)


def test_an_on_error_that_raises_is_logged_and_not_called_for_that(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []

    def on_error(error: BaseException) -> None:
        told.append(error)
        raise RuntimeError("on_error itself fails")

    host = Host(on_error)
    host.calls.report(ValueError("1"))
    host.calls.report(ValueError("2"))
    host.calls.close(60.0)
    assert [str(error) for error in told] == ["1", "2"]
    assert [record.message for record in caplog.records] == ["on_error raised"] * 2


def test_an_on_error_that_only_returns_a_coroutine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def on_error(_: BaseException) -> None: ...

    host = Host(on_error)
    host.calls.report(ValueError("mine"))
    host.calls.close(60.0)
    (record,) = caplog.records
    assert "on_error returned a coroutine" in record.message
    assert "not told of: mine" in record.message


def test_more_errors_than_on_error_deals_with_are_only_logged(
    blocked: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "MAX_ERRORS_WAITING", 3)
    told: list[str] = []

    def on_error(error: BaseException) -> None:
        told.append(str(error))
        blocked.wait()

    host = Host(on_error)
    host.calls.report(ValueError("0"))
    host.calls.start()
    wait_for(lambda: told, "it is busy")
    for number in range(1, 6):
        host.calls.report(ValueError(str(number)))
    assert [record.message for record in caplog.records] == [
        f"on_error is busy; not told of: {n}" for n in (4, 5)
    ]
    blocked.set()
    host.calls.close(60.0)
    assert told == ["0", "1", "2", "3"]


def test_without_on_error_nothing_waits() -> None:
    host = Host()
    host.calls.report(ValueError("mine"))
    assert host.wakes == 0


@pytest.mark.parametrize("method", ["put", "report"])
def test_an_interrupted_add_leaves_a_consistent_state(method: str) -> None:
    """Even if the interruption adds another call, and ends the one that it interrupted."""
    called: list[str] = []
    wakeup = Wakeup()
    calls = CallbackThread("called back", lambda error: called.append(str(error)), LOG, wakeup.set)
    adds: dict[str, Callable[[], None]] = {
        "put": lambda: calls.put(lambda: called.append("added")),
        "report": lambda: calls.report(ValueError("added")),
    }
    interrupted = 0

    def handler() -> None:
        calls.put(lambda: called.append("by the handler"))
        interrupt()

    for ended in points(adds[method], handler):
        assert ended
        interrupted += 1
    assert interrupted > 1
    calls.start()
    wait_for(lambda: called.count("by the handler") == interrupted, "nothing hangs")
    calls.close(60.0)
    assert called.count("added") >= 1
