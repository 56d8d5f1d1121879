"""Simulated networks: paths between processes and sites, and connections over them.

A connection preserves order and loses nothing while both its ends are alive: what can't pass now passes later. Each end
gives up separately when nothing has passed for longer than a heartbeat, so one end may believe in the connection longer
than the other. Everything in flight is lost then.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from reliamsg.simulation.clock import Scheduler

__all__ = ["HEARTBEATS", "Connection", "End", "Network", "Path"]

Call = Callable[..., object]
MIN_LATENCY_S = 0.0005
MAX_LATENCY_S = 0.02
HEARTBEATS = (1.0, 3.0)
"""An end that receives nothing gives up its connection after a time between these numbers of heartbeats."""


class Network:
    """All paths. Each has a random number generator of its own."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self._scheduler, self._seed = scheduler, seed
        self._paths: dict[tuple[str, str, str], Path] = {}

    def path(self, process: str, site: str, channel: str = "") -> Path:
        """The path between a process and a site. `channel`: that of its second connection, if not the first."""
        found = self._paths.get((process, site, channel))
        if found is None:
            chance = random.Random(f"{self._seed}/path/{process}/{site}/{channel}")
            found = self._paths[process, site, channel] = Path(self._scheduler, chance)
        return found


class Path:
    """The network between one process and one site, and the connections over it."""

    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.connections: dict[Connection, None] = {}
        self._carrier = _Carrier(scheduler, chance)

    @property
    def delay(self) -> float:
        """Seconds that everything takes in addition to the usual latency."""
        return self._carrier.delay

    @property
    def is_cut(self) -> bool:
        """Whether nothing passes in some direction: then no handshake is possible."""
        return any(self._carrier.cut.values())

    def set_delay(self, seconds: float) -> None:
        """Delay everything from now on; 0 for the usual latency."""
        self._carrier.delay = seconds

    def set_cut(self, direction: str, cut: bool) -> None:
        """Let nothing pass in a direction (``up`` is to the site), or let everything pass again."""
        self._carrier.cut[direction] = cut
        for connection in list(self.connections):
            end = connection.site if direction == "up" else connection.client
            if cut:
                end.starve()
            else:
                end.feed()

    def connect(self, heartbeat: float) -> Connection:
        """A new connection. `heartbeat`: in seconds, as requested by the client."""
        made = Connection(self._carrier, heartbeat, lambda connection: self.connections.pop(connection, None))
        self.connections[made] = None
        return made


class _Carrier:
    """What carries data in both directions."""

    def __init__(self, scheduler: Scheduler, chance: random.Random) -> None:
        self.scheduler: Scheduler = scheduler
        self.random: random.Random = chance
        self.delay: float = 0.0
        self.cut: dict[str, bool] = {"up": False, "down": False}

    def latency(self) -> float:
        # uniform() written out: this is called for everything that is sent.
        return MIN_LATENCY_S + (MAX_LATENCY_S - MIN_LATENCY_S) * self.random.random() + self.delay


class End:
    """One end of a connection, and what is in flight to it."""

    def __init__(self, carrier: _Carrier, heartbeat: float, direction: str, on_closed: Call) -> None:
        """`on_closed` is called with the reason when the connection is closed from this end."""
        self.alive: bool = True
        self._carrier, self._heartbeat, self._direction = carrier, heartbeat, direction
        self._on_closed = on_closed
        self._in_flight: deque[tuple[Call, tuple[Any, ...]]] = deque()
        """What was sent to this end and has not arrived yet, oldest first. It arrives in this order."""
        self._stuck = 0
        """How much of it would have arrived if anything did."""
        self._latest = 0.0
        """When the latest of it arrives."""
        self._starving = 0
        self._reads = True
        self._on_lost: Call = lambda reason: None

    def when_lost(self, call: Call) -> None:
        """Have `call` made, with the reason, when the connection is lost and this end did not close it."""
        self._on_lost = call

    def send(self, call: Call, *arguments: Any) -> None:
        """Have `call` made at this end, after everything that was sent to it before."""
        self._in_flight.append((call, arguments))
        self._carry()

    def _carry(self) -> None:
        """Schedule one more arrival."""
        carrier = self._carrier
        now = carrier.scheduler.now
        at = max(self._latest, now + carrier.latency())
        self._latest = at
        carrier.scheduler.after(at - now, self._arrive)

    def _arrive(self) -> None:
        if not self.alive:
            return
        if self._carrier.cut[self._direction] or not self._reads:
            self._stuck += 1
        else:
            call, arguments = self._in_flight.popleft()
            call(*arguments)

    def starve(self) -> None:
        """Nothing arrives any more. This end gives up after a while."""
        self._starving += 1
        self._carrier.scheduler.after(self._patience, self._starved, self._starving)

    def _starved(self, number: int) -> None:
        if self.alive and self._starving == number and self._carrier.cut[self._direction]:
            self.lose("no heartbeat")

    def starve_while(self, silent: Call) -> None:
        """The other end is silent: give up after a while if `silent()` is still true."""

        def check() -> None:
            if self.alive and silent():
                self.lose("no heartbeat")

        self._carrier.scheduler.after(self._patience, check)

    @property
    def _patience(self) -> float:
        low, high = HEARTBEATS
        return self._carrier.random.uniform(low * self._heartbeat, high * self._heartbeat)

    def feed(self) -> None:
        """Data arrives again, what was stuck before everything that was sent after it."""
        self._starving += 1
        self._resume()

    def _resume(self) -> None:
        stuck, self._stuck = self._stuck, 0
        for _ in range(stuck):
            self._carry()

    def read(self, reads: bool) -> None:
        """Read what arrives, or stop reading."""
        if reads and not self._reads:
            self._resume()
        self._reads = reads

    def lose(self, reason: str) -> None:
        """This end notices that the connection is gone; the other end follows a moment later, if anything passes."""
        if not self.alive:
            return
        self.close(reason)
        self._on_lost(reason)

    def close(self, reason: str = "closed") -> None:
        """Close the connection from this end."""
        if not self.alive:
            return
        self.alive = False
        self._in_flight.clear()
        self._on_closed(reason)


class Connection:
    """Two ends. What is sent to one of them takes the path in its direction."""

    def __init__(self, carrier: _Carrier, heartbeat: float, on_gone: Callable[[Connection], object]) -> None:
        """`on_gone` is called when neither end is alive."""
        self.client: End = End(carrier, heartbeat, "down", lambda reason: self._closed(self.site, reason))
        self.site: End = End(carrier, heartbeat, "up", lambda reason: self._closed(self.client, reason))
        self._on_gone = on_gone

    def _closed(self, other: End, reason: str) -> None:
        """One end closed the connection: the other one notices a moment later, if anything passes."""
        if other.alive:
            other.send(other.lose, reason)
        else:
            self._on_gone(self)

    def reset(self, reason: str) -> None:
        """Both ends lose the connection now, with everything in flight."""
        self.client.lose(reason)
        self.site.lose(reason)
