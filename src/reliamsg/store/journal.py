"""The journal: what this client did, in ranges of sequence numbers.

Rows are written in the same transaction as the state that they describe. A row is extended in place only by
its direct successor, only while it is the newest of its kind (and site, group, stream and epoch), and never
once it was exported. Rows about what a group's application was given share one order per group and stream: a
``delivered`` row is only extended while no other of them came after it, so disorder can't hide in a row.

Columns (see ``sql/*/0001.sql``): `lsn` rises with every row of a file; `boot` names one opening of it (16 hex
digits); `wall_us`/`wall_last_us` are the writer's clock in µs since 1970 at the first and latest change,
`mono_us` its monotonic clock at the first; `first`/`last` are inclusive; `incarnation` is 16 hex digits;
`digest` is the sum of :func:`reliamsg.message.digest` over the range modulo 2**64 as 16 hex digits; `latency`
is a JSON object of a hop's histogram, see :mod:`reliamsg.core.histogram`; `detail` is a JSON object.

Kinds of a producer: ``opened`` (detail: groups, sites, confirm, release), ``epoch`` (a stream's epoch is entered;
detail: prev), ``enqueued`` (digest; latency publish→durable), ``connected``, ``disconnected`` (site, reason),
``confirmed`` (site; latency durable→confirmed), ``nacked``, ``returned``, ``refused`` (site, reason), ``parked``,
``resumed`` (site), ``published`` (confirm policy met), ``repaired`` (site, group; sent again on its request),
``consumed`` (group; it told that it is done with the range), ``released``, ``released_unsent`` (site), ``removed``,
``group_added``, ``group_removed`` (group; epoch and first: the position since when it counts or counted; detail of
the latter: position, how far it was), ``renumbered`` (the range of the old epoch; detail: epoch, the new one, and
first, its number there; incarnations stay), ``surpassed`` (group; it had come further than this outbox knows; detail:
position, entered, known), ``site_forgotten`` (site; detail: unconfirmed), ``fenced`` (detail: epoch and incarnation
of the owner that is alive), ``closed`` (detail: pending).

Kinds of a consumer: ``opened`` (detail: topics, sites, inbox, begin, gap_timeout in seconds, on_gap), ``took_over``
(another inbox of the group had read; detail: from, its name, streams, how many were adopted, and inbox, the own
name), ``joined`` (first position of a stream; detail: unheard, where nothing of its producer was), ``behind`` (its
group had settled everything before; detail: from, existed), ``connected`` (site; detail: session_present),
``disconnected``, ``received`` (site; in its order, first there or not; reason ``repair`` where a producer sent it
again on request), ``asked`` (a producer was asked for the range), ``heard`` (a producer's status; topic ""; detail:
epoch, and lsn, how far its journal was committed; only the newest before a ``drained`` row), ``duplicate`` (site;
known, and not next in its order), ``buffered``, ``delivered`` (digest; latency received→delivered), ``redelivered``
(the same, flagged; reason ``unjournalled`` where no row says that it had been handed out before: the process ended
before a commit could), ``acknowledged``, ``gap_opened``, ``gap_held`` (its time is over, and it holds its stream;
reason), ``gap_closed`` (reason: filled, superseded…), ``declared`` (a gap was passed; reason; detail: elapsed, what
its clock said, in seconds; until_epoch and extent, where its end is not known), ``before_join``, ``late``,
``dead_lettered`` (reason), ``replayed``, ``quarantined`` (site, reason; a delivery was put into quarantine whole, and
its broker may forget it), ``let_go`` (site; a delivery behind a held gap was left to its producer, which keeps it for
the group, and its broker may forget it), ``quarantine_discarded`` (an operator discarded it there), ``forgotten`` (an
operator had the stream forgotten; the position that is remembered; reason ``forged`` where higher epochs were made
up, with detail: dropped_epoch, or ``unremembered``), ``rejected`` (site, reason; detail: count, which rises in
place), ``conflict`` (reason; detail: known, up to where more was known than the opening knew, as epoch, incarnation
and number, and entered), ``drained`` (site: its queue was seen empty; detail: count, likewise; heard, for each
producer that a ``heard`` row told of since the last its lsn and the incarnation of the boot that it is of),
``closed``. A ``connected`` row whose session was gone has ``heard`` likewise.

Kinds of both: ``truncated``. With detail first_lsn and last_lsn: those rows were given up before they could be
exported, since the journal's target was away for too long (``when_full="truncate"``); the same row tells of more
while it is not exported itself. With detail rows: so many rows were given up before they were written, since the
file could not be written for too long.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import msgspec

from reliamsg.message import Stream

__all__ = ["ORDERED", "Entry", "Journal", "JournalRow", "read_journal"]

_Parsed = TypeVar("_Parsed")

ORDERED = frozenset(
    {"delivered", "redelivered", "declared", "before_join", "late", "dead_lettered", "replayed"}
)
"""Kinds whose order among each other, per group and stream, is evidence."""

_EXTENDED = frozenset(
    {
        "enqueued", "confirmed", "published", "released", "released_unsent", "received", "duplicate", "buffered",
        "delivered", "redelivered", "acknowledged", "late", "repaired", "consumed", "let_go",
    }
)  # fmt: skip
MAX_TIPS = 20_000
"""Orders of which the newest row is remembered."""
_COUNTED = frozenset({"rejected", "drained"})
"""Kinds without a range, of which only the number in the newest row's detail rises, unless there is more to say."""
_TOLD_EVERY_US = 10_000_000
_TOLD_AT_ONCE = 20
"""Rows that are told of are not extended any more, so this bounds how many more of them there are: in the long run one
telling in so many µs, and so many beyond that."""
_MASK = 2**64 - 1


@dataclass(slots=True)
class Entry:
    """What a client wants to have journalled. `first` and `last` are 0 where a kind has no range."""

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

    def extend(self, other: Entry) -> bool:
        """Take in an entry of the same order that begins where this one ends, if it agrees in kind, epoch, incarnation,
        reason and detail; returns whether it does."""
        if (
            self.last + 1 != other.first
            or self.kind != other.kind
            or self.epoch != other.epoch
            or self.incarnation != other.incarnation
            or self.reason != other.reason
            or self.detail != other.detail
        ):
            return False
        self.last = other.last
        if other.digest is not None:
            self.digest = (self.digest or 0) + other.digest
        if other.latency:
            self.latency = _merge(self.latency, other.latency)
        return True

    @property
    def _line(self) -> tuple[Any, ...]:
        """What an extension must agree in, besides being the successor."""
        return (self.kind, self.stream, self.epoch, self.incarnation, self.site, self.group, self.reason)

    @property
    def _order(self) -> tuple[Any, ...]:
        """Within which order the row must still be the newest."""
        if self.kind in ORDERED:
            return ("ordered", self.stream, self.group)
        if self.kind in _COUNTED:
            return (self.kind, self.site, self.group, self.reason)
        return (self.kind, self.stream, self.site, self.group)


@dataclass(slots=True)
class _Tip:
    """The newest row of one order: the only one that may be extended."""

    lsn: int
    entry: Entry


class Journal:
    """Writes the journal table of one file, inside the caller's transactions.

    Not thread-safe: the store's one thread uses it. `exported_lsn` is the newest row that must not change.
    """

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.exported_lsn = 0
        self.newest_lsn = 0
        """The newest row that is committed."""
        self.latest_written = 0
        """The row that was appended last, committed or not."""
        self._tips: dict[tuple[Any, ...], _Tip] = {}
        self._staged: dict[tuple[Any, ...], _Tip] = {}
        self._told_lsn = 0
        self._fenced_lsn = 0
        """The row that says that this client was fenced: what happened after it can't hide in a row before it."""
        self._told_us = 0
        self._tellings = _TOLD_AT_ONCE

    def told(self, mono_us: int) -> int:
        """How far this journal is committed, for a status: what its rows up to there say is so now already.

        Whoever then sees a site's queue empty knows that what they say to be confirmed there has left it. So
        ``confirmed`` rows that are told of are not extended any more, and the answer stays behind
        :attr:`newest_lsn` for a while when it is asked for often. `mono_us`: the monotonic clock.
        """
        earned = (mono_us - self._told_us) // _TOLD_EVERY_US
        if earned > 0:
            self._tellings = min(self._tellings + earned, _TOLD_AT_ONCE)
            self._told_us = mono_us
        if self.newest_lsn > self._told_lsn and self._tellings > 0:
            self._tellings -= 1
            self._told_lsn = self.newest_lsn
        return self._told_lsn

    def write(
        self, connection: sqlite3.Connection, entries: Iterable[Entry], wall_us: int, mono_us: int
    ) -> None:
        """Append or extend, in order. Call :meth:`settle` once the transaction's end is known."""
        for entry in entries:
            order = entry._order
            tip = self._staged.get(order) or self._tips.get(order)
            if tip is not None and _is_count(entry) and tip.lsn > self.exported_lsn:
                self._staged[order] = self._count(connection, tip, entry, wall_us)
            elif (
                tip is not None
                and entry.kind in _EXTENDED
                and tip.entry._line == entry._line
                and tip.entry.last + 1 == entry.first
                and entry.detail is None
                and tip.lsn > self._final(entry.kind)
            ):
                self._staged[order] = self._extend(connection, tip, entry, wall_us)
            else:
                self._staged[order] = _Tip(self._append(connection, entry, wall_us, mono_us), entry)

    def _final(self, kind: str) -> int:
        """Rows of a kind up to this one must not change."""
        told = self._told_lsn if kind == "confirmed" else 0
        return max(self.exported_lsn, self._fenced_lsn, told)

    def settle(self, committed: bool) -> None:
        """The transaction that held the latest writes was committed, or undone."""
        if committed:
            self._tips.update(self._staged)
            if (
                len(self._tips) > MAX_TIPS
            ):  # a row whose tip is forgotten is followed by one more, instead of extended
                self._tips = dict(islice(self._tips.items(), MAX_TIPS // 2, None))
            self.newest_lsn = max(self.newest_lsn, self.latest_written)
        else:
            self.latest_written = self.newest_lsn
        self._staged.clear()

    def amend(
        self, connection: sqlite3.Connection, lsn: int, detail: Mapping[str, Any], wall_us: int
    ) -> None:
        """Change the detail of a row that is not exported. Call :meth:`settle` as after :meth:`write`."""
        connection.execute(
            "UPDATE journal SET wall_last_us = ?, detail = ? WHERE lsn = ?", (wall_us, _dump(detail), lsn)
        )

    def _append(self, connection: sqlite3.Connection, entry: Entry, wall_us: int, mono_us: int) -> int:
        stream = entry.stream
        cursor = connection.execute(
            "INSERT INTO journal (boot, kind, wall_us, wall_last_us, mono_us, producer, topic, part, epoch,"
            " incarnation, first, last, site, grp, reason, digest, latency, detail)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self.boot, entry.kind, wall_us, wall_us, mono_us,
                stream.producer if stream else "", stream.topic if stream else "", stream.partition if stream else 0,
                entry.epoch, f"{entry.incarnation:016x}", entry.first, entry.last,
                entry.site, entry.group, entry.reason,
                None if entry.digest is None else f"{entry.digest & _MASK:016x}",
                _dump_latency(entry.latency), _dump(entry.detail),
            ),
        )  # fmt: skip
        lsn = cursor.lastrowid
        assert lsn is not None  # an INSERT that did not raise has a row id
        self.latest_written = lsn
        if entry.kind == "fenced":
            self._fenced_lsn = lsn
        return lsn

    def _extend(self, connection: sqlite3.Connection, tip: _Tip, entry: Entry, wall_us: int) -> _Tip:
        old = tip.entry
        digest = None if old.digest is None else ((old.digest + (entry.digest or 0)) & _MASK)
        latency = _merge(old.latency, entry.latency)
        merged = Entry(
            old.kind, old.stream, old.epoch, old.incarnation, old.first, entry.last, old.site, old.group, old.reason,
            digest, latency, old.detail,
        )  # fmt: skip
        connection.execute(
            "UPDATE journal SET last = ?, wall_last_us = ?, digest = ?, latency = ? WHERE lsn = ?",
            (
                merged.last,
                wall_us,
                None if digest is None else f"{digest:016x}",
                _dump_latency(latency),
                tip.lsn,
            ),
        )
        return _Tip(tip.lsn, merged)

    def _count(self, connection: sqlite3.Connection, tip: _Tip, entry: Entry, wall_us: int) -> _Tip:
        """One more of what has no range: only the number in the row's detail rises."""
        count = sum((each.detail or {}).get("count", 0) for each in (tip.entry, entry))
        merged = replace(tip.entry, detail={**(tip.entry.detail or {}), "count": count})
        connection.execute(
            "UPDATE journal SET wall_last_us = ?, detail = ? WHERE lsn = ?",
            (wall_us, _dump(merged.detail), tip.lsn),
        )
        return _Tip(tip.lsn, merged)


def _is_count(entry: Entry) -> bool:
    """Whether an entry says no more than that something happened once more."""
    return entry.kind in _COUNTED and set(entry.detail or {}) <= {"count"}


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row as it is read back."""

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
    """Every row above `after_lsn`, in order. Raises ValueError at one that is not as it was written, and
    ``sqlite3.Error``."""
    rows = connection.execute(
        "SELECT lsn, boot, kind, wall_us, wall_last_us, mono_us, producer, topic, part, epoch,"
        " incarnation, first, last, site, grp, reason, digest, latency, detail FROM journal WHERE lsn > ? ORDER BY lsn",
        (after_lsn,),
    )
    for row in rows:
        *head, incarnation, first, last, site, group, reason, digest, latency, detail = row
        # SQLite checks types when it writes. A damaged page may hold others.
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
"""Which, unlike ``json.dumps``, does not make an encoder each time."""


def _dump(value: Mapping[Any, Any] | None) -> str | None:
    return _encode_json(value) if value else None


def _dump_latency(value: Mapping[int, int] | None) -> str | None:
    """Numbers alone, of which every run of messages brings some."""
    return msgspec.json.encode(value).decode() if value else None


def _merge(one: Mapping[int, int] | None, other: Mapping[int, int] | None) -> Mapping[int, int] | None:
    if not one or not other:
        return one or other
    merged = dict(one)
    for bucket, count in other.items():
        merged[bucket] = merged.get(bucket, 0) + count
    return merged
