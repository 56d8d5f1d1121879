"""The loop that keeps a connection: turns, backoff, and ends that are cut short."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.base import SenderEvents
from reliamsg.transport.session import Ended, SiteSession, retry_until_steady, shortest_pause
from tests.patience import STALL_S, wait_for
from tests.transport.tools import Sending


class _Session(SiteSession[SenderEvents]):
    def __init__(self, site: Site, events: Sending, outcome: Callable[[Endpoint], Ended]) -> None:
        super().__init__(site, events, "session-under-test")
        self.tried: list[str] = []
        self._outcome = outcome

    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        assert deadline > time.monotonic()
        self.tried.append(str(endpoint))
        return self._outcome(endpoint)

    def interrupt(self) -> None:
        return


def _site(**settings: object) -> Site:
    return Site("s", "amqp://u:secret@a:1,b:2", backoff_min=0.01, backoff_max=0.02, **settings)  # type: ignore[arg-type]


def test_endpoints_are_tried_in_turn() -> None:
    events = Sending()
    session = _Session(_site(), events, lambda _: Ended("no"))
    session.start()
    wait_for(lambda: len(session.tried) >= 4, "four attempts")
    session.close(5.0)
    assert session.tried[:4] == ["a:1", "b:2", "a:1", "b:2"]
    assert events.failed[0] == ("a:1", "no", False)


def test_a_refused_login_waits_longer_and_is_shown() -> None:
    events = Sending()
    site = Site("s", "amqp://a,b", backoff_min=0.01, backoff_max=30.0)
    session = _Session(site, events, lambda _: Ended("refused", credentials=True))
    session.start()
    wait_for(lambda: events.failed, "the refusal")
    began = time.monotonic()
    session.close(60.0)
    assert time.monotonic() - began < STALL_S, "close() cuts the wait of half a minute short"
    assert len(session.tried) == 1, "the other endpoints would refuse as well"
    assert events.failed == [("a:5672", "refused", True)]


def test_an_attempt_that_raises_is_not_the_end() -> None:
    def fail(_: Endpoint) -> Ended:
        raise RuntimeError("unexpected")

    events = Sending()
    session = _Session(_site(), events, fail)
    session.start()
    wait_for(lambda: len(events.failed) >= 3, "it goes on")
    session.close(5.0)
    assert events.failed[0][1] == "internal error: RuntimeError"


def test_a_raising_credentials_callable_is_shown_without_its_text() -> None:
    def ask() -> Credentials:
        raise LookupError("the vault's token is secret")

    events = Sending()
    session = _Session(_site(credentials=ask), events, lambda _: Ended("unused"))
    session.start()
    wait_for(lambda: events.failed, "the failure")
    session.close(5.0)
    assert events.failed[0] == ("a:1", "the credentials callable raised LookupError", True)
    assert not session.tried


def test_after_close_nothing_is_told_even_by_a_thread_that_hangs() -> None:
    events, release = Sending(), threading.Event()

    def hang(_: Endpoint) -> Ended:
        release.wait(60)
        session.gate.events.connected("late", None)
        return Ended("late")

    session = _Session(_site(), events, hang)
    session.start()
    wait_for(lambda: session.tried, "the attempt")
    session.close(0.05)
    release.set()
    wait_for(lambda: not session._thread.is_alive(), "the thread ends")
    assert not events.up
    assert not events.failed


@pytest.mark.parametrize("credentials", [False, True])
def test_pauses_stay_within_their_bounds(credentials: bool) -> None:
    site = Site("s", "amqp://a", backoff_min=0.2, backoff_max=10.0)
    waits: list[float] = []
    retry = retry_until_steady(site, threading.Event()).copy(sleep=waits.append)
    for _ in range(2):
        waits.clear()
        ended = retry(lambda: Ended("no", credentials=credentials, steady=len(waits) == 2000))
        assert ended.steady
        assert len(waits) == 2000
        assert all((10.0 <= wait <= 20.0) if credentials else (0.2 <= wait <= 10.0) for wait in waits)
        assert credentials or waits[0] <= 0.4, "the first pause is a short one, each time"
        assert max(waits) > 5.0
    assert all(0.2 <= shortest_pause(site) <= 0.4 for _ in range(100))


def test_a_pause_is_cut_short() -> None:
    stopping = threading.Event()
    retry = retry_until_steady(Site("s", "amqp://a", backoff_min=50.0, backoff_max=60.0), stopping)
    thread = threading.Thread(target=retry, args=(lambda: Ended("no"),), daemon=True)
    thread.start()
    time.sleep(0.05)
    stopping.set()
    thread.join(STALL_S)
    assert not thread.is_alive()
