"""The receiving side of the protocol: what arrives is placed, handed out in order, settled, and only then released.

:class:`ConsumerCore` composes, per stream, the epochs (:mod:`~reliamsg.core.chain`), their reorder state
(:mod:`~reliamsg.core.reorder`), the gap clock (:mod:`~reliamsg.core.gaps`), what producers said
(:mod:`~reliamsg.core.heard`) and requests for what is missing (:mod:`~reliamsg.core.asking`). It takes and gives
ranges; the bytes are its caller's. After any call look at ``urgent`` (a commit is wanted now), ``touched`` (streams
that may have something to hand out), ``conflicts`` and ``missed``; after a tick at :meth:`~ConsumerCore.asks`, after a
commit at ``moved``.

A commit goes in three steps: :meth:`~ConsumerCore.snapshot`, the caller's transaction, then
:meth:`~ConsumerCore.committed`, which returns the deliveries that brokers may forget, or
:meth:`~ConsumerCore.commit_failed`.

Not thread-safe: the caller holds one lock around every call. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from reliamsg.core.announced import Announced, Span3
from reliamsg.core.arrivals import Arrival, arrive
from reliamsg.core.asking import Ask, Jitter, ask
from reliamsg.core.challenges import Challenges
from reliamsg.core.hearing import hear
from reliamsg.core.horizon import Horizon
from reliamsg.core.joining import adopt, joins_soon
from reliamsg.core.letting_go import let_go
from reliamsg.core.passage import declare, follow
from reliamsg.core.ranges import Span
from reliamsg.core.redelivery import DeliveryRules, Offer
from reliamsg.core.reorder import Reorder
from reliamsg.core.report import Report
from reliamsg.core.retiring import is_idle
from reliamsg.core.snapshots import change_of, is_committed, report_of, restore_report, was_not_committed
from reliamsg.core.stream import Note, Snapshot, StreamState
from reliamsg.core.takeover import LastReport
from reliamsg.core.ticking import Kept, tick_stream
from reliamsg.core.waiting import QUARANTINE, REPAIRS, WaitingRoom
from reliamsg.message import Gap, Prev, Stream

__all__ = [
    "Announced", "Arrival", "Ask", "ConsumerCore", "Note", "Offer", "Report", "Rules", "Snapshot", "StreamState",
]  # fmt: skip

MAX_ASKS = 500
"""Requests that are made at once; the others follow at the next look."""
MAX_UNDECODABLE = 1_000
"""Ranges of an epoch of which it is remembered that a copy could not be read."""
MAX_FAR = 10_000
"""Streams of which it is known that far epochs wait in quarantine."""
MAX_PUT_OFF = 4
"""Words of other inboxes that are remembered of a stream without room, or about far epochs."""
FAR_LOOK_MS = 60_000
"""What else is too far ahead is looked for when the horizon has moved on by so much."""
MAX_REPORTED = 100
"""Conflicts of a stream that are reported; any further ones are only counted."""


@dataclass(frozen=True)
class Rules(DeliveryRules):
    """A consumer's settings, as far as the protocol needs them."""

    begin: Literal["earliest", "latest"] = "earliest"
    gap_timeout: float = 30.0
    max_streams: int = 10_000
    """Streams that are in memory at a time, since something of them is not settled; those beyond are refused. Up to as
    many more may be there that gaps hold."""
    max_known_streams: int = 5_000_000
    """Streams that are known at all, in memory or in the inbox."""
    skip_gaps: bool = False
    """An expired gap is declared at once; otherwise it is reported and waits for :meth:`ConsumerCore.accept`."""
    hold_gaps: bool = False
    """An expired gap holds its stream, and that alone, until it is filled or accepted."""
    nak_delay: float = 0.5
    """What is missing for so many seconds is asked for."""
    repair_timeout: float = 300.0
    """The clock of a gap waits so many seconds at most for a producer that says that it holds what is missing."""
    signed: bool = False
    """What arrives is authentic: so it makes sense to ask a producer what of it is new to the group."""
    seed: int = 0
    """Of the jitter between requests; should differ between groups."""


class ConsumerCore:
    """All streams of one group."""

    def __init__(self, rules: Rules, sites: dict[str, int], known_us: int = 0) -> None:
        """`sites`: each site's name and how many deliveries it lets wait unacknowledged. `known_us`: the latest that
        the clock was ever known to say, in µs since 1970."""
        self.rules = rules
        self.horizon = Horizon(known_us, rules.signed)
        self.challenges = Challenges()
        """Streams about which the caller asks their producers."""
        self.far: dict[Stream, int] = {}
        """Streams of which far epochs were seen, and the lowest of these; see :meth:`believed`."""
        self._put_off: dict[Stream, list[LastReport]] = {}
        """Where other inboxes stopped in epochs that are far, or in streams without room: gone on with once these are
        believed, and there is room."""
        self.streams: dict[Stream, StreamState] = {}
        self.waiting = WaitingRoom(sites)
        """Deliveries that brokers must keep for now."""
        self.notes: list[Note] = []
        """What is to be journalled with the next commit. The caller takes them out."""
        self.conflicts: list[tuple[Stream, int, str]] = []
        """(stream, epoch, what is wrong), each reported once. The caller takes them out."""
        self.missed: list[Gap] = []
        """Gaps that were passed by joining, and found out afterwards. The caller takes them out."""
        self.known_elsewhere = 0
        """Streams that the inbox knows and that are not in memory. Set by the caller."""
        self.graves: dict[Stream, StreamState] = {}
        """What is remembered of streams that were forgotten: of those about which the caller is about to say something.
        It sets this before that, and clears it after."""
        self.retiring: dict[Stream, StreamState] = {}
        """Idle streams that the next commit leaves as after a clean stop, so that they may be forgotten."""
        self.succeeded: dict[Stream, int] = {}
        """Since when another's place was taken: what it had told, for streams that were not in memory then."""
        self.held_up: list[Gap] = []
        """Gaps that began to hold their streams, each episode once. The caller takes them out."""
        self.holding: dict[Stream, StreamState] = {}
        """Streams that gaps hold, each until its episode ends."""
        self.urgent = False
        self.touched: dict[Stream, StreamState] = {}
        self.moved: set[Stream] = set()
        """Streams whose :meth:`report` changed with a commit. The caller takes them out."""
        self.moves = 0
        """How often a stream was joined or went on to another epoch."""
        self.jitter = Jitter(rules.seed)
        self.ask_queue: dict[Stream, StreamState] = {}
        """Streams with requests that are due."""
        self._dirty: dict[Stream, StreamState] = {}
        self._timed: dict[Stream, StreamState] = {}
        self._number = 0
        self.succeeds = False
        """Another inbox may have read streams that are not known here. Set before the first arrival, and to be kept."""
        self.takeover = 0
        """How often this inbox took the place of another. The same."""

    # -- arrivals ---------------------------------------------------------------------------------------

    def receive(
        self,
        site: str,
        stream: Stream,
        epoch: int,
        incarnation: int,
        prev: Prev | None,
        first: int,
        last: int,
        token: object,
        now: float,
        repair: bool = False,
        size: int = 0,
        replayed: bool = False,
        wall_us: int = 0,
        ts_us: int = 0,
    ) -> Arrival:
        """A verified envelope arrived: numbers `first` to `last` of `stream` in `epoch`.

        A delivery that is `deferred` is to be given again when ``moves`` has risen; one that is `refused` has
        left no trace here. A `repair` came at the group's own address: no broker waits for its acknowledgement,
        `token` is not used, and one that is deferred or refused may be dropped, since it is asked for again. Nothing
        but its `size` in bytes bounds how much of what was repaired is in memory. One that is `replayed` comes from the
        quarantine, which keeps it as a broker would: :meth:`committed` returns its token with the site
        :data:`~reliamsg.core.waiting.QUARANTINE`.

        `wall_us` is what the clock says, and `ts_us` the frame's newest timestamp, in µs since 1970. One whose epoch is
        too `far` ahead has left no trace here either; keep it, and give it again when :meth:`believed` says so.
        """
        self.horizon.look(wall_us)
        if self.is_far(stream, epoch):
            self.doubt(stream, epoch, now)
            return Arrival(far=True)
        self.horizon.learn(epoch, ts_us)
        if self._put_off:  # seldom: this is called for every batch
            self.adopt_after_all(stream, now)
        state = self.streams.get(stream)
        if state is None:
            grave = self.graves.get(stream)
            if grave is not None and grave.is_done_with(epoch, incarnation, first, last):
                reason = (
                    "late_or_duplicate" if grave.gaps.closed.may_have_forgotten(epoch, first) else "forgotten"
                )
                self.note(Note("duplicate", stream, epoch, incarnation, first, last, site, reason))
                return Arrival(release=True)
            state = self.open(stream)
            if state is None:
                return Arrival(refused="too-many-streams")
        if self.retiring:
            self.retiring.pop(stream, None)
        state.used_at = now
        reason = "repair" if repair else ""
        known, arrival = arrive(self, state, site, (epoch, incarnation, prev), first, last, now, reason)
        if arrival.new and state.takeover.unresolved is not None:
            state.flag_entered()
            if self.rules.signed:
                self.challenges.want(stream, now)
        if not (arrival.release or arrival.deferred):
            held = known if not arrival.quarantine else None
            at, token = (REPAIRS, None) if repair else (QUARANTINE if replayed else site, token)
            ended = held is None or (held.last is not None and held.last < last)
            after = ended or bool(arrival.late)
            self._wait(state, held, at, token, first, last, now, after, size)
        return arrival

    def _wait(
        self,
        state: StreamState,
        known: Reorder | None,
        site: str,
        token: object,
        first: int,
        last: int,
        now: float,
        next_commit: bool,
        size: int,
    ) -> None:
        """Register a delivery whose broker must keep it for now."""
        ahead = known is not None and state.is_held_up(known, first)
        waiting = self.waiting.enter(site, token, state, known, (first, last), now, ahead, size)
        if next_commit:
            waiting.after = self._number + 1

    def undecodable(
        self, stream: Stream, epoch: int, incarnation: int, first: int, last: int, now: float | None = None
    ) -> None:
        """A copy of these numbers came that can't be read: if nothing better comes, that is why. With `now` they are
        known to exist from now on, and asked for."""
        state = self.streams.get(stream)
        known = state.live.get(epoch) if state is not None else None
        if known is None or known.incarnation != incarnation:
            return
        first = max(first, known.position)
        if first <= last and known.undecodable.intervals < MAX_UNDECODABLE:
            for span in known.held.missing(first, last):
                for part in known.settled.missing(*span):
                    known.undecodable.add(*part)
            if now is not None and state is not None and known.last is None:
                known.announced = max(known.announced, last)
                follow(self, state, now)

    def reopen(self, stream: Stream, epoch: int, first: int, last: int, site: str, now: float) -> set[str]:
        """Bytes that came from `site` and were placed turned out unreadable; wait for another copy.

        Returns the sites that delivered a duplicate whose bytes were not kept: they must deliver it again.
        """
        state = self.streams[stream]
        known = state.live[epoch]
        known.reopen(first, last)
        if known.last is None:
            known.announced = max(known.announced, last)
        sites = set()
        for waiting in state.waiting:
            if waiting.known is not known or waiting.first > last or waiting.last < first:
                continue
            if waiting.site == site:
                waiting.known = None
                waiting.after = self._number + 1
            elif waiting.site not in (REPAIRS, QUARANTINE):  # what was repaired is asked for again
                sites.add(waiting.site)
        self._mark(state, urgent=True)
        follow(self, state, now)
        return sites

    def is_behind_hold(self, stream: Stream, epoch: int, incarnation: int, first: int, last: int) -> bool:
        """Whether a delivery brings anything new, all of it behind the gap that holds its stream: it is of no use
        before that is filled or accepted. The caller may keep it until then instead of giving it to :meth:`receive`."""
        state = self.streams.get(stream) if stream in self.holding else None
        if state is None or not state.is_behind_hold(epoch, first) or self.is_far(stream, epoch):
            return False
        known = state.live.get(epoch)
        if known is None:
            return state.is_ahead(epoch)
        return known.incarnation == incarnation and any(
            known.settled.missing(*span) for span in known.held.missing(first, last)
        )

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
        Its broker may forget it with the next commit. False where the producer is not known to keep it."""
        state = self.holding.get(stream)
        return state is not None and let_go(self, state, (epoch, incarnation, prev), first, last, now)

    def kept(self, stream: Stream, epoch: int, first: int, now: float) -> None:
        """The caller keeps `first` and what follows, and gives it when the stream has come to it. So what is missing
        before that is a gap of its own, which may expire."""
        state = self.streams.get(stream)
        known = None if state is None else state.current
        if state is None or known is None or known.epoch != epoch or known.last is not None:
            return
        if first > known.cursor and not known.cursor < known.elsewhere <= first:
            known.elsewhere = first
            known.announced = max(known.announced, first - 1)
            follow(self, state, now)

    def assign(self, stream: Stream) -> int:
        """The number for the next message that came without identity."""
        state = self.streams.get(stream)
        known = state.current if state is not None else None
        return 1 if known is None else max(known.highest + 1, known.redelivered_below)

    # -- status and state -------------------------------------------------------------------------------

    def announce(self, site: str, announced: Announced, now: float, wall_us: int = 0) -> str:
        """A verified status was heard at `site`, and says this about one stream. `wall_us` is what the clock says.

        Returns why there is no room for the stream, or that its epoch is too far ahead; empty where it was taken in.
        Call :meth:`tick` and :meth:`asks` soon: what is said takes effect a moment later, since what it tells of may be
        on its way.
        """
        self.horizon.look(wall_us)
        return hear(self, announced, site, now)

    def is_far(self, stream: Stream, epoch: int) -> bool:
        """Whether an epoch of a stream is too far ahead to be believed without its producer's answer."""
        if not (stream.producer and self.horizon.is_far(epoch)):
            return False
        state = self.streams.get(stream)
        if state is None:
            return True
        return state.is_ahead(epoch) and epoch not in state.live and self.horizon.is_far(epoch, state.vouched)

    def doubt(self, stream: Stream, epoch: int, now: float) -> None:
        """Have the producer asked about an epoch that is far ahead."""
        self.challenges.want(stream, now)
        if stream in self.far or len(self.far) < MAX_FAR:
            self.far[stream] = min(epoch, self.far.get(stream, epoch))

    def vouch(self, stream: Stream, epoch: int) -> bool:
        """The producer, or an operator, says that an epoch is what it seems. False where there is no room for the
        stream."""
        state = self.streams.get(stream) or self.open(stream)
        if state is None:
            return False
        if epoch > state.vouched:
            state.vouched, state.history_changed = epoch, True
            self._mark(state)
            self.moves += 1
        self.horizon.learn(epoch)
        return True

    def believed(self) -> list[tuple[Stream, int]]:
        """Streams of which what was too far ahead is not any more, and up to which epoch. To be asked now and then."""
        found: list[tuple[Stream, int]] = []
        for stream, epoch in self.far.items():
            if not self.is_far(stream, epoch):
                state = self.streams.get(stream)
                found.append((stream, self.horizon.limit(0 if state is None else state.vouched)))
        for stream, limit in found:
            self.far[stream] = limit + FAR_LOOK_MS
        return found

    def asks(
        self, now: float, only_heads: bool = False, only_head_of: Callable[[Stream], bool] | None = None
    ) -> list[Ask]:
        """Requests that are due: send each to its stream's producer, with :meth:`report`. :meth:`tick` returns when
        to look again. With `only_heads` nothing is asked for that could not be handed out at once (the inbox is
        full); `only_head_of` says of which streams that holds anyway (the caller keeps what comes behind). It holds of
        those, too, that gaps hold and that left what comes behind to their producers."""
        found: list[Ask] = []
        while self.ask_queue and len(found) < MAX_ASKS:
            state = self.ask_queue.pop(next(iter(self.ask_queue)))
            head = only_heads or (only_head_of is not None and only_head_of(state.stream))
            head = head or (state.is_held and state.has_let_go)
            request = ask(self, state, now, head)
            self.time(state)
            if request is not None:
                found.append(request)
        return found

    def report(self, stream: Stream) -> Report:
        """What is committed of a stream, and what it lacks; an empty report where it is not known.

        ``moved`` holds the streams whose committed values changed; the caller takes them out.
        """
        state = self.streams.get(stream)
        return Report() if state is None else report_of(state)

    def adopt(
        self,
        stream: Stream,
        entered: tuple[int, int],
        position: tuple[int, int],
        high_water: int,
        now: float,
        accepted: tuple[Span3, ...] = (),
    ) -> bool:
        """Go on where another inbox of the group stopped: with the report that it sent last. What may have been
        handed out by it is flagged; gaps that were accepted there are accepted. A stream that is known here and is
        behind goes on there, and forgets what it holds from before: look at all of it again. False where it is not
        behind (it stays where it is, and what may have been handed out is flagged), or another incarnation is known
        here. Where there is no room for the stream, or the report is of an epoch that is far ahead, that happens as
        soon as there is room, and the epoch is believed, if ever: with the first call of :meth:`receive` or
        :meth:`announce` after that, in which ``moves`` rises."""
        self.horizon.learn(entered[0])
        told = LastReport(position, entered, high_water, accepted)
        state = self.streams.get(stream)
        far = self.is_far(stream, max(entered[0], position[0]))
        if state is None and not far:
            state = self.open(stream)
        if state is None or far:
            if len(self._put_off) < MAX_FAR or stream in self._put_off:
                said = self._put_off.setdefault(stream, [])
                said += [told] if len(said) < MAX_PUT_OFF else []
            return False
        done = adopt(self, state, told)
        follow(self, state, now)
        return done

    def adopt_after_all(self, stream: Stream, now: float) -> None:
        """Go on where another inbox of the group stopped, if that had been put off."""
        if stream not in self._put_off:
            return
        said = self._put_off[stream]
        believed = [one for one in said if not self.is_far(stream, max(one.entered[0], one.position[0]))]
        if believed and stream not in self.streams and self.open(stream) is None:
            believed = []
        left = self._put_off[stream] = [one for one in said if one not in believed]
        if not left:
            del self._put_off[stream]
        for one in sorted(believed, key=lambda one: one.position):
            self.adopt(stream, one.entered, one.position, one.high_water, now, one.accepted)

    def succeed(self, told: Mapping[Stream, int]) -> None:
        """This inbox takes the place of another that may have read until now. After :meth:`adopt`. `told`: the latest
        epoch of each stream of which that one had told what it may have handed out. All else that exists by now may
        have been handed out as well: it is flagged."""
        self.succeeds = True
        self.succeeded = dict(told)
        self.takeover += 1
        for state in self.streams.values():
            state.proof = None
            self._doubt_again(state)

    def _doubt_again(self, state: StreamState) -> None:
        """Another inbox may have gone on with the stream, whatever was found out about any before that one."""
        if state.stream.producer:
            state.takeover.begin(self.succeeded.get(state.stream, 0), self.takeover)
            state.history_changed = True
            state.flag_entered()
            self._mark(state)

    # -- handing out ------------------------------------------------------------------------------------

    def persisted(self, stream: Stream, epoch: int, first: int, last: int) -> None:
        """The bytes of these held numbers are committed to the inbox."""
        state = self.streams[stream]
        known = state.live.get(epoch)
        if known is not None:
            for span in known.held.overlap(first, last):
                known.persisted.add(*span)

    def offer(self, state: StreamState, now: float, unit: int) -> Offer | None:
        """What could be handed out of a stream next; `unit` is how many the application takes at once."""
        if state.current is None:
            return None
        found, wants_commit = state.redelivery.offer(self.rules, state.entered, now, unit)
        if wants_commit:
            self._mark(state, urgent=True)
        return found

    def take(
        self, state: StreamState, offered: Offer, last: int, now: float, *, giving: bool = False
    ) -> None:
        """The offer is accepted, up to `last`. `giving`: the application gets it bit by bit, until :meth:`given`."""
        known = state.live[offered.epoch]
        state.redelivery.take(known, offered, last)
        state.giving = giving
        if known.cursor + state.reserve // 2 > known.high_water:
            self._mark(state)
        if known.deliverable() is None:  # find out what the stream waits for
            follow(self, state, now)

    def given(self, state: StreamState, now: float) -> None:
        """The application was given all that was taken of a stream, or what it was not given came back."""
        state.giving = False
        if len(state.live) > 1 and state.next_epoch() is not None:
            follow(self, state, now)

    def untake(self, state: StreamState, offered: Offer, first: int, last: int, now: float) -> None:
        """`first` to `last`, the end of what was taken, did not reach the application after all."""
        known = state.live.get(offered.epoch)
        if known is None:
            return
        first = max(first, known.position)  # another inbox may have settled some of it meanwhile
        state.redelivery.untake(known, offered, first, last)
        if not offered.retry:
            follow(self, state, now)
        self.touch(state)

    def acknowledge(self, stream: Stream, epoch: int, first: int, last: int, now: float) -> None:
        """The application dealt with `first` to `last`. Durable with the next commit."""
        state = self.streams.get(stream)
        known = None if state is None else state.live.get(epoch)
        if state is None or known is None:
            return
        for span in known.acknowledge(first, last):
            self._settled(state, known, "acknowledged", span, "", now)

    def bury(self, stream: Stream, epoch: int, seq: int, reason: str, now: float) -> bool:
        """A message goes to the dead letters: it counts as acknowledged. False if it was settled before."""
        state = self.streams.get(stream)
        known = None if state is None else state.live.get(epoch)
        if state is None or known is None or known.held.run_from(seq) is None:
            return False
        known.settle(seq, seq)
        self._settled(state, known, "dead_lettered", (seq, seq), reason, now)
        self._mark(state, urgent=True)
        return True

    def _settled(
        self, state: StreamState, known: Reorder, kind: str, span: Span, reason: str, now: float
    ) -> None:
        self.note_range(kind, state, known.epoch, known.incarnation, *span, reason)
        if state.redelivery.counts:
            state.redelivery.settled(known.epoch, span)
        self._mark(state)
        if known.last is not None or state.gaps.clock.target is not None:
            follow(self, state, now)
        self.touch(state)

    def fail(
        self, stream: Stream, epoch: int, first: int, last: int, now: float, counts: bool = True
    ) -> list[int]:
        """Handling raised. Returns the numbers that have used up their deliveries; the others come again. Unless it
        `counts`, this delivery uses up none: it was not the messages' fault."""
        state = self.streams.get(stream)
        known = None if state is None else state.live.get(epoch)
        if state is None or known is None:
            return []
        spent = state.redelivery.fail(self.rules, known, (first, last), now, counts)
        self.time(state)
        return spent

    # -- gaps -------------------------------------------------------------------------------------------

    def accept(self, gap: Gap, now: float) -> bool:
        """Move past a gap and declare it. False when it has been filled or passed meanwhile."""
        state = self.streams.get(gap.stream)
        if state is None:
            return False
        return declare(self, state, gap, now)

    def tick(self, now: float, paused: bool = False, kept: Kept | None = None) -> float | None:
        """Let the clocks run up to `now`, or (`paused`) all but those of gaps: what is missing may be at a broker, and
        can't be taken in before the application goes on. A gap of which the caller has anything `kept`, to be given
        later, does not expire. Returns when to call again; None when nothing is timed."""
        deadline: float | None = now + 0.05 if self.ask_queue else None
        connected = self.waiting.any_connected
        for state in list(self._timed.values()):
            at: float | None = state.look_at
            if state.look_at <= now:
                at = tick_stream(self, state, now, connected, paused, kept)
                state.look_at = 0.0 if at is None else at
            if at is None:
                del self._timed[state.stream]
            else:
                deadline = at if deadline is None else min(deadline, at)
        return deadline

    @property
    def any_gap(self) -> bool:
        """Whether messages that are missing hold up any stream."""
        return any(state.gaps.clock.target is not None for state in self._timed.values())

    # -- commits ----------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self._dirty or self.notes)

    def snapshot(self, closing: bool = False) -> Snapshot:
        """What the next commit must hold. With `closing`, high-water marks become exact."""
        self._number += 1
        retiring = self.retiring
        snapshot = Snapshot(
            self._number,
            [change_of(state, closing or state.stream in retiring) for state in self._dirty.values()],
        )
        self._dirty.clear()
        self.urgent = False
        return snapshot

    def committed(self, snapshot: Snapshot) -> list[tuple[str, object]]:
        """The commit is on disk. Returns (site, token) of the deliveries that brokers may forget now."""
        for change in snapshot.changes:
            if is_committed(change) and change.state.stream.producer:
                self.moved.add(change.state.stream)
            self.touch(change.state)
        released: list[tuple[str, object]] = []
        for state in self._waiting_in(snapshot):
            if state.waiting:
                released += self.waiting.leave(state, snapshot.number)
        return released

    def _waiting_in(self, snapshot: Snapshot) -> Iterable[StreamState]:
        found = {change.state.stream: change.state for change in snapshot.changes}
        for stream in snapshot.also:
            if stream in self.streams:
                found.setdefault(stream, self.streams[stream])
        return found.values()

    def commit_failed(self, snapshot: Snapshot) -> None:
        """Nothing of the snapshot was stored: all of it belongs to the next one."""
        for change in snapshot.changes:
            self._dirty[change.state.stream] = change.state
            was_not_committed(change)

    # -- at the start -----------------------------------------------------------------------------------

    def restore(self, state: StreamState, now: float) -> None:
        """Take over a stream as the inbox holds it."""
        self._restore(state, now)
        self._mark(state)

    def restore_retired(self, state: StreamState, now: float) -> None:
        """The same of one that had been forgotten: it is as it is on disk."""
        self.known_elsewhere -= 1
        self._doubt_absent(state)
        self._restore(state, now)

    def _doubt_absent(self, state: StreamState) -> None:
        if self.succeeds and (state.takeover.uncertainty is None or state.takeover.number < self.takeover):
            self._doubt_again(state)  # it was not in memory when this inbox took another's place

    def _restore(self, state: StreamState, now: float) -> None:
        self.streams[state.stream] = state
        state.used_at = now
        restore_report(state)
        follow(self, state, now)
        self.touch(state)

    def retire(self, now: float, most: int, spared: float) -> None:
        """Look at up to `most` streams, those that were longest in memory first, and have those that are idle, and
        were not used for `spared` seconds, left as after a clean stop with the next commit: then they may be forgotten
        (:meth:`forget`)."""
        for stream in list(islice(self.streams, most)):
            state = self.streams.pop(stream)
            self.streams[stream] = state
            if now - state.used_at >= spared:
                self._retire(state)

    def retire_these(self, streams: Iterable[Stream]) -> None:
        """The same of certain streams, as far as they are in memory and idle."""
        for stream in streams:
            state = self.streams.get(stream)
            if state is not None:
                self._retire(state)

    def _retire(self, state: StreamState) -> None:
        if state.stream not in self.retiring and self._may_leave(state):
            self.retiring[state.stream] = state
            self._mark(state)

    def forget(self, state: StreamState, stored: bool) -> bool:
        """Forget a stream that was retired, if its commit is on disk and it is still idle; False where not yet.
        `stored`: the inbox knows it."""
        stream, known = state.stream, state.current
        if not self._may_leave(state):
            del self.retiring[stream]
            return False
        if stream in self._dirty:
            return False
        # What may have been handed out before an unclean stop stays in the mark.
        if known is not None and (
            known.high_water != max(known.position, known.redelivered_below)
            or known.safe_position != known.position
        ):
            self._mark(state)
            return False
        del self.streams[stream], self.retiring[stream]
        for found in (self.touched, self.ask_queue, self._timed, self.holding):
            found.pop(stream, None)
        self.known_elsewhere += stored
        return True

    def _may_leave(self, state: StreamState) -> bool:
        return is_idle(state) and not joins_soon(self, state)

    @property
    def places(self) -> int:
        """For so many more streams there is room in memory. Those that gaps hold have as many places of their own."""
        return self.rules.max_streams - len(self.streams) + self.places_of_held

    @property
    def places_of_held(self) -> int:
        """How many of the streams in memory have places of their own."""
        return min(len(self.holding), self.rules.max_streams)

    # -- for the modules that this one is composed of -----------------------------------------------------

    def open(self, stream: Stream) -> StreamState | None:
        """A stream that was not known; None where there are too many."""
        if self.places <= 0:
            return None
        if len(self.streams) + self.known_elsewhere >= self.rules.max_known_streams:
            return None
        grave = self.graves.pop(stream, None)
        if grave is not None:  # it is known again, from where it was
            self.streams[stream] = grave
            self._doubt_absent(grave)
            restore_report(grave)
            grave.history_changed = True  # all of it is to be stored
            self._mark(grave)
            return grave
        state = self.streams[stream] = StreamState(stream)
        if self.succeeds and stream.producer:
            # Until the stream is known to the inbox, this is so after each start.
            state.takeover.begin(0, self.takeover)
        return state

    def touch(self, state: StreamState) -> None:
        self.touched[state.stream] = state

    def time(self, state: StreamState) -> None:
        """The stream's clock or backoff is to be looked at by the next ``tick()``."""
        state.look_at = 0.0
        self._timed[state.stream] = state

    def mark(self, state: StreamState, urgent: bool = False) -> None:
        self._mark(state, urgent)

    def _mark(self, state: StreamState, urgent: bool = False) -> None:
        self._dirty[state.stream] = state
        if urgent:
            self.urgent = True

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def note_range(
        self,
        kind: str,
        state: StreamState,
        epoch: int,
        incarnation: int,
        first: int,
        last: int,
        reason: str = "",
    ) -> None:
        self.notes.append(Note(kind, state.stream, epoch, incarnation, first, last, reason=reason))

    def report_conflict(self, state: StreamState, epoch: int, incarnation: int, reason: str) -> bool:
        """Tell of a conflict, once for each epoch and incarnation; False where it was told before."""
        key = (epoch, incarnation)
        if key in state.reported or len(state.reported) >= MAX_REPORTED:
            return False
        state.reported.add(key)
        self.conflicts.append((state.stream, epoch, reason))
        return True
