"""``reliamsg plan --page``: in a browser, without a network, its numbers are those of the command."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reliamsg.plan import Client, Compared, Rates, make_plan, read_rates, write_page
from reliamsg.policy import Confirm, Quorum
from tests.audit.browser import Browser, open_browser
from tests.cli.commands import reliamsg_here, succeeded
from tests.plan.examples import ONE_SITE, RATES, rates_of, write_rates

pytestmark = pytest.mark.integrations

WORLDS = 40
NOT_EXACT = 1e-6
"""The least relative difference that counts: libraries round exponentials differently, and differences of numbers that
are almost equal (``on_gap="skip"``) magnify that."""
NOTHING = 1e-15
SHOWN = (
    "return [...document.querySelectorAll('#results div')]"
    ".map(e => [e.children[0].textContent, e.children[1].textContent])"
)
EDGES = "return [...document.querySelectorAll('svg.wide-map [data-edge]')].map(e => [e.dataset.edge, e.textContent])"
ROWS = "return [...document.querySelectorAll('#compared tbody tr')].map(r => [...r.children].map(c => c.textContent))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    """The page of :data:`RATES`, as the command writes it."""
    path = tmp_path / "plan.html"
    succeeded(reliamsg_here("plan", write_rates(tmp_path), "--page", path))
    browser.open(path)
    return browser


def random_rates(dice: random.Random) -> str:
    """The rates of a file with each number replaced by another one: a rate or duration that is 0 in one of five cases,
    and otherwise within a factor of a thousand."""

    def other(found: re.Match[str]) -> str:
        name, value = found[1], float(found[2])
        if name == "losing_share":
            return f"{name} = {dice.random()}"
        if name not in ("messages_per_second", "message_bytes") and dice.random() < 0.2:
            return f"{name} = 0"
        return f"{name} = {value * 10 ** dice.uniform(-1.5, 1.5)}"

    text = ONE_SITE if dice.random() < 0.3 else RATES
    handling = dice.choice(
        [
            '"autoheal"',
            '"ignore"\nresolve_seconds = 90',
            '"pause_minority"\ndetection_seconds = 60',
            '"quorum"',
        ]
    )
    text = text.replace('"autoheal"', handling)
    if dice.random() < 0.5:  # a site that is a cluster
        text += text[text.index("[cluster.partitions]") :].replace("[cluster", "[sites.dc1")
    return re.sub(r"(\w+) = ([\d.]+)", other, text)


def random_client(dice: random.Random, sites: tuple[str, ...]) -> Client:
    policies: list[Confirm] = ["all", "any", "all-active", *(Quorum(k + 1) for k in range(len(sites)))]
    return Client(
        sites=sites,
        confirm=dice.choice(policies),
        release=dice.choice(["confirmed", "consumed"]),
        retain_seconds=dice.choice([0.0, 10.0, 300.0, 5000.0]),
        retain_bytes=dice.choice([0, 10_000, 2**26]),
        max_bytes=dice.choice([1024, 100_000, 2**30]),
        status_interval=dice.choice([0.05, 1.0, 30.0]),
        on_gap=dice.choice(["hold", "raise", "skip"]),
        gap_timeout=dice.choice([1.0, 30.0, 1000.0]),
    )


def differences(python: Any, javascript: Any, at: str = "") -> Iterator[str]:
    """Where two trees of numbers differ."""
    if isinstance(python, dict):
        for key, value in python.items():
            yield from differences(value, javascript[key], f"{at}.{key}")
    elif isinstance(python, list | tuple):
        assert len(python) == len(javascript), at
        for index, (one, other) in enumerate(zip(python, javascript, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif isinstance(python, float):
        if not math.isclose(python, javascript, rel_tol=NOT_EXACT, abs_tol=NOTHING):
            yield f"{at}: {python} and {javascript}"
    elif python != javascript:
        yield f"{at}: {python!r} and {javascript!r}"


def as_script(one: Compared) -> dict[str, Any]:
    """A client's fate in the form of the script."""
    fate = asdict(one.fate)
    start = "durable" if one.fate.edges["accepted", "durable"] else "in memory"
    edges = [
        [*edge, value]
        for edge, value in one.fate.edges.items()
        if not set(edge) & ({"durable", "in memory"} - {start})
    ]
    fate |= {
        "missing": one.fate.missing,
        "edges": edges,
        "confirmed": [list(each) for each in fate["confirmed"].items()],
    }
    return {
        "name": one.name, "fate": fate, "lost_per_year": one.lost_per_year,
        "duplicated_per_year": one.duplicated_per_year,
    }  # fmt: skip


def in_script(client: Client) -> dict[str, Any]:
    confirm = client.confirm.k if isinstance(client.confirm, Quorum) else client.confirm
    return asdict(client) | {"confirm": confirm}


def test_the_script_computes_what_the_command_does(page: Browser, tmp_path: Path) -> None:
    for seed in range(WORLDS):
        dice = random.Random(seed)
        rates = rates_of(tmp_path, random_rates(dice))
        client = random_client(dice, tuple(rates.sites))
        plan = make_plan(rates, client)
        given = [msgspec.to_builtins(rates), in_script(client)]
        found = page.run("return makePlan(...arguments[0])", given)
        wanted = {"client": as_script(plan.client), "compared": [as_script(one) for one in plan.compared]}
        assert list(differences(wanted, found)) == [], f"random.Random({seed}): {given}"
        moved = {one["name"]: one for one in page.run(
            "const [r, c] = arguments[0]; return influences(r, c, fateOf(systemOf(r, c)))", given
        )}  # fmt: skip
        assert moved.keys() == {one.name for one in plan.influences}
        for one in plan.influences:
            assert math.isclose(one.elasticity, moved[one.name]["elasticity"], rel_tol=1e-3, abs_tol=1e-3), (
                seed,
                one,
            )


def numbers(command: str) -> tuple[list[list[str]], list[list[str]]]:
    """The results and the edges that the command prints."""
    lines = command.splitlines()
    results = [re.split(r"  +", line.strip()) for line in lines[1:10]]
    at = lines.index("the way of a message (probability per message)")
    end = lines.index("what matters most (growth of loss if it grows by 1 %)")
    return results, [re.split(r"  +", line.strip()) for line in lines[at + 1 : end]]


def agrees(page: Browser, rates: Path) -> None:
    """What the page shows is what the command prints."""
    output = succeeded(reliamsg_here("plan", rates)).decode()
    results, edges = numbers(output)
    assert page.run(SHOWN) == results
    assert [edge for edge in page.run(EDGES) if edge[1] != "0"] == edges
    plan = make_plan(read_rates(rates))
    rows = page.run(ROWS)
    assert [row[0] for row in rows] == [one.name for one in plan.compared]
    assert [row[2:5] for row in rows] == [
        [f"{one.fate.missing:.2g}", f"{one.lost_per_year:.2g}", f"{one.fate.duplicated:.2g}"]
        for one in plan.compared
    ]


def settle(page: Browser) -> None:
    """Wait until everything that changed is shown."""
    page.run("return new Promise(done => setTimeout(done, 400))")


def test_the_page_shows_what_the_command_prints_also_after_a_change(page: Browser, tmp_path: Path) -> None:
    agrees(page, tmp_path / "rates.toml")
    for table, name, position in (
        ("sites.dc1", "losses_per_year", 900), ("consumer", "outage_seconds", 200),
        ("producer", "disk_losses_per_year", 0), ("cluster.partitions", "losing_share", 250),
        ("traffic", "messages_per_second", 0),
    ):  # fmt: skip
        page.run(
            "const slider = document.querySelector(`[data-table='${arguments[0]}'] [data-name=${arguments[1]}] input`);"
            "slider.value = arguments[2]; slider.dispatchEvent(new Event('input'))",
            table, name, position,
        )  # fmt: skip
        settle(page)
        changed = tmp_path / "changed.toml"
        changed.write_text(page.one("#toml").text)
        agrees(page, changed)
    before = read_rates(tmp_path / "rates.toml")
    after = read_rates(tmp_path / "changed.toml")
    assert after.producer.disk_losses_per_year == 0
    assert after.sites["dc1"].losses_per_year > 20 * before.sites["dc1"].losses_per_year
    assert after.sites["dc2"] == before.sites["dc2"]
    page.one("#reset").click()
    settle(page)
    agrees(page, tmp_path / "rates.toml")


def test_settings_and_other_clients_can_be_chosen(page: Browser, tmp_path: Path) -> None:
    plan = make_plan(read_rates(tmp_path / "rates.toml"))
    page.run(
        "const select = document.querySelector('[data-name=release] select');"
        "select.value = 'consumed'; select.dispatchEvent(new Event('change'))"
    )
    settle(page)
    (kept,) = [one for one in plan.compared if one.name.endswith("release=consumed, confirm=all")]
    assert page.one("#client").text == kept.name
    assert page.run(SHOWN)[0] == ["lost, per message", f"{kept.fate.lost:.3g}"]
    page.run(
        "const select = document.getElementById('shown');"
        "select.value = 1; select.dispatchEvent(new Event('change'))"
    )
    settle(page)
    paho = plan.compared[0]
    assert dict(page.run(EDGES))["in memory -> lost"] == f"{paho.fate.edges['in memory', 'lost']:.3g}"


@pytest.mark.parametrize("text", ["-1", "", "nine", "1e10", "NaN"])
def test_an_invalid_number_changes_nothing(page: Browser, text: str) -> None:
    before = page.run(SHOWN)
    page.run(
        "const input = document.querySelector('[data-table=consumer] [data-name=outage_seconds] [type=text]');"
        "input.value = arguments[0]; input.dispatchEvent(new Event('input'))",
        text,
    )
    settle(page)
    assert page.run("return document.querySelectorAll('[aria-invalid=true]').length") == 1
    assert page.run(SHOWN) == before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 800, 1440])
def test_it_fits_any_screen_and_writes_nothing_to_the_console(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "plan.html"
    write_page(path, rates_of(tmp_path))
    browser.open(path, width, scheme)
    settle(browser)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.console() == []
    visible = browser.run(
        "return [...document.querySelectorAll('#map svg')].filter(e => e.clientWidth).length"
    )
    assert visible == 1
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text())


def test_names_from_the_files_are_text(browser: Browser, tmp_path: Path) -> None:
    name = '</script><b id=\\"bold\\">x'
    text = RATES.replace("[sites.dc1]", f'[sites."{name}"]')
    path = tmp_path / "plan.html"
    rates = rates_of(tmp_path, text)
    write_page(path, rates)
    browser.open(path)
    assert browser.all("#bold") == []
    assert "</script><b id=" in browser.one("#inputs").text
    assert browser.console() == []
    again = tmp_path / "again.toml"
    again.write_text(browser.one("#toml").text)
    assert read_rates(again) == rates


def test_general_formats_as_python_does(page: Browser) -> None:
    dice = random.Random(7)
    values = [0.0, 1.0, 0.5, 999.4, 999.6, 1000.0, 1e-4, 9.999e-5, 1e22, 1e-300, 123456.0]
    values += [10 ** dice.uniform(-20, 12) for _ in range(500)]
    for digits in (2, 3, 5):
        found = page.run("return arguments[0].map(v => general(v, arguments[1]))", values, digits)
        assert found == [f"{value:.{digits}g}" for value in values]


def test_json_of_a_page_is_that_of_the_command(tmp_path: Path) -> None:
    """--page changes nothing that is printed."""
    rates = write_rates(tmp_path)
    plain = json.loads(succeeded(reliamsg_here("plan", rates, "--json")))
    assert (
        json.loads(succeeded(reliamsg_here("plan", rates, "--json", "--page", tmp_path / "p.html"))) == plain
    )


def test_rates_without_a_cluster_have_a_page(browser: Browser, tmp_path: Path) -> None:
    text = ONE_SITE[: ONE_SITE.index("[cluster]")]
    rates: Rates = rates_of(tmp_path, text)
    write_page(tmp_path / "plan.html", rates)
    browser.open(tmp_path / "plan.html")
    assert len(browser.run(ROWS)) == len(make_plan(rates).compared)
    assert browser.console() == []
