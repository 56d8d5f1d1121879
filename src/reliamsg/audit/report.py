"""The report: one self-contained HTML file of at most 1 MB, viewable offline.

Names (topics, producers, groups, sites) and quoted files are untrusted. They are escaped, and what is invisible in them
or turns text around is shown as on the command line (``\\u202e``). A content security policy only allows the script and
the style sheet of this module, identified by their hashes. Pictures are drawn here, twice: for wide and for narrow
screens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reliamsg.audit.kinds import KINDS
from reliamsg.audit.report_charts import MARKS, latency_chart, time_chart
from reliamsg.audit.report_data import data
from reliamsg.audit.report_map import map_picture, topology
from reliamsg.audit.report_views import (
    cards,
    changes,
    clients,
    group_lines,
    header,
    matrix,
    period,
    streams,
    summary,
)
from reliamsg.audit.report_words import compact, counts, duration, grouped, moment, quantile, times
from reliamsg.pages import content_policy
from reliamsg.terminal import printable

__all__ = ["MAX_BYTES", "data", "render", "write"]

MAX_BYTES = 1_000_000
"""The maximum size of a report."""
_WIDE, _NARROW = 960.0, 358.0
"""Widths of pictures: of the page's column, and of a phone's screen without margins."""
_HOPS = {
    "publish_to_durable": ("publish → durable", "from the call of publish() to the commit in the outbox"),
    "durable_to_confirmed": ("durable → confirmed", "from the commit to a site’s confirm"),
    "received_to_delivered": ("received → delivered", "from a site’s delivery to that to the application"),
    "publish_to_acknowledged": (
        "publish → acknowledged",
        "from publish() to a group’s acknowledgement, by two clocks: the group’s minus the producer’s",
    ),
}
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class _Limits:
    """How many lines a report has at most."""

    incidents: int
    findings: int
    clients: int
    stream_bytes: int
    """The size of the list of streams."""

    def halved(self) -> _Limits:
        """Half of everything."""
        return _Limits(
            *(each // 2 for each in (self.incidents, self.findings, self.clients, self.stream_bytes))
        )


_LIMITS = _Limits(300, 200, 200, 420_000)


def write(path: str | os.PathLike[str], verdict: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write the report to a local file, which is replaced atomically.

    `verdict` is the content of ``verdict.json``, `data` the result of :func:`reliamsg.audit.report_data.data`.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.write_text(render(verdict, data), encoding="utf-8", newline="\n")
    aside.replace(target)


def render(verdict: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The report as text; see :func:`write`. With very long names it has fewer lines, so that it keeps its size."""
    limits = _LIMITS
    while True:
        page = _render(verdict, data, limits)
        if len(page.encode("utf-8", "surrogatepass")) <= MAX_BYTES or not limits.incidents:
            return page.encode("utf-8", "replace").decode()
        limits = limits.halved()


def _render(verdict: Mapping[str, Any], data: Mapping[str, Any], limits: _Limits) -> str:
    templates = _templates()
    script, style = (templates.get_template(f"report.{name}").render() for name in ("js", "css"))
    missing = {
        each["name"]: each["lost"] + each["open"] for each in group_lines(verdict, data, len(KINDS) * 100)
    }
    evidence = verdict["evidence"]
    time = data.get("time")
    return templates.get_template("report.html").render(
        verdict=verdict,
        head=header(verdict),
        counts=counts(verdict),
        cards=cards(verdict, data.get("changes"), limits.incidents),
        changes=changes(data.get("changes"), verdict),
        map=_map(verdict, data, missing),
        time=_drawn(lambda width: time_chart(time, width)) if time else None,
        series=_json(_series(time)) if time else None,
        flow=time,
        groups=group_lines(verdict, data, 50),
        hops=_HOPS,
        latencies=_latencies(data),
        matrix=matrix(verdict, data),
        streams=_json(streams(data, limits.stream_bytes)),
        stream_lines=streams(data, limits.stream_bytes),
        clients=clients(verdict, data, limits.clients),
        summary=summary(data),
        findings=_bounded(verdict.get("findings", []), limits.findings, verdict.get("findings_total")),
        missing=_bounded(evidence.get("missing", []), limits.findings),
        broken=_bounded(evidence.get("broken", []), limits.findings),
        made=moment(datetime.now(UTC).timestamp() * 1e6),
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(script, style),
    )


def _drawn(draw: Any) -> dict[str, Markup]:
    return {"wide": draw(_WIDE), "narrow": draw(_NARROW)}


def _map(
    verdict: Mapping[str, Any], data: Mapping[str, Any], missing: Mapping[str, int]
) -> dict[str, Markup] | None:
    flows = data.get("flows")
    if not flows or not verdict["sites"]:
        return None
    found = topology(flows, verdict, missing)
    return _drawn(lambda width: map_picture(found, width))


def _latencies(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Quantiles by group and by site, each with a picture."""
    found = []
    for title, by, name in (
        ("Publish to acknowledged, by group", "group", "acknowledged"),
        ("Received to delivered, by group", "group", "delivered"),
        ("Durable to confirmed, by site", "site", "confirmed"),
    ):
        rows = [
            (key, {label: quantile(buckets, share) for label, share in _QUANTILES.items()})
            for key, each in data.get(name, {}).items()
            if (buckets := _buckets(each))
        ]
        if rows:
            picture = _drawn(lambda width, rows=rows[:12]: latency_chart(rows, width))
            found.append({"title": title, "name": name, "by": by, "rows": rows, "picture": picture})
    return found


def _buckets(histogram: Mapping[Any, int]) -> dict[int, int]:
    """A histogram with numbers as keys (strings in JSON), without empty buckets."""
    return {int(each): count for each, count in histogram.items() if count > 0 and 0 <= int(each) < 256}


def _series(time: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that the chart over time shows under the pointer."""
    return {
        "start": time["start_us"], "width": time["width_us"], "bins": time["bins"],
        "rows": [
            ["published", time["published"]],
            *([f"delivered to {_named(group)}", counts] for group, counts in time["delivered"].items()),
            *([f"delivered again to {_named(group)}", counts]
              for group, counts in time["redelivered"].items() if any(counts)),
            *([f"lag of {_named(group)}", counts] for group, counts in time["lag"].items()),
            *([MARKS[name], counts] for name, counts in time["marks"].items() if any(counts)),
        ],
        "outages": [[_named(site), [round(100 * each) for each in shares]] for site, shares in time["outages"].items()],
    }  # fmt: skip


def _named(name: str) -> str:
    return printable(_short(name, 60))


def _bounded(lines: Sequence[Any], limit: int, total: int | None = None) -> dict[str, Any]:
    total = max(total or 0, len(lines))
    shown = lines[:limit]
    return {"shown": shown, "total": total, "more": total - len(shown)}


def _json(value: object) -> Markup:
    """JSON for a script element: it contains nothing that ends the element or a line."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _short(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _visible(value: object) -> object:
    """A value of an expression in a template. A name can neither hide a part of itself, nor turn the text around."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reliamsg.audit"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": lambda n: f"{n:,}", "seconds": duration, "times": times, "moment": moment, "compact": compact,
        "grouped": grouped, "short": _short,
        "path": json.dumps, "period": period,
    }  # fmt: skip
    return environment
