"""Sends what a group lacks again, from the outbox, to that group alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from reliamsg.errors import StoreCorrupt
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.producer.announcements import Announcements
from reliamsg.producer.site import SiteSender
from reliamsg.producer.state import Shared
from reliamsg.protocol.announced import Span3
from reliamsg.protocol.sender.repairs import Piece, Repairs
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox, Row
from reliamsg.wire.address import group_address
from reliamsg.wire.data import frames_of

__all__ = ["RepairSender"]

log: Log = Log("reliamsg.producer")

PAGE_BYTES = 128 * 1024
"""Read from the outbox at a time, or what may be sent in PAGE_S, if that is less."""
PAGE_S = 0.05
STEP_BYTES = 512 * 1024
"""Sent in one step of the writer, so that what is published meanwhile does not wait."""
PAUSE_MIN_S = 0.005
PAUSE_MAX_S = 0.5
"""How long until the next try when no site takes more, doubling."""


class RepairSender:
    """One producer's. Only the writer uses it."""

    def __init__(
        self, shared: Shared, outbox: Outbox, announcements: Announcements, sites: Mapping[str, SiteSender]
    ) -> None:
        rate = shared.settings.max_repair_bytes_per_second
        self.queue: Repairs = Repairs(rate)
        self.messages: int = 0
        """Messages that were sent again, counted for each group and time."""
        self._page = PAGE_BYTES if rate is None else min(PAGE_BYTES, int(rate * PAGE_S))
        self._shared, self._outbox = shared, outbox
        self._announcements, self._sites = announcements, sites
        self._pause_until = float("-inf")
        self._pause = PAUSE_MIN_S
        self.is_idle: bool = True
        """Nothing is wanted."""

    def deadline(self, now: float) -> float:
        """When there will be something to send."""
        due = self.queue.next_deadline(now)
        self.is_idle = due == inf
        return max(due, self._pause_until)

    def request(
        self, group: str, stream: Stream, wanted: Sequence[Span3], missing: Sequence[Span3], now: float, *,
        named: bool,
    ) -> None:  # fmt: skip
        """A group wants parts of a stream; `missing`: all that it lacks."""
        self.is_idle = False
        self.queue.request(group, stream, wanted, now, missing=missing, named=named)

    def run(self, now: float) -> None:
        """Send the requested messages, as far as the budget and the sites allow."""
        if now < self._pause_until:
            return
        sent = 0
        while sent < STEP_BYTES and (piece := self.queue.next(now)) is not None:
            sites = [site for site in self._sites.values() if site.reachable]
            rows = self._read(piece)
            if not rows:
                self._lacking(piece, piece.first, piece.last, now)
                continue
            if rows[0].seq > piece.first:
                self._lacking(piece, piece.first, rows[0].seq - 1, now)
            for row in rows:
                frames = {site: _frames(site, row, self._shared.settings.keys) for site in sites}
                if sites and not any(frames.values()):  # a message over every site's limit
                    self._lacking(piece, row.seq, row.last, now)
                elif self._send(piece, row, frames):
                    self.queue.sent(piece, row.seq, row.last, row.size, now)
                    sent += row.size
                else:
                    self._pause_until = now + self._pause
                    self._pause = min(2 * self._pause, PAUSE_MAX_S)
                    return
                self._pause = PAUSE_MIN_S

    def _read(self, piece: Piece) -> list[Row]:
        info = self._shared.streams.by_stream[piece.stream]
        try:
            return self._outbox.numbered(info.row.id, piece.epoch, piece.first, piece.last, self._page)
        except StoreCorrupt as error:
            log.error(
                "producer.repair_failed", "producer %(producer)s: can't repair: %(reason)s",
                producer=self._shared.producer_id, stream=str(piece.stream), epoch=piece.epoch, reason=str(error),
            )  # fmt: skip
            return []

    def _lacking(self, piece: Piece, first: int, last: int, now: float) -> None:
        """This is not held: the group learns that from a status."""
        self.queue.sent(piece, first, last, 0, now)
        named = self._shared.table.is_named(piece.group, piece.stream)
        self._announcements.timetable.asked(piece.group, [piece.stream], now, named=named)

    def _send(self, piece: Piece, row: Row, frames: Mapping[SiteSender, Sequence[bytes]]) -> bool:
        """Whether a site took the batch."""
        address = group_address(piece.group)
        took = [site for site, parts in frames.items() if parts and _tell(site, address, parts)]
        if not took:
            return False
        self.messages += row.count
        with self._shared.lock:
            for site in took:
                self._shared.journal.add(
                    Entry(
                        "repaired", row.stream, row.epoch, row.incarnation, row.seq, row.last,
                        site=site.site.name, group=piece.group,
                    )
                )  # fmt: skip
        return True


def _frames(site: SiteSender, row: Row, keys: KeyRing | None) -> list[bytes]:
    """The batch as it fits the site; nothing where one message does not."""
    limit = site.site.max_frame_bytes
    parts = frames_of(row.frame, limit, keys)
    return parts if all(len(part) <= limit for part in parts) else []


def _tell(site: SiteSender, address: str, parts: Sequence[bytes]) -> bool:
    return all(site.transport.send_control(address, part) for part in parts)
