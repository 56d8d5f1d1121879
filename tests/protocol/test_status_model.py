"""A producer, a group and two sites between which anything is lost, doubled or reordered, data and statuses alike.

Whatever happens, everything is handed out once, in order, or declared; and while the producer lives and holds it,
nothing is declared.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reliamsg.message import Prev
from reliamsg.protocol.announced import Announced, Span3
from tests.chance import examples
from tests.protocol.events_tools import seen

from .status_tools import SITES, Group, Teller

Event = tuple[str, Any]
Batch = tuple[str, int, int, Prev | None, int, int]
"""What :meth:`Group.arrive` takes."""


@dataclass
class Net:
    """What is under way. Each event arrives some time, several times, or never."""

    chance: random.Random
    loss: float
    events: list[tuple[float, int, Event]] = field(default_factory=list)
    count: int = 0

    def send(self, now: float, event: Event, spread: float = 0.5) -> None:
        if self.chance.random() < self.loss:
            return
        for _ in range(self.chance.choice([1, 1, 1, 2])):
            self.count += 1
            self.events.append((now + self.chance.random() * spread, self.count, event))

    def due(self, now: float) -> list[Event]:
        arrived = sorted(event for event in self.events if event[0] <= now)
        self.events = [event for event in self.events if event[0] > now]
        return [event for _, _, event in arrived]


class World:
    """Runs it."""

    def __init__(self, chance: random.Random, loss: float) -> None:
        self.chance = chance
        self.teller = Teller(interval=1.0)
        self.group = Group(gap_timeout=30.0, repair_timeout=300.0, seed=chance.randrange(1 << 30))
        self.data = Net(chance, loss)
        self.control = Net(chance, loss)
        self.next_status = 0.0
        self.alive = True
        self.teller.open(10)

    def publish(self) -> None:
        count = self.chance.randrange(1, 30)
        self.teller.publish(count)
        epoch, _, _, last = self.teller.epochs[-1]
        prev, incarnation = self.teller.prev(epoch), self.teller.incarnation(epoch)
        for site in SITES:
            batch = (site, epoch, incarnation, prev, last - count + 1, last)
            self.data.send(self.group.now, ("data", batch), 2.0)

    def restart(self) -> None:
        self.teller.open(self.teller.opened[0] + self.chance.randrange(1, 5))

    def remove(self) -> None:
        epoch, _, first, last = self.chance.choice(self.teller.epochs)
        if first <= last:
            low = self.chance.randint(first, last)
            self.teller.remove(epoch, low, min(last, low + self.chance.randrange(5)))

    def step(self) -> None:
        group = self.group
        if self.alive and group.now >= self.next_status:
            self.next_status = group.now + 1.0
            self.control.send(group.now, ("status", self.teller.status()))
        for kind, what in (*self.data.due(group.now), *self.control.due(group.now)):
            if kind == "data":
                group.arrive(*what)
            elif kind == "status":
                status: Announced = what
                group.hear(status)
            elif kind == "ask" and self.alive:
                self.answer(what)
            elif kind == "repair":
                repair: Batch = what
                group.arrive(*repair, repair=True)
        for ask in group.step(0.1):
            self.control.send(group.now, ("ask", ask.wanted))

    def answer(self, wanted: tuple[Span3, ...]) -> None:
        """The producer sends what it holds, a batch at a time."""
        for epoch, first, last in self.teller.held(wanted):
            for low in range(first, last + 1, 10):
                batch = (
                    "dc1", epoch, self.teller.incarnation(epoch), self.teller.prev(epoch), low, min(low + 9, last),
                )  # fmt: skip
                self.control.send(self.group.now, ("repair", batch), 1.0)
        self.control.send(self.group.now, ("status", self.teller.status()))

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 10)):
            self.step()


def everything(teller: Teller) -> list[tuple[int, int]]:
    return [(epoch, n) for epoch, _, _, last in teller.epochs for n in range(1, last + 1)]


def declared(group: Group) -> set[tuple[int, int]]:
    return {(e, n) for e, first, last, _ in group.told("declared") for n in range(first, last + 1)}


ACTIONS = st.lists(
    st.sampled_from(["publish", "publish", "publish", "wait", "crash", "restart", "remove", "reconnect"]),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(120))
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]), ACTIONS)
def test_everything_is_handed_out_once_in_order_or_was_removed(
    seed: int, loss: float, actions: list[str]
) -> None:
    world = World(random.Random(seed), loss)
    group, teller = world.group, world.teller
    world.publish()
    for action in actions:
        if action == "publish":
            world.publish()
        elif action == "crash":
            group.crash()
        elif action == "restart":
            world.restart()
        elif action == "remove":
            world.remove()
        elif action == "reconnect":
            for site in SITES:
                group.core.waiting.disconnected(site)
                group.core.waiting.connected(site)
        world.run(world.chance.choice([0.1, 0.5, 2.0]))
    world.run(30.0)
    world.control.loss = 0.0  # sooner or later something comes through
    world.run(30.0)
    gone = {(e, n) for e, first, last in teller.removed for n in range(first, last + 1)}
    assert group.got == sorted(set(group.got))
    assert declared(group) <= gone
    assert set(group.got) | declared(group) == set(everything(teller))
    assert not set(group.got) & declared(group)
    assert {reason for *_, reason in group.told("declared")} <= {"removed"}
    assert seen(group.core).conflicts == []
    assert group.core.tick(group.now) is None or group.state.view is not None
    report = group.core.report(group.stream)
    assert report.missing == ()
    last_epoch, _, _, last = teller.epochs[-1]
    assert report.position == (last_epoch, last + 1)


@settings(max_examples=examples(80))
@given(st.integers(0, 2**32), ACTIONS)
def test_what_is_known_of_a_producer_that_is_gone_is_handed_out_or_declared(
    seed: int, actions: list[str]
) -> None:
    world = World(random.Random(seed), 0.4)
    group, teller = world.group, world.teller
    world.publish()
    for action in actions:
        if action == "publish":
            world.publish()
        elif action == "restart":
            world.restart()
        elif action == "remove":
            world.remove()
        world.run(world.chance.choice([0.1, 0.5, 2.0]))
    world.alive = False
    group.hear(teller.status())  # its last one came through
    world.run(10.0)
    for _ in range(400):
        if not group.core.report(group.stream).missing:
            break
        world.run(5.0)
    assert group.got == sorted(set(group.got))
    late = {(e, n) for e, first, last, _ in group.told("late") for n in range(first, last + 1)}
    assert set(group.got) | declared(group) | late == set(everything(teller))
    assert not set(group.got) & declared(group)


@given(st.integers(0, 2**32), st.sampled_from([0, 7, 40]), st.booleans(), ACTIONS)
def test_an_inbox_that_takes_over_hands_out_the_rest_and_flags_what_may_come_again(
    seed: int, slow: int, met_before: bool, actions: list[str]
) -> None:
    world = World(random.Random(seed), 0.1)
    first, teller = world.group, world.teller
    first.slow = slow
    world.publish()
    second = Group(gap_timeout=30.0, repair_timeout=300.0, seed=seed)
    if met_before:  # it was the active one once
        world.group = second
        world.run(2.0)
        first.now = second.now
        told = second.core.report(second.stream)
        first.core.adopt(first.stream, told.entered, told.position, told.high_water, first.now)
        world.group = first
    for action in actions:
        if action == "publish":
            world.publish()
        elif action == "restart":
            world.restart()
        elif action == "reconnect":
            first.acknowledge()
        world.run(world.chance.choice([0.1, 0.5, 2.0]))
    told = first.core.report(first.stream)
    second.now = first.now
    handed_out_before = set(second.got)
    second.got.clear()
    if told.position > (0, 1):
        second.core.adopt(second.stream, told.entered, told.position, told.high_water, second.now)
    world.group = second
    world.run(30.0)
    world.control.loss = 0.0
    world.run(30.0)
    assert second.got == sorted(set(second.got))
    assert handed_out_before | set(first.got) | set(second.got) == set(everything(teller))
    assert set(first.got) & set(second.got) <= second.flagged
    assert declared(first) | declared(second) == set()
    assert second.core.report(second.stream).missing == ()


class Twins:
    """Two owners of copies of one outbox, both alive. Each batch reaches the group over one site at least."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.group = Group(gap_timeout=10.0, seed=chance.randrange(1 << 30))
        first = Teller(interval=1.0)
        first.open(10)
        first.publish(10)
        self.net = Net(chance, 0.0)
        self.tellers = [first]
        self.send(first, 10)

    def copy(self) -> None:
        """The outbox is copied, and each copy is opened, the later one in a higher epoch or in one between."""
        other = deepcopy(self.tellers[0])
        for teller, epoch in zip((self.tellers[0], other), self.chance.sample([20, 30, 40], 2), strict=True):
            teller.open(epoch, self.chance.randrange(1, 1 << 30))
        self.tellers.append(other)

    def send(self, teller: Teller, count: int) -> None:
        epoch, incarnation, _, last = teller.epochs[-1]
        sites = self.chance.choice([SITES, SITES[:1], SITES[1:]])
        for site in sites:
            batch = (site, epoch, incarnation, teller.prev(epoch), last - count + 1, last)
            self.net.send(self.group.now, ("data", batch), 1.0)

    def step(self) -> None:
        for teller in self.tellers:
            if self.chance.random() < 0.2:
                count = self.chance.randrange(1, 10)
                teller.publish(count)
                self.send(teller, count)
            if self.chance.random() < 0.1:
                self.net.send(self.group.now, ("status", teller.status()), 0.5)
        self.settle()

    def settle(self) -> None:
        for kind, what in self.net.due(self.group.now):
            if kind == "data":
                self.group.arrive(*what)
            else:
                self.group.hear(what)
        for ask in self.group.step(0.1):
            for teller in self.tellers:
                self.group.repair(teller, ask.wanted)


@given(st.integers(0, 2**32))
def test_of_two_copies_everything_that_arrives_is_handed_out_in_order_or_declared(seed: int) -> None:
    world = Twins(random.Random(seed))
    group = world.group
    for _ in range(20):
        world.step()
    world.copy()
    for _ in range(100):
        world.step()
    for _ in range(400):
        world.settle()
    assert group.got == sorted(set(group.got))
    late = {(e, n) for e, first, last, _ in group.told("late") for n in range(first, last + 1)}
    accepted = {place for teller in world.tellers for place in everything(teller)}
    assert set(group.got) | declared(group) == accepted
    assert not set(group.got) & (declared(group) | late)
    if all(teller.epochs[-1][0] == teller.opened[0] for teller in world.tellers):
        superseded = any(reason == "superseded" for *_, reason in group.told("declared"))
        assert seen(group.core).conflicts or superseded
