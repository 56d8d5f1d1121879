"""The report's plots, as plotly figures in plain data, each with a sentence that summarizes it.

Colours are names of the style sheet (``--ink``), which the page's script resolves, so that plots follow its theme.
Plotly interprets HTML in texts: names are escaped for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from reliamsg.audit.report_words import duration, grouped, moment, times

__all__ = ["plots"]

_LINES = ("--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_EVENTS = {
    "lost": ("lost or declared", "--lost"),
    "duplicate": ("duplicated", "--violated"),
    "out_of_order": ("out of order", "--line-6"),
    "open": ("still open", "--unknown"),
    "late": ("late", "--line-3"),
}
_HOPS = {
    "publish_to_durable": "publish → durable",
    "durable_to_confirmed": "durable → confirmed",
    "received_to_delivered": "received → delivered",
}
_NAME_LENGTH = 40
_MAX_SITES = 12


def plots(verdict: Mapping[str, Any], data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`id`, `title`, `says` and `figure` of each plot with data."""
    found = [_flow(data), _completeness(data), _latency(data), _confirms(data), _saved(verdict)]
    return [plot for plot in found if plot is not None]


def _flow(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Published, delivered and problematic messages over time."""
    if not data.get("bins"):
        return None
    starts = _times(data)
    per, unit = _per(data["width_us"])
    lines = [("published", data["published"], "--ink", "solid", 3.5)]
    lines += [
        (f"delivered: {_text(group)}", counts, _LINES[i], _DASHES[i], 1.75)
        for i, (group, counts) in enumerate(data["delivered"].items())
    ]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": starts,
            # The last step ends at the end of its bin.
            "y": [_short(count * per) for count in (*counts, counts[-1])],
            "name": name,
            "line": {"shape": "hv", "color": color, "width": width, "dash": dash},
            "opacity": 0.4 if width > 2 else 1,
        }
        for name, counts, color, dash, width in lines
    ]
    wrong = {what: data[what] for what in _EVENTS if sum(data[what])}
    traces += [
        {
            "type": "bar",
            "x": starts[:-1],
            "y": [_short(count) for count in counts],
            "name": _EVENTS[what][0],
            "marker": {"color": _EVENTS[what][1]},
            "yaxis": "y2",
            "offset": 0,
            "width": data["width_us"] / 1000,
        }
        for what, counts in wrong.items()
    ]
    layout: dict[str, Any] = {
        "yaxis": {
            "title": {"text": f"messages per {unit}"},
            "domain": [0.36 if wrong else 0, 1],
            "rangemode": "tozero",
        },
        "xaxis": {
            "type": "date",
            "anchor": "y2" if wrong else "y",
            "ticks": "outside",
            "tickcolor": "--paper",
        },
        "barmode": "stack",
        "height": 460 if wrong else 340,
    }
    if wrong:
        layout["yaxis2"] = {"title": {"text": "messages"}, "domain": [0, 0.26], "rangemode": "tozero"}
    told = ", ".join(f"{grouped(round(sum(counts)))} {_EVENTS[what][0]}" for what, counts in wrong.items())
    left = data.get("groups_left_out", 0)
    step = data["width_us"] / 1e6
    says = (
        f"{grouped(round(sum(data['published'])))} messages published from {moment(data['start_us'])}"
        f" within {duration(data['bins'] * step)}, shown in steps of {duration(step)}"
        f" by the clients' own clocks. "
        + (f"Below the lines: {told}." if told else "Nothing lost, duplicated, out of order, open or late.")
        + (f" {times(left, 'group')} more, with fewer messages, not drawn." if left > 0 else "")
    )
    return _plot("flow", "Published against delivered", says, traces, layout)


def _completeness(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """A line per stream: the share of published messages in a bin that is not missing at the group that lacks most."""
    streams = data.get("streams") or []
    if not streams:
        return None
    names = [f"{_text(each['producer'], 18)} / {_text(each['topic'], 18)}" for each in streams]
    names = [
        name + (f" ~{each['part']}" if each["part"] else "")
        for name, each in zip(names, streams, strict=True)
    ]
    # Truncated names may be equal, but plotly's categories must be unique.
    names = [name + "\u200b" * names[:i].count(name) for i, name in enumerate(names)]
    shares = [
        [
            _short(max(0.0, 1 - missing / published) * 100) if published else None
            for published, missing in zip(each["published"], each["missing"], strict=True)
        ]
        for each in streams
    ]
    lacking = [each for each in streams if each["missing_total"]]
    says = (
        f"{times(len(lacking), 'stream')} of those shown"
        f" {'lacks' if len(lacking) == 1 else 'lack'} messages; the worst comes first: "
        f"{_plain(lacking[0]['producer'])} / {_plain(lacking[0]['topic'])},"
        f" {grouped(lacking[0]['missing_total'])} missing."
        if lacking
        else f"Nothing is missing in the {times(len(streams), 'stream')} shown."
    )
    trace = {
        "type": "heatmap",
        "x": _times(data),
        "y": names,
        "z": shares,
        "zmin": 0,
        "zmax": 100,
        "colorscale": [[0, "--lost"], [0.95, "--unknown"], [0.999, "--faint"], [1, "--heat"]],
        "xgap": 1 if data["bins"] <= 60 else 0,
        "ygap": 2,
        "showscale": False,
        "hovertemplate": "%{z:.2f} % arrived<br>%{x}<extra></extra>",
    }
    layout = {
        "xaxis": {"type": "date"},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "height": 90 + 22 * len(streams),
    }
    return _plot("completeness", "Completeness of each stream", says, [trace], layout)


def _latency(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The distribution of the latencies of each hop."""
    hops = {hop: buckets for hop in _HOPS if (buckets := _buckets(data.get("latency", {}).get(hop)))}
    if not hops:
        return None
    traces, told = [], []
    for i, (hop, buckets) in enumerate(hops.items()):
        total = sum(buckets.values())
        lowest, highest = min(buckets), max(buckets)
        numbers = range(lowest, highest + 1)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                # Bucket b goes from 2**(b/4) to 2**((b+1)/4) µs.
                "x": [_milliseconds(lowest), *(_milliseconds(b) for b in (*numbers, highest + 1))],
                "y": [0, *(_short(100 * buckets.get(b, 0) / total) for b in numbers), 0],
                "name": _HOPS[hop],
                "line": {"shape": "hv", "color": _LINES[i], "width": 1.75, "dash": _DASHES[i]},
                "fill": "tozeroy",
                "fillcolor": "transparent",
                "hovertemplate": "%{y:.3g} % from %{x:.3g} ms<extra></extra>",
            }
        )
        half, most = duration(_quantile(buckets, 0.5)), duration(_quantile(buckets, 0.99))
        told.append(f"{_HOPS[hop]} p50 {half}, p99 {most}")
    layout = {
        "xaxis": _log_axis(min(map(min, hops.values())), max(map(max, hops.values())) + 1),
        "yaxis": {"title": {"text": "share of messages, %"}, "rangemode": "tozero"},
        "height": 320,
    }
    return _plot("latency", "Latency of each hop", f"{'; '.join(told)}.", traces, layout)


def _confirms(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The confirm latency of each site."""
    sites = {name: found for name, each in data.get("confirmed", {}).items() if (found := _buckets(each))}
    if not sites:
        return None
    names = [_text(name) for name in sites]
    points = {
        label: [_quantile(buckets, q) * 1000 for buckets in sites.values()]
        for label, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [points["p50"][i], points["p99"][i]],
            "y": [name, name],
            "line": {"color": "--rule", "width": 6},
            "showlegend": False,
            "hoverinfo": "skip",
        }
        for i, name in enumerate(names)
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "x": values,
            "y": names,
            "name": label,
            "marker": {"color": color, "size": 12, "symbol": symbol},
            "hovertemplate": "%{x:.3g} ms<extra></extra>",
        }
        for (label, values), color, symbol in zip(
            points.items(), ("--line-1", "--line-2", "--line-3"), ("circle", "square", "diamond"), strict=True
        )
    ]
    says = "; ".join(
        f"{_plain(name)} confirms with p50 {duration(_quantile(buckets, 0.5))}, p99"
        f" {duration(_quantile(buckets, 0.99))}"
        for name, buckets in sites.items()
    )
    layout = {
        "xaxis": _log_axis(min(map(min, sites.values())), max(map(max, sites.values())) + 1),
        "yaxis": {"type": "category", "range": [len(names) - 0.5, -0.5]},
        "height": 130 + 44 * len(names),
    }
    return _plot("confirms", "Confirm latency of each site", f"{says}.", traces, layout)


def _saved(verdict: Mapping[str, Any]) -> dict[str, Any] | None:
    """Messages that only one site delivered."""
    sites = dict(sorted(verdict.get("sites", {}).items())[:_MAX_SITES])
    if not any(each["saved_alone"] for each in sites.values()):
        return None
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [each["saved_alone"] for each in sites.values()],
        "y": [_text(name) for name in sites],
        "text": [grouped(each["saved_alone"]) for each in sites.values()],
        "textposition": "auto",
        "textangle": 0,
        "marker": {"color": "--line-1"},
        "hoverinfo": "skip",
    }
    told = "; ".join(f"{_plain(name)}: {grouped(each['saved_alone'])}" for name, each in sites.items())
    layout = {
        "xaxis": {"title": {"text": "messages, once for each group"}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 100 + 40 * len(sites),
    }
    says = f"Messages that a group received from one site only: {told}."
    return _plot("saved", "Saved by one site alone", says, [trace], layout)


def _plot(
    name: str, title: str, says: str, traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "id": name,
        "title": title,
        "says": says,
        "figure": {"data": list(traces), "layout": dict(layout)},
    }


def _times(data: Mapping[str, Any]) -> list[str]:
    """The bounds of all bins, one more than there are bins."""
    return [
        datetime.fromtimestamp((data["start_us"] + i * data["width_us"]) / 1e6, UTC).strftime(
            "%Y-%m-%d %H:%M:%S.%f"
        )
        for i in range(data["bins"] + 1)
    ]


def _per(width_us: int) -> tuple[float, str]:
    """The factor from a bin's count to a rate, and the unit."""
    return (60e6 / width_us, "minute") if width_us >= 60e6 else (1e6 / width_us, "second")


def _short(number: float) -> float:
    return round(number, 3)


def _buckets(histogram: Mapping[Any, int] | None) -> dict[int, int]:
    """A histogram with numbers as keys (strings in JSON), without empty buckets."""
    return {
        int(bucket): count
        for bucket, count in (histogram or {}).items()
        if count > 0 and 0 <= int(bucket) < 256
    }


def _milliseconds(bucket: int) -> float:
    return float(f"{2 ** (bucket / 4) / 1000:.4g}")


def _log_axis(lowest: int, highest: int) -> dict[str, Any]:
    """An axis of latencies in milliseconds, marked at 1 and 3 of each power of ten; given in buckets."""
    marks = [
        factor * 10.0**power
        for power in range(-3, 12)
        for factor in (1, 3)
        if _milliseconds(lowest) / 3 <= factor * 10.0**power <= _milliseconds(highest) * 3
    ]
    return {"type": "log", "tickvals": marks, "ticktext": [duration(mark / 1000) for mark in marks]}


def _quantile(buckets: Mapping[int, int], q: float) -> float:
    """The upper bound of the bucket in which the quantile lies, in seconds."""
    needed, seen = q * sum(buckets.values()), 0
    for number in sorted(buckets):
        seen += buckets[number]
        if seen >= needed:
            break
    return float(2 ** ((number + 1) / 4) / 1e6)


def _plain(name: str, length: int = _NAME_LENGTH) -> str:
    """A name, truncated to the length of a line."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _text(name: str, length: int = _NAME_LENGTH) -> str:
    """A name escaped for plotly, which interprets tags and entities."""
    plain = "".join(each if each.isprintable() else "\ufffd" for each in _plain(name, length))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
