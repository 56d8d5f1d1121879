"""What can be taken in now, and where sound messages go that can't: into the quarantine, or back to their producers."""

from __future__ import annotations

from reliamsg.consumer.durability import Durability, Quarantining
from reliamsg.consumer.health import Health
from reliamsg.consumer.intake import UNREADABLE
from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.consumer.quarantine import FAR_EPOCH, HELD, Quarantine
from reliamsg.errors import QuarantineFull, TooManyStreams
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.store.inbox import Inbox
from reliamsg.store.journal import Entry
from reliamsg.store.quarantine import LATER_VERSION, QuarantinedDelivery, Selection
from reliamsg.wire.data import Frame

__all__ = ["Admission"]

log: Log = Log("reliamsg.consumer")

MAX_REPAIR_BYTES = 32 * 1024 * 1024
"""Repairs in memory that are neither settled nor in the inbox; any more are dropped, and asked for again."""
_WAY_OUT = "See `reliamsg inbox quarantine list`, then replay or discard"
_WAYS_OUT = {
    HELD: "See `reliamsg inbox gaps`, then accept what holds the stream",
    LATER_VERSION: "Install a later version of reliamsg",
    UNREADABLE: "Install reliamsg[zstd], or a later version of reliamsg",
}


class _HeldStreamsRoom:
    """What streams that gaps hold may use of the inbox, so that the others go on however long that lasts: together
    with those that were held and have not caught up, as many bytes as they leave free."""

    def __init__(self, core: GroupReceiver, inbox: Inbox, quarantine: Quarantine, limit: int) -> None:
        """`limit`: the part of the inbox's room that any message may use, in bytes."""
        self._core = core
        self._inbox = inbox
        self._quarantine = quarantine
        self._limit = limit
        self._left = 0
        """Bytes that may still be taken in."""
        self._looked = (-1, -1)

    def look(self) -> bool:
        """Count the bytes in the inbox; returns whether there are such streams."""
        streams = self._core.context.held.keys() | self._quarantine.held.keys()
        looked = (self._inbox.held_bytes, len(streams)) if streams else (-1, -1)
        if looked != self._looked:
            self._looked = looked
            held = sum(self._inbox.held_bytes_of(stream) for stream in streams)
            self._left = self._limit - self._inbox.held_bytes - held
        return bool(streams)

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may be taken in; then they count."""
        if 2 * size > self._left:
            return False
        self._left -= 2 * size  # they are held, and no longer free
        return True


class Admission:
    """Decides about sound messages before the core sees them. Under the consumer's lock."""

    def __init__(
        self,
        core: GroupReceiver,
        inbox: Inbox,
        quarantine: Quarantine,
        durability: Durability,
        journal: ConsumerJournal,
        health: Health,
        limit: int,
    ) -> None:
        """`limit`: the part of the inbox's room that any message may use, in bytes."""
        self._core = core
        self._path = inbox.path
        self._quarantine = quarantine
        self._durability = durability
        self._journal = journal
        self._health = health
        self._held_room = _HeldStreamsRoom(core, inbox, quarantine, limit)
        self.counts_held: bool = False
        """The last :meth:`look` found streams that gaps hold, or had held."""
        self._refusing = False
        """A lack of room for streams was reported."""

    def look(self) -> None:
        """Count the bytes in the inbox, while gaps hold streams: after each commit, before anything else is taken
        in."""
        self.counts_held = self._held_room.look()

    # -- is there room? -----------------------------------------------------------------------------------

    def has_room_behind_hold(self, stream: Stream, frame: Frame) -> bool:
        """Whether a frame of a stream that a gap holds can be taken in. What fills the gap always can. Of what lies
        behind it nothing more is taken in once the quarantine or the producer keeps anything, so that it comes in
        order."""
        envelope = frame.envelope
        if not self._core.is_behind_hold(
            stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.last
        ):
            return True
        state = self._core.streams[stream]
        if (
            self._quarantine.holds(stream, HELD)
            or state.epochs.has_let_go
            or not state.epochs.has_room(envelope.epoch)
        ):
            return False
        return self._held_room.take(len(frame.data))

    def has_room_after_hold(self, stream: Stream, frame: Frame) -> bool:
        """Whether a frame that waited behind a gap can be taken in now: either it follows what can be delivered, or
        something before it is missing again and there is room for it."""
        state, envelope = self._core.streams.get(stream), frame.envelope
        if state is None:
            return True
        if state.is_held:
            return self.has_room_behind_hold(stream, frame)
        known = state.epochs.live.get(envelope.epoch)
        if known is None or not state.epochs.is_held_up(known, envelope.seq):
            return True
        return self._held_room.take(len(frame.data))

    def has_room_for_repair(self, frame: Frame, now: float) -> bool:
        """Whether a repair can be taken in. No broker keeps it meanwhile, so it would stay in memory."""
        envelope = frame.envelope
        if envelope.stream in self._core.context.held and not self.has_room_behind_hold(
            envelope.stream, frame
        ):
            return False
        if self._core.waiting.repair_bytes >= MAX_REPAIR_BYTES:
            return False
        if not self._durability.inbox_full:
            return True
        state = self._core.streams.get(envelope.stream)
        if state is None or state.epochs.current is None:
            return envelope.seq == 1
        known = state.epochs.current
        # Whatever follows what can be delivered can be delivered, too.
        run = known.held.run_from(known.cursor)
        head = known.cursor if run is None else run + 1
        return known.epoch == envelope.epoch and (
            envelope.seq <= head or state.is_first_of_gap(known, head, envelope.seq, now)
        )

    def report_no_room(self) -> None:
        """There is no room for another stream: say so, once."""
        if not self._refusing:
            self._refusing = True
            self._health.report(
                TooManyStreams(
                    f"there is no room for another stream ({len(self._core.streams):,} are in use, of which gaps hold"
                    f" {len(self._core.context.held):,}, and {self._core.known_elsewhere:,} more are known):"
                    " messages of others wait in the quarantine"
                )
            )

    def has_room_again(self) -> None:
        """No stream waits for room any more."""
        self._refusing = False

    # -- what can't be taken in ---------------------------------------------------------------------------

    def put_in_quarantine(
        self, reason: str, site: str, stream: Stream, frame: Frame, token: object, wall_us: int
    ) -> bool:
        """Keep a sound delivery that can't be taken in now; its broker may forget it after the commit. False where the
        quarantine has no room left for this reason and site: then nothing was done."""
        delivery = self._quarantine.admit(reason, site, stream, frame, wall_us)
        if delivery is None:
            return False
        self._durability.pending.quarantined.append(Quarantining(delivery, site, token))
        self._journal_kept("quarantined", site, stream, frame, reason)
        return True

    def put_unopened_in_quarantine(
        self, reason: str, site: str, topic: tuple[str, int], data: bytes, token: object, wall_us: int
    ) -> bool:
        """The same for a delivery whose messages are unknown."""
        delivery = self._quarantine.admit_unopened(reason, site, topic, data, wall_us)
        if delivery is not None:
            self._durability.pending.quarantined.append(Quarantining(delivery, site, token))
        return delivery is not None

    def leave_to_producer(self, site: str, stream: Stream, frame: Frame, token: object, now: float) -> bool:
        """Where the quarantine is short of room, leave a delivery that lies behind the gap that holds its stream to
        its producer, if that keeps it for the group. Its broker may forget it after the commit that says that it
        exists."""
        if not self._quarantine.is_short:
            return False
        envelope, state = frame.envelope, self._core.streams[stream]
        known = state.epochs.has_let_go
        if not self._core.let_go(
            stream, envelope.epoch, envelope.incarnation, envelope.previous, envelope.seq, envelope.last, now
        ):
            return False
        if not known:
            log.info(
                "consumer.stream_left_to_producer",
                "stream %(stream)s is held: its producer keeps what arrives, to be asked for later",
                stream=str(stream),
            )
        self._durability.pending.tokens.append((site, token))
        self._journal_kept("let_go", site, stream, frame, "")
        return True

    def journal_identified(self, kept: QuarantinedDelivery) -> None:
        """Journal a delivery in quarantine whose messages were unknown until now."""
        self._journal.add(
            Entry(
                "quarantined", kept.stream, kept.epoch, kept.incarnation, kept.first, kept.last, kept.site,
                self._journal.group, kept.reason,
            )
        )  # fmt: skip

    def _journal_kept(self, kind: str, site: str, stream: Stream, frame: Frame, reason: str) -> None:
        envelope = frame.envelope
        self._journal.add(
            Entry(
                kind, stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.last, site,
                self._journal.group, reason,
            )
        )  # fmt: skip

    def admit_believed(self, wall_us: int) -> None:
        """Have deliveries taken in whose epoch was too far ahead and is not any more: somebody vouched for it, or the
        clock was set."""
        if not self._core.far:
            return
        self._core.horizon.look(wall_us)
        for stream, limit in self._core.believed():
            if self._quarantine.holds(stream, FAR_EPOCH):
                self._quarantine.replay(Selection(reason=FAR_EPOCH, stream=stream, up_to_epoch=limit))
                if self._quarantine.is_admitting(stream, FAR_EPOCH):
                    self._core.look_for_far(
                        stream, limit
                    )  # a delivery that is not stored yet can't be marked: try again
            else:
                self._core.look_for_far(stream, None)

    def quarantine_comes_first(self, stream: Stream) -> bool:
        """Whether the group must begin with what the quarantine holds of a stream: with anything else, it might begin
        behind that."""
        state = self._core.streams.get(stream)
        return (state is None or state.epochs.current is None) and self._quarantine.waits(stream)

    def fail_for_want_of_room(self, reason: str, stream: Stream) -> None:
        """The quarantine has no room for a delivery. Nothing may be dropped, so the consumer ends."""
        self._health.fail(
            QuarantineFull(
                f"{self._path}: a message of stream {stream} can't be taken in ({reason}), and the quarantine is"
                f" full: {self._quarantine.total:,} of {self._quarantine.limit:,} bytes are in use, and one reason at"
                f" one site gets half. {_WAYS_OUT.get(reason, _WAY_OUT)}, or raise max_quarantine_bytes"
            )
        )
