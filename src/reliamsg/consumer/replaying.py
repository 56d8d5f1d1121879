"""Taking deliveries in again that are in quarantine, as many at a time as memory bears. On the inbox's thread."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter

from reliamsg.consumer.intake import UNREADABLE, Rejected
from reliamsg.consumer.quarantine import identified
from reliamsg.consumer.shared import Shared
from reliamsg.consumer.site import SiteReceiver
from reliamsg.errors import FatalError, InboxWriteError
from reliamsg.logs import Log
from reliamsg.store.quarantine import LATER_VERSION, QuarantinedDelivery, Selection
from reliamsg.wire.data import Frame, FrameError, open_frame

__all__ = ["Replayer"]

log: Log = Log("reliamsg.consumer")

PAGE_BYTES = 1024 * 1024
MAX_BYTES = 4 * 1024 * 1024
"""Of replayed deliveries that are neither settled nor held in the inbox."""


class Replayer:
    """Feeds deliveries that are marked for a replay to the core."""

    def __init__(self, shared: Shared, sites: Mapping[str, SiteReceiver]) -> None:
        self._shared = shared
        self._sites = sites
        self.more: bool = True
        """There may be marked deliveries that are not being taken in."""

    def step(self, now: float) -> bool:
        """Take in what there is room for; returns whether to call again at once."""
        shared = self._shared
        with shared.lock:
            if (
                shared.role.barred
                or shared.durability.write_error is not None
                or shared.health.fatal is not None
            ):
                return False
            marks, changing = list(shared.quarantine.marks), tuple(shared.quarantine.requalifying)
        try:
            if marks:
                self._mark(marks)
            for reason, some in groupby(changing, key=itemgetter(1)):
                self._requalify([number for number, _ in some], reason)
            return self.more and self._feed(now)
        except InboxWriteError as error:
            log.warning(
                "consumer.quarantine_put_off", "%(inbox)s: the quarantine is left for now: %(reason)s",
                group=shared.group, inbox=str(shared.inbox.path), reason=str(error),
            )  # fmt: skip
        except FatalError as error:
            with shared.lock:
                shared.health.fail(error)
        return False

    def _mark(self, marks: list[tuple[Selection, bool]]) -> None:
        shared = self._shared
        for which, replay in marks:
            changed = 0 if which.ids == () else shared.inbox.quarantine.mark(which, replay)
            self.more |= replay
            with shared.lock:
                shared.quarantine.marks.popleft()
            if changed and replay:
                log.info(
                    "consumer.quarantine_replayed", "%(inbox)s: %(count)d deliveries leave the quarantine",
                    group=shared.group, inbox=str(shared.inbox.path), count=changed,
                )  # fmt: skip

    def _requalify(self, numbers: list[int], reason: str) -> None:
        shared = self._shared
        before = shared.inbox.quarantine.requalify(numbers, reason)
        with shared.lock:
            shared.quarantine.requalified(before, reason, len(numbers))

    def _feed(self, now: float) -> bool:
        shared = self._shared
        with shared.lock:
            room = MAX_BYTES - shared.core.waiting.replayed_bytes
            but = set(shared.quarantine.replaying)
            full = shared.absent.is_full
        if room <= 0 or full:
            return False
        rows = shared.inbox.quarantine.page(but, min(room, PAGE_BYTES))
        self.more = bool(rows)
        unopened = [row for row in rows if row.reason == LATER_VERSION]
        if unopened:
            self._open(unopened)
            return True
        found = [(row, _opened(row, shared.group)) for row in rows]
        left: list[int] = []
        with shared.lock:
            wall = shared.wall_us()
            for row, frame in found:
                if frame is None:
                    left.append(row.id)
                    continue
                site = self._sites.get(row.site) or next(iter(self._sites.values()))
                shared.quarantine.begin(row)
                if not site.replayed(row, frame, now, wall):
                    left.append(row.id)
            if left:
                shared.quarantine.leave(Selection(ids=tuple(left)))
            shared.events.handle()
        return self.more

    def _open(self, rows: list[QuarantinedDelivery]) -> None:
        """Examine batches that were in a later version. Those that can be opened now are taken in next."""
        shared, found = self._shared, list[tuple[QuarantinedDelivery, QuarantinedDelivery]]()
        unknown: list[int] = []
        for row in rows:
            site = self._sites.get(row.site) or next(iter(self._sites.values()))
            what = site.examine_later_version(row)
            frame = what.frame if isinstance(what, Rejected) and what.reason == UNREADABLE else what
            if isinstance(frame, Frame):
                found.append((row, identified(row, frame)))
                continue
            with shared.lock:
                if isinstance(what, Rejected):
                    shared.quarantine.begin(row)
                    site.set_aside(row.stream.topic, row.frame, what.reason)
                    shared.durability.pending.unquarantined.append(row.id)
                else:
                    unknown.append(row.id)
        changed = shared.inbox.quarantine.identify(found, UNREADABLE) if found else []
        with shared.lock:
            shared.quarantine.identified(changed, UNREADABLE)
            for _, now in found:
                shared.admission.journal_identified(now)
            if unknown:
                shared.quarantine.leave(Selection(ids=tuple(unknown)))


def _opened(row: QuarantinedDelivery, group: str) -> Frame | None:
    try:
        return open_frame(row.frame)
    except FrameError as error:
        log.error(
            "consumer.quarantined_delivery_damaged", "delivery %(delivery)d in quarantine is damaged: %(reason)s",
            group=group, delivery=row.id, reason=str(error),
        )  # fmt: skip
        return None
