"""Check the protocol's model, and that variants which break a rule are refuted: ``make model``.

Prints a line for each case: its description, the property that it is expected to break, the result, and the number of
states searched. Requires ``spin`` and ``gcc``. Exit code: 0, or 1 if any result was not the expected one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "Case", "Outcome", "run"]

MODEL = Path(__file__).with_name("reliamsg.pml")
TIMEOUT_S = 600
"""No case takes that long; it bounds the cost of a mistake in the model."""
MEMORY_MB = 3000


@dataclass(frozen=True)
class Case:
    """A model to check."""

    name: str
    switches: tuple[str, ...]
    breaks: str | None = None
    """The property that fails: the name of the judge's variable. None: all hold."""
    cycles: bool = False
    """Search for infinite runs instead."""


@dataclass(frozen=True)
class Outcome:
    """SPIN's result: the property that failed, or None, and the number of states searched."""

    broken: str | None
    states: int
    seconds: float


CONFIRMED = ("RELEASE_CONFIRMED", "WIPES=1")
"""The outbox releases messages that both sites have; then one site may lose everything, not both."""
RESTORED = ("RESTORES=1", "PRODUCER_CRASHES=0", "WIPES=0", "UNCONFIRMED=0")
"""With three messages, so that one can be published after a restore that undoes another."""
IMPATIENT = ("RELEASE_CONFIRMED", "WIPES=0", "IMPATIENT")
"""Gaps may expire although a site would still have delivered."""
SMALL = ("MESSAGES=2",)

CASES = (
    Case("kept until consumed", SMALL),
    Case("kept until confirmed", (*SMALL, *CONFIRMED)),
    Case("restored from a backup", RESTORED),
    Case("gaps that expire early", (*SMALL, *IMPATIENT)),
    Case("every run ends", ("MESSAGES=2", "WIPES=1", "UNCONFIRMED=0"), cycles=True),
    Case(
        "acknowledged to the broker before the commit",
        (*SMALL, *CONFIRMED, "BAD_ACKNOWLEDGE_EARLY"),
        "needless",
    ),
    Case("numbers used again after a restore", (*RESTORED, "BAD_REUSE_NUMBERS"), "loss"),
    Case(
        "an epoch entered without its prev",
        (*SMALL, "BAD_FORGET_PREV"),
        "needless",
    ),
    Case(
        "released when confirmed, both sites lose it",
        (
            *SMALL,
            "BAD_RELEASE_ON_CONFIRM",
        ),
        "needless",
    ),
    Case(
        "a state that reports uncommitted positions",
        (
            *SMALL,
            "BAD_TELL_UNCOMMITTED",
        ),
        "needless",
    ),
    Case("a gap passed and not declared", (*SMALL, *IMPATIENT, "BAD_SILENT_GAP"), "loss"),
    Case("a late message delivered in the order", (*SMALL, *IMPATIENT, "BAD_LATE_IN_ORDER"), "disorder"),
    Case(
        "deduplication by a cache that expires",
        (
            *SMALL,
            "BAD_DEDUPE_EXPIRES",
        ),
        "duplicate",
    ),
    Case(
        "a clock that runs while the producer holds",
        (
            *SMALL,
            "BAD_CLOCK_RUNS",
        ),
        "needless",
    ),
    Case(
        "delivered before the mark is committed",
        (
            *SMALL,
            "BAD_NO_HIGH_WATER",
        ),
        "unflagged",
    ),
    Case(
        "a producer that tells no status",
        (
            *SMALL,
            "BAD_NO_STATUS",
        ),
        "loss",
    ),
)


def run(case: Case) -> Outcome:
    """Check one case. Raises RuntimeError if SPIN or the compiler fails, or the search was not complete."""
    with tempfile.TemporaryDirectory(prefix="reliamsg-model-") as directory:
        defined = [f"-D{switch}" for switch in case.switches]
        _do(["spin", "-a", *defined, str(MODEL)], directory)
        how = "-DNP" if case.cycles else "-DSAFETY"
        _do(["gcc", "-O1", "-w", how, f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c"], directory)
        said = _do(["./pan", "-m20000", *(["-l"] if case.cycles else [])], directory)
    if "max search depth too small" in said or "out of memory" in said:
        raise RuntimeError(f"{case.name}: the search was not complete:\n{said}")
    errors = int(_find(r"errors: (\d+)", said))
    broken = None
    if errors:
        found = re.search(r"assertion violated\s+!\((\w+)\)", said)
        broken = found[1] if found else "a run without end" if "non-progress" in said else "?"
    return Outcome(
        broken,
        int(float(_find(r"([\d.e+]+) states, stored", said))),
        float(_find(r"elapsed time ([\d.]+)", said)),
    )


def _do(command: list[str], directory: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern!r} in pan's output:\n{text}")
    return found[1]


def main() -> int:
    surprises = 0
    print(f"{'case':<48}{'expected':<11}{'found':<11}{'states':>10}{'s':>7}")
    for case in CASES:
        found = run(case)
        surprise = found.broken != case.breaks
        surprises += surprise
        print(
            f"{case.name:<48}{case.breaks or 'holds':<11}{found.broken or 'holds':<11}{found.states:>10}"
            f"{found.seconds:>7.1f}{'  <- not as expected' if surprise else ''}",
            flush=True,
        )
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
