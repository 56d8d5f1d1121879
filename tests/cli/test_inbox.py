"""``reliamsg inbox``: what an operator sees and decides, with a consumer that runs and without one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer
from reliamsg.cli import main
from reliamsg.store.requests import Request, RequestBox
from reliamsg.testing import MemoryNetwork
from tests.patience import wait_for
from tests.receiving.tools import GROUP, TOPIC, send

Command = Callable[..., str]


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    network = MemoryNetwork("dc1")
    yield network
    network.close()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return tmp_path / "inbox.db"


@pytest.fixture
def command(inbox: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: str, status: int = 0, timeout: float = 20.0) -> str:
        waits = "accept" in arguments or "replay" in arguments or "discard" in arguments
        options = ["--timeout", str(timeout)] if waits else []
        given = [str(inbox) if argument == "INBOX" else argument for argument in arguments]
        capsys.readouterr()
        assert main(["inbox", *given, *options]) == status
        out, err = capsys.readouterr()
        return out + err

    return call


def opened(inbox: Path, network: MemoryNetwork, **options: object) -> Consumer:
    return Consumer(
        GROUP, network.sites, topics=[TOPIC], inbox=inbox, transports=network, gap_timeout=0.2, **options
    )  # type: ignore[arg-type]


def take(consumer: Consumer, *expected: int) -> None:
    for seq in expected:
        message = consumer.get(20)
        assert message is not None
        assert message.seq == seq
        message.ack()


def test_a_gap_is_listed_and_accepted_while_the_consumer_runs(
    inbox: Path, network: MemoryNetwork, command: Command
) -> None:
    with opened(inbox, network) as consumer:
        send(network["dc1"], 1, 2)
        send(network["dc1"], 5, 6)
        take(consumer, 1, 2)
        wait_for(lambda: any(s.gap_held for s in consumer.status().streams.values()), "held")
        wait_for(lambda: "lacks 3 to 4 of epoch 10" in command("gaps", "INBOX"), "listed")
        (listed,) = (json.loads(line) for line in command("gaps", "INBOX", "--json").splitlines())
        assert (listed["producer"], listed["topic"], listed["first"], listed["last"]) == ("p", TOPIC, 3, 4)
        assert "accepted" in command("accept", "INBOX", "p/orders")
        take(consumer, 5, 6)
        assert "lacks nothing" in command("accept", "INBOX", "p/orders", status=1)
        assert "1 of them" not in command("stats", "INBOX")


def test_what_is_asked_while_no_consumer_runs_is_carried_out_by_the_next(
    inbox: Path, network: MemoryNetwork, command: Command
) -> None:
    with opened(inbox, network) as consumer:
        send(network["dc1"], 1, 2)
        send(network["dc1"], 5, 6)
        take(consumer, 1, 2)
        wait_for(lambda: "lacks 3 to 4" in command("gaps", "INBOX"), "listed")
    assert "the next one" in command("accept", "INBOX", "--all", timeout=0.1)
    with opened(inbox, network) as consumer:
        take(consumer, 5, 6)


def test_the_quarantine_is_listed_replayed_and_discarded(
    inbox: Path, network: MemoryNetwork, command: Command
) -> None:
    with opened(inbox, network, max_streams=1) as consumer:
        shared = consumer._engine.shared
        site = consumer._engine.sites["dc1"]
        refuse = site._arrive
        site._arrive = (  # type: ignore[method-assign]
            lambda delivery, frame, *_: not site.quarantine(delivery, frame, "test")
        )
        send(network["dc1"], 1, 3)
        send(network["dc1"], 1, 1, producer="q")
        wait_for(lambda: len(command("quarantine", "list", "INBOX").splitlines()) == 2, "listed")
        site._arrive = refuse  # type: ignore[method-assign]
        assert "(test): 2 deliveries" in command("stats", "INBOX")
        assert "1 deliveries" in command("quarantine", "discard", "INBOX", "--stream", "q/orders")
        assert "is not known" in command("quarantine", "discard", "INBOX", "--stream", "no/orders", status=1)
        command("quarantine", "replay", "INBOX", status=64)
        assert "1 deliveries" in command("quarantine", "replay", "INBOX", "--reason", "test")
        take(consumer, 1, 2, 3)
        wait_for(lambda: command("quarantine", "list", "INBOX") == "", "empty")
        assert shared.quarantine.total == 0


def test_a_directory_of_requests_is_not_trusted(inbox: Path, tmp_path: Path) -> None:
    box = RequestBox(inbox)
    assert box.waiting() == []
    directory = Path(f"{inbox}.requests")
    directory.mkdir()
    (directory / "1.json").write_text("{")
    (directory / "2.json").write_bytes(b'"' + b"x" * 2_000_000)
    (tmp_path / "elsewhere").write_text('{"action": "accept"}')
    (directory / "3.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(directory / "4.json")
    (directory / "5.json").write_text('{"action": "replay", "ids": [1], "unknown": 1}')
    (directory / "6.json.part").write_text("{}")
    assert box.waiting() == [("5.json", Request("replay", ids=(1,)))]
    assert sorted(path.name for path in directory.iterdir()) == ["5.json", "6.json.part"]
