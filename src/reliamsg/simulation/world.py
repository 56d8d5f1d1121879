"""A simulated world: sites, networks, processes and faults under one clock, and the judges."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import ClassVar

from reliamsg.message import MessageId
from reliamsg.simulation.announcements import Announcements, Member
from reliamsg.simulation.attacker import Attacker
from reliamsg.simulation.broker import Broker, BrokerTraits
from reliamsg.simulation.client_clock import ClientClock
from reliamsg.simulation.clock import START_S, Scheduler, WallClock
from reliamsg.simulation.comparison import Comparison
from reliamsg.simulation.consumer import ConsumerProcess
from reliamsg.simulation.disk import Drive
from reliamsg.simulation.disk_faults import DiskFaults
from reliamsg.simulation.environment import (
    BrokerFaults,
    ClockFaults,
    Conditions,
    EnvironmentFaults,
    NetworkFaults,
)
from reliamsg.simulation.error_judge import ErrorJudge
from reliamsg.simulation.executor import Executor
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.hole import Hole
from reliamsg.simulation.host import Host
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.journals import not_signed
from reliamsg.simulation.named_rows import NamedRows, StatusWitness
from reliamsg.simulation.network import Network
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.process import Machine, Process
from reliamsg.simulation.producer import ProducerProcess
from reliamsg.simulation.scenario import Scenario
from reliamsg.simulation.stalls import (
    STATUS_S,
    Bounds,
    ConsumerReport,
    Excuses,
    Key,
    Liveness,
    ProducerReport,
    Progress,
    beside_unanswered,
    find_stalls,
)
from reliamsg.simulation.stored import stored_in_inbox, stored_in_outbox
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.traffic import Traffic
from reliamsg.store.database import Kind
from reliamsg.trust import Owner
from reliamsg.wire.address import created_address
from reliamsg.wire.control import encode_mark

__all__ = ["World"]

LINGER_S = 3.0
"""How long a run continues after everything is done: later events must be harmless."""
LOOK_S = 1.0
LATE = 0.5
"""How often groups that were not created beforehand are created later, if their consumers do not do it first."""
START_WITHIN_S = 0.3


class World:
    """One run. Call :meth:`run` once, and then :meth:`compare`. Subclasses may have other applications."""

    producer_type: ClassVar[type[ProducerProcess]] = ProducerProcess
    consumer_type: ClassVar[type[ConsumerProcess]] = ConsumerProcess

    def __init__(self, scenario: Scenario, directory: Path, keep: bool = False) -> None:
        """`directory`: where files are. `keep`: whether to record a trace."""
        self.scenario = scenario
        self.scheduler: Scheduler = Scheduler(START_S)
        self.faults: Faults = Faults(scenario.seed, scenario.faults)
        self.incidents: Incidents = Incidents()
        self.oracle: Oracle = _oracle(scenario, self.scheduler)
        self.error_judge: ErrorJudge = ErrorJudge(self.oracle, self.faults, self.incidents)
        self.trace: Trace = Trace(self.scheduler, keep)
        self.network: Network = Network(self.scheduler, scenario.seed)
        self._directory = directory
        self._keys = scenario.key_ring()
        self._wall = WallClock(self.scheduler)
        self._traffic = Traffic(self.oracle, self.trace)
        hole = Hole(self.scheduler, self.faults, scenario.seed)
        self.brokers: dict[str, Broker] = {
            site.name: Broker(
                BrokerTraits(site.name, site.protocol, **scenario.brokers[site.name].values),
                self.scheduler, self.faults.at(site.name), self.trace, self._traffic,
                random.Random(f"{scenario.seed}/broker/{site.name}"), hole,
            )
            for site in scenario.sites
        }  # fmt: skip
        self.producers: list[ProducerProcess] = [self._producer(name) for name in scenario.producers]
        self.consumers: list[ConsumerProcess] = [self._consumer(group, 1) for group in scenario.groups]
        self.consumers += [self._consumer(group, 2) for group in scenario.standbys]
        self._environment_random = random.Random(f"{scenario.seed}/weather")
        self._environment = self._make_environment()

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return [*self.producers, *self.consumers]

    # -- composing ------------------------------------------------------------------------------------------

    def _producer(self, name: str) -> ProducerProcess:
        drive = self._drive(name, "outbox", name)
        witness = StatusWitness(NamedRows(name, drive, self.oracle), self._keys)
        host = Host(name, self._executor(name), self.network, self.trace, witness)
        return self.producer_type(
            self._machine(host, drive), self.scenario, self.oracle, self.incidents, self.error_judge
        )

    def _consumer(self, group: str, number: int) -> ConsumerProcess:
        name = f"{group}-{number}"
        settings = self.scenario.consumers[name]
        member = Member(group, name, settings["takeover_timeout"], group in self.scenario.standbys)
        drive = self._drive(name, "inbox", group)
        rows = NamedRows(name, drive, self.oracle)
        announcements = Announcements(
            member, self.oracle, self.scheduler, self.incidents, self._keys, rows.named_by_boot
        )
        executor, held_bytes = self._executor(name), settings["held_bytes"]
        host = Host(name, executor, self.network, self.trace, announcements, held_bytes)
        return self.consumer_type(
            self._machine(host, drive), member, self.scenario, self.oracle, self.incidents, self.error_judge,
            announcements,
        )  # fmt: skip

    def _executor(self, name: str) -> Executor:
        return Executor(self.scheduler, random.Random(f"{self.scenario.seed}/process/{name}/pace"))

    def _drive(self, process: str, kind: Kind, owner: str) -> Drive:
        file, faults = f"{process}.{kind}.db", self.faults.at(process)
        chance = random.Random(f"{self.scenario.seed}/drive/{file}")
        disk_faults = DiskFaults(self.scheduler, faults, self.trace)
        clock = (lambda: self.scheduler.now) if "wal_lost" in faults.enabled else None
        return Drive(self._directory / file, kind, owner, chance, disk_faults.draw, clock)

    def _machine(self, host: Host, drive: Drive) -> Machine:
        faults = self.faults.at(host.name)
        clock = ClientClock(self.scheduler, self._wall, faults, self.trace)
        return Machine(self.scenario.seed, host, self.scheduler, clock, drive, self.brokers, faults)

    def _make_environment(self) -> EnvironmentFaults:
        conditions = Conditions(self.scheduler)
        places = [(process.name, site) for process in self.processes for site in self.brokers]
        sources = (
            BrokerFaults(
                self.scenario.sites,
                self.scenario.read_topics,
                self.brokers,
                self.faults,
                conditions,
                self.trace,
                self._environment_random,
            ),
            NetworkFaults(places, self.network, self.faults, conditions, self.trace),
            ClockFaults(self._wall, self.faults, self.trace),
            Attacker(
                self.scenario,
                self.brokers,
                self._traffic,
                self._wall,
                self.faults,
                self.incidents,
                self.trace,
            ),
        )
        return EnvironmentFaults(self.scheduler, self.faults, conditions, sources)

    # -- running --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run everything, from the start to the verdicts."""
        self.create_groups()
        for process in self.processes:
            self.scheduler.after(self._environment_random.uniform(0.0, START_WITHIN_S), process.open)
        self._environment.begin()
        end = START_S + self.scenario.faulty_s
        self.scheduler.run(end)
        self._environment.end()
        self.trace.note("world", "", "faults end")
        self._wait_beside_unanswered()
        self._environment.end_lasting()
        end = self.scheduler.now
        liveness = Liveness()
        liveness.update(self._progress())
        while not (self._is_done and self._is_settled) and not self._has_stalled(liveness):
            self._continue(liveness, end)
        stalled = not self._is_done
        if stalled:
            self._report_stalls()
        else:
            self._wait_for_successors()
        # A group learns only from such a producer's next announcement that it has another history, and the checker
        # assumes that everything in a run had its time.
        announced_in = 2 * STATUS_S if self.oracle.has_delivered_what_is_gone() else 0.0
        self.scheduler.run(self.scheduler.now + LINGER_S + announced_in)
        if not stalled:
            self._finish_late(liveness, end)
        for consumer in () if stalled else self.consumers:
            consumer.check_replays()
        for process in (*self.consumers, *self.producers):
            process.close()
        for consumer in self.consumers:
            consumer.journal.report()
            consumer.replays.check_stored(consumer.journal.report_dead_letters())
            consumer.journal.report_unreadable()
        self._report_excuses()
        waiting = {
            name for name, settings in self.scenario.groups.items() if settings["on_gap"] in ("wait", "hold")
        }
        self.oracle.judge(waiting - self.incidents.unrepaired_groups)

    def _wait_beside_unanswered(self) -> None:
        """While brokers do not answer for one topic, they have to confirm what there is of others (P18)."""
        begin = self.scheduler.now
        late = {
            (producer, broker): begin + beside_unanswered(producer.settings, broker.name)
            for producer in self.producers
            for broker in self.brokers.values()
            if broker.unanswered is not None
        }
        while late:
            self.scheduler.run(self.scheduler.now + LOOK_S)
            for (producer, broker), until in list(late.items()):
                topic = "" if broker.unanswered is None else broker.unanswered.topic
                if not producer.awaits_confirms(broker.name, topic):
                    del late[producer, broker]
                elif self.scheduler.now > until:
                    del late[producer, broker]
                    self.oracle.violate(
                        "stalled",
                        f"{producer.name} waits for confirms of {broker.name}, which does not answer for {topic}",
                    )

    def compare(self) -> None:
        """Compare the verdicts with those of the plain checker."""
        renumberings = {producer.name: producer.renumbering() for producer in self.producers}
        comparison = Comparison(self.oracle, self.incidents, self.scenario.topics_of, renumberings)
        comparison.compare(self._directory)
        for line in not_signed(self._directory / "journals", self._signing()):
            self.oracle.violate("checker", f"signed by its client, and not found to be: {line}")

    def _signing(self) -> set[Owner]:
        """The producers and groups that sign everything that they export."""
        every = [(("producer", each.name), each.settings) for each in self.producers]
        every += [(("group", each.group), each.settings) for each in self.consumers]
        exporting = [(owner, settings["journal_signed"]) for owner, settings in every if settings["journal"]]
        return {owner for owner, _ in exporting} - {owner for owner, signed in exporting if not signed}

    def create_groups(self) -> None:
        """Someone creates the groups at their sites: before anything else, or while messages are being published, or
        never. Then their consumers do that."""
        chance = random.Random(f"{self.scenario.seed}/created")
        late = chance.random() < LATE
        for broker in self.brokers.values():
            for group in self.scenario.groups:
                for topic in self.scenario.topics_of(group):
                    key = topic, 0, group
                    mark = encode_mark(created_address(*key), self._keys)
                    if self.scenario.created:
                        broker.model.create(key, mark)
                    elif late:
                        delay = chance.uniform(0.0, self.scenario.publish_s)
                        self.scheduler.after(delay, broker.model.create, key, mark)

    def _continue(self, liveness: Liveness, faults_end: float) -> None:
        """Run for a moment. Perhaps nothing more happens but what journals show."""
        self.scheduler.run(self.scheduler.now + LOOK_S)
        liveness.update(self._progress())
        if (
            self.scheduler.now > faults_end + self.scenario.longest_gap_timeout
            or any(self.oracle.indeterminate.values())
            or self.oracle.awaits_gap_ends
        ):
            for consumer in self.consumers:
                consumer.journal.report()

    def _finish_late(self, liveness: Liveness, faults_end: float) -> None:
        """A group that starts with the latest may meet a stream at the very end, when its inbox has room for it (C8).
        It is owed nothing before that, and everything that follows. What an inbox settled that found out only then that
        another one reads, and terminated, is in its journal."""
        liveness.update(self._progress())
        while not self._is_done and not self._has_stalled(liveness):
            self._continue(liveness, faults_end)
        if not self._is_done:
            self._report_stalls()

    def _wait_for_successors(self) -> None:
        """For the judge, what a replaced inbox had dealt with is done. Its successor may still have to receive it, as
        far as sites have it, or to learn of it: the checker assumes that everything in a run had its time."""
        bounds = self._bounds()
        times = [bounds.of_group(group) for group in self.incidents.replaced_inboxes]
        until = self.scheduler.now + max(times, default=0.0)
        while self.scheduler.now < until and self._successors_wait:
            self.scheduler.run(self.scheduler.now + LOOK_S)

    # -- remaining work ----------------------------------------------------------------------------------

    @property
    def _is_done(self) -> bool:
        return all(producer.done for producer in self.producers) and not any(
            self.oracle.open_for(group) for group in self.scenario.groups
        )

    @property
    def _is_settled(self) -> bool:
        """Whether groups are done with everything else that they heard of. Nothing is promised about some of it, such
        as messages for which producers did not name them, or that an older copy of an outbox sent once more under
        other numbers; but the checker needs to see its fate."""
        return not (
            self.oracle.has_unpromised(self.scenario.topics_of)
            or self.oracle.awaits_gap_ends
            or any(map(_waits, self.consumers))
        )

    @property
    def _successors_wait(self) -> bool:
        """Whether a successor of a replaced inbox waits for anything or has still to learn how far the other one was,
        or sites have anything for its group."""
        replaced = self.incidents.replaced_inboxes
        for consumer in self.consumers:
            if consumer.group not in replaced or consumer.status() is None:
                continue
            if self._unannounced(consumer) or _waits(consumer):
                return True
        return any(
            queue[2] in replaced for broker in self.brokers.values() for queue, _ in broker.model.stored()
        )

    def _unannounced(self, consumer: ConsumerProcess) -> set[str]:
        """Open producers of what a consumer reads that it has received no announcement of since it began to read, or is
        about to. None while another consumer of its group reads."""
        others = (each for each in self.consumers if each.group == consumer.group and each is not consumer)
        if not consumer.is_open or (not consumer.may_read and any(each.may_read for each in others)):
            return set()
        topics = self.scenario.topics_of(consumer.group)
        read = {stream.producer for stream in self.oracle.streams if stream.topic in topics}
        return ({each.name for each in self.producers if each.is_open} & read) - consumer.known_producers

    # -- stalls ---------------------------------------------------------------------------------------------

    def _progress(self) -> Progress:
        oracle, left = self.oracle, self._left_for_groups()
        for producer in self.producers:
            if not producer.done:
                left[producer.name] = 1 + producer.left + producer.pending
        if not left and not self._is_settled:
            left[""] = 1
        reached = {
            (group, stream, consumer): place
            for group in self.scenario.groups
            for stream in oracle.streams
            for consumer, place in oracle.reached(group, stream).items()
        }
        return Progress(self.scheduler.now, left, reached)

    def _left_for_groups(self) -> Counter[Key]:
        return Counter(
            (group, operation.stream)
            for group in self.scenario.groups
            for operation in self.oracle.open_for(group)
        )

    def _has_stalled(self, liveness: Liveness) -> bool:
        return liveness.stalled(self.scheduler.now, self._bounds())

    def _bounds(self) -> Bounds:
        addresses_refused = "address_refused" in self.faults.struck
        return Bounds(self.scenario, self.incidents.unrepaired_groups, addresses_refused)

    def _excuses(self) -> Excuses:
        producers = {each.name: each.terminated_with for each in self.producers}
        groups = {
            group: {each.name: each.terminated_with for each in self.consumers if each.group == group}
            for group in self.scenario.groups
        }
        return Excuses(self.faults, producers, groups)

    def _report_stalls(self) -> None:
        """The run is over: report the remaining work, unless it is excused."""
        producers = []
        for each in self.producers:
            done, engine = each.done, each.engine
            status = None if done or engine is None else engine.status()
            producers.append(ProducerReport(each.name, done, each.left, status, each.terminated_with))
        consumers = [
            ConsumerReport(each.name, each.group, each.status(), each.terminated_with)
            for each in self.consumers
        ]
        for text in find_stalls(self._excuses(), producers, consumers, self._left_for_groups()):
            self.oracle.violate("stalled", text)

    def _report_excuses(self) -> None:
        """Report excused streams to the judge, and their messages that are still stored."""
        excuses, oracle = self._excuses(), self.oracle
        excused = {
            (group, stream)
            for group in self.scenario.groups
            for stream in oracle.streams
            if excuses.excuses_stream(group, stream)
        }
        oracle.excuse(excused)
        if excused:
            for group, messages in self.stored().items():
                oracle.still_stored(group, messages)

    def stored(self) -> dict[str, set[MessageId]]:
        """The messages that are still stored for each group in inboxes and at brokers, and under "" those in outboxes.
        The judge is shown the latter, because no broker may have seen it."""
        found = defaultdict[str, set[MessageId]](set)
        for producer in self.producers:
            for message, opening, body in stored_in_outbox(producer.drive, producer.name):
                self.oracle.seen(message, opening, body)
                found[""].add(message)
        for consumer in self.consumers:
            found[consumer.group].update(stored_in_inbox(consumer.drive))
        for broker in self.brokers.values():
            for queue, delivery in broker.model.stored():
                found[queue[2]].update(self._traffic.messages(delivery))
        return found


def _oracle(scenario: Scenario, scheduler: Scheduler) -> Oracle:
    return Oracle(
        scheduler,
        scenario.groups,
        {name: settings["gap_timeout"] for name, settings in scenario.consumers.items()},
        {name: scenario.needed(name) for name in scenario.producers},
        {name for name, settings in scenario.groups.items() if settings["begin"] == "latest"},
        {name for name, each in scenario.producers.items() if each["release"] == "consumed"},
    )


def _waits(consumer: ConsumerProcess) -> bool:
    """Whether it waits for messages, or holds any behind them."""
    status = consumer.status()
    return status is not None and any(each.gap is not None or each.held for each in status.streams.values())
