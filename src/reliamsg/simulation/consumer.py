"""A simulated process that consumes: the real consumer engine and inbox, and a small application."""

from __future__ import annotations

import random
from collections.abc import Set

from reliamsg.consumer.buffer import DeliverySlice, fail
from reliamsg.consumer.dead_letters import LateItem, ReplayItem
from reliamsg.consumer.deliveries import GapItem
from reliamsg.consumer.engine import ConsumerEngine, EngineSettings
from reliamsg.consumer.forgetting import Forgetting
from reliamsg.consumer.quarantine import HELD
from reliamsg.consumer.status import ConsumerStatus, status_of
from reliamsg.errors import (
    DeadLetterHalt,
    GapError,
    GapHeld,
    GroupBusy,
    InboxWriteError,
    QuarantineFull,
    ReliamsgError,
)
from reliamsg.message import Gap, Message, MessageId, Stream
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment
from reliamsg.simulation.announcements import Announcements, Member
from reliamsg.simulation.consumer_journal import NOT_READABLE, ConsumerJournal, message_of
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.installation import Installation
from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.process import RESTART_S, Machine, Process, ProcessJudge
from reliamsg.simulation.replays import Replays
from reliamsg.simulation.scenario import Scenario
from reliamsg.simulation.settings import ClientSettings, journal_export
from reliamsg.simulation.stopwatch import Stopwatch
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_view import read_dead_letters

__all__ = ["ConsumerProcess"]

CHUNK_MESSAGES = 64
ENOUGH_BYTES = 64 * 1024 * 1024
"""A quarantine that no run fills."""
OPERATOR_S = 0.1
"""The minimum time until an operator looks at a held stream, and between two looks."""
SLOW_S = (0.05, 1.0)
"""The time to handle some messages."""
REJECTED_AGAIN = 0.2
"""The share of replayed dead letters that the application rejects."""
READS_QUARANTINE_S = 5.0
"""How long it takes at most until a client that reads has taken in what is readable in its quarantine."""
HALTED_S = 1.0
"""The time until someone has repaired the fault that halted a client."""
BUSY_S = 5.0
"""How long a client waits before it tries again to read for a group that has another reader."""
RETRY_S = 1.0
"""The time until a supervisor reopens a client."""


class ConsumerProcess(Process):
    """Consumes for a group, or stands by while another consumer reads."""

    restored_by = "restored_inbox"
    file_kind = "inbox"
    clock_may_be_lost = True

    def __init__(
        self,
        machine: Machine,
        member: Member,
        scenario: Scenario,
        oracle: Oracle,
        incidents: Incidents,
        judge: ProcessJudge,
        announcements: Announcements,
    ) -> None:
        """`announcements`: its control frames."""
        super().__init__(machine, judge)
        self.group: str = member.group
        self.engine: ConsumerEngine | None = None
        settings = scenario.consumers[self.name]
        self.settings: ClientSettings = settings
        self.journal: ConsumerJournal = ConsumerJournal(
            member, settings, machine.drive, oracle, incidents, announcements
        )
        self._scenario, self._oracle, self._incidents = scenario, oracle, incidents
        self._announcements = announcements
        self._keys = scenario.key_ring()
        self._inbox: Inbox | None = None
        self._installation = Installation(
            self.faults, random.Random(f"{scenario.seed}/installation/{self.name}")
        )
        self._reads_since: float | None = None
        """When the client began to read."""
        self._unreadable = 0
        """Batches that the client could not read, since it was opened."""
        self._quarantine_bytes: int = settings["max_quarantine_bytes"]
        self._application = random.Random(f"{scenario.seed}/application/{self.name}")
        self._operator = random.Random(f"{scenario.seed}/operator/{self.name}")
        self._chunk: DeliverySlice | None = None
        self._busy = False
        """The application is handling messages, or is about to."""
        self._unacked: list[Message] = []
        """Handled, to be acknowledged later."""
        self._acked: list[MessageId] = []
        """Acknowledged, not known to be durable."""
        self._awaited: tuple[int, list[MessageId]] | None = None
        """The message whose acknowledgement the application waits to be durable, and the number to ask with."""
        self.replays: Replays = Replays(oracle.violate, self.name)
        self._stopwatch = Stopwatch(self.scheduler.now)
        oracle.consumer_added(self.name, self._stopwatch, self.journal)

    # -- opening and terminating ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """See :class:`Process`."""
        return self.engine is not None

    @property
    def halts(self) -> bool:
        """See :class:`Process`."""
        return bool(self.settings["on_dead_letter"] == "halt")

    def open_client(self) -> None:
        """See :class:`Process`."""
        if self._installation.is_outdated:
            self.journal.report_kept()
        self._installation.open()
        self._unreadable, self._reads_since = 0, None
        if self._installation.is_outdated:
            self.note(f"has an installation {self._installation.name}")
            self.executor.after(self._installation.upgrade_delay(), self._upgrade)
        try:
            self._inbox = Inbox(self.drive.path, self.group, self.drive.connect, self.identities.randbytes)
            self.engine = ConsumerEngine(
                self._engine_settings(), self._rules(), self.settings.sites, self._inbox, self.transports,
                Environment(
                    Clock(self.executor.now, self.clock.now_us), self, self.probe, threads=self.segments
                ),
                journal_export(self.settings, self.journals, ("group", self.group)),
            )  # fmt: skip
        except ReliamsgError as error:
            self._fail(error)
            return
        self._oracle.inbox_opened(self.group, self.name, self._inbox.id, standby=self.settings["standby"])
        self._announcements.opened(self._inbox.id)
        self.engine.start()
        self.wake()

    def _engine_settings(self) -> EngineSettings:
        s = self.settings
        return EngineSettings(
            self.group, self._scenario.topics_of(self.group), max_inbox_bytes=s["max_inbox_bytes"],
            takeover_timeout=s["takeover_timeout"], on_gap=s["on_gap"], standby=s["standby"], keys=self._keys,
            max_quarantine_bytes=self._quarantine_bytes, forms=self._installation.forms,
        )  # fmt: skip

    def _rules(self) -> Rules:
        s = self.settings
        return Rules(
            max_unacknowledged=s["max_unacknowledged"], max_deliveries=s["max_deliveries"],
            gap_timeout=s["gap_timeout"], max_streams=s["max_streams"],
            max_known_streams=s["max_known_streams"], skip_gaps=s["on_gap"] == "skip",
            hold_gaps=s["on_gap"] == "hold", begin=s["begin"], halt=self.halts, signed=self._keys is not None,
            repair_delay=s["repair_delay"], repair_timeout=s["repair_timeout"], seed=self.identities.getrandbits(32),
        )  # fmt: skip

    def _fail(self, error: ReliamsgError) -> None:
        """The client can't continue: determine who repairs it, and when."""
        if isinstance(error, DeadLetterHalt):  # someone repairs the fault, and reopens the client
            self.note(f"halts: {error}")
            self.judge.terminated(self.name, error, halts=self.halts)
            self.close()
            self.open_later(HALTED_S)
        elif isinstance(error, QuarantineFull) and f"({HELD})" in str(
            error
        ):  # an operator enlarges its quarantine
            self._quarantine_bytes = ENOUGH_BYTES
            self.give_up(error, self._operator_delay())
        elif isinstance(error, QuarantineFull) and any(f"({why})" in str(error) for why in NOT_READABLE):
            self._installation.upgrade()
            self.give_up(error, self._operator_delay())
        elif isinstance(error, QuarantineFull):  # only an operator could help
            self.give_up(error, None)
        else:
            self.give_up(error, BUSY_S if isinstance(error, GroupBusy) else RETRY_S)

    def _upgrade(self) -> None:
        """Someone upgrades the installation, and restarts the client."""
        self.note("is closed, to be upgraded")
        self.close()
        self._installation.upgrade()
        self.open_later(self._operator.uniform(*RESTART_S))

    def close_client(self) -> None:
        """See :class:`Process`: as :class:`~reliamsg.consumer.runner.Runner` does it."""
        engine, now = self.engine, self.scheduler.now
        assert engine is not None  # it is open
        if self._chunk is not None:
            engine.deliveries.release(self._chunk)
        engine.flush(now)
        self.journal.check_quarantine(status_of(engine).quarantined, self._had_time_to_read(engine))
        engine.say_goodbye(now)
        engine.standby.close_given_up()
        for site in engine.sites.values():
            site.close(lambda: 1.0)
        engine.flush(now, closing=True)
        engine.finish_export(now)
        self._take_errors(engine)
        engine.shared.health.close()
        self.abandon_client()

    def abandon_client(self) -> None:
        """See :class:`Process`."""
        if self._inbox is not None:
            self._inbox.close()
        self.engine = self._inbox = None

    def before_crash(self) -> None:
        """See :class:`Process`."""
        if self.engine is not None:
            self._check_durable(self.engine)

    def after_end(self) -> None:
        """See :class:`Process`."""
        self._oracle.consumer_terminated(self.group, self.name, crashed=not self.faults.over)
        awaited = [] if self._awaited is None else self._awaited[1]
        self._oracle.became_indeterminate(self.group, self._acked + awaited)
        self._chunk, self._busy, self._awaited = None, False, None
        self._unacked.clear()
        self._acked.clear()
        self.replays.terminated()
        self._stopwatch.update(self.scheduler.now, False)
        self._announcements.terminated()
        self.journal.process_terminated(self.may_lose_its_file)

    def after_file_replaced(self, since: float) -> None:
        """See :class:`Process`."""
        self.journal.file_replaced()
        self.replays.file_replaced()
        self._announcements.inbox_replaced()
        self._oracle.inbox_replaced(self.group, self.name, since)
        self.journal.report()
        self._incidents.inbox_went_back(self.group, repairs=self._keys is None)

    # -- the engine -----------------------------------------------------------------------------------------

    def step_engine(self) -> float | None:
        """See :class:`Process`."""
        engine = self.engine
        if engine is None:
            return None
        deadline = engine.step_when_due(self.scheduler.now)
        if engine.standby.gave_up:
            engine.standby.close_given_up()
        if engine.shared.health.may_write and self.faults.bites("streams_forgotten"):
            self._forget_streams(engine)
        if engine.shared.inbox.dead_letter_count and self.faults.bites("dead_letters_replayed"):
            self._replay_dead_letters(engine)
        if self._installation.is_outdated:
            self._count_unreadable(engine)
        self._take_errors(engine)
        fatal = engine.shared.health.fatal
        if fatal is not None:
            self._fail(fatal)
            return None
        return deadline

    def _take_errors(self, engine: ConsumerEngine) -> None:
        """The application's ``on_error`` is called."""
        errors = engine.shared.health.take_errors()
        self.judge.reported(self.name, errors)
        for error in errors:
            if isinstance(error, GapHeld):
                self.note(f"reports: {error}; the stream is held")
                self.executor.after(self._operator_delay(), self._check_held, error.gap.stream)
            elif isinstance(error, GapError):
                self.note(f"reports: {error}")
                self._oracle.gap_reported(self.group, self.name, error.gap)

    def _had_time_to_read(self, engine: ConsumerEngine) -> bool:
        """Whether everything that could not be read before the upgrade must have left the quarantine."""
        since, now = self._reads_since, self.scheduler.now
        return (
            since is not None
            and now - since > READS_QUARANTINE_S
            and self.faults.over
            and not self._installation.is_outdated
            and engine.shared.health.fatal is None
        )

    def _count_unreadable(self, engine: ConsumerEngine) -> None:
        found = sum(site.rejected.get(reason, 0) for site in engine.sites.values() for reason in NOT_READABLE)
        for _ in range(found - self._unreadable):
            self.faults.strikes("outdated")
        self._unreadable = found

    def after_call(self) -> None:
        """See :class:`Process`: check for messages, and for acknowledgements that have become durable."""
        engine = self.engine
        runs = self.executor.alive and not self.executor.suspended and self.transports.connected
        self._stopwatch.update(self.scheduler.now, runs)
        if engine is None:
            return
        if self._reads_since is None and not engine.shared.role.barred:
            self._reads_since = self.scheduler.now
        if self._awaited is not None:
            self._check_durable(engine)
        if not self._busy and (engine.deliveries.may_take or self._chunk is not None):
            self._handle_after(self.executor.uniform(0.0, self.settings["handling_s"]))

    def _check_durable(self, engine: ConsumerEngine) -> None:
        if self._awaited is None:
            return
        number, messages = self._awaited
        try:
            if not engine.shared.durability.is_durable(number):
                return
        except InboxWriteError:
            self._awaited = None  # what it waited for is awaited with the next one
            return
        except ReliamsgError:
            return
        self._oracle.acknowledged_durably(self.group, self.name, messages)
        self.replays.committed()
        self._awaited = None

    def status(self) -> ConsumerStatus | None:
        """The client's status; None without a client."""
        return None if self.engine is None else status_of(self.engine)

    @property
    def may_read(self) -> bool:
        """Whether there is a client, and nothing keeps it from reading."""
        return self.engine is not None and not self.engine.shared.role.barred

    def check_replays(self) -> None:
        """The run is about to end: unless another consumer reads, everything that was asked for has been delivered."""
        if self.engine is not None and self.engine.shared.role.in_charge:
            self.replays.check_delivered()

    @property
    def known_producers(self) -> Set[str]:
        """Producers whose announcements it has received since it began to read."""
        return set() if self.engine is None else set(self.engine.statuses.by_producer)

    # -- the application ------------------------------------------------------------------------------------

    def _handle_after(self, seconds: float) -> None:
        self._busy = True
        self.executor.after(seconds, self._handle)

    @property
    def _portion(self) -> tuple[int, int]:
        """The number of messages to take at once, at least and at most."""
        batch = self.settings["batch"]
        return batch or 1, batch or CHUNK_MESSAGES

    def _handle(self) -> None:
        """Take what is next, and handle it."""
        engine, self._busy = self.engine, False
        if engine is None:
            return
        if self._chunk is None:
            try:
                item = engine.deliveries.take(*self._portion)
            except ReliamsgError:
                return  # the next step notices fatal errors
            if isinstance(item, GapItem):
                self._decide(engine, item.gap)
            elif isinstance(item, LateItem):
                engine.dead_letters.late_seen(item.number)
            elif isinstance(item, ReplayItem):
                self._handle_replayed(engine, item.message)
            else:
                self._chunk = item
        if self._chunk is not None:
            self._handle_slice(engine, self._chunk)

    def _handle_replayed(self, engine: ConsumerEngine, message: Message) -> None:
        """Handle a dead letter that is delivered again."""
        if self._application.random() < REJECTED_AGAIN:
            self._receive(message)
            self._reject(message)
        else:
            self._handle_one(engine, message)
        self._crashes_in_handler()

    def _handle_slice(self, engine: ConsumerEngine, chunk: DeliverySlice) -> None:
        """Handle some messages of a slice, or all."""
        batch = self.settings["batch"]
        if batch is None:
            self._handle_some(engine, chunk)
        else:
            self._handle_batch(engine, chunk, batch)

    def _handle_some(self, engine: ConsumerEngine, chunk: DeliverySlice) -> None:
        chance, shared = self._application, engine.shared
        for _ in range(chance.choice([1, 4, 16])):
            message = chunk.next() if shared.health.fatal is None and shared.role.holds else None
            if message is None:
                engine.deliveries.release(chunk)
                self._chunk = None
                return
            self._handle_one(engine, message)
            if self._crashes_in_handler():
                return
        slow = chance.random() < 0.05
        self._handle_after(
            chance.uniform(*SLOW_S) if slow else chance.uniform(0.0, self.settings["handling_s"])
        )

    def _handle_one(self, engine: ConsumerEngine, message: Message) -> None:
        self._receive(message)
        if self.faults.bites("handler_failed"):
            self.faults.strikes("handler_failed")
            self._handler_fails(message)
        elif self.faults.bites("rejected"):
            self.faults.strikes("rejected")
            self._reject(message)
        elif self._application.random() < 0.05:
            self._unacked.append(message)
            self.executor.after(self._application.uniform(*SLOW_S), self._acknowledge_later)
        else:
            self._acknowledge(engine, message)

    def _handle_batch(self, engine: ConsumerEngine, chunk: DeliverySlice, most: int) -> None:
        """Handle several messages at once: all of them are acknowledged, or delivered again."""
        shared = engine.shared
        run = chunk.take(most) if shared.health.fatal is None and shared.role.holds else None
        for message in run or ():
            self._receive(message)
        if run and self._crashes_in_handler():
            return
        if run and self.faults.bites("handler_failed"):
            self.faults.strikes("handler_failed")
            for message in run:
                self._handler_fails(message)
        elif run:
            chunk.buffer.acknowledge_run(run[0], run[-1])
            for message in run:
                self._acknowledged(engine, message)
        engine.deliveries.release(chunk)
        self._chunk = None

    def _receive(self, message: Message) -> None:
        self._announcements.delivered(message)
        if message.replayed:
            self._oracle.replayed(self.group, self.name, message)
            self.replays.delivered(message.id)
        else:
            self._oracle.delivered(self.group, self.name, message)
        if self.traced:
            how = " as a dead letter" if message.replayed else " again" if message.redelivered else ""
            self.note(f"delivers {message.id}{how}")

    def _crashes_in_handler(self) -> bool:
        if self.faults.bites("crash_inside"):
            self.faults.strikes("crash_inside")
            self.crash("in a handler")
            return True
        return False

    def _handler_fails(self, message: Message) -> None:
        fail(message, RuntimeError("as simulated"))
        self._failed(message, self.journal.max_attempts)

    def _failed(self, message: Message, tries: float) -> None:
        if message.replayed:
            self.replays.failed(message.id)
        else:
            self._oracle.handler_failed(self.group, self.name, message.id, tries)

    def _reject(self, message: Message) -> None:
        message.reject("as simulated")
        message.ack()  # as run() does when a handler returns
        if message.replayed:
            self.replays.failed(message.id)
        else:
            self._oracle.rejected(self.group, self.name, message.id)
            self._acked.append(message.id)

    def _acknowledge(self, engine: ConsumerEngine, message: Message) -> None:
        message.ack()
        self._acknowledged(engine, message)

    def _acknowledged(self, engine: ConsumerEngine, message: Message) -> None:
        if message.replayed:
            self._oracle.revived(self.group, message.id)
            self.replays.acknowledged(message.id)
        else:
            self._oracle.acknowledged(self.group, self.name, message.id)
            self._acked.append(message.id)
        if self._awaited is None and self._application.random() < 0.3:
            self._awaited = engine.shared.durability.want_soon(), self._acked
            self._acked = []
            self.replays.await_commit()

    def _acknowledge_later(self) -> None:
        if self._unacked and self.engine is not None:
            at = self._application.randrange(len(self._unacked))
            self._acknowledge(self.engine, self._unacked.pop(at))

    # -- gaps, and the operator who handles them ------------------------------------------------------------

    def _decide(self, engine: ConsumerEngine, gap: Gap) -> None:
        if self.settings["on_gap"] != "wait" or self._waits_in_vain(gap):
            self._accept(engine, gap)

    def _accept(self, engine: ConsumerEngine, gap: Gap) -> None:
        self.note(f"accepts {gap}")
        if engine.deliveries.accept(gap):
            self._oracle.gap_accepted(self.group, self.name, gap)
            self.journal.gap_accepted(gap)

    def _check_held(self, stream: Stream) -> None:
        """An operator looks at a stream that was reported as held, repeatedly until it is released."""
        engine = self.engine
        state = None if engine is None else engine.shared.core.streams.get(stream)
        if engine is None or state is None or state.gaps.held_since is None:
            return
        gap = state.gaps.held_by
        kept = self._scenario.producers[stream.producer]["release"] == "consumed"
        if gap is not None and (not kept or self._waits_in_vain(gap)):
            self._accept(engine, gap)
            self.wake()
        self.executor.after(self._operator_delay(), self._check_held, stream)

    def _operator_delay(self) -> float:
        return self._operator.uniform(OPERATOR_S, self.settings["operator_s"])

    def _waits_in_vain(self, gap: Gap) -> bool:
        """Whether waiting no longer helps: the producer removed the messages or does not keep them for this group, a
        disk lost them, or no producer accepts this inbox's requests."""
        if gap.reason == "removed" or self.group in self._incidents.unrepaired_groups:
            return True
        state = None if self.engine is None else self.engine.shared.core.streams.get(gap.stream)
        later = None if state is None or gap.last is not None else state.epochs.next_epoch()
        until = None if later is None else later.epoch  # messages that have arrived are not missing
        return not self._oracle.is_owed(self.group, gap, until)

    def _forget_streams(self, engine: ConsumerEngine) -> None:
        """An operator tells the inbox to forget some streams, or tries to."""
        chance = self.faults.random("streams_forgotten")
        streams = sorted(self._oracle.streams)
        some = chance.sample(streams, chance.randint(0, len(streams)))
        try:
            count = engine.forget(Forgetting(tuple(some)), self.scheduler.now)
        except ReliamsgError as error:
            self.note(f"can't forget: {error}")
            return
        for _ in range(count):
            self.faults.strikes("streams_forgotten")
        if count:
            self.note(f"forgets {count} of {len(some)} streams")

    def _replay_dead_letters(self, engine: ConsumerEngine) -> None:
        """An operator has some dead letters delivered again; perhaps some that are being delivered again."""
        chance = self.faults.random("dead_letters_replayed")
        try:
            letters = read_dead_letters(self.drive.path)
            some = chance.sample(letters, chance.randint(1, len(letters))) if letters else []
            self.replays.check_stored(map(message_of, letters))
            self.replays.ask(map(message_of, some))
            count, unknown = engine.dead_letters.replay([letter.id for letter in some])
        except ReliamsgError as error:
            self.note(f"can't replay: {error}")
            return
        if unknown:
            self._oracle.violate("lost", f"{unknown} dead letters of {self.name} are gone")
        if count:
            self.faults.strikes("dead_letters_replayed")
            self.note(f"has {count} of {len(letters)} dead letters delivered again")
