"""Sending again what a group lacks, to that group alone, from the outbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reliamsg.core.repairs import Piece, Repairs
from reliamsg.errors import StoreCorrupt
from reliamsg.sending.link import SiteLink
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox, Row
from reliamsg.wire.address import group_address
from reliamsg.wire.data import frames_of

if TYPE_CHECKING:
    from reliamsg.keys import KeyRing
    from reliamsg.sending.announcing import Announcing
    from reliamsg.sending.engine import Engine

__all__ = ["Repairing"]

PAGE_BYTES = 128 * 1024
"""Read from the outbox at a time, or what may be sent in PAGE_S, if that is less."""
PAGE_S = 0.05
STEP_BYTES = 512 * 1024
"""Sent in one step of the writer, so that what is published meanwhile does not wait."""
PAUSE_MIN_S = 0.005
PAUSE_MAX_S = 0.5
"""When no site takes more: so long until the next try, doubling."""


class Repairing:
    """One producer's. Only the writer uses it."""

    def __init__(
        self, engine: Engine, outbox: Outbox, announcing: Announcing, bytes_per_second: float | None
    ) -> None:
        self.queue = Repairs(bytes_per_second)
        self.messages = 0
        """Messages that were sent again, counted for each group and time."""
        self._page = (
            PAGE_BYTES if bytes_per_second is None else min(PAGE_BYTES, int(bytes_per_second * PAGE_S))
        )
        self._engine = engine
        self._outbox = outbox
        self._announcing = announcing
        self._pause_until = float("-inf")
        self._pause = PAUSE_MIN_S

    def deadline(self, now: float) -> float | None:
        """When there will be something to send."""
        due = self.queue.next_deadline(now)
        return None if due is None else max(due, self._pause_until)

    def run(self, now: float) -> None:
        """Send what is wanted, as far as the budget and the sites allow."""
        if now < self._pause_until:
            return
        sent = 0
        while sent < STEP_BYTES and (piece := self.queue.next(now)) is not None:
            links = [link for link in self._engine.links.values() if link.reachable]
            rows = self._read(piece)
            if not rows:
                self._lacking(piece, piece.first, piece.last, now)
                continue
            if rows[0].seq > piece.first:
                self._lacking(piece, piece.first, rows[0].seq - 1, now)
            for row in rows:
                frames = {link: _frames(link, row, self._engine.settings.keys) for link in links}
                if links and not any(frames.values()):  # a message over every site's limit
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
        page = self._engine.membership.book.pages[piece.stream]
        try:
            return self._outbox.numbered(page.row.id, piece.epoch, piece.first, piece.last, self._page)
        except StoreCorrupt as error:
            self._engine.log.error("producer %s: can't repair: %s", self._engine.producer_id, error)
            return []

    def _lacking(self, piece: Piece, first: int, last: int, now: float) -> None:
        """It is not held: the group learns that from a status."""
        self.queue.sent(piece, first, last, 0, now)
        named = self._engine.membership.table.is_named(piece.group, piece.stream)
        self._announcing.timetable.asked(piece.group, [piece.stream], now, named=named)

    def _send(self, piece: Piece, row: Row, frames: Mapping[SiteLink, Sequence[bytes]]) -> bool:
        """Whether a site took the batch."""
        address = group_address(piece.group)
        took = [link for link, parts in frames.items() if parts and _tell(link, address, parts)]
        if not took:
            return False
        self.messages += row.count
        with self._engine.lock:
            for link in took:
                self._engine.journal_buffer.add(
                    Entry(
                        "repaired", row.stream, row.epoch, row.incarnation, row.seq, row.last,
                        site=link.site.name, group=piece.group,
                    )
                )  # fmt: skip
        return True


def _frames(link: SiteLink, row: Row, keys: KeyRing | None) -> list[bytes]:
    """The batch as it fits the site; nothing where one message does not."""
    limit = link.site.max_frame_bytes
    parts = frames_of(row.frame, limit, keys)
    return parts if all(len(part) <= limit for part in parts) else []


def _tell(link: SiteLink, address: str, parts: Sequence[bytes]) -> bool:
    return all(link.transport.tell(address, part) for part in parts)
