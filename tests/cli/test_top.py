"""``reliamsg top``: files of running and of stopped clients, while they change, vanish and break."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from reliamsg import Consumer, Producer
from reliamsg.cli import main
from reliamsg.cli.top.lines import lines_of
from reliamsg.cli.top.watch import Gap, Group, InboxSeen, OutboxSeen, Parked, Problem, Range, Watch
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.testing import MemoryNetwork
from tests.children import ended
from tests.cli.commands import RELIAMSG, environment, json_of, refused, reliamsg_here, start, succeeded
from tests.cli.test_terminal import EVIL, forbidden
from tests.consumer.tools import GROUP, TOPIC, send
from tests.fuzz import seeds
from tests.patience import patient, wait_for


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    network = MemoryNetwork("dc1", "dc2")
    yield network
    network.close()


def outbox_seen(watch: Watch | Path, now: float = 0.0, wall_us: int = 10_000_000) -> OutboxSeen:
    found = (watch if isinstance(watch, Watch) else Watch(str(watch))).look(now, wall_us)
    assert isinstance(found, OutboxSeen), found
    return found


def inbox_seen(watch: Watch | Path, now: float = 0.0) -> InboxSeen:
    found = (watch if isinstance(watch, Watch) else Watch(str(watch))).look(now, 10_000_000)
    assert isinstance(found, InboxSeen), found
    return found


def problem_of(watch: Watch, now: float = 0.0) -> str:
    found = watch.look(now, 10_000_000)
    assert isinstance(found, Problem), found
    return found.problem


# -- numbers ------------------------------------------------------------------------------------------------


def test_rates_of_a_running_producer(network: MemoryNetwork, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    network["dc2"].down()
    with Producer("p", network.sites, outbox=path, groups={TOPIC: [GROUP], "another": [GROUP]}) as producer:
        watch = Watch(str(path))
        first = outbox_seen(watch, 100.0)
        assert (first.accepted_per_s, first.oldest_age_s) == (None, None)
        producer.publish_many(TOPIC, [b"x"] * 20)
        producer.publish("another", b"x")
        wait_for(lambda: outbox_seen(path).sites[0].behind == 0, "dc1 has confirmed")
        seen = outbox_seen(watch, 110.0)
        assert (seen.accepted_per_s, seen.unpublished, seen.messages) == (2.1, 21, 21)
        assert [(site.site, site.behind, site.confirmed_per_s) for site in seen.sites] == [
            ("dc1", 0, 2.1), ("dc2", 21, 0.0)
        ]  # fmt: skip
        assert seen.sites[0].oldest_age_s is None
        assert seen.oldest_age_s == seen.sites[1].oldest_age_s is not None
        network["dc2"].up()
        producer.flush(patient(20))
        wait_for(lambda: outbox_seen(path).unpublished == 0, "all is confirmed")
        seen = outbox_seen(watch, 112.0)
        assert (seen.accepted_per_s, seen.sites[1].confirmed_per_s, seen.oldest_age_s) == (0.0, 10.5, None)
    # An opening has an epoch of its own, which is counted from its first message on.
    with Producer("p", network.sites, outbox=path, groups={TOPIC: [GROUP]}) as producer:
        producer.publish_many(TOPIC, [b"x"] * 7)
        assert outbox_seen(watch, 119.0).accepted_per_s == 1.0


def test_rates_of_a_running_consumer(network: MemoryNetwork, tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    with Consumer(GROUP, network.sites, topics=[TOPIC], inbox=path) as consumer:
        watch = Watch(str(path))
        assert inbox_seen(watch, 100.0).settled_per_s is None
        send(network["dc1"], 1, 6)
        for _ in range(5):
            message = consumer.get(patient(20))
            assert message is not None
            message.ack(durable=True)
        seen = inbox_seen(watch, 110.0)
        assert (seen.settled_per_s, seen.streams, seen.group) == (0.5, 1, GROUP)
        assert inbox_seen(watch, 120.0).settled_per_s == 0.0


def test_a_group_that_is_behind(network: MemoryNetwork, tmp_path: Path) -> None:
    """The numbers are those of `outbox stats`, which counts all rows."""
    path = tmp_path / "p.db"
    settings: dict[str, object] = {"groups": {TOPIC: [GROUP]}, "release": "consumed"}
    for count in (10, 20):
        with Producer("p", network.sites, outbox=path, **settings) as producer:  # type: ignore[arg-type]
            published = producer.publish_many(TOPIC, [b"x"] * count)
            producer.flush(patient(20))
            ids = published.ids
            assert producer.remove(ids[3], ids[5]) == 3
        seen, counted = outbox_seen(path), inspect_outbox(path)
        assert seen.messages == counted.messages
        assert [group.behind for group in seen.groups] == [member.behind for member in counted.members]
        assert {site.site: site.behind for site in seen.sites} == counted.sites
    assert seen.groups == (Group(GROUP, TOPIC, 0, 24, None, ()),)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT coalesce(sum(count), 0) FROM batch").fetchone()[0]
    assert rows == 24


def test_what_else_is_in_an_outbox(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    path.write_bytes(seeds.outbox_file())
    with closing(sqlite3.connect(path)) as connection:
        lacking = [["billing", "orders", 0, 5_000, 2, 3]]
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('lacking', ?), ('proves_at', '[\"dc2\"]')",
            (json.dumps(lacking),),
        )
        for lsn, last in ((5, 4), (6, 9)):
            connection.execute(
                "INSERT INTO journal SELECT ?, boot, 'repaired', wall_us, wall_last_us, mono_us, producer, topic, part,"
                " epoch, incarnation, 1, ?, 'dc1', 'billing', '', NULL, NULL, NULL FROM journal LIMIT 1",
                (lsn, last),
            )
        connection.commit()
    watch = Watch(str(path))
    seen = outbox_seen(watch)
    assert {site.site: site.behind for site in seen.sites} == inspect_outbox(path).sites
    parked = [site.parked for site in seen.sites if site.parked]
    assert parked == [(Parked("other", 0, "returned"),)]
    assert seen.groups == (Group("billing", "orders", 0, 2, Range(5_000, 2, 3), ("dc2",)),)
    assert (seen.repaired, seen.repaired_per_s) == (13, None)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE journal SET last = 14 WHERE lsn = 6")  # a row that is extended
        connection.commit()
    seen = outbox_seen(watch, 10.0)
    assert (seen.repaired, seen.repaired_per_s) == (18, 0.5)
    shown = "\n".join(line.text for line in lines_of([seen]))
    for words in (
        "! parked: p/other: returned",
        "! lacks 2 to 3 of epoch 5000",
        "! unseen at dc2",
        "repaired 18 (0.5",
    ):
        assert words in shown


def test_what_else_is_in_an_inbox(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    path.write_bytes(seeds.inbox_file())
    seen = inbox_seen(path)
    assert seen.gaps == (Gap("p", "orders", 0, 10, 15, 16, 1.5),)
    assert (seen.gap_count, seen.held_messages, seen.dead_letters, seen.samples) == (1, 2, 1, 1)
    shown = "\n".join(line.text for line in lines_of([seen]))
    assert "! p/orders lacks 15 to 16 of epoch 10 for 1.5 s" in shown
    assert "! 1 dead letter" in shown


def test_an_epoch_that_is_finished_counts_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    path.write_bytes(seeds.inbox_file())
    watch = Watch(str(path))
    inbox_seen(watch)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE epoch SET epoch = 11, prev_epoch = 10, prev_last = 60, position = 5, settled = '[]'"
        )
        connection.commit()
    # 14 were settled below the position and 2 above it; 44 more of epoch 10, and 4 of epoch 11
    assert inbox_seen(watch, 10.0).settled_per_s == 4.8


# -- files ----------------------------------------------------------------------------------------------------


def test_files_that_appear_break_and_are_replaced(network: MemoryNetwork, tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    watch = Watch(str(path))
    assert "no such file" in problem_of(watch)
    path.write_bytes(seeds.outbox_file())
    seen = outbox_seen(watch, 1.0)
    assert (seen.replaced, seen.accepted_per_s) == (False, None)
    path.write_bytes(b"noise" * 1000)
    assert "not an outbox or inbox" in problem_of(watch, 2.0)
    path.unlink()
    path.mkdir()
    assert "not a file" in problem_of(watch, 3.0)
    path.rmdir()
    other = tmp_path / "other"
    other.write_bytes(seeds.inbox_file())
    os.replace(other, path)
    found = inbox_seen(watch, 4.0)
    assert (found.replaced, found.settled_per_s) == (True, None)
    found = inbox_seen(watch, 5.0)
    assert (found.replaced, found.settled_per_s) == (False, 0.0)
    assert "the file was replaced" not in "\n".join(line.text for line in lines_of([found]))
    damaged = bytearray(seeds.inbox_file())
    damaged[4096:] = b"\xff" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    assert "not a usable" in problem_of(watch, 6.0)


def test_once_lists_the_worst_first(network: MemoryNetwork, tmp_path: Path) -> None:
    idle, waiting, gap = tmp_path / "idle.db", tmp_path / "waiting.db", tmp_path / "gap.db"
    gap.write_bytes(seeds.inbox_file())
    network["dc2"].down()
    for path in (idle, waiting):
        with Producer(path.stem, network.sites, outbox=path, groups={"t": [GROUP]}) as producer:
            if path == waiting:
                producer.publish("t", b"x")
            producer.close(0.0)
    result = reliamsg_here("top", "--once", idle, waiting, gap, tmp_path / "missing.db")
    assert result.returncode == 65
    title, columns, *rest = result.stdout.decode().splitlines()
    assert title.startswith("reliamsg top  2")
    assert columns.split() == ["per", "s", "waiting", "oldest"]
    headings = [line for line in rest if line[0] != " "]
    assert [line.split()[:2] for line in headings[1:]] == [
        ["group", "billing"], ["producer", "waiting"], ["producer", "idle"]
    ]  # fmt: skip
    assert "no such file" in rest[1]
    found = json_of(succeeded(reliamsg_here("top", "--once", "--json", idle, gap)))
    assert [(one["kind"], one["file"]) for one in found["files"]] == [
        ("outbox", str(idle)),
        ("inbox", str(gap)),
    ]


# -- the terminal ---------------------------------------------------------------------------------------------


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Screen:
    """What a process writes to a terminal, read as it comes."""

    def __init__(self, rows: int, columns: int) -> None:
        self.mine, self.theirs = pty.openpty()
        set_size(self.mine, rows, columns)
        self.written = b""
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while data := self._some():
            self.written += data

    def _some(self) -> bytes:
        try:
            return os.read(self.mine, 65_536)
        except OSError:  # all of its processes are gone
            return b""

    def frames(self) -> list[list[str]]:
        """The lines of each frame that was drawn completely, without styles and trailing blanks."""
        text = self.written.decode(errors="replace").replace("\r", "")
        drawn = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part) for part in text.split("\x1b[H")[1:-1]]
        return [[line.rstrip() for line in frame.split("\n")] for frame in drawn if frame.strip()]

    def close(self) -> None:
        os.close(self.theirs)
        self._thread.join(patient(20))
        os.close(self.mine)


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen(12, 80)
    yield screen
    screen.close()


def on_its_own_terminal() -> dict[str, str]:
    """Variables that say nothing about the size of a terminal: workers of pytest-xdist have some."""
    kept = environment(TERM="xterm")
    return {name: value for name, value in kept.items() if name not in ("LINES", "COLUMNS")}


@pytest.mark.integrations
def test_a_live_view(network: MemoryNetwork, tmp_path: Path, screen: Screen) -> None:
    """It follows a producer, fits the terminal whatever its size, shows no control characters, and ends with q."""
    spoiled = tmp_path / "spoiled.db"
    spoiled.write_bytes(seeds.outbox_file())
    with closing(sqlite3.connect(spoiled)) as connection:
        connection.execute("UPDATE parked SET reason = ?", (EVIL,))
        connection.execute("UPDATE meta SET value = ? WHERE name = 'owner'", (EVIL,))
        connection.commit()
    before = termios.tcgetattr(screen.theirs)
    with Producer("web-1", network.sites, outbox=tmp_path / "web-1.db") as producer:
        arguments = ["top", "--interval", "0.1", "web-1.db", "later.db", "spoiled.db"]
        viewer = subprocess.Popen(
            [*RELIAMSG, *arguments], cwd=tmp_path, stdin=screen.theirs, stdout=screen.theirs, stderr=screen.theirs,
            env=on_its_own_terminal(),
        )  # fmt: skip
        try:
            wait_for(
                lambda: any(line == "later.db" for f in screen.frames() for line in f),
                lambda: f"it is drawn ({viewer.poll()}): {screen.written[-2_000:]!r}",
                poll=0.1,
            )
            producer.publish_many("t", [b"x"] * 5)
            rates = re.compile(r"producer web-1 +[1-9]")
            wait_for(
                lambda: any(rates.match(line) for f in screen.frames() for line in f),
                "a rate is shown",
                poll=0.1,
            )
            (tmp_path / "later.db").write_bytes(seeds.inbox_file())
            wait_for(
                lambda: any("group billing" in line for f in screen.frames() for line in f),
                "it appears",
                poll=0.1,
            )
            assert all(len(line) <= 80 for frame in screen.frames() for line in frame)
            set_size(screen.mine, 6, 40)

            def small() -> bool:
                last = screen.frames()[-1]
                return all(len(line) <= 40 for line in last) and len(last) <= 6 and "more lines" in last[-1]

            wait_for(small, "it fits", poll=0.1)
            os.write(screen.mine, b"xq")
            assert viewer.wait(patient(20)) == 0
        finally:
            viewer.kill()
    assert termios.tcgetattr(screen.theirs) == before
    wait_for(lambda: b"\x1b[?1049l" in screen.written, "the screen is left")
    text = "\n".join(line for frame in screen.frames() for line in frame)
    assert "pwned" in text
    assert not forbidden(text)


@pytest.mark.integrations
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_objects_until_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    path.write_bytes(seeds.inbox_file())
    viewer = start("top", "--json", "--interval", "0.1", path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert viewer.stdout is not None
        first, second = (json.loads(viewer.stdout.readline()) for _ in range(2))
        assert first["at_us"] <= second["at_us"]
        assert first["files"][0]["settled_per_s"] is None
        assert second["files"][0]["settled_per_s"] == 0.0
        viewer.send_signal(number)
        _, errors = ended(viewer)
    finally:
        viewer.kill()
    assert (viewer.returncode, errors) == (0, b"")


def test_names_of_strangers(tmp_path: Path) -> None:
    name = EVIL.replace("\0", "").replace("/", "")
    path = tmp_path / name
    path.write_bytes(seeds.outbox_file())
    for arguments in ([path], [tmp_path / f"missing{name}"], ["--json", path]):
        shown = reliamsg_here("top", "--once", *arguments).stdout.decode()
        assert "pwned" in shown
        assert not forbidden(shown)


def test_a_live_view_needs_rich(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    assert main(["top", str(tmp_path / "x.db")]) == 69
    assert "pip install 'reliamsg[demo]'" in said.getvalue()


def test_arguments(tmp_path: Path) -> None:
    refused(reliamsg_here("top"), 64, "FILE")
    refused(reliamsg_here("top", "--interval", "0", tmp_path), 64, "interval")
