"""How far clients' clocks are apart, as far as journals show: docs/reference/audit.md, "Clocks that disagree".

A group delivers a message after its producer enqueued it, and a producer learns what a group has settled after that. So
each such pair of rows bounds the difference of the two clocks, from one side each.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from reliamsg.checker.journals import Chain
from reliamsg.checker.producers import settled_by, stream_of
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import KINDS, Finding, Offset
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["find_skewed", "measure"]

_Place = tuple[Stream, int, int]
"""Stream, final epoch and incarnation."""


class _Span(NamedTuple):
    """The messages of a row, and the times of its first and its last one."""

    first: int
    last: int
    began_us: int
    ended_us: int

    @classmethod
    def of(cls, row: JournalRow) -> _Span:
        return cls(row.first, row.last, row.wall_us, max(row.wall_us, row.wall_last_us))

    def by(self, number: int) -> int:
        """When that message was there, at the latest."""
        return self.began_us if number == self.first else self.ended_us

    def not_before(self, number: int) -> int:
        """When that message was there, at the earliest."""
        return self.ended_us if number == self.last else self.began_us


def _rows(chain: Chain) -> list[JournalRow]:
    """The rows of a chain since its clock was last set."""
    stepped = max((row.lsn for row in chain.rows if row.kind == "clock_step"), default=0)
    return [row for row in chain.rows if row.lsn > stepped]


class _Published:
    """What a producer's chain shows."""

    def __init__(self, chain: Chain) -> None:
        renumbering = Renumbering(chain.rows)
        self.spans: dict[_Place, list[_Span]] = defaultdict(list)
        self.reports: dict[str, list[tuple[str, Stream, int, int, int, int]]] = defaultdict(list)
        """By group: the opening of its inbox, the stream, the row of its journal, the final epoch, the last number that
        was settled by it, and when the producer knew."""
        for row in map(renumbering, _rows(chain)):
            if row.first > row.last or not row.topic:
                continue
            if row.kind == "enqueued":
                self.spans[stream_of(row), row.epoch, row.incarnation].append(_Span.of(row))
            elif row.kind == "consumed":
                boot, lsn = settled_by(row)
                if boot:
                    self.reports[row.group].append(
                        (boot, stream_of(row), lsn, row.epoch, row.last, _Span.of(row).ended_us)
                    )
        for spans in self.spans.values():
            spans.sort()


class _Given:
    """What a group's chain shows."""

    def __init__(self, chain: Chain) -> None:
        self.group = chain.client
        self.spans: dict[_Place, list[_Span]] = defaultdict(list)
        self._clock: dict[tuple[str, Stream], list[tuple[int, int]]] = defaultdict(list)
        """By opening and stream: rows, and the latest time at which a row up to there had begun."""
        self._acknowledged: dict[tuple[str, Stream, int], list[tuple[int, int, int]]] = defaultdict(list)
        """By opening, stream and epoch: last number, row, and the time of that number."""
        for row in sorted(_rows(chain), key=lambda row: row.lsn):
            if row.kind not in ("delivered", "redelivered", "acknowledged") or not row.topic:
                continue
            stream, is_range = stream_of(row), row.first <= row.last
            clock = self._clock[row.boot, stream]
            clock.append((row.lsn, max(row.wall_us, clock[-1][1] if clock else row.wall_us)))
            if row.kind == "delivered" and is_range:
                self.spans[stream, row.epoch, row.incarnation].append(_Span.of(row))
            elif row.kind == "acknowledged" and is_range:
                insort(
                    self._acknowledged[row.boot, stream, row.epoch],
                    (row.last, row.lsn, _Span.of(row).ended_us),
                )

    def reached(self, boot: str, stream: Stream, lsn: int, epoch: int, last: int) -> int | None:
        """The time that its clock had reached when it had that row, with everything up to `last` settled."""
        times: list[int] = []
        clock = self._clock.get((boot, stream), [])
        at = bisect(clock, lsn, key=lambda each: each[0])
        if at:
            times.append(clock[at - 1][1])
        ends = self._acknowledged.get((boot, stream, epoch), [])
        at = bisect(ends, last, key=lambda each: each[0])
        if at and ends[at - 1][1] <= lsn:
            times.append(ends[at - 1][2])
        return max(times) if times else None


def _most(published: _Published, given: _Given) -> int | None:
    """What the group's clock is ahead of the producer's, at most."""
    found: list[int] = []
    for place in published.spans.keys() & given.spans.keys():
        spans = published.spans[place]
        reach: list[int] = []  # the highest number up to there
        for span in spans:
            reach.append(max(span.last, reach[-1] if reach else span.last))
        for own in given.spans[place]:
            at = bisect(reach, own.first - 1)
            while at < len(spans) and spans[at].first <= own.last:
                span = spans[at]
                if span.last >= own.first:
                    found += [
                        own.by(number) - span.not_before(number)
                        for number in {max(own.first, span.first), min(own.last, span.last)}
                    ]
                at += 1
    return min(found) if found else None


def _least(published: _Published, given: _Given) -> int | None:
    """What the group's clock is ahead of the producer's, at least."""
    found: list[int] = []
    for boot, stream, lsn, epoch, last, known_us in published.reports.get(given.group, ()):
        us = given.reached(boot, stream, lsn, epoch, last)
        if us is not None:
            found.append(us - known_us)
    return max(found) if found else None


def measure(chains: Sequence[Chain]) -> list[Offset | None]:
    """For each chain, how far its client's clock is from the one against which most is known: the one from which it is
    proven to be furthest, or else that with the narrowest bounds."""
    publishers = {
        number: _Published(chain) for number, chain in enumerate(chains) if chain.role == "producer"
    }
    readers = {number: _Given(chain) for number, chain in enumerate(chains) if chain.role == "group"}
    known: dict[int, list[tuple[tuple[int, float, str, str], Offset]]] = defaultdict(list)
    for number, published in publishers.items():
        for other, given in readers.items():
            least, most = _least(published, given), _most(published, given)
            if least is None and most is None:
                continue
            of_group = Offset("producer", chains[number].client, least, most)
            of_producer = Offset(
                "group",
                chains[other].client,
                None if most is None else -most,
                None if least is None else -least,
            )
            width = float("inf") if least is None or most is None else float(most - least)
            for one, peer, offset in ((other, number, of_group), (number, other, of_producer)):
                rank = (-offset.proven_us, width, chains[peer].client, chains[peer].source)
                known[one].append((rank, offset))
    return [
        min(known[number], key=lambda pair: pair[0])[1] if number in known else None
        for number in range(len(chains))
    ]


def find_skewed(
    chains: Iterable[Chain], offsets: Iterable[Offset | None], max_skew: float
) -> Iterator[Finding]:
    """The clients whose clocks are proven to be more than `max_skew` seconds from another one's."""
    for chain, offset in zip(chains, offsets, strict=True):
        if offset is not None and offset.proven_us > max_skew * 1e6:
            name = f"{chain.source} ({chain.role} {chain.client})"
            yield Finding("skewed", f"{name}: {KINDS['skewed'][1]}: {offset}")
