"""What the parts of a consumer share: lanes, the ready queue, what waits for the next commit, and one lock.

Nothing here sleeps or starts threads. Everything is guarded by :attr:`Shared.lock`, unless it says otherwise.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from reliamsg.core.consumer import ConsumerCore
from reliamsg.core.stream import StreamReceiver
from reliamsg.errors import QuarantineFull
from reliamsg.message import Stream
from reliamsg.receiving.absent import Absent
from reliamsg.receiving.agenda import Agenda
from reliamsg.receiving.durability import Durability, Quarantining
from reliamsg.receiving.health import Health
from reliamsg.receiving.hold_room import HoldRoom
from reliamsg.receiving.journalling import ConsumerJournal
from reliamsg.receiving.lane import Chunk, Lane, LaneOwner
from reliamsg.receiving.lease import Lease
from reliamsg.receiving.quarantine import FAR_EPOCH, HELD, Quarantine
from reliamsg.receiving.role import GroupRole
from reliamsg.receiving.samples import Samples
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.wakeup import Waiters
from reliamsg.store.inbox import Inbox
from reliamsg.store.journal import Entry
from reliamsg.store.quarantine import Selection
from reliamsg.wire.data import Frame

__all__ = ["Shared"]

log = logging.getLogger("reliamsg.receiving")

T = TypeVar("T")

MAX_REPAIR_BYTES = 32 * 1024 * 1024
"""Repairs in memory that are neither settled nor in the inbox; any more are not taken, and asked for again."""
_WAY_OUT = "See `reliamsg inbox quarantine list`, then replay or discard"
_WAYS_OUT = {HELD: "See `reliamsg inbox gaps`, then accept what holds the stream"}


class Shared:
    """The state of a consumer that its parts work on."""

    hold_room: HoldRoom
    """What streams that gaps hold may use of the inbox. Set by the engine, which knows how much there is."""

    def __init__(
        self,
        core: ConsumerCore,
        inbox: Inbox,
        group: str,
        owner: LaneOwner,
        environment: Environment,
        lease: Lease,
        max_quarantine_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.lock = threading.RLock()
        self.changed = Waiters()
        """Notified when something may be handed out, was committed, or failed."""
        self.calls = environment.calls
        self.core = core
        self.inbox, self.group = inbox, group
        self.owner = owner
        self.clock, self.wall_us = environment.clock, environment.wall_us
        self.health = Health(self.lock, self.changed)
        self.agenda = Agenda(self.lock, environment.calls, environment.wake)
        self.durability = Durability(inbox, self.lock, self.changed, self.health, self.agenda)
        self.role = GroupRole(lease, environment.clock)
        self.samples = Samples(frozenset(), {})
        """What samples of unusable deliveries may be kept. Set by the engine, when it is known what is read."""
        self.quarantine = Quarantine(inbox.quarantine, max_quarantine_bytes)
        self.absent = Absent()
        self.lanes: dict[Stream, Lane] = {}
        self.ready: deque[Lane] = deque()
        self.acked: deque[Lane] = deque()
        """Lanes with acknowledgements that the core does not know of; appended to without the lock."""
        self.chunks: dict[int, Chunk] = {}
        """Chunks that are with the application."""
        self.journal_buffer = ConsumerJournal(group)
        self.pages: dict[Stream, Lane] = {}
        """Lanes whose next frame must be read from the inbox."""
        self.cached_bytes = 0
        """Frames in memory that are in the inbox as well."""
        self.refusing = False
        """There was no room for a stream, and that was reported."""

    def uninterrupted(self, function: Callable[[], T]) -> T:
        """Call a function where no signal handler can run: for all that an application calls, and that takes the lock.
        For a handler may call the same, and would wait for a lock that it interrupted the holder of."""
        return function() if self.calls is None else self.calls.call(function)

    def lane(self, stream: Stream) -> Lane:
        """The lane of a stream that the core knows."""
        found = self.lanes.get(stream)
        if found is None:
            found = self.lanes[stream] = Lane(self.core.streams[stream], self.owner)
        return found

    def is_absent(self, stream: Stream) -> bool:
        """Whether the inbox may know a stream that is not in memory: it must be loaded before anything is done."""
        core = self.core
        if stream in core.streams or self.absent.taking:
            return False
        return core.known_elsewhere > 0 or self.inbox.tombstone_count > 0

    def unqueue_idle(self) -> None:
        """Take lanes of streams that are about to leave memory out of the queue: they have nothing to hand out."""
        idle = {stream for stream, state in self.core.retiring.items() if self.core.is_idle(state)}
        kept = [lane for lane in self.ready if lane.state.stream not in idle]
        for lane in self.ready:
            lane.queued = lane.state.stream not in idle
        self.ready.clear()
        self.ready.extend(kept)

    def forget(self, state: StreamReceiver) -> bool:
        """Take a retired stream out of memory, if nothing of it is with the application."""
        stream = state.stream
        lane = self.lanes.get(stream)
        if lane is not None and (lane.busy or lane.queued or lane.acks_queued or id(lane) in self.chunks):
            return False
        if not self.core.forget(state, self.inbox.knows(stream)):
            return False
        self.lanes.pop(stream, None)
        self.pages.pop(stream, None)
        self.journal_buffer.forget(stream)
        return True

    def note(self, kind: str, **fields: Any) -> None:
        """Journal something that is about no stream."""
        self.journal_buffer.note(kind, **fields)

    def put_in_quarantine(
        self, reason: str, site: str, stream: Stream, frame: Frame, token: object = None
    ) -> bool:
        """Keep a sound delivery that can't be taken in now. Its broker, if a `token` is given, may forget it when that
        is committed. False where the quarantine has no room left for this reason and site: then nothing was done."""
        delivery = self.quarantine.admit(reason, site, stream, frame, self.wall_us())
        if delivery is None:
            return False
        self.durability.pending.quarantined.append(Quarantining(delivery, site, token))
        envelope = frame.envelope
        self.journal_buffer.add(
            Entry(
                "quarantined", stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.last, site,
                self.group, reason,
            )
        )  # fmt: skip
        return True

    def let_go(self, site: str, stream: Stream, frame: Frame, token: object, now: float) -> bool:
        """Leave a delivery that lies behind the gap that holds its stream to its producer, if that keeps it for the
        group, and the quarantine had better be spared. Its broker may forget it when it is committed that it exists."""
        if not self.quarantine.is_short:
            return False
        envelope, state = frame.envelope, self.core.streams[stream]
        known = state.epochs.has_let_go
        if not self.core.let_go(
            stream, envelope.epoch, envelope.incarnation, envelope.previous, envelope.seq, envelope.last, now
        ):
            return False
        if not known:
            log.info("stream %s is held: its producer keeps what arrives, to be asked for later", stream)
        self.durability.pending.tokens.append((site, token))
        self.journal_buffer.add(
            Entry(
                "let_go",
                stream,
                envelope.epoch,
                envelope.incarnation,
                envelope.seq,
                envelope.last,
                site,
                self.group,
            )
        )
        return True

    def admit_believed(self) -> None:
        """Have taken in what was too far ahead, and is not any more: somebody vouched for it, or the clock was set."""
        if not self.core.far:
            return
        self.core.horizon.look(self.wall_us())
        for stream, limit in self.core.believed():
            if self.quarantine.holds(stream, FAR_EPOCH):
                self.quarantine.replay(Selection(reason=FAR_EPOCH, stream=stream, up_to_epoch=limit))
                if self.quarantine.is_admitting(stream, FAR_EPOCH):
                    self.core.far[stream] = limit  # what is not stored yet can't be marked: look again
            else:
                del self.core.far[stream]

    def quarantine_comes_first(self, stream: Stream) -> bool:
        """Whether the group may begin with a stream only by what is in quarantine of it: anything else might have it
        begin behind that."""
        state = self.core.streams.get(stream)
        return (state is None or state.epochs.current is None) and self.quarantine.waits(stream)

    def quarantine_is_full(self, reason: str, stream: Stream) -> None:
        """A delivery finds no room there. Nothing may be dropped, so that is the end of reading."""
        self.health.fail(
            QuarantineFull(
                f"{self.inbox.path}: a message of stream {stream} can't be taken in ({reason}), and the quarantine is"
                f" full: {self.quarantine.total:,} of {self.quarantine.limit:,} bytes are in use, and one reason at one"
                f" site gets half. {_WAYS_OUT.get(reason, _WAY_OUT)}, or raise max_quarantine_bytes"
            )
        )

    def move_notes(self) -> None:
        """Take what the core wants journalled over, in order."""
        core = self.core
        if core.effects.notes:
            for note in core.effects.notes:
                self.journal_buffer.add_note(note)
            core.effects.notes.clear()

    def report_chunk(self, chunk: Chunk) -> None:
        """Journal what a chunk has given out so far."""
        done = chunk.report()
        if done is None:
            return
        first, last, total = done
        offer = chunk.offer
        self.journal_buffer.add(
            Entry(
                "redelivered" if offer.redelivered else "delivered", chunk.lane.state.stream, offer.epoch,
                offer.incarnation, first, last, "", self.group, "unjournalled" if offer.unjournalled else "", total,
                latency=None if chunk.hop is None else {chunk.hop: last - first + 1},
            )
        )  # fmt: skip

    def report_chunks(self) -> None:
        """Journal what all chunks have given out so far, and then what the core has to add."""
        for chunk in self.chunks.values():
            self.report_chunk(chunk)
        self.move_notes()

    def queue(self, lane: Lane) -> None:
        """The lane may have something to hand out."""
        if not lane.queued and not lane.busy:
            lane.queued = True
            self.ready.append(lane)

    def after_core(self) -> None:
        """Follow up what calls of the core have led to."""
        touched = self.core.effects.touched
        if touched:
            for stream in touched:
                self.queue(self.lane(stream))
            touched.clear()
            if self.ready:
                self.changed.notify_all()

    def drain_acks(self, now: float) -> None:
        """Tell the core what the application acknowledged, in ranges."""
        lanes = self.acked
        while lanes:
            lane = lanes.popleft()
            lane.acks_queued = False
            acks = lane.acks
            epoch = first = last = -1
            count = len(acks)  # the application may append more meanwhile: then the lane is queued again
            for at, low, high in acks[:count]:
                if at == epoch and low == last + 1:
                    last = high
                    continue
                if last >= first and epoch >= 0:
                    self._settle(lane, epoch, first, last, now)
                epoch, first, last = at, low, high
            del acks[:count]
            if epoch >= 0:
                self._settle(lane, epoch, first, last, now)

    def _settle(self, lane: Lane, epoch: int, first: int, last: int, now: float) -> None:
        state = lane.state
        self.core.acknowledge(state.stream, epoch, first, last, now)
        self.prune(lane, epoch)

    def prune(self, lane: Lane, epoch: int) -> None:
        """Forget frames of an epoch that are settled."""
        known = lane.state.epochs.live.get(epoch)
        self.cached_bytes -= lane.prune(epoch, known.position if known is not None else 2**63)

    def settled_elsewhere(self, stream: Stream) -> None:
        """Another inbox has settled what was held here: forget it, also what of it is about to be given out."""
        lane = self.lanes.get(stream)
        if lane is None:
            return
        for epoch in lane.epochs:
            self.prune(lane, epoch)
        chunk = self.chunks.get(id(lane))
        if chunk is not None:
            known = lane.state.epochs.live.get(chunk.offer.epoch)
            if known is None or chunk.progress[0] < known.position:
                chunk.abandoned = True

    @property
    def may_hand_out(self) -> bool:
        """Whether asking for something to hand out is worth while, under the lock."""
        if self.durability.blocked or self.role.membership.barred:
            return False
        return bool(self.ready) and self.role.holds

    def has_room_behind_hold(self, stream: Stream, frame: Frame) -> bool:
        """Whether a frame of a stream that a gap holds can be taken in. The gap itself always can; of what lies behind
        it nothing more once anything is in quarantine or was left to its producer, so that all there is comes in
        order."""
        envelope = frame.envelope
        if not self.core.is_behind_hold(
            stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.last
        ):
            return True
        state = self.core.streams[stream]
        if (
            self.quarantine.holds(stream, HELD)
            or state.epochs.has_let_go
            or not state.epochs.has_room(envelope.epoch)
        ):
            return False
        return self.hold_room.take(len(frame.data))

    def has_room_to_go_on(self, stream: Stream, frame: Frame) -> bool:
        """Whether a frame that waited behind a gap can be taken in now: it follows on what can be handed out, or there
        is room although something before it is missing once more."""
        state, envelope = self.core.streams.get(stream), frame.envelope
        if state is None:
            return True
        if state.is_held:
            return self.has_room_behind_hold(stream, frame)
        known = state.epochs.live.get(envelope.epoch)
        if known is None or not state.epochs.is_held_up(known, envelope.seq):
            return True
        return self.hold_room.take(len(frame.data))

    def room_for_repair(self, frame: Frame, now: float) -> bool:
        """Whether a repair can be taken in. No broker keeps it meanwhile, so it would stay in memory."""
        envelope = frame.envelope
        if envelope.stream in self.core.effects.holding and not self.has_room_behind_hold(
            envelope.stream, frame
        ):
            return False
        if self.core.waiting.repair_bytes >= MAX_REPAIR_BYTES:
            return False
        if not self.durability.inbox_full:
            return True
        state = self.core.streams.get(envelope.stream)
        if state is None or state.epochs.current is None:
            return envelope.seq == 1
        known = state.epochs.current
        # Whatever follows on what can be handed out can be handed out, too.
        run = known.held.run_from(known.cursor)
        head = known.cursor if run is None else run + 1
        return known.epoch == envelope.epoch and (
            envelope.seq <= head or state.is_first_of_gap(known, head, envelope.seq, now)
        )

    def look_again(self) -> None:
        """Any stream may have something to hand out."""
        for stream in self.core.streams:
            self.core.effects.touch(stream)
        self.after_core()
        self.changed.notify_all()
