"""Look for a seed that convicts the product on the path: ``python -m tests.mutants.search A:B``.

Runs plain seeds, as ``reliamsg simulate --seeds A:B`` does, and stops at the first violation. The last line is
JSON: how many seeds were tried, and the one that has violations (null where none has), with the first kind and text.
"""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

from reliamsg.simulation.oracle import Oracle
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw

MESSAGES = 200
SEED_S = 300.0
"""A run that takes so many seconds of processor time does not end: that is a conviction as well."""


class Ended(BaseException):
    """A run is ended here, with what it is convicted of. Nothing in the product catches it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Ended("endless", f"not over after {SEED_S:.0f} s")


def _violated(oracle: Oracle, kind: str, text: str) -> None:
    """In place of :meth:`Oracle.violate`: the first violation is enough."""
    raise Ended(kind, text)


def search(seeds: range) -> dict[str, object]:
    """What was found, as JSON has it."""
    signal.signal(signal.SIGPROF, _too_long)
    Oracle.violate = _violated  # type: ignore[method-assign]
    for tried, seed in enumerate(seeds, 1):
        signal.setitimer(signal.ITIMER_PROF, SEED_S)
        try:
            violations = run(draw(seed, MESSAGES)).violations
            if violations:
                raise Ended(violations[0].kind, violations[0].text)
        except Ended as ended:
            return _found(tried, seed, ended.kind, ended.text)
        except Exception as error:  # noqa: BLE001  (whatever it is, the defect led to it)
            return _found(tried, seed, "error", repr(error))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
    return _found(len(seeds), None, "", "")


def _found(tried: int, seed: int | None, kind: str, text: str) -> dict[str, object]:
    return {"tried": tried, "seed": seed, "kind": kind, "text": text}


if __name__ == "__main__":
    first, last = map(int, sys.argv[1].split(":"))
    print(json.dumps(search(range(first, last))))
