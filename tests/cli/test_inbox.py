"""``reliamsg inbox``: what an operator sees and decides, with a running consumer and without one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer
from reliamsg.checker import Expect, check_directory
from reliamsg.cli import main
from reliamsg.errors import ProducerFenced, QuarantineFull
from reliamsg.store.requests import Request, RequestBox
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.limits import MAX_EPOCH
from tests.consumer.tools import GROUP, TOPIC, send
from tests.patience import wait_for

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
        waits = not {"accept", "replay", "discard", "forget"}.isdisjoint(arguments)
        options = ["--timeout", str(timeout)] if waits else []
        given = [str(inbox) if argument == "INBOX" else argument for argument in arguments]
        capsys.readouterr()
        assert main(["inbox", *given, *options]) == status
        out, err = capsys.readouterr()
        return out + err

    return call


def opened(inbox: Path, network: MemoryNetwork, **options: object) -> Consumer:
    return Consumer(GROUP, network.sites, topics=[TOPIC], inbox=inbox, gap_timeout=0.2, **options)  # type: ignore[arg-type]


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
        assert "with gaps: 1" not in command("stats", "INBOX")


def test_a_request_without_a_running_consumer_is_executed_by_the_next_one(
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
        assert "is not a known stream" in command(
            "quarantine", "discard", "INBOX", "--stream", "no/orders", status=1
        )
        command("quarantine", "replay", "INBOX", status=64)
        assert "1 deliveries" in command("quarantine", "replay", "INBOX", "--reason", "test")
        take(consumer, 1, 2, 3)
        wait_for(lambda: command("quarantine", "list", "INBOX") == "", "empty")
        wait_for(lambda: shared.quarantine.total == 0, "counted, once that is committed")


def test_a_gap_that_is_accepted_while_no_consumer_runs_empties_a_full_quarantine(
    inbox: Path, network: MemoryNetwork, command: Command
) -> None:
    """The next consumer does not read before that: there would be no room for its deliveries."""
    room = {"max_inbox_bytes": 8_000, "max_quarantine_bytes": 40_000}
    with opened(inbox, network, **room) as consumer:
        for number in (1, 5):
            send(network["dc1"], number, number, pad=400)
        take(consumer, 1)
        wait_for(lambda: any(s.gap_held for s in consumer.status().streams.values()), "held")
        for number in range(6, 201):
            send(network["dc1"], number, number, pad=400)
        with pytest.raises(QuarantineFull):
            consumer.get(20)
    with opened(inbox, network, **room) as consumer, pytest.raises(QuarantineFull):
        consumer.get(20)
    assert network["dc1"].queued() > 0
    assert "the next one" in command("accept", "INBOX", f"p/{TOPIC}", timeout=0.1)
    with opened(inbox, network, **room) as consumer:
        take(consumer, *range(5, 201))
        wait_for(lambda: command("quarantine", "list", "INBOX") == "", "empty")


def test_streams_are_forgotten_while_the_consumer_runs(
    inbox: Path, network: MemoryNetwork, command: Command
) -> None:
    with opened(inbox, network) as consumer:
        for producer in ("p-1", "p-2", "q"):
            send(network["dc1"], 1, 2, producer=producer)
            take(consumer, 1, 2)
        send(network["dc1"], 1, 1, producer="p-3")
        held = consumer.get(20)
        assert held is not None
        wait_for(lambda: "p-3/orders" in command("ls", "INBOX"), "known")
        wait_for(lambda: command("ls", "INBOX").count("position 3") == 3, "settled")
        assert "no known stream" in command("forget", "INBOX", "p/orders", status=1)
        assert command("forget", "INBOX", "--idle", "1000000") == ""
        assert command("forget", "INBOX", "p-[23]/*", status=1).startswith("1 forgotten; 1 kept: in use")
        assert "p-2" not in command("ls", "INBOX")
        assert "forgotten: 1" in command("stats", "INBOX")
        command("forget", "INBOX", status=64)
        held.ack()
        wait_for(lambda: "p-3/orders  epoch 10  position 2" in command("ls", "INBOX"), "settled")
        assert consumer.get(0.1) is None  # until then the application may still hold the last one
        assert command("forget", "INBOX", "--idle", "0") == "3 forgotten\n"
        assert command("ls", "INBOX") == ""
        for producer in ("p-1", "p-2", "q"):
            send(network["dc1"], 1, 3, producer=producer)
        take(consumer, 3, 3, 3)


def test_streams_are_forgotten_by_the_next_consumer_that_opens_the_inbox(
    inbox: Path, network: MemoryNetwork, command: Command
) -> None:
    with opened(inbox, network) as consumer:
        send(network["dc1"], 1, 2)
        take(consumer, 1, 2)
    assert "the next one" in command("forget", "INBOX", "p/*", timeout=0.1)
    assert "p/orders" in command("ls", "INBOX")
    with opened(inbox, network) as consumer:
        assert command("ls", "INBOX") == ""
        send(network["dc1"], 1, 3)
        take(consumer, 3)


def test_a_producer_fenced_by_a_forged_epoch_continues_once_the_stream_is_forgotten(
    inbox: Path, network: MemoryNetwork, command: Command, tmp_path: Path
) -> None:
    errors: list[BaseException] = []

    def producing() -> Producer:
        return Producer(
            "p", network.sites, outbox=tmp_path / "outbox.db", groups={TOPIC: [GROUP]},
            release="consumed", hello_timeout=0.5, on_error=errors.append,
        )  # fmt: skip

    def receive(*bodies: bytes) -> None:
        for body in bodies:
            message = consumer.get(20)
            assert message is not None
            assert message.body == body
            message.ack(durable=True)

    with opened(inbox, network) as consumer:
        send(network["dc1"], 1, 1, producer="other")
        receive(b"10:1")
        producer = producing()
        producer.publish(TOPIC, b"1")
        receive(b"1")
        send(network["dc1"], 1, 1, epoch=MAX_EPOCH - 1)
        wait_for(lambda: "far-epoch" in command("quarantine", "list", "INBOX"), "in quarantine")
        command("quarantine", "replay", "INBOX", "--all")  # which was wrong
        receive(f"{MAX_EPOCH - 1}:1".encode())
        wait_for(lambda: any(isinstance(error, ProducerFenced) for error in errors), "shut out")
        (error,) = (error for error in errors if isinstance(error, ProducerFenced))
        assert "`reliamsg inbox forget`" in str(error)
        with pytest.raises(ProducerFenced):
            producer.publish(TOPIC, b"refused")
        producer.close()
        assert consumer.get(0.1) is None
        assert command("forget", "INBOX", "p/orders") == "1 forgotten\n"
        assert "other/orders" in command("ls", "INBOX")
        producer = producing()
        producer.publish(TOPIC, b"2")
        receive(b"2")
        assert producer.close().nothing
        (listed,) = (line for line in command("ls", "INBOX").splitlines() if line.startswith("p/orders"))
        assert str(MAX_EPOCH - 1) not in listed
    report = check_directory(tmp_path, Expect(drained=True))
    violated = {(each.kind, each.epoch) for each in report.findings if each.severity == "violated"}
    assert violated == set(), report.text()


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
