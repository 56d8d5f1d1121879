"""A discrete-event simulation of one producer, its sites and one group. It shares no code with ``reliamsg.plan``.

Every message is an object that moves: from the outbox to sites, from there or as a repair to the inbox, to the
application. Every incident is an event. Nothing is integrated and no probability is computed: messages are counted.
Losses are counted by the incident that destroyed the last copy, since those of one incident are not independent.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

__all__ = ["Result", "SiteSetup", "World", "WorldSetup"]


@dataclass(frozen=True, kw_only=True)
class SiteSetup:
    """One site. Rates are per second, durations seconds."""

    crash: float = 0.0
    crash_window: float = 0.0
    loss: float = 0.0
    outage: float = 10.0
    confirm: float = 0.01
    split: float = 0.0
    """Partitions in which the producer is on the side that is discarded."""
    split_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorldSetup:
    """A world. `kind`: "ours", "paho" or "pika"."""

    sites: tuple[SiteSetup, ...]
    kind: str = "ours"
    common_loss: float = 0.0
    message_rate: float = 1.0
    producer_crash: float = 0.0
    producer_restart: float = 0.0
    producer_disk: float = 0.0
    consumer_crash: float = 0.0
    consumer_outage: float = 0.0
    inbox_loss: float = 0.0
    broker_wait: float = 1.0
    inbox_wait: float = 1.0
    handle: float = 0.0
    consumed: bool = False
    needed: int = 1
    """Confirms without which a message does not leave a full outbox."""
    retain: float = 0.0
    fill: float = inf
    """After this time without releases, the outbox is full."""
    patience: float = inf
    report: float = 1.0
    """From an acknowledgement until the outbox of a producer that keeps messages lets go."""


@dataclass
class Result:
    """What was counted."""

    accepted: int = 0
    missing: Counter[int] = field(default_factory=Counter)
    """Messages that the application never got, by incident."""
    duplicated: Counter[int] = field(default_factory=Counter)


@dataclass
class _Message:
    number: int
    published: float
    pending: set[int]
    """The sites that have not confirmed it."""
    arrived: bool = False
    received: bool = False
    done: bool = False
    ended: bool = False
    """Lost, or passed."""
    again: bool = False
    giving_up: bool = False


class _Site:
    def __init__(self, setup: SiteSetup) -> None:
        self.setup = setup
        self.up = True
        self.life = 0
        """Grows with each outage: what was under way to an earlier life does not arrive."""
        self.split = False
        self.stored: dict[int, tuple[float, bool]] = {}
        """By message: when it arrived, and whether on the side that the group can't read."""
        self.waiting: OrderedDict[int, None] = OrderedDict()
        """Messages to be sent when the site is up again."""


class World:
    """Runs for `messages` publishing intervals."""

    def __init__(self, setup: WorldSetup, seed: int) -> None:
        self.setup = setup
        self.result = Result()
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._now = 0.0
        self._incident = 0
        self._sites = [_Site(site) for site in setup.sites]
        self._messages: dict[int, _Message] = {}
        self._outbox: OrderedDict[int, None] = OrderedDict()
        self._room = inf if setup.fill == inf else setup.fill * setup.message_rate
        self._undelivered: dict[int, None] = {}
        """Due at the consumer, but not received."""
        self._inbox: dict[int, None] = {}
        self._handled: dict[int, None] = {}
        """Acknowledged, and still in the outbox."""
        self._in_hand: dict[int, None] = {}
        self._stalled: list[tuple[Callable[..., None], int]] = []
        """What the application does when the consumer is up again."""
        self._cause: dict[int, int] = {}
        self._producer_up = self._consumer_up = True

    def run(self, messages: int) -> Result:
        setup = self.setup
        self._poisson(setup.producer_crash, self._producer_crashes)
        self._poisson(setup.producer_disk, self._disk_lost)
        self._poisson(setup.consumer_crash, self._consumer_crashes)
        self._poisson(setup.inbox_loss, self._inbox_lost)
        self._poisson(setup.common_loss, self._all_sites_lost)
        for number, site in enumerate(self._sites):
            self._poisson(site.setup.crash, self._site_crashes, number, site.life)
            self._poisson(site.setup.loss, self._site_lost, number, site.life)
            self._poisson(site.setup.split, self._split_begins, number)
        self._at(0.0, self._publish, 0, messages)
        while self._events and self._now < messages / setup.message_rate:
            self._now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        return self.result

    def _at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, call, arguments))

    def _poisson(self, rate: float, call: Callable[..., None], *arguments: object) -> None:
        if rate:
            self._at(self._now + self._random.expovariate(rate), call, *arguments)

    # The producer.

    def _publish(self, number: int, most: int) -> None:
        if number + 1 < most:
            self._at((number + 1) / self.setup.message_rate, self._publish, number + 1, most)
        if not self._producer_up or not self._has_room():
            return
        if self.setup.kind == "pika" and not self._sites[0].up:
            return  # publish raises an error
        self._messages[number] = _Message(number, self._now, set(range(len(self._sites))))
        self._outbox[number] = None
        if self.setup.kind != "pika":
            self.result.accepted += 1
        for index in range(len(self._sites)):
            self._send(index, number)

    def _has_room(self) -> bool:
        if len(self._outbox) < self._room:
            return True
        if self.setup.consumed:
            return False
        oldest = next(iter(self._outbox))
        if len(self._sites) - len(self._messages[oldest].pending) < self.setup.needed:
            return False
        self._release(oldest)
        return True

    def _send(self, index: int, number: int) -> None:
        site = self._sites[index]
        if site.up:
            self._at(self._now + site.setup.confirm, self._arrives, index, site.life, number)
        site.waiting[number] = None

    def _release(self, number: int) -> None:
        self._outbox.pop(number, None)
        self._handled.pop(number, None)
        for site in self._sites:
            site.waiting.pop(number, None)
        self._forget(number)

    def _forget(self, number: int) -> None:
        message = self._messages[number]
        if (message.done or message.ended) and number not in self._outbox:
            del self._messages[number]
            self._cause.pop(number, None)

    def _producer_crashes(self) -> None:
        self._producer_up = False
        if self.setup.kind == "paho":
            self._outbox_gone()
        self._at(self._now + self.setup.producer_restart, self._producer_restarts)

    def _producer_restarts(self) -> None:
        self._producer_up = True
        self._poisson(self.setup.producer_crash, self._producer_crashes)
        self._retry()

    def _disk_lost(self) -> None:
        self._poisson(self.setup.producer_disk, self._disk_lost)
        if self.setup.kind != "pika":
            self._outbox_gone()

    def _outbox_gone(self) -> None:
        self._incident += 1
        for number in list(self._outbox):
            self._release(number)
            if number in self._messages and not self._messages[number].arrived:
                self._lose(number, self._incident)
        self._retry()

    # The sites.

    def _arrives(self, index: int, life: int, number: int) -> None:
        site = self._sites[index]
        if site.life != life or number not in site.waiting:
            return
        del site.waiting[number]
        message = self._messages[number]
        message.pending.discard(index)
        if not message.received:
            site.stored[number] = (self._now, site.split)
        if not message.arrived:
            message.arrived = True
            if self.setup.kind == "pika":
                self.result.accepted += 1
            self._at(self._now + self.setup.broker_wait, self._due, number)
        if not message.pending and not self.setup.consumed:
            kept_until = message.published + self.setup.retain
            if kept_until > self._now:
                self._at(kept_until, self._retained, number)
            else:
                self._release(number)

    def _retained(self, number: int) -> None:
        if number in self._outbox:
            self._release(number)

    def _site_crashes(self, index: int, life: int) -> None:
        site = self._sites[index]
        if site.life == life:
            since = self._now - site.setup.crash_window
            self._erase(index, [number for number, (at, _) in site.stored.items() if at > since])
            self._goes_down(index)

    def _site_lost(self, index: int, life: int) -> None:
        if self._sites[index].life == life:
            self._erase(index, list(self._sites[index].stored))
            self._goes_down(index)

    def _all_sites_lost(self) -> None:
        self._poisson(self.setup.common_loss, self._all_sites_lost)
        self._incident += 1
        for index, site in enumerate(self._sites):
            self._erase(index, list(site.stored), new=False)
            if site.up:
                self._goes_down(index)

    def _erase(self, index: int, numbers: Iterable[int], *, new: bool = True) -> None:
        self._incident += new
        for number in numbers:
            del self._sites[index].stored[number]
            self._cause[number] = self._incident

    def _goes_down(self, index: int) -> None:
        site = self._sites[index]
        site.up = False
        site.life += 1
        self._at(self._now + site.setup.outage, self._comes_up, index)

    def _comes_up(self, index: int) -> None:
        site = self._sites[index]
        site.up = True
        self._poisson(site.setup.crash, self._site_crashes, index, site.life)
        self._poisson(site.setup.loss, self._site_lost, index, site.life)
        for number in site.waiting:
            self._at(self._now + site.setup.confirm, self._arrives, index, site.life, number)
        self._retry()

    def _split_begins(self, index: int) -> None:
        self._sites[index].split = True
        self._at(self._now + self._sites[index].setup.split_seconds, self._split_ends, index)

    def _split_ends(self, index: int) -> None:
        site = self._sites[index]
        site.split = False
        self._erase(index, [number for number, (_, hidden) in site.stored.items() if hidden])
        self._poisson(site.setup.split, self._split_begins, index)
        self._retry()

    # The group.

    def _due(self, number: int) -> None:
        if number in self._messages and not self._messages[number].ended:
            self._undelivered[number] = None
            self._take(number)

    def _retry(self) -> None:
        for number in list(self._undelivered):
            self._take(number)

    def _take(self, number: int) -> None:
        """Receive a message from a site, or as a repair, or find that nothing has it any more."""
        if not self._consumer_up:
            return
        shown = any(site.up and not site.stored.get(number, (0.0, True))[1] for site in self._sites)
        hears = any(site.up and not site.split for site in self._sites)
        held = number in self._outbox and self.setup.kind == "ours"
        if shown or (hears and held and self._producer_up):
            self._receive(number)
        elif not held and not any(number in site.stored for site in self._sites):
            self._lose(number, self._cause.get(number, self._incident))
        elif hears and self.setup.patience < inf and not self._messages[number].giving_up:
            self._messages[number].giving_up = True
            self._at(self._now + self.setup.patience, self._give_up, number)

    def _give_up(self, number: int) -> None:
        if number in self._undelivered:
            self._lose(number, self._cause.get(number, self._incident))

    def _lose(self, number: int, incident: int) -> None:
        self.result.missing[incident] += 1
        self._messages[number].ended = True
        self._undelivered.pop(number, None)
        for site in self._sites:
            site.stored.pop(number, None)
        self._forget(number)

    def _receive(self, number: int) -> None:
        self._messages[number].received = True
        del self._undelivered[number]
        for site in self._sites:
            site.stored.pop(number, None)
        self._inbox[number] = None
        self._at(self._now + self.setup.inbox_wait, self._deliver, number)

    def _deliver(self, number: int) -> None:
        if number not in self._inbox:
            return
        if not self._consumer_up:
            self._stalled.append((self._deliver, number))
            return
        self._in_hand[number] = None
        self._at(self._now + self.setup.handle, self._acknowledge, number)

    def _acknowledge(self, number: int) -> None:
        if number not in self._inbox:
            return
        if not self._consumer_up:
            self._stalled.append((self._acknowledge, number))
            return
        del self._inbox[number]
        self._in_hand.pop(number, None)
        message = self._messages[number]
        message.done = True
        if number in self._outbox:
            self._handled[number] = None
            if self.setup.consumed:
                self._at(self._now + self.setup.report, self._retained, number)
        else:
            self._forget(number)

    def _consumer_crashes(self) -> None:
        self._consumer_up = False
        self._incident += 1
        for number in self._in_hand:
            self._repeat(number)
        self._in_hand.clear()
        self._at(self._now + self.setup.consumer_outage, self._consumer_restarts)

    def _consumer_restarts(self) -> None:
        self._consumer_up = True
        self._poisson(self.setup.consumer_crash, self._consumer_crashes)
        stalled, self._stalled = self._stalled, []
        for call, number in stalled:
            call(number)
        self._retry()

    def _inbox_lost(self) -> None:
        self._poisson(self.setup.inbox_loss, self._inbox_lost)
        self._incident += 1
        for number in list(self._inbox):
            if number not in self._outbox:  # otherwise the new inbox gets it again
                del self._inbox[number]
                self._in_hand.pop(number, None)
                self._lose(number, self._incident)
        for number in self._handled:
            self._repeat(number)

    def _repeat(self, number: int) -> None:
        message = self._messages[number]
        if not message.again:
            message.again = True
            self.result.duplicated[self._incident] += 1
