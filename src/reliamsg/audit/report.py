"""The report: one self-contained HTML file, viewable offline.

Names (topics, producers, groups, sites) and quoted files are untrusted: they are escaped, and a content security policy
only allows the two scripts of this module, identified by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from reliamsg.audit.kinds import KINDS, LOSSES
from reliamsg.audit.report_data import data
from reliamsg.audit.report_plots import plots
from reliamsg.audit.report_words import counts, duration, meaning, moment, times

__all__ = ["data", "render", "write"]

_MAX_LINES = 200
"""The maximum number of findings, of lost ranges and of lines about evidence."""
_HOPS = {
    "publish_to_durable": ("publish → durable", "from the call of publish() to the commit in the outbox"),
    "durable_to_confirmed": ("durable → confirmed", "from the commit to a site's confirm"),
    "received_to_delivered": ("received → delivered", "from a site's delivery to the handing out"),
}


def write(path: str | os.PathLike[str], verdict: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write the report to a local file, which is replaced atomically.

    `verdict` is the content of ``verdict.json``, `data` the result of :func:`reliamsg.audit.report_data.data`.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.write_text(render(verdict, data), encoding="utf-8", newline="\n")
    aside.replace(target)


def render(verdict: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The report as text; see :func:`write`."""
    script = _templates().get_template("report.js").render()
    library = _library()
    drawn = plots(verdict, data)
    return (
        _templates()
        .get_template("report.html")
        .render(
            verdict=verdict,
            clients=_clients(verdict["evidence"]["clients"]),
            meaning=meaning(verdict),
            counts=counts(verdict),
            groups=_groups(verdict, data),
            hops=_HOPS,
            findings=_bounded(verdict.get("findings", []), verdict.get("findings_total")),
            lost=_bounded(verdict.get("lost_ranges", []), verdict.get("lost_ranges_total")),
            missing=_bounded(verdict["evidence"].get("missing", [])),
            broken=_bounded(verdict["evidence"].get("broken", [])),
            summary=_summary(data),
            kinds=KINDS,
            plots=drawn,
            figures=_json({plot["id"]: plot["figure"] for plot in drawn}),
            made=moment(datetime.now(UTC).timestamp() * 1e6),
            style=Markup(_templates().get_template("report.css").render()),
            script=Markup(script),
            library=Markup(library if drawn else ""),
            policy=_policy([script, *([library] if drawn else [])]),
        )
    )


def _clients(count: int) -> str:
    return "one client’s journal" if count == 1 else f"{count:,} clients’ journals"


def _groups(verdict: Mapping[str, Any], data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each group: delivered messages, and messages by kind of finding."""
    found: dict[str, dict[str, int]] = {}
    for each in data.get("kinds", []):
        if each["grp"] is not None:
            found.setdefault(each["grp"], {})[each["kind"]] = each["messages"]
    delivered = verdict["messages"]["delivered"]
    names = sorted({*delivered, *found}, key=lambda name: (not found.get(name), name))
    return [
        {
            "name": name,
            "delivered": delivered.get(name, 0),
            "lost": sum(found.get(name, {}).get(kind, 0) for kind in LOSSES),
            "open": sum(found.get(name, {}).get(kind, 0) for kind in ("undelivered", "never_joined")),
            "duplicates": found.get(name, {}).get("duplicate", 0),
            "out_of_order": found.get(name, {}).get("out_of_order", 0),
        }
        for name in names[:_MAX_LINES]
    ]


def _summary(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each kind with findings, in the order of the table of kinds: the numbers of findings and messages."""
    sums: dict[str, list[int]] = {}
    for each in data.get("kinds", []):
        both = sums.setdefault(each["kind"], [0, 0])
        both[0] += each["findings"]
        both[1] += each["messages"]
    return [
        {"kind": kind, "severity": KINDS[kind][0], "meaning": KINDS[kind][1], "findings": n, "messages": m}
        for kind, (n, m) in sorted(sums.items(), key=lambda item: list(KINDS).index(item[0]))
    ]


def _bounded(lines: list[Any], total: int | None = None) -> dict[str, Any]:
    total = max(total or 0, len(lines))
    shown = lines[:_MAX_LINES]
    return {"shown": shown, "total": total, "more": total - len(shown)}


def _json(value: object) -> Markup:
    """JSON for a script element: it contains nothing that ends the element or a line."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    )


@cache
def _library() -> str:
    return str(get_plotlyjs())


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reliamsg.audit"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": lambda n: f"{n:,}", "seconds": duration, "times": times}
    return environment
