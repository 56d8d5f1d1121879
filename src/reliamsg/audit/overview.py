"""What the report shows of all streams: sums of bounded size, made from the judgement of each stream."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from reliamsg.audit.context import Context
from reliamsg.audit.fates import PRODUCER
from reliamsg.audit.fold import Fact, StreamName, unfold
from reliamsg.audit.found import Finding
from reliamsg.audit.kinds import KINDS, LOSSES, PRECEDENCE
from reliamsg.audit.spans import LAST, joined, pieces, size
from reliamsg.audit.streams import Judged
from reliamsg.audit.timeline import Timeline

__all__ = ["MAX_STREAMS", "SOUND", "Overview", "StreamLine", "overview_of", "worst_lines"]

MAX_STREAMS = 5_000
"""The maximum number of streams in the report."""
_TIMED = {
    **dict.fromkeys(LOSSES, "lost"),
    **dict.fromkeys(("undelivered", "pending", "never_joined"), "open"),
    **dict.fromkeys(("duplicate", "redelivered_after_ack"), "duplicate"),
    "out_of_order": "out_of_order",
}
"""Kinds of findings that the report shows over time, at the times of publishing."""
_RANKS: dict[str, int] = {severity: rank for rank, severity in enumerate(PRECEDENCE)}
SOUND = len(PRECEDENCE)
"""The rank of streams without findings."""
_DUE = frozenset({"delivered", "dead", "declared_gap", "undelivered", "pending", "never_joined"})
"""Fates of messages that a group has to settle, and has not lost silently."""
_SETTLED = frozenset({"delivered", "redelivered", "declared", "dead_lettered"})


class StreamLine(msgspec.Struct, array_like=True, frozen=True):
    """One stream in numbers of messages."""

    rank: int
    """The place of its worst finding's severity in :data:`~reliamsg.audit.kinds.PRECEDENCE`, or :data:`SOUND`."""
    missing: int
    """Lost or open, at the group that lacks most."""
    wrong: int
    """In findings about violations."""
    published: int
    stream: StreamName
    group: str
    """The group that lacks most."""


@dataclass(slots=True)
class Overview:
    """Sums over many streams."""

    timeline: Timeline = field(default_factory=Timeline)
    """Messages over time, by name: ``published``, ``late`` and the values of ``_TIMED``; for each group, after a colon,
    ``delivered`` for the first time, ``redelivered``, and ``due`` to be settled and ``done`` at their times."""
    lines: list[StreamLine] = field(default_factory=list)
    """The worst :data:`MAX_STREAMS` are among them, see :func:`worst_lines`."""
    enqueued: Counter[str] = field(default_factory=Counter)
    """By producer, messages, like the next two."""
    pending: Counter[str] = field(default_factory=Counter)
    """The confirm policy is not met."""
    missing: Counter[str] = field(default_factory=Counter)
    """Lost or open, at the group that lacks most of each stream."""
    confirmed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By producer and site."""
    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By site and group, messages, like the next two."""
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Confirmed by the site, and provably gone without the group having received them."""
    alone: Counter[tuple[str, str]] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    """By group, messages that only a repair brought."""

    def add(self, other: Overview) -> None:
        """Add other streams."""
        self.timeline.merge(other.timeline)
        self.lines += other.lines
        if len(self.lines) > 2 * MAX_STREAMS:
            self.lines = worst_lines(self.lines)
        for own, more in (
            (self.enqueued, other.enqueued), (self.pending, other.pending), (self.missing, other.missing),
            (self.repaired, other.repaired),
        ):  # fmt: skip
            own.update(more)
        for flow, further in (
            (self.confirmed, other.confirmed), (self.received, other.received), (self.lost, other.lost),
            (self.alone, other.alone),
        ):  # fmt: skip
            flow.update(further)


def worst_lines(lines: Iterable[StreamLine]) -> list[StreamLine]:
    """The worst :data:`MAX_STREAMS`: by severity, then those with most missing, wrong and published messages."""
    return heapq.nsmallest(
        MAX_STREAMS,
        lines,
        key=lambda each: (each.rank, -each.missing, -each.wrong, -each.published, each.stream),
    )


def overview_of(found: Judged, facts: Mapping[str, Sequence[Fact]], context: Context) -> Overview:
    """The overview of one stream. `facts`: by journal."""
    overview = Overview()
    _add_flows(overview, found)
    published: dict[int, list[Fact]] = defaultdict(list)
    settled: dict[tuple[str, int], list[Fact]] = defaultdict(list)
    for name, rows in facts.items():
        journal = context.journals[name]
        for fact in rows:
            if fact.first <= fact.last:
                _add_row(overview.timeline, journal.client, fact, published, settled)
    for old, new in sorted({move for rows in facts.values() for fact in rows for move in _moves(fact)}):
        published[new] += published.get(old, [])
    missing = _add_findings(overview.timeline, found.findings, published)
    for (group, epoch), fates in found.fates.items():
        if group != PRODUCER:
            due = [(fate.first, fate.last) for fate in fates if fate.fate in _DUE]
            _add_lag(overview.timeline, group, due, published.get(epoch, []), settled.get((group, epoch), []))
    total = sum(account.enqueued for account in found.accounts.values())
    if found.used or found.findings:
        ranks = [_RANKS[KINDS[each.kind][0]] for each in found.findings]
        worst = max(missing.items(), key=lambda item: item[1], default=("", 0))
        overview.missing[found.stream[0]] += worst[1]
        wrong = sum(_messages(each) for each in found.findings if KINDS[each.kind][0] == "violated")
        overview.lines.append(
            StreamLine(min(ranks, default=SOUND), worst[1], wrong, total, found.stream, worst[0])
        )
    return overview


def _add_flows(overview: Overview, found: Judged) -> None:
    producer, passages = found.stream[0], found.passages
    overview.enqueued[producer] += sum(account.enqueued for account in found.accounts.values())
    overview.pending[producer] += sum(
        size(fate.first, fate.last)
        for (group, _), fates in found.fates.items() if group == PRODUCER for fate in fates if fate.pending
    )  # fmt: skip
    for site, messages in passages.confirmed.items():
        overview.confirmed[producer, site] += messages
    for group, own in passages.groups.items():
        overview.repaired[group] += own.by_repair
        for flow, counts in (
            (overview.received, own.received), (overview.lost, own.lost), (overview.alone, own.alone),
        ):  # fmt: skip
            for site, messages in counts.items():
                flow[site, group] += messages


def _add_row(
    timeline: Timeline,
    client: str,
    fact: Fact,
    published: dict[int, list[Fact]],
    settled: dict[tuple[str, int], list[Fact]],
) -> None:
    kind = fact.kind
    if kind not in ("enqueued", "late") and kind not in _SETTLED:
        return
    for row in unfold(fact):
        if kind == "enqueued":
            published[row.epoch].append(row)
        elif kind in _SETTLED:
            settled[client, row.epoch].append(row)
        name = {
            "enqueued": "published", "late": "late", "delivered": f"delivered:{client}",
            # No row reports the first delivery of these: their client was killed after it.
            "redelivered": f"{'delivered' if row.reason == 'unjournalled' else 'redelivered'}:{client}",
        }.get(kind)  # fmt: skip
        if name is not None:
            timeline.add(name, size(row.first, row.last), row.wall_us, row.wall_last_us)


def _moves(fact: Fact) -> Iterator[tuple[int, int]]:
    """The epochs from and to which a row moves messages."""
    new = (fact.detail or {}).get("epoch")
    if fact.kind == "renumbered" and isinstance(new, int):
        yield fact.epoch, new


def _add_findings(
    timeline: Timeline, findings: Iterable[Finding], published: Mapping[int, Sequence[Fact]]
) -> dict[str, int]:
    """Add findings at the times of publishing. Returns the lost and open messages of each group."""
    missing: dict[str, int] = defaultdict(int)
    for finding in findings:
        name = _TIMED.get(finding.kind)
        if name is None or finding.first is None or finding.last is None or finding.epoch is None:
            continue
        for row in published.get(finding.epoch, ()):
            first, last = max(finding.first, row.first), min(finding.last, row.last)
            if first <= last:
                timeline.add(name, size(first, last), *_times(row, first, last))
                if name in ("lost", "open"):
                    missing[finding.group] += size(first, last)
    return missing


def _add_lag(
    timeline: Timeline,
    group: str,
    due: Iterable[tuple[int, int]],
    published: Sequence[Fact],
    settled: Sequence[Fact],
) -> None:
    """Add when messages of one epoch became due to a group, and when it first settled each of them."""
    blocks = [(first, last) for _, first, last in joined((0, *each) for each in due)]
    if _is_simple(blocks, published, settled):
        for name, rows in (("due", published), ("done", settled)):
            for row in rows:
                timeline.add(f"{name}:{group}", size(row.first, row.last), row.wall_us, row.wall_last_us)
        return
    marked: list[tuple[int, int, Fact | None]] = [(*each, None) for each in blocks]
    marked += [(fact.first, fact.last, fact) for facts in (published, settled) for fact in facts]
    for first, last, marks in pieces(marked):
        if None not in marks:
            continue
        began = [_times(row, first, last) for row in marks if row is not None and row.kind == "enqueued"]
        if not began:
            continue
        timeline.add(f"due:{group}", size(first, last), *min(began))
        ended = [_times(row, first, last) for row in marks if row is not None and row.kind in _SETTLED]
        if ended:
            timeline.add(f"done:{group}", size(first, last), *min(ended))


def _is_simple(blocks: Sequence[tuple[int, int]], published: Sequence[Fact], settled: Sequence[Fact]) -> bool:
    """Whether everything that was published is due, and what was settled was settled once and in order: most streams
    are like that."""
    if len(blocks) != 1 or not published:
        return False
    first, last = published[0].first, published[-1].last
    return (
        blocks[0][0] <= first
        and last <= blocks[0][1]
        and all(row.last + 1 == after.first for row, after in pairwise(published))
        and all(row.last < after.first for row, after in pairwise(settled))
        and (not settled or (first <= settled[0].first and settled[-1].last <= last))
    )


def _times(row: Fact, first: int, last: int) -> tuple[int, int]:
    """When a part of a row's messages was written, if these are spread evenly over its time."""
    share = (row.wall_last_us - row.wall_us) / size(row.first, row.last)
    return row.wall_us + int(share * (first - row.first)), row.wall_us + int(share * (last - row.first + 1))


def _messages(finding: Finding) -> int:
    if finding.first is None or finding.last is None or finding.last >= LAST:
        return 0
    return size(finding.first, finding.last)
