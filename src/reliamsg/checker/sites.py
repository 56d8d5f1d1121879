"""What passed through each site, what was lost there, and what saved it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.report import Report, SiteCounts
from reliamsg.checker.spans import Key, SpanMap, Spans, total

__all__ = ["count_sites"]


def count_sites(
    report: Report, producers: Mapping[str, ProducerFacts], groups: Mapping[str, GroupFacts]
) -> None:
    """Count, into `report`."""
    sites: dict[str, SiteCounts] = {}
    for producer in producers.values():
        for site, confirmed in producer.confirmed.items():
            sites.setdefault(site, SiteCounts()).confirmed += total(confirmed.values())
    for group in groups.values():
        for site, arrived in group.arrived.items():
            counts = sites.setdefault(site, SiteCounts())
            counts.received += total(arrived.values())
            elsewhere = _all(copies for other, copies in group.arrived.items() if other != site)
            counts.saved_alone += sum(
                ((spans & group.handed[key]) - elsewhere[key]).count for key, spans in arrived.items()
            )
        _count_losses(report, sites, producers, group)
    report.sites = sites


def _count_losses(
    report: Report,
    sites: dict[str, SiteCounts],
    producers: Mapping[str, ProducerFacts],
    group: GroupFacts,
) -> None:
    """What sites lost, and what was delivered all the same."""
    arrived = _all(group.arrived.values())
    lost = SpanMap()
    if group.sound and group.finished:
        for site, confirmed in _proven(producers, group).items():
            here, strays = group.arrived.get(site, SpanMap()), group.strays.get(site, SpanMap())
            gone = SpanMap()
            for key, spans in confirmed.items():
                counted = producers[key[0].producer].counted.get(group.group, SpanMap())[key]
                gone[key] = (spans & counted) - here[key] - strays[key]
            sites.setdefault(site, SiteCounts()).lost_after_confirm += total(gone.values())
            lost.merge(gone)
    messages = report.messages
    messages.saved_by_second_site += sum(
        (spans & group.handed[key] & arrived[key]).count for key, spans in lost.items()
    )
    for key, spans in group.repaired.items():
        producer = producers.get(key[0].producer)
        if producer is not None:
            confirmed_there = _anywhere(producer, key)
            messages.saved_by_repair += ((spans & group.handed[key] & confirmed_there) - arrived[key]).count


def _proven(producers: Mapping[str, ProducerFacts], group: GroupFacts) -> dict[str, SpanMap]:
    """By site, what it had confirmed when, by then, it had nothing more for the group."""
    told: dict[tuple[str, int, str], int] = {}
    for site, name, incarnation, lsn in group.proofs:
        told[name, incarnation, site] = max(lsn, told.get((name, incarnation, site), 0))
    found: dict[str, SpanMap] = {}
    for (name, incarnation, site), lsn in told.items():
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
