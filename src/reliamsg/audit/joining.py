"""Joins the parts of a client that follow each other, as if their segments had been folded together.

An audit that keeps what it has folded (:mod:`reliamsg.audit.kept`) would otherwise judge one more part of each client
after every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from reliamsg.audit.fold import JOINED, Fact, Opening, Part, is_plain, same_opening, unfold

__all__ = ["Seam", "follows", "join_facts", "join_openings", "join_parts", "seam_of"]


def follows(one: Part, other: Part) -> bool:
    """Whether the segments of `other` come directly after those of `one`."""
    return (
        (one.role, one.client) == (other.role, other.client)
        and other.first_lsn == one.last_lsn + 1
        and other.parent == one.digests[-1]
    )


@dataclass(frozen=True, slots=True)
class Seam:
    """Where facts of two parts may be joined: if both are of this boot, and between these rows."""

    boot: str
    """Empty if the parts have no boot in common."""
    after_lsn: int
    before_lsn: int
    """No fact continues another across a row that fenced the producer."""


def seam_of(one: Part, other: Part) -> Seam:
    """The seam between a part and the one that follows it."""
    boot = one.openings[-1].boot if one.openings else ""
    if not other.openings or other.openings[0].boot != boot:
        return Seam("", 0, 0)
    fences = [fact.lsn for _, fact in one.rows if fact.kind == "fenced"]
    later = [fact.lsn for _, fact in other.rows if fact.kind == "fenced"]
    end = other.openings[0].last_lsn + 1
    return Seam(boot, max([one.openings[-1].first_lsn - 1, *fences]), min([end, *later]))


def join_facts(one: Sequence[Fact], other: Iterable[Fact], seam: Seam) -> list[Fact]:
    """The facts of one stream in both parts. Facts of `one` may be changed."""
    found = list(one)
    if not seam.boot:
        return [*found, *other]
    tips: dict[tuple[str, str, str, str], Fact] = {}
    for fact in found:
        _note(tips, fact)
    for fact in other:
        tip = tips.pop(_key(fact), None) if fact.kind in JOINED else None
        if tip is not None and _continues(tip, fact, seam):
            tip.go_on_with(fact)
            continue
        if not _may_grow(fact):
            tips.clear()
        found.append(fact)
    return found


def _key(fact: Fact) -> tuple[str, str, str, str]:
    return fact.kind, fact.site, fact.group, fact.reason


def _may_grow(fact: Fact) -> bool:
    return fact.kind in JOINED and is_plain(fact) and fact.first <= fact.last


def _note(tips: dict[tuple[str, str, str, str], Fact], fact: Fact) -> None:
    if _may_grow(fact):
        tips[_key(fact)] = fact
    else:
        tips.clear()


def _continues(tip: Fact, fact: Fact, seam: Seam) -> bool:
    return (
        tip.boot == fact.boot == seam.boot
        and tip.lsn > seam.after_lsn
        and fact.lsn < seam.before_lsn
        and tip.last + 1 == fact.first <= fact.last
        and tip.epoch == fact.epoch
        and (tip.digest is None) == (fact.digest is None)
        and tip.incarnation == fact.incarnation
        and same_opening(tip.detail, next(unfold(fact)).detail)
    )


def join_openings(openings: Iterable[Opening]) -> list[Opening]:
    """Openings in order, each boot once: the rows of one may be in several parts."""
    found: list[Opening] = []
    for each in openings:
        if not found or found[-1].boot != each.boot:
            found.append(each)
            continue
        known = found[-1]
        found[-1] = msgspec.structs.replace(
            known, last_lsn=each.last_lsn, begun_us=each.begun_us, changed_us=max(known.changed_us, each.changed_us),
            retired=each.retired, closed=known.closed or each.closed, published=known.published or each.published,
            end=max(known.end, each.end), later=known.later | each.later,
        )  # fmt: skip
    return found


def join_parts(one: Part, other: Part) -> Part:
    """A part, and the one that follows it."""
    newest = one.newest[-1][1] if one.newest else -1
    settled = dict(one.settled)
    for opening, lsn in other.settled.items():
        settled[opening] = max(lsn, settled.get(opening, lsn))
    latencies = {hop: Counter(counts) for hop, counts in one.latencies.items()}
    for hop, counts in other.latencies.items():
        latencies.setdefault(hop, Counter()).update(counts)
    set_back = [(other.least_us, one.latest_us)] if other.least_us < one.latest_us else []
    return Part(
        one.role, one.client, [*one.digests, *other.digests], one.parent, one.first_lsn, other.last_lsn,
        join_openings([*one.openings, *other.openings]), [*one.rows, *other.rows],
        [*one.newest, *(each for each in other.newest if each[1] > newest)],
        one.identified | other.identified, one.referred | other.referred, one.own | other.own,
        one.producers | other.producers, one.groups | other.groups, settled, one.opened | other.opened,
        one.topics | other.topics, {hop: dict(counts) for hop, counts in latencies.items()},
        min(one.least_us, other.least_us), max(one.latest_us, other.latest_us),
        [*one.mixed, *set_back, *other.mixed], one.marks | other.marks, [*one.unsigned, *other.unsigned],
    )  # fmt: skip
