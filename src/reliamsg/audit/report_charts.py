"""The report's charts over time and of latencies, drawn for a given width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from reliamsg.audit.outages import LEAST_SHARE
from reliamsg.audit.report_svg import (
    area,
    clipped,
    count_ticks,
    duration_ticks,
    element,
    line,
    picture,
    steps,
    text,
    time_ticks,
)
from reliamsg.audit.report_words import compact, duration

__all__ = ["MARKS", "latency_chart", "time_chart"]

MARKS = {
    "lost": "lost or declared",
    "open": "still open",
    "duplicate": "duplicated",
    "out_of_order": "out of order",
    "late": "late",
}
"""Messages that are marked over time, worst first, at the time at which they were published."""
_LEFT, _RIGHT = 54.0, 8.0
_PANEL, _LOW_PANEL, _LANE = 150.0, 84.0, 16.0
_BETWEEN = 42.0


@dataclass(frozen=True, slots=True)
class _Frame:
    """The axis of time."""

    start_us: int
    width_us: int
    bins: int
    width: float
    """Of the whole picture."""

    @property
    def end(self) -> float:
        return self.width - _RIGHT

    def x(self, place: float) -> float:
        """Of the beginning of a bin."""
        return _LEFT + (self.width - _LEFT - _RIGHT) * place / self.bins


def time_chart(data: Mapping[str, Any], width: float) -> Markup:
    """Published and delivered messages, redelivered ones, lag, losses and outages, one below the other, for
    ``data["time"]`` of :func:`reliamsg.audit.report_data.data`."""
    frame = _Frame(data["start_us"], data["width_us"], data["bins"], width)
    unit = f"per {duration(data['width_us'] / 1e6)}"
    drawn: list[Markup] = []
    tops: list[tuple[float, float]] = []
    top = 26.0
    flow = [("pub", data["published"]), *_by_group(data["delivered"])]
    panels = [(f"Published (grey) and delivered, messages {unit}", _PANEL, flow)]
    if any(any(counts) for counts in data["redelivered"].values()):
        panels.append(
            (f"Delivered again, flagged, messages {unit}", _LOW_PANEL, _by_group(data["redelivered"]))
        )
    panels.append(("Lag: published and not settled yet, messages", _LOW_PANEL, _by_group(data["lag"])))
    for title, height, series in panels:
        drawn += _panel(frame, title, top, height, series)
        tops.append((top, height))
        top += height + _BETWEEN
    marks = {name: counts for name in MARKS if any(counts := data["marks"][name])}
    if marks:
        drawn += _marks(frame, top, marks)
        tops.append((top, _LOW_PANEL))
        top += _LOW_PANEL + _BETWEEN
    bottom = top - _BETWEEN
    shades = [
        element(
            "rect", x=frame.x(place), y=begin, width=frame.x(until) - frame.x(place), height=height,
            class_="outage", fill_opacity=f"{0.06 + 0.22 * share:.2f}",
        )
        for shares in data["outages"].values()
        for place, until, share in _runs(shares)
        for begin, height in tops
    ]  # fmt: skip
    top = bottom + 8.0
    for site, shares in data["outages"].items():
        drawn += _lane(frame, top, site, shares)
        top += _LANE + 4.0
    lowest = top if data["outages"] else bottom
    drawn += _time_axis(frame, bottom, lowest)
    bar = line(frame.x(0), tops[0][0], frame.x(0), bottom, "cursor")
    return picture(
        width,
        lowest + 36.0,
        [*shades, *drawn, bar],
        "chart time",
        data_left=_LEFT,
        data_right=_RIGHT,
        data_width=width,
    )


def _by_group(groups: Mapping[str, Sequence[int]]) -> list[tuple[str, Sequence[int]]]:
    return [(f"l{place}", counts) for place, counts in enumerate(groups.values(), 1)]


def _panel(
    frame: _Frame, title: str, top: float, height: float, series: Sequence[tuple[str, Sequence[int]]]
) -> Iterator[Markup]:
    ticks = count_ticks(max((max(counts) for _, counts in series), default=0), 4 if height > 100 else 2)
    yield from _grid(frame, title, top, height, ticks)
    for kind, counts in series:
        points = [
            (frame.x(place), top + height * (1 - count / ticks[-1])) for place, count in enumerate(counts)
        ]
        if kind == "pub":
            yield element("path", d=area(points, frame.end, top + height), class_="pub")
        else:
            yield element("path", d=steps(points, frame.end), class_=f"line {kind}")


def _grid(frame: _Frame, title: str, top: float, height: float, ticks: Sequence[int]) -> Iterator[Markup]:
    yield text(0.0, top - 13.0, clipped(title, frame.width, 12), "title")
    for tick in ticks:
        y = top + height * (1 - tick / ticks[-1])
        yield line(_LEFT, y, frame.end, y, "axis" if tick == 0 else "grid")
        yield text(_LEFT - 6.0, y + 4.0, compact(tick), "t", "end")


def _marks(frame: _Frame, top: float, marks: Mapping[str, Sequence[int]]) -> Iterator[Markup]:
    """Stacked bars of whole messages."""
    highest = max(sum(counts) for counts in zip(*marks.values(), strict=True))
    ticks = count_ticks(highest, 2)
    words = ", ".join(MARKS[name] for name in marks)
    yield from _grid(frame, f"{words.capitalize()} messages, by time of publishing", top, _LOW_PANEL, ticks)
    wide = max(frame.x(1) - frame.x(0), 1.5)
    for place, counts in enumerate(zip(*marks.values(), strict=True)):
        below = 0
        for name, count in zip(marks, counts, strict=True):
            if count:
                tall = _LOW_PANEL * count / ticks[-1]
                yield element(
                    "rect", x=frame.x(place), y=top + _LOW_PANEL * (1 - below / ticks[-1]) - tall, width=wide,
                    height=tall, class_=f"mark {name}",
                )  # fmt: skip
                below += count


def _lane(frame: _Frame, top: float, site: str, shares: Sequence[float]) -> Iterator[Markup]:
    """One site: how many of the clients had no connection."""
    yield text(_LEFT - 6.0, top + 12.0, clipped(site, _LEFT - 6.0, 11), "t", "end")
    yield element("rect", x=_LEFT, y=top + 2.0, width=frame.end - _LEFT, height=_LANE - 4.0, class_="lane")
    for place, until, share in _runs(shares):
        yield element(
            "rect", x=frame.x(place), y=top + 2.0, width=max(frame.x(until) - frame.x(place), 1.5),
            height=_LANE - 4.0, class_="down", fill_opacity=f"{0.25 + 0.75 * share:.2f}",
        )  # fmt: skip


def _runs(shares: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Consecutive bins with the same share: first, end, and share in steps of a tenth. Less than
    :data:`LEAST_SHARE` is left out."""
    rounded = [max(round(share, 1), 0.1) if share >= LEAST_SHARE else 0.0 for share in shares]
    begin = 0
    for place in range(1, len(rounded) + 1):
        if place == len(rounded) or rounded[place] != rounded[begin]:
            if rounded[begin]:
                yield begin, place, rounded[begin]
            begin = place


def _time_axis(frame: _Frame, bottom: float, lowest: float) -> Iterator[Markup]:
    end_us = frame.start_us + frame.bins * frame.width_us
    for at, label in time_ticks(frame.start_us, end_us, int(frame.width / 110)):
        x = frame.x((at - frame.start_us) / frame.width_us)
        hour, _, day = label.partition("\n")
        anchor = "end" if x > frame.end - 24 else "middle"
        yield line(x, bottom, x, bottom + 4.0, "axis")
        yield text(x, lowest + 18.0, hour, "t", anchor)
        if day:
            yield text(x, lowest + 32.0, day, "t", anchor)


def latency_chart(rows: Sequence[tuple[str, Mapping[str, float]]], width: float) -> Markup:
    """For each name the quantiles in seconds, on a logarithmic axis."""
    left = min(170.0, width * 0.34)
    ticks = duration_ticks(min(each["p50"] for _, each in rows), max(each["max"] for _, each in rows))
    span = ticks[-1] / ticks[0]

    def x(seconds: float) -> float:
        share = math.log10(max(seconds, ticks[0]) / ticks[0]) / math.log10(span)
        return left + (width - left - 22.0) * share

    tall = 26.0 * len(rows) + 8.0
    drawn: list[Markup] = []
    every = -(-len(ticks) // max(int((width - left) / 62), 2))
    for place, tick in enumerate(ticks):
        drawn.append(line(x(tick), 4.0, x(tick), tall, "grid"))
        if place % every == 0:
            drawn.append(text(x(tick), tall + 16.0, duration(tick), "t", "middle"))
    for place, (name, values) in enumerate(rows):
        y = 20.0 + 26.0 * place
        drawn.append(text(left - 10.0, y + 4.0, clipped(name, left - 10.0, 12), "t", "end"))
        drawn.append(line(x(values["p50"]), y, x(values["max"]), y, "tail"))
        drawn.append(line(x(values["p50"]), y, x(values["p99"]), y, "span"))
        at = x(values["p99"])
        diamond = f"M{at - 8:.1f} {y:.1f}L{at:.1f} {y - 8:.1f}L{at + 8:.1f} {y:.1f}L{at:.1f} {y + 8:.1f}Z"
        square = element("rect", x=x(values["p95"]) - 4.0, y=y - 4.0, width=8.0, height=8.0, class_="dot p95")
        # The smallest comes last, so that equal ones are all visible.
        drawn += [element("path", d=diamond, class_="dot p99"), square]
        drawn.append(element("circle", cx=x(values["p50"]), cy=y, r=3.4, class_="dot p50"))
        drawn.append(line(x(values["max"]), y - 5.0, x(values["max"]), y + 5.0, "tail"))
    return picture(width, tall + 22.0, drawn, "chart latency")
