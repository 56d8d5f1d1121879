"""A simulated world: sites, networks, processes and faults under one clock, and what is judged about them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path as FilePath

from reliamsg.errors import (
    DeadLetterHalt,
    GroupBusy,
    InboxIndeterminate,
    InboxWriteError,
    OutboxIndeterminate,
    OutboxWriteError,
    ProducerConflict,
    ProducerFenced,
    QuarantineFull,
    ReliamsgError,
)
from reliamsg.keys import KeyRing
from reliamsg.simulation.broker import Broker
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.consuming import ConsumerProcess
from reliamsg.simulation.disk import Drive
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.history import History
from reliamsg.simulation.hole import Hole
from reliamsg.simulation.kept import tell_kept
from reliamsg.simulation.network import Path
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.process import Process
from reliamsg.simulation.producing import ProducerProcess
from reliamsg.simulation.scenario import Scenario
from reliamsg.simulation.stalls import STATUS_S, Liveness, excused_streams, group_bound, judge_stalls
from reliamsg.simulation.weather import Weather
from reliamsg.wire.address import created_address
from reliamsg.wire.control import encode_mark

__all__ = ["World"]

BEGIN_S = 1_000.0
BEGIN_WALL_US = 1_700_000_000_000_000
LINGER_S = 3.0
"""When all is done, what comes then must do no harm."""
LOOK_S = 1.0
LATE = 0.5
"""Of groups that were not made beforehand, so many are made later, if their consumers do not do it first."""


class World:
    """One run. Call :meth:`run`, once."""

    def __init__(self, scenario: Scenario, directory: FilePath, keep: bool = False) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler(BEGIN_S)
        self.faults = Faults(scenario.seed, scenario.faults)
        self.oracle = Oracle(
            self.scheduler, scenario.groups,
            {name: settings["gap_timeout"] for name, settings in scenario.consumers.items()},
            {name: scenario.needed(name) for name in scenario.producers},
            {name for name, settings in scenario.groups.items() if settings["begin"] == "latest"},
            {name for name, each in scenario.producers.items() if each["release"] == "consumed"},
        )  # fmt: skip
        self.history = History(self.scheduler, self.oracle, keep)
        self.sites = scenario.sites
        self.restored = False
        """An outbox was replaced by an older copy of itself."""
        self.impersonated: set[str] = set()
        """Producers in whose name somebody spoke of an epoch far ahead."""
        self.unjournalled: set[tuple[str, str, int]] = set()
        """Openings by their incarnation, and epochs, of which rows went with their producer's outbox, or that somebody
        made up, who spoke of an epoch far ahead: producer, ``opening`` or ``epoch``, and which."""
        self.unheard: set[str] = set()
        """Groups of which an inbox was replaced by an older copy, and that producers do not repair for: with keys, what
        it asks for looks recorded."""
        self.succeeded: set[str] = set()
        """Groups of which an inbox was replaced."""
        self.made_up: set[bytes] = set()
        """Control frames that an attacker made in a group's name: no inbox of it said that."""
        self.reached: Counter[str] = Counter()
        """What runs seldom come to; see :data:`reliamsg.simulation.runner.REACHED`."""
        self.wall_jump_us = 0
        self.error: BaseException | None = None
        """The first that the product should never have raised."""
        self.keys = KeyRing({"k": b"the key of simulated worlds"}, sign_with="k") if scenario.keys else None
        self._directory = directory
        self._paths: dict[tuple[str, str, str], Path] = {}
        hole = Hole(self.scheduler, self.faults, scenario.seed)
        self.brokers = {
            site.name: Broker(
                site.name, site.protocol, self.scheduler, self.faults.at(site.name), self.history,
                random.Random(f"{scenario.seed}/broker/{site.name}"), hole,
                **scenario.brokers[site.name].values,
            )
            for site in scenario.sites
        }  # fmt: skip
        self.producers = [self._producer(name) for name in scenario.producers]
        self.consumers = [self._consumer(group, 1) for group in scenario.groups]
        self.consumers += [self._consumer(group, 2) for group in scenario.standbys]
        self.weather = Weather(self)

    def _producer(self, name: str) -> ProducerProcess:
        scenario = self.scenario
        drive = self._drive(f"{name}.outbox.db", "outbox", name)
        share = scenario.messages // len(scenario.producers)
        return ProducerProcess(self, name, drive, scenario.producers[name], share)

    def _consumer(self, group: str, number: int) -> ConsumerProcess:
        name = f"{group}-{number}"
        drive = self._drive(f"{name}.inbox.db", "inbox", group)
        return ConsumerProcess(self, name, drive, self.scenario.consumers[name], group)

    def _drive(self, name: str, kind: str, owner: str) -> Drive:
        chance = random.Random(f"{self.scenario.seed}/drive/{name}")
        return Drive(self._directory / name, "outbox" if kind == "outbox" else "inbox", owner, chance)

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return [*self.producers, *self.consumers]

    def path(self, process: str, site: str, which: str = "") -> Path:
        """The network between a process and a site, or (`which`) the part of it that its second connection takes."""
        found = self._paths.get((process, site, which))
        if found is None:
            chance = random.Random(f"{self.scenario.seed}/path/{process}/{site}/{which}")
            found = self._paths[process, site, which] = Path(self.scheduler, chance)
        return found

    def wall_us(self) -> int:
        """The wall clock, which jumps."""
        return BEGIN_WALL_US + int(self.scheduler.now * 1e6) + self.wall_jump_us

    # -- what processes tell --------------------------------------------------------------------------------

    def expected(self, process: Process, error: ReliamsgError) -> None:
        """A client stopped: had it any reason to?"""
        reasons: list[tuple[type[ReliamsgError], Callable[[], bool]]] = [
            (OutboxIndeterminate, lambda: "fsync_error" in self.faults.struck),
            (InboxIndeterminate, lambda: "fsync_error" in self.faults.struck),
            (OutboxWriteError, lambda: "disk_full" in self.faults.struck),
            (InboxWriteError, lambda: "disk_full" in self.faults.struck),
            (GroupBusy, lambda: True),
            (ProducerFenced, lambda: self.restored),
            (
                DeadLetterHalt,
                lambda: (
                    process.settings["on_dead_letter"] == "halt" and "handler_failed" in self.faults.struck
                ),
            ),
            (QuarantineFull, lambda: True),  # whether that was so is judged with what it stalls
        ]
        if not any(isinstance(error, kind) and holds() for kind, holds in reasons):
            self.oracle.violate("stopped", f"{process.name}: {type(error).__name__}: {error}")

    def told(self, process: Process, errors: Iterable[BaseException]) -> None:
        """A client tells its application of errors: are they true?"""
        for error in errors:
            forged = any(name in str(error) for name in self.impersonated)  # which is worth telling
            if isinstance(error, ProducerConflict) and not (self.restored or forged):
                self.oracle.violate("false_alarm", f"{process.name}: {error}")

    def broken(self, error: BaseException) -> None:
        """The product raised what it never should."""
        self.error = self.error or error

    # -- running --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """From the beginning to the judgement."""
        self._create_groups()
        for process in self.processes:
            self.scheduler.after(self.weather.random.uniform(0.0, 0.3), process.open)
        self.weather.begin()
        end = BEGIN_S + self.scenario.faulty_s
        self.scheduler.run(end)
        self.weather.end()
        self.history.note("world", "", "faults end")
        liveness = Liveness(self)
        liveness.look()
        while not (self._is_done and self.is_quiet) and not liveness.stalled:
            self._go_on(liveness, end)
        stands_still = not self._is_done
        if stands_still:
            judge_stalls(self)
        else:
            self._wait_for_successors()
        # Only the next word of such a producer shows a group that it has another history: the checker takes a run for
        # one in which everything had its time.
        told_in = 2 * STATUS_S if self.oracle.gave_what_went() else 0.0
        self.scheduler.run(self.scheduler.now + LINGER_S + told_in)
        if not stands_still:
            self._finish_late(liveness, end)
        for process in (*self.consumers, *self.producers):
            process.close()
        for consumer in self.consumers:
            consumer.tell_journalled()
            consumer.tell_letters()
        policies = {name: settings["on_gap"] for name, settings in self.scenario.groups.items()}
        waiting = {name for name, policy in policies.items() if policy in ("wait", "hold")}
        self.oracle.ended = excused_streams(self)
        if self.oracle.ended:
            tell_kept(self)
        self.oracle.judge(waiting - self.unheard)

    def _go_on(self, liveness: Liveness, faults_end: float) -> None:
        """For a moment; perhaps nothing more will come but what journals tell."""
        self.scheduler.run(self.scheduler.now + LOOK_S)
        liveness.look()
        if self.scheduler.now > faults_end + self.scenario.longest_gap_timeout or any(
            (*self.oracle.doubted.values(), self.oracle.looks_for_ends)
        ):
            for consumer in self.consumers:
                consumer.tell_journalled()

    def _finish_late(self, liveness: Liveness, faults_end: float) -> None:
        """A group that begins with the latest may meet a stream at the very end, when its inbox has room for it (C8):
        it is owed nothing of it before, and all that follows then. What an inbox settled that found only then that
        another one reads, and ended, is in its journal."""
        liveness.look()
        while not self._is_done and not liveness.stalled:
            self._go_on(liveness, faults_end)
        if not self._is_done:
            judge_stalls(self)

    def _wait_for_successors(self) -> None:
        """What an inbox had dealt with that was replaced is done for the judge, and still to come for its successor, as
        far as sites have it, or to be heard of: the checker takes a run for one in which everything had its time."""
        bounds = [group_bound(self, group) for group in self.succeeded]
        until = self.scheduler.now + max(bounds, default=0.0)
        while self.scheduler.now < until and self._is_anything_to_come:
            self.scheduler.run(self.scheduler.now + LOOK_S)

    @property
    def _is_anything_to_come(self) -> bool:
        """Whether inboxes that took another one's place wait for anything, have still to hear how far that was, or
        sites have anything for their groups."""
        for consumer in self.consumers:
            said = consumer.status() if consumer.group in self.succeeded else None
            if said is not None and (
                consumer.unheard or any(each.gap is not None or each.held for each in said.streams.values())
            ):
                return True
        return any(
            group in self.succeeded for broker in self.brokers.values() for group, _ in broker.stored()
        )

    def _create_groups(self) -> None:
        """Somebody makes the groups at their sites: before all else, or while messages are published already, or never;
        then their consumers do that."""
        chance = random.Random(f"{self.scenario.seed}/created")
        late = chance.random() < LATE
        for broker in self.brokers.values():
            for group in self.scenario.groups:
                for topic in self.scenario.topics_of(group):
                    address = created_address(topic, 0, group)
                    made = (topic, 0, group), encode_mark(address, self.keys)
                    if self.scenario.created:
                        broker.create(*made)
                    elif late:
                        self.scheduler.after(
                            chance.uniform(0.0, self.scenario.publish_s), broker.create, *made
                        )

    @property
    def _is_done(self) -> bool:
        return all(producer.done for producer in self.producers) and not any(
            self.oracle.open_for(group) for group in self.scenario.groups
        )

    @property
    def is_quiet(self) -> bool:
        """Whether groups are done with what producers did not name them for, too: nothing is promised of that, but the
        checker wants to see what becomes of it."""
        return not (self.oracle.unresolved(self.scenario.topics_of) or self.oracle.looks_for_ends)
