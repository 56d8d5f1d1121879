"""What goes wrong with sites, networks and clocks as a whole, from time to time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from reliamsg.simulation.attacker import Attacker
from reliamsg.simulation.mqtt import SECOND

if TYPE_CHECKING:
    from reliamsg.config import Site
    from reliamsg.simulation.broker import Broker
    from reliamsg.simulation.network import Path
    from reliamsg.simulation.world import World

__all__ = ["Weather"]

EVERY_S = 0.25
AWAY_S = (0.1, 8.0)
SLOW_S = (2.0, 15.0)
DAY_US = 86_400_000_000
CUTS = {"cut": ("up", "down"), "cut_up": ("up",), "cut_down": ("down",), "cut_control": ("up", "down")}
"""By fault, the directions in which nothing passes."""


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
        for site in self.world.sites:
            self._brokers(self.world.brokers[site.name], site)
        for process in self.world.processes:
            for name in self.world.brokers:
                self._networks(process.name, name)
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

    def _brokers(self, broker: Broker, site: Site) -> None:
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
        quorum = site.queue_type == "quorum" and broker.protocol == "amqp"
        if faults.bites("no_leader") and broker.up and quorum and ("led", broker.name) not in self._ends:
            self._note(broker.name, "has queues that nobody leads")
            faults.strikes("no_leader")
            broker.lead(False)
            seconds = faults.random("no_leader").uniform(*AWAY_S)
            self._for_a_while(("led", broker.name), seconds, partial(broker.lead, True))
        if faults.bites("over_send") and broker.protocol == "mqtt" and not broker.over_sends:
            self._over_send(broker)
        if faults.bites("address_refused") and broker.addresses and not broker.refused:
            self._refuse_address(broker)

    def _over_send(self, broker: Broker) -> None:
        self._note(broker.name, "sends as much ahead as there is")
        broker.over_sends = True
        broker.feed()

        def over() -> None:
            broker.over_sends = False

        seconds = self.world.faults.at(broker.name).random("over_send").uniform(*AWAY_S)
        self._for_a_while(("over_send", broker.name), seconds, over)

    def _refuse_address(self, broker: Broker) -> None:
        chance = self.world.faults.at(broker.name).random("address_refused")
        address = chance.choice(sorted(broker.addresses))
        self._note(broker.name, f"lets nobody use {address}")
        broker.refused.add(address)
        self._for_a_while(("address", broker.name), chance.uniform(*AWAY_S), broker.refused.clear)

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
        second = self.world.path(process, site, SECOND)
        for name, directions in CUTS.items():
            cut = (second,) if name == "cut_control" else (path, second)
            if not faults.bites(name) or any(any(each.cut.values()) for each in cut):
                continue
            if name == "cut_control" and not second.connections:
                continue
            self._note(process, f"is cut from {site} ({name})")
            faults.strikes(name)
            self._cut(cut, directions, True)
            heal = partial(self._cut, cut, directions, False)
            self._for_a_while((name, process, site), faults.random(name).uniform(*AWAY_S), heal)
        for name, each in (("reset", path), ("reset_control", second)):
            if faults.bites(name) and each.connections:
                self._note(process, f"loses its connections to {site} ({name})")
                faults.strikes(name)
                for connection in list(each.connections):
                    connection.reset("connection reset")
        if faults.bites("delay") and not path.delay:
            path.delay = second.delay = faults.random("delay").uniform(*SLOW_S)
            self._note(process, f"is {path.delay:.1f} s away from {site}")
            faults.strikes("delay")

            def over() -> None:
                path.delay = second.delay = 0.0

            self._for_a_while(("delay", process, site), faults.random("delay").uniform(*AWAY_S), over)

    @staticmethod
    def _cut(paths: Iterable[Path], directions: Iterable[str], cut: bool) -> None:
        for path in paths:
            for direction in directions:
                path.set_cut(direction, cut)

    # -- clocks ---------------------------------------------------------------------------------------------

    def _clocks(self) -> None:
        faults = self.world.faults.at("world")
        if faults.bites("clock_jump"):
            jump = faults.random("clock_jump").randrange(-DAY_US, DAY_US)
            self._note("", f"the wall clock jumps by {jump / 1e6:.1f} s")
            faults.strikes("clock_jump")
            self.world.wall_jump_us += jump
