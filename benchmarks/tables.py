"""Results for readers: a row each, and the table of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["markdown", "row"]


def row(line: Mapping[str, Any]) -> str:
    """One line of a result for a terminal."""
    if "error" in line:
        return f"{line['name']:20} FAILED  {line['error']}"
    return f"{line['name']:20} {'met   ' if line['met'] else 'MISSED'}  " + "  ".join(
        part for part in (_figures(line), _outcome(line), _cost(line)) if part
    )


def _figures(line: Mapping[str, Any]) -> str:
    unit = f" {line['unit']}" if line.get("unit") else ""
    found = f"ours {shown(line['ours'])}{unit}" if "ours" in line else ""
    return found + (f", peer {shown(line['peer'])}" if "peer" in line else "")


def _outcome(line: Mapping[str, Any]) -> str:
    sign = "at most" if line.get("direction") == "most" else "at least"
    target = f"(target {sign} {shown(line['target'])})" if "target" in line else ""
    if "ratio" in line:
        low, high = line["spread"]
        return f"ratio {shown(line['ratio'])} [{shown(low)} to {shown(high)}] {target}"
    if "above" in line:
        low, high = line["spread"]
        return f"{shown(line['above'])} above [{shown(low)} to {shown(high)}] {target}"
    if "rates" in line:
        return ", ".join(f"{name} {shown(rate)}" for name, rate in line["rates"].items())
    return target


def _cost(line: Mapping[str, Any]) -> str:
    units = {"cpu_us_per_message": "us cpu/message", "rss_mb": "MB"}
    found = [
        " ".join(
            [
                side,
                *(
                    f"{line[f'{side}_{what}']:g} {unit}"
                    for what, unit in units.items()
                    if f"{side}_{what}" in line
                ),
            ]
        )
        for side in ("ours", "peer")
        if f"{side}_rss_mb" in line
    ]
    return "; ".join(found)


def shown(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def markdown(lines: Iterable[Mapping[str, Any]]) -> str:
    """The table for docs/reference/benchmarks.md."""
    rows = [
        "| benchmark | unit | ours | peer | ratio or difference (spread) | target | met | CPU µs each | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        if "error" in line:
            continue
        ratio = ""
        if "ratio" in line:
            ratio = f"**{shown(line['ratio'])}** ({shown(line['spread'][0])} to {shown(line['spread'][1])})"
        if "above" in line:
            ratio = f"+ **{shown(line['above'])}** ({shown(line['spread'][0])} to {shown(line['spread'][1])})"
        sign = "≤" if line.get("direction") == "most" else "≥"
        cells = [
            line["name"],
            line.get("unit", ""),
            *(shown(line[side]) if side in line else "" for side in ("ours", "peer")),
            ratio,
            f"{sign} {shown(line['target'])}" if "target" in line else "",
            "yes" if line["met"] else "**no**",
            _both(line, "cpu_us_per_message"),
            _both(line, "rss_mb"),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _both(line: Mapping[str, Any], what: str) -> str:
    found = [f"{line[f'{side}_{what}']:g}" for side in ("ours", "peer") if f"{side}_{what}" in line]
    return " / ".join(found)
