"""The part of a transport that does not depend on the protocol: one thread that keeps one connection.

A :class:`SiteSession` tries its site's endpoints in turn, indefinitely. Its subclass implements one attempt: connect,
serve the connection while it lasts, and return why it ended. Between rounds over the endpoints the thread pauses,
exponentially longer and with jitter; ``close()`` cuts every pause short.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_result,
    sleep_using_event,
    stop_when_event_set,
    wait_random,
    wait_random_exponential,
)

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.logs import Log
from reliamsg.transport.base import ReceiverEvents, SenderEvents

__all__ = [
    "GOODBYE_SECONDS",
    "Ended",
    "EventGate",
    "SiteSession",
    "log_in",
    "retry_until_steady",
    "shortest_pause",
]

log: Log = Log(__name__)

STEADY_SECONDS = 1.0
"""A connection that lasted this long resets the backoff."""

GOODBYE_SECONDS = 2.0
"""How long a broker may take to answer a goodbye, at most."""

E = TypeVar("E", SenderEvents, ReceiverEvents)


@dataclass(frozen=True, slots=True)
class Ended:
    """Why an attempt, or the connection that came of it, is over."""

    reason: str
    """For people; contains no password."""
    credentials: bool = False
    """The broker refused the login."""
    reported: bool = False
    """The events were called already (a busy group, for example)."""
    renewing: bool = False
    """The transport closed the connection itself, to open a new one."""
    steady: bool = False
    """The connection was of use: the next pause is a short one."""


def log_in(site: Site) -> Credentials | Ended | None:
    """Return the login to use at a site, or why there is none: the application's callable may raise anything."""
    try:
        return site.login()
    except Exception as error:  # noqa: BLE001
        # Only its type: the text could contain what the callable works with.
        return Ended(f"the credentials callable raised {type(error).__name__}", credentials=True)


def retry_until_steady(site: Site, stopping: threading.Event) -> Retrying:
    """Return a retrier for attempts that return how they :class:`Ended`. It pauses longer after each attempt, until one
    was steady or `stopping` is set, which also cuts a pause short."""
    least, most = site.backoff_min, site.backoff_max
    # Between the minimum and an exponentially growing bound, so that the clients of a broker that returns spread out.
    usual = wait_random_exponential(multiplier=min(2 * least, most), max=most, min=least)
    # A refused login stays refused until someone fixes it, and hammering can lock the account.
    slow = wait_random(most, 2 * most)

    def wait(state: RetryCallState) -> float:
        return (slow if _result(state).credentials else usual)(state)

    return Retrying(
        retry=retry_if_result(lambda ended: not ended.steady),
        wait=wait,
        stop=stop_when_event_set(stopping),
        sleep=sleep_using_event(stopping),
        retry_error_callback=_result,
    )


def shortest_pause(site: Site) -> float:
    """Seconds to pause after a steady connection."""
    return random.uniform(site.backoff_min, min(2 * site.backoff_min, site.backoff_max))


def _result(state: RetryCallState) -> Ended:
    assert state.outcome is not None
    return cast(Ended, state.outcome.result())


class EventGate(Generic[E]):
    """Where a transport's events go, and whether the latest one reported a connection or its end."""

    def __init__(self, events: E) -> None:
        self.events: E = events
        self.up: bool = False
        """Whether ``events.connected`` was called for the current attempt. I/O thread only."""

    def connected(self, endpoint: str, detail: Any) -> None:
        """Report a connection; `detail` is the second argument of ``events.connected``."""
        self.up = True
        self.events.connected(endpoint, detail)

    def close(self) -> bool:
        """The attempt is over; return whether a connection had been reported."""
        was_up, self.up = self.up, False
        return was_up

    def silence(self) -> None:
        """Discard all events from now on."""
        self.events = cast(E, _Silence())


class SiteSession(ABC, Generic[E]):
    """One I/O thread and, at any time, at most one connection to a site.

    A subclass implements :meth:`attempt` and :meth:`interrupt`, and calls every event through :attr:`gate`.
    ``unreachable`` and ``disconnected`` are called here, when an attempt has ended.
    """

    def __init__(self, site: Site, events: E, thread_name: str) -> None:
        self.site = site
        self.gate: EventGate[E] = EventGate(events)
        self.stopping: threading.Event = threading.Event()
        """Set by ``close()``; an attempt ends soon after."""
        self.grace: float = GOODBYE_SECONDS
        """How long an attempt that is interrupted may take to say goodbye, in seconds."""
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._started = False
        self._turn = 0

    @abstractmethod
    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Connect to `endpoint`, serve the connection while it lasts, and return why it ended.

        Runs on the I/O thread. The handshake must be over at `deadline` (``time.monotonic()``) or the attempt
        must return. Returns soon after :attr:`stopping` was set and :meth:`interrupt` called, with everything
        it opened closed.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Make a running attempt check :attr:`stopping`. Called by ``close()``, on any thread."""

    @property
    def on_io_thread(self) -> bool:
        """Whether the caller runs on this session's I/O thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the I/O thread and begin to connect. Only once."""
        self._started = True
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Disconnect and terminate the I/O thread, within `timeout` seconds; further calls have no effect.

        Called from an event it cannot wait for its own thread, and returns at once.
        """
        self.grace = min(GOODBYE_SECONDS, timeout / 2)
        self.stopping.set()
        if not self._started or self.on_io_thread:
            return
        self.interrupt()
        self._thread.join(max(0.0, timeout))
        if self._thread.is_alive():
            # A thread that hangs in the operating system (a name look-up, for example) is left to terminate by itself.
            self.gate.silence()
            log.warning(
                "transport.thread_left_behind",
                "site %(site)s: the I/O thread did not terminate within %(timeout_s).1f s",
                site=self.site.name, timeout_s=timeout,
            )  # fmt: skip

    def _run(self) -> None:
        retry = retry_until_steady(self.site, self.stopping)
        while not self.stopping.is_set():
            retry(self._round)
            self.stopping.wait(shortest_pause(self.site))

    def _round(self) -> Ended:
        """Try each endpoint once, starting after the one tried last, until an attempt got somewhere."""
        endpoints = self.site.endpoints
        ended = Ended("closed")
        for _ in endpoints:
            if self.stopping.is_set():
                break
            endpoint = endpoints[self._turn % len(endpoints)]
            self._turn += 1
            began = time.monotonic()
            ended = self._attempt(endpoint)
            was_up = self.gate.close()
            self._report(endpoint, ended, was_up)
            if was_up:
                steady = time.monotonic() - began >= STEADY_SECONDS and not ended.credentials
                return replace(ended, steady=steady)
            if ended.reported or ended.credentials:
                break
        return ended

    def _attempt(self, endpoint: Endpoint) -> Ended:
        login = log_in(self.site)
        if isinstance(login, Ended):
            return login
        try:
            return self.attempt(endpoint, login, time.monotonic() + self.site.connect_timeout)
        except Exception as error:
            # If the thread terminated here, the site would be dead without anyone knowing.
            log.error(
                "transport.connection_crashed", "site %(site)s: the connection failed unexpectedly",
                site=self.site.name, error=type(error).__name__, exc_info=True,
            )  # fmt: skip
            return Ended(f"internal error: {type(error).__name__}")

    def _report(self, endpoint: Endpoint, ended: Ended, was_up: bool) -> None:
        try:
            if was_up:
                log.info(
                    "transport.disconnected", "site %(site)s: disconnected from %(endpoint)s: %(reason)s",
                    site=self.site.name, endpoint=str(endpoint), reason=ended.reason,
                )  # fmt: skip
                self._report_disconnected(ended)
            elif not ended.reported and not self.stopping.is_set():
                log.info(
                    "transport.unreachable", "site %(site)s: %(endpoint)s is unreachable: %(reason)s",
                    site=self.site.name, endpoint=str(endpoint), reason=ended.reason,
                )  # fmt: skip
                self.gate.events.unreachable(str(endpoint), ended.reason, ended.credentials)
        except Exception as error:
            log.error(
                "transport.event_handler_failed", "site %(site)s: an event handler failed",
                site=self.site.name, error=type(error).__name__, exc_info=True,
            )  # fmt: skip

    def _report_disconnected(self, ended: Ended) -> None:
        """Report that a connection that was up is gone."""
        self.gate.events.disconnected(ended.reason)


class _Silence:
    """Accepts every event and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: ()
