"""The consumer's side of the control plane: statuses in, states out, heartbeats both ways.

A producer announces which messages it holds (*status*), at its topics' control addresses, and in answers at the group's
own. The group reports its positions and its missing ranges (*state*) to each producer. Both are snapshots that may be
lost or repeated. :mod:`~reliamsg.consumer.standby` describes how the inboxes of a group find out which one reads.

:meth:`Control.received` is called on I/O threads, everything else under the consumer's lock. Sending never blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Literal

from msgspec import structs

from reliamsg.consumer.latest_statuses import LatestStatuses, interval_of
from reliamsg.consumer.lease import make_nonce, parse_nonce
from reliamsg.consumer.quarantine import FAR_EPOCH, HELD, TOO_MANY_STREAMS
from reliamsg.consumer.shared import Shared
from reliamsg.consumer.site import SiteReceiver
from reliamsg.errors import FarEpoch
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.protocol.announced import Announced
from reliamsg.protocol.duplicate_filter import DuplicateFilter
from reliamsg.protocol.receiver.repair_requests import RepairRequest
from reliamsg.protocol.receiver.report import Report
from reliamsg.wire.address import (
    call_address,
    created_address,
    group_address,
    is_group,
    producer_address,
    status_address,
)
from reliamsg.wire.control import (
    VERSION,
    State,
    Status,
    StreamState,
    StreamStatus,
    encode_mark,
    encode_state,
    is_control_frame,
    open_control,
)
from reliamsg.wire.data import FrameError
from reliamsg.wire.limits import CHALLENGE_BYTES, MAX_SPANS

__all__ = ["Control", "control_addresses"]

log: Log = Log("reliamsg.consumer")

REPORT_EVERY_S = 0.25
"""Minimal time between two reports to producers; requests are sent at once."""
MAX_REPORTED_AT_ONCE = 500
"""Streams whose states are sent in one step; the others follow in the next."""
MAX_CHALLENGES = 1_000
"""Of which the answers are recognised."""
REPORT_TRY = 3
"""After this many requests without an answer, the producer may be away: then an error reports which messages wait."""
MAX_PARTED = 20_000
"""Streams that left memory before their states were sent."""
MIN_POSITIONS = 10_000
"""Streams of which a standby remembers where the other one is, however few there is room for in memory."""
MAX_UNBELIEVED = 10_000
"""States of other inboxes about far epochs that are remembered."""
MAX_ROOMLESS = 1_000
"""Streams without room whose statuses are to be requested again."""
MAX_UNKNOWN_PRODUCERS = 1_000
"""Producers without streams here that wait for an answer; they repeat their statuses."""
UNKNOWN_PRODUCERS_AT_ONCE = 50
"""How many of them are answered in one step."""
ANSWER_EVERY_S = 0.02
"""Minimal time between two answers to heartbeats of other inboxes."""

_Role = Literal["active", "standby", "call"]


def control_addresses(group: str, topics: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """The addresses that the inboxes of a group listen to; `topics`: each with its partition."""
    return (group_address(group), *(status_address(*topic) for topic in sorted(topics)))


class Control:
    """Sends and receives control frames. See the module."""

    def __init__(
        self,
        shared: Shared,
        sites: Mapping[str, SiteReceiver],
        statuses: LatestStatuses,
        topics: Iterable[tuple[str, int]],
        keys: KeyRing | None,
    ) -> None:
        self.shared = shared
        self.group: str = shared.group
        self.positions: dict[Stream, tuple[StreamState, str]] = {}
        """While another inbox reads: its state of each stream, and its name."""
        self.unbelieved: dict[tuple[Stream, str], StreamState] = {}
        """The same of epochs that are far ahead, by stream and inbox: forged states displace no others."""
        self.asked_messages: int = 0
        """Messages that producers were asked for; repeated requests count again."""
        self._keys = keys
        self._sites = sites
        self._statuses = statuses
        self._topics = frozenset(topics)
        self.addresses: tuple[str, ...] = control_addresses(shared.group, self._topics)
        self._own_address = self.addresses[0]
        self._began = shared.numbers.latest
        """The number of the newest state when this inbox began to read in another's place."""
        self._nonce = shared.inbox.random_bytes(CHALLENGE_BYTES)
        """What answers to this inbox name, unless they answer a challenge."""
        self._challenges: dict[bytes, None] = {}
        """What answers to the latest challenges name."""
        self._unanswered: dict[str, dict[Stream, None]] = {}
        """By producer, streams whose states are to be sent."""
        self._parted: dict[Stream, Report] = {}
        """Reports of streams that left memory, which are still to be sent."""
        self._unknown_producers: dict[str, None] = {}
        """Producers without streams here that sent a status: they are answered too, after all others."""
        self._roomless: dict[Stream, None] = {}
        """Streams whose statuses found no room in memory: they are requested again when there is."""
        self._duplicates = DuplicateFilter()
        """Statuses that arrived at one site: copies from other sites are neither examined nor answered again."""
        self._reported_at = float("-inf")
        self._answered_at = float("-inf")
        self._far_reported: set[Stream] = set()
        self._all_wanted = False
        """A standby wants to know all positions."""

    # -- received frames ----------------------------------------------------------------------------------

    def received(self, site: SiteReceiver, address: str, body: bytes, reading: bool) -> None:
        """A frame arrived at a control address. `reading`: on the connection that the site is read with."""
        if is_group(address) and not is_control_frame(body):
            if reading:
                site.repaired(address, body)
            return
        is_copy = self._duplicates.has((address, body))
        if is_copy and not site.returned.any:
            site.control_frame_came()
            return
        shared = self.shared
        try:
            frame = open_control(body, address, self._keys)
        except FrameError as error:
            with shared.lock:
                site.set_aside(address, body, error.reason)
                shared.agenda.due(shared.clock() + REPORT_EVERY_S)
            return
        with shared.lock:
            now = shared.clock()
            site.control_frame_came()
            if isinstance(frame, Status):
                site.returned.heard(producer_address(frame.producer))
            if is_copy:
                return
            if isinstance(frame, Status):
                if not shared.role.barred:
                    self._duplicates.add((address, body))
                    self._status(site, frame, now)
            elif frame.group == self.group and address == self._own_address:
                if frame.producer:
                    self._learn(frame)
                else:
                    self._heartbeat(site, frame, reading, now)

    def returned(self, site: SiteReceiver, address: str) -> bool:
        """See :class:`~reliamsg.transport.base.ControlEvents`. Nobody needs to be heard to know that this inbox listens
        at its group's address."""
        with self.shared.lock:
            if address == self._own_address and address not in site.refused_addresses:
                site.returned.heard(address)
            return site.returned.returned(address, self.shared.clock())

    def _status(self, site: SiteReceiver, status: Status, now: float) -> None:
        """Apply a producer's status, and plan the answer."""
        shared = self.shared
        accepted: list[Stream] = []
        self._statuses.examine(status)
        for stream in _merged(status.streams):
            if (stream.topic, stream.partition) not in self._topics:
                continue
            announced = _announced(status, stream, self.group, late=not self._is_answer(status))
            if shared.absent.may_know(announced.stream):
                one = structs.replace(status, streams=[stream])
                shared.absent.wait(announced.stream, None, partial(self._status_loaded, site, one))
                shared.agenda.due(now)
                continue
            if shared.admission.quarantine_comes_first(announced.stream):
                # The stream begins with the messages there. With the status it might begin behind them.
                self._no_room(site, announced.stream, TOO_MANY_STREAMS)
                continue
            moves = shared.events.moves
            refused = shared.core.announce(site.name, announced, now, shared.wall_us())
            shared.events.handle()
            if shared.events.moves != moves:
                shared.quarantine.put_off.pop(announced.stream, None)  # it may not be too far ahead any more
            if refused:
                self._no_room(site, announced.stream, refused)
            else:
                accepted.append(announced.stream)
        known = status.producer in self._statuses.by_producer and not shared.core.horizon.is_far(status.epoch)
        if accepted or known:
            # Only those count that have streams here, of which there is a bound.
            self._statuses.take(status, now)
            self._unanswered.setdefault(status.producer, {}).update(dict.fromkeys(accepted))
        else:
            self._statuses.refuse(status.producer)
            if len(self._unknown_producers) < MAX_UNKNOWN_PRODUCERS:
                self._unknown_producers[status.producer] = None
        shared.events.handle()
        shared.agenda.due(
            max(now, self._reported_at + REPORT_EVERY_S) if not shared.events.commit_urgent else now
        )

    def _status_loaded(self, site: SiteReceiver, status: Status, there_is_room: bool) -> None:
        if there_is_room:
            self._status(site, status, self.shared.clock())
        else:
            for announced in status.streams:
                stream = Stream(status.producer, announced.topic, announced.partition)
                self._no_room(site, stream, TOO_MANY_STREAMS)

    def _no_room(self, site: SiteReceiver, stream: Stream, reason: str) -> None:
        """A status of a stream is not taken in. A producer that considers everything settled need not repeat it: if the
        reason is a lack of room, it is requested when there is some."""
        site.refuse_status(reason)
        if reason == TOO_MANY_STREAMS and len(self._roomless) < MAX_ROOMLESS:
            self._roomless[stream] = None

    def _request_again(self, now: float) -> None:
        """Request statuses that found no room, as soon as they would: those of streams in memory, and of as many others
        as there is room for. A stream may be about to begin behind messages that its producer announced in a status
        that was refused, so this does not wait for a request that is to be repeated later."""
        core = self.shared.core
        places = max(core.places, 0)
        for stream in list(self._roomless):
            if self.shared.admission.quarantine_comes_first(stream):
                continue
            if stream not in core.streams:
                if not places:
                    continue
                places -= 1
            del self._roomless[stream]
            core.challenges.restart(stream, now)

    def took_over(self) -> None:
        """This inbox reads from now on, in the place of another: earlier statuses of producers prove nothing about
        messages that the other may have delivered."""
        self._began = self.shared.numbers.latest
        self._nonce = self.shared.inbox.random_bytes(CHALLENGE_BYTES)
        self._challenges.clear()

    def _is_answer(self, status: Status) -> bool:
        """Whether a status was made after something that this inbox said since it began to read. Numbers tell that too,
        but an older copy of an inbox gives some of them again: there may be recordings of answers to those."""
        if any(nonce == self._nonce or nonce in self._challenges for nonce in status.nonces):
            return True
        return (
            self._keys is None
            and status.heard is not None
            and (status.heard[0] == self.shared.role.lease.inbox and status.heard[1] > self._began)
        )

    # -- heartbeats ------------------------------------------------------------------------------------------

    def _heartbeat(self, site: SiteReceiver, state: State, reading: bool, now: float) -> None:
        shared = self.shared
        if state.role == "call":
            return
        heartbeat = parse_nonce(state.inbox, state.number, state.role, state.nonce, state.takeover_ms / 1000)
        if shared.role.lease.is_own(heartbeat):
            site.echo(now)
            if reading and heartbeat.role == "active" and shared.role.lease.came_back(heartbeat, now):
                shared.changed.notify_all()  # deliveries may go on
            shared.role.look()
            if not reading or shared.role.standing_by:
                shared.agenda.due(now)
            return
        self._all_wanted |= heartbeat.wants_all
        if shared.role.lease.heartbeat_received(heartbeat, now):
            # An inbox that looks for others must know at once; of two that read, one is about to yield.
            often = ANSWER_EVERY_S if heartbeat.role == "standby" else shared.role.lease.every / 4
            if not shared.role.barred and now - self._answered_at >= often:
                self._answered_at = now
                self.say(now)
            shared.role.look()
            shared.agenda.due(now)

    def say(self, now: float, wants_all: bool = False) -> None:
        """Send a heartbeat: whether this inbox reads, at every site in reach."""
        shared = self.shared
        role: Literal["active", "standby"] = "standby" if shared.role.barred else "active"
        claim = shared.role.lease.claim_now(now) if role == "active" else shared.role.lease.claim
        nonce = make_nonce(shared.role.lease.run, claim, wants_all)
        state = self._state(self._own_address, "", role, nonce, [])
        if role == "active":
            shared.role.lease.sent(state.number, now)
        self._send_state(state)

    def announce(self, stream: Stream) -> None:
        """Send the committed position of a stream to its producer and to inboxes that wait."""
        if self.shared.role.barred or not stream.producer:
            return
        states = [_stream_state(stream, self._report(stream))]
        self._send_state(self._to_producer(stream.producer, states))
        self._send_state(self._state(self._own_address, stream.producer, "active", self._nonce, states))

    def farewell(self, now: float) -> None:
        """This inbox stops reading, and everything is committed: announce its positions."""
        if self.shared.role.barred:
            return
        self._reported_at = float("-inf")
        self.step(now, False)
        # An inbox that waits takes over at once, and may not have sent a heartbeat yet.
        self._report_to_standbys(stream for stream in self.shared.core.streams if stream.producer)
        nonce = make_nonce(self.shared.role.lease.run, b"\xff", False)
        self._send_state(self._state(self._own_address, "", "standby", nonce, []))

    def _learn(self, state: State) -> None:
        """Another inbox says how far the group is."""
        if not self.shared.role.standing_by or state.inbox == self.shared.role.lease.inbox:
            return
        most = max(self.shared.core.rules.max_streams, MIN_POSITIONS)
        for stream in state.streams:
            key = Stream(state.producer, stream.topic, stream.partition)
            if self.shared.core.is_far(key, max(stream.position[0], stream.entered[0])):
                far = key, state.inbox
                if far in self.unbelieved or len(self.unbelieved) < MAX_UNBELIEVED:
                    self.unbelieved[far] = _latest(self.unbelieved.get(far), stream)
                continue
            known = self.positions.get(key)
            if known is None and len(self.positions) >= most:
                continue
            kept = _latest(None if known is None else known[0], stream)
            if known is None or kept is not known[0]:
                self.positions[key] = (kept, state.inbox)

    # -- sent frames --------------------------------------------------------------------------------------

    def greet(self, site: SiteReceiver) -> None:
        """A site is connected: call for the producers there, and plan reports on all streams."""
        for topic in sorted(self._topics):
            to = call_address(*topic)
            for frame in self._frames(self._state(to, "", "call", self._nonce, [])):
                site.send_control(to, frame)
            if site.site.protocol == "mqtt" and site.state == "connected":
                # The group's session is there: producers that the broker does not tell of it find its mark.
                mark = created_address(*topic, self.group)
                site.send_control(mark, encode_mark(mark, self._keys))
        for stream in self.shared.core.streams:
            if stream.producer:
                self._unanswered.setdefault(stream.producer, {})[stream] = None

    def step(self, now: float, full: bool) -> None:
        """Send the frames that are due. `full`: there is only room for messages that can be delivered at once."""
        shared, core = self.shared, self.shared.core
        if shared.role.barred:
            shared.events.changed_reports.clear()
            self._unanswered.clear()
            self._unknown_producers.clear()
            self._roomless.clear()
            return
        if core.context.repairs_due:
            self._ask(core.repair_requests(now, full, lambda stream: shared.quarantine.holds(stream, HELD)))
        if self._roomless:
            self._request_again(now)
        if challenged := core.challenges.due(now):
            self._challenge(challenged)
        if self._all_wanted:
            self._all_wanted = False
            self._report_to_standbys(stream for stream in core.streams if stream.producer)
        if now >= self._reported_at + REPORT_EVERY_S and (
            shared.events.changed_reports or self._unanswered or self._unknown_producers
        ):
            for stream in sorted(shared.events.changed_reports):
                self._unanswered.setdefault(stream.producer, {})[stream] = None
            shared.events.changed_reports.clear()
            self._reported_at = now
            self._report_to_producers(bool(shared.role.lease.standbys(now)))

    def deadline(self) -> float | None:
        """When there will be something to send."""
        core = self.shared.core
        if self.shared.role.barred:
            return None
        asked = core.challenges.deadline()
        if not (self.shared.events.changed_reports or self._unanswered or self._unknown_producers):
            return asked
        due = self._reported_at + REPORT_EVERY_S
        return due if asked is None else min(asked, due)

    def _challenge(self, streams: Sequence[Stream]) -> None:
        """Ask producers for answers: a state that names the stream is enough. Each has a nonce of its own, since the
        answer to the one before may have been lost."""
        for stream in streams:
            if self.shared.core.challenges.tries(stream) == REPORT_TRY:
                self._report_far(stream)
        for producer, states in self._states(streams).items():
            nonce = self.shared.inbox.random_bytes(CHALLENGE_BYTES)
            self._challenges[nonce] = None
            if len(self._challenges) > MAX_CHALLENGES:
                del self._challenges[next(iter(self._challenges))]
            self._send_state(self._state(producer_address(producer), producer, "active", nonce, states))

    def _report_far(self, stream: Stream) -> None:
        """A producer does not answer. If messages wait for that, say so, once."""
        shared = self.shared
        if stream in self._far_reported or not shared.quarantine.holds(stream, FAR_EPOCH):
            return
        if len(self._far_reported) < MAX_UNKNOWN_PRODUCERS:
            self._far_reported.add(stream)
            error = FarEpoch(
                f"{stream}: messages of epoch {shared.core.far.get(stream, 0)} are in quarantine. It is more than 48"
                " hours beyond all that is known of the time, and the producer does not answer. See `reliamsg inbox"
                " quarantine list`, then replay or discard"
            )
            log.warning(
                "consumer.epoch_too_far", "%(reason)s",
                group=shared.group, stream=str(stream), epoch=shared.core.far.get(stream, 0), reason=str(error),
            )  # fmt: skip
            shared.health.report(error)

    def _ask(self, asks: Sequence[RepairRequest]) -> None:
        """Send requests, each with the complete state of its stream."""
        by_producer: dict[str, list[StreamState]] = {}
        for ask in asks:
            if not ask.stream.producer:
                continue
            report = self.shared.core.report(ask.stream)
            state = _stream_state(ask.stream, report, ask)
            by_producer.setdefault(ask.stream.producer, []).append(state)
            self.asked_messages += sum(last - first + 1 for _, first, last in ask.wanted)
        for producer, states in by_producer.items():
            self._send_state(self._to_producer(producer, states))

    def _report_to_producers(self, also_standbys: bool) -> None:
        reported = 0
        while self._unanswered and reported < MAX_REPORTED_AT_ONCE:
            producer = next(iter(self._unanswered))
            streams = self._unanswered.pop(producer)
            some = list(islice(streams, MAX_REPORTED_AT_ONCE - reported))
            if len(some) < len(streams):
                self._unanswered[producer] = dict.fromkeys(islice(streams, len(some), None))
            reported += max(1, len(some))
            states = [_stream_state(stream, self._report(stream)) for stream in some]
            self._send_state(self._to_producer(producer, states))
            if also_standbys and states:
                self._send_state(self._state(self._own_address, producer, "active", self._nonce, states))
        for producer in list(islice(self._unknown_producers, UNKNOWN_PRODUCERS_AT_ONCE)):
            del self._unknown_producers[producer]
            self._send_state(self._to_producer(producer, []))

    def parted(self, stream: Stream, report: Report) -> None:
        """A stream leaves memory: a planned report of it is sent nevertheless. Its producer is forgotten with its last
        stream."""
        shared = self.shared
        unanswered = self._unanswered.get(stream.producer, {})
        if stream in shared.events.changed_reports or stream in unanswered:
            shared.events.changed_reports.discard(stream)
            if len(self._parted) < MAX_PARTED:
                self._parted[stream] = report
                self._unanswered.setdefault(stream.producer, unanswered)[stream] = None
            else:  # reported with the next answer to the producer
                unanswered.pop(stream, None)
        if len(self._statuses.by_producer) > 2 * shared.core.rules.max_streams:
            # Those that have been silent for long and have no streams in memory.
            self._statuses.forget_all_but({stream.producer for stream in shared.core.streams})

    def _report(self, stream: Stream) -> Report:
        parted = self._parted.pop(stream, None)
        if parted is not None and stream not in self.shared.core.streams:
            return parted
        return self.shared.core.report(stream)

    def _report_to_standbys(self, streams: Iterable[Stream]) -> None:
        for producer, states in self._states(streams).items():
            self._send_state(self._state(self._own_address, producer, "active", self._nonce, states))

    def _states(self, streams: Iterable[Stream]) -> dict[str, list[StreamState]]:
        """The states of streams, by producer."""
        by_producer: dict[str, list[StreamState]] = {}
        for stream in streams:
            state = _stream_state(stream, self.shared.core.report(stream))
            by_producer.setdefault(stream.producer, []).append(state)
        return by_producer

    def _to_producer(self, producer: str, states: list[StreamState]) -> State:
        return self._state(producer_address(producer), producer, "active", self._nonce, states)

    def _state(
        self,
        to: str,
        producer: str,
        role: Literal["active", "standby", "call"],
        nonce: bytes,
        states: list[StreamState],
    ) -> State:
        shared = self.shared
        takeover_ms = 0 if producer else int(shared.role.lease.takeover_timeout * 1000)
        journal = shared.inbox.exported.journal
        newest = (
            (int(journal.newest_boot, 16), journal.newest_lsn) if producer and journal.newest_boot else None
        )
        return State(
            VERSION, self.group, shared.role.lease.inbox, shared.numbers.take(), shared.wall_us(), to, producer, role,
            nonce, states, takeover_ms, newest,
        )  # fmt: skip

    def _send_state(self, state: State) -> None:
        frames = self._frames(state)
        for site in self._sites.values():
            for frame in frames:
                site.send_control(state.to, frame)

    def _frames(self, state: State) -> list[bytes]:
        """None if its number could be used again, by the next opening of the inbox."""
        return encode_state(state, self._keys) if self.shared.numbers.may_send(state.number) else []


def _merged(streams: Sequence[StreamStatus]) -> Iterable[StreamStatus]:
    """The streams of a status, those in several entries in one."""
    found: dict[tuple[str, int], StreamStatus] = {}
    for stream in streams:
        key = (stream.topic, stream.partition)
        before = found.get(key)
        removed = stream.removed if before is None else before.removed + stream.removed
        found[key] = StreamStatus(*key, stream.chain, removed, stream.since, stream.reached)
    return found.values()


def _announced(status: Status, stream: StreamStatus, group: str, late: bool) -> Announced:
    chain = tuple((link.epoch, link.incarnation, link.first, link.last) for link in stream.chain)
    # The list of removed ranges may continue in the next frame, with the same number.
    number = status.number if len(stream.removed) < MAX_SPANS else 0
    return Announced(
        Stream(status.producer, stream.topic, stream.partition), status.epoch, status.incarnation, chain,
        tuple(stream.removed), stream.since.get(group), stream.reached if is_group(status.to) else None,
        interval_of(status), status.lsn, number, late, status.consumed,
    )  # fmt: skip


def _latest(known: StreamState | None, said: StreamState) -> StreamState:
    """The state to remember of another inbox's stream, given its earlier and its new state."""
    high, accepted = said.high_water, said.accepted
    if known is not None:
        if (said.position, said.entered) < (known.position, known.entered):
            return known
        if known.entered == said.entered:
            high = max(high, known.high_water)
        if known.position == said.position:
            # This one may be older. Accepted ranges stay accepted until the position has passed them.
            accepted = list(dict.fromkeys((*known.accepted, *accepted)))[:MAX_SPANS]
    return structs.replace(said, high_water=high, missing=[], wanted=[], accepted=accepted)


def _stream_state(stream: Stream, report: Report, ask: RepairRequest | None = None) -> StreamState:
    missing, wanted = (report.missing, ()) if ask is None else (ask.missing, ask.wanted)
    return StreamState(
        stream.topic, stream.partition, report.position, report.entered, report.high_water, list(missing),
        list(wanted), list(report.declared), list(report.accepted),
    )  # fmt: skip
