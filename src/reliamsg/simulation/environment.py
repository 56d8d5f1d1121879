"""Environment faults: sites, networks and clocks fail as a whole from time to time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from reliamsg.config import Site
from reliamsg.simulation.broker import Broker, Unanswered
from reliamsg.simulation.clock import Scheduler, WallClock
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.mqtt import SECOND
from reliamsg.simulation.network import Network, Path
from reliamsg.simulation.trace import Trace

__all__ = ["BrokerFaults", "ClockFaults", "Conditions", "EnvironmentFaults", "NetworkFaults"]

INTERVAL_S = 0.25
"""The interval at which faults have an opportunity."""
AWAY_S = (0.1, 8.0)
SLOW_S = (2.0, 15.0)
DAY_US = 86_400_000_000
LASTS = 0.5
"""How often a topic is unanswered until long after the last fault."""
BLOCKS = 0.7
"""How often an unanswered topic holds up what follows on the same connection."""
SNAPSHOT = 0.1
"""The chance that a broker takes a snapshot at an opportunity."""
CUTS = {"cut": ("up", "down"), "cut_up": ("up",), "cut_down": ("down",), "cut_control": ("up", "down")}
"""By fault, the directions that are blocked."""


class Source(Protocol):
    """A source of faults."""

    def act(self) -> None:
        """One opportunity for its faults."""


class EnvironmentFaults:
    """Gives each source an opportunity at regular intervals, until faults end."""

    def __init__(
        self, scheduler: Scheduler, faults: Faults, conditions: Conditions, sources: Sequence[Source]
    ) -> None:
        self._scheduler, self._faults = scheduler, faults
        self._conditions, self._sources = conditions, tuple(sources)

    def begin(self) -> None:
        """Start the intervals."""
        self._scheduler.after(INTERVAL_S, self._act)

    def end(self) -> None:
        """End all faults, for good, and all conditions but those that outlast them."""
        self._faults.end()
        self._conditions.end_all()

    def end_lasting(self) -> None:
        """End the conditions that outlasted all others."""
        self._conditions.end_lasting()

    def _act(self) -> None:
        if not self._faults.over:
            for source in self._sources:
                source.act()
            self._scheduler.after(INTERVAL_S, self._act)


class Conditions:
    """Temporary conditions: each ends at its time, or when all are ended."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ends: dict[object, Callable[[], object]] = {}
        """By condition, the function that ends it."""
        self._lasting: dict[object, Callable[[], object]] = {}
        """Those that end after all others."""

    def __contains__(self, condition: object) -> bool:
        return condition in self._ends or condition in self._lasting

    def last(self, condition: object, seconds: float, end: Callable[[], object]) -> None:
        """Start a condition that lasts `seconds` seconds; `end` ends it."""
        self._ends[condition] = end
        self._scheduler.after(seconds, self._over, condition, end)

    def outlast(self, condition: object, end: Callable[[], object]) -> None:
        """Start a condition that lasts until :meth:`end_lasting`."""
        self._lasting[condition] = end

    def end_lasting(self) -> None:
        """End the conditions that outlasted all others."""
        for end in list(self._lasting.values()):
            end()
        self._lasting.clear()

    def _over(self, condition: object, end: Callable[[], object]) -> None:
        if self._ends.get(condition) is end:
            del self._ends[condition]
            end()

    def end_all(self) -> None:
        """End every condition now, except those that outlast all others."""
        for end in list(self._ends.values()):
            end()
        self._ends.clear()


class BrokerFaults:
    """Faults of whole brokers."""

    def __init__(
        self,
        sites: Iterable[Site],
        topics: Sequence[str],
        brokers: Mapping[str, Broker],
        faults: Faults,
        conditions: Conditions,
        trace: Trace,
        chance: random.Random,
    ) -> None:
        self._sites, self._topics, self._brokers = tuple(sites), tuple(topics), brokers
        self._faults, self._conditions, self._trace, self._random = faults, conditions, trace, chance

    def act(self) -> None:
        for site in self._sites:
            self._act_on(self._brokers[site.name], site)

    def _act_on(self, broker: Broker, site: Site) -> None:
        faults = self._faults.at(broker.name)
        if self._random.random() < SNAPSHOT and broker.model.up:
            broker.model.take_snapshot()
        for name in ("broker_down", "broker_empty", "broker_stale", "broker_tail"):
            if faults.bites(name) and broker.model.up:
                self._go_down(broker, name)
        if faults.bites("session_forgotten") and broker.model.queues:
            key = faults.random("session_forgotten").choice(list(broker.model.queues))
            self._note(broker, f"forgets group {key[2]}")
            broker.forget_group(key)
            faults.strikes("session_forgotten")
        if faults.bites("blocked") and broker.model.blocked is None and broker.model.up:
            self._note(broker, "asks senders to stop")
            faults.strikes("blocked")
            broker.block("low on memory")
            self._last(broker, "blocked", lambda: broker.block(None))
        if faults.bites("login_refused") and not broker.model.login_refused:
            self._note(broker, "refuses logins")
            faults.strikes("login_refused")
            broker.refuse_logins(True)
            self._last(broker, "login_refused", lambda: broker.refuse_logins(False))
        quorum = site.queue_type == "quorum" and broker.protocol == "amqp"
        if (
            faults.bites("no_leader")
            and broker.model.up
            and quorum
            and ("no_leader", broker.name) not in self._conditions
        ):
            self._note(broker, "has queues without a leader")
            faults.strikes("no_leader")
            broker.set_leader(False)
            self._last(broker, "no_leader", lambda: broker.set_leader(True))
        if faults.bites("topic_unanswered") and ("topic_unanswered", broker.name) not in self._conditions:
            self._leave_unanswered(broker)
        if faults.bites("control_unrouted") and broker.protocol == "amqp" and broker.model.up:
            found = broker.leave_unrouted(faults.random("control_unrouted"))
            self._note(broker, f"forgets how to route from {found}" if found else "has nobody to route to")
        if faults.bites("over_send") and broker.protocol == "mqtt" and not broker.sends_all:
            self._note(broker, "sends everything ahead of acknowledgements")
            broker.send_all(True)
            self._last(broker, "over_send", lambda: broker.send_all(False))
        if faults.bites("address_refused") and broker.addresses and not broker.refused:
            address = faults.random("address_refused").choice(sorted(broker.addresses))
            self._note(broker, f"refuses address {address}")
            broker.refuse_address(address)
            self._last(broker, "address_refused", broker.allow_addresses)

    def _leave_unanswered(self, broker: Broker) -> None:
        chance = self._faults.at(broker.name).random("topic_unanswered")
        lasts = chance.random() < LASTS
        unanswered = Unanswered(chance.choice(self._topics), chance.random() < BLOCKS)
        self._note(broker, f"answers nothing for {unanswered}{', and that lasts' if lasts else ''}")
        self._faults.at(broker.name).strikes("topic_unanswered")
        broker.answer_all(but=unanswered)
        if lasts:
            self._conditions.outlast(("topic_unanswered", broker.name), broker.answer_all)
        else:
            self._last(broker, "topic_unanswered", broker.answer_all)

    def _go_down(self, broker: Broker, name: str) -> None:
        faults = self._faults.at(broker.name)
        seconds = faults.random(name).uniform(*AWAY_S)
        self._note(broker, f"goes down for {seconds:.2f} s ({name})")
        broker.go_down("connection lost")
        if name == "broker_down":
            faults.strikes(name)

        def come_up() -> None:
            changed = broker.come_up(name)
            self._note(broker, f"comes back ({name}: {changed} messages changed)")
            if changed and name != "broker_down":
                faults.strikes(name)

        self._conditions.last(("down", broker.name), seconds, come_up)

    def _last(self, broker: Broker, fault: str, end: Callable[[], object]) -> None:
        seconds = self._faults.at(broker.name).random(fault).uniform(*AWAY_S)
        self._conditions.last((fault, broker.name), seconds, end)

    def _note(self, broker: Broker, what: str) -> None:
        self._trace.note("fault", broker.name, what)


class NetworkFaults:
    """Faults between processes and sites."""

    def __init__(
        self,
        places: Iterable[tuple[str, str]],
        network: Network,
        faults: Faults,
        conditions: Conditions,
        trace: Trace,
    ) -> None:
        """`places`: processes and sites."""
        self._places = tuple(places)
        self._network, self._faults, self._conditions, self._trace = network, faults, conditions, trace

    def act(self) -> None:
        for process, site in self._places:
            self._act_between(process, site)

    def _act_between(self, process: str, site: str) -> None:
        faults = self._faults.at(f"{process}/{site}")
        path, second = self._network.path(process, site), self._network.path(process, site, SECOND)
        for name, directions in CUTS.items():
            cut = (second,) if name == "cut_control" else (path, second)
            if not faults.bites(name) or any(each.is_cut for each in cut):
                continue
            if name == "cut_control" and not second.connections:
                continue
            self._note(process, f"is cut off from {site} ({name})")
            faults.strikes(name)
            _cut(cut, directions, True)
            seconds = faults.random(name).uniform(*AWAY_S)
            self._conditions.last((name, process, site), seconds, partial(_cut, cut, directions, False))
        for name, each in (("reset", path), ("reset_control", second)):
            if faults.bites(name) and each.connections:
                self._note(process, f"loses its connections to {site} ({name})")
                faults.strikes(name)
                for connection in list(each.connections):
                    connection.reset("connection reset")
        if faults.bites("delay") and not path.delay:
            delay = faults.random("delay").uniform(*SLOW_S)
            _delay((path, second), delay)
            self._note(process, f"has a delay of {delay:.1f} s to {site}")
            faults.strikes("delay")
            seconds = faults.random("delay").uniform(*AWAY_S)
            self._conditions.last(("delay", process, site), seconds, partial(_delay, (path, second), 0.0))

    def _note(self, process: str, what: str) -> None:
        self._trace.note("fault", process, what)


def _cut(paths: Iterable[Path], directions: Iterable[str], cut: bool) -> None:
    for path in paths:
        for direction in directions:
            path.set_cut(direction, cut)


def _delay(paths: Iterable[Path], seconds: float) -> None:
    for path in paths:
        path.set_delay(seconds)


class ClockFaults:
    """Faults of the wall clock."""

    def __init__(self, wall: WallClock, faults: Faults, trace: Trace) -> None:
        self._wall, self._faults, self._trace = wall, faults.at("world"), trace

    def act(self) -> None:
        if self._faults.bites("clock_jump"):
            jump = self._faults.random("clock_jump").randrange(-DAY_US, DAY_US)
            self._trace.note("fault", "", f"the wall clock jumps by {jump / 1e6:.1f} s")
            self._faults.strikes("clock_jump")
            self._wall.jump(jump)
