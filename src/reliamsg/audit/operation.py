"""How often clients and sites were away, and for how long: from their journals, for ``reliamsg plan --audit``.

Times are those of each client's own clock. A journal ends with its last row, so the time until the end of an idle
process is not seen, and counts as time away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from reliamsg.audit.clients import JournalParts
from reliamsg.audit.fold import Opening
from reliamsg.audit.outages import periods

__all__ = ["operation"]


@dataclass(slots=True)
class _Away:
    """Times at which something was away."""

    seconds: float = 0.0
    """For how long it was watched."""
    number: int = 0
    away_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 3), "number": self.number, "away_seconds": round(self.away_seconds, 3)
        }  # fmt: skip


@dataclass(slots=True)
class _Role:
    """All producers, or all groups."""

    clients: set[str] = field(default_factory=set)
    crashes: _Away = field(default_factory=_Away)
    """Ends without closing, and how long it took until the file was opened again."""
    breaks: _Away = field(default_factory=_Away)
    """The same, with clean restarts."""
    files_lost: int = 0
    """Files that were lost, or replaced by an older copy."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "clients": len(self.clients), "crashes": self.crashes.as_dict(), "breaks": self.breaks.as_dict(),
            "files_lost": self.files_lost,
        }  # fmt: skip


def operation(journals: Sequence[JournalParts]) -> dict[str, Any]:
    """The section ``operation`` of ``verdict.json``."""
    roles = {"producer": _Role(), "group": _Role()}
    by_client: dict[tuple[str, str], list[list[Opening]]] = defaultdict(list)
    for journal in journals:
        openings = journal.openings
        if openings and journal.role in roles:
            _count(roles[journal.role], journal.client, openings)
            by_client[journal.role, journal.client].append(openings)
    for (role, _), histories in by_client.items():
        roles[role].files_lost += _files_lost(histories)
    return {
        "producers": roles["producer"].as_dict(),
        "groups": roles["group"].as_dict(),
        "sites": {name: found.as_dict() for name, found in sorted(_sites(journals).items())},
    }


def _count(role: _Role, client: str, openings: Sequence[Opening]) -> None:
    role.clients.add(client)
    watched = max(0, openings[-1].changed_us - openings[0].first_us) / 1e6
    role.crashes.seconds += watched
    role.breaks.seconds += watched
    for before, after in pairwise(openings):
        away = max(0, after.first_us - before.changed_us) / 1e6
        for found in (role.breaks,) if before.closed else (role.breaks, role.crashes):
            found.number += 1
            found.away_seconds += away


def _files_lost(histories: Sequence[Sequence[Opening]]) -> int:
    """Histories that continue an older copy of a file, and files that began when all others of their client had ended:
    one that begins while another is in use belongs to a standby."""
    lost, seen = 0, set[str]()
    latest = None
    for openings in sorted(histories, key=lambda each: (each[0].first_us, each[-1].changed_us)):
        first = openings[0]
        if latest is not None:
            lost += first.boot in seen or first.first_us >= latest
        seen |= {opening.boot for opening in openings}
        latest = max(latest or 0, openings[-1].changed_us)
    return lost


def _sites(journals: Iterable[JournalParts]) -> dict[str, _Away]:
    """By site: the times at which each client that was running had lost its connection. A client that starts is not
    counted until it has one."""
    changes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for journal in journals:
        starts = {opening.first_us for opening in journal.openings}
        for site, begin, end, connected in periods(journal):
            if end > begin and (connected or begin not in starts):
                changes[site] += [(begin, 1, int(connected)), (end, -1, -int(connected))]
    found = {}
    for site, own in changes.items():
        found[site] = away = _Away()
        running = reachable = 0
        gone = False
        for (at, running_change, reachable_change), (following, *_) in pairwise(
            [*sorted(own), (max(own)[0], 0, 0)]
        ):
            running += running_change
            reachable += reachable_change
            if not running or following == at:
                continue
            took = (following - at) / 1e6
            away.seconds += took
            if reachable:
                gone = False
                continue
            away.number += not gone
            away.away_seconds += took
            gone = True
    return found
