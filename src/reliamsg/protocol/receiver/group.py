"""The receiving side of the protocol.

:class:`GroupReceiver` has a :class:`~reliamsg.protocol.receiver.stream.StreamReceiver` for each stream in memory. It
works on ranges of numbers; their bytes are up to the caller. Calls lead to events
(:mod:`~reliamsg.protocol.receiver.events`), which the caller takes with :meth:`~GroupReceiver.take_events` before it
gives up its lock. After a tick it sends :meth:`~GroupReceiver.asks`.

A commit takes three steps: :meth:`~GroupReceiver.snapshot`, the caller's transaction, and then
:meth:`~GroupReceiver.committed`, which returns the deliveries that brokers may release, or
:meth:`~GroupReceiver.commit_failed`.

Not thread-safe: the caller holds one lock around every call. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from reliamsg.message import Gap, Prev, Stream
from reliamsg.protocol.announced import Announced, Span3
from reliamsg.protocol.horizon import Horizon
from reliamsg.protocol.receiver.challenges import Challenges
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.events import Event, ReportChanged
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.repair_requests import RepairRequest
from reliamsg.protocol.receiver.report import Report
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.protocol.receiver.stream import Arrival, Kept, Snapshot, StreamReceiver
from reliamsg.protocol.receiver.takeover import LastReport
from reliamsg.protocol.receiver.unacked import UnackedDeliveries
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["GroupReceiver"]

MAX_REQUESTS = 500
"""Requests made at once; the others follow at the next look."""
MAX_FAR = 10_000
"""Streams that are remembered to have far epochs in quarantine."""
MAX_PUT_OFF = 4
"""Reports of other inboxes that are remembered for a stream without room, or about far epochs."""
FAR_LOOK_MS = 60_000
"""Later far epochs are looked for when the horizon has moved on by this much."""
MAX_CHAIN = 10_000
"""Epochs in a chain that is accepted."""


class GroupReceiver:
    """All streams of one group."""

    def __init__(self, rules: Rules, sites: dict[str, int], known_us: int = 0) -> None:
        """`sites`: each site's name and prefetch window. `known_us`: the latest reading of the clock that was ever
        known, in µs since 1970."""
        self.rules = rules
        self.horizon: Horizon = Horizon(known_us, rules.signed)
        self.context: GroupContext = GroupContext(rules)
        """Shared by all streams; needed to restore one. The caller may also read its `events`, which are empty while
        :meth:`take_events` has nothing to return, and `held`, the streams that gaps hold."""
        self.challenges: Challenges = self.context.challenges
        """Streams whose producers the caller has to challenge."""
        self.far: dict[Stream, int] = {}
        """Streams with far epochs, and the lowest of these; see :meth:`believed`."""
        self._put_off: dict[Stream, list[LastReport]] = {}
        """Reports of other inboxes about epochs that are far, or about streams without room. They are adopted once
        these are believed, and there is room."""
        self.streams: dict[Stream, StreamReceiver] = {}
        self.waiting: UnackedDeliveries = UnackedDeliveries(sites)
        """Deliveries that brokers have to keep."""
        self.known_elsewhere: int = 0
        """Streams that the inbox knows and that are not in memory."""
        self.tombstones: dict[Stream, StreamReceiver] = {}
        """Remembered state of forgotten streams; see :meth:`remember`."""
        self.retiring: dict[Stream, StreamReceiver] = {}
        """Idle streams that the next commit stores as after a clean stop, so that they may be forgotten."""
        self.succeeded: dict[Stream, int] = {}
        """The reports of the inbox whose place was taken, for streams that were not in memory then."""
        self._number = 0
        self.succeeds: bool = False
        """Another inbox may have read streams that are not known here. The caller stores it."""
        self.takeover: int = 0
        """How often this inbox took the place of another one. The same."""

    def resume(self, known_elsewhere: int, takeover: int, succeeds: bool) -> None:
        """Continue where the inbox left off; see the attributes. Before anything else."""
        self.known_elsewhere, self.takeover, self.succeeds = known_elsewhere, takeover, succeeds

    def forgot(self, count: int) -> None:
        """The inbox has forgotten this many streams that are not in memory."""
        self.known_elsewhere -= count

    def remember(self, graves: Mapping[Stream, StreamReceiver]) -> None:
        """What is remembered of forgotten streams about which the caller is about to say something; to be cleared
        after that."""
        self.tombstones.update(graves)

    def take_events(self) -> list[Event]:
        """The events since the last call, in order."""
        context = self.context
        found = context.events.copy()
        context.events.clear()
        context.deliverable.clear()
        return found

    # -- arrivals ---------------------------------------------------------------------------------------

    def receive(self, incoming: Incoming, now: float, wall_us: int = 0) -> Arrival:
        """A verified envelope arrived. `wall_us`: the reading of the clock, in µs since 1970.

        A delivery that is `deferred` has to be passed in again when any stream has moved (:class:`~.events.Moved`). One
        that is `refused` has left no trace. A repair that is deferred or refused may be dropped, since it is requested
        again. A delivery replayed from the quarantine is returned by :meth:`committed` with its token and the site
        :data:`~reliamsg.protocol.receiver.unacked.QUARANTINE`. A delivery whose epoch is too `far` ahead has left no
        trace either: keep it, and pass it in again when :meth:`believed` returns its stream.
        """
        stream, epoch = incoming.stream, incoming.epoch
        if not self.horizon.accepts(epoch, incoming.ts_us, wall_us):
            if self.is_far(stream, epoch):
                self.note_far(stream, epoch, now)
                return Arrival(far=True)
            self.horizon.learn(epoch, incoming.ts_us)
        if self._put_off:  # seldom: this is called for every batch
            self.adopt_after_all(stream, now)
        state = self.streams.get(stream)
        if state is None:
            grave = self.tombstones.get(stream)
            if grave is not None and grave.is_done_with(
                epoch, incoming.incarnation, incoming.first, incoming.last
            ):
                self.context.emit(grave.note_of_duplicate(incoming))
                return Arrival(release=True)
            state = self.open(stream)
            if state is None:
                return Arrival(refused="too-many-streams")
        if self.retiring:
            self.retiring.pop(stream, None)
        known, arrival = state.receive(incoming, now)
        if not (arrival.release or arrival.deferred):
            held = None if arrival.quarantine else known
            ended = held is None or (held.last is not None and held.last < incoming.last)
            after = self._number + 1 if ended or arrival.late else 0
            ahead = held is not None and (incoming.first > held.cursor or held is not state.epochs.current)
            ahead = ahead and held is not None and state.epochs.is_held_up(held, incoming.first)
            self.waiting.enter(incoming, held, now, ahead, after)
        return arrival

    def undecodable(
        self, stream: Stream, epoch: int, incarnation: int, first: int, last: int, now: float | None = None
    ) -> None:
        """An unreadable copy of these numbers arrived. If nothing better arrives, that is the reason of the gap. With
        `now`, they are known to exist from now on, and are requested."""
        state = self.streams.get(stream)
        if state is not None:
            state.undecodable(epoch, incarnation, first, last, now)

    def reopen(self, stream: Stream, epoch: int, first: int, last: int, site: str, now: float) -> set[str]:
        """Bytes that came from `site` and are held turned out to be unreadable: wait for another copy.

        Returns the sites that delivered a duplicate whose bytes were not kept: they must deliver it again.
        """
        state = self.streams[stream]
        sites = self.waiting.reopen(stream, state.epochs.live[epoch], (first, last), site, self._number + 1)
        state.reopen(epoch, first, last, now)
        return sites

    def is_behind_hold(self, stream: Stream, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether a delivery contains anything new, and all of it is behind the gap that holds its stream, so that it
        is useless until the gap is filled or accepted. The caller may keep it until then instead of passing it to
        :meth:`receive`."""
        state = self.streams.get(stream) if stream in self.context.held else None
        if state is None or self.is_far(stream, epoch):
            return False
        return state.brings_only_behind_hold(epoch, incarnation, first, last)

    def let_go(
        self,
        stream: Stream,
        epoch: int,
        incarnation: int,
        prev: Prev | None,
        first: int,
        last: int,
        now: float,
    ) -> bool:
        """Leave a delivery behind the gap that holds its stream to its producer, if that has to keep it for the group.
        Its broker may release it with the next commit. False if the producer is not known to keep it."""
        if stream not in self.context.held:
            return False
        return self.streams[stream].let_go((epoch, incarnation, prev), first, last, now)

    def kept(self, stream: Stream, epoch: int, first: int, now: float) -> None:
        """The caller keeps `first` and what follows, and passes it in once the stream has come to it. So missing
        numbers before that are a gap of their own, which may expire."""
        state = self.streams.get(stream)
        if state is not None:
            state.keep_elsewhere(epoch, first, now)

    def assign(self, stream: Stream) -> int:
        """The number for the next message that arrived without an identity."""
        state = self.streams.get(stream)
        known = state.epochs.current if state is not None else None
        return 1 if known is None else max(known.highest + 1, known.redelivered_below)

    # -- status and state -------------------------------------------------------------------------------

    def announce(self, site: str, announced: Announced, now: float, wall_us: int = 0) -> str:
        """A verified status arrived from `site`, with this announcement about one stream. `wall_us`: the reading of the
        clock.

        Returns why there is no room for the stream, or that its epoch is too far ahead; empty if it was accepted. Call
        :meth:`tick` and :meth:`asks` soon: announcements take effect a moment later, because announced messages may be
        in flight.
        """
        self.horizon.look(wall_us)
        if not _is_sound(announced):
            return "malformed"
        stream = announced.stream
        if self.is_far(stream, announced.epoch):
            if announced.late:
                self.note_far(stream, announced.epoch, now)
                return "far-epoch"
            if not self.vouch(stream, announced.epoch):
                return "too-many-streams"
        self.horizon.learn(announced.epoch)
        self.adopt_after_all(stream, now)
        state = self.streams.get(stream)
        if state is None:
            if not announced.chain and announced.since is None:
                return ""
            state = self.open(stream)
            if state is None:
                return "too-many-streams"
        state.announce(announced, site, now)
        return ""

    def is_far(self, stream: Stream, epoch: int) -> bool:
        """Whether an epoch of a stream is too far ahead to be believed without an answer by its producer."""
        if not (stream.producer and self.horizon.is_far(epoch)):
            return False
        state = self.streams.get(stream)
        if state is None:
            return True
        return (
            state.epochs.is_ahead(epoch)
            and epoch not in state.epochs.live
            and self.horizon.is_far(epoch, state.vouched)
        )

    def note_far(self, stream: Stream, epoch: int, now: float) -> None:
        """Have the producer vouch for an epoch that is far ahead, if it does."""
        self.challenges.want(stream, now)
        if stream in self.far or len(self.far) < MAX_FAR:
            self.far[stream] = min(epoch, self.far.get(stream, epoch))

    def vouch(self, stream: Stream, epoch: int) -> bool:
        """The producer, or an operator, vouches for an epoch. False if there is no room for the stream."""
        state = self.streams.get(stream) or self.open(stream)
        if state is None:
            return False
        state.vouch(epoch)
        self.horizon.learn(epoch)
        return True

    def believed(self) -> list[tuple[Stream, int]]:
        """Streams with far epochs that are believed now, and up to which epoch. To be called now and then."""
        found: list[tuple[Stream, int]] = []
        for stream, epoch in self.far.items():
            if not self.is_far(stream, epoch):
                state = self.streams.get(stream)
                found.append((stream, self.horizon.limit(0 if state is None else state.vouched)))
        for stream, limit in found:
            self.far[stream] = limit + FAR_LOOK_MS
        return found

    def look_for_far(self, stream: Stream, limit: int | None) -> None:
        """The caller has dealt with the far epochs of a stream that :meth:`believed` returned, up to `limit`, except
        those that it could not pass in yet; None: there are none left."""
        if limit is None:
            del self.far[stream]
        else:
            self.far[stream] = limit

    def repair_requests(
        self, now: float, only_heads: bool = False, only_head_of: Callable[[Stream], bool] | None = None
    ) -> list[RepairRequest]:
        """Requests that are due: send each to the producer of its stream, with :meth:`report`. :meth:`tick` returns
        when to look again.

        With `only_heads`, nothing is requested that could not be delivered at once, because the inbox is full;
        `only_head_of` tells for which streams that applies anyway, because the caller keeps what follows. It also
        applies to held streams that left later messages to their producers.
        """
        found: list[RepairRequest] = []
        queue = self.context.repairs_due
        while queue and len(found) < MAX_REQUESTS:
            stream = next(iter(queue))
            del queue[stream]
            head = only_heads or (only_head_of is not None and only_head_of(stream))
            request = self.streams[stream].request(now, head)
            self.context.wake(stream)
            if request is not None:
                found.append(request)
        return found

    def report(self, stream: Stream) -> Report:
        """The committed state of a stream, and what it lacks; an empty report for an unknown one. A commit that changes
        it emits :class:`~.events.ReportChanged`."""
        state = self.streams.get(stream)
        return Report() if state is None else state.report()

    def adopt(
        self,
        stream: Stream,
        entered: tuple[int, int],
        position: tuple[int, int],
        high_water: int,
        now: float,
        accepted: tuple[Span3, ...] = (),
    ) -> bool:
        """Continue where another inbox of the group stopped, according to its last report.

        Messages that it may have delivered are flagged; gaps that were accepted there are accepted. A stream that is
        known here and is behind continues there, and forgets what it held: read all of it again. Returns False if it is
        not behind (it stays where it is, and possible deliveries are flagged), or if another incarnation is known here.
        If there is no room for the stream, or the report is about an epoch that is far ahead, this happens as soon as
        there is room and the epoch is believed: with the first call of :meth:`receive` or :meth:`announce` after that,
        which emits :class:`~.events.Moved`.
        """
        self.horizon.learn(entered[0])
        report = LastReport(position, entered, high_water, accepted)
        state = self.streams.get(stream)
        far = self.is_far(stream, max(entered[0], position[0]))
        if state is None and not far:
            state = self.open(stream)
        if state is None or far:
            if len(self._put_off) < MAX_FAR or stream in self._put_off:
                put_off = self._put_off.setdefault(stream, [])
                put_off += [report] if len(put_off) < MAX_PUT_OFF else []
            return False
        return state.adopt(report, now)

    def adopt_after_all(self, stream: Stream, now: float) -> None:
        """Continue where another inbox of the group stopped, if that had been put off."""
        if stream not in self._put_off:
            return
        put_off = self._put_off[stream]
        believed = [one for one in put_off if not self.is_far(stream, max(one.entered[0], one.position[0]))]
        if believed and stream not in self.streams and self.open(stream) is None:
            believed = []
        left = self._put_off[stream] = [one for one in put_off if one not in believed]
        if not left:
            del self._put_off[stream]
        for one in sorted(believed, key=lambda one: one.position):
            self.adopt(stream, one.entered, one.position, one.high_water, now, one.accepted)

    def succeed(self, reported: Mapping[Stream, int]) -> None:
        """This inbox takes the place of another one that may have read until now. To be called after :meth:`adopt`.
        `reported`: for each stream the latest epoch whose deliveries that one had reported. Everything else that exists
        by now may have been delivered, too, and is flagged."""
        self.succeeds = True
        self.succeeded = dict(reported)
        self.takeover += 1
        for state in self.streams.values():
            state.view.drop_proof()
            self._note_takeover(state)

    def _note_takeover(self, state: StreamReceiver) -> None:
        """Another inbox may have continued the stream, whatever is known about earlier ones."""
        state.note_takeover(self.succeeded.get(state.stream, 0), self.takeover)

    # -- gaps and time ------------------------------------------------------------------------------------

    def accept(self, gap: Gap, now: float) -> bool:
        """Pass a gap and declare it. False if it has been filled or passed meanwhile."""
        state = self.streams.get(gap.stream)
        return state is not None and state.declare(gap, now)

    def tick(self, now: float, paused: bool = False, kept: Kept | None = None) -> float | None:
        """Advance the clocks to `now`, or (`paused`) all but those of gaps: missing messages may be at a broker, and
        can't be accepted until the application continues. A gap of which the caller has anything `kept`, to be passed
        in later, does not expire. Returns when to call again; None if nothing is timed."""
        timed = self.context.timers
        deadline: float | None = now + 0.05 if self.context.repairs_due else None
        if not timed:
            return deadline
        connected = self.waiting.any_connected
        for stream in list(timed):
            at: float | None = timed[stream]
            if timed[stream] <= now:
                at = self.streams[stream].tick(now, connected, paused, kept)
                timed[stream] = 0.0 if at is None else at
            if at is None:
                del timed[stream]
            else:
                deadline = at if deadline is None else min(deadline, at)
        return deadline

    @property
    def any_gap(self) -> bool:
        """Whether missing messages hold up any stream."""
        return any(self.streams[stream].gaps.clock.target is not None for stream in self.context.timers)

    # -- commits ----------------------------------------------------------------------------------------

    def mark(self, stream: Stream) -> None:
        """Include a stream in the next commit, whether or not it has changed."""
        self.context.mark(stream)

    def snapshot(self, closing: bool = False) -> Snapshot:
        """The contents of the next commit. With `closing`, it includes all streams, with exact high-water marks."""
        self._number += 1
        for stream in self.streams if closing else ():
            self.context.mark(stream)
        retiring = self.retiring
        changes = []
        for stream in self.context.take_dirty():
            changes.append(self.streams[stream].take_change(closing or stream in retiring))
        return Snapshot(self._number, changes)

    def committed(self, snapshot: Snapshot) -> list[tuple[str, object]]:
        """The commit is durable. Returns (site, token) of the deliveries that brokers may release now."""
        released: list[tuple[str, object]] = []
        also = set(snapshot.also)
        for change in snapshot.changes:
            stream = change.stream
            if self.streams[stream].change_committed(change) and stream.producer:
                self.context.emit(ReportChanged(stream))
            self.context.touch(stream)
            also.discard(stream)
            released += self.waiting.leave(stream, snapshot.number)
        for stream in also:
            released += self.waiting.leave(stream, snapshot.number)
        return released

    def commit_failed(self, snapshot: Snapshot) -> None:
        """The commit failed: everything in the snapshot belongs to the next one."""
        for change in snapshot.changes:
            self.context.mark(change.stream)
            self.streams[change.stream].change_failed(change)

    # -- at the start -----------------------------------------------------------------------------------

    def restore(self, state: StreamReceiver, now: float) -> None:
        """Add a stream as the inbox holds it."""
        self._restore(state, now)
        self.context.mark(state.stream)

    def restore_retired(self, state: StreamReceiver, now: float) -> None:
        """The same for a stream that was forgotten: it is as on disk."""
        self.known_elsewhere -= 1
        self._note_missed_takeover(state)
        self._restore(state, now)

    def _note_missed_takeover(self, state: StreamReceiver) -> None:
        if self.succeeds and (state.takeover.uncertainty is None or state.takeover.number < self.takeover):
            self._note_takeover(state)  # it was not in memory when this inbox took another's place

    def _restore(self, state: StreamReceiver, now: float) -> None:
        self.streams[state.stream] = state
        state.restore(now)

    def retire(self, now: float, most: int, spared: float) -> None:
        """Retire streams among the `most` that have been in memory longest: those that are idle and were not used for
        `spared` seconds. The next commit stores them as after a clean stop; then they may be forgotten
        (:meth:`forget`)."""
        for stream in list(islice(self.streams, most)):
            state = self.streams.pop(stream)
            self.streams[stream] = state
            if now - state.used_at >= spared:
                self._retire(state)

    def retire_these(self, streams: Iterable[Stream]) -> None:
        """The same for certain streams, as far as they are in memory and idle."""
        for stream in streams:
            state = self.streams.get(stream)
            if state is not None:
                self._retire(state)

    def _retire(self, state: StreamReceiver) -> None:
        if state.stream not in self.retiring and self._may_leave(state):
            self.retiring[state.stream] = state
            self.context.mark(state.stream)

    def forget(self, state: StreamReceiver, stored: bool) -> bool:
        """Forget a stream that was retired, if its commit is durable and it is still idle; otherwise return False.
        `stored`: the inbox knows it."""
        stream = state.stream
        if not self._may_leave(state):
            del self.retiring[stream]
            return False
        if stream in self.context.dirty:
            return False
        if not state.is_stored_exactly:
            self.context.mark(stream)
            return False
        del self.streams[stream], self.retiring[stream]
        self.context.forget(stream)
        self.waiting.forget(stream)
        self.known_elsewhere += stored
        return True

    def is_idle(self, state: StreamReceiver) -> bool:
        """Whether everything of a stream is settled and committed, and nothing is awaited."""
        return not self.waiting.of(state.stream) and state.is_idle

    def _may_leave(self, state: StreamReceiver) -> bool:
        return self.is_idle(state) and not state.joining.joins_soon()

    @property
    def places(self) -> int:
        """How many more streams fit into memory. Streams that gaps hold have as many places of their own."""
        return self.rules.max_streams - len(self.streams) + self.places_of_held

    @property
    def places_of_held(self) -> int:
        """How many of the streams in memory have places of their own."""
        return min(len(self.context.held), self.rules.max_streams)

    def open(self, stream: Stream) -> StreamReceiver | None:
        """Add a stream that is not in memory; None if there are too many."""
        if self.places <= 0:
            return None
        if len(self.streams) + self.known_elsewhere >= self.rules.max_known_streams:
            return None
        grave = self.tombstones.pop(stream, None)
        if grave is not None:  # it is known again, from where it was
            self.streams[stream] = grave
            self._note_missed_takeover(grave)
            grave.revive()
            return grave
        state = self.streams[stream] = StreamReceiver(stream, self.context)
        if self.succeeds:
            state.begin_after_takeover(self.takeover)
        return state


def _is_sound(announced: Announced) -> bool:
    """Whether the numbers make sense."""
    below = 0
    if len(announced.chain) > MAX_CHAIN:
        return False
    for epoch, _, first, last in announced.chain:
        if not (below < epoch <= announced.epoch and 1 <= first <= last + 1 and 1 <= last <= MAX_SEQ):
            return False
        below = epoch
    if announced.since is not None and not (
        1 <= announced.since[0] <= MAX_SEQ and 1 <= announced.since[1] <= MAX_SEQ
    ):
        return False
    if announced.reached is not None and not all(
        0 <= epoch <= MAX_SEQ and 1 <= number <= MAX_SEQ + 1 for epoch, number in announced.reached
    ):
        return False
    return announced.epoch <= MAX_SEQ and all(
        1 <= first <= last <= MAX_SEQ for _, first, last in announced.removed
    )
