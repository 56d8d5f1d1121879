"""Parts that follow each other are joined as if their segments had been folded together."""

from __future__ import annotations

import random

import msgspec
import pytest

from reliamsg.audit.fold import Fact, Folder, Part, StreamName
from reliamsg.audit.joining import follows, join_facts, join_parts, seam_of
from reliamsg.audit.segment import Line, SegmentHeader
from reliamsg.audit.through import prove
from tests.audit.equality import line_of
from tests.audit.fleet import soup
from tests.audit.together import spoilt

Folded = tuple[Part, dict[StreamName, list[Fact]]]


def folded(segments: list[list[Line]]) -> Folded:
    folder = Folder()
    for number, lines in enumerate(segments):
        header = SegmentHeader("producer", "p", lines[0].boot, lines[0].lsn, lines[-1].lsn, len(lines))
        folder.add(header, f"{lines[0].lsn}-{number}", lines)
    return folder.part(), folder.streams


def copied(one: Folded) -> Folded:
    part, streams = one
    known = {name: msgspec.msgpack.encode(facts) for name, facts in streams.items()}
    return part, {name: msgspec.msgpack.decode(data, type=list[Fact]) for name, data in known.items()}


def joined(one: Folded, other: Folded) -> Folded:
    (before, known), (after, later) = one, copied(other)
    seam = seam_of(before, after)
    streams = {
        name: join_facts(known.get(name, []), later.get(name, []), seam)
        for name in dict.fromkeys([*known, *later])
    }
    return join_parts(before, after), streams


@pytest.mark.parametrize("seed", range(60))
def test_the_order_of_joining_does_not_matter(seed: int) -> None:
    """Facts of all at once, of parts that are joined from the left, and from the right."""
    dice = random.Random(seed)
    for chain in soup(seed) if seed % 2 else spoilt(seed):
        segments: list[list[Line]] = []
        for row in chain.rows:
            if not segments or segments[-1][-1].boot != row.boot or dice.random() < 0.2:
                segments.append([])
            segments[-1].append(line_of(row))
        if len(segments) < 3:
            continue
        at, then = sorted(dice.sample(range(1, len(segments)), 2))
        pieces = [segments[:at], segments[at:then], segments[then:]]
        whole_part, whole = folded(segments)
        left = joined(joined(*map(folded, pieces[:2])), folded(pieces[2]))
        right = joined(folded(pieces[0]), joined(*map(folded, pieces[1:])))
        for part, streams in (left, right):
            assert streams == whole
            for name in part.__struct_fields__:
                if name not in ("digests", "mixed"):
                    assert getattr(part, name) == getattr(whole_part, name), name
            times = [
                prove("producer", "p", "", False, 0, own.openings, [own]).mixed for own in (part, whole_part)
            ]
            assert times[0] == times[1]


def test_only_parts_that_follow_each_other_are_joined() -> None:
    def part(first: int, last: int, parent: str | None, digest: str, client: str = "p") -> Part:
        folder = Folder()
        folder.add(SegmentHeader("producer", client, "b", first, last, 0, parent), digest, [])
        return folder.part()

    one = part(1, 5, None, "a")
    assert follows(one, part(6, 9, "a", "b"))
    assert not follows(one, part(7, 9, "a", "b"))
    assert not follows(one, part(6, 9, "c", "b"))
    assert not follows(one, part(6, 9, "a", "b", "other"))
