"""The data of the report: numbers of bounded size for journals of any size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from reliamsg.audit.changes import Earlier, compare
from reliamsg.audit.clients import Clients, JournalParts
from reliamsg.audit.found import Finding
from reliamsg.audit.outages import outages
from reliamsg.audit.overview import MAX_STREAMS, Overview, worst_lines
from reliamsg.audit.tasks import Summary
from reliamsg.audit.verdict import HOPS

__all__ = ["data"]

_MAX_LINES = 6
"""Groups with a line of their own over time."""
_MAX_GROUPS = 50
_MAX_SITES = 12
_MAX_CLIENTS = 1_000
_MARKS = ("late", "lost", "open", "duplicate", "out_of_order")


def data(
    total: Summary,
    evidence: Iterable[Finding],
    clients: Clients,
    journals: Sequence[JournalParts],
    verdict: Mapping[str, Any],
    earlier: Earlier | None = None,
) -> dict[str, Any]:
    """The data for :func:`reliamsg.audit.report.write`, from the judgement, all findings about the `evidence`, all
    clients and their journals, the content of ``verdict.json``, and that of an earlier audit.

    At most 120 bins of time, 6 groups with lines of their own, 50 groups and 12 sites in tables, 5,000 streams and
    1,000 clients. The messages of a row are spread evenly over its time; those of a finding are placed at the time at
    which they were published.
    """
    delivered = verdict["messages"]["delivered"]
    groups = sorted(delivered, key=lambda name: (-delivered[name], name))[:_MAX_GROUPS]
    sites = sorted(verdict["sites"])[:_MAX_SITES]
    lines = worst_lines(total.overview.lines)
    return {
        "kinds": _kinds(total, evidence, set(groups)),
        **_latencies(clients.latencies, journals, groups, sites),
        "time": _time(total.overview, groups, sites, journals),
        "flows": _flows(total.overview),
        "streams": [
            [*each.stream, each.published, each.missing, each.wrong, each.rank, each.group] for each in lines
        ],
        "streams_left_out": max(verdict["streams"] - MAX_STREAMS, 0),
        **_clients(clients, journals),
        "changes": None if earlier is None else compare(earlier, verdict),
    }


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


def _latencies(
    latencies: Mapping[tuple[str, str], Mapping[int, int]],
    journals: Iterable[JournalParts],
    groups: Sequence[str],
    sites: Sequence[str],
) -> dict[str, dict[str, dict[int, int]]]:
    """Histograms by hop, of confirms by site, and of deliveries and acknowledgements by group."""
    hops: dict[str, Counter[int]] = {}
    confirmed: dict[str, Counter[int]] = {}
    for (kind, site), counts in sorted(latencies.items()):
        hops.setdefault(HOPS[kind], Counter()).update(counts)
        if kind == "confirmed" and site in sites:
            confirmed.setdefault(site, Counter()).update(counts)
    found = {"latency": hops, "confirmed": confirmed}
    for kind in ("delivered", "acknowledged"):
        by_group = found[kind] = {}
        for journal in journals:
            if journal.role == "group" and journal.client in groups:
                for part in journal.parts:
                    by_group.setdefault(journal.client, Counter()).update(part.latencies.get((kind, ""), {}))
    return {
        name: {key: dict(sorted(counts.items())) for key, counts in own.items() if counts}
        for name, own in found.items()
    }


def _time(
    overview: Overview, groups: Sequence[str], sites: Sequence[str], journals: Iterable[JournalParts]
) -> dict[str, Any] | None:
    """Messages in bins of time; None without any."""
    timeline = overview.timeline
    if timeline.low is None:
        return None
    axis = timeline.axis
    shown = sorted(groups[:_MAX_LINES])
    found: dict[str, Any] = {
        "start_us": axis[0], "width_us": axis[1], "bins": axis[2], "groups_left_out": len(groups) - len(shown),
        "published": timeline.bins("published", axis),
        "marks": {name: timeline.bins(name, axis) for name in _MARKS},
        "outages": outages(journals, sites, axis),
    }  # fmt: skip
    for name in ("delivered", "redelivered"):
        found[name] = {group: timeline.bins(f"{name}:{group}", axis) for group in shown}
    found["lag"] = {
        group: [
            max(due - done, 0)
            for due, done in zip(
                accumulate(timeline.bins(f"due:{group}", axis)),
                accumulate(timeline.bins(f"done:{group}", axis)),
                strict=True,
            )
        ]
        for group in shown
    }
    return found


def _flows(overview: Overview) -> dict[str, Any]:
    """Volume and loss from producers to sites, and from sites to groups."""
    return {
        "producers": [
            [name, enqueued, overview.pending[name], overview.missing[name]]
            for name, enqueued in overview.enqueued.items()
        ],
        "confirmed": [[*names, count] for names, count in sorted(overview.confirmed.items())],
        "received": [
            [*names, overview.received[names], overview.lost[names], overview.alone[names]]
            for names in sorted({*overview.received, *overview.lost})
        ],
        "repaired": {group: count for group, count in sorted(overview.repaired.items()) if count},
    }


def _clients(clients: Clients, journals: Iterable[JournalParts]) -> dict[str, Any]:
    """What the journals show of each client; those whose evidence is not whole come first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in journals:
        journal = clients.context.journals[each.name]
        own = found.setdefault(
            (each.role, each.client),
            {
                "role": each.role, "client": each.client, "rows": 0, "last_us": 0, "closed": True, "sound": True,
            },
        )  # fmt: skip
        own["rows"] += sum(part.last_lsn - part.first_lsn + 1 for part in each.parts)
        own["last_us"] = max([own["last_us"], *(opening.changed_us for opening in each.openings)])
        own["closed"] &= journal.finished
        own["sound"] &= not journal.broken
    ordered = sorted(
        found.values(), key=lambda each: (each["sound"], each["closed"], each["role"], each["client"])
    )
    return {"clients": ordered[:_MAX_CLIENTS], "clients_total": len(ordered)}
