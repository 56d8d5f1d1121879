"""Folds consecutive segments of a client into few facts by stream.

A client extends a row in place as long as nothing else of its kind follows; how often it begins a new one depends on
its traffic and on how often it exports. The fold goes on where the client stopped: rows that continue each other become
one fact, as if the client had extended the first of them. So a stream without incidents takes one fact for each kind,
site and group, whatever the number of its messages, and an incident takes about as many facts as it has rows.

Only facts of one boot are joined, and only while nothing happens to their stream whose order relative to them is
evidence. Folding is associative: the facts of a chain are those of its parts, in journal order. It is not commutative:
whoever puts parts together has to check that they follow each other, see :mod:`reliamsg.audit.lineage`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from reliamsg.audit.context import NOBODY, settled_by
from reliamsg.audit.segment import Line, SegmentHeader

__all__ = [
    "FOREVER_US", "JOINED", "Fact", "Folder", "Opening", "Part", "Point", "StreamName", "decode_facts",
    "is_plain", "same_opening", "unfold",
]  # fmt: skip

StreamName = tuple[str, str, int]
"""Producer, topic and partition."""
_Tip = tuple[str, str, str, int, str, str, str]
"""Of rows that may continue each other: kind, producer, topic, partition, site, group and reason."""

JOINED = frozenset(
    {
        "enqueued", "confirmed", "published", "consumed", "released", "released_unsent", "received", "duplicate",
        "buffered", "delivered", "acknowledged",
    }
)  # fmt: skip
"""The kinds of an undisturbed stream. Rows of all other kinds keep their order relative to these."""
_WITH_POINTS = frozenset({"enqueued", "delivered", "confirmed", "acknowledged"})
"""Kinds of which the boundaries between joined rows matter."""
_MASK = 2**64 - 1
FOREVER_US = 2**63 - 1
"""Later than every time, in µs since 1970."""
_HOPS = frozenset({"enqueued", "confirmed", "delivered", "acknowledged"})
_CLAIMED = frozenset({"rejected", "conflict", "quarantined", "quarantine_discarded", "let_go"})
"""Kinds whose identity is that claimed by a frame, not accepted by the client."""
_OF_CLIENT = frozenset(
    {
        "closed", "connected", "drained", "fenced", "heard", "surpassed", "conflict", "behind", "took_over",
        "truncated", "renumbered", "group_added", "group_removed",
    }
)  # fmt: skip
"""Kinds that bear on other streams or clients."""


class Point(msgspec.Struct, array_like=True, gc=False):
    """The end of a row inside a fact."""

    last: int
    lsn: int
    """Of the row that follows."""
    mark: int
    """The digest sum of the fact up to there, modulo 2**64; of what a group has consumed, the row of the group's
    journal by which it had settled that."""
    end_us: int
    """The time at which the row was extended last."""
    wall_us: int
    """The time at which the row that follows began."""


class Fact(msgspec.Struct, array_like=True):
    """A row of a journal, or several that continue each other. Fields as in :class:`Line`."""

    kind: str
    epoch: int
    first: int
    last: int
    lsn: int
    """Of the first row."""
    boot: str
    incarnation: str
    """16 hex digits."""
    site: str = ""
    group: str = ""
    reason: str = ""
    wall_us: int = 0
    wall_last_us: int = 0
    """Of the last row."""
    mono_us: int = 0
    digest: int | None = None
    points: list[Point] | None = None
    """The ends of all joined rows but the last, in order."""
    detail: dict[str, Any] | None = None

    def go_on_with(self, other: Fact) -> None:
        """Add the rows of another fact, which continue the last one of this."""
        total = self.digest or 0
        if _has_points(self):
            consumed = self.kind == "consumed"
            mark = settled_by(self.detail)[1] if consumed else total
            points = [] if self.points is None else self.points
            points.append(Point(self.last, other.lsn, mark, self.wall_last_us, other.wall_us))
            points += [
                point if consumed else msgspec.structs.replace(point, mark=(total + point.mark) & _MASK)
                for point in other.points or ()
            ]
            self.points = points
        if self.digest is not None:
            self.digest = (total + (other.digest or 0)) & _MASK
        self.last, self.wall_last_us, self.detail = other.last, other.wall_last_us, other.detail


_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder(Fact).decode


def decode_facts(data: bytes, words: dict[str, str]) -> Iterator[Fact]:
    """The facts in a list in MessagePack. They share their strings, which `words` collects: otherwise, millions of
    facts of one stream take twice the memory."""
    share = words.setdefault
    for raw in _split(data):
        fact = _decode(raw)
        fact.kind, fact.boot = share(fact.kind, fact.kind), share(fact.boot, fact.boot)
        fact.incarnation = share(fact.incarnation, fact.incarnation)
        fact.site, fact.group = share(fact.site, fact.site), share(fact.group, fact.group)
        yield fact


class Opening(msgspec.Struct, array_like=True):
    """The rows of one boot in a part."""

    boot: str
    first_lsn: int
    last_lsn: int
    kind: str
    """Of the first row. The fields below up to `detail` are its own, too."""
    incarnation: str
    epoch: int
    first_us: int
    detail: dict[str, Any] | None
    closed: bool = False
    published: bool = False
    """Whether it enqueued or renumbered messages."""
    end: int = 0
    """The highest epoch in any row, as written or moved to."""
    later: set[int] = msgspec.field(default_factory=set)
    """The epochs that it entered after its first row, or moved messages to."""
    begun_us: int = 0
    """The time at which the last row began."""
    changed_us: int = 0
    """The latest time in any row."""
    retired: bool = False
    """Whether the file was retired, so that nothing follows at any time."""

    @property
    def entered(self) -> set[int]:
        """The epochs that it began with, entered, or moved messages to."""
        return self.later | {self.epoch}

    @property
    def proven_us(self) -> int:
        """If it is the last of its journal, the time through which that is proven by rows: what follows an open journal
        began after its last row."""
        if self.retired:
            return FOREVER_US
        return self.changed_us if self.closed else self.begun_us


class Part(msgspec.Struct, array_like=True):
    """Consecutive segments of one client, folded, without the facts of its streams."""

    role: str
    client: str
    digests: list[str]
    """Of its segments, in order."""
    parent: str | None
    first_lsn: int
    last_lsn: int
    openings: list[Opening]
    rows: list[tuple[StreamName, Fact]]
    """Rows that bear on other streams or clients."""
    newest: list[tuple[int, int]]
    """lsn and epoch of rows that enqueue, enter or renumber in a later epoch than all such rows before in the part."""
    identified: set[tuple[str, int, str]]
    """Producer, epoch as written and incarnation in rows about messages, except those that only repeat what a frame
    claimed."""
    referred: set[tuple[str, int, str]]
    """The same in all rows of a group, except rejected frames."""
    own: set[tuple[int, str]]
    """Epoch and incarnation in all rows of a producer."""
    producers: set[str]
    """The producers in the rows of a group, except rejected frames."""
    groups: set[str]
    """The groups that sent anything, according to a producer."""
    settled: dict[tuple[str, str], int]
    """By group and opening of its inbox, the last row of its journal to which a producer's rows refer."""
    opened: set[str]
    """The incarnations in ``opened`` rows."""
    topics: set[str]
    """The topics to which a producer published, or of which a group delivered messages."""
    latencies: dict[tuple[str, str], dict[int, int]]
    """By kind of row and, for confirms, site: bucket → count."""
    least_us: int
    """The earliest and the latest time at which a row began, µs since 1970."""
    latest_us: int
    mixed: list[tuple[int, int]]
    """Half-open periods over which the clock was set, or in which rows began that follow rows that began later."""
    marks: set[str] = msgspec.field(default_factory=set)
    """Of the keys by which its segments are verified to be signed. Empty mark: some signatures were not checked."""
    unsigned: list[str] = msgspec.field(default_factory=list)
    """The digests of segments that were accepted without a signature."""


class Folder:
    """Folds the rows of one client."""

    def __init__(self) -> None:
        self.streams: dict[StreamName, list[Fact]] = {}
        self._tips: dict[_Tip, Fact] = {}
        """The facts that may be extended."""
        self._tips_of: dict[StreamName, list[_Tip]] = {}
        self._openings: list[Opening] = []
        self._rows: list[tuple[StreamName, Fact]] = []
        self._newest: list[tuple[int, int]] = []
        self._identified: set[tuple[str, int, str]] = set()
        self._referred: set[tuple[str, int, str]] = set()
        self._own: set[tuple[int, str]] = set()
        self._producers: set[str] = set()
        self._groups: set[str] = set()
        self._settled: dict[tuple[str, str], int] = {}
        self._opened: set[str] = set()
        self._topics: set[str] = set()
        self._latencies: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._headers: list[SegmentHeader] = []
        self._digests: list[str] = []
        self._least_us: int | None = None
        self._latest_us = 0
        self._mixed: list[tuple[int, int]] = []
        self._marks: set[str] = set()
        self._unsigned: list[str] = []

    def add(
        self,
        header: SegmentHeader,
        digest: str,
        lines: Iterable[Line],
        mark: str = "",
        unsigned: bool = False,
    ) -> None:
        """Add the next segment. `mark`: of the key that signed it; empty if that was not checked. `unsigned`: it is
        accepted without a signature."""
        if unsigned:
            self._unsigned.append(digest)
        else:
            self._marks.add(mark)
        self._headers.append(header)
        self._digests.append(digest)
        opening = self._openings[-1] if self._openings else None
        if opening is None or opening.boot != header.boot:
            self._forget_tips()
            opening = None
        producer = header.role == "producer"
        last = None
        for line in lines:
            if opening is None:
                opening = Opening(
                    line.boot, line.lsn, line.lsn, line.kind, _padded(line.incarnation), line.epoch,
                    line.wall_us, line.detail if line.kind == "opened" else None, end=line.epoch,
                )  # fmt: skip
                self._openings.append(opening)
            self._add(line, opening, producer)
            last = line
        if opening is not None and last is not None:
            opening.last_lsn, opening.begun_us = last.lsn, last.wall_us

    def part(self) -> Part:
        """Everything but the facts in :attr:`streams`."""
        first, last = self._headers[0], self._headers[-1]
        return Part(
            first.role, first.client, self._digests, first.parent, first.first_lsn, last.last_lsn, self._openings,
            self._rows, self._newest, self._identified, self._referred, self._own, self._producers, self._groups,
            self._settled, self._opened, self._topics,
            {hop: dict(found) for hop, found in self._latencies.items()}, self._least_us or 0, self._latest_us,
            self._mixed, self._marks, self._unsigned,
        )  # fmt: skip

    def _add(self, line: Line, opening: Opening, producer: bool) -> None:
        kind = line.kind
        self._keep_time(line, opening)
        if line.latency is not None and kind in _HOPS:
            counts = self._latencies[kind, line.site if kind == "confirmed" else ""]
            for bucket, count in line.latency.items():
                counts[int(bucket)] += count
        if line.detail is not None and producer and kind == "consumed":
            boot, lsn = settled_by(line.detail)
            if boot:
                self._settled[line.group, boot] = max(lsn, self._settled.get((line.group, boot), lsn))
        key = (kind, line.producer, line.topic, line.part, line.site, line.group, line.reason)
        tip = self._tips.get(key)
        if tip is not None and self._continues(tip, line):
            self._extend(tip, line)
            return
        name = (line.producer, line.topic, line.part)
        fact = Fact(
            kind, line.epoch, line.first, line.last, line.lsn, line.boot, _padded(line.incarnation), line.site,
            line.group, line.reason, line.wall_us, line.wall_last_us, line.mono_us,
            None if line.digest is None else int(line.digest, 16), None, line.detail,
        )  # fmt: skip
        self._remember(line, fact, name, opening, producer)
        if kind in JOINED and is_plain(line) and line.first <= line.last:
            if key not in self._tips:
                self._tips_of.setdefault(name, []).append(key)
            self._tips[key] = fact
        else:
            # Something else happened to the stream: what follows is in order after it.
            for own in self._tips_of.pop(name, ()):
                del self._tips[own]

    def _forget_tips(self) -> None:
        self._tips.clear()
        self._tips_of.clear()

    def _keep_time(self, line: Line, opening: Opening) -> None:
        began, ended = line.wall_us, line.wall_last_us
        if began > opening.changed_us or ended > opening.changed_us:
            opening.changed_us = max(began, ended)
        if began >= self._latest_us:  # as nearly every row
            self._latest_us = began
            if self._least_us is None:
                self._least_us = began
            return
        if self._least_us is None or began < self._least_us:
            self._least_us = began
        if self._mixed and self._mixed[-1][1] == self._latest_us:
            self._mixed[-1] = (min(began, self._mixed[-1][0]), self._latest_us)
        else:
            self._mixed.append((began, self._latest_us))

    def _add_step(self, line: Line) -> None:
        """The period over which the client's clock was set."""
        detail = line.detail or {}
        match detail.get("from_us"), detail.get("to_us"):
            case int(one), int(other) if one != other:
                # Before the others: the last of them may still be extended.
                self._mixed.insert(0, (min(one, other), max(one, other)))

    @staticmethod
    def _continues(tip: Fact, line: Line) -> bool:
        """Whether the client could have extended the fact by the row."""
        return (
            tip.last + 1 == line.first <= line.last
            and tip.epoch == line.epoch
            and (line.incarnation == tip.incarnation or _padded(line.incarnation) == tip.incarnation)
            and (tip.digest is None) == (line.digest is None)
            and (tip.detail is line.detail is None or same_opening(tip.detail, line.detail))
        )

    @staticmethod
    def _extend(tip: Fact, line: Line) -> None:
        digest = tip.digest
        if _has_points(tip):
            if tip.points is None:
                tip.points = []
            mark = settled_by(tip.detail)[1] if tip.kind == "consumed" else digest or 0
            tip.points.append(Point(tip.last, line.lsn, mark, tip.wall_last_us, line.wall_us))
        if digest is not None and line.digest is not None:
            tip.digest = (digest + int(line.digest, 16)) & _MASK
        tip.last, tip.wall_last_us, tip.detail = line.last, line.wall_last_us, line.detail

    def _remember(self, line: Line, fact: Fact, name: StreamName, opening: Opening, producer: bool) -> None:
        """Keep a row that is not joined to another one."""
        kind, epoch, moved_to = fact.kind, fact.epoch, None
        if line.topic:
            self.streams.setdefault(name, []).append(fact)
        if kind in _OF_CLIENT or not line.topic:
            self._rows.append((name, fact))
        if kind in ("enqueued", "delivered", "redelivered") and fact.first <= fact.last:
            self._topics.add(line.topic)
        if kind in ("closed", "retired"):
            opening.closed = True
            opening.retired |= kind == "retired"
        elif kind == "clock_step":
            self._add_step(line)
        elif kind == "opened":
            self._opened.add(fact.incarnation)
        elif kind == "fenced":  # the order of everything after it is evidence
            self._forget_tips()
        identity = (line.producer, epoch, fact.incarnation)
        if producer:
            if kind == "renumbered" and line.detail is not None and isinstance(line.detail.get("epoch"), int):
                moved_to = line.detail["epoch"]
                opening.later.add(moved_to)
            if kind in ("enqueued", "renumbered"):
                opening.published = True
            elif kind == "epoch":
                opening.later.add(epoch)
            if kind in ("enqueued", "epoch") or moved_to is not None:
                step = epoch if moved_to is None else moved_to
                if not self._newest or step > self._newest[-1][1]:
                    self._newest.append((line.lsn, step))
            if kind in ("consumed", "repaired", "surpassed") and line.group:
                self._groups.add(line.group)
            opening.end = max(opening.end, epoch, moved_to or 0)
            self._own.add((epoch, fact.incarnation))
            if moved_to is not None:
                self._own.add((moved_to, fact.incarnation))
        elif kind != "rejected" and line.producer:
            self._producers.add(line.producer)
            if fact.incarnation != NOBODY:
                self._referred.add(identity)
        if epoch and fact.incarnation != NOBODY and line.topic and kind not in _CLAIMED:
            self._identified.add(identity)


def _has_points(fact: Fact) -> bool:
    """Whether the ends of the rows that are joined to it are kept."""
    return fact.kind in _WITH_POINTS or fact.detail is not None


def is_plain(line: Line | Fact) -> bool:
    """Whether a row of a kind that may be joined has nothing that others lack."""
    if line.detail is None:
        return True
    return line.kind == "consumed" and line.detail.keys() == {"journal"} and settled_by(line.detail)[1] > 0


def same_opening(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two ``consumed`` rows name the same opening of an inbox, and later rows of its journal come later. All
    other rows that may be joined have no detail."""
    if one is None or other is None:
        return one is other
    (boot, lsn), (other_boot, other_lsn) = settled_by(one), settled_by(other)
    return other.keys() == {"journal"} and boot == other_boot and 0 < lsn <= other_lsn


def unfold(fact: Fact) -> Iterator[Fact]:
    """The rows of which a fact with points consists."""
    if fact.points is None:
        yield fact
        return
    first, lsn, total, wall_us = fact.first, fact.lsn, 0, fact.wall_us
    boot, settled_lsn = settled_by(fact.detail) if fact.kind == "consumed" else ("", 0)
    end = Point(fact.last, 0, settled_lsn if boot else fact.digest or 0, fact.wall_last_us, 0)
    for point in (*fact.points, end):
        digest = None if fact.digest is None else (point.mark - total) & _MASK
        yield msgspec.structs.replace(
            fact, first=first, last=point.last, lsn=lsn, digest=digest, points=None, wall_us=wall_us,
            wall_last_us=point.end_us, detail={"journal": [boot, point.mark]} if boot else fact.detail,
        )  # fmt: skip
        first, lsn, total, wall_us = point.last + 1, point.lsn, point.mark, point.wall_us


def _padded(digits: str) -> str:
    return digits if len(digits) == 16 else digits.rjust(16, "0")
