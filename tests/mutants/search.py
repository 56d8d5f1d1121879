"""Look for a seed in which the product on the path is convicted: ``python -m tests.mutants.search A:B KIND…``.

Runs plain seeds, as ``reliamsg lab simulate --seeds A:B`` does, and stops at the first violation of an expected kind.
Kinds are those of the judge (``reliamsg.simulation.verdicts``); ``checker/FINDING`` is a finding of the plain checker.

The last line is JSON: how many seeds were tried; the one that was convicted, with kind and text (null where none was);
and what else was seen, by kind. What else was seen convicts nobody: neither other kinds of violations, nor a run that
raises (``error``) or does not end (``endless``).
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from types import FrameType
from typing import Any

from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw

MESSAGES = 200
SEED_S = 30.0
"""A run that takes so many seconds of processor time is given up; usually it is a third of one."""
MAX_USELESS = 5
"""So many runs that raise or are given up, and the search is: the defect is none that a run could show."""


class Ended(BaseException):
    """A run is ended here. Nothing in the product catches it."""

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Ended("endless")


def label(kind: str, text: str) -> str:
    """A violation's kind, the checker's with what it found."""
    return f"checker/{text.partition(':')[0]}" if kind == "checker" else kind


def search(seeds: range, expected: frozenset[str]) -> dict[str, object]:
    """What was found, as JSON has it."""
    others: Counter[str] = Counter()

    def note(kind: str, text: str) -> None:
        """An expected violation is enough."""
        found = label(kind, text)
        if found in expected:
            raise Ended(found, text)
        seen.add(found)

    original = Oracle.violate

    def violate(self: Oracle, *arguments: Any, **named: Any) -> None:
        """As :meth:`Oracle.violate`, but an expected violation ends the run."""
        original(self, *arguments, **named)
        latest = self.violations[-1]
        note(latest.kind, latest.text)

    signal.signal(signal.SIGPROF, _too_long)
    Oracle.violate = violate  # type: ignore[method-assign]
    tried = 0
    for seed in seeds:
        tried += 1
        seen: set[str] = set()
        signal.setitimer(signal.ITIMER_PROF, SEED_S)
        try:
            for each in run(draw(seed, MESSAGES)).violations:  # which were noted in another way
                note(each.kind, each.text)
        except Ended as ended:
            if ended.kind in expected:
                return _found(tried, seed, ended.kind, ended.text, others)
            seen.add(ended.kind)
        except Exception:  # noqa: BLE001  (whatever it is, it convicts nobody)
            seen.add("error")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        others.update(seen)
        if others["error"] + others["endless"] >= MAX_USELESS:
            break
    return _found(tried, None, "", "", others)


def _found(tried: int, seed: int | None, kind: str, text: str, others: Counter[str]) -> dict[str, object]:
    return {"tried": tried, "seed": seed, "kind": kind, "text": text, "others": dict(others)}


if __name__ == "__main__":
    first, last = map(int, sys.argv[1].split(":"))
    print(json.dumps(search(range(first, last), frozenset(sys.argv[2:]))))
