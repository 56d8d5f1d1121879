"""Compares delivered with published content by the digest sums of ranges.

The rows of one journal about an epoch form a line; adjacent rows of a line form a run, along which digest sums can be
added. If a run of the producer and a run of a group both have a row that ends at the same two numbers, the sums between
them must be equal, modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reliamsg.audit.fold import Fact, unfold

__all__ = ["Stretch", "compare", "runs_of", "runs_together"]

_MODULUS = 2**64

Run = dict[int, int]
"""By number at which a row ends (or before which the first row begins), the sum of all digests of the run up to
there."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range between two ends of rows that both sides have."""

    first: int
    last: int
    agrees: bool


def runs_of(facts: Iterable[Fact]) -> list[Run]:
    """The runs of one line, whose rows are in the order of a journal. Rows that repeat numbers form runs of their own:
    a repetition, in the middle or after a restart, does not interrupt a run."""
    runs: list[Run] = []
    furthest = -1
    tips: dict[bool, tuple[int, Run]] = {}
    for fact in facts:
        if fact.digest is None or fact.first > fact.last:
            continue
        for row in (fact,) if fact.first > furthest else unfold(fact):
            fresh = row.first > furthest
            furthest = max(furthest, row.last)
            last, run = tips.get(fresh, (-1, {}))
            if not run or last + 1 != row.first:
                run = {row.first - 1: 0}
                runs.append(run)
            before = run[row.first - 1]
            for point in row.points or ():
                run[point.last] = before + point.mark
            run[row.last] = before + (row.digest or 0)
            tips[fresh] = (row.last, run)
    return runs


def runs_together(facts: Iterable[Fact]) -> list[Run]:
    """The runs across several inboxes of a group, in the order of numbers: if one continued for another, their rows
    only form a run together."""
    rows = [
        row for fact in facts if fact.digest is not None and fact.first <= fact.last for row in unfold(fact)
    ]
    return runs_of(sorted(rows, key=lambda row: (row.first, -row.last, row.digest)))


def compare(runs: Sequence[Run], reference: Sequence[Run]) -> Iterator[Stretch]:
    """Every stretch between two consecutive numbers at which rows of both a run and a reference end."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for number, run in enumerate(reference):
        for at, total in run.items():
            ends.setdefault(at, []).append((number, total))
    for run in runs:
        latest: dict[int, tuple[int, int]] = {}
        for at, total in run.items():
            for number, other in ends.get(at, ()):
                apart = total - other
                if number in latest:
                    before, was_apart = latest[number]
                    yield Stretch(before + 1, at, (apart - was_apart) % _MODULUS == 0)
                latest[number] = (at, apart)
