"""What groups and other owners of the producer's name report, and what follows from it.

Groups report their states: how far they are, what they lack, and what they want sent again. Answers are announcements
(:mod:`~reliamsg.producer.announcements`) and repairs (:mod:`~reliamsg.producer.repairs`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from reliamsg.errors import ProducerConflict
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.producer.announcements import Announcements
from reliamsg.producer.control_queue import ControlQueue
from reliamsg.producer.epoch_gate import EpochGate
from reliamsg.producer.groups import Groups
from reliamsg.producer.repairs import RepairSender
from reliamsg.producer.state import Shared
from reliamsg.producer.streams import StreamInfo
from reliamsg.protocol.sender.fencing import Conflict
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox
from reliamsg.wire.address import call_address, producer_address
from reliamsg.wire.control import Span3, State, Status, StreamState
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["ControlHandler"]

log: Log = Log("reliamsg.producer")

FRAMES_AT_ONCE = 100
"""Frames handled in one step, so that publishing is not held up."""
LISTEN_EVERY_S = 0.25
"""New topics are listened for together."""
ANSWER_AFTER_S = 1.0
"""A group that is behind is answered if the stream was not announced for this long: otherwise it is answering that
announcement. A group that has not come further since its last state is answered at most twice for each announcement, so
that the two do not keep repeating themselves; a group that has just started sends a call, and is answered at once."""
FORGET_NUMBER_S = 5.0
"""How long a forged state number is believed."""
MAX_INBOXES = 1_000
"""Inboxes whose newest state's number is remembered."""
FORGET_EVERY_S = 60.0
MAX_SURPASSED = 1_000
"""Streams, and epochs of them, for which it is journalled that a group was further: they can be forged."""


class ControlHandler:
    """One producer's. Only the writer uses it."""

    def __init__(
        self, shared: Shared, outbox: Outbox, queue: ControlQueue, gate: EpochGate, groups: Groups,
        announcements: Announcements, repairs: RepairSender,
    ) -> None:  # fmt: skip
        self._shared, self._outbox = shared, outbox
        self._queue, self._gate, self._groups = queue, gate, groups
        self._announcements, self._repairs = announcements, repairs
        self._address = producer_address(shared.producer_id)
        self._conflicts: list[ProducerConflict] = []
        """To be reported."""
        self._numbers: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """By group and inbox, the number of the newest state that requests were taken from, and when it arrived."""
        self._surpassed: set[tuple[Stream, int]] = set()
        """Streams of which a group was further than this outbox ever was, and in which epoch: that is journalled."""
        self._calls: dict[str, Stream] = {}
        """By the address to which groups send calls."""
        self.listened: int = 0
        """How many streams there were when addresses were last listened to."""
        self.listen_at: float = float("-inf")
        self.forget_at: float = float("-inf")
        """When :meth:`addresses` is to be called again if there are more streams, and when :meth:`forget` is."""

    def handle(self, now: float) -> list[ProducerConflict]:
        """Handle some of the frames that wait. Returns conflicts to report."""
        queue, lock = self._queue, self._shared.lock
        if queue.connected:
            queue.connected.clear()
            self._gate.connected(now)
            self._announcements.timetable.connected(self._shared.streams.by_stream, now)
        for _ in range(min(FRAMES_AT_ONCE, queue.count)):
            with lock:
                frame = queue.take()
            self._handle(frame.address, frame.content, now)
        found, self._conflicts = self._conflicts, []
        return found

    def addresses(self, now: float) -> list[str]:
        """The addresses to listen to from now on: those of calls for all topics, and the one of this producer."""
        streams = self._shared.streams.by_stream
        self.listened, self.listen_at = len(streams), now + LISTEN_EVERY_S
        self._calls = {call_address(stream.topic, stream.partition): stream for stream in streams}
        return [self._address, *self._calls]

    def forget(self, now: float) -> None:
        """Forget groups that have fallen silent."""
        self.forget_at = now + FORGET_EVERY_S
        with self._shared.lock:
            self._shared.table.forget(now)
        self._repairs.queue.forget(now)

    # -- frames -----------------------------------------------------------------------------------------------

    def _handle(self, address: str, frame: Status | State, now: float) -> None:
        if isinstance(frame, Status):
            if frame.producer == self._shared.producer_id and address == self._address:
                self._report(self._gate.on_twin(frame, now))
        elif frame.role == "call":
            stream = self._calls.get(address)
            if stream is not None:
                self._announcements.on_inbox(frame.group, frame.inbox, frame.number, frame.nonce)
                self._ask(frame.group, stream, now, self._shared.table.is_named(frame.group, stream))
        elif frame.role == "active" and address == self._address:
            self._handle_state(frame, now)

    def _ask(self, group: str, stream: Stream, now: float, named: bool) -> None:
        """A group is to be answered about a stream."""
        self._announcements.timetable.asked(group, [stream], now, named=named)

    def _handle_state(self, state: State, now: float) -> None:
        self._announcements.on_inbox(state.group, state.inbox, state.number, state.nonce)
        fresh = self._is_fresh(state, now)
        streams = []
        for reported in state.streams:
            stream = Stream(self._shared.producer_id, reported.topic, reported.partition)
            streams.append(stream)
            info = self._shared.streams.by_stream.get(stream)
            if info is None:
                self._handle_unknown_stream(state.group, stream, reported, now)
            else:
                self._handle_stream_state(state, stream, info, reported, now, fresh)
        self._gate.answered(state.group, streams)

    def _is_fresh(self, state: State, now: float) -> bool:
        """Whether its requests count: a state that is older than the inbox's newest may be a replay. Without keys any
        state counts after a silence: otherwise one forged state with a high number would end all requests."""
        key = (state.group, state.inbox)
        number, at = self._numbers.get(key, (0, now))
        if state.number < number and (self._shared.settings.keys is not None or now - at < FORGET_NUMBER_S):
            return False
        self._numbers[key] = state.number, now
        self._numbers.move_to_end(key)
        if len(self._numbers) > MAX_INBOXES:
            self._numbers.popitem(last=False)
        return True

    def _handle_unknown_stream(self, group: str, stream: Stream, reported: StreamState, now: float) -> None:
        """A group knows a stream that this outbox does not have: the outbox is an older copy, or replaces one that was
        lost."""
        self._check_entered(group, stream, (), reported, now)
        if 0 < reported.entered[0] <= self._outbox.epoch:
            self._note_surpassed(stream, group, reported)

    def _check_entered(
        self, group: str, stream: Stream, chain: Iterable[tuple[int, int]], reported: StreamState, now: float
    ) -> None:
        """The epoch that a group has entered may be of another history."""
        conflict = self._gate.on_report(group, stream, reported.entered, chain, now)
        self._report(conflict)
        if conflict is not None and not conflict.doubted:
            self._note_surpassed(stream, group, reported)

    def _handle_stream_state(
        self, state: State, stream: Stream, info: StreamInfo, reported: StreamState, now: float, fresh: bool
    ) -> None:
        group = state.group
        table, timetable = self._shared.table, self._announcements.timetable
        chain = {link.epoch: link.incarnation for link in info.chain}
        self._check_entered(group, stream, chain.items(), reported, now)
        position = reported.position
        if (
            position[0] == reported.entered[0]
            and chain.get(position[0], reported.entered[1]) != reported.entered[1]
        ):
            position = (position[0], 1)  # the numbers are another history's
        known = chain.get(reported.entered[0]) == reported.entered[1]
        last = next((link.last for link in info.chain if link.epoch == position[0]), MAX_SEQ)
        if known and reported.entered[0] == position[0] < self._outbox.epoch and position[1] > last + 1:
            # That epoch is over, and had more than is here: this outbox is an older copy of one that continued it.
            self._note_surpassed(stream, group, reported, (*reported.entered, position[1] - 1))
        with self._shared.lock:
            tail = table.tail(stream)
            if tail < position < (self._outbox.epoch, 1):
                # This outbox is an older copy: the group is done with all that is held here. If that were not believed
                # before something is published, a full outbox would never have room again.
                self._note_surpassed(stream, group, reported)
                position = tail
            advanced = self._groups.on_report(stream, group, position, reported, now, known, state.journal)
            if fresh and known:
                table.on_missing(stream, group, reported.missing)
            member = table.find(stream, group)
            behind = member is None or member.position < tail
            named = member is not None and member.named
            # A restored copy of its inbox has to learn how far it was, which is not in announcements to everybody.
            announced_at = self._announcements.announced_at(stream)
            if fresh and member is not None and position < member.reported:
                announced_at = member.answered_at
        if fresh and (reported.wanted or reported.missing):
            wanted = list(self._held(info, reported.wanted))
            self._repairs.request(group, stream, wanted, reported.missing, now, named=named)
        if behind:
            timetable.resume([stream], now)
        if not self._announcements.is_answered(member, state.nonce):
            self._ask(group, stream, now, named)
        elif behind:
            patience = 0.0 if advanced else timetable.interval(stream) / 2
            if now - announced_at >= max(ANSWER_AFTER_S, patience):
                self._ask(group, stream, now, named)

    def _note_surpassed(
        self, stream: Stream, group: str, reported: StreamState, known: tuple[int, int, int] | None = None
    ) -> None:
        """What the group received is in no journal but its own, and those of other groups. Journalled once for each
        stream and epoch that a group entered. `known`: of an epoch that this outbox knows, its incarnation, and the
        last number that the group had of it."""
        key = stream, reported.entered[0]
        if key in self._surpassed or len(self._surpassed) >= MAX_SURPASSED:
            return
        self._surpassed.add(key)
        own = self._outbox.epoch, self._outbox.incarnation
        detail: dict[str, Any] = {"position": list(reported.position), "entered": reported.entered[0]}
        if known is not None:
            epoch, incarnation, last = known
            detail["known"] = [epoch, f"{incarnation:016x}", last]
        with self._shared.lock:
            self._shared.journal.add(Entry("surpassed", stream, *own, group=group, detail=detail))

    def _report(self, conflict: Conflict | None) -> None:
        """Report another history to the application, if there is one."""
        if conflict is None:
            return
        who = f"group {conflict.group}, {conflict.stream}" if conflict.group else "another owner of its name"
        text = f"producer {self._shared.producer_id}: {who}: {conflict.reason}"
        log.error(
            "producer.conflict", "%(reason)s",
            producer=self._shared.producer_id, group=conflict.group or None, reason=text,
        )  # fmt: skip
        self._conflicts.append(ProducerConflict(text))

    def _held(self, info: StreamInfo, wanted: list[Span3]) -> Iterator[Span3]:
        """Those of the requested ranges that were ever sent."""
        lasts = {link.epoch: link.last for link in info.chain if link.epoch <= self._outbox.offered}
        for epoch, first, last in wanted:
            last = min(last, lasts.get(epoch, 0))  # noqa: PLW2901
            if first <= last:
                yield epoch, first, last
