"""Compares delivered content with published content, by the digest sums of ranges.

The rows of a stream's epoch in one chain form a line. Consecutive rows of a line form a run, along which digest sums
add up. If a run of the producer and a run of a group both have row boundaries at the same two numbers, their sums
between these must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable

from reliamsg.checker.journals import Chain
from reliamsg.checker.producers import key_of
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import KINDS, Finding
from reliamsg.checker.spans import Key, SpanMap, Spans
from reliamsg.store.journal import JournalRow

__all__ = ["compare_contents"]

_MODULUS = 2**64
_CONTENT = {"producer": frozenset({"enqueued"}), "group": frozenset({"delivered", "redelivered"})}
"""By role, the kinds whose digest sums are compared."""

_Run = dict[int, int]
"""By number at which a row ends (or before which the first row begins), the sum of all digests of the run up to there;
in ascending order."""


class _Line:
    """The rows of a stream's epoch in one chain."""

    def __init__(self) -> None:
        self._furthest = -1
        self._tips: dict[bool, tuple[int, _Run]] = {}
        """Last number and run of the newest row, separately for rows beyond all earlier ones and for rows that repeat
        numbers. So repetitions, in the middle or after a restart, do not break a run."""

    def add(self, row: JournalRow) -> _Run | None:
        """Append the row to its run. Returns the run if it is a new one."""
        fresh = row.first > self._furthest
        self._furthest = max(self._furthest, row.last)
        last, run = self._tips.get(fresh, (-1, {}))
        begins = not run or last + 1 != row.first
        if begins:
            run = {row.first - 1: 0}
        run[row.last] = (run[row.first - 1] + (row.digest or 0)) % _MODULUS
        self._tips[fresh] = (row.last, run)
        return run if begins else None


def compare_contents(
    chains: Iterable[Chain], contested: set[Key]
) -> tuple[list[Finding], dict[str, SpanMap]]:
    """Compare what producers journalled with what each group did. Without a journal of the producer, compare with the
    first group.

    Skips streams and epochs that are `contested`, and rows without a digest sum. Returns findings and, by group, what
    could be compared with the producer's journal.
    """
    originals: dict[Key, list[_Run]] = {}
    delivered: dict[str, dict[Key, list[_Run]]] = {}
    inboxes: dict[str, list[Chain]] = {}
    for chain in chains:
        _read(
            chain,
            contested,
            originals if chain.role == "producer" else delivered.setdefault(chain.client, {}),
        )
        if chain.role == "group":
            inboxes.setdefault(chain.client, []).append(chain)
    for group, own in inboxes.items():
        if len(own) > 1:
            _read_together(own, contested, delivered[group])
    references = {key: _by_cut(runs) for key, runs in originals.items()}
    findings: list[Finding] = []
    compared: dict[str, SpanMap] = {}
    for group in sorted(delivered):
        compared[group] = SpanMap()
        for key, runs in delivered[group].items():
            if key not in references:
                references[key] = _by_cut(runs)
                continue
            same, wrong = _compare(runs, references[key])
            if key in originals:
                compared[group][key] = same | wrong
            findings += [
                Finding("corrupt", KINDS["corrupt"][1], key[0], group, epoch=key[1], first=first, last=last)
                for first, last in wrong
            ]
    return findings, compared


def _read(chain: Chain, contested: set[Key], runs: dict[Key, list[_Run]]) -> None:
    """Add the runs of all lines of a chain to `runs`."""
    lines: dict[Key, _Line] = {}
    renumbering = Renumbering(chain.rows if chain.role == "producer" else ())
    for row in map(renumbering, chain.rows):
        if row.kind not in _CONTENT[chain.role] or row.digest is None or row.last < row.first:
            continue
        key = key_of(row)
        if key in contested:
            continue
        begun = lines.setdefault(key, _Line()).add(row)
        if begun is not None:
            runs.setdefault(key, []).append(begun)


def _read_together(chains: Iterable[Chain], contested: set[Key], runs: dict[Key, list[_Run]]) -> None:
    """The runs across several inboxes of a group, in order of numbers: one inbox may have continued for another."""
    rows = [
        row for chain in chains for row in chain.rows
        if row.kind in _CONTENT["group"] and row.digest is not None and row.first <= row.last
    ]  # fmt: skip
    lines: dict[Key, _Line] = {}
    for row in sorted(rows, key=lambda row: (row.first, -row.last, row.digest)):
        key = key_of(row)
        if key not in contested:
            begun = lines.setdefault(key, _Line()).add(row)
            if begun is not None:
                runs.setdefault(key, []).append(begun)


def _by_cut(runs: list[_Run]) -> dict[int, list[tuple[int, int]]]:
    """By row boundary, the indexes of the runs that have it, and their sums there."""
    cuts: dict[int, list[tuple[int, int]]] = {}
    for number, run in enumerate(runs):
        for at, total in run.items():
            cuts.setdefault(at, []).append((number, total))
    return cuts


def _compare(runs: list[_Run], reference: dict[int, list[tuple[int, int]]]) -> tuple[Spans, Spans]:
    """What agrees with the reference, and what does not, between row boundaries that both have."""
    same, wrong = Spans(), Spans()
    for run in runs:
        latest: dict[int, tuple[int, int, int]] = {}
        for at, total in run.items():
            for number, sum_there in reference.get(at, ()):
                if number in latest:
                    cut, total_then, sum_then = latest[number]
                    agrees = (total - total_then - sum_there + sum_then) % _MODULUS == 0
                    (same if agrees else wrong).add(cut + 1, at)
                latest[number] = (at, total, sum_there)
    return same, wrong
