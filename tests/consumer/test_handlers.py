"""Handlers and callbacks that only make what would do the work: refused where they are given, and nothing that such a
handler was given is acknowledged."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reliamsg import Consumer, Message, Producer
from reliamsg.errors import ConfigError, DeadLetterHalt, ReliamsgError
from reliamsg.testing import MemoryNetwork, inject
from tests.patience import patient, wait_for


async def coroutine(*_: object) -> None:
    raise AssertionError("it is never run")


async def async_generator(*_: object) -> Any:
    yield None


def generator(*_: object) -> Iterator[None]:
    yield None


class Asynchronous:
    async def __call__(self, *_: object) -> None: ...
    async def method(self, *_: object) -> None: ...


NOT_RUN: dict[str, Callable[..., object]] = {
    "coroutine function": coroutine,
    "partial of one": functools.partial(functools.partial(coroutine, 1), 2),
    "async generator": async_generator,
    "generator": generator,
    "object with async __call__": Asynchronous(),
    "partial of such an object": functools.partial(Asynchronous(), 1),
    "bound method": Asynchronous().method,
    "AsyncMock": AsyncMock(),
}


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1") as network:
        yield network


@pytest.fixture(autouse=True)
def no_coroutine_is_forgotten() -> Iterator[None]:
    """Python warns of a coroutine that was never awaited when it is collected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not [w for w in caught if "never awaited" in str(w.message)]


def consumer_of(network: MemoryNetwork, path: Path, **options: Any) -> Consumer:
    return Consumer("g", network.sites, topics=["t"], inbox=path / "i.db", **options)


def producer_of(network: MemoryNetwork, path: Path, **options: Any) -> Producer:
    return Producer(
        "p",
        network.sites,
        outbox=path / "o.db",
        groups={"t": ["g"]},
        hello_timeout=0,
        **options,
    )


@pytest.mark.parametrize("function", NOT_RUN.values(), ids=NOT_RUN)
def test_functions_whose_body_would_not_run_are_refused(
    network: MemoryNetwork, tmp_path: Path, function: Callable[..., Any]
) -> None:
    for name in ("on_gap", "on_late", "on_error"):
        with pytest.raises(ConfigError, match=name):
            consumer_of(network, tmp_path, **{name: function})
    with pytest.raises(ConfigError, match="on_error"):
        producer_of(network, tmp_path, on_error=function)
    with pytest.raises(ConfigError, match="probe"), inject(probe=function):
        pass
    assert not list(tmp_path.iterdir())
    with consumer_of(network, tmp_path) as consumer, producer_of(network, tmp_path) as producer:
        with pytest.raises(ConfigError, match="handler"):
            consumer.run(function)
        receipt = producer.publish("t", b"1")
        with pytest.raises(ConfigError, match="callback"):
            receipt.add_done_callback(function)
        message = consumer.get(timeout=patient(10))
        assert message is not None
        assert message.body == b"1"


def hidden(function: Callable[..., object]) -> Callable[..., Any]:
    """An ordinary function, whose result only shows what it is."""

    def ordinary(*given: object) -> object:
        return function(*given)

    return ordinary


RETURNS: dict[str, Callable[[Any], Any]] = {
    "a coroutine": hidden(coroutine),
    "a generator": hidden(generator),
    "an async generator": hidden(async_generator),
    "a future": lambda _: asyncio.new_event_loop().create_future(),
}


@pytest.mark.filterwarnings("ignore:unclosed event loop")
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("handler", RETURNS.values(), ids=RETURNS)
def test_a_handler_that_returns_what_nobody_runs_ends_the_run_and_acknowledges_nothing(
    network: MemoryNetwork, tmp_path: Path, handler: Callable[[Any], Any], batch: Any
) -> None:
    told: list[BaseException] = []
    with (
        producer_of(network, tmp_path) as producer,
        consumer_of(network, tmp_path, max_deliveries=1, on_error=told.append) as consumer,
    ):
        producer.publish_many("t", [b"%d" % n for n in range(5)])
        for _ in range(3):
            with pytest.raises(ConfigError, match="the handler returned a"):
                consumer.run(handler, batch=batch, workers=1)
        assert not consumer.dead_letters(), "deliveries that nobody handled do not count"
        (stream,) = consumer.status().streams.values()
        assert stream.position == 1
        wait_for(lambda: len(told) >= 3, "on_error was told")
        got: list[bytes] = []

        def handle(message: Any) -> Any:
            got.append(message.body)
            if len(got) == 5:
                consumer.stop()
            return 1  # what a handler returns does not matter otherwise

        consumer.run(handle)
        assert got == [b"%d" % n for n in range(5)]


def test_a_delivery_that_nobody_handled_does_not_halt_a_stream_again(
    network: MemoryNetwork, tmp_path: Path
) -> None:
    """The message has used up its deliveries, and comes again because its consumer was opened again."""

    def fail(_: Message) -> None:
        raise RuntimeError

    options: dict[str, Any] = {"max_deliveries": 2, "on_dead_letter": "halt"}
    with producer_of(network, tmp_path) as producer:
        producer.publish("t", b"1")
        for _ in range(2):
            with consumer_of(network, tmp_path, **options) as consumer, pytest.raises(DeadLetterHalt):
                consumer.run(fail)
        with consumer_of(network, tmp_path, **options) as consumer:
            for _ in range(3):
                with pytest.raises(ReliamsgError) as caught:
                    consumer.run(hidden(coroutine), workers=1)
                assert "the handler returned a" in str(caught.value)
                assert not isinstance(caught.value, DeadLetterHalt)
            message = consumer.get(patient(10))
            assert message is not None
            message.ack()


def test_callbacks_that_return_what_nobody_runs_are_reported(
    network: MemoryNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []
    with producer_of(network, tmp_path, on_error=told.append) as producer:
        producer.publish("t", b"1").add_done_callback(hidden(coroutine))
        wait_for(lambda: told, "on_error was told")
    assert isinstance(told[0], ConfigError)
    assert "callback returned a coroutine" in str(told[0])


def test_on_gap_that_returns_what_nobody_runs(network: MemoryNetwork, tmp_path: Path) -> None:
    with (
        producer_of(network, tmp_path) as producer,
        consumer_of(
            network, tmp_path, gap_timeout=0.2, repair_timeout=0.2, on_gap=hidden(coroutine),
        ) as consumer,
    ):  # fmt: skip
        first = producer.publish("t", b"1")
        assert first.id is not None
        first.wait(patient(10))
        message = consumer.get(timeout=patient(10))
        assert message is not None
        message.ack()
        network["dc1"].down()
        second = producer.publish("t", b"2")
        assert second.id is not None
        producer.remove(second.id)
        producer.publish("t", b"3")
        network["dc1"].up()
        with pytest.raises(ConfigError, match="on_gap returned a coroutine"):
            consumer.get(timeout=10)
