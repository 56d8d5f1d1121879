"""How far what was lost had got: the last hop that its journals show, and at which sites."""

from __future__ import annotations

from collections.abc import Iterator

from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.spans import Key, SpanMap, Spans

__all__ = ["by_sites", "pieces"]

Piece = tuple[int, int, str, tuple[str, ...]]
"""First and last number, the hop, and the names of the sites where it was reached, sorted."""


def pieces(lost: Spans, key: Key, producer: ProducerFacts, group: GroupFacts) -> Iterator[Piece]:
    """Cut `lost` where the last hop, or its sites, change.

    ``buffered``: received, and held back in the group's inbox; ``received`` by the group; ``confirmed`` to the
    producer; ``enqueued`` and no more.
    """
    received = group.taken_in(key)
    steps = (
        ("buffered", received, group.buffered),
        ("received", received, group.received),
        ("confirmed", _anywhere(producer.confirmed, key), producer.confirmed),
    )
    found: list[Piece] = []
    for hop, needed, by_site in steps:
        reached = lost & needed & _anywhere(by_site, key)
        found += [(first, last, hop, sites) for first, last, sites in by_sites(reached, by_site, key)]
        lost = lost - reached
    found += [(first, last, "enqueued", ()) for first, last in lost]
    yield from sorted(found)


def _anywhere(by_site: dict[str, SpanMap], key: Key) -> Spans:
    every = Spans()
    for spans in by_site.values():
        every.update(spans[key])
    return every


def by_sites(
    spans: Spans, by_site: dict[str, SpanMap], key: Key
) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """`spans`, cut so that each piece is in the same sites as a whole."""
    parts: list[tuple[Spans, tuple[str, ...]]] = [(spans, ())]
    for site in sorted(by_site):
        here = by_site[site][key]
        named = (site,) if site else ()
        parts = [
            part
            for rest, sites in parts
            for part in ((rest & here, sites + named), (rest - here, sites))
            if part[0]
        ]
    joined: dict[tuple[str, ...], Spans] = {}
    for part, sites in parts:
        joined.setdefault(sites, Spans()).update(part)
    for sites, part in joined.items():
        for first, last in part:
            yield first, last, sites
