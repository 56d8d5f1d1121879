"""A simulated process that publishes: the real sending logic and outbox, and a small application."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from reliamsg.checker.renumbered import Renumbering
from reliamsg.errors import (
    ConfigError,
    ConfirmTimeout,
    FatalError,
    OutboxFull,
    ProducerFenced,
    ReliamsgError,
)
from reliamsg.message import MessageId, Stream
from reliamsg.producer.accumulator import MESSAGE_OVERHEAD
from reliamsg.producer.commit import Content
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.flushing import flush
from reliamsg.producer.receipt import Receipt
from reliamsg.producer.settings import Settings
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.wakeup import Waiters
from reliamsg.simulation.executor import THREAD_S
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.journal_copy import JournalCopy
from reliamsg.simulation.oracle import Operation, Oracle
from reliamsg.simulation.process import Machine, Process, ProcessJudge
from reliamsg.simulation.scenario import Scenario
from reliamsg.simulation.settings import ClientSettings, journal_export
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.outbox import Outbox

__all__ = ["LIKE_A_BATCH", "ProducerProcess", "body_of"]

RETRY_S = 0.2
"""When a publish is retried that was refused for lack of room."""
REOPEN_S = 1.0
"""How long it takes until a supervisor opens a client again."""
CHECK_ALL = 50
"""How often all unconfirmed receipts are checked, and not only the oldest: each time after this many calls."""
JUDGED_BYTES = 64 * 1024
"""No run publishes more, so limits above this need no check."""
LATEST = 10
"""How many messages can be taken back."""
LIKE_A_BATCH = {3: b"RMB1", 5: b"RMB9", 7: b"RMC1"}
"""How some bodies begin: like a batch, one in a later format, and a control frame."""
BURSTS = (1, 1, 1, 2, 6, 20)
"""How many messages are published at a time."""


class _Room(Waiters):
    """Stands for the application's thread that waits for room: without threads, it is notified when to try again."""

    __slots__ = ("_notify",)

    def __init__(self, notify: Callable[[], object]) -> None:
        super().__init__()
        self._notify = notify

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        return condition()

    def notify_all(self) -> None:
        self._notify()

    def give_way(self) -> None:
        """No thread waits."""


@dataclass(eq=False)
class _Blocked:
    """A message for which the application waits in ``publish``."""

    operation: Operation
    publish: Callable[[], Receipt]
    notified: int = 0
    """How often it was notified of room and has not tried again yet."""


@dataclass(frozen=True)
class _Journalled:
    """What an outbox's journal has."""

    stored: set[MessageId] = field(default_factory=set)
    """Everything that was ever stored, by all names that it had."""
    removed: set[MessageId] = field(default_factory=set)
    rows: set[tuple[int, int, int]] = field(default_factory=set)
    """Incarnation of the opening, epoch, number."""


def body_of(stream: str, number: int, size: int) -> bytes:
    """The body of an application's message, which is unique. `size`: about how large it is."""
    return LIKE_A_BATCH.get(number % 8, b"") + f"{stream}/{number}/".encode() + bytes(size)


class ProducerProcess(Process):
    """Publishes its share of the scenario's messages, in about the time that the scenario has for that."""

    restored_by = "restored"
    file_kind = "outbox"
    clock_may_be_lost = False

    def __init__(
        self, machine: Machine, scenario: Scenario, oracle: Oracle, incidents: Incidents, judge: ProcessJudge
    ) -> None:
        super().__init__(machine, judge)
        settings = scenario.producers[self.name]
        self.settings: ClientSettings = settings
        self.engine: ProducerEngine | None = None
        self.left: int = scenario.messages // len(scenario.producers)
        """Messages still to be published."""
        self.named: dict[str, list[str]] = scenario.named_by(self.name)
        """By topic, the groups that the application names."""
        self._scenario, self._oracle, self._incidents = scenario, oracle, incidents
        self._outbox: Outbox | None = None
        self._interval_s = scenario.publish_s / max(1, self.left)
        self._application = random.Random(f"{scenario.seed}/application/{self.name}")
        self._removing = random.Random(f"{scenario.seed}/application/{self.name}/remove")
        self._naming = random.Random(f"{scenario.seed}/application/{self.name}/add_group")
        self._published = 0
        self._certain = {topic: frozenset(groups) for topic, groups in self.named.items()}
        """By topic, the groups that certainly count."""
        self._rests = False
        """There was nothing left to publish."""
        self._waiting: list[tuple[Operation, Receipt]] = []
        """Not known to be durable."""
        self._unconfirmed: list[tuple[Operation, Receipt]] = []
        self._durable: list[tuple[Operation, Receipt]] = []
        """The latest that are durable."""
        self._checks = 0
        self._journal_copy = JournalCopy(machine.drive, incidents, self.name) if settings["journal"] else None
        self._had = _Journalled()
        """What its journal had when the process terminated."""
        self._blocked: _Blocked | None = None
        self._block_timeout: float = settings["block_timeout"] if settings["when_full"] == "block" else 0.0

    # -- opening and terminating ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """See :class:`Process`."""
        return self.engine is not None

    def open_client(self) -> None:
        """See :class:`Process`."""
        settings = self.settings
        try:
            self._outbox = Outbox(
                self.drive.path, self.name, self.clock.now_us(), int(self.scheduler.now * 1e6),
                self.identities.randbytes(8).hex(), self.drive.connect, self.identities.randbytes,
            )  # fmt: skip
            self.engine = ProducerEngine(
                self._outbox, self.settings.sites, self.named, self._checked_settings(), self.transports,
                Environment(
                    Clock(self.executor.now, self.clock.now_us), self, self.probe, threads=self.segments,
                    room=_Room(self._room_available),
                ),
                journal_export(settings, self.journals, ("producer", self.name)),
            )  # fmt: skip
        except ReliamsgError as error:
            self._fail(error)
            return
        for site in self.engine.sites.values():
            site.transport.start()
        self.wake()

    def _checked_settings(self) -> Settings:
        names = (
            "confirm", "release", "wire", "compression", "max_bytes", "retain_seconds", "retain_bytes",
            "max_batch_messages", "max_batch_bytes", "hello_timeout", "status_interval",
            "max_repair_bytes_per_second",
        )  # fmt: skip
        chosen = {name: self.settings[name] for name in names}
        return Settings(**chosen, keys=self._scenario.key_ring()).checked(self.settings.sites)

    def after_open(self) -> None:
        """See :class:`Process`."""
        self.executor.after(0.0, self._publish)

    def _fail(self, error: ReliamsgError) -> None:
        """The client can't continue."""
        self.give_up(error, None if isinstance(error, ProducerFenced) else REOPEN_S)

    def close_client(self) -> None:
        """See :class:`Process`."""
        engine = self.engine
        assert engine is not None  # it is open
        engine.begin_close()
        for site in engine.sites.values():
            site.transport.close(1.0)
        engine.finish()
        self.after_call()
        self.engine = self._outbox = None

    def abandon_client(self) -> None:
        """See :class:`Process`."""
        if self._outbox is not None:
            self._outbox.close()
        self.engine = self._outbox = None

    def before_crash(self) -> None:
        """See :class:`Process`. Where the crash leaves no time for an identity, brokers will show it."""
        for operation, receipt in self._waiting:
            if receipt.durable:
                operation.succeed(self.scheduler.now)
        self._waiting = [each for each in self._waiting if not each[1].durable]

    def after_end(self) -> None:
        """See :class:`Process`."""
        for operation, _ in self._waiting:
            operation.become_indeterminate()
        self._waiting.clear()
        self._unconfirmed.clear()
        self._durable.clear()
        self._had = self._journalled() if self.may_lose_its_file else _Journalled()
        if self._blocked is not None:
            self._blocked.operation.fail()
            self._blocked = None

    def after_file_replaced(self, since: float) -> None:
        """See :class:`Process`."""
        had, has = self._had, self._journalled()
        gone, rows = had.stored - has.stored, had.rows - has.rows
        self._oracle.outbox_replaced(self.name, since, gone, had.removed - has.removed)
        epochs = {epoch for _, epoch, _ in rows} | {message.epoch for message in gone}
        self._incidents.outbox_went_back(self.name, {opening for opening, *_ in rows}, epochs)

    def renumbering(self) -> Renumbering:
        """Which epochs were renumbered, according to its journal."""
        return Renumbering(self._rows())

    def _rows(self) -> list[JournalRow]:
        """All rows that its journal ever had, and has or would have if nothing had been exported."""
        if self._journal_copy is not None:
            return self._journal_copy.rows()
        with self.drive.reading() as connection:
            return list(read_journal(connection))

    def _journalled(self) -> _Journalled:
        rows = self._rows()
        now = Renumbering(rows)

        def numbers(kind: str) -> set[MessageId]:
            return {
                MessageId(row.producer, row.epoch, row.topic, row.partition, seq)
                for each in rows
                if each.kind == kind
                for row in (each, now(each))
                for seq in range(row.first, row.last + 1)
            }

        openings = {row.boot: row.incarnation for row in rows if row.kind == "opened"}
        own = {(openings[row.boot], row.epoch, row.lsn) for row in rows}
        return _Journalled(numbers("enqueued"), numbers("removed"), own)

    # -- the engine -----------------------------------------------------------------------------------------

    def step_engine(self) -> float | None:
        """See :class:`Process`."""
        engine = self.engine
        if engine is None:
            return None
        deadline = engine.step()
        if engine.fatal is not None:
            self._fail(engine.fatal)
            return None
        return deadline

    @property
    def done(self) -> bool:
        """Whether everything was published and confirmed, and all waiting callers have noticed."""
        if not self.executor.alive or self.engine is None or self.left or self.engine.pending():
            return False
        try:
            flush(self.engine, 0.0)
        except ConfirmTimeout:
            return False
        return True

    @property
    def pending(self) -> int:
        """How many messages are not confirmed, as far as is known."""
        return 0 if self.engine is None else self.engine.pending()

    def awaits_confirms(self, site: str, but: str) -> bool:
        """Whether a site has still to confirm messages, except those of topic `but` and those for groups that are not
        proven there."""
        if self.engine is None or not self.executor.alive:
            return self.terminated_with is None
        shared = self.engine.shared
        window = shared.core.sites[site]
        topics = {number: info.row.stream.topic for number, info in shared.streams.by_id.items()}
        return window.main.unanswered <= shared.top or any(
            number is not None and topics[number] != but and queue.uncounted is None
            for number, queue in window.queues.items()
        )

    # -- publishing -----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if self.engine is None or not self.left:
            self._rests = True
            return
        self._rests = False
        chance = self._application
        count = min(self.left, chance.choice(BURSTS))
        for _ in range(count):
            if not self._publish_one(self.engine):
                if self._blocked is None:
                    self.executor.after(RETRY_S, self._publish)
                return
            if self.engine is not None and self._removing.random() < self.settings["remove"]:
                self._take_some_back(self.engine)
            if self.engine is not None and self._naming.random() < self.settings["add_group"]:
                self._change_groups(self.engine)
            if self.engine is None:
                return
        self.executor.after(chance.expovariate(1.0) * self._interval_s * count, self._publish)

    def _publish_one(self, engine: ProducerEngine) -> bool:
        chance = self._application
        topic = chance.choice(self._scenario.read_topics)
        self._published += 1
        body = body_of(f"{self.name}/{topic}", self._published, chance.choice([0, 10, 200]))
        key = chance.choice([None, None, "k"])
        headers = {"account": "A"} if chance.random() < 0.2 else None
        operation = self._oracle.invoked(Stream(self.name, topic, 0), body, self._certain[topic])

        def publish() -> Receipt:
            if key is None and headers is None:
                return engine.accumulator.accept_one(topic, body)
            size = len(body) + MESSAGE_OVERHEAD
            return engine.accumulator.accept(Content(topic, [body], key, headers, size))

        blocked = _Blocked(operation, publish)
        done = self._try_to_publish(blocked, waits=self._block_timeout > 0)
        if done is None:
            self._blocked = blocked
            self.executor.after(self._block_timeout, self._stop_waiting, blocked)
        return done is True

    def _try_to_publish(self, blocked: _Blocked, waits: bool) -> bool | None:
        """Whether a message is accepted; None if there is no room for it and the application waits."""
        operation = blocked.operation
        try:
            receipt = blocked.publish()
        except FatalError:
            operation.fail()
            return False
        except ReliamsgError as error:
            if waits and isinstance(error, OutboxFull):
                return None
            operation.fail()
            self.note(f"can't publish: {type(error).__name__}")
            return False
        self.left -= 1
        self._waiting.append((operation, receipt))
        self._check_room()
        return True

    def _room_available(self) -> None:
        """There may be room for the waiting message."""
        if self._blocked is not None:
            self._blocked.notified += 1
            self.executor.after(self.executor.uniform(0.0, THREAD_S), self._try_again, self._blocked)

    def _try_again(self, blocked: _Blocked) -> None:
        blocked.notified -= 1
        if self._blocked is blocked and self._try_to_publish(blocked, waits=True) is not None:
            self._publish_after(0.0)

    def _stop_waiting(self, blocked: _Blocked) -> None:
        """The application's wait has timed out."""
        if self._blocked is not blocked:
            return
        if self._try_to_publish(blocked, waits=False):
            if not blocked.notified:
                self._oracle.violate("stalled", f"{self.name} waited for room, and was not notified of it")
            self._publish_after(0.0)
        else:
            self._publish_after(RETRY_S)

    def _publish_after(self, seconds: float) -> None:
        self._blocked = None
        self.executor.after(seconds, self._publish)

    def _check_room(self) -> None:
        """Unpublished messages need room, which is limited."""
        limit = self.settings["max_bytes"]
        # It is not known here how much room compressed messages need.
        if limit < JUDGED_BYTES and self.settings["compression"] is None:
            held = (*self._waiting, *self._unconfirmed)
            if sum(len(operation.body) for operation, _ in held) <= limit:
                return  # however much of it is done
            left = (operation for operation, receipt in held if not (receipt.done or operation.removed))
            taken = sum(len(operation.body) for operation in left)
            if taken > limit:
                self._oracle.unbounded(self.name, taken, limit)

    # -- taking messages back, and naming groups --------------------------------------------------------------

    def _take_some_back(self, engine: ProducerEngine) -> None:
        """Take back a few of the latest messages."""
        if not self._durable:
            return
        at = self._removing.randrange(len(self._durable))
        first = self._durable[at][1].id
        assert first is not None  # it is durable
        taken = [receipt.id for _, receipt in self._durable[at : at + 3] if _follows(receipt, first)]
        last = taken[-1]
        assert last is not None
        self.note(f"takes back {first} to {last.seq}")
        now = self.renumbering()
        removed = self._oracle.taken_back(first, last.seq, lambda stream, epoch: now.epoch(stream, epoch, 0))
        held: list[int] = []
        if self._order(lambda: held.append(engine.remove(first, last))) and held == [0]:
            for operation in removed:  # the outbox had released all of them, so nothing has changed
                operation.removed = False

    def _change_groups(self, engine: ProducerEngine) -> None:
        """Name a group, or stop naming it."""
        chance, scenario = self._naming, self._scenario
        topic = chance.choice(scenario.read_topics)
        groups = [group for group in scenario.groups if topic in scenario.topics_of(group)]
        if not groups:
            return
        group = chance.choice(groups)
        if group in self.named[topic]:
            self.note(f"no longer names {group} for {topic}")
            self.named[topic].remove(group)
            self._certain[topic] -= {group}
            self._oracle.group_no_longer_named(self.name, topic, group)
            self._order(lambda: engine.remove_group(topic, group))
            return
        self.note(f"names {group} for {topic}")
        if self._order(lambda: engine.add_group(topic, group)):
            self.named[topic].append(group)
            self._certain[topic] |= {group}
            self._oracle.group_named(self.name, topic, group)

    def _order(self, call: Callable[[], object]) -> bool:
        """Have the writer do something between two of its steps. Returns whether it did."""
        try:
            call()
        except ConfigError:
            return False
        except FatalError as error:
            self._fail(error)
            return False
        except ReliamsgError:
            return False
        self.wake()
        return True

    # -- receipts -------------------------------------------------------------------------------------------

    def after_call(self) -> None:
        """See :class:`Process`: check receipts."""
        while self._waiting:
            operation, receipt = self._waiting[0]
            try:
                receipt.wait(0.0, until="durable")
            except ConfirmTimeout:
                break
            except ReliamsgError as error:
                del self._waiting[0]
                self._not_stored(operation, error)
                continue
            del self._waiting[0]
            message = receipt.id
            assert message is not None  # it is durable
            self._oracle.durable(operation, message)
            self._unconfirmed.append((operation, receipt))
            self._durable.append((operation, receipt))
            del self._durable[:-LATEST]
        self._check_confirms()

    def _not_stored(self, operation: Operation, error: ReliamsgError) -> None:
        if isinstance(error, FatalError):
            operation.become_indeterminate()
        else:
            operation.fail()
            self.left += 1
        if self._rests and self.left:
            self._rests = False
            self.executor.after(RETRY_S, self._publish)

    def _check_confirms(self) -> None:
        """Check the oldest receipts, and now and then all of them: others may be confirmed earlier."""
        self._checks += 1
        waiting = self._unconfirmed
        if waiting and self._checks % CHECK_ALL == 0:
            waiting.sort(key=lambda each: not each[1].done)
        done = 0
        while done < len(waiting) and waiting[done][1].done:
            operation, receipt = waiting[done]
            if receipt.id is not None:
                operation.identify(receipt.id)
            self._oracle.published(operation)
            done += 1
        del waiting[:done]


def _follows(receipt: Receipt, first: MessageId) -> bool:
    """Whether a message is of the same stream and epoch, and not before."""
    message = receipt.id
    return message is not None and message._replace(seq=first.seq) == first and message.seq >= first.seq
