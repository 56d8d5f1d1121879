"""Incidents that an operator has accepted, and what of an incident is compared from audit to audit."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from reliamsg.audit.kinds import PRECEDENCE

__all__ = ["MAX_BRIEFS", "Acceptance", "Acceptances", "Brief", "worst_briefs"]

MAX_BRIEFS = 100_000
"""The maximum number of incidents that audits compare."""
_RANKS: dict[str, int] = {severity: rank for rank, severity in enumerate(PRECEDENCE)}


class Brief(msgspec.Struct, array_like=True, frozen=True):
    """How bad an incident is, and how large."""

    id: str
    severity: str
    messages: int | None = 0
    """In its range; 0 if it has none, None if its extent is unknown."""
    lost: int = 0
    """Messages that are lost, once for each group."""
    groups: tuple[str, ...] = ()
    """Those concerned."""
    enqueued_us: tuple[int, int] | None = None
    """When its first and last message were enqueued, µs since 1970. None if unknown."""

    @property
    def is_open(self) -> bool:
        """Whether it is about messages, and may turn out to be none: in a running system most messages are open for a
        moment. They hold the time through which everything is proven."""
        return self.severity == "unknown" and self.enqueued_us is not None

    def is_within(self, other: Brief) -> bool:
        """Whether it is no worse and no larger than another account of the same incident."""
        largest = float("inf")
        return (
            _RANKS[self.severity] >= _RANKS[other.severity]
            and (largest if self.messages is None else self.messages)
            <= (largest if other.messages is None else other.messages)
            and self.lost <= other.lost
            and set(self.groups) <= set(other.groups)
        )


class Acceptance(msgspec.Struct, frozen=True):
    """An operator's statement that an incident, as it was at that time, needs no further attention."""

    incident: Brief
    reason: str
    by: str
    """The operator's user name."""
    at_us: int
    """µs since 1970."""


class Acceptances(msgspec.Struct):
    """All acceptances, by incident."""

    by_id: dict[str, Acceptance] = msgspec.field(default_factory=dict)

    def covers(self, incident: Brief) -> bool:
        """Whether an incident was accepted, and has not become worse or larger since."""
        found = self.by_id.get(incident.id)
        return found is not None and incident.is_within(found.incident)


def worst_briefs(briefs: Iterable[Brief]) -> list[Brief]:
    """The worst :data:`MAX_BRIEFS`, worst first."""
    return sorted(briefs, key=lambda each: (_RANKS[each.severity], each.id))[:MAX_BRIEFS]
