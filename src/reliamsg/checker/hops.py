"""The last hop that lost messages reached, according to the journals, and at which sites."""

from __future__ import annotations

from collections.abc import Iterator

from reliamsg.checker.groups import GroupFacts
from reliamsg.checker.producers import ProducerFacts
from reliamsg.checker.spans import Key, SpanMap, Spans

__all__ = ["by_sites", "pieces"]

Piece = tuple[int, int, str, tuple[str, ...]]
"""First and last number, the hop, and the sorted names of the sites where it was reached."""


def pieces(lost: Spans, key: Key, producer: ProducerFacts, group: GroupFacts) -> Iterator[Piece]:
    """Split `lost` so that each piece reached the same hop at the same sites.

    ``buffered``: received, and waiting in the group's inbox. ``received``: received by the group. ``confirmed``:
    confirmed to the producer. ``enqueued``: nothing more is known.
    """
    received = group.received_anywhere(key)
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
    """Split `spans` so that all messages of a piece are at the same sites."""
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
