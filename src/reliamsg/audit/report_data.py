"""The data of the report's plots: a few hundred numbers for journals of any size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from reliamsg.audit.fold import StreamName
from reliamsg.audit.found import Finding
from reliamsg.audit.tasks import Summary
from reliamsg.audit.timeline import Timeline
from reliamsg.audit.verdict import HOPS

__all__ = ["data"]

_MAX_GROUPS_IN_PLOTS = 6
_MAX_GROUPS = 50
_MAX_SITES = 12
_MEASURES = ("published", "late", "lost", "open", "duplicate", "out_of_order")


def data(
    total: Summary,
    evidence: Iterable[Finding],
    latencies: Mapping[tuple[str, str], Mapping[int, int]],
    verdict: Mapping[str, Any],
) -> dict[str, Any]:
    """Small sums for :func:`reliamsg.audit.report.write`, from the judgement, all findings about the `evidence`, the
    histograms in :attr:`reliamsg.audit.clients.Clients.latencies`, and the content of ``verdict.json``.

    At most 120 bins of time, 6 groups with a separate line, 40 streams (those that lack most messages first), 12 sites.
    The messages of a row are spread evenly over its time; those of a finding are placed at their time of publishing.
    """
    delivered = verdict["messages"]["delivered"]
    groups = sorted(delivered, key=lambda name: (-delivered[name], name))[:_MAX_GROUPS]
    found: dict[str, Any] = {"kinds": _kinds(total, evidence, set(groups)), "latency": {}, "confirmed": {}}
    sites = sorted(verdict["sites"])[:_MAX_SITES]
    for (kind, site), counts in sorted(latencies.items()):
        targets = [found["latency"].setdefault(HOPS[kind], {})]
        if kind == "confirmed" and site in sites:
            targets.append(found["confirmed"].setdefault(site, {}))
        for target in targets:
            for bucket, count in sorted(counts.items()):
                target[bucket] = target.get(bucket, 0) + count
    timeline = total.timeline
    if timeline.low is None:
        return found
    shown = groups[:_MAX_GROUPS_IN_PLOTS]
    axis = timeline.axis
    found |= {
        "start_us": axis[0], "width_us": axis[1], "bins": axis[2], "groups_left_out": len(delivered) - len(shown),
    }  # fmt: skip
    for name in _MEASURES:
        found[name] = timeline.bins(timeline.cells.get(name, {}), axis)
    found["delivered"] = {
        group: timeline.bins(timeline.cells.get(f"delivered:{group}", {}), axis) for group in shown
    }
    found["streams"] = [_stream(stream, own, axis) for _, _, stream, own in total.worst_streams]
    return found


def _kinds(total: Summary, evidence: Iterable[Finding], groups: set[str]) -> list[dict[str, Any]]:
    """Findings and their messages by kind and group; only `groups` have lines of their own."""
    sums: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for (kind, group), count in total.kinds.items():
        own = sums[kind, group if group in groups else None]
        own[0] += count
        own[1] += total.messages[kind, group]
    for each in evidence:
        sums[each.kind, None][0] += 1
    return [
        {"kind": kind, "grp": group, "findings": findings, "messages": messages}
        for (kind, group), (findings, messages) in sorted(
            sums.items(), key=lambda item: (item[0][0], item[0][1] or "")
        )
    ]


def _stream(stream: StreamName, own: Timeline, axis: tuple[int, int, int]) -> dict[str, Any]:
    """A stream's published messages, and those missing at the group that lacks most in each bin."""
    missing = [own.bins(cells, axis) for name, cells in own.cells.items() if name != "published"]
    worst = [max(each) for each in zip(*missing, strict=True)] if missing else [0.0] * axis[2]
    return {
        **dict(zip(("producer", "topic", "part"), stream, strict=True)),
        "published": own.bins(own.cells.get("published", {}), axis),
        "missing": worst,
        "missing_total": round(sum(worst)),
    }
