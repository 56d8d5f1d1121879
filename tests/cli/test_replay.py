"""``inbox replay``: operators have dead letters delivered again, by a consumer that runs or by the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg import Consumer, Message
from reliamsg.cli.status import Status
from reliamsg.consumer.dead_letters import LETTER_BYTES
from reliamsg.store.requests import Answer, Request, ask
from reliamsg.testing import MemoryNetwork
from tests.cli.commands import refused, reliamsg_here, succeeded
from tests.consumer.tools import GROUP, TOPIC, send
from tests.patience import patient, wait_for

DEAD = 4


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1") as network:
        yield network


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return tmp_path / "g.db"


def opened(network: MemoryNetwork, inbox: Path) -> Consumer:
    return Consumer(GROUP, network.sites, topics=[TOPIC], inbox=inbox)


def taken(consumer: Consumer) -> Message:
    message = consumer.get(patient(20))
    assert message is not None
    return message


def bury(network: MemoryNetwork, consumer: Consumer) -> list[int]:
    """The ids of dead letters."""
    send(network["dc1"], 1, DEAD)
    for number in range(DEAD):
        taken(consumer).reject("no customer" if number % 2 else "no price")
    wait_for(lambda: len(consumer.dead_letters()) == DEAD, "they are stored")
    return [letter.id for letter in consumer.dead_letters()]


def replay(inbox: Path, *arguments: str) -> str:
    return succeeded(reliamsg_here("inbox", "replay", inbox, *arguments)).decode()


def test_by_a_consumer_that_runs(network: MemoryNetwork, inbox: Path) -> None:
    with opened(network, inbox) as consumer:
        ids = bury(network, consumer)
        send(network["dc1"], DEAD + 1, DEAD + 1)
        assert replay(inbox, "--all") == f"{DEAD} of {DEAD} dead letters are delivered again\n"
        assert replay(inbox, "--all") == f"0 of {DEAD} dead letters are delivered again\n", (
            "they are about to be"
        )
        for number in range(1, DEAD + 1):
            message = taken(consumer)
            assert (message.seq, message.replayed) == (number, True)
            if number == 2:
                message.reject("still no customer")
            else:
                message.ack()
        message = taken(consumer)
        assert (message.seq, message.replayed) == (DEAD + 1, False)
        message.ack(durable=True)
        (left,) = consumer.dead_letters()
        assert (left.id, left.seq) == (ids[1], 2)
        assert replay(inbox, "--id", str(left.id)) == "1 of 1 dead letters are delivered again\n"
        assert taken(consumer).seq == 2


def test_by_the_next_consumer_and_once_more_if_it_was_closed_before(
    network: MemoryNetwork, inbox: Path
) -> None:
    with opened(network, inbox) as consumer:
        bury(network, consumer)
    assert "the next one that opens it" in replay(inbox, "--stream", f"p/{TOPIC}", "--timeout", "0.1")
    with opened(network, inbox) as consumer:
        first = taken(consumer)
        assert (first.seq, first.replayed) == (1, True)
    with opened(network, inbox) as consumer:
        assert len(consumer.dead_letters()) == DEAD, "nothing was acknowledged"
        assert consumer.get(0) is None
        replay(inbox, "--reason", "customer")
        assert [taken(consumer).seq for _ in range(2)] == [2, 4]


def test_a_dry_run_only_lists(network: MemoryNetwork, inbox: Path) -> None:
    with opened(network, inbox) as consumer:
        ids = bury(network, consumer)
        text = replay(inbox, "--all", "--dry-run")
        assert [int(line.split()[0]) for line in text.splitlines()[::2]] == ids
        assert consumer.get(0) is None
    assert not list(Path(f"{inbox}.requests").glob("*.json"))


def test_mistakes(network: MemoryNetwork, inbox: Path) -> None:
    with opened(network, inbox) as consumer:
        (first, *_) = bury(network, consumer)
    refused(reliamsg_here("inbox", "replay", inbox), Status.USAGE, "--all")
    refused(reliamsg_here("inbox", "replay", inbox, "--id", "99"), Status.INCOMPLETE, "no dead letter 99")
    refused(
        reliamsg_here("inbox", "replay", inbox, "--id", str(first), "--reason", "customer"),
        Status.INCOMPLETE, f"no dead letter {first}",
    )  # fmt: skip
    assert replay(inbox, "--stream", "p/other") == "no dead letter matches\n"


def test_many_without_a_consumer_wait_only_once(
    network: MemoryNetwork, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(network, inbox) as consumer:
        bury(network, consumer)
    waits: list[float] = []

    def noting(path: Path, request: Request, timeout: float) -> Answer | None:
        waits.append(timeout)
        return ask(path, request, timeout)

    monkeypatch.setattr("reliamsg.cli.inbox._REPLAYED_AT_ONCE", 2)
    monkeypatch.setattr("reliamsg.store.requests.ask", noting)
    assert "the next one that opens it" in replay(inbox, "--all", "--timeout", "0.1")
    assert waits == [0.1] + [0.0] * (DEAD // 2 - 1)
    with opened(network, inbox) as consumer:
        assert [taken(consumer).seq for _ in range(DEAD)] == list(range(1, DEAD + 1))


def test_the_size_of_those_in_memory_is_bounded(
    network: MemoryNetwork, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliamsg.consumer.runner.REPLAY_PAGE", 1)
    monkeypatch.setattr("reliamsg.consumer.runner.MAX_REPLAYING_BYTES", 2 * LETTER_BYTES)
    with opened(network, inbox) as consumer:
        bury(network, consumer)
        result = reliamsg_here("inbox", "replay", inbox, "--all")
        assert result.returncode == Status.INCOMPLETE
        assert f"2 of {DEAD} dead letters are delivered again; ask for the others" in result.stderr.decode()
        for number in (1, 2):
            message = taken(consumer)
            assert message.seq == number
            message.ack()
        replay(inbox, "--all")
        assert [taken(consumer).seq for _ in range(DEAD - 2)] == list(range(3, DEAD + 1))
        assert consumer.get(0) is None, "the others are none any more"
