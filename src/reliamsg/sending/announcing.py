"""A producer's status frames: what is held of each stream, told to its groups."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from reliamsg.core.announcements import Announcer
from reliamsg.core.group_progress import Member
from reliamsg.message import Stream
from reliamsg.sending.book import Page
from reliamsg.store.members import Position
from reliamsg.store.outbox import Outbox
from reliamsg.wire.address import group_address, producer_address, status_address
from reliamsg.wire.control import VERSION, ChainEpoch, Status, StreamStatus, encode_status
from reliamsg.wire.limits import CHALLENGE_BYTES, MAX_ANSWERED, MAX_CHAIN

if TYPE_CHECKING:
    from reliamsg.keys import KeyRing
    from reliamsg.sending.engine import Engine

__all__ = ["Announcing"]

MOST_AT_ONCE = 200
"""Streams announced in one step, so that publishing is not held up."""
MAX_HEARD = 1_000
"""Groups of which it is remembered whom was heard last."""
SPARE_CHAIN = 16
"""So many epochs that nobody needs to know of are kept before they are forgotten in one go."""


class Announcing:
    """One producer's. Only the writer uses it."""

    def __init__(self, engine: Engine, outbox: Outbox, keys: KeyRing | None, interval: float) -> None:
        self.timetable = Announcer(self._may_fall_silent, interval)
        self._engine = engine
        self._outbox = outbox
        self._keys = keys
        self._number = 0
        self._told: dict[Stream, float] = {}
        """When each stream was told of last, to whomever."""
        self._heard: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """By group, the inbox that was heard last, and the highest number of what it said."""
        self._nonces: dict[str, dict[bytes, None]] = {}
        """By group, what its inboxes want to be answered, the latest last."""

    def _may_fall_silent(self, stream: Stream) -> bool:
        """Whether every group has acknowledged the stream's end, and all that are named are proven: what one answers
        proves it at the sites over which that comes."""
        engine = self._engine
        if not engine.membership.table.settled(stream):
            return False
        with engine.lock:
            return not any(link.reachable and link.unseen(stream) for link in engine.links.values())

    def run(self, now: float) -> None:
        """Send what is due."""
        for stream, interval in self.timetable.due(now, MOST_AT_ONCE):
            self.tell(status_address(stream.topic, stream.partition), [stream], interval, now)
        for group, streams in self.timetable.answers(now):
            self.answer(group, streams, now)

    def answer(self, group: str, streams: Iterable[Stream], now: float) -> None:
        """Tell one group."""
        silent: list[Stream] = []
        going_on: list[Stream] = []
        longest = 0.0
        for stream in streams:
            interval = self.timetable.interval(stream)
            (going_on if interval else silent).append(stream)
            longest = max(longest, interval)
        for some, interval in ((going_on, longest), (silent, 0.0)):
            if some:
                self.tell(group_address(group), some, interval, now, group)

    def hello(self, now: float) -> None:
        """Tell the named groups, which then answer, and whoever has this producer's name."""
        self.tell(producer_address(self._engine.producer_id), [], 0.0, now)
        by_group: dict[str, list[Stream]] = {}
        membership = self._engine.membership
        for stream in membership.book.pages:
            for group in membership.table.named(stream):
                by_group.setdefault(group, []).append(stream)
        for group, streams in by_group.items():
            self.answer(group, streams, now)

    def heard(self, group: str, inbox: str, number: int, nonce: bytes) -> None:
        """An inbox said something: answers to its group show that they were given later."""
        before = self._heard.get(group)
        if before is not None and before[0] == inbox:
            number = max(number, before[1])
        self._heard[group] = inbox, number
        self._heard.move_to_end(group)
        if len(nonce) == CHALLENGE_BYTES:
            nonces = self._nonces.setdefault(group, {})
            nonces.pop(nonce, None)
            nonces[nonce] = None
            if len(nonces) > MAX_ANSWERED:
                del nonces[next(iter(nonces))]
        if len(self._heard) > MAX_HEARD:
            forgotten, _ = self._heard.popitem(last=False)
            self._nonces.pop(forgotten, None)

    def is_answered(self, member: Member | None, nonce: bytes) -> bool:
        """Whether a group was told of a stream in answer to a nonce, or there is none to answer. Of a group that is not
        remembered nobody knows: it is answered as far as it is behind."""
        return len(nonce) != CHALLENGE_BYTES or member is None or nonce in member.nonces

    def told_at(self, stream: Stream) -> float:
        """When somebody was told of the stream last."""
        return self._told.get(stream, float("-inf"))

    def tell(self, to: str, streams: Sequence[Stream], interval: float, now: float, group: str = "") -> None:
        """Send one status at every site that is up; what goes to one `group` says how far that was, and what was heard
        of it, too."""
        engine, outbox = self._engine, self._outbox
        links = [link for link in engine.links.values() if link.reachable]
        if not links:
            return
        self._number += 1
        pages = engine.membership.book.pages
        status = Status(
            VERSION, engine.producer_id, outbox.epoch, outbox.incarnation, self._number,
            outbox.journal.told(engine.mono_us()), engine.wall_us(), int(interval * 1000),
            engine.settings.release == "consumed", to,
            [self._stream(stream, pages[stream], group) for stream in streams], self._heard.get(group),
            list(self._nonces.get(group, ())),
        )  # fmt: skip
        for frame in encode_status(status, self._keys):
            for link in links:
                link.transport.tell(to, frame)
        self._told.update(dict.fromkeys(streams, now))
        for stream in streams if group else ():
            engine.membership.table.on_answer(stream, group, status.nonces, now)

    def _stream(self, stream: Stream, page: Page, group: str) -> StreamStatus:
        oldest = self._outbox.oldest(page.row.id)
        named = self._engine.membership.table.named(stream)
        slowest = self._engine.membership.table.slowest(stream)
        start = self._start(page, oldest, None if slowest is None else slowest.position)
        if start > SPARE_CHAIN or len(page.chain) - start > MAX_CHAIN:
            self._trim(page, start)
            start = 0
        chain = [
            ChainEpoch(link.epoch, link.incarnation, _first(link.epoch, link.last, oldest), link.last)
            for link in page.chain[start:]
            if link.epoch <= self._outbox.offered  # else it may be given another number
        ]
        told = {link.epoch for link in chain}
        removed = [
            (epoch, first, last) for epoch in sorted(page.removed) if epoch in told
            for first, last in page.removed[epoch]
        ]  # fmt: skip
        member = self._engine.membership.table.find(stream, group)
        reached = None if member is None else member.reached
        return StreamStatus(stream.topic, stream.partition, chain, removed, named, reached)

    def _start(self, page: Page, oldest: Position | None, slowest: Position | None) -> int:
        """The first epoch that anybody needs to know of: one before what is held and before the slowest group."""
        epochs = [link.epoch for link in page.chain]
        start = bisect_left(epochs, oldest[0]) if oldest is not None else len(epochs) - 1
        if slowest is not None:
            start = min(start, bisect_left(epochs, slowest[0]))
        return max(0, start - 1)

    def _trim(self, page: Page, start: int) -> None:
        start = max(start, len(page.chain) - MAX_CHAIN)
        below = page.chain[start].epoch
        self._outbox.trim_chain(page.row.id, below)
        with self._engine.lock:
            del page.chain[:start]
            for epoch in [epoch for epoch in page.removed if epoch < below]:
                del page.removed[epoch]


def _first(epoch: int, last: int, oldest: Position | None) -> int:
    """The lowest number of an epoch that is held; last + 1 where none is."""
    if oldest is None or epoch < oldest[0]:
        return last + 1
    return min(oldest[1], last + 1) if epoch == oldest[0] else 1
