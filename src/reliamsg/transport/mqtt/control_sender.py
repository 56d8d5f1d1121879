"""What is sent next over a connection that only carries control frames, and whom its end is blamed on.

A broker may close the connection over an address, and tells nobody which one: see
:mod:`~reliamsg.transport.mqtt.quarantine`. Without I/O, so that simulated clients go by the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from reliamsg.transport.control_backlog import Backlog
from reliamsg.transport.mqtt.quarantine import Suspects
from reliamsg.wire.limits import MAX_CONTROL_BYTES

__all__ = ["Line", "Sending", "Telling"]

_MOST_UNANSWERED = 64
"""Addresses that may be unanswered at a time: if the connection ends, so many become suspects at most."""

_MAX_AGE = 5.0
"""A frame that waited longer for a connection, in seconds, has been overtaken by others."""

_MOST_IN_TURN = 256
"""Frames that are sent before suspects have their turn."""

_MOST_SET_ASIDE = 100
"""Suspects for which a frame is kept until they are tried."""

_MAX_PROVEN = 10_000
"""Addresses that are remembered as having been taken on a connection."""


class Line(Protocol):
    """A connection, as far as it is needed."""

    @property
    def can_write(self) -> bool:
        """Whether all that was sent has left."""

    @property
    def pongs(self) -> int:
        """How many pings were answered."""

    def tell(self, address: str, body: bytes) -> None:
        """Send a frame."""

    def ping(self) -> int:
        """Ask whether the connection still stands; gives how many such questions that makes."""


class Sending:
    """What was sent on one connection and may still end it."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.trial: str | None = None
        """The suspect that is being tried; nothing else is unanswered then."""
        self.suspects_turn = False
        """Others have had their turn since a suspect was tried."""
        self.proven: set[str] = set()
        self._unasked: dict[str, None] = {}
        self._asked: list[tuple[int, list[str]]] = []
        """By the number of the ping that followed them."""

    @property
    def unanswered(self) -> list[str]:
        """Addresses of frames that may not have been looked at by the broker, those on trial included."""
        found = {address: None for _, part in self._asked for address in part}
        return list(found | self._unasked)

    @property
    def idle(self) -> bool:
        return not (self._asked or self._unasked)

    @property
    def full(self) -> bool:
        return len(self._unasked) + sum(len(part) for _, part in self._asked) >= _MOST_UNANSWERED

    def tell(self, address: str, body: bytes) -> None:
        self.line.tell(address, body)
        self._unasked[address] = None

    def ask(self) -> None:
        if self._unasked:
            self._asked.append((self.line.ping(), list(self._unasked)))
            self._unasked.clear()

    def answered(self) -> list[str]:
        """Addresses that have turned out well since the last call."""
        found: list[str] = []
        while self._asked and self._asked[0][0] <= self.line.pongs:
            found += self._asked.pop(0)[1]
        if len(self.proven) > _MAX_PROVEN:
            self.proven.clear()
        self.proven.update(found)
        if self.trial in found:
            self.trial = None
        return found

    @property
    def blamed(self) -> list[str]:
        """Who may have ended the connection: of what is unanswered, what was never taken on it."""
        found = self.unanswered
        return [address for address in found if address not in self.proven] or found


class Telling:
    """What waits to be sent to one site, over all connections."""

    def __init__(self, site: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.backlog = Backlog(clock)
        self._clock = clock
        self._suspects = Suspects(site, "sent to")
        self._set_aside: dict[str, bytes] = {}
        """The latest frame for each suspect."""

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us send to, sorted. Any thread."""
        return self._suspects.refused

    @property
    def waits(self) -> bool:
        """Whether there are frames for suspects, to be sent when they may be tried."""
        return bool(self._set_aside)

    def send(self, sending: Sending) -> None:
        """Write what the connection takes, and then ask whether it still stands."""
        if sending.trial is not None:
            return
        suspect = self._next_suspect()
        if suspect is None:
            self._send_others(sending)
        elif sending.idle:
            # Suspects and others in turn, each once all before them were answered.
            if not (sending.suspects_turn or self._send_others(sending)):
                sending.suspects_turn = True
            if sending.suspects_turn and sending.line.can_write:
                sending.suspects_turn, sending.trial = False, suspect
                sending.tell(suspect, self._set_aside.pop(suspect))
            else:
                sending.suspects_turn = True
        sending.ask()

    def _send_others(self, sending: Sending) -> bool:
        """Send frames for whom nothing is held against; returns whether there were any."""
        any_sent = False
        for _ in range(_MOST_IN_TURN):
            frame = self.backlog.take(_MAX_AGE) if sending.line.can_write and not sending.full else None
            if frame is None:
                break
            address, body = frame
            if address not in self._suspects:
                sending.tell(address, body)
                any_sent = True
            elif len(body) <= MAX_CONTROL_BYTES and len(self._set_aside) < _MOST_SET_ASIDE:
                self._set_aside[address] = body
        return any_sent

    def _next_suspect(self) -> str | None:
        """One that may be tried now, and for which there is a frame."""
        now = self._clock()
        for address in list(self._set_aside):
            if address in self._suspects and self._suspects.may_try(address, now):
                return address
            if address in self._suspects:
                del self._set_aside[address]
        return None

    def settle(self, sending: Sending) -> bool:
        """Clear those that turned out well since; whether there were any."""
        answered = sending.answered()
        for address in answered:
            self._suspects.cleared(address)
            self._set_aside.pop(address, None)
        return bool(answered)

    def broken(self, sending: Sending, reason: str) -> bool:
        """The connection ended, perhaps over what was sent; whether one address was found guilty."""
        return self._suspects.ended(sending.blamed, reason, self._clock())
