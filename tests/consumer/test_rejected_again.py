"""A handler that rejects a dead letter which is delivered again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reliamsg import Consumer, Message, Producer
from reliamsg.testing import MemoryNetwork
from tests.patience import patient, wait_for


@pytest.mark.parametrize("batch", [None, 10])
def test_it_stays_a_dead_letter(tmp_path: Path, batch: int | None) -> None:
    with (
        MemoryNetwork("dc1") as network,
        Producer("p", network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]}) as producer,
        Consumer("g", network.sites, topics=["t"], inbox=tmp_path / "g.db") as consumer,
    ):
        replays: list[bool] = []

        def handle(message: Message) -> None:
            replays.append(message.replayed)
            if message.body == b"bad":
                message.reject("no customer")
            else:
                consumer.stop()

        def handle_batch(messages: list[Message]) -> None:
            for message in messages:
                handle(message)

        def run() -> None:
            if batch is None:
                consumer.run(handle)
            else:
                consumer.run(handle_batch, batch=batch)

        with ThreadPoolExecutor() as pool:
            running = pool.submit(run)
            producer.publish("t", b"bad")
            wait_for(lambda: len(consumer.dead_letters()) == 1, "a dead letter")
            (letter,) = consumer.dead_letters()
            consumer.replay(letter.id)
            wait_for(lambda: replays == [False, True], "handled again")
            producer.publish("t", b"good")
            running.result(patient(30))
        assert consumer.dead_letters() == [letter]
