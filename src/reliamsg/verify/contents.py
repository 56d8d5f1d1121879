"""Whether what was delivered is what was published, from the digest sums of ranges.

A row with a digest sum says how far apart two points of a stream are: the sum of all digests up to its end,
less the sum up to the number before its start. Rows cut the stream at different places, yet whenever some of
them tile a range that others tile too, both must arrive at the same distance. A union-find structure whose
links carry distances finds every such disagreement, in about one step for each row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from reliamsg.store.journal import JournalRow
from reliamsg.verify.producers import key_of
from reliamsg.verify.report import KINDS, Finding
from reliamsg.verify.spans import Key, SpanMap, Spans

__all__ = ["compare_contents"]

_MODULUS = 2**64


class _Distances:
    """Points joined by known distances."""

    def __init__(self) -> None:
        self._link: dict[int, tuple[int, int]] = {}

    def copy(self) -> _Distances:
        twin = _Distances()
        twin._link = dict(self._link)
        return twin

    def join(self, start: int, end: int, distance: int) -> bool:
        """Say that `end` lies `distance` beyond `start`. False when that contradicts what is known."""
        root, from_root = self._root(start)
        other, from_other = self._root(end)
        if root == other:
            return (from_other - from_root - distance) % _MODULUS == 0
        self._link[other] = (root, (from_root + distance - from_other) % _MODULUS)
        return True

    def component(self, point: int) -> int:
        """The same for all points that are joined."""
        return self._root(point)[0]

    def _root(self, point: int) -> tuple[int, int]:
        """The point that stands for all that are joined to `point`, and the distance from there."""
        path: list[tuple[int, int]] = []
        while (link := self._link.get(point)) is not None:
            path.append((point, link[1]))
            point = link[0]
        distance = 0
        for passed, step in reversed(path):
            distance = (distance + step) % _MODULUS
            self._link[passed] = (point, distance)
        return point, distance


def compare_contents(
    published: Iterable[JournalRow], delivered: dict[str, list[JournalRow]], contested: set[Key]
) -> tuple[list[Finding], dict[str, SpanMap]]:
    """Compare rows of all producers with those of each group, and the groups among each other.

    Leaves out streams and epochs that are `contested`, and rows without a digest sum. Returns findings and, for
    each group, what could be compared with the producer's account.
    """
    originals = _by_key(published, contested)
    known: dict[Key, _Distances] = {}
    for key, rows in originals.items():
        known[key] = distances = _Distances()
        for row in rows:
            distances.join(row.first - 1, row.last, row.digest or 0)
    together = {key: distances.copy() for key, distances in known.items()}
    findings: list[Finding] = []
    compared: dict[str, SpanMap] = {}
    for group, all_rows in delivered.items():
        compared[group] = SpanMap()
        for key, rows in _by_key(all_rows, contested).items():
            compared[group][key] = _comparable(originals.get(key, []), rows)
            wrong = _contradictions(known.get(key, _Distances()).copy(), rows)
            if not wrong:
                # Only what fits the producer's account is held against the other groups'.
                wrong = _contradictions(together.setdefault(key, _Distances()), rows)
            for first, last in _enclosing(wrong, originals.get(key, []), rows):
                findings.append(
                    Finding(
                        "corrupt", KINDS["corrupt"][1], key[0], group, epoch=key[1], first=first, last=last
                    )
                )
    return findings, compared


def _by_key(rows: Iterable[JournalRow], contested: set[Key]) -> dict[Key, list[JournalRow]]:
    found: dict[Key, list[JournalRow]] = {}
    for row in rows:
        if row.digest is not None and (key := key_of(row)) not in contested:
            found.setdefault(key, []).append(row)
    return found


def _contradictions(distances: _Distances, rows: Iterable[JournalRow]) -> list[JournalRow]:
    return [row for row in rows if not distances.join(row.first - 1, row.last, row.digest or 0)]


def _comparable(originals: list[JournalRow], rows: list[JournalRow]) -> Spans:
    """What lies between two points that rows of both sides lead to and from without a break."""
    ours, theirs = _Distances(), _Distances()
    for row in rows:
        ours.join(row.first - 1, row.last, 0)
    for row in originals:
        theirs.join(row.first - 1, row.last, 0)
    reach: dict[tuple[int, int], tuple[int, int]] = {}
    for cut in _cuts(originals) & _cuts(rows):
        both = (ours.component(cut), theirs.component(cut))
        low, high = reach.get(both, (cut, cut))
        reach[both] = (min(low, cut), max(high, cut))
    return Spans((low + 1, high) for low, high in sorted(reach.values()))


def _enclosing(wrong: list[JournalRow], originals: list[JournalRow], rows: list[JournalRow]) -> Spans:
    """Where the difference must lie: a contradiction shows at the last row of a stretch, whichever is wrong.

    The stretch ends where both sides cut the stream.
    """
    found = Spans()
    if not wrong:
        return found
    cuts = sorted(_cuts(originals) & _cuts(rows))
    for row in wrong:
        low = bisect_right(cuts, row.first - 1) - 1
        high = bisect_left(cuts, row.last)
        first = cuts[low] + 1 if low >= 0 else row.first
        found.add(first, cuts[high] if high < len(cuts) else row.last)
    return found


def _cuts(rows: list[JournalRow]) -> set[int]:
    return {row.first - 1 for row in rows} | {row.last for row in rows}
