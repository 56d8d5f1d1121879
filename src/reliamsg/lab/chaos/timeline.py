"""A picture of a run as a self-contained SVG file: message counts over time, and the events."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from reliamsg.lab.chaos.result import Result, Sample

__all__ = ["timeline"]

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP = 70, 20, 40
_LINE = 18
_COLOURS = ("#1a5fb4", "#2ec27e", "#c01c28", "#e5a50a", "#813d9c", "#63452c")
_DASHES = ("", "6 3")


def timeline(result: Result) -> str:
    """The picture as SVG."""
    samples, events = result.observed.samples, result.observed.events
    end = max([when for when, _ in samples] + [when for when, _ in events] + [1.0])
    top = max([count for _, counts in samples for count in counts.values()] + [1])

    def x(when: float) -> float:
        return _LEFT + when / end * (_WIDTH - _LEFT - _RIGHT)

    def y(count: int) -> float:
        return _TOP + (1 - count / top) * _HEIGHT

    height = _TOP + _HEIGHT + 50 + _LINE * (len(events) + 1)
    title = f"{result.scenario.name}: {'ok' if result.ok else 'NOT OK'}, {result.verdict}, seed {result.seed}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_HEIGHT}" '
        'fill="none" stroke="#999"/>',
        f'<text x="{_LEFT - 5}" y="{_TOP + 10}" text-anchor="end">{top:,}</text>',
        f'<text x="{_LEFT - 5}" y="{_TOP + _HEIGHT}" text-anchor="end">0</text>',
        f'<text x="{_LEFT}" y="{_TOP + _HEIGHT + 16}">0 s</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_TOP + _HEIGHT + 16}" text-anchor="end">{end:.1f} s</text>',
    ]
    for number, (when, what) in enumerate(events, 1):
        at = f"{x(when):.1f}"
        below = _TOP + _HEIGHT + 50 + _LINE * number
        parts += [
            f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{_TOP + _HEIGHT}" stroke="#bbb" stroke-dasharray="2 3"/>',
            f'<text x="{at}" y="{_TOP - 4}" text-anchor="middle" fill="#666">{number}</text>',
            f'<text x="{_LEFT}" y="{below}">{number}. {when:.1f} s: {escape(what)}</text>',
        ]
    for number, name in enumerate(_names(samples)):
        points = " ".join(f"{x(when):.1f},{y(counts.get(name, 0)):.1f}" for when, counts in samples)
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[name.startswith("plain")]
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>',
            f'<text x="{_LEFT + 170 * number}" y="{_TOP + _HEIGHT + 36}" fill="{colour}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _names(samples: Sequence[Sample]) -> list[str]:
    """The names of the counters, in order of first appearance."""
    return list(dict.fromkeys(name for _, counts in samples for name in counts))
