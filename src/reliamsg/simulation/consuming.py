"""A simulated process that consumes: the real receiving logic and inbox, and a small application."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from reliamsg.core.consumer import Rules
from reliamsg.core.redelivery import COUNTED_TOGETHER
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
from reliamsg.receiving.aside import LateItem, ReplayItem
from reliamsg.receiving.engine import EngineSettings, GapItem, ReceivingEngine
from reliamsg.receiving.forgetting import Forgetting
from reliamsg.receiving.lane import Chunk, fail
from reliamsg.receiving.quarantine import HELD
from reliamsg.receiving.status import ConsumerStatus, status_of
from reliamsg.simulation.disk import Drive
from reliamsg.simulation.passages import Before
from reliamsg.simulation.process import Process
from reliamsg.simulation.settings import ClientSettings
from reliamsg.simulation.stopwatch import Stopwatch
from reliamsg.simulation.words import Words
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_view import read_dead_letters
from reliamsg.store.journal import read_journal
from reliamsg.store.quarantine import Selection
from reliamsg.wire.control import State, Status, open_control
from reliamsg.wire.data import FrameError

if TYPE_CHECKING:
    from reliamsg.simulation.world import World

__all__ = ["ConsumerProcess"]

CHUNK_MESSAGES = 64
ROOMY = 64 * 1024 * 1024
"""Bytes of a quarantine that no run fills."""
OPERATOR_S = 0.1
"""An operator looks at a held stream after so long at least, and again."""
SLOW_S = (0.05, 1.0)
"""Some take so long."""
HALTED_S = 1.0
"""Somebody looks after so long at what halted a client."""


class ConsumerProcess(Process):
    """Consumes for a group; as a standby when nobody else does."""

    restored_by = "restored_inbox"

    def __init__(self, world: World, name: str, drive: Drive, settings: ClientSettings, group: str) -> None:
        super().__init__(world, name, drive)
        self.group = group
        self.engine: ReceivingEngine | None = None
        self._inbox: Inbox | None = None
        self.settings = settings
        self._standby: bool = settings["standby"]
        self._halts: bool = settings["on_dead_letter"] == "halt"
        self.held_bytes: int = settings["held_bytes"]
        self._quarantine_bytes: int = settings["max_quarantine_bytes"]
        self._handling_s: float = settings["handling_s"]
        """A handler takes up to so long."""
        self._application = random.Random(f"{world.scenario.seed}/application/{name}")
        self._operator = random.Random(f"{world.scenario.seed}/operator/{name}")
        self._chunk: Chunk | None = None
        self._busy = False
        """The application handles something, or is about to."""
        self._unacked: list[Message] = []
        """Handled, to be acknowledged some time."""
        self._acked: list[MessageId] = []
        """Acknowledged, not known to be durable."""
        self._accepted: list[Gap] = []
        """The same of gaps."""
        self._waits: tuple[int, list[MessageId]] | None = None
        self._told_lsn = 0
        """Up to where its journal was read."""
        self._growing: dict[tuple[str, Stream], int] = {}
        """By kind and stream, the row before the newest that tells of what is acknowledged, or was let go of: that one
        grows as others follow on."""
        self._reads_since: float | None = None
        """When it read a site first since it was opened, as far as its journal was read; None: it did not."""
        self._overheard: list[tuple[float, str, bytes]] = []
        """Control frames that came: when, where and what."""
        self._watch = world.oracle.watches[name] = Stopwatch(world.scheduler.now)
        world.oracle.quarantines[name] = self._is_quarantined
        world.oracle.leaving.looks[name] = self._tell_let_go
        self._words = Words(world.oracle, group, name, world.keys, settings["takeover_timeout"])

    def _is_quarantined(self, stream: Stream, epoch: int, seq: int) -> bool:
        """Whether a message is in the inbox's quarantine, as that is on disk."""
        if self._inbox is None:
            return False
        found = self._inbox.quarantine.select(Selection(stream=stream))
        return any(one.epoch == epoch and one.first <= seq <= one.last for one in found)

    def _tell_let_go(self) -> None:
        """Tell the judge what the journal says by now of what was left to producers."""
        if self._inbox is None:
            return
        with self.drive.reading() as connection:
            for row in read_journal(connection):
                if row.kind == "let_go":
                    stream = Stream(row.producer, row.topic, row.partition)
                    self.world.oracle.left(self.group, self.name, stream, row.epoch, row.first, row.last)

    def open(self, life: int | None = None) -> None:
        """See :class:`Process`."""
        if self.alive or (life is not None and life != self.life):
            return
        self.life += 1
        self.alive = True
        self.drive.format()
        self.note("opens its inbox")
        self.set_clock(may_forget=True)
        self.call(self._open)
        if self.engine is not None and self.alive:
            self.back_up_later()

    def _open(self) -> None:
        world = self.world
        try:
            self._inbox = Inbox(self.drive.path, self.group, self.drive.connect, self.identities.randbytes)
            self.engine = ReceivingEngine(
                self._engine_settings(), self._rules(), self.settings.sites, self._inbox, self.transports,
                probe=self.probe, clock=lambda: self.scheduler.now, wall_us=self.wall_us,
            )  # fmt: skip
        except ReliamsgError as error:
            self._cannot_go_on(error)
            return
        world.oracle.inboxes[self.group].add(self._inbox.id)
        if self._standby:
            world.oracle.standbys.add(self.name)
        self.engine.shared.wake = self.wake
        self.engine.start()
        self.wake()

    def _engine_settings(self) -> EngineSettings:
        s = self.settings
        return EngineSettings(
            self.group, self.world.scenario.topics_of(self.group), max_inbox_bytes=s["max_inbox_bytes"],
            takeover_timeout=s["takeover_timeout"], on_gap=s["on_gap"], standby=self._standby, keys=self.world.keys,
            max_quarantine_bytes=self._quarantine_bytes,
        )  # fmt: skip

    def _rules(self) -> Rules:
        s = self.settings
        return Rules(
            max_unacknowledged=s["max_unacknowledged"], max_deliveries=s["max_deliveries"],
            gap_timeout=s["gap_timeout"], max_streams=s["max_streams"],
            max_known_streams=s["max_known_streams"], skip_gaps=s["on_gap"] == "skip",
            hold_gaps=s["on_gap"] == "hold", begin=s["begin"], halt=self._halts, signed=self.world.keys is not None,
            nak_delay=s["nak_delay"], repair_timeout=s["repair_timeout"], seed=self.identities.getrandbits(32),
        )  # fmt: skip

    def _cannot_go_on(self, error: ReliamsgError) -> None:
        if isinstance(error, DeadLetterHalt):  # what failed is mended, and the client opened again
            self.note(f"halts: {error}")
            self.world.expected(self, error)
            self.close()
            self.scheduler.after(HALTED_S, self.open, self.life)
        elif isinstance(error, QuarantineFull) and f"({HELD})" in str(
            error
        ):  # an operator gives it more room
            self._quarantine_bytes = ROOMY
            self.give_up(error, self._operators_pause())
        elif isinstance(error, QuarantineFull):  # which only an operator can help
            self.give_up(error, None)
        else:
            self.give_up(error, 5.0 if isinstance(error, GroupBusy) else 1.0)

    def abandon(self) -> None:
        """See :class:`Process`."""
        if self._inbox is not None:
            self._inbox.close()
        self.engine = self._inbox = None

    def ended(self) -> None:
        """See :class:`Process`."""
        self.world.oracle.consumer_ended(self.group, self.name, crashed=not self.faults.over)
        self.world.oracle.doubt(self.group, self._acked + (self._waits[1] if self._waits is not None else []))
        self._chunk, self._busy, self._waits = None, False, None
        self._unacked.clear()
        self._acked.clear()
        self._watch.look(self.scheduler.now, False)
        self._words.ended()
        if self.may_lose_its_file or self._accepted:
            self.tell_journalled()  # as long as the journal is there
        for gap in self._accepted:  # that is durable with the next commit, and the process ended before
            self.world.oracle.not_accepted(self.group, self.name, gap)
        self._accepted.clear()
        super().ended()

    def file_replaced(self, since: float) -> None:
        """See :class:`Process`."""
        self._told_lsn = 0
        self._growing.clear()
        self._words.inbox_replaced()
        self.world.oracle.inbox_replaced(self.group, self.name, since)
        self.world.succeeded.add(self.group)
        if self.world.keys is not None:
            self.world.unheard.add(self.group)

    def returned(self) -> None:
        """See :class:`Process`."""
        if self.engine is not None:
            self._ask_durable(self.engine)

    def step(self) -> float | None:
        """See :class:`Process`."""
        engine = self.engine
        if engine is None:
            return None
        deadline = engine.step(self.scheduler.now)
        if engine.shared.may_write and self.faults.bites("streams_forgotten"):
            self._forget(engine)
        errors = engine.take_errors()
        self.world.told(self, errors)
        for error in errors:
            if isinstance(error, GapHeld):
                self.note(f"is told: {error}; the stream is held")
                self.after(self._operators_pause(), lambda stream=error.gap.stream: self._held(stream))
            elif isinstance(error, GapError):
                self.note(f"is told: {error}")
                self.world.oracle.missed(self.group, self.name, error.gap)
        fatal = engine.shared.fatal
        if fatal is not None:
            self._cannot_go_on(fatal)
            return None
        return deadline

    def _forget(self, engine: ReceivingEngine) -> None:
        """An operator has some streams forgotten, or tries to."""
        chance = self.faults.random("streams_forgotten")
        streams = sorted(self.world.oracle.streams)
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

    # -- the application ------------------------------------------------------------------------------------

    def overhear(self, address: str, body: bytes) -> None:
        """See :class:`Process`: what a standby hears of how far the one that reads is, the judge knows as well."""
        self._overheard.append((self.scheduler.now, address, body))
        if not self.world.scenario.standbys or self._inbox is None or body in self.world.made_up:
            return
        try:
            frame = open_control(body, address, self.world.keys)
        except FrameError:
            return
        if not isinstance(frame, State) or frame.group != self.group:
            return
        if frame.inbox == self._inbox.id:
            self._words.came_back(frame.number)
        else:
            if frame.role == "active":
                self._words.another_reads(self.scheduler.now)
            if self._words.reads:
                return  # only one that waits goes by it
            for told in frame.streams:
                stream = Stream(frame.producer, told.topic, told.partition)
                high_water = told.entered[0], told.high_water
                self.world.oracle.told_of(self.name, stream, told.position, high_water)

    def telling(self, address: str, body: bytes) -> None:
        """See :class:`Process`."""
        self._words.tells(address, body, self.scheduler.now)

    def looked_at(self) -> None:
        """See :class:`Process`: ask for messages when there are any, and for what is durable."""
        engine = self.engine
        runs = self.alive and not self.paused and self.transports.connected
        self._watch.look(self.scheduler.now, runs)
        if engine is None:
            return
        if self._waits is not None:
            self._ask_durable(engine)
        if not self._busy and (engine.shared.may_hand_out or self._chunk is not None):
            self._busy = True
            self.after(self.uniform(0.0, self._handling_s), self._handle)

    def _ask_durable(self, engine: ReceivingEngine) -> None:
        if self._waits is None:
            return
        number, messages = self._waits
        try:
            if not engine.is_durable(number):
                return
        except InboxWriteError:
            self._waits = None
            return
        except ReliamsgError:
            return
        self.world.oracle.settled_durably(self.group, self.name, messages)
        self._waits = None

    def _handle(self) -> None:
        """Take something, and handle it."""
        engine, self._busy = self.engine, False
        if engine is None:
            return
        if self._chunk is None:
            try:
                most = self.settings["batch"]
                item = engine.take(most or 1, most or CHUNK_MESSAGES)
            except ReliamsgError:
                return  # what is fatal is seen by the next step
            if isinstance(item, GapItem):
                self._gap(engine, item)
            elif isinstance(item, LateItem):
                engine.aside.late_seen(item.number)
            elif isinstance(item, ReplayItem):
                item.message.ack()
            self._chunk = item if isinstance(item, Chunk) else None
        if self._chunk is not None:
            self._handle_some(engine, self._chunk)

    def _handle_some(self, engine: ReceivingEngine, chunk: Chunk) -> None:
        chance, shared = self._application, engine.shared
        most = self.settings["batch"]
        if most is not None:
            self._handle_batch(engine, chunk, most)
            return
        for _ in range(chance.choice([1, 4, 16])):
            message = chunk.next() if shared.fatal is None and shared.holds else None
            if message is None:
                engine.release(chunk)
                self._chunk = None
                break
            self._handle_one(engine, message)
            if self.faults.bites("crash_inside"):
                self.faults.strikes("crash_inside")
                self.crash("in a handler")
                return
        if self._chunk is not None:
            self._busy = True
            slow = chance.random() < 0.05
            self.after(
                chance.uniform(*SLOW_S) if slow else chance.uniform(0.0, self._handling_s), self._handle
            )

    def _handle_batch(self, engine: ReceivingEngine, chunk: Chunk, most: int) -> None:
        """Handle a run of messages at once: all of it is acknowledged, or comes again."""
        shared, oracle, now = engine.shared, self.world.oracle, self.scheduler.now
        run = chunk.take(most) if shared.fatal is None and shared.holds else None
        for message in run or ():
            self._words.handed_out(message, now)
            oracle.delivered(self.group, self.name, message)
            if self.world.history.keeps:
                self.note(f"is given {message.id}" + (" again" if message.redelivered else ""))
        if run and self.faults.bites("crash_inside"):
            self.faults.strikes("crash_inside")
            self.crash("in a handler")
            return
        if run and self.faults.bites("handler_failed"):
            self.faults.strikes("handler_failed")
            for message in run:
                fail(message, RuntimeError("as simulated"))
                oracle.failed(self.group, self.name, message.id, self._tries)
        elif run:
            chunk.lane.acknowledge_run(run[0], run[-1])
            for message in run:
                self._acknowledged(engine, message)
        engine.release(chunk)
        self._chunk = None

    def _handle_one(self, engine: ReceivingEngine, message: Message) -> None:
        oracle, chance = self.world.oracle, self._application
        self._words.handed_out(message, self.scheduler.now)
        oracle.delivered(self.group, self.name, message)
        if self.world.history.keeps:
            self.note(f"is given {message.id}" + (" again" if message.redelivered else ""))
        if self.faults.bites("handler_failed"):
            self.faults.strikes("handler_failed")
            fail(message, RuntimeError("as simulated"))
            oracle.failed(self.group, self.name, message.id, self._tries)
            return
        if self.faults.bites("rejected"):
            self.faults.strikes("rejected")
            message.reject("as simulated")
            oracle.buried(self.group, self.name, message.id)
            self._acked.append(message.id)
            return
        if chance.random() < 0.05:
            self._unacked.append(message)
            self.after(chance.uniform(*SLOW_S), self._acknowledge_later)
        else:
            self._acknowledge(engine, message)

    def _acknowledge(self, engine: ReceivingEngine, message: Message) -> None:
        message.ack()
        self._acknowledged(engine, message)

    def _acknowledged(self, engine: ReceivingEngine, message: Message) -> None:
        identity = message.id
        self.world.oracle.acknowledged(self.group, self.name, identity)
        self._acked.append(identity)
        if self._waits is None and self._application.random() < 0.3:
            self._waits = engine.want_durable(), self._acked
            self._acked = []

    def _acknowledge_later(self) -> None:
        if self._unacked and self.engine is not None:
            at = self._application.randrange(len(self._unacked))
            self._acknowledge(self.engine, self._unacked.pop(at))

    def _gap(self, engine: ReceivingEngine, item: GapItem) -> None:
        """Decide on a gap."""
        if self.settings["on_gap"] == "wait" and not self._in_vain(item.gap):
            return
        self._accept(engine, item.gap)

    def _accept(self, engine: ReceivingEngine, gap: Gap) -> None:
        self.note(f"accepts: {gap}")
        if engine.accept(gap):
            self.world.oracle.gap(self.group, self.name, gap)
            self._accepted.append(gap)

    def _held(self, stream: Stream) -> None:
        """An operator looks at a stream that was reported as held, now and then until it is not any more."""
        engine = self.engine
        state = None if engine is None else engine.shared.core.streams.get(stream)
        if engine is None or state is None or state.gaps.held_since is None:
            return
        gap = state.gaps.held_by
        retained = self.world.scenario.producers[stream.producer]["release"] == "consumed"
        if gap is not None and (not retained or self._in_vain(gap)):
            self._accept(engine, gap)
            self.wake()
        self.after(self._operators_pause(), lambda: self._held(stream))

    def _operators_pause(self) -> float:
        return self._operator.uniform(OPERATOR_S, self.settings["operator_s"])

    def _in_vain(self, gap: Gap) -> bool:
        """Whether waiting helps no more: the producer took it back or does not hold it for this group, a disk took what
        is missing with it, or nobody listens to this inbox."""
        if gap.reason == "removed" or self.group in self.world.unheard:
            return True
        state = None if self.engine is None else self.engine.shared.core.streams.get(gap.stream)
        later = None if state is None or gap.last is not None else state.next_epoch()
        until = None if later is None else later.epoch  # what has arrived is not missing
        oracle = self.world.oracle
        return oracle.is_gone(gap, until) or not oracle.is_owed(self.group, gap, until)

    def status(self) -> ConsumerStatus | None:
        """What the client says of itself; None where there is none."""
        return None if self.engine is None else status_of(self.engine)

    @property
    def unheard(self) -> set[str]:
        """Producers of what it reads that run and were not heard since it began to read, or is about to: not while
        another inbox of its group reads."""
        engine, world = self.engine, self.world
        others = (each.engine for each in world.consumers if each.group == self.group and each is not self)
        waits = any(other is not None and not other.shared.barred for other in others)
        if engine is None or (engine.shared.barred and waits):
            return set()
        topics = world.scenario.topics_of(self.group)
        read = {stream.producer for stream in world.oracle.streams if stream.topic in topics}
        return {each.name for each in world.producers if each.engine is not None} & read - set(
            engine.control.producers
        )

    # -- the end --------------------------------------------------------------------------------------------

    def tell_journalled(self) -> None:
        """Tell the judge what applications are not told: what came before the group joined, what was skipped or
        came in an epoch that was over, and what had become durable of what its consumers did before they ended."""
        skips, holds = (self.settings["on_gap"] == policy for policy in ("skip", "hold"))
        with self.drive.reading() as connection:
            rows = list(read_journal(connection, min([self._told_lsn, *self._growing.values()])))
        known, passages = self._told_lsn, self.world.oracle.passages[self.group]
        for row in rows:
            self._told_lsn = max(row.lsn, known)
            stream = Stream(row.producer, row.topic, row.partition)
            if row.kind == "acknowledged":
                self._growing[row.kind, stream] = row.lsn - 1
                self.world.oracle.no_doubt(self.group, stream, row.epoch, row.first, row.last)
            elif row.kind == "let_go":
                self._growing[row.kind, stream] = row.lsn - 1
                self.world.oracle.left(self.group, self.name, stream, row.epoch, row.first, row.last)
                self.world.reached["let_go"] += row.lsn > known
            elif row.lsn <= known:
                continue
            elif row.kind == "quarantined":
                self.world.reached["quarantined"] += row.reason == "held"
            elif row.kind == "opened":
                self._reads_since = None
            elif row.kind == "connected" and self._reads_since is None:
                self._reads_since = row.mono_us / 1e6
            elif row.kind == "joined":
                self.world.oracle.begins(self.group, self.name, stream, row.epoch, row.first)
            elif row.kind == "before_join":
                at, span = row.mono_us / 1e6, (row.epoch, row.first, row.last)
                passages.joined(Before(stream, *span, at, self.name, blind=not self._has_heard(stream, at)))
                self.world.oracle.joined(self.group, stream, *span, at)
            elif row.kind == "dead_lettered":
                self.world.oracle.no_doubt(self.group, stream, row.epoch, row.first, row.last)
                for seq in range(row.first, row.last + 1):
                    self.world.oracle.spent(
                        self.group, stream, row.epoch, seq, self._tries, self._counted_together
                    )
            elif row.kind == "declared":
                gap = Gap(stream, row.epoch, row.first, row.last or None, row.reason)
                until = (row.detail or {}).get("until_epoch")
                if until is not None:
                    passages.ends_before(stream, row.epoch, row.first, self.name, until)
                if skips or row.reason == "superseded" or (holds and row.reason == "removed"):
                    self.world.oracle.skipped(self.group, self.name, gap, row.mono_us / 1e6, until)
                begins = gap.stream, gap.epoch, gap.first
                self._accepted = [g for g in self._accepted if (g.stream, g.epoch, g.first) != begins]

    @property
    def _tries(self) -> float:
        """After so many attempts a message goes to the dead letters."""
        return float("inf") if self._halts else self.settings["max_deliveries"]

    @property
    def _counted_together(self) -> int:
        """Of how many messages an attempt is counted at a time."""
        unit = self.settings["batch"] or 1
        return int(unit if self.settings["max_deliveries"] <= 2 else max(unit, COUNTED_TOGETHER))

    def tell_letters(self) -> None:
        """Tell the judge which dead letters there are."""
        for letter in read_dead_letters(self.drive.path):
            message = MessageId(
                letter.stream.producer, letter.epoch, letter.stream.topic, letter.stream.partition, letter.seq
            )
            self.world.oracle.letters[self.group].add(message)

    def _has_heard(self, stream: Stream, at: float) -> bool:
        """Whether a producer's word about a stream had come by then, since the process began to read: who does not read
        listens to no producer."""
        for time, address, body in self._overheard:
            if self._reads_since is None or not self._reads_since <= time <= at:
                continue
            try:
                frame = open_control(body, address, self.world.keys)
            except FrameError:
                continue
            if isinstance(frame, Status) and any(
                Stream(frame.producer, told.topic, told.partition) == stream for told in frame.streams
            ):
                return True
        return False

    def close(self) -> None:
        """End cleanly, as :class:`~reliamsg.receiving.runner.Runner` does it."""
        engine = self.engine
        if engine is None:
            self.end()
            return
        if self._chunk is not None:
            engine.release(self._chunk)
        now = self.scheduler.now
        engine.flush(now)
        engine.say_goodbye(now)
        engine.succession.close_given_up()
        for site in engine.sites.values():
            site.closing = True
            for link in site.links.all:
                link.close(1.0)
            site.state = "closed"
        engine.flush(now, closing=True)
        engine.shared.end()
        self.abandon()
        self.end()
        self.ended()
