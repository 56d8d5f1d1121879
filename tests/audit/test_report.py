"""The report, opened in a real browser without a network, and read as its readers see it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reliamsg.audit.clients import JournalParts, StreamTraces, gather
from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import Fact, Folder, StreamName
from reliamsg.audit.found import Finding
from reliamsg.audit.kinds import KINDS, LOSSES
from reliamsg.audit.report import data, render, write
from reliamsg.audit.segment import Line, SegmentHeader
from reliamsg.audit.spans import LAST
from reliamsg.audit.streams import Judged
from reliamsg.audit.tasks import Summary, add_times, summarize
from tests.patience import patient

MINUTE = 60_000_000
START = 1_790_000_040_000_000 // MINUTE * MINUTE
HOSTILE = (
    '</script><script>document.title="owned"</script>',
    "<img src=x onerror=\"document.title='owned'\">",
    '"><svg onload=alert(1)>',
    "{{ 7 * 7 }}${7*7}%{x}",
    '<a href="javascript:alert(1)">click</a>',
    "line\u2028separator\u2029and <!-- comment",
    "\u202eright to left",
    "&lt;b&gt;",
)
MAX_BYTES = 6_000_000


Row = tuple[str, str, Line]
"""Role and client, and a row of their journal."""


def journal_row(kind: str, first: int, last: int, minutes: tuple[float, float] = (0, 1), **more: Any) -> Row:
    """A row; `minutes` are the times of its first and last change."""
    start, end = (START + round(each * MINUTE) for each in minutes)
    role, client = more.pop("role", "producer"), more.pop("client", "p")
    about = {"producer": "p", "topic": "t", "epoch": 1, "first": first, "last": last} | more
    return role, client, Line(1, "0" * 16, kind, start, end, 0, **about)


def given(kind: str, first: int, last: int, minutes: tuple[float, float], group: str, **more: Any) -> Row:
    return journal_row(kind, first, last, minutes, role="group", client=group, group=group, **more)


def finding(kind: str, first: int | None = None, last: int | None = None, group: str = "") -> Finding:
    return Finding(kind, ("p", "t", 0), group, epoch=1, first=first, last=last)


def sums(
    rows: list[Row], findings: list[Finding] | None = None, verdict: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The report's data about these rows and findings, all of stream ``p/t``."""
    groups = {client: 1 for role, client, _ in rows if role == "group"}
    verdict = verdict or {"messages": {"delivered": groups}, "sites": {"dc1": {}, "dc2": {}}}
    folders: dict[tuple[str, str], Folder] = {}
    for number, (role, client, line) in enumerate(rows):
        folder = folders.setdefault((role, client), Folder())
        folder.add(SegmentHeader(role, client, line.boot, 1, 1, 1), str(number), [line])
    journals = [
        JournalParts(role, client, f"{role}/{client}", "", [folder.part()])
        for (role, client), folder in folders.items()
    ]
    streams: dict[StreamName, dict[str, list[Fact]]] = {}
    for (role, client), folder in folders.items():
        for stream, facts in folder.streams.items():
            streams.setdefault(stream, {})[f"{role}/{client}"] = facts
    clients = gather(journals, Expect(), StreamTraces())
    total = Summary()
    for stream, own in streams.items():
        found = [each for each in findings or [] if each.stream == stream]
        judged = Judged(stream, found)
        summary = summarize(judged)
        add_times(summary, judged, own, clients.context)
        total.add(summary)
    # Without the findings about the evidence: these journals were never opened.
    return data(total, [], clients.latencies, verdict)


class TestData:
    def test_messages_are_spread_over_their_rows_times(self) -> None:
        found = sums(
            [
                journal_row("enqueued", 1, 600, (0, 6)),
                given("delivered", 1, 300, (0.5, 3.5), "g"),
                given("delivered", 301, 600, (6, 6), "g"),
                given("late", 7, 9, (2, 2), "g"),
            ]
        )
        per_minute = MINUTE // found["width_us"]
        assert found["start_us"] == START
        assert found["bins"] == 6 * per_minute + 1

        def by_minute(series: list[float]) -> list[Any]:
            minutes = [series[i : i + per_minute] for i in range(0, len(series), per_minute)]
            return [pytest.approx(sum(minute), abs=0.2) for minute in minutes]

        assert by_minute(found["published"]) == [100, 100, 100, 100, 100, 100, 0]
        assert by_minute(found["delivered"]["g"]) == [50, 100, 100, 50, 0, 0, 300]
        assert by_minute(found["late"]) == [0, 0, 3, 0, 0, 0, 0]

    def test_losses_are_plotted_at_their_time_of_publishing(self) -> None:
        found = sums(
            [
                journal_row("enqueued", 1, 100, (0, 1)),
                journal_row("enqueued", 101, 200, (10, 11)),
                journal_row("enqueued", 1, 50, (20, 21), topic="whole"),
                given("delivered", 1, 50, (30, 31), "g", topic="whole"),
            ],
            [
                finding("lost", 91, 110, group="g"),
                finding("undelivered", 111, LAST, group="g"),
                finding("lost", 91, 100, group="h"),
                finding("duplicate", 1, 5, group="g"),
            ],
        )
        assert sum(found["lost"]) == pytest.approx(30, abs=0.2)
        assert sum(found["open"]) == pytest.approx(90, abs=0.2)
        assert sum(found["duplicate"]) == pytest.approx(5, abs=0.2)
        bins_per_minute = MINUTE / found["width_us"]
        assert sum(found["lost"][: round(2 * bins_per_minute)]) == pytest.approx(20, abs=0.2)
        worst, whole = found["streams"]
        assert (worst["topic"], whole["topic"]) == ("t", "whole")
        # At the group that lacks most.
        assert (worst["missing_total"], whole["missing_total"]) == (110, 0)
        assert {(each["kind"], each["grp"]): each["messages"] for each in found["kinds"]} == {
            ("lost", "g"): 20, ("undelivered", "g"): 0, ("lost", None): 10, ("duplicate", "g"): 5,
        }  # fmt: skip

    def test_whatever_never_reaches_a_group_is_a_loss(self) -> None:
        found = sums(
            [journal_row("enqueued", 1, 100 * len(LOSSES))],
            [finding(kind, 100 * i + 1, 100 * i + 100, group="g") for i, kind in enumerate(LOSSES)],
        )
        assert sum(found["lost"]) == pytest.approx(100 * len(LOSSES), abs=1)
        assert found["streams"][0]["missing_total"] == pytest.approx(100 * len(LOSSES), abs=1)

    def test_histograms_add_up(self) -> None:
        found = sums(
            [
                journal_row("enqueued", 1, 3, latency={4: 1, 8: 2}),
                journal_row("confirmed", 1, 3, site="dc1", latency={20: 3}),
                journal_row("confirmed", 1, 3, site="dc2", latency={20: 1, 30: 2}),
                given("delivered", 1, 3, (0, 1), "g", latency={10: 3}),
            ]
        )
        assert found["latency"] == {
            "publish_to_durable": {4: 1, 8: 2},
            "durable_to_confirmed": {20: 4, 30: 2},
            "received_to_delivered": {10: 3},
        }
        assert found["confirmed"] == {"dc1": {20: 3}, "dc2": {20: 1, 30: 2}}

    def test_clocks_that_disagree_and_bounds(self) -> None:
        """Many streams, groups, sites and days: the report's data stays small."""
        rows = [
            journal_row("enqueued", 1, 10, (i, i + 1), producer=f"p{i}", client=f"p{i}") for i in range(60)
        ] + [given("delivered", 1, 10, (1e6, 1e6 - 60), f"g{i}") for i in range(20)]
        found = sums(rows)
        assert found["bins"] <= 120
        assert len(found["streams"]) == 40
        assert len(found["delivered"]) == 6
        assert found["groups_left_out"] == 14
        assert sum(found["published"]) == pytest.approx(600, abs=1)
        assert [sum(each) for each in found["delivered"].values()] == [pytest.approx(10, abs=0.2)] * 6

    def test_no_rows(self) -> None:
        verdict: dict[str, Any] = {"messages": {"delivered": {}}, "sites": {}}
        assert sums([], verdict=verdict) == {"kinds": [], "latency": {}, "confirmed": {}}


def verdict_of(kind: str, name: str = "billing") -> dict[str, Any]:
    """``verdict.json`` of a small audit in which `name` is a group, a topic, a producer and a site."""
    lost, duplicates = (7 if kind in ("lost", "violated") else 0), (2 if kind == "violated" else 0)
    pending = 3 if kind == "unknown" else 0
    about = {"producer": name, "topic": name, "partition": 0, "group": name, "epoch": 1790000000000}
    ranges = [
        {"kind": "lost", "severity": "lost", "text": f"{name}/{name} 5 to 11: published, and never delivered", **about,
         "first": 5, "last": 11, "where": "middle", "hop": "confirmed", "sites": [name]}
    ] if lost else []  # fmt: skip
    others = [
        {
            "kind": "duplicate",
            "severity": "violated",
            "text": f"{name}: delivered again",
            **about,
            "first": 1,
            "last": 2,
        }
    ]
    line = f"group {name}: its journal is not closed"
    return {
        "verdict": kind,
        "messages": {
            "enqueued": 1000, "delivered": {name: 1000 - lost - pending, "archive": 1000}, "lost": lost,
            "declared_gaps": 0, "duplicates": duplicates, "out_of_order": 0, "phantom": 0, "pending": pending,
            "late": 0, "before_join": 0, "saved_by_repair": 12, "saved_by_second_site": 5,
        },
        "streams": 1,
        "sites": {name: {"confirmed": 1000, "received": 1900, "lost_after_confirm": 0, "saved_alone": 21}},
        "lost_ranges": ranges,
        "evidence": {
            "clients": 3,
            "missing": [f"producer {name}: no journal"] if pending else [],
            "broken": [line] if pending else [],
        },
        "latency": {"publish_to_durable": {"p50": 0.0012, "p95": 0.003, "p99": 0.004, "max": 0.07}},
        "findings": [*ranges, *(others if duplicates else [])],
        "findings_total": 300 if lost else 0,
        "rows": 77,
        "seconds": 3.2,
    }  # fmt: skip


def sums_of(kind: str, name: str = "billing") -> dict[str, Any]:
    """The data that belongs to :func:`verdict_of`."""
    bad = [7.0, 0.0, 0.0] if kind in ("lost", "violated") else [0.0] * 3
    return {
        "start_us": START, "width_us": MINUTE, "bins": 3, "groups_left_out": 0, "published": [400.0, 300.0, 300.0],
        "delivered": {name: [393.0, 300.0, 300.0], "archive": [400.0, 300.0, 300.0]}, "late": [0.0] * 3, "lost": bad,
        "open": [0.0, 0.0, 3.0] if kind == "unknown" else [0.0] * 3, "duplicate": [0.0] * 3, "out_of_order": [0.0] * 3,
        "streams": [
            {"producer": name, "topic": name, "part": 0, "published": [400.0, 300.0, 300.0], "missing": bad,
             "missing_total": round(sum(bad))}
        ],
        "latency": {"publish_to_durable": {40: 900, 44: 100}}, "confirmed": {name: {48: 700, 60: 300}},
        "kinds": [{"kind": "lost", "grp": name, "findings": 1, "messages": 7}] if sum(bad) else [],
    }  # fmt: skip


class Page:
    """A report in the browser: its document after the scripts ran, and the console's output."""

    def __init__(self, path: Path) -> None:
        self.html, self.console = browse(path, "--dump-dom")
        # The drawn elements, without the library, the figures' data and the styles.
        self.body = re.sub(
            r"<(script|style)\b.*?</\1>", "", self.html[self.html.index("<body") :], flags=re.DOTALL
        )

    def has_plot(self, name: str) -> bool:
        found = re.search(rf'<div class="plot[^>]*id="{name}".*?</figure>', self.body, flags=re.DOTALL)
        drawn = r'<svg.*class="(?:trace|hm|heatmaplayer|point)'
        return found is not None and re.search(drawn, found[0], flags=re.DOTALL) is not None


def browse(path: Path, *options: str) -> tuple[str, list[str]]:
    """Open a file in headless Chromium without name resolution; returns its output, and the console's lines."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is not installed"
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
            "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={path.parent / 'profile'}",
            "--virtual-time-budget=5000", *options, path.as_uri(),
        ],
        capture_output=True, timeout=patient(60), check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.decode().splitlines() if ":CONSOLE" in line]
    return done.stdout.decode(), console


@pytest.mark.parametrize("kind", ["complete", "lost", "violated", "unknown"])
def test_in_a_browser(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, verdict_of(kind), sums_of(kind))
    assert path.stat().st_size < MAX_BYTES
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    page = Page(path)
    assert page.console == []
    assert f"</span>{kind.capitalize()}</h1>" in page.body
    for name in ("flow", "completeness", "confirms", "saved", "latency"):
        assert page.has_plot(name), name
    assert ("Lost ranges" in page.body) == (kind in ("lost", "violated"))
    assert ("confirmed at <bdi>billing</bdi>" in page.body) == (kind in ("lost", "violated"))
    assert ("298 more findings" in page.body) == (kind == "violated")
    assert ("producer billing: no journal" in page.body) == (kind == "unknown")
    assert ("Every journal is complete and closed" in page.body) == (kind != "unknown")
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page.body)


def test_without_anything_to_draw(tmp_path: Path) -> None:
    """No journals at all: no plots, and no library for them."""
    verdict = verdict_of("unknown") | {"sites": {}, "latency": {}, "streams": 0, "rows": 0}
    verdict["messages"] |= {"enqueued": 0, "delivered": {}, "pending": 0}
    verdict["evidence"] = {"clients": 0, "missing": ["there are no journals"], "broken": []}
    path = tmp_path / "report.html"
    write(path, verdict, {"kinds": [], "latency": {}, "confirmed": {}})
    assert path.stat().st_size < 50_000
    page = Page(path)
    assert page.console == []
    assert "there are no journals" in page.body
    assert 'class="plot' not in page.body


@pytest.mark.parametrize("names", [HOSTILE[:4], HOSTILE[4:]], ids=["first", "second"])
def test_names_are_text(names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    verdict, sums = verdict_of("violated", names[0]), sums_of("violated", names[0])
    for name in names[1:]:
        more, drawn = verdict_of("violated", name), sums_of("violated", name)
        verdict["messages"]["delivered"] |= more["messages"]["delivered"]
        verdict["sites"] |= more["sites"]
        for part in ("lost_ranges", "findings"):
            verdict[part] += more[part]
        for part in ("delivered", "confirmed"):
            sums[part] |= drawn[part]
        for part in ("streams", "kinds"):
            sums[part] += drawn[part]
    write(path, verdict, sums)
    page = Page(path)
    assert page.console == []
    assert "owned" not in re.findall(r"<title>(.*?)</title>", page.html)[0]
    assert not re.search(r"<(?:img|a|b onclick|script src)\b", page.body)
    assert not re.search(r"<[a-z][^<>]*\son[a-z]+=", re.sub(r'"[^"<>]*"', '""', page.body))
    for name in names:
        shown = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert f"<bdi>{shown}</bdi>" in page.body
    for plot in ("flow", "completeness", "confirms", "saved", "latency"):
        assert page.has_plot(plot), plot


def test_the_content_of_a_script_can_not_end_it() -> None:
    for name in HOSTILE:
        html = render(verdict_of("lost", name), sums_of("lost", name))
        embedded = re.findall(
            r'<script type="application/json" id="figures">(.*?)</script>', html, flags=re.DOTALL
        )
        assert len(embedded) == 1
        assert not re.search(r"[<>&\u2028\u2029]", embedded[0])
        assert set(json.loads(embedded[0])) == {"flow", "completeness", "confirms", "saved", "latency"}


@pytest.mark.parametrize("width", [1280, 500])
def test_screenshot(width: int, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, verdict_of("lost"), sums_of("lost"))
    shot = tmp_path / "shot.png"
    _, console = browse(path, f"--screenshot={shot}", f"--window-size={width},2000")
    assert console == []
    assert shot.read_bytes().startswith(b"\x89PNG")


def test_a_report_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write(path, verdict_of("complete"), {"kinds": []})
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_every_kind_has_its_place() -> None:
    kinds = [{"kind": kind, "grp": None, "findings": 1, "messages": 0} for kind in KINDS]
    html = render(verdict_of("violated"), {"kinds": kinds})
    for kind, (severity, meaning) in KINDS.items():
        assert f'<tr class="{severity}"><th scope="row">{kind.replace("_", " ")}</th>' in html
        assert meaning.replace("'", "&#39;") in html


def test_whatever_never_reaches_a_group_is_counted_in_its_line() -> None:
    kinds = [{"kind": kind, "grp": "archive", "findings": 1, "messages": 100} for kind in LOSSES]
    html = render(verdict_of("lost"), {"kinds": kinds})
    line = re.search(r"<bdi>archive</bdi></th>(.*?)</tr>", html)
    assert line is not None
    cells = re.findall(r">([\d,]+)</td>", line[1])
    assert cells[:2] == ["1,000", str(100 * len(LOSSES))]


def test_every_kind_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "audit.md").read_text()
    for kind, (severity, meaning) in KINDS.items():
        assert f"| `{kind}` | {severity} | {meaning} |" in page
