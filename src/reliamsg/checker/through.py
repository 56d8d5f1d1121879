"""Through which time the evidence is whole: docs/reference/audit.md, "Complete through a time".

Every history of a client's file is proven through a time of its own. The least of these, an open question about a
message, or a clock that ran backwards keeps the whole from being proven any further.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from reliamsg.checker.journals import Chain
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import DEMANDS, KINDS, Ends, Finding, Hold, Offset, ProvenChain, Through, as_time
from reliamsg.checker.spans import ENDLESS, Key, SpanMap, Spans
from reliamsg.store.journal import JournalRow

__all__ = ["accounted_by", "demands_at", "find_through", "mixed_times"]

_MAX_HOLDS = 20


def _proven_chain(chain: Chain, offset: Offset | None) -> ProvenChain:
    """A chain and its time."""
    ends: Ends = "retired" if chain.retired else "closed" if chain.finished else "open"
    return ProvenChain(chain.role, chain.client, chain.source, chain.proven_us, ends, offset)


def mixed_times(chain: Chain) -> list[tuple[int, int]]:
    """Half-open periods, in µs since 1970, in which the client's clock was set, or ran backwards: some rows that began
    in them follow rows that began later. Sorted and disjoint."""
    found: list[tuple[int, int]] = []
    latest = 0
    covered = chain.covered
    if covered is not None:
        found += covered.mixed
    for row in chain.rows:
        if covered is not None and row.lsn > covered.last_lsn:
            latest = max(latest, covered.latest_us)
        if row.kind == "clock_step":
            found += _step(row)
        if row.wall_us < latest:
            found.append((row.wall_us, latest))
        latest = max(latest, row.wall_us)
    merged: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _step(row: JournalRow) -> Iterator[tuple[int, int]]:
    """The period over which a clock was set."""
    detail = row.detail or {}
    match detail.get("from_us"), detail.get("to_us"):
        case int(one), int(other) if one != other:
            yield min(one, other), max(one, other)


def find_through(
    chains: Sequence[Chain],
    findings: Iterable[Finding],
    producers: Mapping[str, ProducerFacts],
    until_us: int | None,
    now_us: int,
    offsets: Sequence[Offset | None],
) -> Through:
    """`findings`: all, with those about the evidence. `now_us`: this machine's clock, µs since 1970. `offsets`: of
    each chain."""
    proven = sorted(
        map(_proven_chain, chains, offsets),
        key=lambda each: (each.proven_us, each.role, each.client, each.source),
    )
    unknown = [each for each in findings if each.severity == "unknown" and each.kind not in DEMANDS]
    questions = list(_questions(unknown, producers))
    if len(questions) < len(unknown):
        return Through(chains=proven)
    us = min([now_us, *(each.proven_us for each in proven), *(since - 1 for since, _ in questions)])
    if until_us is not None and us > until_us:
        us = until_us
    us, held_by = _before_mixed(us, chains)
    held_by += [
        Hold(each.role, each.client, us, f"its journal {_ENDS[each.ends]}")
        for each in proven
        if each.proven_us == us
    ]
    held_by += [
        Hold("group" if each.group else "producer", each.group or each.producer, us, str(each))
        for since, each in questions
        if since - 1 == us
    ]
    if us == now_us:
        held_by.append(Hold("", "", us, "it is the time of the audit"))
    return Through(us, held_by[:_MAX_HOLDS], proven)


def demands_at(until_us: int, chains: Iterable[Chain], now_us: int) -> Iterator[Finding]:
    """What questions that everything is proven through that time: journals that end before, a clock that ran backwards
    then, and the clock of this machine."""
    if until_us > now_us:
        yield Finding("ends_early", f"{as_time(until_us)} is later than the clock of this machine")
    for chain in chains:
        name = f"{chain.source} ({chain.role} {chain.client})"
        if not chain.broken and not chain.reaches(until_us):
            yield Finding(
                "ends_early", f"{name}: {KINDS['ends_early'][1]}: it ends at {as_time(chain.proven_us)}"
            )
        for low, high in mixed_times(chain):
            if low <= until_us < high:
                text = f"{KINDS['mixed_clock'][1]}: between {as_time(low)} and {as_time(high)}"
                yield Finding("mixed_clock", f"{name}: {text}")


def accounted_by(us: int | None, producers: Mapping[str, ProducerFacts]) -> int:
    """The number of messages that the check is about and that were enqueued by that time."""
    if us is None:
        return 0
    count = 0
    for producer in producers.values():
        by_then = SpanMap()
        for key, rows in producer.begun.items():
            for first, last, wall_us in rows:
                if wall_us <= us:
                    by_then.put(key, first, last)
        count += sum((spans - producer.later[key]).count for key, spans in by_then.items())
    return count


_ENDS: dict[Ends, str] = {
    "closed": "was closed then", "open": "has no row after that", "retired": "was retired",
}  # fmt: skip


def _questions(
    unknown: Iterable[Finding], producers: Mapping[str, ProducerFacts]
) -> Iterator[tuple[int, Finding]]:
    """The findings all of whose messages were enqueued according to journals, each with the time of the first."""
    by_key: dict[Key, list[Finding]] = {}
    for each in unknown:
        if each.stream is not None and each.epoch is not None and each.first is not None:
            by_key.setdefault((each.stream, each.epoch), []).append(each)
    for key, own in by_key.items():
        producer = producers.get(key[0].producer)
        if producer is None:
            continue
        rows = sorted(producer.begun.get(key, ()))
        starts = [first for first, _, _ in rows]
        ends = list(accumulate((last for _, last, _ in rows), max))
        for each in own:
            first, last = each.first or 0, each.last or 0
            if last >= ENDLESS - 1 or Spans([(first, last)]) - producer.enqueued[key]:
                continue
            here = rows[bisect_left(ends, first) : bisect_right(starts, last)]
            yield min(us for _, end, us in here if end >= first), each


def _before_mixed(us: int, chains: Sequence[Chain]) -> tuple[int, list[Hold]]:
    """The last time up to `us` at which no clock ran backwards, and those that ran backwards just after it."""
    periods = [(chain, low, high) for chain in chains for low, high in mixed_times(chain)]
    while around := [low for _, low, high in periods if low <= us < high]:
        us = min(around) - 1
    return us, [
        Hold(chain.role, chain.client, us, f"its clock was set between {as_time(low)} and {as_time(high)}")
        for chain, low, high in periods
        if low - 1 == us
    ]
