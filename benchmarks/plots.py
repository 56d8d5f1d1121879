"""Plots of results: ``python -m benchmarks.plots RESULTS.jsonl DIRECTORY`` writes an SVG for each kind with results.

``benchmark-ratios.svg``: the distance of each ratio from its target. ``benchmark-latency.svg``: percentiles of both.
``benchmark-soak.svg``: resident memory over time. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["draw"]

WIDTH = 760
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .faint { fill: #57606a } .rule { stroke: #57606a }
.grid { stroke: #d0d7de } .good { fill: #1a7f37 } .bad { fill: #cf222e } .ours { fill: #0969da } .peer { fill: #8c959f }
.line { fill: none; stroke-width: 2 } .ours-line { stroke: #0969da } .peer-line { stroke: #9a6700 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .faint { fill: #9198a1 } .rule { stroke: #9198a1 } .grid { stroke: #3d444d }
.good { fill: #3fb950 } .bad { fill: #f85149 } .ours { fill: #4493f8 } .peer { fill: #656c76 }
.ours-line { stroke: #4493f8 } .peer-line { stroke: #d29922 } }
"""

Line = Mapping[str, Any]


def draw(lines: Iterable[Line]) -> dict[str, str]:
    """The plots by file name, as far as these results have data."""
    by_name = {line["name"]: line for line in lines if "error" not in line}
    found = {}
    if ratios := [line for line in by_name.values() if "ratio" in line and "target" in line]:
        found["benchmark-ratios.svg"] = _ratios(ratios)
    if "latency" in by_name:
        found["benchmark-latency.svg"] = _latency(by_name["latency"])
    if "soak" in by_name:
        found["benchmark-soak.svg"] = _soak(by_name["soak"])
    return found


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        + "\n".join([_text(10, 20, title), *parts])
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width):.1f}" height="{height}" class="{kind}"/>'


def _ratios(lines: Sequence[Line]) -> str:
    """One bar per benchmark, from the target (1) to the ratio in units of it, on a logarithmic scale; the spread is a
    line."""
    left, right, step = 190, WIDTH - 150, 30
    worth = {
        line["name"]: [_of_target(line, ratio) for ratio in (line["ratio"], *line["spread"])]
        for line in lines
    }
    far = max(2.0, *(max(value, 1 / value) for values in worth.values() for value in values if value > 0))

    def x(value: float) -> float:
        return (left + right) / 2 + (right - left) / 2 * math.log(max(value, 1 / far)) / math.log(far)

    bottom = 40 + step * len(lines)
    parts = [_rule(x(1), 32, x(1), bottom, "rule"), _text(x(1), bottom + 18, "target", "faint", "middle")]
    parts += [
        _text(x(value), bottom + 18, name, "faint", "middle")
        for value, name in ((1 / far, f"{1 / far:.2g} of it"), (far, f"{far:.2g} times"))
    ]
    for number, line in enumerate(lines):
        y = 40 + step * number
        value, *spread = worth[line["name"]]
        low, high = sorted(spread)
        parts += [
            _text(left - 12, y + 15, line["name"], anchor="end"),
            _box(min(x(1), x(value)), y + 4, abs(x(value) - x(1)), 14, "good" if line["met"] else "bad"),
            _rule(x(low), y + 11, x(high), y + 11, "rule"),
            _text(right + 12, y + 15, f"{line['ratio']:.3g} (target {line['target']:g})", "faint"),
        ]
    return _svg(
        bottom + 30, "Ratios against their targets: to the right is better; the line is the spread", parts
    )


def _of_target(line: Line, ratio: float) -> float:
    ratio = max(ratio, 1e-6)
    return float(line["target"] / ratio if line.get("direction") == "most" else ratio / line["target"])


def _latency(line: Line) -> str:
    """Two bars per percentile, in milliseconds."""
    left, right, step = 80, WIDTH - 90, 46
    figures: Mapping[str, Line] = line["percentiles"]
    most = max(max(figure["ours"], figure["peer"]) for figure in figures.values())
    parts = []
    for number, (name, figure) in enumerate(figures.items()):
        y = 40 + step * number
        parts.append(_text(left - 12, y + 22, name, anchor="end"))
        for place, side in enumerate(("ours", "peer")):
            width = (right - left) * figure[side] / most
            parts += [
                _box(left, y + 18 * place, width, 15, side),
                _text(left + width + 6, y + 12 + 18 * place, f"{figure[side]:.3g} ms", "faint"),
            ]
    bottom = 40 + step * len(figures)
    parts += [
        _box(left, bottom + 4, 12, 12, "ours"), _text(left + 18, bottom + 15, "reliamsg, two sites, durable on return"),
        _box(left + 300, bottom + 4, 12, 12, "peer"), _text(left + 318, bottom + 15, "paho-mqtt, QoS 1, one broker"),
    ]  # fmt: skip
    return _svg(bottom + 30, "From publish() to the application: 1,500 messages/s from 50 threads", parts)


def _soak(line: Line) -> str:
    """Resident memory of both over time."""
    left, right, top, bottom = 60, WIDTH - 40, 40, 260
    curves: Mapping[str, Sequence[tuple[float, float]]] = line["resident_mb"]
    last = max(x for curve in curves.values() for x, _ in curve)
    most = max(y for curve in curves.values() for _, y in curve) * 1.1

    def at(point: tuple[float, float]) -> str:
        return (
            f"{left + (right - left) * point[0] / last:.1f},{bottom - (bottom - top) * point[1] / most:.1f}"
        )

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - (bottom - top) * share
        parts += [_rule(left, y, right, y), _text(left - 8, y + 4, f"{most * share:.0f}", "faint", "end")]
        parts.append(
            _text(
                left + (right - left) * share, bottom + 18, f"{last * share / 60:.1f} min", "faint", "middle"
            )
        )
    for number, (name, curve) in enumerate(curves.items()):
        kind = ("ours", "peer")[number]
        parts.append(f'<polyline points="{" ".join(map(at, curve))}" class="line {kind}-line"/>')
        x = left + 250 * number
        parts += [
            _rule(x, bottom + 34, x + 20, bottom + 34, f"line {kind}-line"),
            _text(x + 26, bottom + 38, f"{name}: {line['slopes'][name]:+.2f} MB a minute"),
        ]
    return _svg(bottom + 50, f"Resident memory (MB) at {line['rate']:,.0f} messages/s", parts)


def main(results: str, directory: str) -> None:
    lines = [json.loads(line) for line in Path(results).read_text().splitlines() if line.startswith("{")]
    for name, picture in draw(lines).items():
        path = Path(directory) / name
        path.write_text(picture)
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
