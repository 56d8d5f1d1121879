"""A simulated process that publishes: the real sending logic and outbox, and a small application."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reliamsg.errors import ConfigError, ConfirmTimeout, FatalError, OutboxFull, ProducerFenced, ReliamsgError
from reliamsg.message import MessageId, Stream
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.wakeup import Waiters
from reliamsg.sending.engine import Engine
from reliamsg.sending.intake import MESSAGE_OVERHEAD
from reliamsg.sending.receipt import Receipt
from reliamsg.sending.settings import Settings, make_settings
from reliamsg.simulation.disk import Drive
from reliamsg.simulation.oracle import Operation
from reliamsg.simulation.process import THREAD_S, Process
from reliamsg.simulation.settings import ClientSettings
from reliamsg.store.journal import read_journal
from reliamsg.store.outbox import Outbox
from reliamsg.verify.renumbered import Renumbering

if TYPE_CHECKING:
    from reliamsg.simulation.world import World

__all__ = ["ProducerProcess"]

LATER_S = 0.2
"""A publish that was refused for lack of room is tried again."""
LOOK_AT_ALL = 50
JUDGED_BYTES = 64 * 1024
"""No run publishes more; a limit above needs no look."""
LATEST = 10
"""So many messages may be taken back."""
BURSTS = (1, 1, 1, 2, 6, 20)
"""So many messages at a time."""


class Room(Waiters):
    """Where the application's thread waits for room. There are no threads here: it is told when to look again."""

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[], object]) -> None:
        super().__init__()
        self._told = told

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        return condition()

    def notify_all(self) -> None:
        self._told()


@dataclass(eq=False)
class _Blocked:
    """A message that the application waits with, in ``publish``."""

    operation: Operation
    publish: Callable[[], Receipt]
    looks: int = 0
    """So often it was told that there may be room, and did not look yet."""


@dataclass(frozen=True)
class _Journalled:
    """What an outbox's journal has."""

    stored: set[MessageId] = field(default_factory=set)
    """What was ever stored, by all names that it had."""
    removed: set[MessageId] = field(default_factory=set)
    rows: set[tuple[int, int, int]] = field(default_factory=set)
    """Incarnation of the opening, epoch, number."""


class ProducerProcess(Process):
    """Publishes `messages` to the topics, over about the scenario's time for that."""

    restored_by = "restored"

    def __init__(
        self, world: World, name: str, drive: Drive, settings: ClientSettings, messages: int
    ) -> None:
        super().__init__(world, name, drive)
        self.settings = settings
        self.engine: Engine | None = None
        self._outbox: Outbox | None = None
        self.left = messages
        self._every = world.scenario.publish_s / max(1, messages)
        seed = world.scenario.seed
        self._application = random.Random(f"{seed}/application/{name}")
        self._removing = random.Random(f"{seed}/application/{name}/remove")
        self._naming = random.Random(f"{seed}/application/{name}/add_group")
        self._published = 0
        self.named = world.scenario.named_by(name)
        """By topic, the groups that the application names."""
        self._counted = {topic: frozenset(groups) for topic, groups in self.named.items()}
        """Those that are sure to count."""
        self._durable: list[tuple[Operation, Receipt]] = []
        """The latest that are durable."""
        self._rests = False
        """There was nothing left to publish."""
        self._waiting: list[tuple[Operation, Receipt]] = []
        """Not known to be durable."""
        self._unconfirmed: list[tuple[Operation, Receipt]] = []
        self._looks = 0
        self._had = _Journalled()
        """What had been stored, and removed, when it ended."""
        self._blocked: _Blocked | None = None
        self._patience: float = settings["block_timeout"] if settings["when_full"] == "block" else 0.0

    def open(self, life: int | None = None) -> None:
        """See :class:`Process`."""
        if self.alive or (life is not None and life != self.life):
            return
        self.life += 1
        self.alive = True
        self.drive.format()
        self.note("opens its outbox")
        self.set_clock(may_forget=False)
        self.call(self._open)
        if self.engine is not None and self.alive:
            self.after(0.0, self._publish)
            self.back_up_later()

    def _open(self) -> None:
        try:
            self._outbox = Outbox(
                self.drive.path, self.name, self.wall_us(), int(self.scheduler.now * 1e6),
                self.identities.randbytes(8).hex(), self.drive.connect, self.identities.randbytes,
            )  # fmt: skip
            self.engine = Engine(
                self._outbox, self.settings.sites, self.named, self._checked_settings(), self.transports,
                Environment(
                    lambda: self.scheduler.now, self.wall_us, self.wake, self.probe, give_way=_nobody_waits,
                    room=Room(self._room),
                ),
            )  # fmt: skip
        except ReliamsgError as error:
            self._cannot_go_on(error)
            return
        for link in self.engine.links.values():
            link.transport.start()
        self.wake()

    def _checked_settings(self) -> Settings:
        s = self.settings
        return make_settings(
            s["confirm"], s["release"], s["wire"], s["compression"], s["max_bytes"], s["retain_seconds"],
            s["retain_bytes"], s["max_batch_messages"], s["max_batch_bytes"], s["hello_timeout"], s["status_interval"],
            s["max_repair_bytes_per_second"], self.world.keys, s.sites,
        )  # fmt: skip

    def _cannot_go_on(self, error: ReliamsgError) -> None:
        self.give_up(error, None if isinstance(error, ProducerFenced) else 1.0)

    def abandon(self) -> None:
        """See :class:`Process`."""
        if self._outbox is not None:
            self._outbox.close()
        self.engine = self._outbox = None

    def returned(self) -> None:
        """See :class:`Process`. Where the crash left no time for an identity, brokers will show it."""
        for operation, receipt in self._waiting:
            if receipt.durable:
                operation.outcome, operation.durable_at = "ok", self.scheduler.now
        self._waiting = [each for each in self._waiting if not each[1].durable]

    def ended(self) -> None:
        """See :class:`Process`."""
        for operation, _ in self._waiting:
            operation.outcome = "indeterminate"
        self._waiting.clear()
        self._unconfirmed.clear()
        self._durable.clear()
        self._had = self._journalled() if self.may_lose_its_file else _Journalled()
        if self._blocked is not None:
            self._blocked.operation.outcome, self._blocked = "failed", None
        super().ended()

    def file_replaced(self, since: float) -> None:
        """See :class:`Process`."""
        had, has = self._had, self._journalled()
        went, rows = had.stored - has.stored, had.rows - has.rows
        self.world.oracle.disk_replaced(self.name, since, went, had.removed - has.removed)
        self.world.unjournalled |= {(self.name, "opening", opening) for opening, *_ in rows}
        epochs = {epoch for _, epoch, _ in rows} | {message.epoch for message in went}
        self.world.unjournalled |= {(self.name, "epoch", epoch) for epoch in epochs}
        self.world.restored = True

    def renumbering(self) -> Renumbering:
        """What its journal says of epochs that moved."""
        with self.drive.reading() as connection:
            return Renumbering(read_journal(connection))

    def _journalled(self) -> _Journalled:
        with self.drive.reading() as connection:
            rows = list(read_journal(connection))
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

    def step(self) -> float | None:
        """See :class:`Process`."""
        engine = self.engine
        if engine is None:
            return None
        deadline = engine.step()
        if engine.fatal is not None:
            self._cannot_go_on(engine.fatal)
            return None
        return deadline

    # -- the application ------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if self.engine is None or not self.left:
            self._rests = True
            return
        self._rests = False
        chance = self._application
        count = min(self.left, chance.choice(BURSTS))
        for _ in range(count):
            if not self._publish_one():
                if self._blocked is None:
                    self.after(LATER_S, self._publish)
                return
            if self.engine is not None and self._removing.random() < self.settings["remove"]:
                self._remove_some(self.engine)
            if self.engine is not None and self._naming.random() < self.settings["add_group"]:
                self._change_groups(self.engine)
            if self.engine is None:
                return
        self.after(chance.expovariate(1.0) * self._every * count, self._publish)

    def _publish_one(self) -> bool:
        engine, chance = self.engine, self._application
        assert engine is not None  # it publishes only while it is open
        topic = chance.choice(self.world.scenario.read_topics)
        self._published += 1
        body = f"{self.name}/{topic}/{self._published}/".encode() + bytes(chance.choice([0, 10, 200]))
        key = chance.choice([None, None, "k"])
        headers = {"account": "A"} if chance.random() < 0.2 else None
        operation = self.world.oracle.invoked(Stream(self.name, topic, 0), body)
        operation.groups = operation.named = self._counted[topic]

        def publish() -> Receipt:
            if key is None and headers is None:
                return engine.intake.accept_one(topic, body, 0.0)
            return engine.intake.accept(topic, [body], key, headers, len(body) + MESSAGE_OVERHEAD, 0.0)

        blocked = _Blocked(operation, publish)
        done = self._try_to_publish(blocked, waits=self._patience > 0)
        if done is None:
            self._blocked = blocked
            self.after(self._patience, self._waited, blocked)
        return done is True

    def _try_to_publish(self, blocked: _Blocked, waits: bool) -> bool | None:
        """Whether it is accepted; None while it can't be, and it is worth waiting."""
        operation = blocked.operation
        try:
            receipt = blocked.publish()
        except FatalError:
            operation.outcome = "failed"
            return False
        except ReliamsgError as error:
            if waits and isinstance(error, OutboxFull):
                return None
            operation.outcome = "failed"
            self.note(f"can't publish: {type(error).__name__}")
            return False
        self.left -= 1
        self._waiting.append((operation, receipt))
        self._check_room()
        return True

    def _room(self) -> None:
        """There may be room for what is waited with."""
        if self._blocked is not None:
            self._blocked.looks += 1
            self.after(self.uniform(0.0, THREAD_S), self._look_for_room, self._blocked)

    def _look_for_room(self, blocked: _Blocked) -> None:
        blocked.looks -= 1
        if self._blocked is blocked and self._try_to_publish(blocked, waits=True) is not None:
            self._go_on_publishing(0.0)

    def _waited(self, blocked: _Blocked) -> None:
        """It has waited as long as it was to."""
        if self._blocked is not blocked:
            return
        if self._try_to_publish(blocked, waits=False):
            if not blocked.looks:
                self.world.oracle.violate("stalled", f"{self.name} waited for room, and was not told of it")
            self._go_on_publishing(0.0)
        else:
            self._go_on_publishing(LATER_S)

    def _go_on_publishing(self, after: float) -> None:
        self._blocked = None
        self.after(after, self._publish)

    def _remove_some(self, engine: Engine) -> None:
        """Take a few of the latest messages back."""
        if not self._durable:
            return
        at = self._removing.randrange(len(self._durable))
        first = self._durable[at][1].id
        assert first is not None  # it is durable
        taken = [
            (operation, receipt)
            for operation, receipt in self._durable[at : at + 3]
            if _follows(receipt, first)
        ]
        last = taken[-1][1].id
        assert last is not None
        self.note(f"removes {first} to {last.seq}")
        # What arrived anyway may still be delivered; nothing is promised about it from now on. What no broker has seen
        # since it was given another epoch is known by its first name.
        numbers, now = range(first.seq, last.seq + 1), self.renumbering()
        for operation in self.world.oracle.operations.values():
            message = operation.message
            if message is None or message.seq not in numbers:
                continue
            epoch = now.epoch(operation.stream, message.epoch, 0)
            if first in (message._replace(seq=first.seq), message._replace(seq=first.seq, epoch=epoch)):
                operation.removed = True
        self._order(lambda: engine.remove(first, last))

    def _change_groups(self, engine: Engine) -> None:
        """Name a group, or no longer name it."""
        chance, scenario = self._naming, self.world.scenario
        topic = chance.choice(scenario.read_topics)
        groups = [group for group in scenario.groups if topic in scenario.topics_of(group)]
        if not groups:
            return
        group = chance.choice(groups)
        if group in self.named[topic]:
            self.note(f"no longer names {group} for {topic}")
            self.named[topic].remove(group)
            self._counted[topic] -= {group}
            self.world.oracle.leaving.no_longer(self.name, topic, group)
            stream = Stream(self.name, topic, 0)
            for operation in self.world.oracle.operations.values():
                if operation.stream == stream and operation.groups is not None:
                    operation.groups -= {group}
            self._order(lambda: engine.membership.remove_group(topic, group))
            return
        self.note(f"names {group} for {topic}")
        if self._order(lambda: engine.membership.add_group(topic, group)):
            self.named[topic].append(group)
            self._counted[topic] |= {group}
            self.world.oracle.leaving.naming(self.name, topic, group, self.scheduler.now)

    def _order(self, call: Callable[[], object]) -> bool:
        """Have the writer do something, between two of its steps; whether it did."""
        try:
            call()
        except ConfigError:
            return False
        except FatalError as error:
            self._cannot_go_on(error)
            return False
        except ReliamsgError:
            return False
        self.wake()
        return True

    def _check_room(self) -> None:
        """What is not published takes room, of which there is only so much."""
        limit = self.settings["max_bytes"]
        # Of what is compressed it is not known here how much room it takes.
        if limit < JUDGED_BYTES and self.settings["compression"] is None:
            held = (*self._waiting, *self._unconfirmed)
            if sum(len(operation.body) for operation, _ in held) <= limit:
                return  # however much of it is done
            left = (operation for operation, receipt in held if not (receipt.done or operation.removed))
            taken = sum(len(operation.body) for operation in left)
            if taken > limit:
                self.world.oracle.unbounded(self.name, taken, limit)

    def looked_at(self) -> None:
        """See :class:`Process`: look after receipts."""
        while self._waiting:
            operation, receipt = self._waiting[0]
            group = receipt._group
            if not group.done:
                break
            del self._waiting[0]
            if group.error is not None:
                operation.outcome = "failed" if not isinstance(group.error, FatalError) else "indeterminate"
                self.left += operation.outcome == "failed"
                if self._rests and self.left:
                    self._rests = False
                    self.after(LATER_S, self._publish)
                continue
            message = receipt.id
            assert message is not None  # it is durable
            self.world.oracle.durable(operation, message)
            self._unconfirmed.append((operation, receipt))
            self._durable.append((operation, receipt))
            del self._durable[:-LATEST]
        self._check_confirms()

    def _check_confirms(self) -> None:
        """Look at the oldest receipts, and now and then at all: the others may be confirmed before it."""
        self._looks += 1
        waiting = self._unconfirmed
        if waiting and self._looks % LOOK_AT_ALL == 0:
            waiting.sort(key=lambda each: not each[1].done)
        done = 0
        while done < len(waiting) and waiting[done][1].done:
            operation, receipt = waiting[done]
            if receipt.id is not None:
                operation.identify(receipt.id)
            self.world.oracle.published(operation)
            done += 1
        del waiting[:done]

    # -- the end --------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all was published and confirmed; then nobody waits who waits for that."""
        if not self.alive or self.engine is None or self.left or self.engine.pending():
            return False
        try:
            self.engine.outcomes.flush(0.0)
        except ConfirmTimeout:
            return False
        return True

    @property
    def pending(self) -> int:
        """How many messages are not confirmed, as far as is known."""
        return 0 if self.engine is None else self.engine.pending()

    def close(self) -> None:
        """End cleanly."""
        engine = self.engine
        if engine is None:
            self.end()
            return
        engine.begin_close()
        for link in engine.links.values():
            link.transport.close(1.0)
        engine.finish()
        self.looked_at()
        self.engine = self._outbox = None
        self.end()
        self.ended()


def _follows(receipt: Receipt, first: MessageId) -> bool:
    """Whether a message is of the same stream and epoch, and not before."""
    message = receipt.id
    return message is not None and message._replace(seq=first.seq) == first and message.seq >= first.seq


def _nobody_waits() -> None:
    """There are no threads to give way to."""
