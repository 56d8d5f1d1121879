"""All mutations, alone and in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tests.spoilt import of_clients, of_files, of_rows
from tests.spoilt.edits import Case
from tests.spoilt.effects import Effect, both
from tests.spoilt.reader import Journals

__all__ = ["CASES", "PAIRS", "SINGLES"]

SINGLES: Sequence[Case] = [*of_files.CASES, *of_rows.CASES, *of_clients.CASES]
_STEP, _SMALL_STEP = 37, 25
"""Of all pairs of mutations that have nothing to do with each other, one in so many is judged; and of these, one in so
many at small size."""


def _pair(one: Case, other: Case) -> Case:
    """Rows are changed before bytes and files, which have to be found as they are left."""

    def mutate(journals: Journals) -> Effect:
        return both(one.mutate(journals), other.mutate(journals))

    return Case(f"{one.name} + {other.name}", mutate, one.run, one.clients | other.clients)


def _are_independent(one: Case, other: Case) -> bool:
    return (
        one.run == other.run and bool(one.clients) and bool(other.clients) and not one.clients & other.clients
    )


def _pairs() -> Iterator[Case]:
    of_rows_first = [case for case in SINGLES if case.name.startswith("rows: ")]
    others = [case for case in SINGLES if not case.name.startswith(("rows: ", "clocks: ", "heads: "))]
    every = [
        (one, other)
        for one, other in (*product(of_rows_first, others), *product(of_rows_first, of_rows_first))
        if _are_independent(one, other)
    ]
    for number, (one, other) in enumerate(every[::_STEP]):
        yield replace(_pair(one, other), full=number % _SMALL_STEP > 0)


PAIRS: Sequence[Case] = list(_pairs())
CASES: Sequence[Case] = [*SINGLES, *PAIRS]
