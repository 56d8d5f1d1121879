"""Messages of one stream that passed through each site, that were lost there, and that were saved by other means."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reliamsg.audit.context import Context
from reliamsg.audit.fold import Fact
from reliamsg.audit.numbers import History
from reliamsg.audit.order import end_of
from reliamsg.audit.spans import size, stretches
from reliamsg.audit.sums import compare_passages

__all__ = ["Passages", "count_passages"]

_REPAIR = "repair"
"""The reason in rows about messages that did not come from a queue."""
_ARRIVED = ("received", "duplicate")
_STRAY = frozenset({"late", "before_join", "declared", "quarantined", "let_go"})


@dataclass(slots=True)
class Passages:
    """Numbers of messages. All but those of `confirmed` count a message once for each group."""

    confirmed: Counter[str] = field(default_factory=Counter)
    """By site, like the next three."""
    received: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Confirmed, and provably gone without having been received."""
    alone: Counter[str] = field(default_factory=Counter)
    """Delivered, and received from no other site."""
    came: Counter[str] = field(default_factory=Counter)
    """Of a group only, like the next: confirmed for it, and received or of no use any more."""
    unproven: Counter[str] = field(default_factory=Counter)
    """Confirmed for it, and neither."""
    by_repair: int = 0
    by_second_site: int = 0
    groups: dict[str, Passages] = field(default_factory=dict)
    """The same for each group alone."""

    def add_group(self, name: str, own: Passages) -> None:
        """Add the numbers of one group."""
        self.groups[name] = own
        for total, counts in ((self.received, own.received), (self.lost, own.lost), (self.alone, own.alone)):
            total.update(counts)
        self.by_repair += own.by_repair
        self.by_second_site += own.by_second_site


def count_passages(
    histories: Sequence[History], groups: Mapping[str, Sequence[Fact]], context: Context
) -> Passages:
    """`groups`: by group, the rows of its journals."""
    found = Passages()
    confirmed: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for history in histories:
        for row in history.of_kind("confirmed"):
            confirmed[row.epoch].append((row.fact.first, row.fact.last, row.fact.site))
    for own in confirmed.values():
        for first, last, sites in stretches(own):
            for site in sites:
                found.confirmed[site] += size(first, last)
    for group, facts in groups.items():
        of_group = Passages()
        by_epoch: dict[int, list[tuple[int, int, tuple[str, str]]]] = defaultdict(list)
        for fact in facts:
            for tag in _tags(fact):
                by_epoch[fact.epoch].append((fact.first, end_of(fact), (tag, fact.site)))
        for epoch, ranges in _proven(histories, group, context).items():
            by_epoch[epoch] += ranges
        for epoch, marks in by_epoch.items():
            known = [(first, last, ("confirmed", site)) for first, last, site in confirmed[epoch]]
            _count_group(marks, known, of_group)
        every = [
            ((epoch, site), first, last) for epoch, own in confirmed.items() for first, last, site in own
        ]
        ours = [each for history in histories for each in history.counted.get(group, ())]
        compare_passages(group, every, ours, (of_group.came, of_group.lost, of_group.unproven))
        found.add_group(group, of_group)
    return found


def _tags(fact: Fact) -> Iterable[str]:
    kind, repair = fact.kind, fact.reason == _REPAIR
    if kind in _ARRIVED:
        if not repair:
            yield "arrived"
        elif kind == "received":
            yield "repaired"
    elif kind in ("delivered", "redelivered"):
        yield "handed"
    elif kind in _STRAY and fact.site and not repair:
        yield "came"


def _proven(
    histories: Sequence[History], group: str, context: Context
) -> dict[int, list[tuple[int, int, tuple[str, str]]]]:
    """By epoch, what sites had confirmed before they provably had nothing more for the group, and for which messages
    the group counts."""
    found: dict[int, list[tuple[int, int, tuple[str, str]]]] = defaultdict(list)
    client = context.groups.get(group)
    whole = client is not None and client.whole
    for history in histories:
        for epoch, first, last in history.counted.get(group, ()):
            found[epoch].append((first, last, ("counted", "")))
        for row in history.of_kind("confirmed") if whole else ():
            told = context.proofs.get((group, row.fact.site, history.journal.name))
            if told is None or row.fact.lsn > told:
                continue
            last = row.fact.last
            for point in row.fact.points or ():
                if point.lsn > told:
                    last = point.last
                    break
            found[row.epoch].append((row.fact.first, last, ("proven", row.fact.site)))
    return found


def _count_group(
    marks: list[tuple[int, int, tuple[str, str]]],
    confirmed: list[tuple[int, int, tuple[str, str]]],
    found: Passages,
) -> None:
    total: Counter[frozenset[tuple[str, str]]] = Counter()
    for first, last, tags in stretches([*marks, *confirmed]):
        total[tags] += size(first, last)
    for tags, messages in total.items():
        names = {name for name, _ in tags}
        arrived = {site for name, site in tags if name == "arrived"}
        for site in arrived:
            found.received[site] += messages
        handed = "handed" in names
        if handed and len(arrived) == 1:
            found.alone[next(iter(arrived))] += messages
        lost = set()
        if "counted" in names:
            came = {site for name, site in tags if name in ("arrived", "came")}
            lost = {site for name, site in tags if name == "proven"} - came
            for site in lost:
                found.lost[site] += messages
            for site in {site for name, site in tags if name == "confirmed"} - lost:
                (found.came if site in came else found.unproven)[site] += messages
        if handed:
            if "repaired" in names and "confirmed" in names and not arrived:
                found.by_repair += messages
            if lost and arrived:
                found.by_second_site += messages
