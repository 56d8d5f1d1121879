"""The report, opened in a real browser without a network, and read as its readers see it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reliamsg.audit.changes import read_earlier
from reliamsg.audit.kinds import KINDS, LOSSES
from reliamsg.audit.overview import MAX_STREAMS
from reliamsg.audit.report import MAX_BYTES, render, write
from reliamsg.audit.report_svg import count_ticks, duration_ticks, time_ticks
from reliamsg.audit.timeline import Timeline
from reliamsg.terminal import printable
from tests.audit.browser import Browser, open_browser
from tests.audit.fleet import Writer
from tests.audit.reported import (
    CRASH,
    LOST,
    MINUTE_US,
    OUTAGE,
    PER_MINUTE,
    REPEATED,
    START_US,
    UNPUBLISHED,
    Diary,
    night,
    reported,
)

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
Report = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def bad_night() -> Report:
    return reported(night())


def written(place: Path, report: Report) -> Path:
    path = place / "report.html"
    write(path, *report)
    assert path.stat().st_size <= MAX_BYTES
    return path


def lookup(verdict: dict[str, Any], path: str) -> Any:
    value: Any = verdict
    for name in json.loads(path):
        value = value[name]
    return value


def replaced(value: Any, names: dict[str, str]) -> Any:
    """A copy of plain data, with other names in all strings, also those that are keys."""
    if isinstance(value, dict):
        return {replaced(key, names): replaced(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [replaced(each, names) for each in value]
    if isinstance(value, str) and names:
        return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], value)
    return value


# -- numbers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def time(bad_night: Report) -> dict[str, Any]:
    found: dict[str, Any] = bad_night[1]["time"]
    return found


class TestTime:
    """Messages over time, for the night of :func:`tests.audit.reported.night`."""

    def test_bins_are_whole_messages_with_the_right_sums(
        self, bad_night: Report, time: dict[str, Any]
    ) -> None:
        messages = bad_night[0]["messages"]
        assert sum(time["published"]) == messages["enqueued"]
        for group, counts in time["delivered"].items():
            again = REPEATED[1] - REPEATED[0] + 1 if group == "fraud" else 0
            assert sum(counts) == messages["delivered"][group] + again
        for counts in (time["published"], *time["delivered"].values(), *time["marks"].values()):
            assert all(isinstance(each, int) and each >= 0 for each in counts)
        # Once for each group.
        assert sum(time["marks"]["lost"]) == 2 * (LOST[1] - LOST[0] + 1)
        assert sum(time["marks"]["open"]) == UNPUBLISHED
        assert sum(time["marks"]["duplicate"]) == REPEATED[1] - REPEATED[0] + 1

    def test_losses_are_at_their_time_of_publishing(self, time: dict[str, Any]) -> None:
        minutes = LOST[0] / PER_MINUTE, LOST[1] / PER_MINUTE
        low, high = (int(each * MINUTE_US) // time["width_us"] for each in minutes)
        assert sum(time["marks"]["lost"][low : high + 1]) == sum(time["marks"]["lost"])

    def test_what_is_delivered_again_after_a_crash_is_there(self, time: dict[str, Any]) -> None:
        assert sum(time["redelivered"]["billing"]) == 9 * 100
        assert sum(time["redelivered"]["archive"]) == 0
        at = CRASH[1] * MINUTE_US // time["width_us"]
        assert sum(time["redelivered"]["billing"][at : at + 2]) == 9 * 100

    def test_lag_grows_while_a_group_is_down(self, time: dict[str, Any]) -> None:
        per_minute = MINUTE_US // time["width_us"]
        lag = time["lag"]["billing"]
        down = lag[CRASH[0] * per_minute : CRASH[1] * per_minute]
        assert all(before <= after for before, after in pairwise(down))
        published = 9 * PER_MINUTE * (CRASH[1] - CRASH[0])
        assert max(lag) == pytest.approx(published, rel=0.05)
        # At the end, without what was declared lost: what no site has confirmed.
        assert lag[-1] == UNPUBLISHED
        assert max(time["lag"]["fraud"]) < 3 * PER_MINUTE

    def test_outages_are_those_of_the_site(self, time: dict[str, Any]) -> None:
        assert set(time["outages"]) == {"dc1"}
        per_minute = MINUTE_US // time["width_us"]
        low, high = (each * per_minute for each in OUTAGE)
        shares = time["outages"]["dc1"]
        assert shares[low:high] == [1.0] * (high - low)
        assert sum(shares) == pytest.approx(high - low, abs=1)

    def test_a_delivery_that_no_row_reports_counts_as_the_first(self) -> None:
        stream = ("p", "t")
        producer, group = Diary("producer", "p"), Diary("group", "g")
        producer.add(0, "opened", groups={"t": ["g"]}, sites=["dc1"])
        producer.add(0.1, "enqueued", stream, 1, 10)
        group.add(0, "opened", topics=["t"], sites=["dc1"])
        group.add(0.2, "joined", stream, 1)
        group.add(1, "redelivered", stream, 1, 10, reason="unjournalled")
        group.add(2, "redelivered", stream, 1, 10)
        time = reported([producer.chain(), group.chain()])[1]["time"]
        assert (sum(time["delivered"]["g"]), sum(time["redelivered"]["g"])) == (10, 10)
        assert time["lag"]["g"][-1] == 0

    def test_renumbered_messages_are_due_from_their_publication_on(self) -> None:
        """They were published under the epoch that they had before."""
        stream = ("p", "t")
        producer, group = Writer("producer", "p"), Writer("group", "g")
        producer.boot(groups={"t": ["g"]}, sites=["dc1"])
        producer.add("enqueued", 1, 10, 5, stream=stream, incarnation=7)
        producer.rows.append(
            replace(producer.add("renumbered", 1, 10, 5, stream=stream).rows.pop(), detail={"epoch": 6})
        )
        group.boot(topics=["t"])
        group.add("joined", 1, epoch=6, stream=stream)
        group.wall_us += 60 * MINUTE_US
        group.add("delivered", 1, 10, 6, stream=stream, incarnation=7)
        lag = reported([producer.chain(), group.chain()])[1]["time"]["lag"]["g"]
        assert (max(lag), lag[-1]) == (10, 0)

    def test_clocks_that_disagree_and_bounds(self) -> None:
        """Many streams, groups and days: the report's data stays small."""
        chains = []
        for n in range(60):
            producer = Diary("producer", f"p{n}")
            producer.add(n, "opened", groups={"t": []}, sites=[f"site{n}"])
            producer.add(n + 1, "enqueued", (f"p{n}", "t"), 1, 10, took=1)
            chains.append(producer.chain())
        for n in range(60):
            group = Diary("group", f"g{n:02}")
            group.add(1e6, "opened", topics=["t"], sites=["dc1"])
            group.add(1e6, "delivered", ("p1", "t"), 1, 10, took=-60)
            chains.append(group.chain())
        verdict, found = reported(chains)
        time = found["time"]
        assert time["bins"] <= 120
        assert len(time["delivered"]) == len(time["lag"]) == 6
        assert time["groups_left_out"] == 50 - 6
        assert len(time["outages"]) <= 12
        assert sum(time["published"]) == 600
        assert all(sum(counts) == 10 for counts in time["delivered"].values())
        assert len(render(verdict, found)) < MAX_BYTES

    def test_a_spread_row_leaves_no_fractions(self) -> None:
        timeline = Timeline()
        timeline.add("few", 7, 0, 100 * MINUTE_US)
        timeline.add("one", 1, 0, 100 * MINUTE_US)
        few, one = timeline.bins("few", timeline.axis), timeline.bins("one", timeline.axis)
        assert (sum(few), sum(one)) == (7, 1)
        assert set(few) == {0, 1}


def test_flows_add_up(bad_night: Report) -> None:
    verdict, found = bad_night
    flows = found["flows"]
    assert sum(each[1] for each in flows["producers"]) == verdict["messages"]["enqueued"]
    assert {name: (pending, missing) for name, _, pending, missing in flows["producers"] if missing} == {
        "gateway-3": (0, LOST[1] - LOST[0] + 1), "gateway-8": (UNPUBLISHED, UNPUBLISHED),
    }  # fmt: skip
    for site, counts in verdict["sites"].items():
        assert sum(count for _, name, count in flows["confirmed"] if name == site) == counts["confirmed"]
        cells = [each[2:] for each in flows["received"] if each[0] == site]
        assert [sum(column) for column in zip(*cells, strict=True)] == [
            counts["received"], counts["lost_after_confirm"], counts["saved_alone"],
        ]  # fmt: skip


def test_latencies_by_group_and_site(bad_night: Report) -> None:
    _, found = bad_night
    assert set(found["delivered"]) == {"archive", "billing", "fraud"}
    assert set(found["delivered"]["archive"]) == {48, 60}
    assert set(found["confirmed"]) == {"dc1", "dc2"}
    total = sum(sum(each.values()) for each in found["delivered"].values())
    assert total == sum(found["latency"]["received_to_delivered"].values())
    assert set(found["acknowledged"]) == {"archive", "billing", "fraud"}
    assert set(found["acknowledged"]["archive"]) == {68, 80}
    total = sum(sum(each.values()) for each in found["acknowledged"].values())
    assert total == sum(found["latency"]["publish_to_acknowledged"].values()) > 0


def test_the_worst_streams_come_first(bad_night: Report) -> None:
    _, found = bad_night
    assert [(each[0], each[4], each[5], each[7]) for each in found["streams"][:4]] == [
        ("gateway-7", 0, REPEATED[1] - REPEATED[0] + 1, ""), ("gateway-3", LOST[1] - LOST[0] + 1, 0, "archive"),
        ("gateway-8", UNPUBLISHED, 0, ""), ("gateway-1", 0, 0, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, [0, 1]), (1, [0, 1]), (3, [0, 1, 2, 3]), (7, [0, 2, 4, 6, 8]), (100, [0, 50, 100]), (9_500, None)],
)
def test_ticks_of_counts_are_round_whole_numbers(most: int, expected: list[int] | None) -> None:
    ticks = count_ticks(most)
    assert expected is None or ticks == expected
    assert ticks[-1] >= most
    assert len(ticks) <= 5
    step = str(ticks[1] - ticks[0])
    assert step.rstrip("0") in ("1", "2", "5")


def test_ticks_of_time_are_round() -> None:
    found = time_ticks(START_US, START_US + 40 * MINUTE_US, 8)
    assert [label for _, label in found][:2] == ["02:00\n2026-11-26", "02:05"]
    midnight = START_US - 2 * 60 * MINUTE_US
    labels = [label for _, label in time_ticks(midnight - 60 * MINUTE_US, midnight + 60 * MINUTE_US, 3)]
    assert labels == ["23:00\n2026-11-25", "00:00\n2026-11-26", "01:00"]
    assert len(time_ticks(0, 4_000_000_000_000_000, 6)) <= 7
    assert duration_ticks(0.0012, 0.7) == pytest.approx([0.001, 0.01, 0.1, 1])


# -- the page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_in_a_browser(browser: Browser, bad_night: Report, tmp_path: Path, width: int, scheme: str) -> None:
    browser.open(written(tmp_path, bad_night), width, scheme)
    assert browser.console() == []
    assert browser.one("#verdict").text == "Violated"
    # Only tables scroll sideways.
    assert browser.run("return document.documentElement.scrollWidth") == width
    shown = {
        name: browser.run(
            "return [...document.querySelectorAll(arguments[0])].filter((e) => e.getClientRects().length).length",
            f"svg.{name}",
        )
        for name in ("time", "map", "latency")
    }
    assert shown == {"time": 1, "map": 1, "latency": 3}
    smallest = browser.run(
        "return Math.min(...[...document.querySelectorAll('svg text')].filter((e) => e.getClientRects().length)"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a))"
    )
    assert smallest >= 10
    browser.screenshot(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").read_bytes().startswith(b"\x89PNG")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == {
        "light": "rgb(251, 251, 248)", "dark": "rgb(20, 23, 26)",
    }[scheme]  # fmt: skip


def test_the_numbers_are_those_of_the_verdict(browser: Browser, bad_night: Report, tmp_path: Path) -> None:
    verdict, _ = bad_night
    browser.open(written(tmp_path, bad_night))
    shown = {each.get_attribute("data-v"): each.text for each in browser.all("[data-v]")}
    for path, text in shown.items():
        assert path is not None
        assert text == f"{lookup(verdict, path):,}", path
    paths = {tuple(json.loads(path)) for path in shown if path}
    expected: set[tuple[str, ...]] = {
        ("messages", name) for name in verdict["messages"] if name != "delivered"
    }
    expected |= {("messages", "delivered", name) for name in verdict["messages"]["delivered"]}
    expected |= {("sites", site, name) for site, own in verdict["sites"].items() for name in own}
    assert paths >= expected | {("incidents_total",), ("findings_total",), ("streams",), ("rows",)}
    latencies = {
        each.get_attribute("data-s"): each.get_attribute("data-exact") for each in browser.all("[data-s]")
    }
    assert len(latencies) == 4 * len(verdict["latency"])
    for path, exact in latencies.items():
        assert path is not None
        assert float(exact or "nan") == lookup(verdict, path)
    by_group = browser.run(
        "return [...document.querySelectorAll('[aria-labelledby=l-acknowledged] tbody tr')]"
        ".map((row) => row.cells[0].textContent + ' ' + row.cells[4].textContent)"
    )
    # Of the latest in bucket 80 and, after a crash, in bucket 100.
    assert sorted(by_group) == ["archive 1.25 s", "billing 39.9 s", "fraud 79.8 s"]
    lines = browser.run(
        "return [...document.querySelectorAll('[aria-labelledby=groups] tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert ["archive", "143,640", "120", "0", "0", "0"] in lines
    assert ["fraud", "72,000", "0", "0", "50", "0"] in lines


def test_incidents_have_a_cause_ranges_groups_and_a_command(
    browser: Browser, bad_night: Report, tmp_path: Path
) -> None:
    verdict, _ = bad_night
    browser.open(written(tmp_path, bad_night))
    page = [each.text for each in browser.all(".card")]
    assert len(page) == len(verdict["incidents"])
    lost = next(text for text in page if "gateway-3" in text)
    for part in ("Lost and declared", "confirmed by dc1", "6,201 to 6,320", "120 messages", "groups archive, billing",
                 "reliamsg audit show verdict gateway-3/orders"):  # fmt: skip
        assert part in lost
    first, last = browser.one("#incidents"), browser.one("#messages")
    assert first.location["y"] < last.location["y"]


def test_incidents_with_one_cause_share_a_card(browser: Browser, tmp_path: Path) -> None:
    """A wiped broker is one card, however many streams it was the end of."""
    verdict, found = reported(night())
    block = next(each for each in verdict["incidents"] if each.get("producer") == "gateway-3")
    verdict["incidents"] = [
        {**block, "id": f"{n:012x}", "producer": f"device-{n}", "messages": n, "last": LOST[0] + n - 1}
        for n in range(1, 401)
    ]
    verdict["incidents_total"] = 2_000
    browser.open(written(tmp_path, (verdict, found)))
    (card,) = browser.all(".card")
    assert f"{sum(range(1, 401)):,} messages in 400 incidents" in card.text
    assert len(browser.all(".card > ul > li")) == 3
    assert len(browser.all(".card > details li")) == 22
    assert "375 more with this cause are not shown" in card.text
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0


def test_the_time_through_which_all_is_proven_comes_first(browser: Browser, tmp_path: Path) -> None:
    verdict, found = reported(night())
    for name in ("through", "held_by", "clients"):
        verdict.pop(name, None)
    assert "through" not in render(verdict, found).split("<nav")[0].split("<body>")[1]
    verdict |= {
        "through": "2026-11-26T02:39:00.25+00:00",
        "held_by": [
            {"role": "producer", "client": "gateway-8", "through": "2026-11-26T02:39:00+00:00", "why": "not closed"},
            {"why": "a message is open"},
        ],
        "clients": [
            {"role": "producer", "client": "gateway-8", "proven": "2026-11-26T02:39:00+00:00", "closed": False,
             "why": "has no row after that", "version": "0.1.0",
             "offset": {"role": "group", "client": "billing", "least_s": -0.25, "most_s": None}},
            {"role": "group", "client": "reports", "proven": None, "closed": False, "why": "left no journal"},
        ],
    }  # fmt: skip
    browser.open(written(tmp_path, (verdict, found)), 390)
    assert browser.one("#through").text == "2026-11-26 02:39:00 UTC"
    assert browser.one(".holds").text.splitlines() == [
        "Held by producer gateway-8: not closed",
        "a message is open",
    ]
    rows = browser.run(
        "return [...document.querySelectorAll('.clients tbody tr')].map((row) => row.textContent)"
    )
    assert len(rows) == 13
    assert re.search(
        r"producer gateway-8\s*not closed\s*2026-11-26 02:39:00 UTC\s*0\.1\.0\s*"
        r"-0\.25 s to \? against group billing\s*\d+",
        rows[0],
    )
    assert any("reports" in row and "left no journal" in row for row in rows)
    verdict["through"] = None
    browser.open(written(tmp_path, (verdict, found)))
    assert browser.one("#through").text == "no time yet"
    assert browser.console() == []


def test_the_comparison_with_the_previous_audit(browser: Browser, tmp_path: Path) -> None:
    before, _ = reported(night(lost=False))
    gone = next(each for each in before["incidents"] if each.get("producer") == "gateway-7")
    before["incidents"] += [{**gone, "id": "0" * 12, "producer": "gateway-99"}]
    (tmp_path / "verdict.json").write_text(json.dumps(before))
    verdict, found = reported(night(), earlier=read_earlier(tmp_path / "verdict.json"))
    browser.open(written(tmp_path, (verdict, found)))
    text = browser.one("section[aria-labelledby=changes]").text
    assert "1 incident is new, 0 have grown, and 1 is gone" in text
    assert re.search(r"declared gaps\s+0\s+240\s+\+240", text)
    assert "gateway-99" in browser.run(
        "return document.querySelector('[aria-labelledby=changes] details').textContent"
    )
    assert [each.text for each in browser.all("li .badge")] == ["new"]
    assert 'id="changes"' not in render(*reported(night()))


def test_search_finds_any_of_the_worst_streams(browser: Browser, bad_night: Report, tmp_path: Path) -> None:
    verdict, found = bad_night
    rows = [
        [f"device-{n:05}", f"site/{n % 40}/measurements", n % 3, 10_000 + n, 0, 0, 4, ""]
        for n in range(MAX_STREAMS)
    ]
    rows[:2] = [["first", "t", 0, 5, 5, 0, 1, "billing"], ["<b>second</b>", "t", 7, 5, 0, 2, 0, ""]]
    path = written(tmp_path, (verdict, {**found, "streams": rows}))
    browser.open(path, 390)
    lines = "return [...document.querySelectorAll('#stream-table tbody tr')].map((row) => row.textContent)"
    assert len(browser.run(lines)) == 25
    field = browser.one("#query")
    field.send_keys("DEVICE-04321")
    assert browser.run(lines) == ["device-04321/site/1/measurements~114,32100"]
    assert browser.one("#hits").text == "1 of 5,000"
    field.clear()
    field.send_keys("second")
    assert browser.run(lines) == ["<b>second</b>/t~7502violated"]
    field.clear()
    field.send_keys("device")
    browser.one("#show-more").click()
    assert len(browser.run(lines)) == 225
    assert browser.console() == []
    (embedded,) = re.findall(r'id="stream-data">(.*?)</script>', path.read_text(), flags=re.DOTALL)
    assert len(json.loads(embedded)["rows"]) == MAX_STREAMS


def test_the_chart_says_what_is_under_the_pointer(
    browser: Browser, bad_night: Report, tmp_path: Path
) -> None:
    _, found = bad_night
    browser.open(written(tmp_path, bad_night))
    time = found["time"]
    at = CRASH[1] * MINUTE_US // time["width_us"]
    browser.run(
        "const svg = document.querySelector('.wide-only svg.time'); const box = svg.getBoundingClientRect();"
        "const [l, r, w] = ['left', 'right', 'width'].map((n) => Number(svg.dataset[n]));"
        "const x = box.left + (l + (arguments[0] + 0.5) / arguments[1] * (w - l - r)) * box.width / w;"
        "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: box.top + 20, bubbles: true}))",
        at, time["bins"],
    )  # fmt: skip
    lines = browser.one("#readout").text.splitlines()
    assert lines[0] == "2026-11-26 02:29:00 UTC"
    assert f"published: {time['published'][at]:,}" in lines
    assert f"delivered again to billing: {time['redelivered']['billing'][at]:,}" in lines
    assert f"lag of billing: {time['lag']['billing'][at]:,}" in lines
    assert browser.console() == []


def test_streams_that_are_left_out_are_said_to_be(
    browser: Browser, bad_night: Report, tmp_path: Path
) -> None:
    verdict, found = bad_night
    rows = [[f"device-{n:05}", "measurements", 0, 10, 0, 0, 4, ""] for n in range(MAX_STREAMS)]
    path = written(tmp_path, (verdict, {**found, "streams": rows, "streams_left_out": 1_000}))
    browser.open(path)
    note = browser.one("section[aria-labelledby=streams] .note").text
    assert note.startswith("The worst 5,000. The others (1,000) are not in this page; none is worse.")
    assert "reliamsg audit show DIR STREAM" in note
    more = browser.one("#more-streams")
    assert more.text == "4,975 more."
    browser.one("#query").send_keys("device-05999")
    assert browser.one("#hits").text == "0 of 5,000"
    assert more.text == (
        "No stream here matches. 1,000 streams are not in this page: reliamsg audit show DIR STREAM"
    )
    browser.one("#query").clear()
    browser.one("#query").send_keys("device-04999")
    assert (browser.one("#hits").text, more.text) == ("1 of 5,000", "")
    browser.open(written(tmp_path, bad_night))
    assert "not in this page" not in browser.one("section[aria-labelledby=streams]").text
    browser.one("#query").send_keys("nothing")
    assert browser.one("#more-streams").text == "No stream here matches."


def test_the_worst_of_6000_streams_are_in_the_page(browser: Browser, tmp_path: Path) -> None:
    """From their journals on."""
    bad = set(range(7, 6_000, 300))
    producer, group = Diary("producer", "p"), Diary("group", "g")
    streams = [("p", f"topic-{n:04}") for n in range(6_000)]
    producer.add(0, "opened", groups={topic: ["g"] for _, topic in streams}, sites=["dc1"])
    group.add(0, "opened", topics=[topic for _, topic in streams], sites=["dc1"])
    for stream in streams:
        producer.add(0.1, "epoch", stream, prev=None)
        producer.add(0.2, "enqueued", stream, 1, 10)
        group.add(0.1, "joined", stream, 1)
    for number, stream in enumerate(streams):
        group.add(1, "delivered", stream, 1, 10 - (number in bad))
        if number in bad:
            group.add(2, "declared", stream, 10, 10, reason="expired", elapsed=30.0)
    for diary in (producer, group):
        diary.add(3, "closed")
    verdict, found = reported([producer.chain(), group.chain()])
    assert (verdict["streams"], verdict["messages"]["declared_gaps"]) == (6_000, 20)
    browser.open(written(tmp_path, (verdict, found)))
    lines = browser.run(
        "return [...document.querySelectorAll('#stream-table tbody tr')].map((row) => row.cells[0].textContent)"
    )
    assert sorted(lines[:20]) == [f"p/topic-{n:04}" for n in sorted(bad)]
    assert browser.one("#more-streams").text == "4,975 more."
    assert "The others (1,000) are not in this page" in browser.one("main").text
    assert browser.console() == []


def test_many_groups_on_paper(browser: Browser, bad_night: Report, tmp_path: Path) -> None:
    """Nothing is cut off: what does not fit beside each other stands below each other, with its name."""
    verdict, found = replaced(list(bad_night), {})
    for number in range(12):
        name = f"region-{number:02}-warehouse-inventory"
        verdict["messages"]["delivered"][name] = 12_345_678
        found["flows"]["received"] += [["dc1", name, 12_345_678, 3, 1_234_567]]
    browser.open(written(tmp_path, (verdict, found)), 718)
    browser.media("print")
    assert browser.run("return document.documentElement.scrollWidth") <= 718
    assert browser.run(
        "return [...document.querySelectorAll('.wide')].every((e) => e.scrollWidth <= e.clientWidth)"
    )
    (first, *_) = browser.all(".matrix tbody tr:first-child td.group")
    shown = browser.run("return getComputedStyle(arguments[0], '::before').content", first)
    assert "archive" in shown


def test_on_paper(browser: Browser, bad_night: Report, tmp_path: Path) -> None:
    browser.open(written(tmp_path, bad_night), 720, "dark")
    browser.media("print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not any(each.is_displayed() for each in browser.all("nav, button, .search"))
    assert browser.one("svg.time").is_displayed()


@pytest.mark.parametrize("names", [HOSTILE[:4], HOSTILE[4:]], ids=["first", "second"])
def test_names_are_text(browser: Browser, bad_night: Report, names: tuple[str, ...], tmp_path: Path) -> None:
    mapping = dict(zip(("gateway-3", "orders", "billing", "dc1"), names, strict=True))
    verdict, found = replaced(list(bad_night), mapping)
    path = written(tmp_path, (verdict, found))
    browser.open(path)
    browser.one("#query").send_keys("a")
    assert browser.console() == []
    assert "owned" not in browser.run("return document.title")
    assert (
        browser.run(
            "return document.querySelectorAll('main img, main b bdi *, bdi *, svg svg, script[src]').length"
        )
        == 0
    )
    assert (
        browser.run(
            "return [...document.querySelectorAll('*')].filter((e) => [...e.attributes].some("
            "(a) => /^on|^style$/.test(a.name) || /^javascript:/.test(a.value))).length"
        )
        == 0
    )
    shown = browser.run("return [...document.querySelectorAll('bdi')].map((e) => e.textContent)")
    assert set(map(printable, names)) - set(shown) == set()


ODD = {
    "long": {
        "gateway-3": f"gateway-{'x' * 492}", "orders": f"orders/{'é' * 493}", "billing": "W" * 500,
        "dc1": f"dc1-{'z' * 496}",
    },
    "direction": {
        "gateway-3": "\u202elive", "orders": "a\u2066b", "billing": "\u05e9\u05dc\u05d5\u05dd\u202e123",
        "dc1": "\u200fdc1\u202e",
    },
    "lines": {
        "gateway-3": "a\nb\r\n\tc", "orders": "\x1b[31mred", "billing": "a\x00b\x7f", "dc1": " \u2028dc1\xa0",
    },
    "pictograms": {
        "gateway-3": "\U0001f469\u200d\U0001f467" * 80, "orders": "\U0001f69a" * 90,
        "billing": "e\u0301\u0302\u0303" * 40, "dc1": "\u6f22\u5b57" * 60,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_names_change_neither_layout_nor_direction(
    browser: Browser, bad_night: Report, kind: str, tmp_path: Path
) -> None:
    path = written(tmp_path, tuple(replaced(list(bad_night), ODD[kind])))
    for width, medium in ((1440, ""), (390, ""), (718, "print")):
        browser.open(path, width)
        browser.media(medium)
        # Tables and the row of links scroll by themselves on screens, never the page; paper does not scroll.
        assert browser.run("return document.documentElement.scrollWidth") <= width
        outside = browser.run(
            "return [...document.querySelectorAll('main svg text')].filter((e) => e.getClientRects().length)"
            ".filter((e) => { const t = e.getBoundingClientRect(), p = e.closest('svg').getBoundingClientRect();"
            " return t.left < p.left - 12 || t.right > p.right + 12; }).map((e) => e.textContent)"
        )
        assert outside == []
        text = browser.run("return document.body.textContent")
        assert not re.search(r"[\u200b-\u200f\u2028-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", text)
    if kind == "direction":
        assert "\\u202elive" in browser.one("#stream-table").text
        assert "confirmed by \\u200fdc1\\u202e, and not received" in browser.one(".card.lost h3").text
    assert browser.console() == []


def test_only_the_pages_own_script_and_style_are_allowed(
    browser: Browser, bad_night: Report, tmp_path: Path
) -> None:
    path = written(tmp_path, bad_night)
    html = path.read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html)
    policy = policy.replace("&#39;", "'")
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    script_hash, style_hash = (
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (script, style)
    )
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; base-uri 'none';"
        " form-action 'none'"
    )
    assert not re.search(r"\sstyle=|\son[a-z]+=", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", html)
    evil = html.replace(
        "</main>", '<script>document.title = "owned"</script><p style="color: red">x</p></main>'
    )
    path.write_text(evil)
    browser.open(path)
    assert browser.run("return document.title") != "owned"
    assert len(browser.console()) == 2


def test_the_content_of_a_script_can_not_end_it(bad_night: Report) -> None:
    for name in HOSTILE:
        html = render(*replaced(list(bad_night), {"billing": name, "gateway-3": name}))
        embedded = re.findall(
            r'<script type="application/json" id="[a-z-]+">(.*?)</script>', html, flags=re.DOTALL
        )
        assert len(embedded) == 2
        for each in embedded:
            assert not re.search(r"[<>&\u2028\u2029]", each)
            json.loads(each)
        assert html.count("<script") == html.count("</script>") == 3


@pytest.mark.parametrize("checked", [None, True, False])
def test_whether_the_signature_of_the_state_was_checked(bad_night: Report, checked: bool | None) -> None:
    verdict, found = bad_night
    of_state = {} if checked is None else {"state_signature_checked": checked}
    html = render({**verdict, "evidence": {**verdict["evidence"], **of_state}}, found)
    said = re.findall("The signature of the state was (.*?)\\.", html)
    assert said == {None: [], True: ["checked"], False: ["not checked"]}[checked]


@pytest.mark.parametrize("character", ["x", "&", '"', "\u202e", "\U0001f600"])
def test_long_names_make_no_long_report(bad_night: Report, character: str) -> None:
    verdict, found = bad_night
    name = character * 250
    rows = [[f"{name}{n}", f"{name}{n}", 0, 1, 1, 1, 0, name] for n in range(MAX_STREAMS)]
    incidents = [{**verdict["incidents"][0], "id": f"{n:012x}", "producer": f"{name}{n}", "topic": name,
                  "groups": [name] * 50, "lines": [name * 4] * 10, "next": name * 4, "cause": f"{name}{n}"}
                 for n in range(1_000)]  # fmt: skip
    findings = [{**verdict["findings"][0], "text": name * 4}] * 1_000
    html = render({**verdict, "incidents": incidents, "findings": findings}, {**found, "streams": rows})
    assert len(html.encode()) <= MAX_BYTES


def test_no_journals_at_all(browser: Browser, tmp_path: Path) -> None:
    verdict, found = reported([])
    path = written(tmp_path, (verdict, found))
    assert path.stat().st_size < 50_000
    browser.open(path)
    assert browser.console() == []
    assert "there are no journals" in browser.one("main").text
    assert browser.all("svg") == []


def test_a_verdict_of_an_earlier_version(browser: Browser, bad_night: Report, tmp_path: Path) -> None:
    """It can be shown again, without what it lacks."""
    verdict, found = bad_night
    older = {name: value for name, value in verdict.items() if not name.startswith("incidents")}
    browser.open(written(tmp_path, (older, {"kinds": found["kinds"]})))
    assert browser.console() == []
    assert browser.one("#verdict").text == "Violated"


def test_a_report_is_replaced_whole(tmp_path: Path, bad_night: Report) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write(path, *bad_night)
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_every_kind_has_its_place(bad_night: Report) -> None:
    kinds = [{"kind": kind, "grp": None, "findings": 1, "messages": 0} for kind in KINDS]
    html = render(bad_night[0], {"kinds": kinds})
    for kind, (severity, meaning) in KINDS.items():
        assert f'<tr class="{severity}"><th scope="row">{kind.replace("_", " ")}</th>' in html
        assert meaning.replace("'", "&#39;") in html


def test_whatever_never_reaches_a_group_is_counted_in_its_line(bad_night: Report) -> None:
    kinds = [{"kind": kind, "grp": "archive", "findings": 1, "messages": 100} for kind in LOSSES]
    html = render(bad_night[0], {"kinds": kinds})
    line = re.search(r"<bdi>archive</bdi></th>(.*?)</tr>", html)
    assert line is not None
    assert re.findall(r">([\d,]+)<", line[1])[:2] == ["143,640", str(100 * len(LOSSES))]


def test_every_kind_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "audit.md").read_text()
    for kind, (severity, meaning) in KINDS.items():
        assert f"| `{kind}` | {severity} | {meaning} |" in page
