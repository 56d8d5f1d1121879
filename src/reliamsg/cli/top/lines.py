"""What was seen, as lines of text: files with problems first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from reliamsg.cli.status import counted, one_line
from reliamsg.cli.top.watch import InboxSeen, OutboxSeen, Problem, Seen
from reliamsg.message import Stream

__all__ = ["Level", "Line", "lines_of"]

_NAME_WIDTH = 28
_OLD_S = 60.0
"""The age of an unconfirmed message from which it is worth a look."""
_LISTED = 5
"""Sites, groups and gaps that are listed for each file; the others are counted."""


class Level(IntEnum):
    """How urgently a line needs attention."""

    OK = 0
    NOTE = 1
    PROBLEM = 2
    UNREADABLE = 3


class Line(NamedTuple):
    """A line, safe to print."""

    text: str
    level: Level = Level.OK
    heading: bool = False


def lines_of(found: Sequence[Seen]) -> list[Line]:
    """All lines, without a title."""
    lines = [Line(_columns("", "per s", "waiting", "oldest"), heading=True)]
    for seen in sorted(found, key=_worst_first):
        lines += _lines(seen)
    return lines


def _worst_first(seen: Seen) -> tuple[int, float, int, str]:
    return (-_level(seen), -_oldest(seen), -_waiting(seen), seen.file)


def _level(seen: Seen) -> Level:
    match seen:
        case Problem():
            return Level.UNREADABLE
        case OutboxSeen():
            stuck = any(site.parked for site in seen.sites) or any(
                g.lacks or g.unseen_at for g in seen.groups
            )
            return Level.PROBLEM if stuck else Level.NOTE if _oldest(seen) >= _OLD_S else Level.OK
        case InboxSeen():
            if seen.gap_count:
                return Level.PROBLEM
            return Level.NOTE if seen.dead_letters or seen.quarantined else Level.OK


def _oldest(seen: Seen) -> float:
    match seen:
        case Problem():
            return 0.0
        case OutboxSeen():
            ages = [seen.oldest_age_s, *(site.oldest_age_s for site in seen.sites)]
            return max((age for age in ages if age is not None), default=0.0)
        case InboxSeen():
            return max((gap.elapsed_s for gap in seen.gaps), default=0.0)


def _waiting(seen: Seen) -> int:
    match seen:
        case Problem():
            return 0
        case OutboxSeen():
            return max([seen.unpublished, *(site.behind for site in seen.sites)])
        case InboxSeen():
            return seen.held_messages


def _lines(seen: Seen) -> Iterator[Line]:
    match seen:
        case Problem():
            yield Line(_columns(one_line(seen.file)), Level.UNREADABLE, heading=True)
            yield Line(f"  ! {one_line(seen.problem)}", Level.UNREADABLE)
        case OutboxSeen():
            yield from _outbox(seen)
        case InboxSeen():
            yield from _inbox(seen)


def _outbox(seen: OutboxSeen) -> Iterator[Line]:
    yield Line(
        _columns(
            f"producer {one_line(seen.producer)}", _rate(seen.accepted_per_s), f"{seen.unpublished:,}",
            _age(seen.oldest_age_s), f"outbox {one_line(seen.file)}",
        ),
        _level(seen), heading=True,
    )  # fmt: skip
    sites = sorted(seen.sites, key=lambda site: (not site.parked, -site.behind, site.site))
    for site in sites[:_LISTED]:
        yield Line(
            _columns(
                f"  site {one_line(site.site)}", _rate(site.confirmed_per_s), f"{site.behind:,}",
                _age(site.oldest_age_s),
            )
        )  # fmt: skip
        for parked in site.parked[:_LISTED]:
            stream = _stream(seen.producer, parked.topic, parked.partition)
            yield Line(f"    ! parked: {stream}: {one_line(parked.reason)}", Level.PROBLEM)
        yield from _more(len(site.parked), "parked stream")
    yield from _more(len(sites), "site")
    groups = sorted(seen.groups, key=lambda g: (not (g.lacks or g.unseen_at), -g.behind, g.topic, g.group))
    for group in groups[:_LISTED]:
        stream = _stream(seen.producer, group.topic, group.partition)
        yield Line(_columns(f"  group {one_line(group.group)}", "", f"{group.behind:,}", "", stream))
        if group.lacks is not None:
            lacks = group.lacks
            yield Line(f"    ! lacks {lacks.first:,} to {lacks.last:,} of epoch {lacks.epoch}", Level.PROBLEM)
        if group.unseen_at:
            yield Line(f"    ! unseen at {one_line(', '.join(group.unseen_at))}", Level.PROBLEM)
    yield from _more(len(groups), "group")
    facts = [f"holds {counted(seen.messages, 'message')}"]
    if seen.repaired:
        facts.append(f"repaired {_with_rate(seen.repaired, seen.repaired_per_s)}")
    yield _facts(facts, seen)


def _inbox(seen: InboxSeen) -> Iterator[Line]:
    yield Line(
        _columns(
            f"group {one_line(seen.group)}", _rate(seen.settled_per_s), f"{seen.held_messages:,}",
            _age(_oldest(seen) if seen.gaps else None), f"inbox {one_line(seen.file)}",
        ),
        _level(seen), heading=True,
    )  # fmt: skip
    for gap in seen.gaps[:_LISTED]:
        last = "an unknown end" if gap.last is None else f"{gap.last:,}"
        stream = _stream(gap.producer, gap.topic, gap.partition)
        lacks = f"lacks {gap.first:,} to {last} of epoch {gap.epoch}"
        yield Line(f"  ! {stream} {lacks} for {_age(gap.elapsed_s)}", Level.PROBLEM)
    yield from _more(seen.gap_count, "gap")
    if seen.dead_letters:
        yield Line(f"  ! {counted(seen.dead_letters, 'dead letter')}", Level.NOTE)
    for reason, count in seen.quarantined.items():
        yield Line(f"  ! in quarantine ({one_line(reason)}): {counted(count, 'delivery')}", Level.NOTE)
    facts = [counted(seen.streams, "stream")]
    if seen.asked or seen.repaired:
        facts.append(
            f"requested again {seen.asked:,}, repaired {_with_rate(seen.repaired, seen.repaired_per_s)}"
        )
    if seen.samples:
        facts.append(f"unusable deliveries {seen.samples:,}")
    yield _facts(facts, seen)


def _facts(facts: list[str], seen: OutboxSeen | InboxSeen) -> Line:
    facts += [f"journal {counted(seen.journal_rows, 'row')}", f"file {_size(seen.bytes)}"]
    if seen.replaced:
        facts.append("the file was replaced")
    return Line(f"  {'; '.join(facts)}")


def _more(count: int, noun: str) -> Iterator[Line]:
    if count > _LISTED:
        yield Line(f"    and {counted(count - _LISTED, f'more {noun}')}")


def _columns(name: str, rate: str = "", waiting: str = "", oldest: str = "", note: str = "") -> str:
    short = name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"
    return f"{short:<{_NAME_WIDTH}}{rate:>10}{waiting:>12}{oldest:>9}  {note}".rstrip()


def _stream(producer: str, topic: str, partition: int) -> str:
    return one_line(Stream(producer, topic, partition))


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}" if per_s >= 10 or not per_s else f"{per_s:.1f}"


def _with_rate(number: int, per_s: float | None) -> str:
    return f"{number:,} ({_rate(per_s)} per s)" if per_s else f"{number:,}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:,.1f} s"
    for limit, unit, name in ((7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds / 86_400:,.1f} d"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
