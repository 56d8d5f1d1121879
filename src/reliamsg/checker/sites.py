"""How many messages passed through each site, were lost there, and were saved by other means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import SiteCounts
from reliamsg.checker.spans import Key, SpanMap, Spans, total
from reliamsg.checker.sums import check_site

__all__ = ["Saved", "Sites", "count_sites"]


@dataclass(frozen=True)
class Saved:
    """Messages that sites had lost, or never had, and that were delivered; once per group."""

    by_repair: int
    by_second_site: int


@dataclass(frozen=True)
class Sites:
    """All sites, and the messages that were saved although they lost them."""

    counts: dict[str, SiteCounts]
    saved: Saved


def count_sites(producers: Mapping[str, ProducerFacts], groups: Mapping[str, GroupFacts]) -> Sites:
    """Count the messages that passed through each site."""
    confirmed: Counter[str] = Counter()
    received: Counter[str] = Counter()
    saved_alone: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    by_repair = by_second_site = 0
    for producer in producers.values():
        for site, spans in producer.confirmed.items():
            confirmed[site] += total(spans.values())
    for group in groups.values():
        for site, arrived in group.arrived.items():
            received[site] += total(arrived.values())
            elsewhere = _all(copies for other, copies in group.arrived.items() if other != site)
            saved_alone[site] += sum(
                ((spans & group.delivered[key]) - elsewhere[key]).count for key, spans in arrived.items()
            )
        lost_of_group = _losses(producers, group)
        _check_sums(producers, group, lost_of_group)
        for site, gone in lost_of_group.items():
            lost[site] += total(gone.values())
        by_second_site += _saved_by_second_site(group, lost_of_group)
        by_repair += _saved_by_repair(producers, group)
    counts = {
        site: SiteCounts(confirmed[site], received[site], lost[site], saved_alone[site])
        for site in dict.fromkeys([*confirmed, *received, *lost])
    }
    return Sites(counts, Saved(by_repair, by_second_site))


def _losses(producers: Mapping[str, ProducerFacts], group: GroupFacts) -> dict[str, SpanMap]:
    """By site, messages that it had confirmed for the group and is proven to have lost."""
    found: dict[str, SpanMap] = {}
    for site, confirmed in _proven(producers, group).items() if group.sound and group.finished else ():
        here, stale = group.arrived.get(site, SpanMap()), group.stale.get(site, SpanMap())
        gone = found[site] = SpanMap()
        for key, spans in confirmed.items():
            counted = producers[key[0].producer].counted.get(group.group, SpanMap())[key]
            gone[key] = (spans & counted) - here[key] - stale[key]
    return found


def _check_sums(
    producers: Mapping[str, ProducerFacts], group: GroupFacts, lost: Mapping[str, SpanMap]
) -> None:
    """Compare the losses, as they are reported, with the confirms of each site for messages for which the group
    counts."""
    proven = _proven(producers, group) if group.sound and group.finished else {}
    confirmed: Counter[str] = Counter()
    came: Counter[str] = Counter()
    unproven: Counter[str] = Counter()
    for producer in producers.values():
        counted = producer.counted.get(group.group)
        if not counted:
            continue  # most producers of a large system have nothing for this group
        for site, spans in producer.confirmed.items():
            arrived, stale = group.arrived.get(site, SpanMap()), group.stale.get(site, SpanMap())
            for key in spans.keys() & counted.keys():
                ours = spans[key] & counted[key]
                out = ours & (arrived[key] | stale[key])
                confirmed[site] += ours.count
                came[site] += out.count
                unproven[site] += (ours - out - proven.get(site, SpanMap())[key]).count
    for site in {*confirmed, *lost}:
        gone = total(lost[site].values()) if site in lost else 0
        check_site(site, group.group, confirmed[site], came[site], gone, unproven[site])


def _saved_by_second_site(group: GroupFacts, lost: Mapping[str, SpanMap]) -> int:
    arrived, gone = _all(group.arrived.values()), _all(lost.values())
    return sum((spans & group.delivered[key] & arrived[key]).count for key, spans in gone.items())


def _saved_by_repair(producers: Mapping[str, ProducerFacts], group: GroupFacts) -> int:
    arrived = _all(group.arrived.values())
    return sum(
        ((spans & group.delivered[key] & _anywhere(producers[key[0].producer], key)) - arrived[key]).count
        for key, spans in group.repaired.items()
        if key[0].producer in producers
    )


def _proven(producers: Mapping[str, ProducerFacts], group: GroupFacts) -> dict[str, SpanMap]:
    """By site, messages that it had confirmed before it was proven to have nothing more for the group."""
    announced: dict[tuple[str, int, str], int] = {}
    for site, name, incarnation, lsn in group.empty_queues:
        announced[name, incarnation, site] = max(lsn, announced.get((name, incarnation, site), 0))
    found: dict[str, SpanMap] = {}
    for (name, incarnation, site), lsn in announced.items():
        producer = producers.get(name)
        for chain in producer.confirms if producer is not None else ():
            if incarnation not in chain.incarnations:
                continue
            for at, where, key, first, last in chain.rows:
                if where == site and at <= lsn:
                    found.setdefault(site, SpanMap()).put(key, first, last)
    return found


def _all(maps: Iterable[SpanMap]) -> SpanMap:
    every = SpanMap()
    for each in maps:
        every.merge(each)
    return every


def _anywhere(producer: ProducerFacts, key: Key) -> Spans:
    every = Spans()
    for confirmed in producer.confirmed.values():
        every.update(confirmed[key])
    return every
