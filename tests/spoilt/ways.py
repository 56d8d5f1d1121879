"""All ways to judge journals. A new one is added to :data:`WAYS`, and then has to pass everything here."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from reliamsg.audit.compaction import compact
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.checker import Expect, check_directory
from tests.audit.local_spark import local_spark
from tests.spoilt.reader import Files, Journals

__all__ = ["WAYS", "Rules", "Verdict", "Way", "by_audit", "ways_for"]

Verdict = dict[str, Any]
_DETAIL = re.compile(r"(a row can't be read|its header is damaged): .*", re.DOTALL)


@dataclass(frozen=True)
class Rules:
    """What a judge is told about the run."""

    drained: bool
    until_us: int | None
    now_us: int


Way = Callable[[Journals, Rules, Path, random.Random], Verdict]
"""Judges journals that it writes below a directory of its own."""


def by_checker(journals: Journals, rules: Rules, place: Path, dice: random.Random) -> Verdict:
    """The plain checker."""
    for _ in _arrivals(journals, place, [list(journals.files())]):
        pass
    expect = Expect(drained=rules.drained, until_us=rules.until_us, now_us=rules.now_us)
    found = _shown(check_directory(place / "journals", expect).as_dict(), place)
    # The checker also says what is wrong with a line.
    found["evidence"]["broken"] = [_DETAIL.sub(r"\1", line) for line in found["evidence"]["broken"]]
    return found


def by_audit(
    journals: Journals, rules: Rules, place: Path, dice: random.Random, spark: SparkSession | None = None
) -> Verdict:
    """The audit, of everything at once."""
    for _ in _arrivals(journals, place, [list(journals.files())]):
        pass
    return _audited(spark or _spark(dice), rules, place)


def in_increments(journals: Journals, rules: Rules, place: Path, dice: random.Random) -> Verdict:
    """Audits with a state, of segments that arrive in their order."""
    paths = sorted(journals.files(), key=lambda path: (path.rpartition("/")[2][17:36], path))
    return _kept(journals, rules, place, dice, _cut(paths, 2, dice))


def followed(journals: Journals, rules: Rules, place: Path, dice: random.Random) -> Verdict:
    """Audits with a state, of segments that arrive in any order; the last finds nothing new, as with ``--follow``."""
    paths = list(journals.files())
    dice.shuffle(paths)
    return _kept(journals, rules, place, dice, [*_cut(paths, 2, dice), []])


def compacted(journals: Journals, rules: Rules, place: Path, dice: random.Random) -> Verdict:
    """An audit of checkpoints, with the segments that they cover in an archive, and of what has none. Clients whose
    journals are damaged or forked get none."""
    paths = sorted(journals.files())
    for _ in _arrivals(journals, place, [paths]):
        pass
    for _ in compact(place / "journals", archive=place / "archive"):
        pass
    return _audited(_spark(dice), rules, place)


def _kept(
    journals: Journals, rules: Rules, place: Path, dice: random.Random, pieces: Sequence[Sequence[str]]
) -> Verdict:
    found: Verdict = {}
    for _ in _arrivals(journals, place, pieces):
        found = _audited(_spark(dice), rules, place, place / "state")
    return found


WAYS: Mapping[str, Way] = {
    "checker": by_checker,
    "audit": by_audit,
    "increments": in_increments,
    "follow": followed,
    "compacted": compacted,
}


def ways_for(case: str, full: bool) -> Mapping[str, Way]:
    """All ways. At small size, segments arrive in only one of the two orders, and every second case is compacted, as
    the name of the case has it: these take most of the time."""
    number = zlib.crc32(case.encode())
    left_out = {("increments", "follow")[number % 2]} | ({"compacted"} if number // 2 % 2 else set())
    return {name: way for name, way in WAYS.items() if full or name not in left_out}


def _spark(dice: random.Random) -> SparkSession:
    return local_spark(dice.getrandbits(32))


def _audited(spark: SparkSession, rules: Rules, place: Path, state: Path | None = None) -> Verdict:
    expect = AuditExpect(drained=rules.drained, until_us=rules.until_us, now_us=rules.now_us)
    return _shown(audit(spark, place / "journals", state=state, expect=expect), place)


def _shown(verdict: Mapping[str, Any], place: Path) -> Verdict:
    """Without the place, which differs from way to way."""
    text = msgspec.json.encode(verdict).decode()
    found: Verdict = msgspec.json.decode(text.replace(str(place), ""))
    return found


def _arrivals(journals: Journals, place: Path, pieces: Sequence[Sequence[str]]) -> Iterator[None]:
    """Write files piece by piece, and what is no regular file with the last of them."""
    files: Files = journals.files()
    (place / "journals").mkdir(parents=True)
    for number, piece in enumerate(pieces):
        for path in piece:
            file = place / "journals" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(files[path])
        if number == len(pieces) - 1:
            for change in journals.odd:
                change(place / "journals")
        yield


def _cut(paths: Sequence[str], pieces: int, dice: random.Random) -> list[Sequence[str]]:
    ends = sorted(dice.randint(0, len(paths)) for _ in range(pieces - 1))
    return [paths[start:end] for start, end in zip([0, *ends], [*ends, len(paths)], strict=True)]
