"""Retiring a file: its journal ends, and no client can open it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer
from reliamsg.checker.journals import collect, read_chain
from reliamsg.errors import ConfigError, InboxLocked, JournalTargetError, OutboxLocked, StoreRetired
from reliamsg.export.offline import export_file
from reliamsg.export.retire import NotRetired, Retired, retire_file
from reliamsg.store.outbox import Outbox
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.testing import MemoryNetwork
from tests.cli.commands import reliamsg, succeeded
from tests.consumer.tools import GROUP, Bench, send
from tests.export.tools import TOPICS, consumer, left, producer, segments
from tests.store.test_older_files import OLDER


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as found:
        yield found


def settled(network: MemoryNetwork, tmp_path: Path) -> tuple[Path, Path]:
    """An outbox and an inbox, both closed, with nothing left to do."""
    outbox, inbox = tmp_path / "out.db", tmp_path / "in.db"
    with (
        producer(network, outbox, release="consumed", hello_timeout=0) as sender,
        consumer(network, inbox, topics=TOPICS) as reader,
    ):
        receipt = sender.publish("orders", b"1")
        message = reader.get(20)
        assert message is not None
        message.ack()
        receipt.wait(20, until="consumed")
    return outbox, inbox


@pytest.mark.parametrize("exports", [False, True])
def test_the_journal_ends_and_the_file_is_not_opened_again(
    network: MemoryNetwork, tmp_path: Path, exports: bool
) -> None:
    """Whether or not its rows have left the file before."""
    for path in settled(network, tmp_path):
        before = read_chain(path).rows
        if exports:
            export_file(path, tmp_path / "journals")
        assert retire_file(path) == Retired(pending=0, unclosed=False, segments=0)
        row = left(path)[-1]
        assert (row.kind, row.boot, row.lsn) == ("retired", before[-1].boot, before[-1].lsn + 1)
        assert row.wall_us >= before[-1].wall_us
        assert row.detail is None
        with pytest.raises(StoreRetired, match=rf"{path.name}: this .*box was retired at 20\d\d-.*Z"):
            retire_file(path, abandon=True)
        assert export_file(path, tmp_path / "journals") == 1
    for chain in collect(tmp_path / "journals").chains:
        assert chain.sound
        assert chain.retired
    with pytest.raises(StoreRetired, match="this outbox was retired"):
        Producer("gateway", network.sites, outbox=tmp_path / "out.db")
    with pytest.raises(StoreRetired, match="this inbox was retired"):
        Consumer("billing", network.sites, topics=["orders"], inbox=tmp_path / "in.db").get(10)
    assert inspect_outbox(tmp_path / "out.db").producer == "gateway"


def test_what_is_open_is_not_retired(network: MemoryNetwork, tmp_path: Path) -> None:
    outbox, inbox = tmp_path / "out.db", tmp_path / "in.db"
    with producer(network, outbox), consumer(network, inbox) as reader:
        reader.get(0)
        with pytest.raises(OutboxLocked):
            retire_file(outbox, abandon=True)
        with pytest.raises(InboxLocked):
            retire_file(inbox, abandon=True)
    assert not read_chain(outbox).retired


@pytest.mark.parametrize("policy", ["confirmed", "consumed"])
def test_an_outbox_whose_messages_a_group_has_not_settled(
    network: MemoryNetwork, tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "out.db"
    with producer(network, path, release=policy, hello_timeout=0, retain_seconds=1e6) as sender:
        for _ in range(3):
            sender.publish("orders", b"x").wait(20)
    rows = left(path)
    with pytest.raises(NotRetired, match="it holds 3 messages that are not confirmed, or that a group has"):
        retire_file(path)
    assert left(path) == rows
    assert retire_file(path, abandon=True) == Retired(pending=3, unclosed=False, segments=0)
    assert left(path)[-1].detail == {"pending": 3}


def test_an_outbox_whose_messages_are_not_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with MemoryNetwork("dc1") as network:
        network["dc1"].down()
        one = Producer("p", network.sites, outbox=path)
        one.publish("t", b"x")
        one.close(0)
    with pytest.raises(NotRetired, match="it holds 1 messages"):
        retire_file(path)
    assert retire_file(path, abandon=True).pending == 1


def test_an_inbox_whose_messages_its_application_has_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "in.db"
    bench = Bench(path, sites=("dc1",))
    send(bench.network["dc1"], 2, 6)  # behind a gap
    bench.settle(60.0)
    assert bench.inbox.held_bytes
    bench.close()
    with pytest.raises(NotRetired, match="it holds 5 messages that its application has not settled"):
        retire_file(path)
    assert retire_file(path, abandon=True).pending == 5


def test_a_client_that_was_not_closed(tmp_path: Path) -> None:
    path = tmp_path / "in.db"
    bench = Bench(path, sites=("dc1",))
    bench.settle()
    bench.crash()
    with pytest.raises(NotRetired, match="its client was not closed"):
        retire_file(path)
    assert retire_file(path, abandon=True) == Retired(pending=0, unclosed=True, segments=0)
    row = left(path)[-1]
    assert (row.kind, row.group, row.detail) == ("retired", GROUP, {"unclosed": True})


def test_the_last_row_is_the_last_even_if_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.db"
    with MemoryNetwork("dc1") as network, Producer("p", network.sites, outbox=path):
        pass
    before = left(path)
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    retire_file(path)
    assert [row.kind for row in left(path)[len(before) :]] == ["clock_step", "retired"]
    assert left(path)[-1].wall_us == before[-1].wall_us


def test_a_target_that_is_away(tmp_path: Path, network: MemoryNetwork) -> None:
    """The file is retired; its rows can be exported later."""
    _, path = settled(network, tmp_path)
    (tmp_path / "journals").write_text("not a directory")
    with pytest.raises(JournalTargetError):
        retire_file(path, tmp_path / "journals")
    assert left(path)[-1].kind == "retired"
    (tmp_path / "journals").unlink()
    assert export_file(path, tmp_path / "journals") == 1
    assert segments(tmp_path / "journals")[-1].rows[-1].kind == "retired"


def test_a_file_that_an_earlier_version_closed_keeps_versions_apart(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    path.write_bytes(gzip.decompress((OLDER / "outbox.db.gz").read_bytes()))
    path.chmod(0o600)
    assert retire_file(path, tmp_path / "journals", abandon=True).unclosed
    found = segments(tmp_path / "journals")
    assert [segment.header.version for segment in found] == [1] * (len(found) - 1) + [2]
    assert [row.kind for row in found[-1].rows] == ["retired"]


def test_a_file_that_nobody_opened(tmp_path: Path) -> None:
    Outbox(tmp_path / "out.db", "p", 1, 0, "1" * 16).close()
    with pytest.raises(ConfigError, match="it has no journal"):
        retire_file(tmp_path / "out.db")


def test_the_command(tmp_path: Path, network: MemoryNetwork) -> None:
    outbox, inbox = settled(network, tmp_path)
    said = succeeded(reliamsg("journal", "retire", str(outbox), "--to", str(tmp_path / "journals"), "--json"))
    assert json.loads(said) == {"file": str(outbox), "pending": 0, "unclosed": False, "segments": 1}
    assert succeeded(reliamsg("journal", "retire", str(inbox))).decode() == f"{inbox}: retired\n"
    again = reliamsg("journal", "retire", str(inbox))
    assert again.returncode == 65
    assert b"this inbox was retired at" in again.stderr
    missing = reliamsg("journal", "retire", str(tmp_path / "none.db"))
    assert missing.returncode == 66


def test_the_command_refuses_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with MemoryNetwork("dc1") as network:
        network["dc1"].down()
        one = Producer("p", network.sites, outbox=path)
        one.publish("t", b"x")
        one.close(0)
    refused = reliamsg("journal", "retire", str(path))
    assert refused.returncode == 1
    assert b"it holds 1 messages" in refused.stderr
    assert b"--abandon" in refused.stderr
    said = succeeded(reliamsg("journal", "retire", str(path), "--abandon")).decode()
    assert said == f"{path}: retired, with 1 abandoned message\n"
