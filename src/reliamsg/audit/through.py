"""Through which time the evidence is whole: docs/reference/audit.md, "Complete through a time"."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from reliamsg.audit.fold import FOREVER_US, Opening, Part, unfold
from reliamsg.audit.found import Finding, describe
from reliamsg.audit.incidents import Incident
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.numbers import History
from reliamsg.audit.spans import LAST, pieces, size
from reliamsg.audit.times import as_time

__all__ = [
    "DEMANDS", "Offset", "Open", "Proven", "Question", "Through", "Times", "clients_as_dicts", "dated", "demands_at",
    "enqueue_times", "enqueued_by", "find_through", "in_order", "offset_of", "prove", "questions",
]  # fmt: skip

DEMANDS = frozenset({"unclosed", "ends_early", "mixed_clock", "not_retired"})
"""Kinds of findings about evidence that was demanded and may follow. They don't question what is there."""
_MAX_CLIENTS = 1_000
_MAX_HOLDS = 20
_ENDS = {"closed": "was closed then", "open": "has no row after that", "retired": "was retired"}


@dataclass(frozen=True, slots=True)
class Offset:
    """What a client's clock is ahead of another client's."""

    role: str
    client: str
    """The other one."""
    least_us: int | None
    most_us: int | None
    """None if it is unknown. If the offset varied, the least may be more than the most: each was measured at some
    time."""

    @property
    def proven_us(self) -> int:
        """What the clocks were apart at some time, at least."""
        low = 0 if self.least_us is None else self.least_us
        high = 0 if self.most_us is None else self.most_us
        return max(low, -high, 0)

    def as_dict(self) -> dict[str, str | float | None]:
        low, high = (None if us is None else us / 1e6 for us in (self.least_us, self.most_us))
        return {"role": self.role, "client": self.client, "least_s": low, "most_s": high}

    def __str__(self) -> str:
        low, high = (
            "?" if us is None else f"{us / 1e6:+.6f}".rstrip("0").rstrip(".") + " s"
            for us in (self.least_us, self.most_us)
        )
        return f"{low} to {high} against {self.role} {self.client}"


def offset_of(data: Mapping[str, Any]) -> Offset:
    """The offset in ``verdict.json``."""
    low, high = (None if each is None else round(each * 1e6) for each in (data["least_s"], data["most_s"]))
    return Offset(data["role"], data["client"], low, high)


@dataclass(frozen=True, slots=True)
class Proven:
    """One history of a client's file."""

    role: str
    client: str
    source: str
    broken: bool
    ends: str
    """``open``, ``closed`` or ``retired``."""
    us: int
    """Through this time no row is missing at its end: µs since 1970, by the client's clock."""
    mixed: list[tuple[int, int]]
    """Half-open periods over which the client's clock was set, or in which it ran backwards; sorted and disjoint."""
    journal: str = ""
    """The history's name."""
    offset: Offset | None = None
    """Against the client that shows most; None if none does."""

    @property
    def name(self) -> str:
        return f"{self.source} ({self.role} {self.client})"


@dataclass(frozen=True, slots=True)
class Question:
    """Open questions of one stream, and when the first message was enqueued that one is about."""

    since_us: int
    findings: list[Finding]
    """Those about that message."""


@dataclass(slots=True)
class Open:
    """What is open about the messages of streams."""

    first: Question | None = None
    """The open questions about the message that was enqueued first of all that any is about."""
    undated: bool = False
    """Whether there are open questions about messages whose time is unknown."""

    def add(self, other: Open) -> None:
        """Add what is open about other streams."""
        self.first = _first_question(self.first, other.first)
        self.undated |= other.undated


def _first_question(one: Question | None, other: Question | None) -> Question | None:
    """The questions about earlier messages, or those of both."""
    if one is None or other is None:
        return one or other
    if one.since_us != other.since_us:
        return min(one, other, key=lambda each: each.since_us)
    both = sorted([*one.findings, *other.findings], key=describe)
    return Question(one.since_us, both[:_MAX_HOLDS])


def in_order(proven: Iterable[Proven]) -> list[Proven]:
    """Those first that are proven least."""
    return sorted(proven, key=lambda each: (each.us, each.role, each.client, each.source))


def prove(
    role: str, client: str, source: str, broken: bool, us: int, openings: Sequence[Opening], parts: Iterable[Part]
) -> Proven:  # fmt: skip
    """A history that is proven through `us`."""
    last = openings[-1] if openings else None
    found: list[tuple[int, int]] = []
    latest = 0
    for part in parts:
        found += part.mixed
        if part.least_us < latest:
            found.append((part.least_us, latest))
        latest = max(latest, part.latest_us)
    merged: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    ends = "open" if last is None or not last.closed else "retired" if last.retired else "closed"
    return Proven(role, client, source, broken, ends, us, merged)


Times = Mapping[int, Sequence[tuple[int, int, int, int]]]
"""By epoch, disjoint ranges of a stream's messages in ascending order, and the earliest and the latest time at which a
row began that enqueued them (µs since 1970)."""


def enqueue_times(epochs: Container[int], histories: Sequence[History]) -> Times:
    """When the messages of some epochs of a stream were enqueued."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for history in histories:
        for row in history.of_kind("enqueued"):
            if row.epoch in epochs:
                found[row.epoch] += [(fact.first, fact.last, fact.wall_us) for fact in unfold(row.fact)]
    return {
        epoch: [(first, last, min(marks), max(marks)) for first, last, marks in pieces(rows)]
        for epoch, rows in found.items()
    }


def dated(incidents: Iterable[Incident], times: Times) -> list[Incident]:
    """Incidents of a stream, each with the times at which its messages were enqueued; without, if it is not about
    messages, or if any of them was not enqueued."""
    found = []
    for each in incidents:
        period = None
        if each.epoch is not None and each.first is not None and each.last is not None:
            period = _period(times.get(each.epoch, ()), each.first, each.last)
        found.append(each if period is None else msgspec.structs.replace(each, enqueued_us=period))
    return found


def _period(steps: Sequence[tuple[int, int, int, int]], first: int, last: int) -> tuple[int, int] | None:
    """The earliest and the latest time of the ranges that together contain `first` to `last`; None if they do not."""
    at = max(bisect_right(steps, first, key=itemgetter(0)) - 1, 0)
    end, earliest, latest = first - 1, FOREVER_US, 0
    while end < last and at < len(steps) and steps[at][0] <= end + 1:
        _, step_end, low, high = steps[at]
        if step_end > end:
            end, earliest, latest = step_end, min(earliest, low), max(latest, high)
        at += 1
    return (earliest, latest) if end >= last else None


def questions(findings: Iterable[Finding], times: Times) -> Open:
    """What the findings about a stream leave open. `times` include the epochs of all of them; the time of messages that
    were not enqueued is unknown."""
    undated = False
    least: int | None = None
    first: list[Finding] = []
    for each in findings:
        if KINDS[each.kind][0] != "unknown":
            continue
        period = None
        if each.epoch is not None and each.first is not None and each.last is not None and each.last < LAST:
            period = _period(times.get(each.epoch, ()), each.first, each.last)
        if period is None:
            undated = True
        elif least is None or period[0] < least:
            least, first = period[0], [each]
        elif period[0] == least:
            first.append(each)
    return Open(None if least is None else Question(least, first[:_MAX_HOLDS]), undated)


def enqueued_by(times: Sequence[int], histories: Sequence[History], until_us: int | None) -> list[int]:
    """For each of `times`, the number of a stream's messages that were enqueued by then, without those after
    `until_us`."""
    by_epoch: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    latest = max(times, default=0)
    for history in histories:
        for row in history.of_kind("enqueued"):
            for fact in unfold(row.fact):
                if fact.wall_us <= latest or (until_us is not None and fact.wall_us > until_us):
                    by_epoch[row.epoch].append((fact.first, fact.last, fact.wall_us))
    found = [0] * len(times)
    for own in by_epoch.values():
        for first, last, marks in pieces(own):
            if until_us is not None and max(marks) > until_us:
                continue
            for place, us in enumerate(times):
                if min(marks) <= us:
                    found[place] += size(first, last)
    return found


@dataclass(frozen=True, slots=True)
class Through:
    """The time through which the evidence is whole and no message is open."""

    us: int | None
    """µs since 1970; None: at no time."""
    held_by: list[dict[str, Any]]
    """What keeps it from being later: role, client, time and reason."""


def find_through(
    proven: Sequence[Proven], question: Question | None, until_us: int | None, now_us: int
) -> Through:
    """The greatest time through which nothing is open."""
    times = [now_us, *(each.us for each in proven)]
    if question is not None:
        times.append(question.since_us - 1)
    us = min(times)
    if until_us is not None:
        us = min(us, until_us)
    us, mixed = _before_mixed(us, proven)
    held = [
        (each.role, each.client, f"its clock was set between {as_time(low)} and {as_time(high)}")
        for each, low, high in mixed
    ]
    held += [
        (
            each.role,
            each.client,
            f"its journal {_ENDS[each.ends]}",
        )
        for each in proven
        if each.us == us
    ]
    if question is not None and question.since_us - 1 == us:
        held += [
            ("group" if each.group else "producer", each.group or (each.stream or ("",))[0], describe(each))
            for each in question.findings
        ]
    if us == now_us:
        held.append(("", "", "it is the time of the audit"))
    at = as_time(us)
    return Through(
        us,
        [
            {**({"role": role, "client": client} if role else {}), "through": at, "why": why}
            for role, client, why in held[:_MAX_HOLDS]
        ],
    )


def _before_mixed(us: int, proven: Iterable[Proven]) -> tuple[int, list[tuple[Proven, int, int]]]:
    """The last time up to `us` at which no clock ran backwards, and those that ran backwards just after it."""
    own = [(each, low, high) for each in proven for low, high in each.mixed]
    moved = True
    while moved:
        moved = False
        for _, low, high in own:
            if low <= us < high:
                us, moved = low - 1, True
    return us, [each for each in own if each[1] - 1 == us]


def clients_as_dicts(proven: Iterable[Proven]) -> list[dict[str, Any]]:
    """The histories that are proven least."""
    return [
        {
            "role": each.role,
            "client": each.client,
            "proven": None if each.ends == "retired" else as_time(each.us),
            "ends": each.ends,
            **({} if each.offset is None else {"offset": each.offset.as_dict()}),
        }
        for each in islice(proven, _MAX_CLIENTS)
    ]


def demands_at(until_us: int, proven: Iterable[Proven], now_us: int) -> Iterator[Finding]:
    """What questions that everything is proven through that time."""
    if until_us > now_us:
        yield Finding("ends_early", text=f"{as_time(until_us)} is later than the clock of this machine")
    for each in proven:
        if not each.broken and each.us < until_us:
            text = f"{each.name}: {KINDS['ends_early'][1]}: it ends at {as_time(each.us)}"
            yield Finding("ends_early", text=text)
        for low, high in each.mixed:
            if low <= until_us < high:
                text = f"{each.name}: {KINDS['mixed_clock'][1]}: between {as_time(low)} and {as_time(high)}"
                yield Finding("mixed_clock", text=text)
