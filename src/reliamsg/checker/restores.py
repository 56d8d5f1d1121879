"""Where a producer's journal lacks a part, since its outbox was replaced by an older copy of itself.

The copy went on from what it knew, and nothing in its own journal shows that there was more. But groups had been given
some of that, and write a ``conflict`` when the opening that comes next knows nothing of it; and where the other history
has the later epoch, a ``fenced`` row names an opening that left no journal. A ``heard`` row tells of an opening how far
its journal was committed, which can be further than it is now: what is lacking goes on to the next opening that the
journal has. A ``surpassed`` row is the producer's own: a group told that it was further than the outbox ever was. That
and a ``conflict`` are about a stream, and the copy may have been opened before without publishing anything to it: so
the part may be lacking anywhere behind the opening that published to it last. But a ``conflict`` says what was known:
where the journal has that opening, and not all of that, the copy is as old as the opening, and the part is lacking
between it and the next. Where the copy's clock went back, both say that the group had come further; so does a
``fenced`` row. How far the other history went nobody can tell: from there on anything may be lacking but what the copy
entered itself. And no journal says what was before it: the outbox may have taken the place of one that was lost.
Nor did anybody meet an opening that published nothing: if the last ones are such, the first of them may be of a copy
whose clock was behind. Where an inbox went on (``behind``) before it had met an opening, the one that did is gone.
Nothing need have reached a group of the openings that followed on a lost one: but an epoch that either row names, and
that no journal has, was between those that come before it and after it.
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

__all__ = ["Cut", "find_cuts"]

_INCARNATION = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, order=True)
class Cut:
    """Where there was more than a producer's journal has: between two openings that follow each other in it, or up to
    one that it lacks."""

    low: int
    """The epoch in which the one before ended."""
    goes_on: bool
    """Whether that was not closed, so that its epoch may have gone on."""
    high: int
    """The epoch that a group met next, of the one after; or one beyond all that may be missing."""

    def touches(self, epoch: int) -> bool:
        """Whether there may be messages of the epoch that the journal does not have."""
        return self.low < epoch < self.high or (self.goes_on and epoch == self.low)


class _Known(NamedTuple):
    """Messages that a group knew to exist."""

    epoch: int
    incarnation: int
    last: int


class _Met(NamedTuple):
    """An opening did not know of something."""

    stream: Stream
    epoch: int
    """Of the opening."""
    is_above: bool
    """The group had entered a later one by then."""
    known: _Known | None
    """What the group knew, where that is said."""


def find_cuts(chains: Iterable[Chain]) -> dict[str, list[Cut]]:
    """Of each producer, the cuts that groups have met, or it has itself."""
    chains = list(chains)
    met: dict[tuple[str, int], set[_Met]] = {}
    for chain in chains:
        for row in chain.rows:
            witness = "conflict" if chain.role == "group" else "surpassed"
            if row.kind == witness and row.incarnation:
                found = _Met(stream_of(row), row.epoch, _is_above(row), _known(row))
                met.setdefault((row.producer, row.incarnation), set()).add(found)
    has = _enqueued(chains)
    known: dict[tuple[str, int], int] = {}
    for chain in chains:
        for boot in chain.boots if chain.role == "producer" else ():
            opening = chain.client, boot.rows[0].incarnation
            known[opening] = max(boot.rows[-1].lsn, known.get(opening, 0))
    heard = _heard_of(chains, known)
    passed = set(_passed(chains))
    entered: dict[str, list[list[int]]] = {}
    """By producer, the epochs of each opening of any chain."""
    for chain in chains:
        if chain.role == "producer":
            entered.setdefault(chain.client, []).extend(map(_entered, chain.boots))
    told = set(_told(chains))
    cuts = {producer: {Cut(0, False, epoch)} for producer, epoch in _beginnings(chains).items()}
    for chain in chains:
        if chain.role != "producer":
            continue
        own = cuts.setdefault(chain.client, set())
        own.update(_between(chain, met, has))
        own.update(_unmet(chain, entered[chain.client]))
        own.update(_passed_unmet(chain, passed, has))
        own.update(_around_unknown(chain, told, entered[chain.client]))
        if chain.boots and chain.to_the_end and not chain.finished:
            # The file may be an older copy that nobody has opened yet.
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


def _beginnings(chains: Iterable[Chain]) -> dict[str, int]:
    """With which epoch each producer's journals begin."""
    found: dict[str, int] = {}
    for chain in chains:
        if chain.role == "producer" and chain.boots:
            epoch = chain.boots[0].rows[0].epoch
            found[chain.client] = min(epoch, found.get(chain.client, epoch))
    return found


def _unmet(chain: Chain, entered: Iterable[Iterable[int]]) -> Iterator[Cut]:
    """The cut behind the last opening that published anything, if more follow. `entered`: epochs that journals have."""
    published = [number for number, boot in enumerate(chain.boots) if _has_published(boot)]
    last = max(published, default=-1)
    if last + 1 < len(chain.boots):
        low = max(map(_end, chain.boots[: last + 1]), default=0)
        goes_on = last >= 0 and not chain.boots[last].closed
        yield from _around(Cut(low, goes_on, ENDLESS), entered)


def _has_published(boot: Boot) -> bool:
    """Whether there are messages in epochs of the opening, so that groups can have met it."""
    return any(row.kind in ("enqueued", "renumbered") for row in boot.rows)


def _passed(chains: Iterable[Chain]) -> Iterator[tuple[Stream, int, int]]:
    """Epochs of which an inbox had settled everything up to a number, and whose end it never met: it went on where
    another one had been."""
    for chain in chains:
        for row in chain.rows if chain.role == "group" else ():
            own = as_position((row.detail or {}).get("from")) if row.kind == "behind" else None
            if own is not None and 0 < own[0] < row.epoch:
                yield stream_of(row), own[0], own[1] - 1


def _passed_unmet(
    chain: Chain, passed: Iterable[tuple[Stream, int, int]], has: dict[Key, int]
) -> Iterator[Cut]:
    """The cuts behind openings that had more of such an epoch than journals have: whoever met the next one is gone."""
    entered = [_entered(boot) for boot in chain.boots]
    for stream, epoch, last in passed:
        if stream.producer == chain.client and last > has.get((stream, epoch), 0):
            for number, boot in enumerate(chain.boots[:-1]):
                if epoch in entered[number]:
                    high = chain.boots[number + 1].rows[0].epoch
                    yield from _around(Cut(max(entered[number]), not boot.closed, high), entered)


def _told(chains: Iterable[Chain]) -> Iterator[tuple[str, int, int]]:
    """By producer, epochs of which a group says that it knew something, and the opening that did not."""
    for chain in chains:
        for row in chain.rows:
            if row.kind == "conflict" and chain.role == "group" and (known := _known(row)) is not None:
                yield row.producer, known.epoch, row.epoch
            entered = (row.detail or {}).get("entered")
            if row.kind == "surpassed" and chain.role == "producer" and isinstance(entered, int):
                yield chain.client, entered, row.epoch


def _around_unknown(
    chain: Chain, told: Iterable[tuple[str, int, int]], everywhere: Iterable[Iterable[int]]
) -> Iterator[Cut]:
    """The cuts around epochs before an opening of the chain that groups told of, and that are not `everywhere` in the
    producer's journals."""
    has = {epoch for boot in everywhere for epoch in boot}
    own = {epoch for boot in chain.boots for epoch in _entered(boot)}
    ends = {_end(boot): boot.closed for boot in chain.boots}
    for producer, epoch, opening in told:
        if producer == chain.client and 0 < epoch < opening and opening in own and epoch not in has:
            low = max(each for each in own if each < epoch)
            yield Cut(low, not ends.get(low, True), min(each for each in own if each > epoch))


def _between(chain: Chain, met: dict[tuple[str, int], set[_Met]], has: dict[Key, int]) -> Iterator[Cut]:
    """The cuts between openings of a chain. `met`: what openings are shown not to have known; `has`: how much of each
    epoch all journals have."""
    ends: list[tuple[int, bool, int]] = []
    """Before each opening: the latest epoch, whether that may have gone on, and the epoch that it began with."""
    published: dict[Stream, int] = {}
    """By stream, which opening published to it last."""
    entered = [_entered(boot) for boot in chain.boots]
    low, goes_on = 0, False
    openings: dict[int, int] = {}
    for number, boot in enumerate(chain.boots):
        ends.append((low, goes_on, boot.rows[0].epoch))
        for one in met.get((chain.client, boot.rows[0].incarnation), ()):
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
    """The cut behind an opening that told of more than the chain has of it; or, where the chain lacks it altogether,
    from the opening before it on. It reaches up to the next opening that the chain has. An opening before it that
    published nothing may be of the copy, whose clock was behind: so there may be more before that."""
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
    """By producer, incarnations and epochs of openings whose statuses told of more than their journals have. `known`:
    of each opening, its last row."""
    found: dict[str, set[tuple[int, int]]] = {}
    for chain in chains:
        for row in chain.rows if chain.role == "group" else ():
            told = (row.detail or {}).get("lsn") if row.kind == "heard" and row.incarnation else None
            if isinstance(told, int) and told > known.get((row.producer, row.incarnation), 0):
                found.setdefault(row.producer, set()).add((row.incarnation, row.epoch))
    return found


def _enqueued(chains: Iterable[Chain]) -> dict[Key, int]:
    """The last number of each stream's epochs that the producers' journals have."""
    found: dict[Key, int] = {}
    for chain in chains:
        if chain.role == "producer":
            now = Renumbering(chain.rows)
            for row in chain.rows:
                if row.kind == "enqueued":
                    key = key_of(now(row))
                    found[key] = max(row.last, found.get(key, 0))
    return found


def _known(row: JournalRow) -> _Known | None:
    """What a ``conflict`` row says that the group knew."""
    match (row.detail or {}).get("known"):
        case [int(epoch), str(incarnation), int(last)] if _INCARNATION.fullmatch(incarnation):
            return _Known(epoch, int(incarnation, 16), last)
    return None


def _is_above(row: JournalRow) -> bool:
    """Whether the group had entered a later epoch by then than the one that is named."""
    entered = (row.detail or {}).get("entered")
    return isinstance(entered, int) and entered > row.epoch


def _around(cut: Cut, own: Iterable[Iterable[int]]) -> Iterator[Cut]:
    """A cut without the epochs of the openings from it on, of which the journal has everything."""
    low, goes_on = cut.low, cut.goes_on
    for epoch in sorted({epoch for boot in own for epoch in boot if cut.low < epoch < cut.high}):
        yield Cut(low, goes_on, epoch)
        low, goes_on = epoch, False
    yield Cut(low, goes_on, cut.high)


def _end(boot: Boot) -> int:
    """The latest epoch of an opening."""
    return max(_entered(boot))


def _entered(boot: Boot) -> list[int]:
    """The epochs of an opening: its own, those that it went on to, and those to which it moved messages."""
    entered = [row.epoch for row in boot.rows if row.kind == "epoch"]
    moved = [(row.detail or {}).get("epoch") for row in boot.rows if row.kind == "renumbered"]
    return [0, boot.rows[0].epoch, *entered, *(epoch for epoch in moved if isinstance(epoch, int))]


def _fenced_by(row: JournalRow) -> tuple[int, int] | None:
    """Epoch and incarnation of the opening that a ``fenced`` row names."""
    if row.kind != "fenced":
        return None
    epoch, incarnation = ((row.detail or {}).get(name) for name in ("epoch", "incarnation"))
    if not isinstance(epoch, int) or not isinstance(incarnation, str):
        return None
    return (epoch, int(incarnation, 16)) if _INCARNATION.fullmatch(incarnation) else None
