"""The verdict for a window of time: which incidents count that an audit has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from reliamsg.audit.accepted import Acceptances, Brief
from reliamsg.audit.kinds import PRECEDENCE
from reliamsg.audit.through import Through
from reliamsg.audit.times import as_time

__all__ = ["Audited", "Baseline", "Reach", "Scope", "judge_window"]


class Audited(msgspec.Struct):
    """The result of an audit, as far as the next one needs it."""

    through_us: int | None
    """µs since 1970; None if nothing was proven."""
    incidents: list[Brief]
    """The worst :data:`MAX_BRIEFS`."""
    unreported: set[str] = msgspec.field(default_factory=set)
    """Incidents of which the hook has not been informed."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Where a window begins."""

    since_us: int | None = None
    """µs since 1970; None: at the beginning of time."""
    known: Mapping[str, Brief] | None = None
    """The incidents that an earlier audit has found, by id; None if there was no earlier audit."""

    @staticmethod
    def after(audited: Audited | None) -> Baseline:
        """The window of everything that was not proven by an audit, or that it has not found."""
        if audited is None:
            return Baseline()
        return Baseline(audited.through_us, {each.id: each for each in audited.incidents})

    def has(self, incident: Brief) -> bool:
        """Whether an incident counts in the window: unless all its messages were enqueued before, or their times are
        unknown, and an earlier audit has found it just as bad. What such an audit should have found counts: it
        contradicts what was proven."""
        if self.since_us is None or (self.known is None and incident.enqueued_us is None):
            return True
        if incident.enqueued_us is not None and incident.enqueued_us[1] >= self.since_us:
            return True
        if self.known is None:
            return False
        known = self.known.get(incident.id)
        return known is None or not incident.is_within(known)


@dataclass(frozen=True, slots=True)
class Scope:
    """What decides an audit's exit code."""

    baseline: Baseline = field(default_factory=Baseline)
    acceptances: Acceptances = field(default_factory=Acceptances)


@dataclass(frozen=True, slots=True)
class Reach:
    """What is proven in a window."""

    through: Through
    """Up to when everything but accepted incidents is proven."""
    enqueued: int
    """The messages of the window."""
    proven: int
    """Those of them that were enqueued by then."""
    all_counts: bool
    """Whether any open question makes the verdict ``unknown``."""


def judge_window(scope: Scope, incidents: Sequence[Brief], unlisted: int, reach: Reach) -> dict[str, Any]:
    """The verdict for a window, as plain data. `incidents`: worst first; `unlisted`: the number of others, which all
    count."""
    baseline, acceptances = scope.baseline, scope.acceptances
    through, enqueued, proven = reach.through, reach.enqueued, reach.proven
    inside = [each for each in incidents if each.severity != "remark" and baseline.has(each)]
    left = [each for each in inside if not acceptances.covers(each)]
    severities = {each.severity for each in left} | ({incidents[-1].severity} if unlisted else set())
    found = next((each for each in PRECEDENCE if each in severities), "complete")
    if not reach.all_counts and (
        (found == "unknown" and through.us is not None)
        or (found == "complete" and baseline.since_us is not None)
    ):
        found = "complete" if proven or not enqueued else "unknown"
    if found == "complete" and len(left) < len(inside):
        found = "accepted"
    return {
        "since": None if baseline.since_us is None else as_time(baseline.since_us),
        "through": None if through.us is None else as_time(through.us),
        "verdict": found,
        "enqueued": enqueued,
        "proven": proven,
        "incidents": sum(reach.all_counts or not each.is_open for each in left) + unlisted,
        "accepted": len(inside) - len(left),
    }
