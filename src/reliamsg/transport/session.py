"""The part of a transport that does not depend on the protocol: one thread that keeps one connection.

A :class:`SiteSession` tries its site's endpoints in turn, for ever. Its subclass implements one attempt:
connect, serve the connection while it lasts, and return why it ended. Between rounds over the endpoints the
thread waits, exponentially longer and with jitter; ``close()`` cuts every wait short.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from tenacity import RetryCallState, Retrying, wait_random, wait_random_exponential

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.base import ReceiverEvents, SenderEvents

__all__ = ["Backoff", "Ended", "SiteSession"]

log = logging.getLogger(__name__)

STEADY_SECONDS = 1.0
"""A connection that lasted this long starts the backoff anew when it ends."""

GOODBYE_SECONDS = 2.0
"""At most so long a broker may take to answer a goodbye."""

E = TypeVar("E", SenderEvents, ReceiverEvents)


@dataclass(frozen=True, slots=True)
class Ended:
    """Why an attempt, or the connection that came of it, is over."""

    reason: str
    """For people; holds no password."""
    credentials: bool = False
    """The broker refused the login."""
    reported: bool = False
    """The attempt told the events itself (a busy group, say): there is nothing to add, only to wait."""
    renewing: bool = False
    """We ended the connection ourselves, to have a new one."""


class Backoff:
    """How long to wait before the next round over a site's endpoints, in seconds."""

    def __init__(self, site: Site) -> None:
        least, most = site.backoff_min, site.backoff_max
        # Between least and an exponentially growing bound, so that clients of a broker that returns spread.
        self._usual = wait_random_exponential(multiplier=min(2 * least, most), max=most, min=least)
        # A refused login stays refused until somebody mends it; hammering can lock the account.
        self._slow = wait_random(most, 2 * most)
        # Tenacity's strategies look at nothing but the number of the attempt.
        self._state = RetryCallState(Retrying(), None, (), {})
        self._state.attempt_number = 0

    def reset(self) -> None:
        """A connection stood: the next wait is a short one."""
        self._state.attempt_number = 0

    def next(self, credentials: bool = False) -> float:
        """The next wait; a long one after a refused login."""
        # Bounded: 2 ** attempt is computed before it is compared with the longest wait.
        self._state.attempt_number = min(self._state.attempt_number + 1, 64)
        return float((self._slow if credentials else self._usual)(self._state))


class SiteSession(ABC, Generic[E]):
    """One I/O thread and, at any time, at most one connection to a site.

    A subclass implements :meth:`attempt` and :meth:`interrupt`, sets :attr:`up` directly before it calls
    ``events.connected``, and calls every event through :attr:`events`. ``unreachable`` and ``disconnected``
    are called here, when an attempt has ended.
    """

    def __init__(self, site: Site, events: E, thread_name: str) -> None:
        self.site = site
        self.events: E = events
        """Where events go. Replaced by silence when ``close()`` had to leave the thread behind."""
        self.up = False
        """Whether ``events.connected`` was called for the present attempt. I/O thread only."""
        self.stopping = threading.Event()
        """Set by ``close()``; an attempt ends soon after."""
        self.grace = GOODBYE_SECONDS
        """How long an attempt that is interrupted may take to say goodbye, in seconds."""
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._started = False
        self._turn = 0

    @abstractmethod
    def attempt(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> Ended:
        """Connect to `endpoint`, serve the connection while it lasts, and say why it ended.

        Runs on the I/O thread. The handshake must be over at `deadline` (``time.monotonic()``) or the attempt
        must return. Returns soon after :attr:`stopping` was set and :meth:`interrupt` called, with everything
        it opened closed.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Make a running attempt look at :attr:`stopping`. Called by ``close()``, on any thread."""

    @property
    def on_io_thread(self) -> bool:
        """Whether the caller runs on this session's I/O thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the I/O thread and begin to connect. Only once."""
        self._started = True
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Disconnect and end the I/O thread, within `timeout` seconds; a second call does nothing more.

        Called from an event it can't wait for its own thread, and returns at once.
        """
        self.grace = min(GOODBYE_SECONDS, timeout / 2)
        self.stopping.set()
        if not self._started or self.on_io_thread:
            return
        self.interrupt()
        self._thread.join(max(0.0, timeout))
        if self._thread.is_alive():
            # A thread that hangs in the operating system (a name look-up, say) is left to end on its own.
            self.events = cast(E, _Silence())
            log.warning("site %s: the I/O thread did not end within %.1f s", self.site.name, timeout)

    def _run(self) -> None:
        backoff = Backoff(self.site)
        while not self.stopping.is_set():
            ended = self._round(backoff)
            if self.stopping.wait(backoff.next(ended.credentials)):
                return

    def _round(self, backoff: Backoff) -> Ended:
        """Try each endpoint once, starting after the one tried last, until one attempt got somewhere."""
        endpoints = self.site.endpoints
        ended = Ended("closed")
        for _ in endpoints:
            if self.stopping.is_set():
                break
            endpoint = endpoints[self._turn % len(endpoints)]
            self._turn += 1
            began = time.monotonic()
            ended = self._attempt(endpoint)
            was_up, self.up = self.up, False
            if was_up and time.monotonic() - began >= STEADY_SECONDS:
                backoff.reset()
            self._tell(endpoint, ended, was_up)
            if was_up or ended.reported or ended.credentials:
                break
        return ended

    def _attempt(self, endpoint: Endpoint) -> Ended:
        self.up = False
        try:
            login = self.site.login()
        except Exception as error:  # noqa: BLE001 - the application's callable may raise anything
            # Only its type: the text could hold what the callable works with.
            return Ended(f"the credentials callable raised {type(error).__name__}", credentials=True)
        try:
            return self.attempt(endpoint, login, time.monotonic() + self.site.connect_timeout)
        except Exception as error:
            # A thread that ended here would leave the site dead without anybody knowing.
            log.exception("site %s: the connection failed unexpectedly", self.site.name)
            return Ended(f"internal error: {type(error).__name__}")

    def _tell(self, endpoint: Endpoint, ended: Ended, was_up: bool) -> None:
        try:
            if was_up:
                log.info("site %s: disconnected from %s: %s", self.site.name, endpoint, ended.reason)
                self._tell_disconnected(ended)
            elif not ended.reported and not self.stopping.is_set():
                log.info("site %s: %s is unreachable: %s", self.site.name, endpoint, ended.reason)
                self.events.unreachable(str(endpoint), ended.reason, ended.credentials)
        except Exception:
            log.exception("site %s: an event handler failed", self.site.name)

    def _tell_disconnected(self, ended: Ended) -> None:
        """A connection that was up is gone."""
        self.events.disconnected(ended.reason)


class _Silence:
    """Takes every event and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: ()
