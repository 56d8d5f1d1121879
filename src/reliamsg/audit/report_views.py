"""What the report's sections show, made from ``verdict.json`` and the report's data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from reliamsg.audit.kinds import KINDS, LOSSES, PRECEDENCE
from reliamsg.audit.report_words import meaning, moment, times
from reliamsg.audit.through import offset_of
from reliamsg.terminal import printable

__all__ = ["cards", "changes", "clients", "group_lines", "header", "matrix", "period", "streams", "summary"]

_RANKS: dict[str, int] = {severity: rank for rank, severity in enumerate(PRECEDENCE)}
_MAX_HOLDS = 5
_MAX_ROWS = 25
"""Of a card."""
_OPEN_ROWS = 3
"""Of a card, that are shown at once."""


def header(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict in words, and the time through which it is proven."""
    count = verdict["evidence"]["clients"]
    said = meaning(verdict)
    through = verdict.get("through")
    holds = verdict.get("held_by") or []
    return {
        "sign": {"complete": "✓", "lost": "−", "violated": "✗", "unknown": "?"}[verdict["verdict"]],
        "clients": "one client’s journal" if count == 1 else f"{count:,} clients’ journals",
        "says": said["says"],
        "then": said["then"],
        "dated": "through" in verdict,
        "through": None if through is None else _time(through),
        "holds": [
            {
                "who": f"{each['role']} {each['client']}" if each.get("client") else "",
                "through": _time(each["through"]) if each.get("through") else "",
                "why": each.get("why", ""),
            }
            for each in holds[:_MAX_HOLDS]
        ],
        "more_holds": max(len(holds) - _MAX_HOLDS, 0),
        "window": _window(verdict.get("window")),
    }


def _window(window: Mapping[str, Any] | None) -> str:
    """The verdict for the window in a sentence; empty if it is that for all time."""
    if window is None or (window["since"] is None and not window["accepted"]):
        return ""
    since = "Besides what was accepted" if window["since"] is None else f"Since {_time(window['since'])}"
    counts = f"{window['proven']:,} of {window['enqueued']:,} messages are proven"
    accepted = f", {window['accepted']:,} accepted" if window["accepted"] else ""
    incidents = (
        "1 incident counts" if window["incidents"] == 1 else f"{window['incidents']:,} incidents count"
    )
    return f"{since}: {window['verdict']}. {counts}, {incidents}{accepted}."


def period(times: Sequence[str]) -> str:
    """A time, or two, as the report writes times."""
    return " to ".join(dict.fromkeys(map(_time, times)))


def _time(text: str) -> str:
    """An ISO 8601 time as the report writes times; other text as it is."""
    try:
        return moment(datetime.fromisoformat(text).timestamp() * 1e6)
    except (ValueError, OverflowError):
        return text


def cards(verdict: Mapping[str, Any], changed: Mapping[str, Any] | None, limit: int) -> dict[str, Any]:
    """Incidents with the same cause on one card, the worst first; at most `limit` incidents."""
    state = (changed or {}).get("state", {})
    incidents = verdict.get("incidents", [])
    ordered = sorted(incidents, key=lambda each: (_RANKS[each["severity"]], each["cause"]))
    found = []
    for (severity, cause), group in groupby(ordered, key=lambda each: (each["severity"], each["cause"])):
        own = list(group)
        sizes = [each["messages"] for each in own if "messages" in each]
        found.append(
            {
                "severity": severity,
                "cause": cause,
                "total": len(own),
                "messages": sum(each or 0 for each in sizes),
                "sized": bool(sizes),
                "endless": any(each is None for each in sizes),
                "groups": sorted({name for each in own for name in each["groups"]}),
                "sites": sorted({name for each in own for name in each["sites"]}),
                "kinds": [kind for kind in KINDS if any(kind in each["kinds"] for each in own)],
                "new": sum(state.get(each["id"]) == "new" for each in own),
                "grown": sum(state.get(each["id"]) == "grown" for each in own),
                "incidents": own,
            }
        )
    found.sort(key=lambda card: (_RANKS[card["severity"]], -card["messages"], card["cause"]))
    left = limit
    shown = []
    for card in found:
        rows = card["incidents"][: min(_MAX_ROWS, left)]
        if not rows:
            break
        left -= len(rows)
        lines = [{**each, "state": state.get(each["id"], "")} for each in rows]
        shown.append(
            {
                **card,
                "first": lines[:_OPEN_ROWS],
                "others": lines[_OPEN_ROWS:],
                "more": card["total"] - len(rows),
            }
        )
    total = max(verdict.get("incidents_total", 0), len(incidents))
    return {"shown": shown, "total": total, "more": len(found) - len(shown), "known": "incidents" in verdict}


def changes(changed: Mapping[str, Any] | None, verdict: Mapping[str, Any]) -> dict[str, Any] | None:
    """The comparison with the earlier audit; None if there was none."""
    if changed is None:
        return None
    states = list(changed["state"].values())
    return {
        **changed,
        "written": moment(changed["written_us"]),
        "through": None if changed["through"] is None else _time(changed["through"]),
        "now_through": None if verdict.get("through") is None else _time(verdict["through"]),
        "new": states.count("new"),
        "grown": states.count("grown"),
        "counts": [
            {**each, "name": each["name"].replace("_", " "), "change": each["now"] - each["before"]}
            for each in changed["counts"]
            if each["now"] or each["before"]
        ],
        "gone_shown": changed["gone"][:20],
    }


def group_lines(verdict: Mapping[str, Any], data: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """A line for each group: delivered messages, and messages by kind of finding. Groups with findings come first."""
    found: dict[str, dict[str, int]] = {}
    for each in data.get("kinds", []):
        if each["grp"]:
            found.setdefault(each["grp"], {})[each["kind"]] = each["messages"]
    delivered = verdict["messages"]["delivered"]
    names = sorted({*delivered, *found}, key=lambda name: (not found.get(name), name))

    def messages(name: str, *kinds: str) -> int:
        return sum(found.get(name, {}).get(kind, 0) for kind in kinds)

    return [
        {
            "name": name,
            "delivered": delivered.get(name, 0),
            "lost": messages(name, *LOSSES),
            "open": messages(name, "undelivered", "never_joined"),
            "duplicates": messages(name, "duplicate"),
            "out_of_order": messages(name, "out_of_order"),
        }
        for name in names[:limit]
    ]


def summary(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each kind with findings, in the order of the table of kinds: the numbers of findings and messages."""
    sums: dict[str, list[int]] = {}
    for each in data.get("kinds", []):
        both = sums.setdefault(each["kind"], [0, 0])
        both[0] += each["findings"]
        both[1] += each["messages"]
    places = {kind: place for place, kind in enumerate(KINDS)}
    return [
        {"kind": kind, "severity": KINDS[kind][0], "meaning": KINDS[kind][1], "findings": n, "messages": m}
        for kind, (n, m) in sorted(sums.items(), key=lambda item: places[item[0]])
    ]


def matrix(verdict: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Sites, each with its numbers at every group that the matrix has a column for."""
    received = {
        (site, group): {"received": count, "lost": lost, "alone": alone}
        for site, group, count, lost, alone in data.get("flows", {}).get("received", [])
    }
    groups = [each["name"] for each in group_lines(verdict, data, 12)]
    nothing = {"received": 0, "lost": 0, "alone": 0}
    sites = sorted(verdict["sites"])[:12]
    return {
        "groups": groups,
        "rows": [
            {
                "site": site,
                "all": verdict["sites"][site],
                "cells": [received.get((site, group), nothing) for group in groups],
            }
            for site in sites
        ],
        "more_groups": len(verdict["messages"]["delivered"]) - len(groups),
        "more_sites": len(verdict["sites"]) - len(sites),
    }


def streams(data: Mapping[str, Any], most_bytes: int) -> dict[str, Any]:
    """The worst streams for the page's search, with names as numbers; as many as fit."""
    names: dict[str, int] = {}
    shown: list[str] = []
    rows: list[list[int]] = []
    room = most_bytes
    every = data.get("streams", [])
    for producer, topic, part, published, missing, wrong, rank, group in every:
        new = [name for name in dict.fromkeys((producer, topic, group)) if name not in names]
        words = [printable(name) for name in new]
        room -= sum(len(json.dumps(word)) + 1 for word in words)
        row = [*(names.get(name, 0) for name in (producer, topic)), part, published, missing, wrong, rank, 0]
        room -= len(json.dumps(row))
        if room < 0:
            break
        for name in new:
            names[name] = len(names)
        shown += words
        rows.append([names[producer], names[topic], part, published, missing, wrong, rank, names[group]])
    return {
        "names": shown,
        "rows": rows,
        "severities": [*PRECEDENCE, ""],
        "left_out": len(every) - len(rows) + data.get("streams_left_out", 0),
        "out": data.get("out", ""),
    }


def clients(verdict: Mapping[str, Any], data: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Clients with the time through which each is proven; first those that hold it up or lack evidence."""
    proven: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in verdict.get("clients", []):
        key = (each["role"], each["client"])
        if key not in proven or _earlier(each, proven[key]):
            proven[key] = each
    known = {(each["role"], each["client"]): each for each in data.get("clients", [])}
    rows = [_client(*key, known.get(key, {}), proven.get(key, {})) for key in {**known, **proven}]
    held = {(each.get("role"), each.get("client")) for each in verdict.get("held_by") or []}
    for row in rows:
        row["holds"] = (row["role"], row["client"]) in held
    rows.sort(
        key=lambda row: (
            not row["holds"],
            row["sound"],
            row["closed"],
            row["proven"],
            row["role"],
            row["client"],
        )
    )
    total = max(len(rows), data.get("clients_total", 0))
    shown = rows[:limit]
    return {
        "shown": shown,
        "more": total - len(shown),
        "total": times(total, "client"),
        **{name: any(row[name] for row in shown) for name in ("version", "proven", "offset", "why")},
    }


def _client(role: str, client: str, known: Mapping[str, Any], proven: Mapping[str, Any]) -> dict[str, Any]:
    offset = proven.get("offset")
    return {
        "role": role,
        "client": client,
        "rows": known.get("rows"),
        "last": moment(known["last_us"]) if known.get("last_us") else "",
        "closed": proven.get("closed", known.get("closed", False)),
        "sound": known.get("sound", True),
        "proven": _time(proven["proven"]) if proven.get("proven") else "",
        "version": proven.get("version") or "",
        "offset": "" if offset is None else str(offset_of(offset)),
        "why": proven.get("why") or "",
    }


def _earlier(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether less is proven of one history than of another one of the same client."""
    return (one.get("proven") or "") < (other.get("proven") or "")
