"""The producer's side of the control plane: what groups and twins say, and what follows from it.

States come in from groups: how far they are, what they lack and want again. Statuses go out
(:mod:`~reliamsg.sending.announcing`), and so do repairs (:mod:`~reliamsg.sending.repairing`). A newly opened epoch
stays behind a gate until the named groups have answered a hello (:mod:`reliamsg.core.fencing`).

:meth:`Control.heard` and :meth:`Control.connected` are called on I/O threads; all else by the writer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from reliamsg.core.duplicate_filter import DuplicateFilter
from reliamsg.core.fencing import Conflict, Fence, Verdict
from reliamsg.errors import OutboxWriteError, ProducerConflict, ProducerFenced
from reliamsg.message import Stream
from reliamsg.sending.announcing import Announcing
from reliamsg.sending.book import Page
from reliamsg.sending.mailbox import Letter, Mailbox
from reliamsg.sending.repairing import Repairing
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox
from reliamsg.wire.address import call_address, producer_address
from reliamsg.wire.control import Span3, State, Status, StreamState, open_control
from reliamsg.wire.data import FrameError
from reliamsg.wire.limits import MAX_SEQ

if TYPE_CHECKING:
    from reliamsg.keys import KeyRing
    from reliamsg.sending.engine import Engine

__all__ = ["Control"]

FRAMES_AT_ONCE = 100
"""Frames looked at in one step, so that publishing is not held up."""
LISTEN_EVERY_S = 0.25
"""New topics are listened for together."""
ANSWER_AFTER_S = 1.0
"""A group that is behind is answered if nothing was told of the stream for so long: else that is what it answers. A
group that has not gone on since it was heard last is answered at most twice an announcement, so that the two do not
have each other say the same again and again; one that has just come calls, and is answered at once."""
RETRY_S = 1.0
"""After the disk refused, it is tried again so much later."""
FORGET_NUMBER_S = 5.0
"""A made-up number of a state is believed for so long."""
MAX_INBOXES = 1_000
"""Inboxes whose newest state's number is remembered."""
FORGET_EVERY_S = 60.0
MAX_SURPASSED = 1_000
"""Streams, and epochs of them, of which it is journalled that a group was further: anybody can make one up."""


class Control:
    """One producer's."""

    def __init__(
        self,
        engine: Engine,
        outbox: Outbox,
        keys: KeyRing | None,
        hello_timeout: float,
        status_interval: float,
        repair_bytes_per_second: float | None,
    ) -> None:
        self.rejected: Counter[str] = Counter()
        """Control frames that were refused, by reason."""
        self.gate: int | None = None
        """The first row that must not be sent yet."""
        self.announcing = Announcing(engine, outbox, keys, status_interval)
        self.repairing = Repairing(engine, outbox, self.announcing, repair_bytes_per_second)
        named = {b.group for b in engine.membership.bindings()}
        self.fence = Fence(
            outbox.epoch, outbox.incarnation, named, hello_timeout, keys is not None, outbox.never_offered()
        )
        self._engine = engine
        self._outbox = outbox
        self._keys = keys
        self._address = producer_address(engine.producer_id)
        self._heard = Mailbox()
        self._duplicates = DuplicateFilter()
        """Frames that came at one site, and need no second look when they come at another."""
        self._connected = False
        """A site was connected, and the writer has not seen to it."""
        self._unanswered: dict[str, set[Stream]] = {}
        """By named group, the streams of which the hello is not answered."""
        self._numbers: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """By group and inbox, the number of the newest state that requests were taken from, and when it was heard."""
        self._surpassed: set[tuple[Stream, int]] = set()
        """Streams of which a group was further than this outbox ever was, and in which epoch: that is journalled."""
        self._calls: dict[str, Stream] = {}
        self._listened = 0
        self._listen_at = self._forget_at = self._retry_at = float("-inf")

    def open(self) -> None:
        """The first time, before anything is sent."""
        engine, now = self._engine, self._engine.clock()
        if self.fence.verdict(now) is Verdict.SEND:
            self._offer()
        else:
            gated = self._outbox.gated()
            self.gate = engine.core.top + 1 if gated is None else gated
            for binding in engine.membership.bindings():
                stream = Stream(engine.producer_id, binding.topic, binding.partition)
                self._unanswered.setdefault(binding.group, set()).add(stream)
        self._listen(now)

    def removed(self, stream: Stream, epoch: int, first: int, last: int) -> None:
        """Messages were taken out: nobody gets them any more, and groups learn that at once."""
        self.repairing.queue.unavailable(stream, epoch, first, last)
        self.announcing.timetable.connected([stream], self._engine.clock())

    # -- on I/O threads -------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """A site was connected."""
        self._connected = True

    def heard(self, address: str, body: bytes, site: str) -> None:
        """Something came in at a control address, over a site. What is not sound, or not signed where it must be,
        takes no room and no time of the writer's; what groups say that are not named takes none of the named ones."""
        copy = self._duplicates.has((address, body))
        if copy and not self._proves_something(site):
            return
        try:
            frame = open_control(body, address, self._keys)
        except FrameError as error:
            with self._engine.lock:
                self.rejected[error.reason] += 1
            return
        with self._engine.lock:
            group = frame.group if isinstance(frame, State) else ""
            source = group if self._engine.membership.table.is_named(group) else ""
            if isinstance(frame, State) and source and frame.role == "active" and address == self._address:
                self._engine.links[site].heard_from(group, self._topics_of(group, frame))
            if copy:
                return
            if not self._heard.put(source, Letter(address, frame, len(body))):
                return
        self._duplicates.add((address, body))
        self._engine.wake()

    def _proves_something(self, site: str) -> bool:
        """Whether a state of some group would prove it at the site (P15)."""
        proving = self._engine.proving
        if not proving.is_needed(site):
            return False
        with self._engine.lock:
            return proving.listens_for(site, self._engine.membership.bindings())

    def _topics_of(self, group: str, state: State) -> list[tuple[str, int]]:
        """For which topics the group is named, of those that it tells of. With the engine's lock held."""
        table, producer = self._engine.membership.table, self._engine.producer_id
        return [
            (told.topic, told.partition)
            for told in state.streams
            if table.is_named(group, Stream(producer, told.topic, told.partition))
        ]

    def limit(self, top: int) -> int:
        """The highest row that may be sent. With the engine's lock held."""
        return top if self.gate is None else min(top, self.gate - 1)

    # -- the writer's share -----------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Do what is due."""
        if self._connected:
            self._connected = False
            self.fence.connected(now)
            self.announcing.timetable.connected(self._engine.membership.book.pages, now)
        for _ in range(min(FRAMES_AT_ONCE, len(self._heard))):
            with self._engine.lock:
                letter = self._heard.take()
            self._take(letter.address, letter.frame, now)
        self._judge(now)
        if self._engine.fatal is not None:
            return
        if len(self._engine.membership.book.pages) != self._listened and now >= self._listen_at:
            self._listen(now)
        if self.fence.hello_due(now):
            self.announcing.hello(now)
        self.announcing.run(now)
        self.repairing.run(now)
        if now >= self._forget_at:
            self._forget_at = now + FORGET_EVERY_S
            with self._engine.lock:
                self._engine.membership.table.forget(now)
            self.repairing.queue.forget(now)

    def deadline(self, now: float) -> float | None:
        """When :meth:`step` will have something to do."""
        if self._heard or self._connected:
            return now
        times = [self.announcing.timetable.next_deadline(), self.repairing.deadline(now)]
        times.append(self.fence.next_deadline(now, self._retry_at))
        if len(self._engine.membership.book.pages) != self._listened:
            times.append(self._listen_at)
        if self._retry_at > now:
            times.append(self._retry_at)
        return min((time for time in times if time is not None), default=None)

    def _listen(self, now: float) -> None:
        """Hear calls for all topics, and whoever speaks to this producer."""
        pages = self._engine.membership.book.pages
        self._listened, self._listen_at = len(pages), now + LISTEN_EVERY_S
        self._calls = {call_address(stream.topic, stream.partition): stream for stream in pages}
        for link in self._engine.links.values():
            link.transport.listen([self._address, *self._calls])

    # -- what is heard ------------------------------------------------------------------------------------------------

    def _take(self, address: str, frame: Status | State, now: float) -> None:
        if isinstance(frame, Status):
            if frame.producer == self._engine.producer_id and address == self._address:
                wall_ms = self._engine.wall_us() // 1000
                self._report(self.fence.twin_reported(frame.epoch, frame.incarnation, now, wall_ms))
        elif frame.role == "call":
            stream = self._calls.get(address)
            if stream is not None:
                self.announcing.heard(frame.group, frame.inbox, frame.number, frame.nonce)
                named = self._engine.membership.table.is_named(frame.group, stream)
                self.announcing.timetable.asked(frame.group, [stream], now, named=named)
        elif frame.role == "active" and address == self._address:
            self._state(frame, now)

    def _state(self, state: State, now: float) -> None:
        pages = self._engine.membership.book.pages
        self.announcing.heard(state.group, state.inbox, state.number, state.nonce)
        fresh = self._is_fresh(state, now)
        for told in state.streams:
            stream = Stream(self._engine.producer_id, told.topic, told.partition)
            page = pages.get(stream)
            if page is None:
                self._unknown_stream(state.group, stream, told, now)
            else:
                self._stream_state(state, stream, page, told, now, fresh)
        waiting = self._unanswered.get(state.group)
        if waiting is not None:
            for told in state.streams:
                waiting.discard(Stream(self._engine.producer_id, told.topic, told.partition))
            if not waiting:
                del self._unanswered[state.group]
                self.fence.answered(state.group)

    def _is_fresh(self, state: State, now: float) -> bool:
        """Whether requests in it count: an older state than the inbox's newest may be a replay. Without keys, after a
        silence anything goes: else one made-up state with a high number would end all requests."""
        key = (state.group, state.inbox)
        number, at = self._numbers.get(key, (0, now))
        if state.number < number and (self._keys is not None or now - at < FORGET_NUMBER_S):
            return False
        self._numbers[key] = state.number, now
        self._numbers.move_to_end(key)
        if len(self._numbers) > MAX_INBOXES:
            self._numbers.popitem(last=False)
        return True

    def _unknown_stream(self, group: str, stream: Stream, told: StreamState, now: float) -> None:
        """A group knows a stream of which this outbox has nothing: it is an older copy, or took the place of one that
        was lost."""
        self._hear_entered(group, stream, (), told, now)
        if 0 < told.entered[0] <= self._outbox.epoch:
            self._note_surpassed(stream, group, told)

    def _hear_entered(
        self, group: str, stream: Stream, chain: Iterable[tuple[int, int]], told: StreamState, now: float
    ) -> None:
        """A group tells which epoch it has entered: that may be of another history."""
        wall_ms = self._engine.wall_us() // 1000
        named = self._is_named(group)
        conflict = self.fence.reported(group, stream, told.entered, chain, now, wall_ms, named=named)
        self._report(conflict)
        if conflict is not None and not conflict.doubted:
            self._note_surpassed(stream, group, told)

    def _is_named(self, group: str) -> bool:
        """Whether the group is named by now, for whatever topic."""
        with self._engine.lock:
            return self._engine.membership.table.is_named(group)

    def _stream_state(
        self, state: State, stream: Stream, page: Page, told: StreamState, now: float, fresh: bool
    ) -> None:
        group = state.group
        membership, timetable = self._engine.membership, self.announcing.timetable
        chain = {link.epoch: link.incarnation for link in page.chain}
        self._hear_entered(group, stream, chain.items(), told, now)
        position = told.position
        if position[0] == told.entered[0] and chain.get(position[0], told.entered[1]) != told.entered[1]:
            position = (position[0], 1)  # the numbers are another history's
        known = chain.get(told.entered[0]) == told.entered[1]
        last = next((link.last for link in page.chain if link.epoch == position[0]), MAX_SEQ)
        if known and told.entered[0] == position[0] < self._outbox.epoch and position[1] > last + 1:
            # That epoch is over, and had more than is here: this outbox is an older copy of one that went on with it.
            self._note_surpassed(stream, group, told, (*told.entered, position[1] - 1))
        with self._engine.lock:
            tail = membership.table.tail(stream)
            if tail < position < (self._outbox.epoch, 1):
                # This outbox is an older copy of one that went on: the group has dealt with all that is held here. If
                # that were not believed before something is published, a full outbox would never have room again.
                self._note_surpassed(stream, group, told)
                position = tail
            went_on = membership.hear(
                stream, group, position, told.entered, now, told.high_water if known else 0
            )
            if fresh and known:
                membership.table.on_missing(stream, group, told.missing)
            member = membership.table.find(stream, group)
            behind = member is None or member.position < tail
            named = member is not None and member.named
            # An older copy of its inbox has to know how far it was, which is not in what everybody is told.
            told_at = self.announcing.told_at(stream)
            if fresh and member is not None and position < member.reported:
                told_at = member.answered_at
        if fresh and (told.wanted or told.missing):
            self.repairing.queue.request(
                group, stream, list(self._held(page, told.wanted)), now, missing=told.missing, named=named
            )
        if behind:
            timetable.resume([stream], now)
        if not self.announcing.is_answered(member, state.nonce):
            timetable.asked(group, [stream], now, named=named)
        elif behind:
            patience = 0.0 if went_on else timetable.interval(stream) / 2
            if now - told_at >= max(ANSWER_AFTER_S, patience):
                timetable.asked(group, [stream], now, named=named)

    def _note_surpassed(
        self, stream: Stream, group: str, told: StreamState, known: tuple[int, int, int] | None = None
    ) -> None:
        """What the group was given is in no journal but its own, and those of other groups. Once for each stream and
        epoch that a group entered. `known`: of an epoch that this outbox knows, its incarnation, and up to where the
        group had it."""
        key = stream, told.entered[0]
        if key in self._surpassed or len(self._surpassed) >= MAX_SURPASSED:
            return
        self._surpassed.add(key)
        own = self._outbox.epoch, self._outbox.incarnation
        detail: dict[str, Any] = {"position": list(told.position), "entered": told.entered[0]}
        if known is not None:
            epoch, incarnation, last = known
            detail["known"] = [epoch, f"{incarnation:016x}", last]
        self._engine.journal_buffer.add(Entry("surpassed", stream, *own, group=group, detail=detail))

    def _report(self, conflict: Conflict | None) -> None:
        """Tell the application of another history, if there is one."""
        if conflict is None:
            return
        who = f"group {conflict.group}, {conflict.stream}" if conflict.group else "another owner of its name"
        text = f"producer {self._engine.producer_id}: {who}: {conflict.reason}"
        self._engine.log.error("%s", text)
        self._engine.callbacks.report(ProducerConflict(text))

    def _held(self, page: Page, wanted: list[Span3]) -> Iterator[Span3]:
        """Of what is wanted, what ever was sent."""
        lasts = {link.epoch: link.last for link in page.chain if link.epoch <= self._outbox.offered}
        for epoch, first, last in wanted:
            last = min(last, lasts.get(epoch, 0))  # noqa: PLW2901
            if first <= last:
                yield epoch, first, last

    # -- the gate -----------------------------------------------------------------------------------------------------

    def _drop_unnamed(self) -> None:
        """Groups that are not named any more are not waited for."""
        for group in self.fence.awaited:
            if not self._is_named(group):
                self._unanswered.pop(group, None)
                self.fence.dropped(group)

    def _judge(self, now: float) -> None:
        """Open the gate, renumber what is behind it, or stop."""
        if now < self._retry_at:
            return
        self._drop_unnamed()
        verdict = self.fence.verdict(now)
        try:
            if verdict is Verdict.FENCED:
                self._stop()
            elif verdict is Verdict.RENUMBER:
                self._shut()
                self._engine.renumber(self.fence.above)
                self.fence.renumbered(self._outbox.epoch, self._outbox.incarnation)
                self._engine.log.warning(
                    "producer %s: a group knows of a later epoch; what was not sent yet is in epoch %d now",
                    self._engine.producer_id, self._outbox.epoch,
                )  # fmt: skip
            elif verdict is Verdict.WAIT:
                self._shut()
            elif self.gate is not None:
                self._open_gate(now)
        except OutboxWriteError:
            self._retry_at = now + RETRY_S
            raise

    def _shut(self) -> None:
        """Send nothing more that is published from now on: it begins another epoch, which can still be renumbered."""
        if self.gate is None:
            self._engine.next_epoch()
            with self._engine.lock:
                self.gate = self._engine.core.top + 1
            self.fence.began(self._outbox.epoch)

    def _offer(self) -> None:
        """All that is stored may be sent from here on, and keeps its numbers."""
        self._outbox.offer()
        self.fence.began(self._outbox.epoch)

    def _open_gate(self, now: float) -> None:
        self._offer()
        self._engine.probe("offered")
        with self._engine.lock:
            self.gate = None
        self._unanswered.clear()
        pages = self._engine.membership.book.pages
        self.announcing.timetable.published(
            [stream for stream, page in pages.items() if page.tail[0] == self._outbox.epoch], now
        )
        for link in self._engine.links.values():
            link.transport.wake()

    def _stop(self) -> None:
        epoch, incarnation = self.fence.fenced_by or (0, 0)
        detail = {"epoch": epoch, "incarnation": f"{incarnation:016x}"}
        entry = Entry("fenced", epoch=self._outbox.epoch, incarnation=self._outbox.incarnation, detail=detail)
        self._engine.stop_sending()
        self._engine.housekeeping.store_progress([entry])
        self._engine.probe("fenced")
        if self.fence.fencing_group:
            why = (
                f"group {self.fence.fencing_group!r} has entered epoch {epoch} of producer"
                f" {self._engine.producer_id!r}, above which no producer can move: have the group forget the stream"
                " (`reliamsg inbox forget`), then open this producer again"
            )
        else:
            why = (
                f"another owner of producer id {self._engine.producer_id!r} is alive, in epoch {epoch}, which is later"
                f" than this one's ({self._outbox.epoch}): was its outbox copied, or restored while it ran? Stop one of"
                " them"
            )
        self._engine.fail(ProducerFenced(f"{why}; what this one has not sent stays in its outbox"))
