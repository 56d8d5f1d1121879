"""Which control frame to send next, and which address is blamed when the connection ends.

A broker may close the connection over an address without saying which one: see
:mod:`~reliamsg.transport.mqtt.quarantine`. Without I/O, so that simulated clients follow the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from reliamsg.transport.control_backlog import ControlBacklog
from reliamsg.transport.mqtt.quarantine import AddressQuarantine
from reliamsg.wire.limits import MAX_CONTROL_BYTES

__all__ = ["ControlSender", "PublishingConnection", "SentFrames"]

_MOST_UNANSWERED = 64
"""Addresses that may be unanswered at a time: at most that many are isolated if the connection ends."""

_MAX_AGE = 5.0
"""A frame that waited longer for a connection, in seconds, is outdated."""

_MOST_IN_TURN = 256
"""Frames that are sent before an isolated address has its turn."""

_MOST_SET_ASIDE = 100
"""Isolated addresses for which a frame is kept until they are tried."""

_MAX_PROVEN = 10_000
"""Addresses that are remembered as accepted on a connection."""


class PublishingConnection(Protocol):
    """A connection that control frames are sent over."""

    @property
    def can_write(self) -> bool:
        """Whether everything sent so far has been written."""

    @property
    def pongs(self) -> int:
        """How many pings were answered."""

    def send_control(self, address: str, body: bytes) -> None:
        """Send a frame."""

    def ping(self) -> int:
        """Check that the connection still exists; returns how many pings that makes."""


class SentFrames:
    """What was sent on one connection and may still end it."""

    def __init__(self, connection: PublishingConnection) -> None:
        self.trial: str | None = None
        """The isolated address that is being tried; nothing else is unanswered then."""
        self.isolated_turn: bool = False
        """Other addresses have had their turn since an isolated one was tried."""
        self._connection = connection
        self._proven: set[str] = set()
        self._unasked: dict[str, None] = {}
        self._asked: list[tuple[int, list[str]]] = []
        """By the number of the ping that followed them."""

    @property
    def unanswered(self) -> list[str]:
        """Addresses of frames that the broker may not have processed yet."""
        found = {address: None for _, part in self._asked for address in part}
        return list(found | self._unasked)

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered."""
        return not (self._asked or self._unasked)

    @property
    def can_send(self) -> bool:
        """Whether the connection accepts a frame, and not too many are unanswered."""
        unanswered = len(self._unasked) + sum(len(part) for _, part in self._asked)
        return self._connection.can_write and unanswered < _MOST_UNANSWERED

    def send(self, address: str, body: bytes) -> None:
        """Send a frame."""
        self._connection.send_control(address, body)
        self._unasked[address] = None

    def send_alone(self, address: str, body: bytes) -> None:
        """Send a frame to an isolated address."""
        self.isolated_turn, self.trial = False, address
        self.send(address, body)

    def end_turn(self) -> None:
        """The others have had their turn."""
        self.isolated_turn = True

    def ask(self) -> None:
        """Send a ping after the frames that have not been followed by one."""
        if self._unasked:
            self._asked.append((self._connection.ping(), list(self._unasked)))
            self._unasked.clear()

    def take_answered(self) -> list[str]:
        """Addresses that the broker has accepted since the last call."""
        found: list[str] = []
        while self._asked and self._asked[0][0] <= self._connection.pongs:
            found += self._asked.pop(0)[1]
        if len(self._proven) > _MAX_PROVEN:
            self._proven.clear()
        self._proven.update(found)
        if self.trial in found:
            self.trial = None
        return found

    @property
    def blamed(self) -> list[str]:
        """Addresses that may have ended the connection: of the unanswered ones, those never accepted on it."""
        found = self.unanswered
        return [address for address in found if address not in self._proven] or found


class ControlSender:
    """What waits to be sent to one site, over all connections."""

    def __init__(self, site: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.backlog: ControlBacklog = ControlBacklog(clock)
        self._clock = clock
        self._quarantine = AddressQuarantine(site, "sent to")
        self._set_aside: dict[str, bytes] = {}
        """The latest frame for each isolated address."""

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not let us send to, sorted. Any thread."""
        return self._quarantine.refused

    @property
    def waits(self) -> bool:
        """Whether there are frames for isolated addresses, to be sent when these may be tried."""
        return bool(self._set_aside)

    def send(self, sent: SentFrames) -> None:
        """Write what the connection accepts, followed by a ping."""
        if sent.trial is not None:
            return
        isolated = self._next_isolated()
        if isolated is None:
            self._send_others(sent)
        elif sent.idle:
            # Isolated addresses and others alternate, each once everything before was answered.
            if not (sent.isolated_turn or self._send_others(sent)):
                sent.end_turn()
            if sent.isolated_turn and sent.can_send:
                sent.send_alone(isolated, self._set_aside.pop(isolated))
            else:
                sent.end_turn()
        sent.ask()

    def _send_others(self, sent: SentFrames) -> bool:
        """Send frames to addresses that are not isolated; return whether there were any."""
        any_sent = False
        for _ in range(_MOST_IN_TURN):
            frame = self.backlog.take(_MAX_AGE) if sent.can_send else None
            if frame is None:
                break
            address, body = frame
            if address not in self._quarantine:
                sent.send(address, body)
                any_sent = True
            elif len(body) <= MAX_CONTROL_BYTES and len(self._set_aside) < _MOST_SET_ASIDE:
                self._set_aside[address] = body
        return any_sent

    def _next_isolated(self) -> str | None:
        """An isolated address that may be tried now, and for which there is a frame."""
        now = self._clock()
        for address in list(self._set_aside):
            if address in self._quarantine and self._quarantine.may_try(address, now):
                return address
            if address in self._quarantine:
                del self._set_aside[address]
        return None

    def settle(self, sent: SentFrames) -> bool:
        """Clear the addresses that were accepted since the last call; return whether there were any."""
        answered = sent.take_answered()
        for address in answered:
            self._quarantine.clear(address)
            self._set_aside.pop(address, None)
        return bool(answered)

    def connection_ended(self, sent: SentFrames, reason: str) -> bool:
        """The connection ended, possibly over what was sent; return whether one address was proven to be the cause."""
        return self._quarantine.connection_ended(sent.blamed, reason, self._clock())
