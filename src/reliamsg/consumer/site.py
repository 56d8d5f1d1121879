"""One site as the consumer sees it: its connections, its deliveries, and their counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from reliamsg.config import Site
from reliamsg.consumer.buffer import BufferedBatch
from reliamsg.consumer.intake import (
    UNREADABLE,
    Forms,
    LaterVersion,
    Rejected,
    Unsequenced,
    examine,
    examine_repair,
)
from reliamsg.consumer.latest_statuses import LatestStatuses
from reliamsg.consumer.quarantine import FAR_EPOCH, HELD, TOO_MANY_STREAMS
from reliamsg.consumer.shared import Shared
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.protocol.ranges import Span
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.stream import Arrival
from reliamsg.protocol.receiver.unacked import QUARANTINE
from reliamsg.protocol.returned_frames import ReturnedFrames
from reliamsg.store.inbox_rows import HeldFrame
from reliamsg.store.quarantine import LATER_VERSION, QuarantinedDelivery, Selection
from reliamsg.transport.base import Delivery, ReceiverTransport, SenderTransport, is_refusal
from reliamsg.wire.address import topic_address
from reliamsg.wire.data import CONTENT_TYPE, Frame, FrameError, Origin, Records, encode, open_frame
from reliamsg.wire.limits import MAX_FRAME_BYTES

__all__ = ["SILENT_S", "Accepted", "SilentQueues", "SiteReceiver", "SiteState"]

log: Log = Log("reliamsg.consumer")

SiteState = Literal["connecting", "connected", "listening", "unreachable", "refused", "busy", "closed"]

Connection = ReceiverTransport | SenderTransport

SILENT_S = 60.0
"""A queue is suspected when only repairs of its topic have arrived through the same site for this long."""

Topic = tuple[str, int]
"""With its partition."""

GATHER_S = 0.01
"""Arrivals that are not urgent are processed within this time."""

ASKED_WITHIN_S = 3.0
"""A broker that reports an empty queue was asked at most this long ago."""

MAX_LATE_BYTES = 64 * 1024 * 1024
"""Late messages that wait in the inbox until the application has seen them; any more are only counted."""

TRY_AGAIN_S = 30.0
"""How long messages from the quarantine that could not be taken in, despite room for their stream, are put off."""
NO_ROOM_S = 0.05
"""The same for messages behind a gap that find no room: there may be some as soon as the application continues."""
ANSWER_TRIES = 4
"""After this many requests, which take 7 s, a producer is not expected to answer soon."""
LOOK_AGAIN_S = 1.0
"""How often it is checked whether it has answered."""
LOG_EVERY_S = 1.0
"""Minimal time between two log lines on rejected deliveries of one kind."""
_UNUSABLE = "unusable deliveries set aside"
_STATUS_REFUSED = "statuses of streams not taken in, to be asked for again"
_UNREADABLE = "batches kept in quarantine until reliamsg[zstd], or a later version, is installed to read them"
_LATER_VERSION = "batches kept in quarantine until a later version is installed to read them"
_NOT_KEPT = "late batches not kept, since there are too many"


class Connections:
    """A site's connections, and the receivers of their events. Under the consumer's lock, unless stated otherwise."""

    def __init__(self) -> None:
        self.transport: ReceiverTransport | None = None
        """The connection that the site is read with; None while it is not read."""
        self.reading: object | None = None
        """Who takes its events: whatever else still calls belongs to a connection that was given up."""
        self.listener: SenderTransport | None = None
        """What listens, under a throw-away name."""
        self.listening: object | None = None
        """Who takes its events."""
        self.listens_aside: bool = False
        """What listens beside a connection that tries to read is connected."""
        self.given_up: list[Connection] = []
        """Transports to close."""

    @property
    def all(self) -> list[Connection]:
        """Every connection that there is."""
        return [each for each in (self.listener, self.transport) if each is not None]

    def read_with(self, transport: ReceiverTransport, events: object) -> None:
        """There is one to read with, which is not started yet."""
        self.transport, self.reading = transport, events

    def listen_with(self, listener: SenderTransport, events: object) -> None:
        """There is one that listens, which is not started yet."""
        self.listener, self.listening = listener, events

    def note_aside(self, connected: bool) -> None:
        """What listens beside a connection that tries to read was connected, or disconnected."""
        self.listens_aside = connected

    def stop_listening(self) -> None:
        """Give up what listens."""
        if self.listener is not None:
            self.given_up.append(self.listener)
        self.listening = self.listener = None
        self.listens_aside = False

    def take_given_up(self) -> list[Connection]:
        """The transports that the caller has to close, without the lock: closing waits for events, which may wait for
        the lock."""
        taken, self.given_up = self.given_up, []
        return taken

    def give_up(self) -> None:
        """Give up all that there is."""
        self.given_up += self.all
        self.reading = self.listening = self.listener = self.transport = None
        self.listens_aside = False


class Deferred:
    """Those of one site, at most as many as its broker lets wait. Under the consumer's lock."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Delivery, Frame]] = []
        self._moves = 0
        self.retry_at: float = float("inf")
        """When to look at them again, whatever happens until then."""

    def put(self, delivery: Delivery, frame: Frame, retry_at: float = float("inf")) -> None:
        """It is looked at again when any stream has gone on, and at `retry_at`."""
        self.waiting.append((delivery, frame))
        self.retry_at = min(self.retry_at, retry_at)

    def take(self, moves: int, now: float) -> list[tuple[Delivery, Frame]]:
        """The deferred deliveries to examine again; put back those that still have to wait. `moves`: how often streams
        went on so far."""
        if moves == self._moves and now < self.retry_at:
            return []
        self._moves, self.retry_at = moves, float("inf")
        again, self.waiting = self.waiting, []
        return again

    def clear(self) -> None:
        """The connection is gone: the broker delivers them again."""
        self.waiting.clear()
        self.retry_at = float("inf")


class SilentQueues:
    """The topics of one site of which only repairs arrive. Not thread-safe."""

    def __init__(self) -> None:
        self.since: dict[Topic, float] = {}
        """When the first repair arrived after the queue's last delivery."""

    def delivered(self, topic: Topic) -> None:
        """A topic's queue delivered something."""
        self.since.pop(topic, None)

    def repaired(self, topic: Topic, now: float, seen_empty_at: float) -> bool:
        """Missing messages arrived as a repair. Returns whether the queue is suspected of not being bound, at most once
        in `SILENT_S`: it has delivered nothing for that time, although it was seen to be empty."""
        since = self.since.setdefault(topic, now)
        if now - since < SILENT_S or seen_empty_at < since:
            return False
        self.since[topic] = now
        return True


@dataclass(frozen=True)
class Accepted:
    """What a consumer accepts in addition to readable batches that are not late."""

    keep_late: bool
    """The application wants to see late messages."""
    unsequenced: bool
    """Messages without identity are delivered."""
    keys: KeyRing | None
    """If given, everything must be signed with one of these."""
    forms: Forms
    """The forms of batches that are readable."""


class SiteReceiver:
    """One site: takes the events of its connections (see :mod:`~reliamsg.consumer.connector`), all under the
    consumer's lock but :meth:`received` and :meth:`repaired`."""

    def __init__(
        self,
        shared: Shared,
        site: Site,
        statuses: LatestStatuses,
        topics: Mapping[str, Topic],
        accepted: Accepted,
    ) -> None:
        self.shared = shared
        self.site = site
        self.name: str = site.name
        self.connections: Connections = Connections()
        self.state: SiteState = "connecting"
        self.endpoint: str = ""
        self.error: str = ""
        """Why the site is not connected; empty while it is."""
        self.closing: bool = False
        """The connection is being ended from here."""
        self.received_messages: int = 0
        self.duplicate_messages: int = 0
        self.repaired_messages: int = 0
        """That came from a producer in answer to a request."""
        self.connected_at: float = 0.0
        self.greeted: bool = False
        """Producers were called for on this connection."""
        self.echoed_at: float | None = None
        """When an own heartbeat came back last on this connection."""
        self.echoes_since: float | None = None
        """The same of the first one."""
        # An own heartbeat came back; a control frame of whomever came in, so the site lets its users see them.
        self.ever_echoed: bool = False
        self.ever_heard: bool = False
        self.returned: ReturnedFrames = ReturnedFrames()
        """Under the lock."""
        self.drained_at: float = float("-inf")
        """When its queue was seen empty last."""
        self.lost_at: float | None = None
        """When the connection that it was read with was lost last."""
        self._read_before = shared.inbox.stream_count > 0
        """Whether the group had a queue or session here before: a new one of a new group proves no loss."""
        self.busy_since: float | None = None
        self.rejected: dict[str, int] = {}
        """Reason → deliveries."""
        self._statuses = statuses
        self._accepted = accepted
        self._examine = partial(
            examine, topics=topics, limit=MAX_FRAME_BYTES, ring=accepted.keys, forms=accepted.forms
        )
        self._examine_repair = partial(
            examine_repair, topics=topics, limit=MAX_FRAME_BYTES, ring=accepted.keys, forms=accepted.forms
        )
        self._has_lock = site.protocol != "mqtt"
        self._silent = SilentQueues()
        self.deferred: Deferred = Deferred()
        """Too far ahead of their streams, or of epochs that their producers were asked about, with no room in
        quarantine."""
        self._early: list[Delivery] = []
        """Arrived before it was known whether another inbox reads; at most as many as the broker lets wait."""
        self.any_rejected: bool = False
        """There is something for :meth:`report_rejected`."""
        self._unreported: dict[tuple[str, str], int] = {}
        """By what was done, and the reason."""
        self._unlogged: dict[tuple[str, str], int] = {}
        self._logged_at: dict[tuple[str, str], float] = {}

    # -- its connection -----------------------------------------------------------------------------------

    def connects(self) -> None:
        """It is about to be connected."""
        self.state = "connecting"
        self._statuses.mark(self.name)

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        """It is being read."""
        self._up("connected", endpoint)
        self.busy_since = None
        self.shared.core.waiting.connected(self.name)
        detail: dict[str, object] = {"session_present": session_present}
        if session_present is False and self._read_before:
            # What was confirmed here before this attempt began and has not arrived is lost.
            heard = self._statuses.journal(self.name)
            detail |= {"heard": heard} if heard else {}
        self._read_before = True
        self.shared.journal.note("connected", site=self.name, detail=detail)
        self._review()
        log.info(
            "consumer.site_connected", "site %(site)s: connected to %(endpoint)s",
            group=self.shared.group, site=self.name, endpoint=endpoint,
        )  # fmt: skip

    def listens(self, endpoint: str) -> None:
        """It is being listened to, and not read."""
        self._up("listening", endpoint)
        self._look()
        log.info(
            "consumer.site_listening", "site %(site)s: listening to %(endpoint)s",
            group=self.shared.group, site=self.name, endpoint=endpoint,
        )  # fmt: skip

    def listens_aside(self) -> None:
        """It is being listened to beside a connection that tries to read."""
        self.connections.note_aside(True)
        self.greeted = False
        self._look()

    def _review(self) -> None:
        """The site's state has changed, which may decide who reads."""
        self.shared.role.review()
        self.shared.agenda.due(0.0)

    def _look(self) -> None:
        """The same where no lock is concerned."""
        self.shared.role.look()
        self.shared.agenda.due(0.0)

    def greet(self, greeted: bool) -> None:
        """Producers were called for on this connection, or have to be once more."""
        self.greeted = greeted

    def _up(self, state: SiteState, endpoint: str) -> None:
        self.state, self.endpoint, self.error = state, endpoint, ""
        self.connected_at = self.shared.clock()
        self.greeted = False
        self.echoed_at = self.echoes_since = None

    def disconnected(self, reason: str) -> None:
        """Its connection is gone, of either kind."""
        was_read = self.state == "connected"
        self.state, self.error = "connecting", reason
        self._statuses.mark(self.name)
        self.busy_since = None
        self.echoed_at = self.echoes_since = None
        self.deferred.clear()
        self._early.clear()
        if was_read:
            self.lost_at = self.shared.clock()
            self.shared.core.waiting.disconnected(self.name)
            self.shared.absent.disconnected(self.name)
            self.shared.durability.pending.disconnected(self.name)
            self.shared.journal.note("disconnected", site=self.name, reason=reason)
            group, endpoint = self.shared.group, self.endpoint
            if self.closing:
                log.info(
                    "consumer.site_closed", "site %(site)s: disconnected: %(reason)s",
                    group=group, site=self.name, endpoint=endpoint, reason=reason,
                )  # fmt: skip
            else:
                log.warning(
                    "consumer.site_disconnected", "site %(site)s: disconnected: %(reason)s",
                    group=group, site=self.name, endpoint=endpoint, reason=reason,
                )  # fmt: skip
        self._review()

    def give_up(self, reason: str) -> None:
        """Have nothing to do with any connection any more; what there was is to be closed."""
        if self.connections.all:
            self.disconnected(reason)
            self.connections.give_up()

    def close(self, timeout: Callable[[], float]) -> None:
        """Close all connections, without the lock; `timeout` says how long each may take, in seconds."""
        self.closing = True
        for connection in self.connections.all:
            connection.close(timeout())
        self.state = "closed"

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed."""
        changed = reason != self.error
        self._statuses.mark(self.name)
        self.busy_since = None  # the holder of the lock may be gone as well
        self.state = "refused" if credentials or is_refusal(reason) else "unreachable"
        self.endpoint, self.error = endpoint, reason
        self.shared.role.review()
        if changed:
            log.warning(
                "consumer.site_unreachable", "site %(site)s: %(endpoint)s is %(state)s: %(reason)s",
                group=self.shared.group, site=self.name, endpoint=endpoint, state=self.state, reason=reason,
            )  # fmt: skip

    def busy(self, holder: str) -> None:
        """Another client holds the group's lock there."""
        self.state, self.error = "busy", holder
        self._statuses.mark(self.name)
        if self.busy_since is None:
            self.busy_since = self.shared.clock()
            log.warning(
                "consumer.site_busy", "site %(site)s: another consumer reads for this group: %(holder)s",
                group=self.shared.group, site=self.name, holder=holder,
            )  # fmt: skip
        self._review()

    def drained(self) -> None:
        """Its queue was seen empty.

        What a producer's journal, as far as it was announced before the broker was asked, says to be confirmed here has
        arrived by now, or was lost. Brokers are asked a moment before they answer.
        """
        now, heard = self.shared.clock(), None
        if self._statuses.news[self.name]:
            heard = self._statuses.journal(self.name, max(self.drained_at, now - ASKED_WITHIN_S))
        self.drained_at = now
        self._statuses.mark(self.name)  # it is asked again later
        detail = {"count": 1, "heard": heard} if heard else {"count": 1}
        self.shared.journal.note("drained", site=self.name, detail=detail)

    # -- the control plane --------------------------------------------------------------------------------

    def send_control(self, address: str, body: bytes) -> bool:
        """Send a control frame, if there is a connection; False where it was dropped at once."""
        connection = self._open
        return connection is not None and connection.send_control(address, body)

    @property
    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the site does not let this inbox send to or listen at, as far as it reports them."""
        connection = self._open
        return () if connection is None else connection.refused_addresses()

    @property
    def can_tell(self) -> bool:
        """Whether there is a connection to send control frames over."""
        return self._open is not None

    @property
    def _open(self) -> Connection | None:
        if self.connections.listens_aside or self.state == "listening":
            return self.connections.listener
        return self.connections.transport if self.state == "connected" else None

    def control_frame_came(self) -> None:
        """A control frame came in: this site lets its users see them."""
        self.ever_heard = True

    def echo(self, now: float) -> None:
        """An own heartbeat came back."""
        self.ever_echoed = True
        self.echoed_at = now
        if self.echoes_since is None:
            self.echoes_since = now

    def refuse_status(self, reason: str) -> None:
        """A status names a stream for which there is no room."""
        self._count(_STATUS_REFUSED, reason)

    def repaired(self, address: str, body: bytes) -> None:
        """A batch came at the group's own address. No broker keeps it: messages that are not taken in now are asked
        for again."""
        shared = self.shared
        what = self._examine_repair(body)
        with shared.lock:
            if shared.role.barred:
                return
            now, wall = shared.clock(), shared.wall_us()
            if isinstance(what, Rejected):
                if what.frame is not None:
                    self._undecodable(what.frame)
                self.set_aside(address, body, what.reason)
            elif shared.admission.has_room_for_repair(what, now):
                self._take_repair(address, what, now, wall)
            shared.events.handle()
            shared.agenda.due(now if shared.events.commit_urgent else now + GATHER_S)

    def _take_repair(self, address: str, frame: Frame, now: float, wall: int) -> None:
        shared, envelope = self.shared, frame.envelope
        stream = envelope.stream
        if shared.absent.may_know(stream):
            shared.absent.wait(
                stream,
                None,
                lambda room: self._take_repair(address, frame, shared.clock(), wall) if room else None,
            )
            return
        if shared.admission.quarantine_comes_first(stream):
            return
        arrival = self._place(_incoming(self.name, stream, frame, repair=True), frame, now, wall)
        for first, last in arrival.new:
            self.repaired_messages += last - first + 1
        if arrival.new:
            self._check_queue((stream.topic, stream.partition), now)
        if arrival.quarantine:
            self.set_aside(address, frame.data, "conflict")
        elif not arrival.late and not (arrival.new or arrival.refused or arrival.deferred or arrival.far):
            self.duplicate_messages += envelope.count

    def _check_queue(self, topic: Topic, now: float) -> None:
        """Messages that a producer resends through this site should have arrived in its queue."""
        transport = self.connections.transport
        if transport is not None and self._silent.repaired(topic, now, self.drained_at):
            log.info(
                "consumer.queue_bound_again",
                "site %(site)s: of %(topic)s only repairs arrive: its queue is bound again",
                group=self.shared.group, site=self.name, topic=topic[0], partition=topic[1],
            )  # fmt: skip
            transport.renew(*topic)

    # -- LockedSite ---------------------------------------------------------------------------------------

    def give_way(self) -> None:
        """See :class:`~reliamsg.consumer.role.LockedSite`."""
        if self.connections.transport is not None:
            self.connections.transport.reconnect("another consumer reads for this group")

    def admit(self) -> None:
        """See :class:`~reliamsg.consumer.role.LockedSite`."""
        early, self._early = self._early, []
        if early:
            self.received(early, self.connections.reading)
        self.shared.changed.notify_all()  # deliveries may go on as well

    # -- what arrives -------------------------------------------------------------------------------------

    def received(self, deliveries: Sequence[Delivery], reading: object) -> None:
        """See :class:`~reliamsg.transport.base.ReceiverEvents`. `reading`: the connection that received them."""
        shared, role = self.shared, self.shared.role
        # Examining bytes needs no lock, and takes longer than everything that does.
        found = list(map(self._examine, deliveries))
        release: list[object] = []
        with shared.lock:
            if reading is not self.connections.reading:
                return
            if role.barred or (self._has_lock and not role.decided):
                self._early += deliveries  # another inbox may be reading
                return
            now, wall = shared.clock(), shared.wall_us()
            for delivery, what in zip(deliveries, found, strict=True):
                if isinstance(what, Rejected):
                    self._reject(delivery, what)
                elif isinstance(what, LaterVersion):
                    self._keep_later_version(delivery, what, wall)
                elif isinstance(what, Unsequenced):
                    self._without_identity(delivery, what, now, wall)
                elif self._arrive(delivery, what, now, wall):
                    release.append(delivery.token)
            shared.events.handle()
            shared.agenda.due(now if shared.events.commit_urgent else now + GATHER_S)
            transport = self.connections.transport
        if release and transport is not None:
            transport.acknowledge(release)

    @property
    def pending(self) -> int:
        """How many deliveries the broker must keep for now."""
        waiting = self.shared.core.waiting.pending(self.name) + self.shared.absent.pending(self.name)
        return waiting + len(self.deferred.waiting)

    def retry_deferred(self, now: float) -> None:
        """Take in what was too far ahead of its stream, if any stream has gone on, and what waits for a producer's
        answer; under the lock."""
        shared = self.shared
        while self.deferred.waiting and (again := self.deferred.take(shared.events.moves, now)):
            for delivery, frame in again:
                if self._arrive(delivery, frame, now, shared.wall_us()):
                    shared.durability.pending.tokens.append((self.name, delivery.token))
            shared.events.handle()

    def _arrive(
        self, delivery: Delivery, frame: Frame, now: float, wall: int, stream: Stream | None = None
    ) -> bool:
        """Place a sound frame; returns whether its broker may forget it at once."""
        shared, envelope = self.shared, frame.envelope
        stream = stream or envelope.stream
        if stream not in shared.core.streams and shared.absent.may_know(stream):
            shared.absent.wait(stream, self.name, lambda room: self._loaded(delivery, frame, stream, room))
            shared.agenda.due(now)
            return False
        if shared.quarantine.any_roomless and shared.admission.quarantine_comes_first(stream):
            # Earlier messages are there. Were this one taken in first, the stream might begin with it.
            self._refuse(delivery, frame, stream)
            return False
        if stream in shared.core.context.held and not shared.admission.has_room_behind_hold(stream, frame):
            if not shared.admission.leave_to_producer(self.name, stream, frame, delivery.token, now):
                self.quarantine(delivery, frame, HELD, stream)
            return False
        arrival = self._place(_incoming(self.name, stream, frame, delivery.token), frame, now, wall)
        if self._silent.since:
            self._silent.delivered((envelope.topic, envelope.partition))
        if arrival.refused:
            self._refuse(delivery, frame, stream)
        elif arrival.deferred:
            self.deferred.put(delivery, frame)
            return False
        elif arrival.far:
            self._keep_far(delivery, frame, stream, now)
            return False
        for first, last in arrival.new:
            self.received_messages += last - first + 1
        if arrival.quarantine:
            self.set_aside(delivery.address, delivery.body, "conflict")
        elif not (arrival.new or arrival.late or arrival.refused):
            self.duplicate_messages += envelope.count
        return arrival.release

    def _place(self, incoming: Incoming, frame: Frame, now: float, wall: int) -> Arrival:
        """Pass a sound frame to the protocol, and keep its new and late messages."""
        shared, stream = self.shared, incoming.stream
        arrival = shared.core.receive(incoming, now, wall)
        if arrival.new:
            batches = BufferedBatch.of(frame, arrival.new, incoming.site, now, wall)
            (shared.buffers.by_stream.get(stream) or shared.buffers.of(stream)).add(batches)
        if arrival.late and not arrival.quarantine:
            self._late(stream, frame, arrival.late, wall)
        return arrival

    def _loaded(self, delivery: Delivery, frame: Frame, stream: Stream, there_is_room: bool) -> None:
        """A delivery's stream was looked for in the inbox."""
        shared = self.shared
        if not there_is_room:
            self._refuse(delivery, frame, stream)
        elif self._arrive(delivery, frame, shared.clock(), shared.wall_us(), stream):
            shared.durability.pending.tokens.append((self.name, delivery.token))

    def _keep_far(self, delivery: Delivery, frame: Frame, stream: Stream, now: float) -> None:
        """Keep a delivery of a far epoch; where there is no room, its broker does, as long as its producer
        can be expected to answer."""
        shared = self.shared
        if shared.admission.put_in_quarantine(
            FAR_EPOCH, self.name, stream, frame, delivery.token, shared.wall_us()
        ):
            return
        if shared.core.challenges.tries(stream) < ANSWER_TRIES:
            self.deferred.put(delivery, frame, now + LOOK_AGAIN_S)
        else:
            shared.admission.fail_for_want_of_room(FAR_EPOCH, stream)

    def quarantine(self, delivery: Delivery, frame: Frame, reason: str, stream: Stream | None = None) -> bool:
        """Have a sound delivery kept in the inbox, so that its broker may forget it; where there is no room for it
        reading stops, and False is returned."""
        stream = stream or frame.envelope.stream
        shared = self.shared
        if shared.admission.put_in_quarantine(
            reason, self.name, stream, frame, delivery.token, shared.wall_us()
        ):
            return True
        shared.admission.fail_for_want_of_room(reason, stream)
        return False

    def replayed(self, row: QuarantinedDelivery, frame: Frame, now: float, wall: int) -> bool:
        """Take in a delivery from the quarantine, as if it arrived again; False if it has to stay there."""
        shared, envelope = self.shared, frame.envelope
        if row.reason == UNREADABLE and not self._accepted.forms.include(frame):
            return False
        if shared.absent.may_know(row.stream):
            shared.absent.wait(row.stream, QUARANTINE, lambda room: self._replay_loaded(row, frame, room))
            return True
        if row.reason == HELD and not shared.admission.has_room_after_hold(row.stream, frame):
            shared.quarantine.held[row.stream] = now + NO_ROOM_S
            shared.core.kept(row.stream, row.epoch, row.first, now)
            return False
        if row.reason == FAR_EPOCH:  # an answer, or an operator, has decided
            shared.core.vouch(row.stream, envelope.epoch)
        shared.quarantine.took_in(row)
        arrival = self._place(_incoming(row.site, row.stream, frame, row.id, replayed=True), frame, now, wall)
        if arrival.refused or arrival.deferred or arrival.far:
            return self._stays(row, arrival, now)
        if arrival.release:
            shared.durability.pending.unquarantined.append(row.id)
        if arrival.quarantine:
            self.set_aside("", frame.data, "conflict")
        return True

    def _stays(self, row: QuarantinedDelivery, arrival: Arrival, now: float) -> bool:
        """A delivery can't be taken in from the quarantine. It stays there for the same reason (False), or from now on
        for another one (True)."""
        quarantine = self.shared.quarantine
        if row.reason == UNREADABLE and arrival.far:
            quarantine.requalify(row.id, FAR_EPOCH)
            return True
        if row.reason in (TOO_MANY_STREAMS, UNREADABLE) and not arrival.refused:
            quarantine.put_off[row.stream] = now + TRY_AGAIN_S
        if row.reason == UNREADABLE or (row.reason == FAR_EPOCH and arrival.refused):
            # It is readable, or believed, and this is all that it lacks.
            if arrival.refused:
                self.shared.admission.report_no_room()
            quarantine.lacks_room(row.id)
            return True
        return False

    def _replay_loaded(self, row: QuarantinedDelivery, frame: Frame, there_is_room: bool) -> None:
        shared = self.shared
        if (
            not there_is_room
            and row.reason in (FAR_EPOCH, UNREADABLE)
            and not shared.core.horizon.is_far(row.epoch)
        ):
            self.shared.admission.report_no_room()
            shared.quarantine.lacks_room(row.id)
        elif not (there_is_room and self.replayed(row, frame, shared.clock(), shared.wall_us())):
            shared.quarantine.leave(Selection(ids=(row.id,)))

    def _refuse(self, delivery: Delivery, frame: Frame, stream: Stream) -> None:
        """There is no room for another stream. Were it left with the broker it would hold up all others."""
        self.shared.quarantine.put_off.pop(stream, None)
        self.shared.admission.report_no_room()
        self.quarantine(delivery, frame, TOO_MANY_STREAMS, stream)

    def _late(self, stream: Stream, frame: Frame, spans: Sequence[Span], wall: int) -> None:
        """Keep late messages for the application to see; they are journalled in any case."""
        shared = self.shared
        for part in BufferedBatch.of(frame, spans, self.name, 0.0, wall) if self._accepted.keep_late else ():
            if shared.inbox.late_bytes + shared.durability.pending.late_bytes >= MAX_LATE_BYTES:
                self._count(_NOT_KEPT, "late")
                continue
            shared.durability.pending.keep_late(
                HeldFrame(stream, part.epoch, part.first, part.last, self.name, wall, part.stored())
            )

    def _without_identity(self, delivery: Delivery, what: Unsequenced, now: float, wall: int) -> None:
        if not self._accepted.unsequenced:
            self._reject(delivery, Rejected("unsequenced"))
            return
        stream = Stream("", what.topic, what.partition)
        headers = dict(delivery.headers) or None
        # A local frame, for the inbox alone: no producer can have this name.
        data = encode(
            Origin(Stream("unsequenced", what.topic, what.partition), 1, 0),
            self.shared.core.assign(stream),
            (wall, wall),
            Records([delivery.body], None, None if headers is None else [headers]),
        )
        try:
            frame = open_frame(data)
        except FrameError as error:  # with its headers and our envelope it is over the limit
            self._reject(delivery, Rejected(error.reason))
            return
        if self._arrive(delivery, frame, now, wall, stream):
            raise AssertionError("a new number can't be a duplicate")

    def _reject(self, delivery: Delivery, what: Rejected) -> None:
        """Set a delivery aside that can't be used. Its broker may forget it when that is committed."""
        if what.frame is not None:
            self._undecodable(what.frame)
            if what.reason == UNREADABLE:
                self._count(_UNREADABLE, UNREADABLE)
                self.quarantine(delivery, what.frame, UNREADABLE)
                return
        self.set_aside(delivery.address, delivery.body, what.reason)
        self.shared.durability.pending.tokens.append((self.name, delivery.token))

    def can_read(self, frame: Frame) -> bool:
        """Whether the installation knows the form of a frame."""
        return self._accepted.forms.include(frame)

    def _keep_later_version(self, delivery: Delivery, what: LaterVersion, wall: int) -> None:
        """Keep a batch in a later version of the whole format. With keys anybody may have sent it, so it can't use more
        than its share of the quarantine, and does not stop the consumer."""
        shared, topic = self.shared, (what.topic, what.partition)
        if shared.admission.put_unopened_in_quarantine(
            LATER_VERSION, self.name, topic, delivery.body, delivery.token, wall
        ):
            self._count(_LATER_VERSION, LATER_VERSION)
        elif self._accepted.keys is None:
            self._count(_LATER_VERSION, LATER_VERSION)
            shared.admission.fail_for_want_of_room(LATER_VERSION, Stream("", *topic))
        else:
            self._reject(delivery, Rejected("unsigned"))

    def examine_later_version(self, row: QuarantinedDelivery) -> Frame | LaterVersion | Rejected:
        """Examine a batch in quarantine that was in a later version, as if it arrived again. Needs no lock."""
        address = topic_address(row.stream.topic, row.stream.partition)
        what = self._examine(Delivery(row.id, address, row.frame, CONTENT_TYPE))
        assert not isinstance(what, Unsequenced)  # its first bytes are those of a batch
        return what

    def _undecodable(self, frame: Frame) -> None:
        envelope, core, now = frame.envelope, self.shared.core, self.shared.clock()
        core.undecodable(
            envelope.stream, envelope.epoch, envelope.incarnation, envelope.seq, envelope.last, now
        )

    def set_aside(self, address: str, data: bytes, reason: str) -> None:
        """Keep bytes that can't be used, within bounds, and count them."""
        self._count(_UNUSABLE, reason)
        kept = self.shared.samples.admit(self.name, address, reason, data)
        if kept is not None:
            self.shared.durability.pending.quarantine.append(kept)

    def _count(self, what: str, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        self._unreported[what, reason] = self._unreported.get((what, reason), 0) + 1
        self.any_rejected = True

    def report_rejected(self, now: float, everything: bool = False) -> None:
        """Journal what was rejected since the last commit, and log it, each reason at most once a second."""
        for (what, reason), count in self._unreported.items():
            self.shared.journal.note("rejected", site=self.name, reason=reason, detail={"count": count})
            self._unlogged[what, reason] = self._unlogged.get((what, reason), 0) + count
        self._unreported.clear()
        for (what, reason), count in list(self._unlogged.items()):
            if everything or now - self._logged_at.get((what, reason), -LOG_EVERY_S) >= LOG_EVERY_S:
                self._logged_at[what, reason] = now
                del self._unlogged[what, reason]
                log.warning(
                    "consumer.deliveries_rejected", "site %(site)s: %(problem)s: %(count)d (%(reason)s)",
                    group=self.shared.group, site=self.name, problem=what, reason=reason, count=count,
                )  # fmt: skip
        self.any_rejected = bool(self._unlogged)


def _incoming(
    site: str,
    stream: Stream,
    frame: Frame,
    token: object = None,
    *,
    repair: bool = False,
    replayed: bool = False,
) -> Incoming:
    """A delivery, as the core sees it. The size matters only for repairs and replayed deliveries."""
    envelope, size = frame.envelope, len(frame.data) if repair or replayed else 0
    return Incoming(
        site, stream, envelope.epoch, envelope.incarnation, envelope.previous, envelope.seq, envelope.last, token,
        repair, size, replayed, envelope.ts_last,
    )  # fmt: skip
