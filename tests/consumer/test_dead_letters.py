"""Dead letters that are delivered again: once for each time, and never after their acknowledgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.consumer.dead_letters import ReplayItem
from reliamsg.errors import StoreCorrupt
from reliamsg.message import Message
from reliamsg.store.inbox_rows import DeadLetter
from reliamsg.store.inbox_view import read_dead_letters
from tests.consumer.tools import Bench, send


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "inbox.db")


@pytest.fixture
def letter(bench: Bench) -> DeadLetter:
    """The only dead letter."""
    send(bench.network["dc1"], 1, 1)
    bench.settle()
    (message,) = bench.take(1, ack=False)
    message.reject("no customer")
    bench.settle()
    (letter,) = read_dead_letters(bench.path)
    return letter


def replayed(bench: Bench) -> Message:
    item = bench.engine.deliveries.take(1, 10)
    assert isinstance(item, ReplayItem)
    assert item.message.replayed
    return item.message


def test_one_is_not_replayed_twice_at_a_time(bench: Bench, letter: DeadLetter) -> None:
    assert bench.engine.dead_letters.replay([letter.id, letter.id]) == (1, 0)
    assert bench.engine.dead_letters.replay([letter.id]) == (0, 0)
    message = replayed(bench)
    assert bench.engine.dead_letters.replay([letter.id]) == (0, 0)
    assert bench.engine.deliveries.take(1, 10) is None
    message.reject("still none")
    assert bench.engine.dead_letters.replay([letter.id]) == (1, 0), "it is a dead letter as before"
    assert replayed(bench).id == message.id


def test_the_first_outcome_counts(bench: Bench, letter: DeadLetter) -> None:
    bench.engine.dead_letters.replay([letter.id])
    message = replayed(bench)
    message.reject("still none")
    message.ack()  # as run() does when a handler returns
    bench.settle()
    assert read_dead_letters(bench.path) == [letter]
    assert bench.engine.dead_letters.replay([letter.id]) == (1, 0)
    again = replayed(bench)
    message.ack()
    message.reject("of an earlier delivery")
    assert bench.engine.dead_letters.replay([letter.id]) == (0, 0), "it is still being delivered"
    again.ack()
    again.reject("too late")
    bench.settle()
    assert read_dead_letters(bench.path) == []


def test_one_that_was_acknowledged_is_not_replayed_before_the_commit(
    bench: Bench, letter: DeadLetter
) -> None:
    bench.engine.dead_letters.replay([letter.id])
    replayed(bench).ack()
    assert read_dead_letters(bench.path) == [letter], "nothing is committed"
    assert bench.engine.dead_letters.replay([letter.id]) == (0, 0)
    bench.settle()
    assert read_dead_letters(bench.path) == []
    assert bench.engine.dead_letters.replay([letter.id]) == (0, 1), "it is no dead letter any more"
    assert bench.engine.deliveries.take(1, 10) is None


def test_an_acknowledgement_that_was_not_committed_is_lost_with_the_process(
    bench: Bench, letter: DeadLetter
) -> None:
    bench.engine.dead_letters.replay([letter.id])
    replayed(bench).ack()
    bench.reopen()
    assert bench.engine.dead_letters.replay([letter.id]) == (1, 0)
    replayed(bench).ack()


def test_what_is_in_memory_is_counted(bench: Bench, letter: DeadLetter) -> None:
    letters = bench.engine.dead_letters
    letters.replay([letter.id])
    assert letters.replaying_bytes > len(letter.body)
    replayed(bench).ack()
    assert letters.replaying_bytes == 0


def test_an_inbox_that_cannot_be_read(
    bench: Bench, letter: DeadLetter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> list[DeadLetter]:
        raise StoreCorrupt("as simulated")

    with monkeypatch.context() as patch:
        patch.setattr("reliamsg.consumer.dead_letters.read_dead_letters", unreadable)
        with pytest.raises(StoreCorrupt):
            bench.engine.dead_letters.replay([letter.id])
    assert bench.engine.dead_letters.replay([letter.id]) == (1, 0), "the attempt left nothing behind"
