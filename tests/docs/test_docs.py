"""Every code block of the README and of the documentation runs, on real brokers; every link resolves.

:mod:`tests.docs.blocks` describes how blocks are written, and which of them run. Broker URLs at localhost,
with AMQP's ports from 5672 and MQTT's from 1883, are replaced by those of real brokers; each file and port has
an empty one of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.brokers import own_vhost
from tests.children import run_child
from tests.docs.blocks import RUN, Block, DocsError, blocks, check_kind, is_file, run

ROOT = Path(__file__).parent.parent.parent
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_AMQP = re.compile(r"amqp://(?:[^@\s\"'`/]*@)?localhost(?::(567\d))?(?:/%2F)?(?=[\s\"'`,]|$)", re.MULTILINE)
_MQTT = re.compile(r"mqtt://localhost(?::(188\d))?(?=[\s\"'`,]|$)", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_of(path: Path) -> str:
    return "".join(block.text for block in blocks(path.read_text()) if block.kind in RUN or is_file(block))


@pytest.fixture
def brokers(
    request: pytest.FixtureRequest, make_mosquitto: Callable[..., Mosquitto]
) -> Callable[[Path], dict[str, str]]:
    """Starts the brokers that a file's blocks need, and returns the replacements of its URLs."""

    def start(path: Path) -> dict[str, str]:
        code = code_of(path)
        urls: dict[str, str] = {}
        for found in _AMQP.finditer(code):
            if found[0] not in urls:
                rabbit: RabbitNode = request.getfixturevalue("rabbit")
                urls[found[0]] = own_vhost(rabbit, f"docs-{path.stem}-{found[1] or 5672}")
        for found in _MQTT.finditer(code):
            if found[0] not in urls:
                urls[found[0]] = make_mosquitto().url
        return urls

    return start


AT_FULL_SIZE = {"docs/how-to/audit.md"}
"""Two further audits, half a minute each; the README and an example also run the command and the call."""
INTEGRATIONS = {
    "README.md", "docs/how-to/chaos.md", "docs/how-to/collect-journals.md", "docs/how-to/end-to-end.md",
    "docs/how-to/shutdown.md", "docs/how-to/signatures.md", "docs/how-to/standby.md",
}  # fmt: skip
"""These take longest: many processes, or an audit in a process of its own."""
_SPARK = re.compile(r"reliamsg audit|reliamsg\.audit|pyspark")
"""Matches blocks that start Spark."""


def marks_of(path: Path) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.full] if name_of(path) in AT_FULL_SIZE else []
    marks += [pytest.mark.integrations] if name_of(path) in INTEGRATIONS else []
    return [*marks, pytest.mark.spark] if _SPARK.search(code_of(path)) else marks


WITH_CODE = [pytest.param(path, marks=marks_of(path), id=name_of(path)) for path in FILES if code_of(path)]


@pytest.mark.parametrize("path", WITH_CODE)
def test_the_code_runs(path: Path, tmp_path: Path, brokers: Callable[[Path], dict[str, str]]) -> None:
    urls = brokers(path)
    place = tmp_path / "work"
    place.mkdir()
    run_page(path, place, urls)


def test_the_first_example_runs_by_itself(tmp_path: Path) -> None:
    """The first block of the README is a short program that needs no broker."""
    first = blocks((ROOT / "README.md").read_text())[0]
    assert first.kind == "python"
    assert len([line for line in first.text.splitlines() if line]) <= 12
    (tmp_path / "first.py").write_text(first.text)
    done = run_child([sys.executable, "-W", "error", "first.py"], cwd=tmp_path, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42 widgets\n", "")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.svg")), ids=name_of)
def test_pictures_are_small_and_self_contained(path: Path) -> None:
    text = path.read_text()
    ElementTree.fromstring(text)
    assert len(text) < 200_000
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://(?!www\.w3\.org/)|<script|@import", text) == []


def run_page(path: Path, place: Path, urls: dict[str, str]) -> None:
    """Run a file's blocks in a process of its own, in the directory `place`."""
    # Longest first: one URL may be the beginning of another.
    replacements = [f"{old}={urls[old]}" for old in sorted(urls, key=len, reverse=True)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.docs.blocks", str(path), *replacements],
        cwd=place,
        # Java's optimizing compiler does not pay off within a minute: it would take a third of the time.
        env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=560)
        finally:
            end_group(process.pid)
    assert process.returncode == 0, output[-6000:]


def end_group(leader: int) -> None:
    """Kill all processes that the blocks left running."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_code_is_called_code(path: Path) -> None:
    for block in blocks(path.read_text()):
        check_kind(block)


@pytest.mark.parametrize("path", [*FILES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in _LINK.findall(path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = path.parent / file if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert not broken


def anchors(path: Path) -> set[str]:
    """The anchors of a Markdown file's headings."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGE = """
```python
from urllib.parse import urlsplit
import socket
for url in ("amqp://guest:guest@localhost:5672/%2F", "mqtt://localhost:1883", "mqtt://localhost:1884"):
    assert "localhost" not in url
    socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)).close()
assert "mqtt://localhost:1883" != "mqtt://localhost:1884"
```
"""


def test_urls_become_those_of_running_brokers(
    tmp_path: Path, brokers: Callable[[Path], dict[str, str]]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    urls = brokers(page)
    assert len(set(urls.values())) == 3
    run_page(page, tmp_path, urls)


def test_the_table_of_extras_is_complete() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    _, _, page = (ROOT / "docs/reference/cli.md").read_text().partition("## Extras\n")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", page.partition("\n## ")[0], re.MULTILINE)
    assert [name for name, _ in rows] == sorted(extras)
    for name, installs in rows:
        needed = {re.split(r"[>=<]", each)[0].replace("-", "_") for each in extras[name]}
        assert {each.lower().replace("-", "_") for each in installs.split(", ")} == needed, name


class TestBlocks:
    """The runner detects mistakes."""

    def run(self, text: str, place: Path, monkeypatch: pytest.MonkeyPatch, **replacements: str) -> None:
        monkeypatch.chdir(place)
        (place / "page.md").write_text(text)
        run(place / "page.md", replacements)

    def test_everything(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = (
            "```python\n# made.py\nprint('one two')\n```\n"
            "- indented:\n  ```python\n  x = 'OLD'\n  ```\n"
            "```python\nassert x == 'new'\n```\n"
            "```console\n$ python \\\n    made.py\none ...\n$ make test\n$ pip install '.[demo]'\n```\n"
            "```text\n$ not run\n```\n"
        )
        self.run(text, tmp_path, monkeypatch, OLD="new")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("```python\nassert False, 'wrong'\n```\n", "wrong"),
            ("```console\n$ false\n```\n", "line 2: false\nended with status 1"),
            ("```console\n$ false | true\n```\n", "status 1"),
            ("```console\n$ echo a\nb\n```\n", "did not print: b"),
            ("```console\n$ printf 'b\\na'\na\nb\n```\n", "did not print: b"),
            ("```console\nhello\n```\n", "before the first command"),
            ("```console\n$ make nonsense\n```\n", "no target nonsense"),
            ("```console\n$ pip install '.[nonsense]'\n```\n", "no extra nonsense"),
            ("```bash\ntrue\n```\n", "not `bash`"),
            ("```python\n1\n", "not closed"),
        ],
    )
    def test_failures(self, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(AssertionError, match=re.escape(says)):
            self.run(text, tmp_path, monkeypatch)

    def test_tracebacks_name_the_line_of_the_page(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            self.run("text\n\n```python\na = 1\n1 / 0\n```\n", tmp_path, monkeypatch)
        assert caught.traceback[-1].lineno == 4  # counted from 0

    def test_a_block_knows_where_it_is(self) -> None:
        assert blocks("a\n```python\nx\n```\n") == [Block("python", 3, "x\n")]
        with pytest.raises(DocsError):
            check_kind(Block("sh", 1, ""))
