"""How far the clocks of clients are apart, as far as journals show: docs/reference/audit.md, "Clocks that disagree"."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from reliamsg.audit.clients import Clients
from reliamsg.audit.context import Journal, settled_by
from reliamsg.audit.fold import Fact
from reliamsg.audit.found import Finding
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.numbers import History
from reliamsg.audit.through import Offset, Proven

__all__ = ["Offsets", "add_offsets", "compare_clocks", "offsets_of_stream"]

Offsets = dict[tuple[str, str], tuple[int | None, int | None]]
"""By history of a producer and history of a group: what the group's clock is ahead of the producer's, in µs, at least
and at most. None if it is unknown."""

_SHOWN_IN = frozenset({"delivered", "redelivered", "acknowledged"})
"""Kinds of a group's rows that show what time it was there."""


def add_offsets(known: Offsets, more: Offsets) -> None:
    """Add what other messages show."""
    for pair, (low, high) in more.items():
        least, most = known.get(pair, (None, None))
        known[pair] = (
            low if least is None else least if low is None else max(low, least),
            high if most is None else most if high is None else min(high, most),
        )


def offsets_of_stream(
    histories: Sequence[History], groups: Mapping[str, Iterable[tuple[Journal, Sequence[Fact]]]]
) -> Offsets:
    """What the messages of one stream show. Only rows since a client's clock was last set count."""
    found: Offsets = {}
    publishers = [(history, _enqueued(history)) for history in histories]
    for own in groups.values():
        for journal, facts in own:
            inbox = _Inbox(journal, facts)
            for history, enqueued in publishers:
                high = _most(enqueued, inbox.delivered)
                low = _least(history, inbox)
                if low is not None or high is not None:
                    found[history.journal.name, journal.name] = (low, high)
    return found


_Row = tuple[int, int, int, int]
"""First and last number, and when the first and the last were added, in µs since 1970."""


def _spans(fact: Fact) -> Iterator[tuple[_Row, int, int | None]]:
    """The rows of a fact, each with its number and, but for the last, the mark of its end. Like
    :func:`~reliamsg.audit.fold.unfold`, without what makes that slow."""
    first, lsn, began = fact.first, fact.lsn, fact.wall_us
    for point in fact.points or ():
        yield (first, point.last, began, max(began, point.end_us)), lsn, point.mark
        first, lsn, began = point.last + 1, point.lsn, point.wall_us
    yield (first, fact.last, began, max(began, fact.wall_last_us)), lsn, None


def _enqueued(history: History) -> dict[tuple[int, str], list[_Row]]:
    """By epoch and incarnation, what a producer enqueued."""
    found: dict[tuple[int, str], list[_Row]] = defaultdict(list)
    for own in history.of_kind("enqueued"):
        for row, lsn, _ in _spans(own.fact):
            if row[0] <= row[1] and lsn > history.journal.stepped:
                found[own.epoch, own.fact.incarnation].append(row)
    return found


def _most(
    enqueued: Mapping[tuple[int, str], list[_Row]], delivered: Mapping[tuple[int, str], list[_Row]]
) -> int | None:
    """A group delivers a message after it was enqueued: what its clock is ahead, at most."""
    most: int | None = None
    for key, given in delivered.items():
        rows = sorted(enqueued.get(key, ()))
        starts = [first for first, _, _, _ in rows]
        ends = list(accumulate((last for _, last, _, _ in rows), max))
        for first, last, began, ended in given:
            for row in rows[bisect_left(ends, first) : bisect_right(starts, last)]:
                for number in (max(first, row[0]), min(last, row[1])):
                    if row[0] <= number <= row[1]:
                        late = began if number == first else ended
                        early = row[3] if number == row[1] else row[2]
                        most = late - early if most is None else min(most, late - early)
    return most


class _Inbox:
    """The times that a group's rows about a stream show, by opening."""

    def __init__(self, journal: Journal, facts: Iterable[Fact]) -> None:
        self.group = journal.client
        self.delivered: dict[tuple[int, str], list[_Row]] = defaultdict(list)
        """By epoch and incarnation, what it delivered for the first time."""
        begun: dict[str, list[tuple[int, int]]] = defaultdict(list)
        settled: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        for fact in facts:
            if fact.kind not in _SHOWN_IN:
                continue
            for row, lsn, _ in _spans(fact):
                if lsn <= journal.stepped:
                    continue
                begun[fact.boot].append((lsn, row[2]))
                if row[0] > row[1]:
                    continue
                if fact.kind == "delivered":
                    self.delivered[fact.epoch, fact.incarnation].append(row)
                elif fact.kind == "acknowledged":
                    settled[fact.boot, fact.epoch].append((row[1], lsn, row[3]))
        self._begun = {boot: sorted(rows) for boot, rows in begun.items()}
        self._latest = {
            boot: list(accumulate((us for _, us in rows), max)) for boot, rows in self._begun.items()
        }
        self._settled = {key: sorted(rows) for key, rows in settled.items()}

    def time_at(self, boot: str, lsn: int, epoch: int, last: int) -> int | None:
        """A time that the group's clock had reached when its journal had that row, by which everything up to a number
        was settled."""
        rows = self._begun.get(boot, [])
        at = bisect_right(rows, (lsn, 2**63)) - 1
        found = [self._latest[boot][at]] if at >= 0 else []
        ends = self._settled.get((boot, epoch), [])
        at = bisect_right(ends, (last, 2**63, 0)) - 1
        if at >= 0 and ends[at][1] <= lsn:
            found.append(ends[at][2])
        return max(found, default=None)


def _least(history: History, inbox: _Inbox) -> int | None:
    """A producer learns what a group has settled after that: what the group's clock is ahead, at least."""
    least: int | None = None
    for own in history.of_kind("consumed"):
        boot, latest = settled_by(own.fact.detail)
        if own.fact.group != inbox.group or not boot:
            continue
        for row, lsn, mark in _spans(own.fact):
            if row[0] > row[1] or lsn <= history.journal.stepped:
                continue
            us = inbox.time_at(boot, latest if mark is None else mark, own.epoch, row[1])
            if us is not None:
                least = us - row[3] if least is None else max(least, us - row[3])
    return least


@dataclass(frozen=True, slots=True)
class _Peer:
    """What is known of one pair, seen from one of them."""

    offset: Offset
    source: str

    def key(self) -> tuple[int, float, str, str]:
        """The pair that proves most comes first, or else the one that leaves least open."""
        low, high = self.offset.least_us, self.offset.most_us
        width = float("inf") if low is None or high is None else float(high - low)
        return -self.offset.proven_us, width, self.offset.client, self.source


def compare_clocks(clients: Clients, offsets: Offsets, max_skew: float | None) -> Clients:
    """The clients, each with its offset against the one that shows most; and the findings about those that are further
    from it than `max_skew` seconds."""
    by_name = {each.journal: each for each in clients.proven}
    best: dict[str, _Peer] = {}
    for (producer, group), (low, high) in offsets.items():
        for name, peer, least, most in (
            (group, by_name[producer], low, high),
            (producer, by_name[group], _negative(high), _negative(low)),
        ):
            found = _Peer(Offset(peer.role, peer.client, least, most), peer.source)
            if name not in best or found.key() < best[name].key():
                best[name] = found
    proven = [
        replace(each, offset=best[each.journal].offset) if each.journal in best else each
        for each in clients.proven
    ]
    skewed = [] if max_skew is None else list(_skewed(proven, max_skew))
    return replace(clients, findings=[*clients.findings, *skewed], proven=proven)


def _skewed(proven: Iterable[Proven], max_skew: float) -> Iterator[Finding]:
    for each in proven:
        if each.offset is not None and each.offset.proven_us > max_skew * 1e6:
            yield Finding("skewed", text=f"{each.name}: {KINDS['skewed'][1]}: {each.offset}")


def _negative(us: int | None) -> int | None:
    return None if us is None else -us
