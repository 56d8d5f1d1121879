"""Compares a verdict with that of an earlier audit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from reliamsg.audit.accepted import Brief
from reliamsg.audit.kinds import Severity

__all__ = ["Earlier", "compare", "read_earlier"]


class _Incident(msgspec.Struct):
    id: str
    severity: Severity
    cause: str
    producer: str = ""
    topic: str = ""
    partition: int = 0
    client: str = ""
    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    messages: int | None = None
    lost: int = 0
    groups: list[str] = []


class _Verdict(msgspec.Struct):
    verdict: str
    messages: dict[str, Any]
    through: str | None = None
    incidents: list[_Incident] | None = None
    incidents_total: int = 0


class Earlier(msgspec.Struct):
    """The verdict of an earlier audit."""

    found: _Verdict
    written_us: int
    """When it was written, in µs since 1970."""


def read_earlier(path: Path) -> Earlier | None:
    """Read ``verdict.json``; None if it can't be read, or is none."""
    try:
        data = path.read_bytes()
        written_us = os.stat(path).st_mtime_ns // 1000
        return Earlier(msgspec.json.decode(data, type=_Verdict), written_us)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None  # the comparison is a courtesy: an audit does not fail because of an older file


def compare(earlier: Earlier, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """What changed since the earlier audit, as plain data.

    `state` has ``new`` or ``grown`` for the ids of incidents, `gone` earlier incidents that are not there any more.
    Both are empty if the earlier verdict has no incidents (`comparable` is False). If either audit has more incidents
    than its verdict lists, those that are not listed are not compared (`partial` is True).
    """
    found = earlier.found
    now = {each["id"]: each for each in verdict.get("incidents", [])}
    before = {each.id: each for each in found.incidents or ()}
    state: dict[str, str] = {}
    for name, each in now.items() if found.incidents is not None else ():
        known = before.get(name)
        if known is None:
            state[name] = "new"
        elif not _brief(each).is_within(_brief(msgspec.to_builtins(known))):
            state[name] = "grown"
    gone = [msgspec.to_builtins(each) for name, each in before.items() if name not in now]
    counts = [
        {"name": name, "before": old, "now": new}
        for name, new in verdict["messages"].items()
        if isinstance(new, int) and isinstance(old := found.messages.get(name), int)
    ]
    return {
        "written_us": earlier.written_us,
        "verdict": found.verdict,
        "through": found.through,
        "counts": counts,
        "comparable": found.incidents is not None,
        "partial": found.incidents_total > len(before) or verdict.get("incidents_total", 0) > len(now),
        "state": state,
        "gone": gone,
    }


def _brief(incident: Mapping[str, Any]) -> Brief:
    messages = incident.get("messages") if incident.get("first") is not None else 0
    return Brief(
        incident["id"], incident["severity"], messages, incident.get("lost", 0), tuple(incident["groups"])
    )
