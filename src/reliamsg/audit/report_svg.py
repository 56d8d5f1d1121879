"""Elements of SVG, and axes with round ticks. All text is escaped; nothing has a style attribute, which the page's
content security policy forbids: elements have classes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from reliamsg.terminal import printable

__all__ = [
    "area", "clipped", "count_ticks", "duration_ticks", "element", "line", "picture", "steps", "text", "time_ticks",
]  # fmt: skip

_SECOND_US = 1_000_000
_STEPS_US = [
    *(
        round(each * _SECOND_US)
        for each in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
    ),
    *(each * 60 * _SECOND_US for each in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *(each * 86_400 * _SECOND_US for each in (1, 2, 7, 14, 28, 91, 182, 364, 1820, 3640, 36400)),
]
"""Distances between ticks of an axis of time."""
_CHARACTER = 0.58
"""The width of a character in font sizes, about."""
_WIDTHS = {**dict.fromkeys("MW@%", 1.1), **dict.fromkeys("mw", 0.95)}
_FULL_WIDTH = 1.4
"""Those of broad letters in bold type, and of ideographs and pictograms."""


def element(name: str, content: Iterable[Markup | str] | str = (), **attributes: object) -> Markup:
    """An element. Trailing underscores in the names of attributes are dropped, others become hyphens. Strings are
    escaped, also in attributes; numbers are rounded to a tenth."""
    said = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _short(value))
        for key, value in attributes.items()
    )
    inner = Markup("").join(escape(each) for each in ((content,) if isinstance(content, str) else content))
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), said, inner)


def picture(
    width: float, height: float, content: Iterable[Markup], kind: str, **attributes: object
) -> Markup:
    """A whole picture, as wide as the page, for screens of that width."""
    return element(
        "svg",
        content,
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        class_=kind,
        aria_hidden="true",
        **attributes,
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> Markup:
    """A text whose baseline is at `y`."""
    return element("text", content, x=x, y=y, class_=kind or "t", text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def steps(points: Sequence[tuple[float, float]], end: float) -> str:
    """The path of a line that keeps each value until the next point, the last one until `end`."""
    if not points:
        return ""
    parts = [f"M{_short(points[0][0])} {_short(points[0][1])}"]
    for (_, before), (x, y) in pairwise(points):
        if y != before:
            parts.append(f"H{_short(x)}V{_short(y)}")
    return "".join([*parts, f"H{_short(end)}"])


def area(points: Sequence[tuple[float, float]], end: float, bottom: float) -> str:
    """The path of the area below such a line."""
    if not points:
        return ""
    return f"{steps(points, end)}V{_short(bottom)}H{_short(points[0][0])}Z"


def clipped(name: str, width: float, size: float = 12) -> str:
    """A name, truncated to about the width at that font size, with escapes for what is not visible."""
    shown = printable(name[:200])
    room = max(width / size, 3 * _CHARACTER)
    widths = list(accumulate(map(_width, shown)))
    if not widths or (len(name) <= 200 and widths[-1] <= room):
        return shown
    return f"{shown[: max(bisect_right(widths, room - _CHARACTER), 1)]}…"


def _width(character: str) -> float:
    """In font sizes."""
    if east_asian_width(character) in "WF":
        return _FULL_WIDTH
    return _WIDTHS.get(character, _CHARACTER)


def count_ticks(most: float, number: int = 4) -> list[int]:
    """Round numbers of messages from 0 to at least `most`: multiples of 1, 2 or 5 times a power of ten."""
    if most <= 1:
        return [0, 1]
    power = 10 ** max(math.floor(math.log10(most / number)), 0)
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power * number >= most)
    return [step * each for each in range(math.ceil(most / step) + 1)]


def time_ticks(start_us: int, end_us: int, number: int) -> list[tuple[int, str]]:
    """At most about `number` round times (UTC) with labels. The date is in the first label, and where it changes."""
    wanted = max((end_us - start_us) / max(number, 1), 1)
    step = next((each for each in _STEPS_US if each >= wanted), _STEPS_US[-1])
    found: list[tuple[int, str]] = []
    day = ""
    for at in range(-(-start_us // step) * step, end_us + 1, step):
        moment = datetime.fromtimestamp(at / 1e6, UTC)
        today = moment.strftime("%Y-%m-%d")
        if step >= 86_400 * _SECOND_US:
            label = today
        elif step >= 60 * _SECOND_US:
            label = moment.strftime("%H:%M")
        elif step >= _SECOND_US:
            label = moment.strftime("%H:%M:%S")
        else:
            label = moment.strftime("%H:%M:%S.%f")[: -3 if step < 100_000 else -5]
        if today != day and step < 86_400 * _SECOND_US:
            label = f"{label}\n{today}"
        day = today
        found.append((at, label))
    return found


def duration_ticks(low_s: float, high_s: float) -> list[float]:
    """Powers of ten in seconds that enclose both."""
    first, last = math.floor(math.log10(low_s) + 1e-9), math.ceil(math.log10(high_s) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return value
