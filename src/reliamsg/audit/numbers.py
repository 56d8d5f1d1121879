"""What the journals of a producer have of one stream, and where their rows contradict the rules of the protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from reliamsg.audit.context import Journal, ProducerContext, position
from reliamsg.audit.fold import Fact, StreamName, unfold
from reliamsg.audit.found import Finding
from reliamsg.audit.order import Position
from reliamsg.audit.spans import LAST, joined, stretches

__all__ = ["History", "Published", "read_history"]

_RELEASED = ("released", "released_unsent")
_AS_WRITTEN = ("epoch", "renumbered")
"""Kinds about an epoch itself."""
_ENQUEUED, _TWICE = ("enqueued", ""), ("twice", "")
_CHANGES = ("group_added", "group_removed")
DECLINED = ("nacked", "refused", "returned")
"""Responses of a site other than a confirm."""


@dataclass(slots=True)
class Published:
    """A row, with the epoch in which its messages are finally."""

    epoch: int
    boot_lsn: int
    fact: Fact


@dataclass(slots=True)
class History:
    """A stream in one journal of its producer."""

    journal: Journal
    moves: list[tuple[int, int, int]]
    """Row, old epoch and new epoch of each renumbering, in order."""
    counted: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By group, epochs and ranges for which it counts."""
    excused: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By group, epochs and ranges that were enqueued after it had been removed."""
    settled: list[tuple[str, Position, Position]] = field(default_factory=list)
    """Groups, and half-open ranges that they had announced as settled when they were removed."""
    held: list[tuple[int, int, int]] = field(default_factory=list)
    """Epochs and ranges that the outbox still has, if it keeps messages until they are consumed."""
    rows: list[Published] = field(default_factory=list)
    """In journal order."""
    _by_kind: dict[str, list[Published]] = field(default_factory=lambda: defaultdict(list))

    def add(self, row: Published) -> None:
        """Add the next row."""
        self.rows.append(row)
        self._by_kind[row.fact.kind].append(row)

    def of_kind(self, *kinds: str) -> Sequence[Published]:
        """The rows of these kinds, in journal order."""
        found = [self._by_kind[kind] for kind in kinds if kind in self._by_kind]
        if len(found) == 1:
            return found[0]
        return sorted(chain.from_iterable(found), key=lambda row: row.fact.lsn)

    def moved(self, epoch: int, lsn: int) -> int:
        """The final epoch of messages that were in `epoch` when that row was written."""
        for at, old, new in self.moves:
            if at > lsn and old == epoch:
                epoch = new
        return epoch

    def place(self, at: Position, lsn: int) -> Position:
        """Where a position is finally that was `at` when that row was written. Epochs keep their order, but no row
        says that the producer's own epoch moved as well if it had no messages."""
        epoch = self.moved(at[0], lsn)
        if epoch != at[0]:
            return epoch, at[1]
        before = [self.moved(old, lsn) for row, old, _ in self.moves if row > lsn and old < at[0]]
        return max([at, *((each, LAST) for each in before if each > at[0])])

    @property
    def parked(self) -> set[str]:
        """The sites where the stream was parked at the end."""
        found: dict[str, str] = {}
        for row in self.of_kind("parked", "resumed"):
            if row.boot_lsn == self.journal.last_boot:
                found[row.fact.site] = row.fact.kind
        return {site for site, kind in found.items() if kind == "parked"}


def read_history(journal: Journal, stream: StreamName, facts: Sequence[Fact]) -> History:
    """Read a stream's rows in one journal."""
    moves = [
        (fact.lsn, fact.epoch, new)
        for fact in facts
        if fact.kind == "renumbered" and isinstance(new := (fact.detail or {}).get("epoch"), int)
    ]
    history = History(journal, moves)
    for fact in facts:
        epoch = fact.epoch if fact.kind in _AS_WRITTEN else history.moved(fact.epoch, fact.lsn)
        history.add(Published(epoch, journal.boot_lsn(fact.boot, fact.lsn), fact))
    _count(history, stream[1])
    _hold(history)
    return history


def _count(history: History, topic: str) -> None:
    """A group counts for messages of a boot that names it, and from the position in a ``group_added`` row on; it does
    not count from the position in a ``group_removed`` row on, until it is added again."""
    spans: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    """By group: epoch, range, and why."""
    enqueued = [
        (row.epoch, row.boot_lsn, row.fact.first, row.fact.last) for row in history.of_kind("enqueued")
    ]
    by_boot = {
        boot_lsn: names(groups.get(topic))
        for boot_lsn, detail in history.journal.opened.items()
        if isinstance(groups := detail.get("groups"), dict)
    }
    for epoch, boot_lsn, first, last in enqueued:
        for group in by_boot.get(boot_lsn, ()):
            spans[group].append((epoch, first, last, "named"))
    changes: dict[str, list[tuple[int, bool, Position]]] = defaultdict(list)
    for row in history.of_kind(*_CHANGES):
        fact, added = row.fact, row.fact.kind == "group_added"
        since = at = (fact.epoch, fact.first)
        if not added:
            at = position(fact.detail, "position") or since
        # A group that is removed is owed nothing that moves later, whatever it had settled by then.
        place = history.place(at, fact.lsn) if added else at
        changes[fact.group].append((fact.lsn, added, place))
        if at != since:
            history.settled.append((fact.group, since, at))
    for group, steps in changes.items():
        steps.sort()
        for i, (_, added, at) in enumerate(steps):
            until = steps[i + 1][2] if i + 1 < len(steps) else (LAST, 0)
            for epoch, _, first, last in enqueued:
                if at[0] <= epoch <= until[0]:
                    low = max(first, at[1]) if epoch == at[0] else first
                    high = min(last, until[1] - 1) if epoch == until[0] else last
                    spans[group].append((epoch, low, high, "added" if added else "removed"))
    for group, found in spans.items():
        by_epoch: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        for epoch, first, last, why in found:
            by_epoch[epoch].append((first, last, why))
        for epoch, ranges in by_epoch.items():
            for first, last, whys in stretches(ranges):
                into = history.excused if "removed" in whys else history.counted
                into.setdefault(group, []).append((epoch, first, last))


def _hold(history: History) -> None:
    journal = history.journal
    if journal.opened.get(journal.last_boot, {}).get("release") != "consumed":
        return
    by_epoch: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for row in history.of_kind("enqueued", "removed", *_RELEASED):
        tag = "in" if row.fact.kind == "enqueued" else "out"
        by_epoch[row.epoch].append((row.fact.first, row.fact.last, tag))
    for epoch, ranges in by_epoch.items():
        history.held += [(epoch, first, last) for first, last, tags in stretches(ranges) if "out" not in tags]


def names(value: Any) -> list[str]:
    """The names in a list, or those that are the keys of an object."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []


def enqueued(histories: Sequence[History], *, timed: bool = False) -> list[tuple[int, int, int, int]]:
    """Everything that was enqueued: epoch, range, and when that began, in µs since 1970; if `timed`, each row by
    itself. Rows that several journals share count once: of two states of a row, the longer one, and of these the later
    one."""
    found: dict[tuple[str, int, int], Fact] = {}
    for history in histories:
        for row in history.of_kind("enqueued"):
            for fact in unfold(row.fact) if timed or len(histories) > 1 else (row.fact,):
                key = (fact.boot, fact.lsn, row.epoch)
                known = found.get(key)
                if known is None or _extent(fact) > _extent(known):
                    found[key] = fact
    return [(epoch, fact.first, fact.last, fact.wall_us) for (_, _, epoch), fact in found.items()]


def _extent(fact: Fact) -> tuple[int, int, int]:
    return fact.last, fact.first, fact.wall_last_us


def findings(
    histories: Sequence[History],
    everything: Iterable[tuple[int, int, int, int]],
    producer: ProducerContext | None,
) -> Iterator[tuple[str, str, int, int, int]]:
    """``seq_reused``, ``seq_skipped``, ``old_epoch``, ``confirmed_unknown``, ``published_unconfirmed`` and
    ``enqueued_after_fence``: kind, site, epoch and range. The sequence of numbers and epochs is judged as written.
    `everything`: from :func:`enqueued`."""
    yield from _numbers(histories, everything, producer)
    for history in histories:
        yield from _steps(history)
        yield from _unconfirmed(history)
        yield from _after_fence(history)


def _numbers(
    histories: Sequence[History],
    everything: Iterable[tuple[int, int, int, int]],
    producer: ProducerContext | None,
) -> Iterator[tuple[str, str, int, int, int]]:
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for epoch, first, last, _ in everything:
        rows[epoch].append((first, last))
    ranges: dict[int, list[tuple[int, int, tuple[str, str]]]] = defaultdict(list)
    for epoch, own in rows.items():
        ranges[epoch] += [(first, last, _ENQUEUED) for first, last in own]
        ranges[epoch] += [(first, last, _TWICE) for first, last in _overlaps(own)]
    if producer is not None:
        for history in histories:
            for row in history.of_kind("confirmed"):
                if producer.has_all_of(row.epoch):
                    ranges[row.epoch].append((row.fact.first, row.fact.last, ("confirmed", row.fact.site)))
    for epoch, marked in ranges.items():
        for first, last, marks in stretches(marked):
            if _TWICE in marks:
                yield "seq_reused", "", epoch, first, last
            elif _ENQUEUED not in marks:
                for _, site in marks:
                    yield "confirmed_unknown", site, epoch, first, last


def _overlaps(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The numbers that more than one range covers; some of them repeatedly."""
    end = -1
    for first, last in sorted(ranges):
        if first <= end:
            yield first, min(last, end)
        end = max(end, last)


def _newest_before(journal: Journal, lsn: int) -> int:
    """The newest epoch of any stream before a row."""
    return max((epoch for at, epoch in journal.newest if at < lsn), default=0)


def _steps(history: History) -> Iterator[tuple[str, str, int, int, int]]:
    journal = history.journal
    tip: tuple[int, int] | None = None
    for row in history.of_kind("enqueued", "renumbered"):
        fact = row.fact
        if fact.kind == "renumbered":
            new = (fact.detail or {}).get("epoch")
            if isinstance(new, int):
                tip = max(tip or (0, 0), (new, fact.last))
            continue
        before = _newest_before(journal, fact.lsn)
        if fact.epoch < before:
            yield "old_epoch", "", fact.epoch, fact.first, fact.last
        else:
            expected = tip[1] + 1 if tip is not None and tip[0] == fact.epoch else 1
            if fact.first > expected and not journal.broken:
                yield "seq_skipped", "", fact.epoch, expected, fact.first - 1
            since = min((lsn for lsn, epoch in journal.newest if epoch > fact.epoch), default=LAST)
            # Another stream entered a later epoch between two of these rows.
            old = [point.last + 1 for point in fact.points or () if point.lsn > since]
            if old:
                yield "old_epoch", "", fact.epoch, old[0], fact.last
        tip = max(tip or (0, 0), (fact.epoch, fact.last))


def _unconfirmed(history: History) -> Iterator[tuple[str, str, int, int, int]]:
    """Published ranges must have been confirmed before, according to their journal: by every site of the boot with
    ``all``, otherwise by any site."""
    journal = history.journal
    asked: dict[tuple[int, int, str], list[tuple[int, int, bool]]] = defaultdict(list)
    for row in history.of_kind("published"):
        if journal.is_whole(row.boot_lsn) and row.boot_lsn in journal.opened:
            detail = journal.opened[row.boot_lsn]
            sites = names(detail.get("sites")) if detail.get("confirm") == "all" else []
            for site in sites or [""]:
                asked[row.boot_lsn, row.epoch, site].append((row.fact.first, row.fact.last, True))
    confirmed = [
        (row.boot_lsn, row.epoch, row.fact.site, row.fact.first, row.fact.last)
        for row in history.of_kind("confirmed")
    ]
    for (boot_lsn, epoch, site), ranges in asked.items():
        covered = [
            (first, last, False)
            for by_boot, in_epoch, by_site, first, last in confirmed
            if by_boot <= boot_lsn and in_epoch == epoch and site in ("", by_site)
        ]
        for first, last, marks in stretches([*ranges, *covered]):
            if all(marks):
                yield "published_unconfirmed", site, epoch, first, last


def _after_fence(history: History) -> Iterator[tuple[str, str, int, int, int]]:
    for row in history.of_kind("enqueued"):
        fenced = history.journal.fenced.get(row.boot_lsn)
        if fenced is not None and row.fact.lsn > fenced:
            yield "enqueued_after_fence", "", row.epoch, row.fact.first, row.fact.last


def released_early(histories: Iterable[History]) -> Iterator[tuple[str, int, int, int]]:
    """``released_early``: messages that left an outbox before all counting groups had settled them. Group, epoch and
    range."""
    for history in histories:
        journal = history.journal
        released = [
            (row.epoch, row.fact.first, row.fact.last)
            for row in history.of_kind(*_RELEASED)
            if journal.opened.get(row.boot_lsn, {}).get("release") == "consumed"
            and journal.is_whole(row.boot_lsn)
        ]
        if not released:
            continue
        for group, counted in history.counted.items():
            consumed = [
                (row.epoch, row.fact.first, row.fact.last, "consumed")
                for row in history.of_kind("consumed")
                if row.fact.group == group and row.fact.epoch == row.epoch
            ]
            by_epoch: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
            for tag, ranges in (("counted", counted), ("released", released)):
                for epoch, first, last in ranges:
                    by_epoch[epoch].append((first, last, tag))
            for epoch, first, last, tag in consumed:
                by_epoch[epoch].append((first, last, tag))
            for epoch, tagged in by_epoch.items():
                for first, last, tags in stretches(tagged):
                    if "counted" in tags and "released" in tags and "consumed" not in tags:
                        yield group, epoch, first, last


def epochs_entered(history: History) -> Iterator[tuple[str, int, str]]:
    """``old_epoch`` and ``wrong_prev``: kind, epoch and text. The epoch before it, in an ``epoch`` row, must be that of
    the journal. Epochs with renumbered messages are not judged, since those of the epoch before may have been
    renumbered with them; nor are those in which none were enqueued, since the journal may have ended before the row
    that says which were renumbered."""
    journal = history.journal
    judged = {row.fact.epoch for row in history.of_kind("enqueued")} - {new for _, _, new in history.moves}
    tip: tuple[int, int, int, str] | None = None
    for row in history.of_kind("epoch", "enqueued", "renumbered"):
        fact = row.fact
        if fact.kind != "epoch":
            epoch = fact.epoch
            if fact.kind == "renumbered":
                new = (fact.detail or {}).get("epoch")
                if not isinstance(new, int):
                    continue
                epoch = new
            place = (epoch, fact.last, -fact.lsn, fact.incarnation)
            tip = place if tip is None else max(tip, place)
            continue
        if fact.epoch < _newest_before(journal, fact.lsn):
            yield "old_epoch", fact.epoch, ""
        detail = fact.detail or {}
        if journal.broken or "prev" not in detail or fact.epoch not in judged:
            continue
        if tip is not None and tip[0] >= fact.epoch:
            continue  # entered again; only the first time counts
        said = _prev(detail["prev"])
        told = None if tip is None else (tip[0], tip[3], tip[1])
        if said != told:
            yield "wrong_prev", fact.epoch, f"it names {_place(said)}, where the journal has {_place(told)}"


def _prev(value: Any) -> tuple[int, str, int] | None:
    """Epoch, incarnation (which may be a number) and last number; None for anything else."""
    match value:
        case [int(epoch), str(incarnation), int(last)]:
            return epoch, incarnation.lower().rjust(16, "0"), last
        case [int(epoch), int(incarnation), int(last)]:
            return epoch, f"{incarnation:016x}", last
    return None


def _place(place: tuple[int, str, int] | None) -> str:
    return "nothing" if place is None else ":".join(map(str, place))


def merge(found: Iterable[tuple[str, str, int, int, int]], stream: StreamName) -> Iterator[Finding]:
    """Findings from kinds, sites, epochs and ranges, merged."""
    keyed = (((kind, site, epoch), first, last) for kind, site, epoch, first, last in found)
    for (kind, site, epoch), first, last in joined(keyed):
        yield Finding(kind, stream, site=site, epoch=epoch, first=first, last=last)
