"""A producer's status frames: they announce to groups which messages of each stream are held."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from reliamsg.message import Stream
from reliamsg.producer.site import SiteSender
from reliamsg.producer.state import Shared
from reliamsg.producer.streams import StreamInfo
from reliamsg.protocol.sender.announcements import Announcer
from reliamsg.protocol.sender.group_progress import Member
from reliamsg.store.members import Position
from reliamsg.store.outbox import Outbox
from reliamsg.wire.address import group_address, producer_address, status_address
from reliamsg.wire.control import VERSION, ChainEpoch, Status, StreamStatus, encode_status
from reliamsg.wire.limits import CHALLENGE_BYTES, MAX_ANSWERED, MAX_CHAIN

__all__ = ["Announcements"]

MOST_AT_ONCE = 200
"""Streams announced in one step, so that publishing is not held up."""
CONFIRMS_AFTER_S = 0.5
"""After the connection to a site was lost, its confirms are announced this many seconds later: committed by then."""
MAX_GROUPS = 1_000
"""Groups whose latest states are remembered."""
SPARE_CHAIN = 16
"""Epochs that no group needs to know of are forgotten together, when there are more than this."""


class Announcements:
    """One producer's. Only the writer uses it."""

    def __init__(self, shared: Shared, outbox: Outbox, sites: Mapping[str, SiteSender]) -> None:
        self.timetable: Announcer = Announcer(self._may_fall_silent, shared.settings.status_interval)
        self._shared, self._outbox, self._sites = shared, outbox, sites
        self._number = 0
        self._announced: dict[Stream, float] = {}
        """By stream, when it was last announced to any group."""
        self._inboxes: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """By group, the inbox that reported last, and the highest number of its states."""
        self.confirms_at: float = inf
        """When :meth:`announce_confirms` is due."""
        self._nonces: dict[str, dict[bytes, None]] = {}
        """By group, the nonces that its inboxes want to see answered, the latest last."""

    def _may_fall_silent(self, stream: Stream) -> bool:
        """Whether every group has acknowledged the stream's end, and all that are named are proven: the answer of a
        group proves it at the sites over which it arrives."""
        shared = self._shared
        if not shared.table.settled(stream):
            return False
        with shared.lock:
            return not any(
                site.reachable and shared.unseen(name, stream) for name, site in self._sites.items()
            )

    def run(self, now: float) -> None:
        """Send the statuses that are due."""
        timetable = self.timetable
        for stream, interval in timetable.due(now, MOST_AT_ONCE):
            self.announce(status_address(stream.topic, stream.partition), [stream], interval, now)
        for group, streams in timetable.answers(now):
            self.answer(group, streams, now)
        timetable.next_deadline()

    def answer(self, group: str, streams: Iterable[Stream], now: float) -> None:
        """Announce streams to one group."""
        silent: list[Stream] = []
        active: list[Stream] = []
        longest = 0.0
        for stream in streams:
            interval = self.timetable.interval(stream)
            (active if interval else silent).append(stream)
            longest = max(longest, interval)
        for some, interval in ((active, longest), (silent, 0.0)):
            if some:
                self.announce(group_address(group), some, interval, now, group)

    def hello(self, now: float) -> None:
        """Announce this producer to the named groups, which then answer, and to any other owner of its name."""
        shared = self._shared
        self.announce(producer_address(shared.producer_id), [], 0.0, now)
        by_group: dict[str, list[Stream]] = {}
        for stream in shared.streams.by_stream:
            for group in shared.table.named(stream):
                by_group.setdefault(group, []).append(stream)
        for group, streams in by_group.items():
            self.answer(group, streams, now)

    def site_lost(self, now: float) -> None:
        """The connection to a site was lost: it confirms nothing more until it is connected again."""
        self.confirms_at = min(self.confirms_at, now + CONFIRMS_AFTER_S)

    def announce_confirms(self, now: float) -> None:
        """Announce to each named group, by the other sites, how far the journal goes, and no stream.

        A group that then finds its queue or session at the lost site gone can prove what was in there.
        """
        self.confirms_at = inf
        shared = self._shared
        groups = {group: None for stream in shared.streams.by_stream for group in shared.table.named(stream)}
        for group in groups:
            self.announce(group_address(group), [], 0.0, now, urgent=True)

    def on_inbox(self, group: str, inbox: str, number: int, nonce: bytes) -> None:
        """An inbox sent a state or call: answers to its group show that they were given later."""
        before = self._inboxes.get(group)
        if before is not None and before[0] == inbox:
            number = max(number, before[1])
        self._inboxes[group] = inbox, number
        self._inboxes.move_to_end(group)
        if len(nonce) == CHALLENGE_BYTES:
            nonces = self._nonces.setdefault(group, {})
            nonces.pop(nonce, None)
            nonces[nonce] = None
            if len(nonces) > MAX_ANSWERED:
                del nonces[next(iter(nonces))]
        if len(self._inboxes) > MAX_GROUPS:
            forgotten, _ = self._inboxes.popitem(last=False)
            self._nonces.pop(forgotten, None)

    def is_answered(self, member: Member | None, nonce: bytes) -> bool:
        """Whether a stream was announced to a group in answer to a nonce, or there is none to answer. Unknown for
        a group that is not remembered: it is answered only while it is behind."""
        return len(nonce) != CHALLENGE_BYTES or member is None or nonce in member.nonces

    def announced_at(self, stream: Stream) -> float:
        """When the stream was announced last, to any group."""
        return self._announced.get(stream, float("-inf"))

    def announce(
        self,
        to: str,
        streams: Sequence[Stream],
        interval: float,
        now: float,
        group: str = "",
        urgent: bool = False,
    ) -> None:
        """Send one status at every site that is up. One that goes to a single `group` also says how far that was, and
        what was heard of it. One that is `urgent` announces the newest rows of the journal."""
        shared, outbox = self._shared, self._outbox
        sites = [site for site in self._sites.values() if site.reachable]
        if not sites:
            return
        self._number += 1
        infos, clock = shared.streams.by_stream, shared.clock
        status = Status(
            VERSION, shared.producer_id, outbox.epoch, outbox.incarnation, self._number,
            outbox.journal.lsn_to_announce(clock.now_us(), urgent), clock.wall_us(), int(interval * 1000),
            shared.settings.release == "consumed", to,
            [self._stream(stream, infos[stream], group) for stream in streams], self._inboxes.get(group),
            list(self._nonces.get(group, ())), outbox.journal.newest_lsn,
        )  # fmt: skip
        for frame in encode_status(status, shared.settings.keys):
            for site in sites:
                site.transport.send_control(to, frame)
        self._announced.update(dict.fromkeys(streams, now))
        for stream in streams if group else ():
            shared.table.on_answer(stream, group, status.nonces, now)

    def _stream(self, stream: Stream, info: StreamInfo, group: str) -> StreamStatus:
        oldest = self._outbox.oldest(info.row.id)
        named = self._shared.table.named(stream)
        slowest = self._shared.table.slowest(stream)
        start = self._start(info, oldest, None if slowest is None else slowest.position)
        if start > SPARE_CHAIN or len(info.chain) - start > MAX_CHAIN:
            self._trim(info, start)
            start = 0
        chain = [
            ChainEpoch(link.epoch, link.incarnation, _first(link.epoch, link.last, oldest), link.last)
            for link in info.chain[start:]
            if link.epoch <= self._outbox.offered  # else it may be given another number
        ]
        epochs = {link.epoch for link in chain}
        removed = [
            (epoch, first, last) for epoch in sorted(info.removed) if epoch in epochs
            for first, last in info.removed[epoch]
        ]  # fmt: skip
        member = self._shared.table.find(stream, group)
        reached = None if member is None else member.reached
        return StreamStatus(stream.topic, stream.partition, chain, removed, named, reached)

    def _start(self, info: StreamInfo, oldest: Position | None, slowest: Position | None) -> int:
        """The index of the first epoch that a group needs to know of: the one before what is held, and before the
        slowest group."""
        epochs = [link.epoch for link in info.chain]
        start = bisect_left(epochs, oldest[0]) if oldest is not None else len(epochs) - 1
        if slowest is not None:
            start = min(start, bisect_left(epochs, slowest[0]))
        return max(0, start - 1)

    def _trim(self, info: StreamInfo, start: int) -> None:
        start = max(start, len(info.chain) - MAX_CHAIN)
        self._outbox.trim_chain(info.row.id, info.chain[start].epoch)
        with self._shared.lock:
            info.trim(start)


def _first(epoch: int, last: int, oldest: Position | None) -> int:
    """The lowest number of an epoch that is held; last + 1 where none is."""
    if oldest is None or epoch < oldest[0]:
        return last + 1
    return min(oldest[1], last + 1) if epoch == oldest[0] else 1
