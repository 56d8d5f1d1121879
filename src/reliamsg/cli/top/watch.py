"""Reads a file at intervals, and computes rates from the differences."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Hashable

import msgspec

from reliamsg.errors import ReliamsgError
from reliamsg.inspection.overview import Counts, InboxOverview, OutboxOverview, SiteOverview, overview

__all__ = [
    "Gap",
    "Group",
    "InboxSeen",
    "OutboxSeen",
    "Parked",
    "Problem",
    "Range",
    "Seen",
    "SiteSeen",
    "Watch",
]


class Range(msgspec.Struct, frozen=True):
    """Sequence numbers of an epoch."""

    epoch: int
    first: int
    last: int


class Parked(msgspec.Struct, frozen=True):
    """A stream that a site refuses."""

    topic: str
    partition: int
    reason: str


class SiteSeen(msgspec.Struct, frozen=True):
    """A site of an outbox."""

    site: str
    behind: int
    confirmed_per_s: float | None
    oldest_age_s: float | None
    parked: tuple[Parked, ...]


class Group(msgspec.Struct, frozen=True):
    """A named group of a stream of an outbox."""

    group: str
    topic: str
    partition: int
    behind: int
    lacks: Range | None
    unseen_at: tuple[str, ...]


class Gap(msgspec.Struct, frozen=True):
    """A gap at the head of a stream."""

    producer: str
    topic: str
    partition: int
    epoch: int
    first: int
    last: int | None
    elapsed_s: float


class OutboxSeen(msgspec.Struct, frozen=True, tag_field="kind", tag="outbox"):
    """An outbox. Names are the keys of ``--json``."""

    file: str
    producer: str
    epoch: int
    release: str
    replaced: bool
    accepted_per_s: float | None
    messages: int
    unpublished: int
    oldest_age_s: float | None
    bytes: int
    repaired: int
    repaired_per_s: float | None
    journal_rows: int
    sites: tuple[SiteSeen, ...]
    groups: tuple[Group, ...]


class InboxSeen(msgspec.Struct, frozen=True, tag_field="kind", tag="inbox"):
    """An inbox. Names are the keys of ``--json``."""

    file: str
    group: str
    inbox_id: str
    replaced: bool
    settled_per_s: float | None
    streams: int
    held_messages: int
    held_bytes: int
    bytes: int
    gap_count: int
    gaps: tuple[Gap, ...]
    dead_letters: int
    quarantined: dict[str, int]
    samples: int
    asked: int
    repaired: int
    repaired_per_s: float | None
    journal_rows: int


class Problem(msgspec.Struct, frozen=True, tag_field="kind", tag="problem"):
    """A file that can't be read now."""

    file: str
    problem: str


Seen = OutboxSeen | InboxSeen | Problem


class Watch:
    """One file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._before: OutboxOverview | InboxOverview | None = None
        self._identity: tuple[Hashable, ...] | None = None
        self._at = 0.0

    def look(self, now: float, wall_us: int) -> Seen:
        """Read the file. `now`: the monotonic clock in seconds. Rates are None if there is nothing to compare with."""
        try:
            found = overview(self._file)
            status = os.stat(self._file)
        except (ReliamsgError, sqlite3.Error, OSError) as error:
            return Problem(self._file, str(error))
        size = status.st_size
        with contextlib.suppress(OSError):
            size += os.stat(f"{self._file}-wal").st_size
        identity = _identity(found, status)
        replaced = self._identity not in (None, identity)
        before = None if replaced else self._before
        elapsed = now - self._at
        self._before, self._identity, self._at = found, identity, now
        if isinstance(found, OutboxOverview):
            last = before if isinstance(before, OutboxOverview) else None
            return _outbox(self._file, found, last, elapsed, wall_us, size, replaced)
        return _inbox(
            self._file, found, before if isinstance(before, InboxOverview) else None, elapsed, size, replaced
        )


def _identity(found: OutboxOverview | InboxOverview, status: os.stat_result) -> tuple[Hashable, ...]:
    name = found.producer if isinstance(found, OutboxOverview) else (found.group, found.inbox_id)
    return type(found), name, status.st_dev, status.st_ino


def _outbox(
    file: str,
    found: OutboxOverview,
    before: OutboxOverview | None,
    elapsed: float,
    wall_us: int,
    size: int,
    replaced: bool,
) -> OutboxSeen:
    accepted = 0 if before is None else _growth(before.accepted, found.accepted)
    known = {} if before is None else {site.name: site for site in before.sites}

    def site(one: SiteOverview) -> SiteSeen:
        last = known.get(one.name)
        confirmed = None if last is None else _rate(accepted + last.behind - one.behind, elapsed)
        parked = tuple(Parked(*stream) for stream in one.parked)
        return SiteSeen(one.name, one.behind, confirmed, _age(one.oldest_us, wall_us), parked)

    return OutboxSeen(
        file,
        found.producer,
        found.epoch,
        found.release,
        replaced,
        None if before is None else _rate(accepted, elapsed),
        found.messages,
        found.unpublished,
        _age(found.oldest_us, wall_us),
        size,
        sum(found.repaired.values()),
        None if before is None else _rate(_growth(before.repaired, found.repaired), elapsed),
        found.journal_rows,
        tuple(map(site, found.sites)),
        tuple(
            Group(
                member.group, member.topic, member.partition, member.behind,
                None if member.lacks is None else Range(*member.lacks), member.unseen_at,
            )
            for member in found.members
        ),
    )  # fmt: skip


def _inbox(
    file: str, found: InboxOverview, before: InboxOverview | None, elapsed: float, size: int, replaced: bool
) -> InboxSeen:
    settled = repaired = 0
    if before is not None:
        finished = {key: last for key, last in found.finished.items() if key in before.settled}
        settled = _growth(before.settled, {**finished, **found.settled})
        repaired = _growth(before.repaired, found.repaired)
    return InboxSeen(
        file,
        found.group,
        found.inbox_id,
        replaced,
        None if before is None else _rate(settled, elapsed),
        found.streams,
        found.held_messages,
        found.held_bytes,
        size,
        found.gap_count,
        tuple(Gap(*gap.stream, gap.epoch, gap.first, gap.last, gap.elapsed_s) for gap in found.gaps),
        found.dead_letters,
        found.quarantined,
        found.samples,
        sum(found.asked.values()),
        sum(found.repaired.values()),
        None if before is None else _rate(repaired, elapsed),
        found.journal_rows,
    )


def _growth(before: Counts, now: Counts) -> int:
    return sum(max(0, number - before.get(key, 0)) for key, number in now.items())


def _rate(number: int, elapsed: float) -> float:
    return max(0, number) / elapsed if elapsed > 0 else 0.0


def _age(us: int | None, wall_us: int) -> float | None:
    return None if us is None else max(0.0, (wall_us - us) / 1e6)
