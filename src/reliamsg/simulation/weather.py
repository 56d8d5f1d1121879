"""What goes wrong with sites, networks and clocks as a whole, from time to time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from reliamsg.simulation.attacker import Attacker

if TYPE_CHECKING:
    from reliamsg.simulation.broker import Broker
    from reliamsg.simulation.world import World

__all__ = ["Weather"]

EVERY_S = 0.25
AWAY_S = (0.1, 8.0)
SLOW_S = (2.0, 15.0)
DAY_US = 86_400_000_000


class Weather:
    """Looks every quarter of a second whether something happens, and ends it later."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random.Random(f"{world.scenario.seed}/weather")
        self.attacker = Attacker(world)
        self._ends: dict[object, Callable[[], None]] = {}
        """What is going on, and what ends it."""

    def begin(self) -> None:
        """Start."""
        self.world.scheduler.after(EVERY_S, self._look)

    def end(self) -> None:
        """All is well again, for good."""
        self.world.faults.over = True
        for over in list(self._ends.values()):
            over()
        self._ends.clear()

    def _look(self) -> None:
        if self.world.faults.over:
            return
        for broker in self.world.brokers.values():
            self._brokers(broker)
        for process in self.world.processes:
            for site in self.world.brokers:
                self._networks(process.name, site)
        self._clocks()
        self.attacker.look()
        self.world.scheduler.after(EVERY_S, self._look)

    def _for_a_while(self, key: object, seconds: float, over: Callable[[], None]) -> None:
        self._ends[key] = over
        self.world.scheduler.after(seconds, self._over, key, over)

    def _over(self, key: object, over: Callable[[], None]) -> None:
        if self._ends.get(key) is over:
            del self._ends[key]
            over()

    def _note(self, who: str, what: str) -> None:
        self.world.history.note("weather", who, what)

    # -- sites ----------------------------------------------------------------------------------------------

    def _brokers(self, broker: Broker) -> None:
        faults = self.world.faults.at(broker.name)
        if self.random.random() < 0.1 and broker.up:
            broker.remember()
        for name in ("broker_down", "broker_empty", "broker_stale", "broker_tail"):
            if faults.bites(name) and broker.up:
                self._down(broker, name)
        if faults.bites("session_forgotten") and broker.queues:
            key = faults.random("session_forgotten").choice(list(broker.queues))
            self._note(broker.name, f"forgets {key[2]}")
            broker.forget_group(key)
            faults.strikes("session_forgotten")
        if faults.bites("blocked") and broker.blocked is None and broker.up:
            self._note(broker.name, "asks senders to stop")
            faults.strikes("blocked")
            broker.block("low on memory")
            seconds = faults.random("blocked").uniform(*AWAY_S)
            self._for_a_while(("blocked", broker.name), seconds, lambda: broker.block(None))
        if faults.bites("login_refused") and not broker.login_refused:
            self._refuse(broker)

    def _down(self, broker: Broker, name: str) -> None:
        faults = self.world.faults.at(broker.name)
        seconds = faults.random(name).uniform(*AWAY_S)
        self._note(broker.name, f"is away for {seconds:.2f} s ({name})")
        broker.go_down("connection lost")
        if name == "broker_down":
            faults.strikes(name)

        def over() -> None:
            changed = broker.come_up(name)
            self._note(broker.name, f"comes back ({name}: {changed} messages)")
            if changed and name != "broker_down":
                faults.strikes(name)

        self._for_a_while(("down", broker.name), seconds, over)

    def _refuse(self, broker: Broker) -> None:
        faults = self.world.faults.at(broker.name)
        self._note(broker.name, "refuses logins")
        faults.strikes("login_refused")
        broker.login_refused = True
        for session in list(broker.sessions):
            session.connection.reset("login expired")

        def over() -> None:
            broker.login_refused = False

        seconds = faults.random("login_refused").uniform(*AWAY_S)
        self._for_a_while(("login", broker.name), seconds, over)

    # -- networks -------------------------------------------------------------------------------------------

    def _networks(self, process: str, site: str) -> None:
        faults, path = self.world.faults.at(f"{process}/{site}"), self.world.path(process, site)
        for name, directions in (("cut", ("up", "down")), ("cut_up", ("up",)), ("cut_down", ("down",))):
            if not faults.bites(name) or any(path.cut.values()):
                continue
            self._note(process, f"is cut from {site} ({name})")
            faults.strikes(name)
            for direction in directions:
                path.set_cut(direction, True)

            def heal(directions: tuple[str, ...] = directions) -> None:
                for direction in directions:
                    path.set_cut(direction, False)

            seconds = faults.random(name).uniform(*AWAY_S)
            self._for_a_while(("cut", process, site), seconds, heal)
        if faults.bites("reset") and path.connections:
            self._note(process, f"loses its connections to {site}")
            faults.strikes("reset")
            for connection in list(path.connections):
                connection.reset("connection reset")
        if faults.bites("delay") and not path.delay:
            path.delay = faults.random("delay").uniform(*SLOW_S)
            self._note(process, f"is {path.delay:.1f} s away from {site}")
            faults.strikes("delay")

            def over() -> None:
                path.delay = 0.0

            self._for_a_while(("delay", process, site), faults.random("delay").uniform(*AWAY_S), over)

    # -- clocks ---------------------------------------------------------------------------------------------

    def _clocks(self) -> None:
        faults = self.world.faults.at("world")
        if faults.bites("clock_jump"):
            jump = faults.random("clock_jump").randrange(-DAY_US, DAY_US)
            self._note("", f"the wall clock jumps by {jump / 1e6:.1f} s")
            faults.strikes("clock_jump")
            self.world.wall_jump_us += jump
