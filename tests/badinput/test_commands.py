"""The command line: each fault is one clear line and an exit code, never a traceback or a password."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.cli.commands import (
    Sites,
    create,
    publish,
    refused,
    reliamsg,
    reliamsg_here,
    start,
    subscribe,
    succeeded,
)
from tests.patience import wait_for
from tests.store.faults import DiskFaults, fill, remount, small_disk

pytestmark = pytest.mark.integrations
"""Each of them starts dozens of processes."""

SECRET = "the-pass-word"


@pytest.fixture
def nowhere(free_port: int, tmp_path: Path) -> Sites:
    """A site without a listener, with a password in its URL."""
    return Sites(["--site", f"dc1=mqtt://user:{SECRET}@127.0.0.1:{free_port}"], tmp_path)


@pytest.fixture
def both(rabbit: RabbitNode, shared_mosquitto: Mosquitto, tmp_path: Path) -> Sites:
    """RabbitMQ and Mosquitto."""
    return Sites(["--site", f"dc1={rabbit.url}", "--site", f"dc2={shared_mosquitto.url}"], tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small") as found:
        yield found


def secretless(result: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[bytes]:
    assert SECRET.encode() not in result.stdout + result.stderr
    return result


@pytest.fixture(params=["amqp", "mqtt"])
def wrong_login(
    request: pytest.FixtureRequest, make_mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> Sites:
    if request.param == "amqp":
        port = request.getfixturevalue("rabbit").port
        return Sites(["--site", f"dc1=amqp://guest:{SECRET}@127.0.0.1:{port}"], tmp_path)
    port = make_mosquitto(users={"alice": "right"}).port
    return Sites(["--site", f"dc1=mqtt://alice:{SECRET}@127.0.0.1:{port}"], tmp_path)


def test_wrong_credentials(wrong_login: Sites, unique: str) -> None:
    for level in ((), ("-vv",)):
        result = reliamsg(
            *level, "pub", unique, *wrong_login.arguments, "--producer", "p", "--outbox", wrong_login.file("p.db"),
            "--timeout", "3", stdin=b"line\n",
        )  # fmt: skip
        assert result.returncode == 69
        last = secretless(result).stderr.decode().splitlines()[-1]
        assert "refused credentials" in last
        assert "not yet confirmed" in last
    refused(secretless(create(wrong_login, unique, unique, "--timeout", "10")), 69, "dc1")
    stats = reliamsg("outbox", "stats", wrong_login.file("p.db"))
    assert b"2" in succeeded(secretless(stats))


@pytest.mark.parametrize("count", [(), ("--count", "1")], ids=["any number", "one"])
def test_a_refused_login_is_no_silence(wrong_login: Sites, unique: str, count: tuple[str, ...]) -> None:
    """Otherwise someone who only waits for messages would take a mistyped password for a topic without traffic."""
    for seconds in ("1", "10"):  # however long a busy broker takes to refuse the first attempt
        result = subscribe(wrong_login, unique, unique, "--timeout", seconds, *count)
        if b"refused" in result.stderr:
            break
    refused(secretless(result), 69, "no message arrived for", "no site is connected: dc1: refused")


def refused_sub(sites: Sites, unique: str) -> subprocess.CompletedProcess[bytes]:
    result = subscribe(sites, unique, unique, "--count", "1", "--timeout", "1")
    refused(result, 69, "0 of 1 message")
    assert b"dc1" in result.stderr
    return result


def test_unreachable_sites(nowhere: Sites, unique: str) -> None:
    refused(
        secretless(publish(nowhere, unique, b"a\nb\n", "--timeout", "3")), 69, "2 lines stored", "unreachable"
    )
    secretless(refused_sub(nowhere, unique))
    result = reliamsg("outbox", "drain", nowhere.file("p.db"), *nowhere.arguments, "--timeout", "1")
    refused(secretless(result), 69, "2 messages")


@pytest.mark.parametrize("bad", ["", "a+b", "x" * 101])
def test_names(nowhere: Sites, bad: str) -> None:
    sites, files = nowhere.arguments, ["--outbox", nowhere.file("p.db"), "--inbox", nowhere.file("g.db")]
    for arguments in (
        ["pub", bad, "--producer", "p", *files[:2], *sites],
        ["pub", "t", "--producer", bad, *files[:2], *sites],
        ["pub", "t", "--producer", "p", "--group", bad, *files[:2], *sites],
        ["pub", "t", "--producer", "p", *files[:2], "--site", f"{bad}=mqtt://u:{SECRET}@127.0.0.1"],
        ["sub", bad, "--group", "g", *files[2:], *sites],
        ["sub", "t", "--group", bad, *files[2:], *sites],
        ["group", "create", bad, "--topic", "t", *sites],
        ["group", "create", "g", "--topic", bad, *sites],
    ):
        refused(secretless(reliamsg_here(*arguments)), 64)
    assert not list(nowhere.directory.iterdir())


def test_files_of_a_newer_version(nowhere: Sites) -> None:
    import sqlite3

    succeeded(publish(nowhere, "t", b""))
    subscribe(nowhere, "t", "g", "--timeout", "0.1")
    for name in ("p.db", "g.db"):
        connection = sqlite3.connect(nowhere.file(name))
        connection.execute("PRAGMA user_version = 999")
        connection.close()
    refused(publish(nowhere, "t", b""), 65, "newer", "p.db")
    refused(subscribe(nowhere, "t", "g"), 65, "newer", "g.db")
    drain = reliamsg("outbox", "drain", nowhere.file("p.db"), *nowhere.arguments)
    refused(drain, 65, "newer", "p.db")
    out = nowhere.file("out.db")
    refused(reliamsg_here("outbox", "show", nowhere.file("p.db")), 65, "newer", "p.db")
    refused(reliamsg_here("outbox", "export", nowhere.file("p.db"), out), 65, "newer", "p.db")
    refused(reliamsg_here("inbox", "dead-letters", nowhere.file("g.db")), 65, "newer", "g.db")
    refused(reliamsg_here("inbox", "export", nowhere.file("g.db"), out), 65, "newer", "g.db")
    refused(reliamsg_here("inbox", "replay", nowhere.file("g.db"), "--all"), 65, "newer", "g.db")
    assert not Path(out).exists()


def test_another_inbox_of_the_group(both: Sites, unique: str) -> None:
    first = start("sub", unique, *both.arguments[:2], "--group", unique, "--inbox", both.file("first.db"))
    try:
        wait_for(
            lambda: succeeded(reliamsg("--version")) and Path(both.file("first.db-wal")).exists(),
            "it is open",
        )
        second = Sites(both.arguments[:2], both.directory)
        wait_for(
            lambda: b"another consumer reads" in subscribe(second, unique, unique, "--timeout", "1").stderr,
            "the second fails",
        )
    finally:
        first.terminate()
        assert first.wait(60) == 0


def test_a_full_disk(both: Sites, unique: str, disk: Path) -> None:
    """The number of accepted lines is reported, and they are kept and sent; with room the rest can follow."""
    succeeded(create(both, unique, unique))
    small = Sites(both.arguments, disk)
    lines = [b"%05d" % number + b"x" * 2_000 for number in range(1_000)]
    result = publish(small, unique, b"\n".join(lines) + b"\n", "--group", unique)
    last = refused(result, 74, "full", "lines stored")
    taken = int(last.split(" lines stored")[0].split()[-1].replace(",", ""))
    assert 0 < taken < 1_000
    filler = fill(disk)
    refused(subscribe(small, unique, unique, "--count", "1"), 74, f"{unique}.db")
    other = reliamsg("pub", "t", "--producer", "q", "--outbox", small.file("q.db"), *small.arguments)
    refused(other, 74, "q.db")
    filler.unlink()
    got = succeeded(subscribe(both, unique, unique, "--count", str(taken), "--timeout", "60"))
    assert got.splitlines() == lines[:taken]


def test_a_read_only_disk(nowhere: Sites, disk: Path) -> None:
    small = Sites(nowhere.arguments, disk)
    refused(publish(small, "t", b"kept\n", "--timeout", "0.1"), 69)
    remount(disk, "ro")
    refused(publish(small, "t", b"a\n"), 74, "p.db")
    refused(subscribe(small, "t", "g"), 74, "g.db")
    refused(reliamsg("outbox", "drain", small.file("p.db"), *small.arguments), 74, "p.db")
    for command in ("stats", "ls", "show"):  # reading requires no writing
        succeeded(reliamsg("outbox", command, small.file("p.db")))
    succeeded(reliamsg("outbox", "export", small.file("p.db"), disk.parent / "out.db"))
    refused(reliamsg("outbox", "export", small.file("p.db"), small.file("out.db")), 74, "out.db")
    remount(disk, "rw")
    refused(publish(small, "t", b"more\n", "--timeout", "0.1"), 69, "2 messages")


def test_a_failing_fsync(nowhere: Sites, tmp_path: Path) -> None:
    succeeded(publish(nowhere, "t", b""))
    faults = DiskFaults(tmp_path)
    faults.fail_fsync("p.db-wal")
    arguments = ["pub", "t", "--producer", "p", "--outbox", nowhere.file("p.db"), *nowhere.arguments]
    environment: dict[str, Any] = faults.environment
    result = reliamsg(*arguments, stdin=b"a\n", **environment)
    refused(secretless(result), 74, "an fsync failed")
