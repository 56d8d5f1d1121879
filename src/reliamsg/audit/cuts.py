"""Missing parts of a producer's journal, because its outbox was replaced by an older copy.

The copy continued from its own state, and its journal does not show that there was more. The evidence is in other rows:

- ``conflict``: a group had received messages of which the next opening has no knowledge.
- ``fenced``: the other history had the later epoch; the row names an opening without a journal.
- ``heard``: the journal of an opening was committed further than it is now. The missing part extends to the next
  opening in the journal.
- ``surpassed`` (by the producer itself): a group's position was beyond the outbox's knowledge.

A ``conflict`` and a ``surpassed`` row are about one stream, and the copy may have been opened before without publishing
to it. So the missing part may be anywhere behind the last opening that published to the stream. But a ``conflict`` also
names the known position: if the journal has this opening, but not up to this position, the copy is as old as the
opening, and the missing part is between it and the next one.

If the copy's clock was set back, all these rows show that the group's position was higher. The extent of the other
history is unknown: anything behind it may be missing, except epochs that the copy itself entered. Messages before a
journal may be missing too, because the outbox may have replaced a lost one. Openings without messages are never met by
groups: if the last openings are such, the first of them may belong to a copy whose clock was behind. If an inbox
continued (``behind``) without having met an opening, the inbox that met it is lost. Groups need not have received
messages of the openings after a lost one, but an epoch that a row names and that no journal has was between the epochs
before and after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from reliamsg.audit.context import NOBODY, Cut, is_incarnation, position
from reliamsg.audit.fold import Fact, Opening, StreamName
from reliamsg.audit.spans import LAST

__all__ = ["ProducerJournal", "find_cuts"]

Row = tuple[StreamName, Fact]


@dataclass(slots=True)
class ProducerJournal:
    """One history of a producer's file, for this purpose."""

    client: str
    openings: list[Opening]
    """In order."""
    rows: list[Row]
    """Its rows that bear on other streams."""
    published: dict[StreamName, set[int]] = field(default_factory=dict)
    """By stream with a conflict, the first rows of the boots that published to it."""

    @property
    def entered(self) -> set[int]:
        """All epochs of the journal."""
        return set().union(*(opening.entered for opening in self.openings))

    def end(self, upto: int) -> int:
        """The latest epoch of the first openings."""
        return max((max(each.entered, default=0) for each in self.openings[:upto]), default=0)


@dataclass(frozen=True, slots=True)
class _Met:
    """Something that an opening did not know of."""

    stream: StreamName
    met: int
    """The epoch beyond all that may be missing."""
    above: bool
    """Whether the group had entered a later epoch."""
    known: tuple[int, str, int] | None
    """Epoch, incarnation and last number that the group knew of."""


def find_cuts(
    journals: Sequence[ProducerJournal], group_rows: Iterable[Row], has: Mapping[tuple[StreamName, int], int]
) -> dict[str, list[Cut]]:
    """By producer, the places where its journals may lack a part. `group_rows`: rows of groups of the kinds
    ``conflict``, ``heard`` and ``behind``. `has`: the last number of each epoch in any journal, of the streams in these
    rows."""
    of_groups = list(group_rows)
    by_client: dict[str, list[ProducerJournal]] = {}
    for journal in journals:
        by_client.setdefault(journal.client, []).append(journal)
    met = _met(journals, of_groups)
    return {
        client: sorted(set(_cuts_of(client, own, of_groups, met, has))) for client, own in by_client.items()
    }


def _cuts_of(
    client: str,
    own: Sequence[ProducerJournal],
    of_groups: Sequence[Row],
    met: Mapping[tuple[str, str], set[_Met]],
    has: Mapping[tuple[StreamName, int], int],
) -> Iterator[Cut]:
    known = {opening.incarnation: 0 for journal in own for opening in journal.openings}
    for journal in own:
        for opening in journal.openings:
            known[opening.incarnation] = max(known[opening.incarnation], opening.last_lsn)
    began = min((journal.openings[0].epoch for journal in own if journal.openings), default=None)
    if began is not None:
        yield Cut(0, False, began)
    everywhere: set[int] = set().union(*(journal.entered for journal in own))
    heard = {
        (fact.incarnation, fact.epoch)
        for (producer, _, _), fact in of_groups
        if fact.kind == "heard" and producer == client and fact.incarnation != NOBODY
        and isinstance(lsn := (fact.detail or {}).get("lsn"), int) and lsn > known.get(fact.incarnation, 0)
    }  # fmt: skip
    named = set(_named(client, own, of_groups))
    for journal in own:
        if not journal.openings:
            continue
        yield from _between(journal, met, has)
        yield from _passed(journal, of_groups, has)
        yield from _fenced(journal, known)
        yield from _unmet(journal, everywhere)
        yield from _around_unknown(journal, named, everywhere)
        for incarnation, epoch in heard:
            yield from _behind(journal, incarnation, epoch, incarnation in known)


def _split(low: int, goes_on: bool, high: int, entered: Iterable[int]) -> Iterator[Cut]:
    """A cut without the epochs that the journal has, which are complete there."""
    for epoch in sorted({each for each in entered if low < each < high}):
        yield Cut(low, goes_on, epoch)
        low, goes_on = epoch, False
    yield Cut(low, goes_on, high)


def _met(journals: Sequence[ProducerJournal], of_groups: Sequence[Row]) -> dict[tuple[str, str], set[_Met]]:
    """By producer and incarnation, what openings provably did not know of."""
    found: dict[tuple[str, str], set[_Met]] = {}
    rows = [row for row in of_groups if row[1].kind == "conflict"]
    rows += [row for journal in journals for row in journal.rows if row[1].kind == "surpassed"]
    for stream, fact in rows:
        if fact.incarnation == NOBODY:
            continue
        entered = (fact.detail or {}).get("entered")
        above = isinstance(entered, int) and entered > fact.epoch
        each = _Met(stream, LAST if above else fact.epoch, above, _known(fact))
        found.setdefault((stream[0], fact.incarnation), set()).add(each)
    return found


def _known(fact: Fact) -> tuple[int, str, int] | None:
    """What the group knew: epoch, incarnation and last number."""
    match (fact.detail or {}).get("known"):
        case [int(epoch), str(incarnation), int(last)] if is_incarnation(incarnation):
            return epoch, incarnation, last
    return None


def _between(
    journal: ProducerJournal,
    met: Mapping[tuple[str, str], set[_Met]],
    has: Mapping[tuple[StreamName, int], int],
) -> Iterator[Cut]:
    openings = journal.openings
    for at, opening in enumerate(openings):
        for each in met.get((journal.client, opening.incarnation), ()):
            its = _opening_of(openings[:at], each.known)
            if its is not None and each.known is not None:
                epoch, _, last = each.known
                if last > has.get((each.stream, epoch), 0):
                    high = LAST if each.above else openings[its + 1].epoch
                    its_end = max(openings[its].entered, default=0)
                    yield from _split(its_end, not openings[its].closed, high, journal.entered)
                continue
            boots = journal.published.get(each.stream, set())
            since = max((number for number in range(at) if openings[number].first_lsn in boots), default=-1)
            for number in range(since + 1, at + 1):
                low, goes_on = journal.end(number), number > 0 and not openings[number - 1].closed
                if number < at:
                    yield Cut(low, goes_on, openings[number].epoch)
                elif each.met > low:
                    later = set().union(*(one.entered for one in openings[at:]))
                    yield from _split(low, goes_on, each.met, later)


def _opening_of(openings: Sequence[Opening], known: tuple[int, str, int] | None) -> int | None:
    """The opening that a group knew of, if it has that epoch."""
    if known is None:
        return None
    found = [
        number
        for number, opening in enumerate(openings)
        if opening.incarnation == known[1] and known[0] in opening.entered
    ]
    return found[-1] if found else None


def _passed(
    journal: ProducerJournal, of_groups: Sequence[Row], has: Mapping[tuple[StreamName, int], int]
) -> Iterator[Cut]:
    """The cuts behind openings of which an inbox had settled more than journals have, and whose end it never met,
    because it continued from the position of another one: the inbox that met the next opening is lost."""
    for stream, fact in of_groups:
        own = position(fact.detail, "from") if fact.kind == "behind" and stream[0] == journal.client else None
        if own is None or not 0 < own[0] < fact.epoch or own[1] - 1 <= has.get((stream, own[0]), 0):
            continue
        for number, opening in enumerate(journal.openings[:-1]):
            if own[0] in opening.entered:
                high = journal.openings[number + 1].epoch
                yield from _split(max(opening.entered), not opening.closed, high, journal.entered)


def _fenced(journal: ProducerJournal, known: Mapping[str, int]) -> Iterator[Cut]:
    for _, fact in journal.rows:
        if fact.kind != "fenced":
            continue
        by, other = ((fact.detail or {}).get(name) for name in ("epoch", "incarnation"))
        if isinstance(by, int) and by > fact.epoch and is_incarnation(other) and other not in known:
            yield from _split(fact.epoch, False, LAST, journal.entered)


def _unmet(journal: ProducerJournal, everywhere: set[int]) -> Iterator[Cut]:
    """The cut behind the last opening that published messages, if others follow."""
    published = [number for number, opening in enumerate(journal.openings) if opening.published]
    last = max(published, default=-1)
    if last + 1 < len(journal.openings):
        goes_on = last >= 0 and not journal.openings[last].closed
        yield from _split(journal.end(last + 1), goes_on, LAST, everywhere)


def _named(
    client: str, own: Sequence[ProducerJournal], of_groups: Sequence[Row]
) -> Iterator[tuple[int, int]]:
    """Epochs that a group knew, and those of the openings that did not know them."""
    for (producer, _, _), fact in of_groups:
        known = _known(fact) if fact.kind == "conflict" and producer == client else None
        if known is not None:
            yield known[0], fact.epoch
    for journal in own:
        for _, fact in journal.rows:
            entered = (fact.detail or {}).get("entered")
            if fact.kind == "surpassed" and isinstance(entered, int):
                yield entered, fact.epoch


def _around_unknown(
    journal: ProducerJournal, named: Iterable[tuple[int, int]], everywhere: set[int]
) -> Iterator[Cut]:
    """The cuts around epochs before an opening that groups refer to and no journal of the producer has."""
    own = {*journal.entered, 0}
    open_ends = {max(each.entered, default=0) for each in journal.openings if not each.closed}
    for epoch, opening in named:
        if 0 < epoch < opening and opening in own and epoch not in everywhere:
            low = max(each for each in own if each < epoch)
            yield Cut(low, low in open_ends, min(each for each in own if each > epoch))


def _behind(journal: ProducerJournal, incarnation: str, epoch: int, known: bool) -> Iterator[Cut]:
    """The cut behind an opening that announced more than the journal has of it or, if no journal has the opening,
    behind the one before it. It extends to the next opening. An earlier opening without messages may belong to the
    copy, whose clock was behind, so more may be missing before it."""
    openings = journal.openings
    its = [number for number, each in enumerate(openings) if each.incarnation == incarnation]
    if known and not its:
        return
    before = its or [number for number, each in enumerate(openings) if each.epoch < epoch]
    last = max(before, default=-1)
    low = journal.end(last + 1)
    goes_on = bool(its) or (last >= 0 and not openings[last].closed)
    after = openings[last + 1].epoch if last + 1 < len(openings) else 0
    yield Cut(low, goes_on, max(low if its else epoch + 1, after))
    while not its and last > 0 and not openings[last].published:
        last -= 1
        yield Cut(journal.end(last + 1), not openings[last].closed, openings[last + 1].epoch)
