"""Messages, gaps and repairs by day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from reliamsg.audit.context import Journal
from reliamsg.audit.fold import Fact, unfold
from reliamsg.audit.spans import size

__all__ = ["Days", "add_days", "as_dicts", "days_of"]

Days = dict[int, Counter[str]]
"""By day (since 1970, UTC), numbers of messages by kind of row."""

DAY_US = 86_400_000_000
MAX_DAYS = 1_000
"""The last days are kept if there are more: a client's clock may show anything."""
_NAMES = {"enqueued": "enqueued", "declared": "declared_gaps", "repaired": "repaired"}
_FIRST = date(1970, 1, 1)


def days_of(facts: Mapping[str, Sequence[Fact]], journals: Mapping[str, Journal]) -> Days:
    """When the messages of one stream were enqueued, declared as gaps, and sent again on request: the days on which the
    rows began, by their clients' clocks. `facts`: by journal. Histories of one file share rows, which count once."""
    found: Days = {}
    histories = Counter((journals[name].role, journals[name].client) for name in facts)
    shared: dict[tuple[str, str, str, int], Fact] = {}
    for name, rows in facts.items():
        client = journals[name].role, journals[name].client
        for fact in rows:
            if fact.kind not in _NAMES or fact.first > fact.last:
                continue
            if histories[client] == 1:
                for each in _by_day(fact):
                    _count(found, each)
                continue
            for each in unfold(fact):
                key = (*client, each.boot, each.lsn)
                known = shared.get(key)
                if known is None or known.last < each.last:
                    shared[key] = each
    for each in shared.values():
        _count(found, each)
    return found


def _by_day(fact: Fact) -> Iterator[Fact]:
    """A fact whose rows all began on one day, or else its rows."""
    if fact.points and fact.points[-1].wall_us // DAY_US != fact.wall_us // DAY_US:
        return unfold(fact)
    return iter((fact,))


def _count(days: Days, fact: Fact) -> None:
    days.setdefault(fact.wall_us // DAY_US, Counter())[_NAMES[fact.kind]] += size(fact.first, fact.last)


def add_days(days: Days, others: Days) -> None:
    """Add the numbers of other streams."""
    for day, counts in others.items():
        days.setdefault(day, Counter()).update(counts)
    if len(days) > 2 * MAX_DAYS:
        for day in sorted(days)[:-MAX_DAYS]:
            del days[day]


def as_dicts(days: Days) -> list[dict[str, Any]]:
    """The last :data:`MAX_DAYS`, in order, as plain data."""
    return [
        {"day": _name(day), **{name: days[day][name] for name in _NAMES.values()}}
        for day in sorted(days)[-MAX_DAYS:]
    ]


def _name(day: int) -> str:
    """A date in ISO 8601; days beyond the year 9999 as their number."""
    try:
        return (_FIRST + timedelta(days=day)).isoformat()
    except OverflowError:
        return f"day {day}"
