"""The quarantine: whole deliveries that are sound, can't be taken in now, and are safe in the inbox meanwhile.

A delivery is *admitted* within `max_quarantine_bytes`, committed, and then acknowledged to its broker. It is *replayed*
by taking it in as if it arrived again, with the inbox in the broker's place: its row is deleted when all of its
messages are safe elsewhere. :class:`Samples` are something else: bytes of unusable deliveries, for people to look at.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from reliamsg.consumer.intake import UNREADABLE
from reliamsg.message import Stream
from reliamsg.protocol.fair_quota import FairQuota
from reliamsg.store.inbox import MAX_QUARANTINED_FRAME, QuarantineChange
from reliamsg.store.inbox_rows import Quarantined
from reliamsg.store.quarantine import QuarantinedDelivery, QuarantineRows, Selection
from reliamsg.wire.data import Frame

__all__ = ["FAR_EPOCH", "HELD", "MAX_SAMPLE_BYTES", "TOO_MANY_STREAMS", "Quarantine", "Samples", "identified"]

TOO_MANY_STREAMS = "too-many-streams"
"""Why a delivery is there whose stream there was no room for."""

FAR_EPOCH = "far-epoch"
"""Why a delivery is there whose epoch is too far ahead to be believed."""

HELD = "held"
"""Why a delivery is there that lies behind the gap that holds its stream, beyond what such streams may use."""

SHORT_PART = 4
"""With one part in this many in use, messages that their producers keep are left to them."""

ROW_BYTES = 512
"""Size of a row without the frame."""

MAX_SAMPLE_BYTES = 4 * 1024 * 1024
"""Bytes of unusable messages that are kept; later ones are only counted."""
SAMPLE_ROW_BYTES = 256
"""Size of a row without the message."""


class Quarantine:
    """Admits deliveries to the quarantine, and selects those to replay. Under the consumer's lock."""

    def __init__(self, rows: QuarantineRows, limit: int) -> None:
        self.limit = limit
        self._rows = rows
        self._room = FairQuota(
            limit,
            {
                f"{reason} {site}": size + count * ROW_BYTES
                for (reason, site), (count, size) in rows.sources.items()
            },
        )
        self._counts = Counter[str]()
        for (reason, _), (count, _) in rows.sources.items():
            self._counts[reason] += count
        self._admitting: dict[tuple[Stream, str], int] = {}
        """By stream and reason, deliveries that are admitted and not committed."""
        self.replaying: dict[int, tuple[Stream, str]] = {}
        """Deliveries that are being taken in, or about to be: by id, stream and reason."""
        self._taken: dict[tuple[Stream, str], set[int]] = {}
        """By stream and reason, those of them that were taken in. What has yet to be may wait until its stream was
        looked for in the inbox, behind what arrived before."""
        self.put_off: dict[Stream, float] = {}
        """Streams of which something is too far ahead to be taken in though there is room, and when it is tried
        again. What else there was of them came first."""
        self.held: dict[Stream, float] = dict.fromkeys(rows.streams_of(HELD), 0.0)
        """Streams of which something is there, or was lately, since a gap held them; and when it is looked again
        whether they have come to it."""
        self.marks: deque[tuple[Selection, bool]] = deque([(Selection(ids=()), True)])
        """Deliveries to mark for a replay, or (False) no longer. The first entry has the table read once."""
        self.any_roomless: bool = rows.has(TOO_MANY_STREAMS)
        """Something is there, or about to be, because there was no room for its stream."""
        self.requalifying: list[tuple[int, str]] = []
        """Ids of deliveries that could be taken in by now, but for another reason, and that reason."""

    @property
    def is_short(self) -> bool:
        """Whether only messages that have to be there should be added."""
        return self.total >= self.limit // SHORT_PART

    @property
    def by_reason(self) -> dict[str, int]:
        """The number of deliveries that are there, or about to be, by reason."""
        return dict(+self._counts)

    @property
    def total(self) -> int:
        """Bytes in use, with what rows take."""
        return self._room.total

    def admit(
        self, reason: str, site: str, stream: Stream, frame: Frame, received_us: int
    ) -> QuarantinedDelivery | None:
        """The entry to commit; None if there is no room. No reason at a site may use more than it leaves free."""
        if not self._room.take(f"{reason} {site}", len(frame.data) + ROW_BYTES):
            return None
        if reason == HELD:
            self.held.setdefault(stream, 0.0)
        elif reason == TOO_MANY_STREAMS:
            self.any_roomless = True
        envelope = frame.envelope
        self._counts[reason] += 1
        self._admitting[stream, reason] = self._admitting.get((stream, reason), 0) + 1
        return QuarantinedDelivery(
            reason, site, stream, envelope.epoch, envelope.incarnation, envelope.previous, envelope.seq, envelope.last,
            len(frame.data), received_us, frame.data,
        )  # fmt: skip

    def admit_unopened(
        self, reason: str, site: str, topic: tuple[str, int], data: bytes, received_us: int
    ) -> QuarantinedDelivery | None:
        """The same for a delivery whose messages are unknown: it is distinguished from others by its checksum.
        `topic`: with its partition."""
        if not self._room.take(f"{reason} {site}", len(data) + ROW_BYTES):
            return None
        stream = Stream("", *topic)
        self._counts[reason] += 1
        self._admitting[stream, reason] = self._admitting.get((stream, reason), 0) + 1
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
        return QuarantinedDelivery(reason, site, stream, 0, digest, None, 0, 0, len(data), received_us, data)

    def holds(self, stream: Stream, reason: str) -> bool:
        """Whether anything of the stream is there for this reason."""
        return self._rows.may_hold(stream, reason) or self.is_admitting(stream, reason)

    def is_admitting(self, stream: Stream, reason: str) -> bool:
        """Whether anything of the stream is about to be stored there for this reason."""
        return (stream, reason) in self._admitting

    def waits(self, stream: Stream) -> bool:
        """Whether what is there of a stream for want of room comes before anything else of it that arrives: until all
        of it has been taken in, though it stays there until it is safe elsewhere."""
        key = stream, TOO_MANY_STREAMS
        if stream in self.put_off:
            return False
        return key in self._admitting or self._rows.count(*key) > len(self._taken.get(key, ()))

    def keeps(self, stream: Stream, position: tuple[int, int]) -> bool:
        """Whether anything of a stream, up to this epoch and number, is there, and is not being taken in. On the thread
        that owns the inbox."""
        return any(
            (stream, reason) in self._admitting
            or self._rows.reaches_below(stream, reason, position, self.replaying)
            for reason in (TOO_MANY_STREAMS, HELD, FAR_EPOCH)  # an epoch that has a gap is not far any more
        )

    def committed(self, added: Iterable[QuarantinedDelivery], left: QuarantineChange) -> None:
        """A commit stored what was admitted, and deleted what was replayed."""
        for one in added:
            count = self._admitting.pop((one.stream, one.reason)) - 1
            if count:
                self._admitting[one.stream, one.reason] = count
        for one in (*left.known, *left.removed):
            self._not_replaying(one.id)
            self._counts[one.reason] -= 1
            self._room.give_back(f"{one.reason} {one.site}", one.size + ROW_BYTES)
        self._look()

    def replay(self, which: Selection) -> None:
        """Have deliveries taken in again, in the order of their streams."""
        self.marks.append((which, True))

    def begin(self, one: QuarantinedDelivery) -> None:
        """This is to be taken in, and not again meanwhile."""
        self.replaying[one.id] = one.stream, one.reason

    def took_in(self, one: QuarantinedDelivery) -> None:
        """So it was."""
        self._taken.setdefault((one.stream, one.reason), set()).add(one.id)

    def _not_replaying(self, number: int) -> None:
        key = self.replaying.pop(number, None)
        if key is None:
            return
        taken = self._taken.get(key)
        if taken is not None:
            taken.discard(number)
            if not taken:
                del self._taken[key]

    def leave(self, which: Selection) -> None:
        """There is no room for these yet: they stay where they are."""
        for number in which.ids or ():
            self._not_replaying(number)
        self.marks.append((which, False))

    def lacks_room(self, number: int) -> None:
        """A delivery was kept for another reason, and now there is no room for its stream."""
        self.requalify(number, TOO_MANY_STREAMS)
        self.any_roomless = True

    def requalify(self, number: int, reason: str) -> None:
        """A delivery was kept for another reason, and from now on for this one."""
        self._not_replaying(number)
        self.requalifying.append((number, reason))

    def requalified(self, before: Iterable[QuarantinedDelivery], reason: str, count: int) -> None:
        """These, as they were, are there for this reason now: the first `count` of those that were to be changed."""
        for one in before:
            self._counts[one.reason] -= 1
            self._counts[reason] += 1
            self._room.move(f"{one.reason} {one.site}", f"{reason} {one.site}", one.size + ROW_BYTES)
        del self.requalifying[:count]
        self._look()

    def identified(self, before: Iterable[QuarantinedDelivery], reason: str) -> None:
        """These, as they were, could be opened. Each is there for this reason now, under the names of its messages, or
        is gone because it had been there."""
        for one in before:
            self._counts[one.reason] -= 1
            if one.replay:
                self._counts[reason] += 1
                self._room.move(f"{one.reason} {one.site}", f"{reason} {one.site}", one.size + ROW_BYTES)
            else:
                self._room.give_back(f"{one.reason} {one.site}", one.size + ROW_BYTES)

    def _look(self) -> None:
        admitting = any(reason == TOO_MANY_STREAMS for _, reason in self._admitting)
        requalifying = any(reason == TOO_MANY_STREAMS for _, reason in self.requalifying)
        self.any_roomless = admitting or requalifying or self._rows.has(TOO_MANY_STREAMS)


def identified(row: QuarantinedDelivery, frame: Frame) -> QuarantinedDelivery:
    """A delivery whose messages were unknown, now that its frame can be opened."""
    envelope = frame.envelope
    return QuarantinedDelivery(
        UNREADABLE, row.site, envelope.stream, envelope.epoch, envelope.incarnation, envelope.previous, envelope.seq,
        envelope.last, row.size, row.received_us, row.frame, row.id, row.replay,
    )  # fmt: skip


class Samples:
    """What may be kept. A flood at one address of one site leaves room for what comes from elsewhere, and the first
    that came is kept rather than the last: it shows how it began. Under the consumer's lock."""

    def __init__(self, addresses: frozenset[str], kept: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        """`addresses`: those that the group reads or listens to. `kept`: by site and address, rows and bytes that
        there are already."""
        self._addresses = addresses
        held: dict[str, int] = {}
        for (site, address), (rows, size) in kept.items():
            source = self._source(site, address)
            held[source] = held.get(source, 0) + size + rows * SAMPLE_ROW_BYTES
        self._room = FairQuota(MAX_SAMPLE_BYTES, held)

    def _source(self, site: str, address: str) -> str:
        """Other addresses than those that are read may be made up, and count as one."""
        return f"{site} {address if address in self._addresses else ''}"

    def admit(self, site: str, address: str, reason: str, data: bytes) -> Quarantined | None:
        """The form in which a delivery is kept; None if it is only counted."""
        size = min(len(data), MAX_QUARANTINED_FRAME) + SAMPLE_ROW_BYTES
        if not self._room.take(self._source(site, address), size):
            return None
        # One byte more tells the inbox that there was more.
        return Quarantined(site, address, reason, data[: MAX_QUARANTINED_FRAME + 1])
