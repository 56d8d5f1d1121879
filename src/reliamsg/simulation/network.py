"""Simulated networks: paths between processes and sites, and connections over them.

A connection keeps the order of what it carries, and loses nothing while both its ends live: what can't pass now passes
later. It dies when nothing passes for longer than a heartbeat, at each end by itself, so that one end may believe in it
longer than the other. What is on its way then is lost.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from reliamsg.simulation.clock import Scheduler

__all__ = ["Connection", "End", "Path"]

Call = Callable[..., object]
LEAST_LATENCY_S = 0.0005
MOST_LATENCY_S = 0.02
HEARTBEATS = (1.0, 3.0)
"""An end that hears nothing for a time between so many heartbeats gives its connection up."""


class Path:
    """The network between one process and one site."""

    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.scheduler = scheduler
        self.random = chance
        self.delay = 0.0
        """Seconds that everything takes beyond the usual."""
        self.cut = {"up": False, "down": False}
        """Whether nothing passes to the site, or from it."""
        self.connections: dict[Connection, None] = {}

    def latency(self) -> float:
        # uniform(), written out: everything that is sent asks for it.
        return LEAST_LATENCY_S + (MOST_LATENCY_S - LEAST_LATENCY_S) * self.random.random() + self.delay

    @property
    def passes(self) -> bool:
        """Whether a handshake is possible."""
        return not (self.cut["up"] or self.cut["down"])

    def set_cut(self, direction: str, cut: bool) -> None:
        """Let nothing pass in a direction (``up`` is to the site), or let everything."""
        self.cut[direction] = cut
        for connection in list(self.connections):
            end = connection.site if direction == "up" else connection.client
            if cut:
                end.starve()
            else:
                end.feed()


class End:
    """One end of a connection, and what is on its way to it."""

    def __init__(self, connection: Connection, direction: str) -> None:
        self.connection = connection
        self.alive = True
        self._direction = direction
        self._coming: deque[tuple[Call, tuple[Any, ...]]] = deque()
        """What was sent to this end and has not come yet, the oldest first. It comes in this order."""
        self._stuck = 0
        """How many of them would be here if anything came."""
        self._latest = 0.0
        """When the latest of what is on its way arrives."""
        self._starving = 0
        self._reads = True
        self.on_lost: Call = lambda reason: None
        """Called with why, when the connection is gone and it was not this end that ended it."""

    def send(self, call: Call, *arguments: Any) -> None:
        """Have `call` made at this end, after everything that was sent to it before."""
        self._coming.append((call, arguments))
        self._carry()

    def _carry(self) -> None:
        """One more of what was sent comes, unless nothing does by then."""
        path = self.connection.path
        now = path.scheduler.now
        at = max(self._latest, now + path.latency())
        self._latest = at
        path.scheduler.after(at - now, self._arrive)

    def _arrive(self) -> None:
        if not self.alive:
            return
        if self.connection.path.cut[self._direction] or not self._reads:
            self._stuck += 1
        else:
            call, arguments = self._coming.popleft()
            call(*arguments)

    def starve(self) -> None:
        """Nothing comes any more. This end gives up after a while."""
        path = self.connection.path
        self._starving += 1
        path.scheduler.after(self._patience, self._starved, self._starving)

    def _starved(self, number: int) -> None:
        if self.alive and self._starving == number and self.connection.path.cut[self._direction]:
            self.lose("no heartbeat")

    def starve_unless(self, starving: Call) -> None:
        """Nobody sends to this end any more, as long as `starving()` says so."""
        path = self.connection.path

        def look() -> None:
            if self.alive and starving():
                self.lose("no heartbeat")

        path.scheduler.after(self._patience, look)

    @property
    def _patience(self) -> float:
        low, high = HEARTBEATS
        heartbeat = self.connection.heartbeat
        return self.connection.path.random.uniform(low * heartbeat, high * heartbeat)

    def feed(self) -> None:
        """It comes again: what was stuck before all that was sent after it."""
        self._starving += 1
        self._go_on()

    def _go_on(self) -> None:
        stuck, self._stuck = self._stuck, 0
        for _ in range(stuck):
            self._carry()

    def read(self, reads: bool) -> None:
        """Take what comes, or leave it where it is."""
        if reads and not self._reads:
            self._go_on()
        self._reads = reads

    def lose(self, reason: str) -> None:
        """This end learns that the connection is gone; the other one a moment later, if anything passes."""
        if not self.alive:
            return
        self.close(reason)
        self.on_lost(reason)

    def close(self, reason: str = "closed") -> None:
        """End it from here."""
        if not self.alive:
            return
        self.alive = False
        self._coming.clear()
        connection = self.connection
        other = connection.site if self is connection.client else connection.client
        if other.alive:
            other.send(other.lose, reason)
        else:
            connection.path.connections.pop(connection, None)


class Connection:
    """Two ends. What is sent to one goes over the path in its direction."""

    def __init__(self, path: Path, heartbeat: float) -> None:
        self.path = path
        self.heartbeat = heartbeat
        """In seconds, as the client asked for."""
        self.client = End(self, "down")
        self.site = End(self, "up")
        path.connections[self] = None

    def reset(self, reason: str) -> None:
        """Both ends lose it now, with all that is on its way."""
        self.client.lose(reason)
        self.site.lose(reason)
