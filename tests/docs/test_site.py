"""The site of ``make docs``: complete, without broken links, and usable offline at any width."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.audit.browser import Browser, open_browser
from tests.children import run_child
from tests.docs.blocks import ROOT
from tests.once import made_once
from tests.patience import wait_for

pytestmark = pytest.mark.integrations

PACKAGES = {
    "reliamsg": "reliamsg", "reliamsg.aio": "aio", "reliamsg.prometheus": "prometheus", "reliamsg.otel": "otel",
    "reliamsg.cloudevents": "cloudevents", "reliamsg.testing": "testing", "reliamsg.checker": "checker",
    "reliamsg.lab": "lab", "reliamsg.plan": "plan",
}  # fmt: skip
"""Public packages, and their pages in ``docs/reference/api``."""
KINDS = ["Tutorial", "How-to guides", "Reference", "Explanation"]


def build(sources: Path, site: Path, doctrees: Path) -> tuple[int, str]:
    """Build as ``make docs`` does; returns the exit status and the warnings."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", doctrees, sources, site]
    done = run_child(list(map(str, command)), text=True, timeout=500)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(place: Path) -> None:
        status, warnings = build(ROOT, place / "site", place / "doctrees")
        assert status == 0, warnings

    return made_once(tmp_path_factory, "documentation", make) / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@dataclass
class Page(HTMLParser):
    """The links, loaded files, anchors and text of a page."""

    path: Path
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name == "href" and tag == "a" and value:
                self.links.append(value)
            elif name in ("href", "src") and value:
                self.loaded.append(value)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_links_and_loaded_files_exist(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.loaded + page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded:
                    broken.append(f"{path}: loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path}: {link}")
            elif target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path}: {link}: no such anchor")
    assert len(pages) > 35
    assert not broken


def test_stylesheets_load_nothing_from_elsewhere(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    assert [
        path for path in sheets if re.search(r"""(@import|url\()\s*["']?(https?:)?//""", path.read_text())
    ] == []


def test_no_markup_is_left_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    found = [
        match[0]
        for path, page in pages.items()
        if path.is_relative_to(site / "docs/reference/api")
        for match in re.finditer(r".{0,40}(:\w+:`|``|\.\. \w+::).{0,40}", "".join(page.text))
    ]
    assert not found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str, site: Path, pages: dict[Path, Page]) -> None:
    anchors = pages[site / f"docs/reference/api/{PACKAGES[package]}.html"].anchors
    names = [f"{package}.{name}" for name in importlib.import_module(package).__all__]
    assert [name for name in names if name not in anchors] == []


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    start = pages[site / "README.html"]
    assert [kind for kind in KINDS if kind not in start.text] == []
    linked = {(site / urlsplit(link).path).resolve() for link in start.links}
    generated = {site / f"{name}.html" for name in ("index", "genindex", "py-modindex", "search", "README")}
    assert set(pages) - generated - linked == set()


def test_pages_open_offline_at_any_width(site: Path, pages: dict[Path, Page], browser: Browser) -> None:
    for path in pages:
        for width, scheme in ((390, "dark"), (1440, "light")):
            browser.open(path, width, scheme)
            assert browser.console() == [], (
                path
            )  # a request to another host can't be resolved, and would be here
            loaded = browser.run("return performance.getEntriesByType('resource').map(each => each.name)")
            assert [url for url in loaded if not url.startswith(site.as_uri())] == [], path
            assert browser.run("return document.documentElement.scrollWidth") <= width, path


def test_the_start_page_is_the_readme(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html")
    wait_for(lambda: browser.run("return location.pathname.endsWith('/README.html')"))


def test_the_dark_scheme_is_dark(site: Path, browser: Browser) -> None:
    light, dark = (brightness(site / "README.html", browser, scheme) for scheme in ("light", "dark"))
    assert (dark < 64, light > 192) == (True, True)


def brightness(path: Path, browser: Browser, scheme: str) -> float:
    browser.open(path, scheme=scheme)
    color: str = browser.run("return getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"\d+", color)[:3])) / 3


def test_search_finds_an_error(site: Path, browser: Browser) -> None:
    browser.open(site / "README.html")
    browser.one("input[name=q]").send_keys("OutboxFull\n")
    wait_for(lambda: any(each.text == "reliamsg.OutboxFull" for each in browser.all("#search-results a")))
    (link,) = (each for each in browser.all("#search-results a") if each.text == "reliamsg.OutboxFull")
    assert (link.get_attribute("href") or "").endswith("docs/reference/api/reliamsg.html#reliamsg.OutboxFull")
    assert browser.console() == []


def test_a_method_is_described_and_linked(site: Path, browser: Browser) -> None:
    browser.open(site / "docs/reference/api/reliamsg.html")
    definition = browser.one("[id='reliamsg.Producer.publish']")
    assert "topic: str" in definition.text
    description = browser.one("[id='reliamsg.Producer.publish'] + dd")
    assert "OutboxFull" in description.text
    targets = [
        each.get_attribute("href") or "" for each in browser.all("[id='reliamsg.Producer.publish'] + dd a")
    ]
    assert any(target.endswith("#reliamsg.OutboxFull") for target in targets)


def test_broken_links_and_references_are_errors(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    (sources / "docs/site").mkdir(parents=True)
    for name in ("conf.py", "docs/site/index.html", "docs/site/site.css"):
        (sources / name).write_text((ROOT / name).read_text())
    (sources / "README.md").write_text("# Start\n\n[one](nowhere.md) [two](docs/tutorial.md#nothing)\n")
    (sources / "docs/tutorial.md").write_text("# Tutorial\n")
    (sources / "docs/examples.rst").write_text("Examples\n========\n\n:meth:`reliamsg.Producer.vanish`\n")
    (sources / "docs/apart.md").write_text("# Apart\n")
    status, warnings = build(sources, tmp_path / "site", tmp_path / "doctrees")
    assert status != 0
    for text in (
        "'nowhere.md'", "'nothing'", "target not found: reliamsg.Producer.vanish",
        "apart.md: WARNING: document isn't included in any toctree",
    ):  # fmt: skip
        assert text in warnings, text
