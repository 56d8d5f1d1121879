"""Puts the parts of each client into histories.

Every segment names the previous one, its parent. If no two parts of a client have the same parent or first row, they
form one history, in order of rows, even if some are missing. Otherwise the client's file was copied or restored: then
each part without a successor ends a history of its own, and histories share their beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import quote

from reliamsg.audit.clients import JournalParts
from reliamsg.audit.fold import Part
from reliamsg.audit.segment import StatedIdle

__all__ = ["Damaged", "Histories", "Placed", "histories", "lines"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A part, and where its segments were found."""

    number: int
    """Identifies it in this audit."""
    part: Part
    directory: str
    """Of its last segment, without the date."""
    name: str
    """The file name of its last segment."""
    path: str
    """The whole path of that."""
    streams: int
    """The number of streams with facts in it."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file that is, or should be, a segment, and can't be used."""

    path: str
    name: str
    owner: tuple[str, str] | None
    """Role and client, according to its directories."""
    problem: str


@dataclass(slots=True)
class Histories:
    """All clients' histories, and the problems of files that belong to none."""

    journals: list[JournalParts]
    numbers: dict[str, list[int]]
    """By history, the numbers of its parts, in order."""
    paths: dict[int, str]
    """By number, the path of a part's last segment."""
    stray: list[str] = field(default_factory=list)
    """Lines about unusable files of clients that left nothing else."""
    checkpoints: int = 0
    """The number of valid checkpoints."""
    checkpoint_signatures_checked: bool = False
    """Whether valid checkpoints are signed by one of the auditor's keys."""

    @property
    def rows(self) -> int:
        """The number of rows, those that histories share once for each."""
        return sum(part.last_lsn - part.first_lsn + 1 for each in self.journals for part in each.parts)


def histories(
    placed: Sequence[Placed],
    damaged: Sequence[Damaged],
    heads: Sequence[StatedIdle] = (),
    *,
    checkpoints: int = 0,
    checkpoint_signatures_checked: bool = False,
) -> Histories:
    """Put parts into histories. Each segment may be in one part only. `checkpoints`: the number of valid ones."""
    by_client: dict[tuple[str, str], list[Placed]] = defaultdict(list)
    for each in placed:
        by_client[each.part.role, each.part.client].append(each)
    lines_of: dict[tuple[str, str], list[str]] = defaultdict(list)
    stray: list[str] = []
    for file in damaged:
        if file.owner is not None and file.owner in by_client:
            lines_of[file.owner].append(f"{file.name}: {file.problem}")
        elif file.owner is not None:
            stray.append(f"{file.owner[0]} {file.owner[1]}: {file.name}: {file.problem}")
        else:
            stray.append(f"{file.path}: {file.problem}")
    stated: dict[tuple[str, str], set[StatedIdle]] = defaultdict(set)
    for head in heads:
        stated[head.role, head.client].add(head)
    stray += [
        f"{role} {client}: head-{boot}.json: there is no segment of this client"
        for role, client in sorted(stated.keys() - by_client.keys())
        for boot in sorted({head.boot for head in stated[role, client]})
    ]
    paths = {each.number: each.path for each in placed}
    found = Histories([], {}, paths, stray, checkpoints, checkpoint_signatures_checked)
    for (role, client), own in sorted(by_client.items()):
        every = lines(own)
        boots = {opening.boot for each in own for opening in each.part.openings}
        for number, line in enumerate(every, 1):
            own_name = f"{role}/{quote(client, safe='')}"
            name = own_name if len(every) == 1 else f"{own_name}#{number:04}"
            last = line[-1]
            source = last.directory if len(every) == 1 else f"{last.directory} up to {last.name}"
            problems = list(dict.fromkeys(lines_of[role, client]))
            if number > 1 and problems:
                problems = ["segments of this client are damaged"]
            problems += _misfits(line)
            found.journals.append(
                JournalParts(
                    role, client, name, source, [each.part for each in line], problems,
                    _heads_of(line, stated[role, client]), _continues(line, stated[role, client], boots),
                )
            )  # fmt: skip
            found.numbers[name] = [each.number for each in line]
    return found


def _heads_of(line: Sequence[Placed], heads: Iterable[StatedIdle]) -> list[StatedIdle]:
    """The heads of a client that belong to this history."""
    digests = {digest for each in line for digest in each.part.digests}
    boots = {opening.boot for each in line for opening in each.part.openings}
    own = [head for head in heads if head.digest in digests or head.boot in boots]
    return sorted(own, key=lambda head: (head.lsn, head.wall_us, head.boot))


def _continues(line: Sequence[Placed], heads: Iterable[StatedIdle], known: Set[str]) -> bool:
    """Whether a head names a later row of this history, or a boot that is not among those `known` of the client."""
    boots = {opening.boot for each in line for opening in each.part.openings}
    end = line[-1].part.last_lsn
    return any(head.boot not in known or (head.boot in boots and head.lsn > end) for head in heads)


def _misfits(line: Sequence[Placed]) -> list[str]:
    """A line for each part that is not the child of the one before it. Missing rows do not count."""
    return [
        f"the rows from {other.part.first_lsn} on do not continue the rows before them"
        for one, other in pairwise(line)
        if other.part.first_lsn == one.part.last_lsn + 1 and other.part.parent != one.part.digests[-1]
    ]


def is_forked(parts: Sequence[Placed]) -> bool:
    """Whether two parts have the same parent or first row."""
    parents = {each.part.parent for each in parts}
    starts = {each.part.first_lsn for each in parts}
    return min(len(parents), len(starts)) < len(parts)


def lines(parts: Sequence[Placed]) -> list[list[Placed]]:
    """All histories of one client, each from its first part to one without a successor."""
    ordered = sorted(parts, key=lambda each: (each.part.first_lsn, each.part.last_lsn, each.part.digests[-1]))
    if not is_forked(ordered):
        return [ordered]
    known = {each.part.digests[-1]: each for each in ordered}
    before = {
        each.number: known[each.part.parent]
        for each in ordered
        if each.part.parent is not None and each.part.parent in known
    }
    followed = {each.number for each in before.values()}
    for each in ordered:
        if each.part.parent is None or each.number in before:
            continue
        # Its parent is missing: it continues a history whose rows end before it, without a successor, of its boot if
        # possible.
        boot = each.part.openings[0].boot
        ends = [
            (other.part.openings[-1].boot == boot, other.part.last_lsn, place)
            for place, other in enumerate(ordered)
            if other.number not in followed and other.part.last_lsn < each.part.first_lsn
        ]
        if ends:
            before[each.number] = ordered[max(ends)[2]]
            followed.add(before[each.number].number)
    found = []
    for each in ordered:
        if each.number in followed:
            continue
        line = [each]
        while line[-1].number in before:
            line.append(before[line[-1].number])
        found.append(line[::-1])
    return found
