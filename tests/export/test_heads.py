"""Heads: what an idle client states, and what it never does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg import JournalExport, KeyRing, __version__
from reliamsg.audit.fold import Folder
from reliamsg.audit.lineage import Placed, histories
from reliamsg.audit.segment import StatedIdle, is_head, read_head, read_segment
from reliamsg.checker.journals import collect, collect_path
from reliamsg.checker.segments import check_head
from reliamsg.errors import JournalTargetError
from reliamsg.export.exporter import Exporter
from reliamsg.export.segments import JournalSource
from reliamsg.export.target import DirectoryTarget
from reliamsg.runtime.environment import DaemonThreads
from reliamsg.store.head import Head, boot_of_head, decode_head, encode_head, head_path
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Outbox
from reliamsg.store.segment import SegmentError
from reliamsg.testing import MemoryNetwork
from tests.children import run_child
from tests.consumer.tools import until
from tests.export.tools import consumer, left, meta, producer, segments
from tests.patience import STALL_S
from tests.signed import key_of, trust_in
from tests.store.faults import fill, remount, small_disk

START_US = 1_700_000_000_000_000


class Client:
    """An outbox with an exporter, whose clocks the test sets."""

    def __init__(
        self,
        path: Path,
        target: Path,
        boot: str = "1" * 16,
        wall_us: int = START_US,
        key: KeyRing | None = None,
    ) -> None:
        self.target, self.now, self.wall_us = target, 0.0, wall_us
        self.outbox = Outbox(path, "p", wall_us, 0, boot)
        self._woken = threading.Event()
        export = JournalExport(target, interval=1.0, key=key)
        source = JournalSource("producer", "p", path, self.outbox.exported)
        self.exporter = Exporter(export, source, wake=self._woken.set, now=0.0, threads=DaemonThreads())

    def write(self, *kinds: str) -> None:
        self.outbox.note([Entry(kind) for kind in kinds], self.wall_us, int(self.now * 1e6))

    def wait(self, seconds: float) -> None:
        """Time passes, and everything that is due is done."""
        self.now += seconds
        self.wall_us += int(seconds * 1e6)
        self.step()

    def step(self) -> None:
        while True:
            self._woken.clear()
            deadline = self.exporter.step(self.now, self.wall_us, int(self.now * 1e6))
            if deadline is not None and deadline > self.now:
                return
            if deadline is None and not self._woken.wait(STALL_S):
                raise AssertionError("it waits for nothing")

    def close(self) -> None:
        self.exporter.stop()
        self.outbox.close()

    @property
    def heads(self) -> dict[str, Head]:
        return heads(self.target)


def heads(target: Path) -> dict[str, Head]:
    """All heads at a target, by boot."""
    found = {}
    for path in DirectoryTarget(target).paths(heads=True):
        boot = boot_of_head(path.rpartition("/")[2])
        if boot is not None:
            found[boot] = decode_head((target / path).read_bytes())
            assert path == head_path("producer", "p", boot)
    return found


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    found = Client(tmp_path / "out.db", tmp_path / "journals")
    yield found
    found.close()


def test_an_idle_client_replaces_one_file(client: Client) -> None:
    client.write("opened")
    client.wait(2.0)
    (segment,) = segments(client.target)
    assert client.heads == {}, "its segment is new"
    client.wait(59.0)
    assert client.heads == {}
    client.wait(2.0)
    expected = Head(
        role="producer", client="p", boot="1" * 16, lsn=1, digest=segment.digest, wall_us=client.wall_us
    )
    assert client.heads == {"1" * 16: expected}
    path = client.target / head_path("producer", "p", "1" * 16)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_bytes()
    client.wait(59.0)
    assert path.read_bytes() == first, "once per interval"
    client.wait(2.0)
    assert client.heads["1" * 16].wall_us == client.wall_us
    assert [found.name for found in path.parent.iterdir() if not found.is_dir()] == [path.name]


def test_a_client_with_a_key_signs_its_segments_and_its_head(tmp_path: Path) -> None:
    owner, target = ("producer", "p"), tmp_path / "journals"
    client = Client(tmp_path / "out.db", target, key=key_of(*owner))
    client.write("opened")
    client.wait(2.0)
    client.wait(61.0)
    assert len(client.heads) == 1
    client.close()
    found = collect(target, trust_in(tmp_path / "keys", [owner]))
    assert found.problems == []
    assert [(len(chain.rows), len(chain.heads)) for chain in found.chains] == [(1, 1)]
    assert found.not_signed_by(*owner) == []


def test_one_with_rows_that_are_not_exported_states_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path / "out.db", tmp_path / "journals")
    client.write("opened")
    client.wait(2.0)
    (tmp_path / "journals").rename(tmp_path / "away")
    (tmp_path / "journals").write_text("not a directory")
    client.write("connected")
    client.now += 200.0
    client.wall_us += 200_000_000
    assert client.exporter.step(client.now, client.wall_us, int(client.now * 1e6)) is None
    assert "journal_head" not in meta(tmp_path / "out.db")
    client.exporter.stop()
    client.close()
    assert heads(tmp_path / "away") == {}


def test_later_rows_have_later_stamps_even_if_the_clock_is_set_back(client: Client, tmp_path: Path) -> None:
    client.write("opened")
    client.wait(2.0)
    client.wait(61.0)
    (head,) = client.heads.values()
    client.wall_us -= 3_000_000_000
    client.write("connected")
    assert [row.kind for row in left(tmp_path / "out.db")] == ["clock_step", "connected"]
    assert all(row.wall_us > head.wall_us for row in left(tmp_path / "out.db"))


@pytest.mark.parametrize("change", [-3_000_000_000, 3_000_000_000])
def test_one_whose_clock_was_set_while_it_was_idle(client: Client, change: int) -> None:
    """That is a row before it states anything."""
    client.write("opened")
    client.wait(2.0)
    client.wall_us += change
    client.wait(61.0)
    assert client.heads == {}
    client.wait(2.0)
    rows = segments(client.target)[-1].rows
    assert [row.kind for row in rows] == ["clock_step"]
    assert client.heads == {}
    client.wait(61.0)
    assert client.heads["1" * 16].lsn == 2
    assert client.heads["1" * 16].wall_us >= rows[0].wall_us


def test_neither_do_those_of_the_next_boot(tmp_path: Path) -> None:
    client = Client(tmp_path / "out.db", tmp_path / "journals")
    client.write("opened")
    client.wait(2.0)
    client.wait(61.0)
    (head,) = client.heads.values()
    client.close()  # as if it had been killed: nothing is written
    client = Client(tmp_path / "out.db", tmp_path / "journals", "2" * 16, START_US - 10**12)
    client.write("opened")
    rows = left(tmp_path / "out.db")
    assert [row.kind for row in rows] == ["opened", "clock_step"]
    assert all(row.wall_us > head.wall_us for row in rows)
    client.close()


def test_the_next_boot_removes_the_head_once_it_has_its_own(tmp_path: Path) -> None:
    for boot in "123":
        client = Client(tmp_path / "out.db", tmp_path / "journals", boot * 16, START_US + int(boot) * 10**9)
        client.write("opened")
        client.wait(2.0)
        assert boot * 16 not in client.heads
        client.wait(61.0)
        assert client.heads.keys() == {boot * 16}
        client.close()


def test_an_opening_without_a_row_states_nothing(tmp_path: Path) -> None:
    """Its first row may be waiting for room on the disk: nothing may name it before it is durable."""
    one = Client(tmp_path / "out.db", tmp_path / "journals")
    one.write("opened")
    one.wait(2.0)
    one.close()
    two = Client(tmp_path / "out.db", tmp_path / "journals", "2" * 16, one.wall_us)
    two.wait(200.0)
    assert two.heads == {}
    two.write("opened")
    two.wait(2.0)
    two.wait(61.0)
    assert two.heads.keys() == {"2" * 16}
    two.close()


def test_copies_of_a_file_do_not_replace_each_others_heads(tmp_path: Path) -> None:
    one = Client(tmp_path / "one.db", tmp_path / "journals")
    one.write("opened")
    one.wait(2.0)
    one.close()
    shutil.copy(tmp_path / "one.db", tmp_path / "two.db")
    os.chmod(tmp_path / "two.db", 0o600)
    both = [
        Client(tmp_path / f"{name}.db", tmp_path / "journals", boot * 16)
        for name, boot in (("one", "a"), ("two", "b"))
    ]
    for client in both:
        client.write("opened")
        client.wait(2.0)
        client.wait(61.0)
    assert both[0].heads.keys() == {"a" * 16, "b" * 16}
    for client in both:
        client.close()
    chains = collect(tmp_path / "journals").chains
    assert sorted(chain.head.boot for chain in chains if chain.head is not None) == ["a" * 16, "b" * 16]
    assert [len(chain.heads) for chain in chains] == [1, 1]
    assert [[head.boot for head in own] for own in by_the_audit(tmp_path / "journals")] == [
        [head.boot for head in chain.heads] for chain in chains
    ]


def by_the_audit(target: Path) -> list[list[StatedIdle]]:
    """By history, the heads that the audit finds; each segment is a part."""
    placed, stated = [], []
    for number, path in enumerate(DirectoryTarget(target).paths(heads=True)):
        data = (target / path).read_bytes()
        if is_head(path.rpartition("/")[2]):
            head = read_head(path, data)
            assert isinstance(head, StatedIdle)
            stated.append(head)
            continue
        read = read_segment(path, data)
        assert read is not None
        assert read.header is not None
        folder = Folder()
        folder.add(read.header, read.digest, read.lines or [])
        placed.append(Placed(number, folder.part(), "", path, path, 0))
    return [journal.heads for journal in histories(placed, [], stated).journals]


def test_a_failed_write_leaves_the_earlier_head(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.write("opened")
    client.wait(2.0)
    client.wait(61.0)
    before = client.heads

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        # The file itself is synced by SQLite, in C.
        client.wait(61.0)
        assert client.heads == before
        assert "No space left" in client.exporter.status().error
    assert not list(client.target.rglob(".head*"))
    client.wait(61.0)
    assert client.heads["1" * 16].wall_us == client.wall_us
    assert client.exporter.status().error == ""


def test_a_full_or_read_only_disk_at_the_target(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        client = Client(tmp_path / "out.db", disk / "journals")
        client.write("opened")
        client.wait(2.0)
        client.wait(61.0)
        before = client.heads
        assert before
        filler = fill(disk)
        client.wait(61.0)
        assert client.heads == before
        assert "No space left" in client.exporter.status().error
        filler.unlink()
        remount(disk, "ro")
        client.wait(61.0)
        assert client.heads == before
        assert "Read-only file system" in client.exporter.status().error
        remount(disk, "rw")
        client.wait(61.0)
        assert client.heads["1" * 16].wall_us == client.wall_us
        assert not list(disk.rglob(".head*"))
        client.close()


def test_a_head_that_can_not_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise JournalTargetError("no permission")

    for boot in "12":
        client = Client(tmp_path / "out.db", tmp_path / "journals", boot * 16, START_US + int(boot) * 10**9)
        client.write("opened")
        client.wait(2.0)
        monkeypatch.setattr(DirectoryTarget, "remove", refuse)
        client.wait(61.0)
        assert client.exporter.status().error == ""
        client.close()
    assert heads(tmp_path / "journals").keys() == {"1" * 16, "2" * 16}
    (chain,) = collect_path(tmp_path / "journals").chains
    assert [head.boot for head in chain.heads] == ["1" * 16, "2" * 16]
    assert chain.head is not None
    assert chain.head.lsn == chain.rows[-1].lsn


@pytest.mark.parametrize("role", ["producer", "group"])
def test_clients_write_them(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliamsg.export.heads.LIVENESS_S", 0.1)
    journal = JournalExport(tmp_path / "journals", interval=0.02)
    with MemoryNetwork("dc1", "dc2") as network:
        one: Any = (
            producer(network, tmp_path / "out.db", journal=journal)
            if role == "producer"
            else consumer(network, tmp_path / "in.db", journal=journal)
        )
        with one:
            until(lambda: list(tmp_path.rglob("head-*.json")), "its head is written")
    (chain,) = collect(tmp_path / "journals").chains
    assert chain.role == role
    assert chain.sound
    assert chain.boots[0].opened["version"] == __version__
    assert chain.head is not None


@pytest.mark.parametrize("point", ["journal_idle", "journal_head"])
@pytest.mark.parametrize("role", ["producer", "group"])
def test_killed_while_it_writes(point: str, role: str, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    for nth in (1, 2):
        config = {
            "role": role, "target": str(target), "outbox": str(tmp_path / "out.db"), "inbox": str(tmp_path / "in.db"),
            "stop": str(tmp_path / "stop"), "liveness": 0.05, "messages": 3,
            "probe": [point, nth, str(tmp_path / f"mark{nth}")],
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.export.client", json.dumps(config)]
        done = run_child(command)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        (chain,) = collect(target).chains
        assert not chain.broken
        written = {boot for path in target.rglob("head-*.json") if (boot := boot_of_head(path.name))}
        assert {head.boot for head in chain.heads} == written
        last = chain.boots[-1].name
        assert (last in written) == ((point, nth) != ("journal_idle", 1))
        ends = {found.digest: found.header.last_lsn for found in segments(target)}
        for head in chain.heads:
            assert ends[head.digest] == head.lsn
            assert all(row.wall_us > head.wall_us for row in chain.rows if row.lsn > head.lsn)


BOOT = "0123456789abcdef"
GOOD = Head(role="group", client="g/1", boot=BOOT, lsn=3, digest="a" * 64, wall_us=START_US)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        (f"head-{BOOT}.json", b"", "not a journal's head"),
        (f"head-{BOOT}.json", b"\xff\n", "not a journal's head"),
        (f"head-{BOOT}.json", b"[" * 100_000, "not a journal's head"),
        (f"head-{BOOT}.json", b'{"format":"reliamsg.journal"}\n', "not a journal's head"),
        (f"head-{BOOT}.json", encode_head(GOOD)[:-1], "edited or damaged: its content does not match its checksum"),
        (f"head-{BOOT}.json", encode_head(GOOD) + b"\n", "edited or damaged: its content does not match its checksum"),
        (
            f"head-{BOOT}.json", encode_head(GOOD).replace(b'"lsn":3', b'"lsn":4'),
            "edited or damaged: its content does not match its checksum",
        ),
        (
            f"head-{BOOT}.json", encode_head(GOOD).replace(b'"version":2', b'"version":3'),
            r"written by a newer version \(format 3\): upgrade reliamsg",
        ),
        (f"head-{'f' * 16}.json", encode_head(GOOD), "renamed: its name and its content name different boots"),
        (
            f"role=producer/client=p/head-{BOOT}.json", encode_head(GOOD),
            "misplaced: it is among those of producer p, but belongs to group g/1",
        ),
    ],
)  # fmt: skip
def test_damaged_heads_are_refused_in_the_same_words(name: str, data: bytes, words: str) -> None:
    with pytest.raises(SegmentError, match=words) as raised:
        check_head(name, data)
    assert read_head(name, data) == str(raised.value)


def test_a_damaged_head_is_damaged_evidence(client: Client) -> None:
    client.write("opened")
    client.wait(2.0)
    client.wait(61.0)
    path = client.target / head_path("producer", "p", "1" * 16)
    path.write_bytes(path.read_bytes().replace(b'"lsn":1', b'"lsn":2'))
    (chain,) = collect(client.target).chains
    assert chain.heads == ()
    assert chain.broken == [f"{path.name}: edited or damaged: its content does not match its checksum"]


def test_a_head_without_any_segment(tmp_path: Path) -> None:
    DirectoryTarget(tmp_path / "j").replace(head_path("group", "g/1", BOOT), encode_head(GOOD))
    found = collect(tmp_path / "j")
    assert found.chains == []
    assert found.problems == [f"group g/1: head-{BOOT}.json: there is no segment of this client"]
