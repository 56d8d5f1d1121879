"""Every error: one clear line, an exit code for its kind, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import __version__
from tests.children import run_child
from tests.cli.commands import (
    Sites,
    create,
    json_of,
    publish,
    refused,
    reliamsg,
    reliamsg_here,
    start,
    subscribe,
    succeeded,
)
from tests.patience import wait_for

pytestmark = pytest.mark.integrations

SITE = "dc1=mqtt://127.0.0.1:1"


def test_version_and_help() -> None:
    assert succeeded(reliamsg("--version")).decode().strip() == f"reliamsg {__version__}"
    for command in ([], ["pub"], ["sub"], ["group", "create"], ["outbox", "drain"], ["demo"]):
        text = succeeded(reliamsg(*command, "--help")).decode()
        assert "Usage: reliamsg" in text
        assert "Exit codes:" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", "dc1=memory://dc1"], ["in-memory"]),
        (["nonsense"], ["nonsense"]),
        (["pub"], ["TOPIC"]),
        (["pub", "t", "--producer", "p", "--outbox", "o.db"], ["--site"]),
        (["pub", "t", "--producer", "p", "--site", SITE], ["--outbox"]),
        (["pub", "a+b", "--producer", "p", "--outbox", "o.db", "--site", SITE], ["topic", "'+'"]),
        (["pub", "", "--producer", "p", "--outbox", "o.db", "--site", SITE], ["topic is empty"]),
        (["pub", "t" * 101, "--producer", "p", "--outbox", "o.db", "--site", SITE], ["101 bytes"]),
        (["pub", "t", "--producer", "p:q", "--outbox", "o.db", "--site", SITE], ["producer", "':'"]),
        (["pub", "t", "--producer", "p", "--group", "g~1", "--outbox", "o.db", "--site", SITE], ["'~'"]),
        (["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", "mqtt://u:secret@h"], ["NAME=URL"]),
        (
            ["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", "dc1=http://u:secret@h"],
            ["mqtts://"],
        ),
        (["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", "dc1=mqtt://u:secret@"], ["HOST"]),
        (["pub", "t", "--producer", "p", "--outbox", "o.db", "mqtt://u:secret@h"], []),
        (
            ["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", SITE, "--site", SITE],
            ["'dc1' is used twice"],
        ),
        (
            ["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", SITE, "--confirm", "some"],
            ["all-active"],
        ),
        (
            ["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", SITE, "--confirm", "2"],
            ["Quorum(2)"],
        ),
        (
            ["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", SITE, "--timeout", "0"],
            ["--timeout"],
        ),
        (["pub", "t", "--producer", "p", "--outbox", "o.db", "--site", SITE, "--cafile", "none"], ["none"]),
        (["sub", "t", "--group", "g", "--site", SITE], ["--inbox"]),
        (["sub", "t", "--group", "g#", "--inbox", "i.db", "--site", SITE], ["'#'"]),
        (["sub", "t", "--group", "g", "--inbox", "i.db", "--site", SITE, "--count", "0"], ["--count"]),
        (["group", "create", "g", "--site", SITE], ["--topic"]),
        (["outbox", "drain", "--site", SITE], ["OUTBOX"]),
        (["demo", "--messages", "5"], ["--messages"]),
        (["demo", "--sites", "kafka"], ["embedded"]),
    ],
    ids=lambda value: " ".join(value)[:60] if value else "",
)
def test_wrong_arguments(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    last = refused(reliamsg_here(*arguments), 64, *words)
    assert "secret" not in last
    assert not list(tmp_path.iterdir()), "a wrong command makes no files"


def test_unreachable_sites(nowhere: Sites) -> None:
    for result in (create(nowhere, "t", "g"), create(nowhere, "t", "g", "--json")):
        assert "secret-word" not in refused(result, 69, "dc1", "refused")
    assert b'"created": false' in result.stdout
    result = publish(nowhere, "t", b"a\n", "--timeout", "3")
    refused(result, 69, "1 line stored", "1 message ", "dc1")
    assert b"secret-word" not in result.stderr


def test_input_that_cannot_be_read(nowhere: Sites) -> None:
    refused(publish(nowhere, "t", b"", "--file", "/nonexistent"), 66, "/nonexistent")
    refused(publish(nowhere, "t", b"", "--file", "/"), 66, "directory")


def test_files_of_another_kind(nowhere: Sites) -> None:
    sites = nowhere.arguments
    Path(nowhere.file("text")).write_text("this is no database, and long enough to show it" * 100)
    succeeded(publish(nowhere, "t", b""))
    outbox = nowhere.file("p.db")
    other = ["pub", "t", "--producer", "q", "--outbox", outbox, *sites]
    refused(reliamsg(*other), 65, "belongs to producer 'p'")
    refused(reliamsg("sub", "t", "--group", "g", "--inbox", outbox, *sites), 65, "this is an outbox")
    text = nowhere.file("text")
    refused(reliamsg("pub", "t", "--producer", "p", "--outbox", text, *sites), 65, "text")
    refused(reliamsg("sub", "t", "--group", "g", "--inbox", text, *sites), 65, "text")
    for command in ("stats", "ls"):
        refused(reliamsg("outbox", command, text), 65, "text")
        refused(reliamsg("outbox", command, nowhere.file("absent.db")), 65, "absent.db")
    refused(reliamsg("outbox", "drain", text, *sites), 65, "text")
    subscribe(nowhere, "t", "g", "--timeout", "0.1")
    refused(reliamsg("outbox", "stats", nowhere.file("g.db")), 65, "inbox")


def test_a_place_that_cannot_be_written(nowhere: Sites) -> None:
    Path(nowhere.file("file")).touch()
    inside = nowhere.file("file/o.db")
    refused(reliamsg("pub", "t", "--producer", "p", "--outbox", inside, *nowhere.arguments), 74, inside)
    refused(reliamsg("sub", "t", "--group", "g", "--inbox", inside, *nowhere.arguments), 74, inside)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB; requires root."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(nowhere: Sites, small_disk: Path) -> None:
    sites = Sites(nowhere.arguments, small_disk)
    lines = b"".join(b"%d %s\n" % (n, os.urandom(50).hex().encode()) for n in range(20_000))
    last = refused(publish(sites, "t", lines, "--timeout", "0.5"), 74, "p.db", "lines stored")
    stats = json_of(succeeded(reliamsg("outbox", "stats", sites.file("p.db"), "--json")))
    assert f"{stats['messages']:,} lines stored" in last, "it reports exactly the content of the outbox"


def test_a_second_process(mqtt: Sites, unique: str) -> None:
    first = start(
        "pub", unique, "--producer", "p", "--outbox", mqtt.file("p.db"), *mqtt.arguments,
        stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        wait_for(lambda: Path(mqtt.file("p.db-wal")).exists(), "the outbox is open")
        refused(publish(mqtt, unique, b""), 75, "open in another process")
        refused(
            reliamsg("outbox", "drain", mqtt.file("p.db"), *mqtt.arguments), 75, "open in another process"
        )
    finally:
        first.kill()
        first.wait()
    reader = start("sub", unique, "--group", unique, "--inbox", mqtt.file(f"{unique}.db"), *mqtt.arguments)
    try:
        wait_for(lambda: Path(mqtt.file(f"{unique}.db-wal")).exists(), "the inbox is open")
        refused(subscribe(mqtt, unique, unique), 75, "open in another process")
    finally:
        reader.kill()
        reader.wait()


def test_a_fault_of_our_own_is_one_line_too() -> None:
    code = (
        "import sys, click; from reliamsg.cli import main; from reliamsg.cli.app import root\n"
        "@root.command()\n"
        "def broken(): raise KeyError('mqtt://u:secret@h\\nsecond line')\n"
        "sys.exit(main(['broken']))\n"
    )
    result = run_child([sys.executable, "-c", code])
    assert "secret" not in refused(result, 70, "internal error: KeyError")
