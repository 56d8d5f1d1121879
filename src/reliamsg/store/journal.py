"""The journal: a record of this client's actions, in ranges of sequence numbers.

A row is written in the same transaction as the state that it describes. It is extended in place only by its direct
successor, only while it is the newest of its kind (and site, group, stream and epoch), only within the liveness
interval (:data:`~reliamsg.store.stamps.LIVENESS_S`) after it began, and never after it was exported. Rows about
deliveries to a group's application share one order per group and stream: a ``delivered`` row is only extended while no
other of them follows it, so that a row can't hide messages out of order.

Columns (see ``sql/*/0001.sql``): `lsn` increases with every row of a file; `boot` identifies one opening of it (16 hex
digits); `wall_us`/`wall_last_us` are stamps (:mod:`reliamsg.store.stamps`): the writer's clock in µs since 1970 at the
first and latest change, which never runs backwards; `mono_us` is its monotonic clock at the first change;
`first`/`last` are inclusive; `incarnation` is 16 hex digits; `digest` is the sum of :func:`reliamsg.message.digest`
over the range modulo 2**64 as 16 hex digits; `latency` is the histogram of a hop as a JSON object, see
:mod:`reliamsg.protocol.histogram`; `detail` is a JSON object.

Kinds of a producer: ``opened`` (detail: groups, sites, confirm, release, version), ``epoch`` (the first row of a
stream's epoch; detail: prev), ``enqueued`` (digest; latency publish→durable), ``connected``, ``disconnected`` (site,
reason), ``confirmed`` (site; latency durable→confirmed), ``nacked``, ``returned``, ``refused`` (site, reason),
``parked``, ``resumed`` (site), ``published`` (confirm policy met), ``repaired`` (site, group; resent on its request),
``consumed`` (group; it announced that it has settled the range), ``released``, ``released_unsent`` (site), ``removed``,
``group_added``, ``group_removed`` (group; epoch and first: the position from which it counts or counted; detail of the
latter: position, its last known position), ``renumbered`` (the range in the old epoch; detail: epoch, the new one, and
first, its number there; incarnations stay), ``surpassed`` (group; its position is beyond this outbox's knowledge;
detail: position, entered, known), ``site_forgotten`` (site; detail: unconfirmed), ``fenced`` (detail: epoch and
incarnation of the live owner), ``closed`` (detail: pending).

Kinds of a consumer: ``opened`` (detail: topics, sites, inbox, begin, gap_timeout in seconds, on_gap, version),
``took_over`` (from another inbox of the group; detail: from, the name of that inbox, streams, the number of adopted
streams, and inbox, its own name), ``joined`` (first position of a stream; detail: unheard, where its producer had
announced nothing), ``behind`` (its group had settled everything before; detail: from, existed), ``connected`` (site;
detail: session_present), ``disconnected``, ``received`` (site; in that site's order, whether or not it was the first
copy; reason ``repair`` where a producer resent it on request), ``asked`` (a producer was asked to resend the range),
``heard`` (a producer's status; topic ""; detail: epoch, and lsn, up to which its journal was committed; only the newest
before a ``drained`` row), ``duplicate`` (site; already received, and not next in that site's order), ``buffered``,
``delivered`` (digest; latency received→delivered), ``redelivered`` (the same, with the redelivery flag; reason
``unjournalled`` where no row records the first delivery because the process terminated before the commit),
``acknowledged`` (latency publish→acknowledged), ``gap_opened``, ``gap_held`` (its timeout has expired, and it holds its
stream; reason), ``gap_closed`` (reason: filled, superseded…), ``declared`` (a gap was declared lost and passed; reason;
detail: elapsed, the reading of its clock in seconds; until_epoch and extent, where its end is not known),
``before_join``, ``late``, ``dead_lettered`` (reason), ``replayed``, ``quarantined`` (site, reason; a whole delivery was
put into quarantine, and its broker may forget it), ``let_go`` (site; a delivery behind a held gap was left to its
producer, which retains it for the group, and its broker may forget it), ``quarantine_discarded`` (an operator discarded
it there), ``forgotten`` (an operator had the stream forgotten; the position that is remembered; reason ``forged`` where
higher epochs were forged, with detail: dropped_epoch, or ``unremembered``), ``rejected`` (site, reason; detail: count,
which is increased in place), ``conflict`` (reason; detail: known, the position up to which more was known than at
opening, as epoch, incarnation and number, and entered), ``drained`` (site: its queue was seen empty; detail: count, as
above; heard, for each producer with a ``heard`` row since the last ``drained`` row, its lsn and the incarnation of its
boot), ``closed``. A ``connected`` row without a present session has ``heard`` too.

Kinds of both: ``truncated``. With detail first_lsn and last_lsn: these rows were deleted before they could be exported,
because the journal's target was unavailable for too long (``when_full="truncate"``); the same row is extended until it
is exported itself, or is too old. With detail rows: this number of rows was discarded before they were written, because
the file was not writable for too long. ``clock_step`` (the clock was set; detail: from_us and to_us). ``retired`` (the
last row of a file that is not opened any more; detail: pending, unclosed).
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from reliamsg.message import Stream
from reliamsg.store.database import Database
from reliamsg.store.stamps import LIVENESS_US, Reading, StampClock

__all__ = [
    "ORDERED",
    "SUMMED",
    "Begun",
    "Entry",
    "Journal",
    "JournalRow",
    "joined",
    "read_journal",
    "summed_parts",
]

_Parsed = TypeVar("_Parsed")

ORDERED = frozenset(
    {"delivered", "redelivered", "declared", "before_join", "late", "dead_lettered", "replayed"}
)
"""Kinds whose relative order, per group and stream, is evidence."""

_EXTENDED = frozenset(
    {
        "enqueued", "confirmed", "published", "released", "released_unsent", "received", "duplicate", "buffered",
        "delivered", "redelivered", "acknowledged", "late", "repaired", "consumed", "let_go",
    }
)  # fmt: skip
SUMMED = 1_000
"""Rows with a digest end at numbers that are divisible by this. So the journals of a producer and of a group have sums
that can be compared, even if neither client ever pauses."""
_SUMMED_LATER = 100
"""The same of rows that are older than this many µs, for streams of few messages."""
_LATER_US = 10_000_000
MAX_TIPS = 20_000
"""Orders whose newest row is kept in memory."""
_COUNTED = frozenset({"rejected", "drained"})
"""Kinds without a range: only the count in the newest row's detail is increased, unless an entry has more detail."""
_ANNOUNCED_EVERY_US = 10_000_000
_ANNOUNCED_AT_ONCE = 20
_ANNOUNCED_URGENTLY = 20
"""Announced rows are not extended any more, which makes more rows; so announcements are limited by a token bucket of
the size of both, with one token per interval. The second part is reserved for urgent announcements."""
_MASK = 2**64 - 1


@dataclass(slots=True)
class Entry:
    """A row to write, never changed. `first` and `last` are 0 for kinds without a range."""

    kind: str
    stream: Stream | None = None
    epoch: int = 0
    incarnation: int = 0
    first: int = 0
    last: int = 0
    site: str = ""
    group: str = ""
    reason: str = ""
    digest: int | None = None
    latency: Mapping[int, int] | None = None
    """Histogram: bucket number → count."""
    detail: Mapping[str, Any] | None = None


_kind_of_range = attrgetter("kind", "epoch", "incarnation", "reason")


def joined(old: Entry, new: Entry) -> Entry | None:
    """Two entries of one order as one; None unless `new` begins where `old` ends, and both agree in kind, epoch,
    incarnation, reason and detail. Entries with a digest are not joined where a row has to end (:data:`SUMMED`). What a
    group has consumed was settled by the later one's row of its journal, if both name the same opening of it."""
    if old.last + 1 != new.first or _kind_of_range(old) != _kind_of_range(new):
        return None
    if new.digest is not None and old.last % SUMMED == 0:
        return None
    if old.detail != new.detail and (old.kind != "consumed" or _opening(old.detail) != _opening(new.detail)):
        return None
    latency = old.latency or new.latency
    if old.latency and new.latency:
        latency = dict(old.latency)
        for bucket, count in new.latency.items():
            latency[bucket] = latency.get(bucket, 0) + count
    return Entry(
        old.kind, old.stream, old.epoch, old.incarnation, old.first, new.last, old.site, old.group, old.reason,
        None if old.digest is None else (old.digest + (new.digest or 0)) & _MASK,
        latency, new.detail,
    )  # fmt: skip


def summed_parts(first: int, last: int) -> Sequence[tuple[int, int]]:
    """A range that is not empty, divided where a row with a digest has to end."""
    if last // SUMMED == (first - 1) // SUMMED:  # the usual case, of small batches
        return ((first, last),)
    ends = [*range(first + (-first) % SUMMED, last, SUMMED), last]
    return list(zip([first, *(end + 1 for end in ends)], ends, strict=False))


def _opening(detail: Mapping[str, Any] | None) -> str | None:
    """The opening of a group's inbox that a ``consumed`` entry names."""
    return None if detail is None else detail["journal"][0]


def _counted(old: Entry, new: Entry) -> Entry | None:
    """`old` with the sum of both counts; None if `new` has other details, which need a row of their own."""
    if not set(new.detail or ()) <= {"count"}:
        return None
    detail = dict(old.detail or {})
    detail["count"] = detail.get("count", 0) + (new.detail or {}).get("count", 0)
    return replace(old, detail=detail)


class Begun(msgspec.Struct, frozen=True):
    """When a row began."""

    stamp_us: int
    mono_us: int

    def is_young(self, now: Begun) -> bool:
        """Whether the row may be extended now. Either clock may stand still, or be set."""
        return now.stamp_us - self.stamp_us <= LIVENESS_US and now.mono_us - self.mono_us <= LIVENESS_US


class _Tip(msgspec.Struct, frozen=True):
    """The newest row of one order: the only one that may be extended."""

    lsn: int
    entry: Entry
    begun: Begun

    def may_grow(self, now: Begun) -> bool:
        """Whether it is young enough, and does not end at a number at which rows of its age do."""
        if not self.begun.is_young(now):
            return False
        old = now.stamp_us - self.begun.stamp_us >= _LATER_US
        return not (old and self.entry.digest is not None and self.entry.last % _SUMMED_LATER == 0)


class Journal:
    """Writes the journal table of one file, within the caller's transactions. Not thread-safe.

    `newest_boot` wrote the row `newest_lsn`, the newest one of earlier openings; it is empty if there is none, or if
    that is not known. `latest_us`: the latest stamp of earlier openings. Wherever the wall clock and the monotonic
    clock are passed, both readings must have been taken together.
    """

    def __init__(
        self,
        boot: str,
        newest_lsn: int = 0,
        frozen_lsn: int = 0,
        latest_us: int = 0,
        group: str = "",
        newest_boot: str = "",
    ) -> None:
        self.boot = boot
        self.stamps: StampClock = StampClock(latest_us)
        self._group = group
        """The group whose journal this is; empty for a producer's."""
        self._reading: Reading | None = None
        """The stamp of the rows that are not settled."""
        self.newest_lsn: int = newest_lsn
        """The newest committed row."""
        self.newest_boot: str = newest_boot
        """The opening that wrote this row: an earlier one until this one's first row is committed."""
        self._frozen_lsn = frozen_lsn
        """Rows up to this one are never extended."""
        self._last_lsn = newest_lsn
        """The newest row, committed or not."""
        self._tips: dict[tuple[Any, ...], _Tip] = {}
        self._staged: dict[tuple[Any, ...], _Tip] = {}
        self._announced_lsn = 0
        self._announced_us = 0
        self._announcements_left = _ANNOUNCED_AT_ONCE + _ANNOUNCED_URGENTLY
        self._listener: Callable[[Sequence[Entry]], object] | None = None
        self._unheard: list[Entry] = []
        """Written, and to be passed to the listener with the commit."""

    def listen(self, listener: Callable[[Sequence[Entry]], object]) -> None:
        """Pass all entries to `listener` from now on, in order, after the commit that stores them: on the thread that
        writes, which must not be kept waiting. For metrics. There is one listener; it must not raise."""
        self._listener = listener

    def lsn_to_announce(self, mono_us: int, urgent: bool = False) -> int:
        """The row up to which this journal is committed, for a status.

        A consumer that sees a site's queue empty after such a status knows that everything confirmed there up to this
        row has left the queue. Therefore announced ``confirmed`` rows are not extended any more, and frequent calls
        return the same row for a while, unless they are `urgent`. `mono_us` is the monotonic clock.
        """
        earned = (mono_us - self._announced_us) // _ANNOUNCED_EVERY_US
        if earned > 0:
            self._announcements_left = min(
                self._announcements_left + earned, _ANNOUNCED_AT_ONCE + _ANNOUNCED_URGENTLY
            )
            self._announced_us = mono_us
        reserved = 0 if urgent else _ANNOUNCED_URGENTLY
        if self.newest_lsn > self._announced_lsn and self._announcements_left > reserved:
            self._announcements_left -= 1
            self._announced_lsn = self.newest_lsn
        return self._announced_lsn

    @property
    def begun_here(self) -> bool:
        """Whether a row of this opening is committed. Until then, nothing may name the opening to others: after a crash
        there would be no trace of it."""
        return self.newest_boot == self.boot

    def freeze(self, lsn: int) -> None:
        """Never extend the rows up to `lsn` again."""
        self._frozen_lsn = max(self._frozen_lsn, lsn)

    def transaction(
        self, database: Database, entries: Iterable[Entry], wall_us: int, mono_us: int, adding: int = 0
    ) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A transaction that ends with writing `entries`, to which the block may add. `adding` as in
        :meth:`Database.transaction`."""
        return database.transaction(
            adding, partial(self.write, entries=entries, wall_us=wall_us, mono_us=mono_us), self.settle
        )

    def write(
        self, connection: sqlite3.Connection, entries: Iterable[Entry], wall_us: int, mono_us: int
    ) -> None:
        """Append or extend rows, in order. The caller must call :meth:`settle` after the transaction."""
        entries = list(entries)
        if not entries:
            return
        staged = self._staged
        reading = self._reading = self.stamps.read(wall_us, mono_us)
        now = Begun(reading.stamp_us, mono_us)
        if reading.step is not None and entries[0].kind != "clock_step":
            step = self._step_entry(*reading.step)
            entries.insert(int(entries[0].kind == "opened"), step)  # a boot begins with ``opened``
        if self._listener is not None:
            self._unheard += entries
        for entry in entries:
            kind = entry.kind
            # The order within which a row can only be extended while it is the newest.
            order: tuple[object, ...]
            if kind in ORDERED:
                order = ("ordered", entry.stream, entry.group)
            elif kind in _COUNTED:
                order = (kind, entry.site, entry.group, entry.reason)
            else:
                order = (kind, entry.stream, entry.site, entry.group)
            tip = staged.get(order) or self._tips.get(order)
            grown: Entry | None = None
            if tip is None or tip.lsn <= self._frozen_lsn:
                pass
            elif (
                now.mono_us - tip.begun.mono_us >= _LATER_US or now.stamp_us - tip.begun.stamp_us >= _LATER_US
            ) and not tip.may_grow(now):
                pass  # asked of old rows only, since every commit comes here
            elif kind in _COUNTED:
                grown = _counted(tip.entry, entry)
            elif (
                kind in _EXTENDED
                and tip.entry.site == entry.site
                and (entry.detail is None or kind == "consumed")
                and (kind != "confirmed" or tip.lsn > self._announced_lsn)
            ):
                grown = joined(tip.entry, entry)
            if tip is None or grown is None:
                staged[order] = self._append(connection, entry, now)
                continue
            staged[order] = _Tip(tip.lsn, grown, tip.begun)
            digest, latency, detail = grown.digest, grown.latency, grown.detail
            connection.execute(
                "UPDATE journal SET last = ?, wall_last_us = ?, digest = ?, latency = ?, detail = ? WHERE lsn = ?",
                (
                    grown.last, now.stamp_us, None if digest is None else f"{digest:016x}",
                    msgspec.json.encode(latency).decode() if latency else None,
                    _encode_json(detail) if detail else None, tip.lsn,
                ),
            )  # fmt: skip

    def settle(self, committed: bool) -> None:
        """Accept the writes since the previous call, whose transaction was committed, or forget them."""
        if committed:
            self._tips.update(self._staged)
            if (
                len(self._tips) > MAX_TIPS
            ):  # a row without a tip is followed by another row instead of being extended
                self._tips = dict(islice(self._tips.items(), MAX_TIPS // 2, None))
            if self._last_lsn > self.newest_lsn:
                self.newest_lsn, self.newest_boot = self._last_lsn, self.boot
            if self._reading is not None:
                self.stamps.keep(self._reading)
        else:
            self._last_lsn = self.newest_lsn
        self._staged.clear()
        self._reading = None
        if self._listener is not None:
            heard, self._unheard = self._unheard, []
            if committed and heard:
                self._listener(heard)

    def clock_step(self, wall_us: int, mono_us: int) -> Entry | None:
        """The row about the clock, if it was set since rows were written last. Other rows are preceded by it anyway."""
        step = self.stamps.read(wall_us, mono_us).step
        return None if step is None else self._step_entry(*step)

    def _step_entry(self, from_us: int, to_us: int) -> Entry:
        return Entry("clock_step", group=self._group, detail={"from_us": from_us, "to_us": to_us})

    def begun(self, wall_us: int, mono_us: int) -> Begun:
        """When a row begins that is written with these readings."""
        return Begun(self.stamps.read(wall_us, mono_us).stamp_us, mono_us)

    def amend(self, connection: sqlite3.Connection, lsn: int, detail: Mapping[str, Any], now: Begun) -> None:
        """Replace the detail of a row that is not exported."""
        connection.execute(
            "UPDATE journal SET wall_last_us = ?, detail = ? WHERE lsn = ?",
            (now.stamp_us, _encode_json(detail), lsn),
        )

    def _append(self, connection: sqlite3.Connection, entry: Entry, now: Begun) -> _Tip:
        digest, latency, detail = entry.digest, entry.latency, entry.detail
        lsn = connection.execute(
            "INSERT INTO journal (boot, kind, wall_us, wall_last_us, mono_us, producer, topic, part, epoch,"
            " incarnation, first, last, site, grp, reason, digest, latency, detail)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.boot, entry.kind, now.stamp_us, now.stamp_us, now.mono_us, *(entry.stream or ("", "", 0)),
                entry.epoch, f"{entry.incarnation:016x}", entry.first, entry.last,
                entry.site, entry.group, entry.reason, None if digest is None else f"{digest & _MASK:016x}",
                msgspec.json.encode(latency).decode() if latency else None, _encode_json(detail) if detail else None,
            ),
        ).lastrowid  # fmt: skip
        assert lsn is not None  # an INSERT that did not raise has a row id
        self._last_lsn = lsn
        if entry.kind == "fenced":  # no later event may be recorded in a row before it
            self.freeze(lsn)
        return _Tip(lsn, entry, now)


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row as read from a file or segment."""

    lsn: int
    boot: str
    kind: str
    wall_us: int
    wall_last_us: int
    mono_us: int
    producer: str
    topic: str
    partition: int
    epoch: int
    incarnation: int
    first: int
    last: int
    site: str
    group: str
    reason: str
    digest: int | None
    latency: dict[int, int] | None
    detail: dict[str, Any] | None


def read_journal(connection: sqlite3.Connection, after_lsn: int = 0) -> Iterator[JournalRow]:
    """Every row above `after_lsn`, in order. Raises ValueError at a damaged row, and ``sqlite3.Error``."""
    rows = connection.execute(
        "SELECT lsn, boot, kind, wall_us, wall_last_us, mono_us, producer, topic, part, epoch,"
        " incarnation, first, last, site, grp, reason, digest, latency, detail FROM journal WHERE lsn > ? ORDER BY lsn",
        (after_lsn,),
    )
    for row in rows:
        *head, incarnation, first, last, site, group, reason, digest, latency, detail = row
        # SQLite checks types when it writes, but a damaged page may hold other types.
        if tuple(map(type, row[:16])) != _TYPES:
            raise ValueError("a row is damaged")
        yield JournalRow(
            *head,  # lsn to epoch, as selected
            int(incarnation, 16), first, last, site, group, reason,
            None if digest is None else int(digest, 16),
            None if latency is None else _parsed(latency, dict[int, int]),
            None if detail is None else _parsed(detail, dict[str, Any]),
        )  # type: ignore[call-arg]  # fmt: skip


_TYPES = (int, str, str, int, int, int, str, str, int, int, str, int, int, str, str, str)
"""Of the columns from `lsn` to `reason`, as :func:`read_journal` selects them."""


def _parsed(text: str, kind: type[_Parsed]) -> _Parsed:
    try:
        return msgspec.json.decode(text, type=kind)
    except (RecursionError, TypeError):
        raise ValueError("a row is damaged") from None


_encode_json = json.JSONEncoder(separators=(",", ":")).encode
"""Reuses one encoder, unlike ``json.dumps``."""
