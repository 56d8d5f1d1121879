"""The map of the report: volume and loss from producers through sites to groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from reliamsg.audit.report_svg import clipped, element, picture, text
from reliamsg.audit.report_words import compact, times

__all__ = ["Edge", "Node", "Topology", "map_picture", "topology"]

_MAX_NODES = 8
"""In a column; the rest is one node."""
_TALL, _APART, _TOP = 44.0, 16.0, 26.0
_LEAST_HEIGHT = 200.0
_THICKEST = 11.0


@dataclass(frozen=True, slots=True)
class Node:
    """A producer, a site or a group; or all others of them."""

    name: str
    label: str
    volume: int
    missing: int
    note: str
    """The volume in words."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Messages from one node to another."""

    source: str
    target: str
    volume: int
    lost: int


@dataclass(frozen=True, slots=True)
class Topology:
    """Three columns of nodes, and the edges between the first and the second, and the second and the third."""

    producers: list[Node]
    sites: list[Node]
    groups: list[Node]
    confirms: list[Edge]
    deliveries: list[Edge]


def topology(flows: Mapping[str, Any], verdict: Mapping[str, Any], missing: Mapping[str, int]) -> Topology:
    """Make the map from ``flows`` of :func:`reliamsg.audit.report_data.data`. `missing`: by group, lost and open
    messages. The producers and groups with most missing or, else, most messages have nodes of their own."""
    delivered = verdict["messages"]["delivered"]
    ranked = sorted(flows["producers"], key=lambda each: (-each[3], -each[1], each[0]))
    producers = [
        Node(name, name, enqueued, lacking, f"{compact(enqueued)} published")
        for name, enqueued, _, lacking in _first(ranked)
    ]
    sites = [
        Node(
            name,
            name,
            each["confirmed"],
            each["lost_after_confirm"],
            f"{compact(each['confirmed'])} confirmed",
        )
        for name, each in _first(
            sorted(verdict["sites"].items(), key=lambda item: (-item[1]["confirmed"], item[0]))
        )
    ]
    names = sorted(delivered, key=lambda name: (-missing.get(name, 0), -delivered[name], name))
    groups = [
        Node(name, name, delivered[name], missing.get(name, 0), f"{compact(delivered[name])} delivered")
        for name in _first(names)
    ]
    if len(ranked) > len(producers):
        rest = ranked[len(producers) :]
        enqueued, lacking = (sum(each[place] for each in rest) for place in (1, 3))
        producers.append(
            Node(
                "",
                times(len(rest), "other"),
                enqueued,
                sum(each[3] for each in rest),
                f"{compact(enqueued)} published",
            )
        )
    if len(names) > len(groups):
        others = names[len(groups) :]
        volume = sum(delivered[name] for name in others)
        lacking = sum(missing.get(name, 0) for name in others)
        groups.append(Node("", times(len(others), "other"), volume, lacking, f"{compact(volume)} delivered"))
    known = {each.name for each in sites}
    from_producers = {each.name for each in producers}
    to_groups = {each.name for each in groups}
    return Topology(
        producers, sites, groups,
        _merged(
            (name if name in from_producers else "", site, count, 0)
            for name, site, count in flows["confirmed"] if site in known
        ),
        _merged(
            (site, group if group in to_groups else "", received, lost)
            for site, group, received, lost, _ in flows["received"] if site in known
        ),
    )  # fmt: skip


def map_picture(found: Topology, width: float) -> Markup:
    """Draw the map. Edges are as thick as their volume."""
    box = min(max(width * 0.24, 86.0), 210.0)
    columns = (found.producers, found.sites, found.groups)
    room = max(*(len(each) * (_TALL + _APART) for each in columns), _LEAST_HEIGHT)
    height = _TOP + room
    places: list[dict[str, tuple[float, float]]] = []
    drawn: list[Markup] = []
    boxes: list[Markup] = []
    narrow = width < 500
    for number, (title, column) in enumerate(zip(("Producers", "Sites", "Groups"), columns, strict=True)):
        x = (width - box) / 2 * number
        drawn.append(text(x + box / 2, 14.0, title, "title", "middle"))
        own: dict[str, tuple[float, float]] = {}
        for place, node in enumerate(column):
            y = _TOP + room * (place + 0.5) / len(column)
            own[node.name] = (x, y)
            boxes += _node(node, x, y - _TALL / 2, box, narrow)
        places.append(own)
    most = max((each.volume for each in (*found.confirms, *found.deliveries)), default=0)
    curves: list[tuple[Edge, tuple[float, float, float, float]]] = []
    for edges, sources, targets in (
        (found.confirms, places[0], places[1]), (found.deliveries, places[1], places[2]),
    ):  # fmt: skip
        for edge in edges:
            (x1, y1), (x2, y2) = sources[edge.source], targets[edge.target]
            curves.append((edge, (x1 + box, y1, x2, y2)))
            drawn += _edge(*curves[-1], most)
    taken: list[tuple[float, float, float, float]] = []
    words: list[Markup] = []
    for edge, curve in sorted(curves, key=lambda each: -each[0].lost):
        words += _label(edge, curve, taken, narrow)
    return picture(width, height, [*drawn, *boxes, *words], "chart map")


def _node(node: Node, x: float, y: float, box: float, narrow: bool) -> Iterator[Markup]:
    kind = "node bad" if node.missing else "node"
    yield element("rect", x=x, y=y, width=box, height=_TALL, rx=6, class_=kind)
    size = 11 if narrow else 12
    yield text(x + 8, y + 18, clipped(node.label, box - 14, size + 1), "name")
    note = node.note.split(" ")[0] if narrow else node.note
    told = text(x + 8, y + 35, note, "t")
    yield told
    if node.missing:
        lacking = f"−{compact(node.missing)}"
        yield text(x + box - 8, y + 35, lacking if narrow else f"{lacking} missing", "loss", "end")


def _edge(edge: Edge, curve: tuple[float, float, float, float], most: int) -> Iterator[Markup]:
    x1, y1, x2, y2 = curve
    bend = (x2 - x1) / 2
    path = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    wide = 1.0 + (_THICKEST - 1.0) * edge.volume / most if most else 1.0
    yield element("path", d=path, class_="edge", stroke_width=wide)
    if edge.lost:
        yield element("path", d=path, class_="edge lossy", stroke_width=2)


def _label(
    edge: Edge,
    curve: tuple[float, float, float, float],
    taken: list[tuple[float, float, float, float]],
    narrow: bool,
) -> Iterator[Markup]:
    """The numbers on an edge, at a place where they cover no others; without such a place, none: tables have all."""
    x1, y1, x2, y2 = curve
    said = [
        compact(edge.volume),
        *([f"−{compact(edge.lost)}{'' if narrow else ' lost'}"] if edge.lost else []),
    ]
    wide = max(len(each) for each in said) * 6.4 + 4
    tall = 13.0 * len(said)
    for at in (0.5, 0.36, 0.64, 0.26, 0.74, 0.18, 0.82):
        bent = 3 * at * at - 2 * at * at * at
        x, y = _along(x1, x2, at), y1 + (y2 - y1) * bent
        place = (x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2)
        if place[0] < x1 - 2 or place[2] > x2 + 2 or any(_touch(place, other) for other in taken):
            continue
        taken.append(place)
        yield element("rect", x=place[0], y=place[1], width=wide, height=tall, rx=3, class_="plate")
        for row, each in enumerate(said):
            yield text(x, place[1] + 10.5 + 13.0 * row, each, "loss" if row else "volume", "middle")
        return


def _along(x1: float, x2: float, at: float) -> float:
    """The x of the curve of an edge at a parameter from 0 to 1: its control points are in the middle."""
    half = (x1 + x2) / 2
    rest = 1 - at
    return rest**3 * x1 + 3 * rest * rest * at * half + 3 * rest * at * at * half + at**3 * x2


def _touch(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _first(ranked: Iterable[Any]) -> list[Any]:
    """Those that have a node: all, or all but the rest."""
    every = list(ranked)
    return every if len(every) <= _MAX_NODES else every[: _MAX_NODES - 1]


def _merged(edges: Iterable[tuple[str, str, int, int]]) -> list[Edge]:
    sums: dict[tuple[str, str], list[int]] = {}
    for source, target, volume, lost in edges:
        both = sums.setdefault((source, target), [0, 0])
        both[0] += volume
        both[1] += lost
    return [Edge(*names, *both) for names, both in sorted(sums.items())]
