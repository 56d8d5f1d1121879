"""Where a producer's journal lacks a part because its outbox was replaced by an older copy of itself.

The copy continues from what it knows, and nothing in its own journal shows that there was more. The evidence is
elsewhere:

- A group that had messages of the lost part writes a ``conflict`` when the next opening knows nothing of them. A
  ``surpassed`` row is the producer's own: a group announced a position beyond anything that the outbox ever had. Both
  are about one stream, and the copy may have been opened before without publishing to that stream. So the lost part may
  be anywhere after the opening that published to it last.
- A ``conflict`` also records the group's knowledge. If the journal has that opening, but not everything that the group
  knew of it, the copy is as old as that opening, and the lost part is between it and the next one.
- If the clock was set back when the copy was opened, both rows say that the group had reached a later epoch, and a
  ``fenced`` row names an opening that left no journal. The extent of the other history is unknown: everything from
  there on may be missing, except for what the copy entered itself.
- A ``heard`` row records how long an opening's journal was, which may be longer than it is now. The lost part extends
  up to the next opening that the journal has.
- An epoch that one of these rows names, and that no journal has, was between the epochs before and after it. The
  openings after a lost one need not have reached any group.

Some parts may be missing without any evidence. The outbox may have replaced one that was lost, so anything may precede
a journal. No group meets an opening that publishes nothing: if the last openings are such, the first of them may be
that of a copy whose clock was behind. And if an inbox continued for another one (``behind``) before it had met an
opening, the inbox that had met it is gone. Likewise, if no inbox that had messages of an opening ever received anything
later, none could meet the next one (:class:`Ends`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from reliamsg.checker.journals import Boot, Chain
from reliamsg.checker.producers import key_of, stream_of
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.spans import ENDLESS, Key, as_position
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["Cut", "Ends", "find_cuts", "find_ends"]

_INCARNATION = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, order=True)
class Cut:
    """A place where a producer's journal may lack a part: between two consecutive openings, or up to one that it
    lacks."""

    low: int
    """The last epoch of the opening before it."""
    goes_on: bool
    """Whether that opening was not closed, so that its last epoch may have continued."""
    high: int
    """The epoch of the opening after it that a group met, or one above everything that may be missing."""

    def touches(self, epoch: int) -> bool:
        """Whether the journal may lack messages of the epoch."""
        return self.low < epoch < self.high or (self.goes_on and epoch == self.low)


@dataclass(frozen=True)
class Ends:
    """Where a producer's outbox may have lost its last messages with its disk, unless an inbox that had received them
    goes on to a later epoch that journals have: it would meet an opening that does not know of them."""

    epochs: set[int]
    """Of all openings."""
    unclosed: set[int]
    """The last epochs of openings that were not closed before the next one began."""

    def touch(self, epoch: int) -> bool:
        """Whether messages of the epoch may have been lost in this way: at the end of an opening, or with an opening
        that left no journal."""
        return epoch in self.unclosed or (epoch not in self.epochs and epoch < max(self.epochs, default=0))


class _Known(NamedTuple):
    """The messages that a group knew to exist."""

    epoch: int
    incarnation: int
    last: int


class _Unknown(NamedTuple):
    """Something that an opening did not know of."""

    stream: Stream
    epoch: int
    """The opening's."""
    is_above: bool
    """Whether the group had entered a later epoch by then."""
    known: _Known | None
    """The group's knowledge, if the row records it."""


def find_cuts(chains: Iterable[Chain]) -> dict[str, list[Cut]]:
    """By producer, the places where its journals may lack a part."""
    chains = list(chains)
    unknown: dict[tuple[str, int], set[_Unknown]] = {}
    for chain in chains:
        for row in chain.rows:
            witness = "conflict" if chain.role == "group" else "surpassed"
            if row.kind == witness and row.incarnation:
                found = _Unknown(stream_of(row), row.epoch, _is_above(row), _known(row))
                unknown.setdefault((row.producer, row.incarnation), set()).add(found)
    has = _enqueued(chains)
    known: dict[tuple[str, int], int] = {}
    for chain in chains:
        for boot in chain.boots if chain.role == "producer" else ():
            opening = chain.client, boot.rows[0].incarnation
            known[opening] = max(boot.last_lsn, known.get(opening, 0))
    heard = _heard_of(chains, known)
    passed = set(_passed(chains))
    entered: dict[str, list[list[int]]] = {}
    """By producer, the epochs of each opening, over all chains."""
    for chain in chains:
        if chain.role == "producer":
            entered.setdefault(chain.client, []).extend(map(_entered, chain.boots))
    named = set(_named_epochs(chains))
    cuts = {producer: {Cut(0, False, epoch)} for producer, epoch in _beginnings(chains).items()}
    for chain in chains:
        if chain.role != "producer":
            continue
        own = cuts.setdefault(chain.client, set())
        own.update(_between(chain, unknown, has))
        own.update(_unmet(chain, entered[chain.client]))
        own.update(_passed_unmet(chain, passed, has))
        own.update(_around_named(chain, named, entered[chain.client]))
        if chain.boots and chain.to_the_end and not chain.finished:
            # The file may be an older copy that was not opened yet.
            whole = map(_entered, chain.boots)
            own.update(_around(Cut(_end(chain.boots[-1]), True, ENDLESS), whole))
        for incarnation, epoch in heard.get(chain.client, ()):
            if (chain.client, incarnation) not in known or any(
                boot.rows[0].incarnation == incarnation for boot in chain.boots
            ):
                own.update(_behind(chain, incarnation, epoch))
        for row in chain.rows:
            other = _fenced_by(row)
            if other is not None and other[0] > row.epoch and (chain.client, other[1]) not in known:
                own.update(_around(Cut(row.epoch, False, ENDLESS), map(_entered, chain.boots)))
    return {producer: sorted(own) for producer, own in cuts.items()}


def find_ends(chains: Iterable[Chain]) -> dict[str, Ends]:
    """By producer, where its outbox may have lost its last messages."""
    found: dict[str, Ends] = {}
    for chain in chains:
        if chain.role == "producer":
            own = found.setdefault(chain.client, Ends(set(), set()))
            own.epochs.update(epoch for boot in chain.boots for epoch in _entered(boot))
            own.unclosed.update(_end(boot) for boot in chain.boots[:-1] if not boot.closed)
    return found


def _beginnings(chains: Iterable[Chain]) -> dict[str, int]:
    """By producer, the epoch with which its journals begin."""
    found: dict[str, int] = {}
    for chain in chains:
        if chain.role == "producer" and chain.boots:
            epoch = chain.boots[0].rows[0].epoch
            found[chain.client] = min(epoch, found.get(chain.client, epoch))
    return found


def _unmet(chain: Chain, entered: Iterable[Iterable[int]]) -> Iterator[Cut]:
    """The cut after the last opening that published anything, if more openings follow. `entered`: the epochs that
    journals have, by opening."""
    published = [number for number, boot in enumerate(chain.boots) if _has_published(boot)]
    last = max(published, default=-1)
    if last + 1 < len(chain.boots):
        low = max(map(_end, chain.boots[: last + 1]), default=0)
        goes_on = last >= 0 and not chain.boots[last].closed
        yield from _around(Cut(low, goes_on, ENDLESS), entered)


def _has_published(boot: Boot) -> bool:
    """Whether the opening has messages, so that groups can have met it."""
    return any(row.kind in ("enqueued", "renumbered") for row in boot.rows)


def _passed(chains: Iterable[Chain]) -> Iterator[tuple[Stream, int, int]]:
    """Epochs that an inbox left in the middle to continue where another inbox had been: stream, epoch, and the last
    number that the inbox had settled."""
    for chain in chains:
        for row in chain.rows if chain.role == "group" else ():
            own = as_position((row.detail or {}).get("from")) if row.kind == "behind" else None
            if own is not None and 0 < own[0] < row.epoch:
                yield stream_of(row), own[0], own[1] - 1


def _passed_unmet(
    chain: Chain, passed: Iterable[tuple[Stream, int, int]], has: dict[Key, int]
) -> Iterator[Cut]:
    """The cuts after openings that had more of such an epoch than journals have: the inbox that met the next opening is
    gone."""
    entered = [_entered(boot) for boot in chain.boots]
    for stream, epoch, last in passed:
        if stream.producer == chain.client and last > has.get((stream, epoch), 0):
            for number, boot in enumerate(chain.boots[:-1]):
                if epoch in entered[number]:
                    high = chain.boots[number + 1].rows[0].epoch
                    yield from _around(Cut(max(entered[number]), not boot.closed, high), entered)


def _named_epochs(chains: Iterable[Chain]) -> Iterator[tuple[str, int, int]]:
    """Producers, epochs that a group knew, and the epochs of the openings that did not know these."""
    for chain in chains:
        for row in chain.rows:
            if row.kind == "conflict" and chain.role == "group" and (known := _known(row)) is not None:
                yield row.producer, known.epoch, row.epoch
            entered = (row.detail or {}).get("entered")
            if row.kind == "surpassed" and chain.role == "producer" and isinstance(entered, int):
                yield chain.client, entered, row.epoch


def _around_named(
    chain: Chain, named: Iterable[tuple[str, int, int]], everywhere: Iterable[Iterable[int]]
) -> Iterator[Cut]:
    """The cuts around epochs that groups knew, that precede an opening of the chain, and that none of the producer's
    journals has. `everywhere`: the epochs of all openings."""
    has = {epoch for boot in everywhere for epoch in boot}
    own = {epoch for boot in chain.boots for epoch in _entered(boot)}
    ends = {_end(boot): boot.closed for boot in chain.boots}
    for producer, epoch, opening in named:
        if producer == chain.client and 0 < epoch < opening and opening in own and epoch not in has:
            low = max(each for each in own if each < epoch)
            yield Cut(low, not ends.get(low, True), min(each for each in own if each > epoch))


def _between(
    chain: Chain, unknown: dict[tuple[str, int], set[_Unknown]], has: dict[Key, int]
) -> Iterator[Cut]:
    """The cuts between openings of a chain. `unknown`: what openings did not know, by producer and incarnation. `has`:
    the last number of each epoch in any journal."""
    ends: list[tuple[int, bool, int]] = []
    """For each opening: the latest epoch before it, whether that may have continued, and its own first epoch."""
    published: dict[Stream, int] = {}
    """By stream, the last opening that published to it."""
    entered = [_entered(boot) for boot in chain.boots]
    low, goes_on = 0, False
    openings: dict[int, int] = {}
    for number, boot in enumerate(chain.boots):
        ends.append((low, goes_on, boot.rows[0].epoch))
        for one in unknown.get((chain.client, boot.rows[0].incarnation), ()):
            of_it = -1 if one.known is None else openings.get(one.known.incarnation, -1)
            if one.known is not None and of_it >= 0 and one.known.epoch in entered[of_it]:
                if one.known.last > has.get((one.stream, one.known.epoch), 0):
                    high = ENDLESS if one.is_above else ends[of_it + 1][2]
                    yield from _around(Cut(max(entered[of_it]), not chain.boots[of_it].closed, high), entered)
                continue
            for before, may_go_on, began in ends[published.get(one.stream, -1) + 1 : number]:
                yield Cut(before, may_go_on, began)
            beyond = ENDLESS if one.is_above else one.epoch
            if beyond > low:
                yield from _around(Cut(low, goes_on, beyond), entered[number:])
        openings[boot.rows[0].incarnation] = number
        published.update((stream_of(row), number) for row in boot.rows if row.kind == "enqueued")
        low, goes_on = max(low, _end(boot)), not boot.closed


def _behind(chain: Chain, incarnation: int, epoch: int) -> Iterator[Cut]:
    """The cut after an opening whose journal was longer than the chain has it; if the chain lacks the opening, the cut
    begins after the opening before it. It extends up to the next opening that the chain has. An opening before it that
    published nothing may be that of the copy, if its clock was behind; so another cut may precede that opening."""
    openings = [(boot.rows[0].incarnation, boot.rows[0].epoch) for boot in chain.boots]
    of_it = [number for number, (name, _) in enumerate(openings) if name == incarnation]
    before = of_it or [number for number, (_, began) in enumerate(openings) if began < epoch]
    last = max(before, default=-1)
    low = max((_end(boot) for boot in chain.boots[: last + 1]), default=0)
    goes_on = bool(of_it) or (last >= 0 and not chain.boots[last].closed)
    begins = [began for _, began in openings[last + 1 : last + 2]]
    yield Cut(low, goes_on, max([low if of_it else epoch + 1, *begins]))
    while not of_it and last > 0 and not _has_published(chain.boots[last]):
        last -= 1
        low = max(map(_end, chain.boots[: last + 1]))
        yield Cut(low, not chain.boots[last].closed, openings[last + 1][1])


def _heard_of(chains: list[Chain], known: dict[tuple[str, int], int]) -> dict[str, set[tuple[int, int]]]:
    """By producer, incarnation and epoch of openings whose statuses announced more rows than their journals have.
    `known`: the last row of each opening."""
    found: dict[str, set[tuple[int, int]]] = {}
    for chain in chains:
        for row in chain.rows if chain.role == "group" else ():
            lsn = (row.detail or {}).get("lsn") if row.kind == "heard" and row.incarnation else None
            if isinstance(lsn, int) and lsn > known.get((row.producer, row.incarnation), 0):
                found.setdefault(row.producer, set()).add((row.incarnation, row.epoch))
    return found


def _enqueued(chains: Iterable[Chain]) -> dict[Key, int]:
    """The last number of each stream's epochs in the producers' journals."""
    found: dict[Key, int] = {}
    for chain in chains:
        if chain.role == "producer":
            renumbering = Renumbering(chain.rows)
            for row in chain.rows:
                if row.kind == "enqueued":
                    key = key_of(renumbering(row))
                    found[key] = max(row.last, found.get(key, 0))
    return found


def _known(row: JournalRow) -> _Known | None:
    """The group's knowledge according to a ``conflict`` row."""
    match (row.detail or {}).get("known"):
        case [int(epoch), str(incarnation), int(last)] if _INCARNATION.fullmatch(incarnation):
            return _Known(epoch, int(incarnation, 16), last)
    return None


def _is_above(row: JournalRow) -> bool:
    """Whether the group had entered a later epoch than the row's."""
    entered = (row.detail or {}).get("entered")
    return isinstance(entered, int) and entered > row.epoch


def _around(cut: Cut, own: Iterable[Iterable[int]]) -> Iterator[Cut]:
    """A cut without the epochs that journals have completely. `own`: epochs by opening."""
    low, goes_on = cut.low, cut.goes_on
    for epoch in sorted({epoch for boot in own for epoch in boot if cut.low < epoch < cut.high}):
        yield Cut(low, goes_on, epoch)
        low, goes_on = epoch, False
    yield Cut(low, goes_on, cut.high)


def _end(boot: Boot) -> int:
    """The latest epoch of an opening."""
    return max(_entered(boot))


def _entered(boot: Boot) -> list[int]:
    """The epochs of an opening: its first one, those that it entered later, and those to which it moved messages."""
    entered = [row.epoch for row in boot.rows if row.kind == "epoch"]
    moved = [(row.detail or {}).get("epoch") for row in boot.rows if row.kind == "renumbered"]
    return [0, boot.rows[0].epoch, *entered, *(epoch for epoch in moved if isinstance(epoch, int))]


def _fenced_by(row: JournalRow) -> tuple[int, int] | None:
    """Epoch and incarnation of the opening that a ``fenced`` row names; None for other rows."""
    if row.kind != "fenced":
        return None
    epoch, incarnation = ((row.detail or {}).get(name) for name in ("epoch", "incarnation"))
    if not isinstance(epoch, int) or not isinstance(incarnation, str):
        return None
    return (epoch, int(incarnation, 16)) if _INCARNATION.fullmatch(incarnation) else None
