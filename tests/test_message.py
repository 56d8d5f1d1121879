"""Messages as values: in pickles, copies and comparisons, and made by hand in unit tests."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Iterator

import pytest

from reliamsg import Consumer, Message, MessageId, Producer
from reliamsg.errors import ClosedError
from reliamsg.testing import MemoryNetwork
from tests.patience import wait_for


@pytest.fixture
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Consumer, Message]]:
    path = tmp_path_factory.mktemp("clients")
    with (
        MemoryNetwork("dc1") as network,
        Producer("p", network.sites, outbox=path / "o.db", groups={"t": ["g"]}) as producer,
        Consumer("g", network.sites, topics=["t"], inbox=path / "i.db") as consumer,
    ):
        producer.publish("t", b"body", key="k", headers={"h": "v"})
        message = consumer.get(timeout=10)
        assert message is not None
        yield consumer, message


def position(consumer: Consumer) -> int:
    (stream,) = consumer.status().streams.values()
    return stream.position


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_message_is_equal_and_cannot_be_acknowledged(
    delivered: tuple[Consumer, Message], protocol: int
) -> None:
    consumer, message = delivered
    again = pickle.loads(pickle.dumps([message], protocol))[0]
    assert again == message
    assert (again.id, again.body, again.key, again.headers) == (message.id, b"body", "k", {"h": "v"})
    for settle in (again.ack, again.reject, lambda: again.ack(durable=True)):
        with pytest.raises(ClosedError, match="was pickled"):
            settle()
    with pytest.raises(ZeroDivisionError), again.process():
        raise ZeroDivisionError
    assert position(consumer) == 1
    message.ack()
    wait_for(lambda: position(consumer) == 2, "it is acknowledged")
    assert pickle.loads(pickle.dumps(again)) == message


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_is_acknowledged_in_place_of_the_message(
    delivered: tuple[Consumer, Message], duplicate: object
) -> None:
    consumer, message = delivered
    again: Message = duplicate(message)  # type: ignore[operator]
    assert again == message
    assert again is not message
    again.ack()
    wait_for(lambda: position(consumer) == 2, "it is acknowledged")


def test_process_is_also_an_asynchronous_context_manager(delivered: tuple[Consumer, Message]) -> None:
    consumer, message = delivered

    async def fails() -> None:
        async with message.process() as same:
            assert same is message
            raise ZeroDivisionError

    async def succeeds(message: Message) -> None:
        async with message.process():
            pass

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fails())
    assert position(consumer) == 1
    again = consumer.get(timeout=60)
    assert again is not None
    assert again.id == message.id
    assert again.redelivered
    asyncio.run(succeeds(again))
    wait_for(lambda: position(consumer) == 2, "it is acknowledged")


def test_messages_are_made_by_hand() -> None:
    message = Message(body=b"42 widgets", headers={"account": "A"})
    assert message.id == MessageId("producer", 1, "topic", 0, 1)
    message.ack()
    message.ack(durable=True)
    message.reject("no")
    with message.process() as same:
        assert same is message
    other = Message(topic="orders", seq=7)
    assert other.headers == {}
    assert Message().headers is not other.headers


def test_messages_are_compared_by_everything_but_their_consumer() -> None:
    one, same = Message(body=b"a", headers={"h": "v"}), Message(body=b"a", headers={"h": "v"})
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same}) == 1
    for other in (
        Message(body=b"b"),
        Message(body=b"a", key="k"),
        Message(body=b"a", redelivered=True),
        b"a",
        None,
    ):
        assert one != other
