"""Consuming in an event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import reliamsg
from reliamsg import GapError, Message, Producer
from reliamsg.aio import Consumer
from reliamsg.consumer.api import non_blocking
from reliamsg.errors import ClosedError, ConfigError, DeadLetterHalt, FatalError, InboxLocked
from reliamsg.testing import MemoryNetwork
from tests.aio.conftest import Run
from tests.aio.tools import consumer, eventually
from tests.consumer.tools import send

Handler = Callable[[Message], Awaitable[None]]


@pytest.fixture
def publish(network: MemoryNetwork, tmp_path: Path) -> Callable[..., None]:
    """Publishes for the group, one producer for each name."""

    def publish(*bodies: bytes, producer: str = "p") -> None:
        with Producer(
            producer,
            network.sites,
            outbox=tmp_path / f"{producer}.db",
            groups={"orders": ["g"]},
            hello_timeout=0,
        ) as one:
            one.publish_many("orders", list(bodies)).wait(60)

    return publish


def numbers(count: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(count)]


async def handling(one: Consumer, handler: Handler, **options: Any) -> asyncio.Task[None]:
    task = asyncio.ensure_future(one.run(handler, **options))
    await asyncio.sleep(0)
    return task


class TestIteration:
    def test_each_comes_once_and_in_order(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(500))

        async def main() -> list[bytes]:
            found: list[bytes] = []
            async with consumer(network, inbox) as one:
                async for message in one:
                    async with message.process():
                        found.append(message.body)
                    if len(found) == 500:
                        one.stop()
            return found

        assert run(main()) == numbers(500)

    def test_get(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        async def main() -> None:
            async with consumer(network, inbox) as one:
                assert await one.get(0) is None
                assert await one.get(0.01) is None
                waiting = asyncio.ensure_future(one.get())
                await asyncio.to_thread(publish, b"1", b"2")
                message = await waiting
                assert message is not None
                assert message.body == b"1"
                await one.acknowledge(message)
                assert one.status().streams[message.stream].position == 2
                with pytest.raises(ConfigError):
                    await one.get(timeout="soon")  # type: ignore[arg-type]
                waiting = asyncio.ensure_future(one.get())
                second = await waiting
                assert second is not None
                waiting = asyncio.ensure_future(one.get())
                await asyncio.sleep(0.01)
                one.stop()
                assert await waiting is None

        run(main())

    def test_a_cancelled_get_takes_nothing(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        async def main() -> list[bytes]:
            found: list[bytes] = []
            async with consumer(network, inbox) as one:
                publishing = asyncio.ensure_future(asyncio.to_thread(publish, *numbers(200)))
                while len(found) < 200:
                    getting = asyncio.ensure_future(one.get())
                    for _ in range(len(found) % 4):
                        await asyncio.sleep(0)
                    if not getting.done():
                        getting.cancel()
                    await asyncio.wait([getting])
                    message = await one.get(0.001) if getting.cancelled() else getting.result()
                    if message is not None:
                        message.ack()
                        found.append(message.body)
                await publishing
            return found

        assert run(main()) == numbers(200)

    def test_batches(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(10))

        async def main() -> None:
            async with consumer(network, inbox) as one:
                gathering = one.batches(4, 60)
                first = await anext(gathering)
                assert [each.body for each in first] == numbers(4)
                slow = one.batches(100, 60)
                cancelled = asyncio.ensure_future(anext(slow))
                await asyncio.sleep(0.05)
                cancelled.cancel()
                await asyncio.wait([cancelled])
                last = await anext(one.batches(6, 60))
                assert [each.body for each in last] == numbers(10)[4:]
                ends = asyncio.ensure_future(anext(one.batches(1, 0)))
                await asyncio.sleep(0.01)
                one.stop()
                with pytest.raises(StopAsyncIteration):
                    await ends
                with pytest.raises(ConfigError):
                    one.batches(0, 1)

        run(main())

    def test_a_gap_is_raised_and_accepted(self, run: Run[Any], network: MemoryNetwork, inbox: Path) -> None:
        async def main() -> None:
            async with consumer(network, inbox, on_gap="raise", gap_timeout=0.1) as one:
                await eventually(lambda: network["dc1"].connections)
                for site in ("dc1", "dc2"):
                    send(network[site], 1, 2)
                    send(network[site], 4, 5)
                seen: list[int] = []

                async def read() -> None:
                    async for message in one:
                        message.ack()
                        seen.append(message.seq)

                with pytest.raises(GapError) as raised:
                    await read()
                assert seen == [1, 2]
                assert await one.accept(raised.value.gap)
                assert not await one.accept(raised.value.gap)
                message = await one.get(60)
                assert message is not None
                assert message.seq == 4

        run(main())


class TestRun:
    def test_streams_side_by_side_each_in_order(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        names = [f"p{n}" for n in range(5)]
        for name in names:
            publish(*numbers(20), producer=name)
        found: dict[str, list[bytes]] = defaultdict(list)
        running: list[str] = []
        most = 0

        async def main() -> None:
            nonlocal most

            async def handle(message: Message) -> None:
                nonlocal most
                assert message.producer not in running
                running.append(message.producer)
                most = max(most, len(running))
                await asyncio.sleep(0.001)
                running.remove(message.producer)
                found[message.producer].append(message.body)
                if sum(map(len, found.values())) == 100:
                    one.stop()

            async with consumer(network, inbox) as one:
                await one.run(handle, concurrency=3)
                assert await one.get(0) is None

        run(main())
        assert found == {name: numbers(20) for name in names}
        assert 1 < most <= 3

    def test_batches_of_one_stream(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(100))
        lists: list[list[bytes]] = []

        async def main() -> None:
            async def handle(messages: list[Message]) -> None:
                lists.append([message.body for message in messages])
                if sum(map(len, lists)) == 100:
                    one.stop()

            async with consumer(network, inbox) as one:
                await one.run(handle, batch=7)
                assert (await one.close()).unacknowledged == 0

        run(main())
        assert [body for each in lists for body in each] == numbers(100)
        assert max(map(len, lists)) == 7

    def test_a_failure_is_reported_and_the_message_comes_again_in_place(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(3))
        seen: list[bytes] = []
        errors: list[tuple[str, bool]] = []

        async def main() -> None:
            here = threading.get_ident()

            async def handle(message: Message) -> None:
                seen.append(message.body)
                if len(seen) == 2:
                    raise ValueError("not now")
                if len(seen) == 3:
                    gone = asyncio.get_running_loop().create_future()
                    gone.cancel()
                    await gone  # something else was cancelled, not this task
                if len(seen) == 5:
                    one.stop()

            def note(error: BaseException) -> None:
                errors.append((repr(error), threading.get_ident() == here))

            async with consumer(network, inbox, on_error=note) as one:
                await one.run(handle)
                await eventually(lambda: len(errors) == 2)

        run(main())
        assert seen == [b"0", b"1", b"1", b"1", b"2"]
        assert errors == [("ValueError('not now')", True), ("CancelledError()", True)]

    def test_dead_letters_are_listed_and_replayed(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(b"poison", b"fine")
        seen: list[tuple[bytes, bool]] = []

        async def main() -> None:
            async def handle(message: Message) -> None:
                seen.append((message.body, message.replayed))
                if message.body == b"poison" and not message.replayed:
                    raise ValueError("poison")

            async with consumer(network, inbox, max_deliveries=2) as one:
                task = await handling(one, handle)
                await eventually(lambda: (b"fine", False) in seen)
                (letter,) = await one.dead_letters()
                assert letter.body == b"poison"
                await one.replay(letter.id)
                await eventually(lambda: (b"poison", True) in seen)
                one.stop()
                await task
                with pytest.raises(ConfigError):
                    await one.replay(letter.id + 1)

        run(main())

    def test_fatal_errors_end_it_once_handlers_have_returned(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(b"poison")
        publish(b"slow", producer="other")
        returned: list[bytes] = []

        async def main() -> None:
            slow = asyncio.Event()

            async def handle(message: Message) -> None:
                if message.body == b"poison":
                    await slow.wait()
                    raise ValueError("poison")
                slow.set()
                await asyncio.sleep(0.2)
                returned.append(message.body)

            async with consumer(network, inbox, max_deliveries=1, on_dead_letter="halt") as one:
                with pytest.raises(DeadLetterHalt):
                    await one.run(handle)
                assert returned == [b"slow"]
                with pytest.raises(FatalError):
                    await one.get()

        run(main())

    @pytest.mark.parametrize("handler", [lambda message: None, lambda message: 3, print, None])
    def test_only_coroutine_functions(
        self,
        run: Run[Any],
        network: MemoryNetwork,
        inbox: Path,
        publish: Callable[..., None],
        handler: Any,
    ) -> None:
        publish(b"x")

        async def main() -> None:
            async with consumer(network, inbox, max_deliveries=1) as one:
                with pytest.raises(ConfigError, match="coroutine function"):
                    await one.run(handler)
                message = await one.get(60)
                assert message is not None, "that delivery does not count"
                message.ack()

        run(main())

    def test_cancelled_handlers_messages_come_again_and_the_delivery_does_not_count(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        names = [f"p{n}" for n in range(4)]
        for name in names:
            publish(*numbers(3), producer=name)

        async def main() -> None:
            started: set[str] = set()

            async def handle(message: Message) -> None:
                started.add(message.producer)
                await asyncio.sleep(3600)

            async with consumer(network, inbox, max_deliveries=1) as one:
                for _ in range(5):
                    started.clear()
                    task = await handling(one, handle)
                    await eventually(lambda: len(started) == 4)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                found = defaultdict(list)
                for _ in range(12):
                    message = await one.get(60)
                    assert message is not None
                    message.ack()
                    found[message.producer].append(message.body)
                assert found == {name: numbers(3) for name in names}
                assert not await one.dead_letters()

        run(main())

    def test_a_task_that_is_cancelled_before_it_runs_gives_its_messages_back(
        self,
        run: Run[Any],
        network: MemoryNetwork,
        inbox: Path,
        publish: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As when a program ends, and all of its tasks are cancelled."""
        publish(*numbers(2))

        async def main() -> None:
            here = asyncio.current_task()
            loop = asyncio.get_running_loop()

            def cancel_all() -> None:
                for task in asyncio.all_tasks() - {here}:
                    task.cancel()

            async def handle(message: Message) -> None:
                raise AssertionError("it is cancelled before")

            async with consumer(network, inbox) as one:
                parts = non_blocking(one._open.consumer)
                assert parts is not None
                take = parts.engine.deliveries.take

                def taken(*args: int) -> Any:
                    item = take(*args)
                    if item is not None:
                        loop.call_soon_threadsafe(cancel_all)  # ahead of the task that is started for it
                    return item

                with monkeypatch.context() as patch:
                    patch.setattr(parts.engine.deliveries, "take", taken)
                    task = await handling(one, handle)
                    await asyncio.wait([task])
                    assert task.cancelled()
                message = await one.get(20)
                assert message is not None
                assert (message.body, message.redelivered) == (b"0", False)

        run(main())

    def test_a_handler_may_close(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(b"x")

        async def main() -> None:
            one = consumer(network, inbox)

            async def handle(message: Message) -> None:
                remaining = await one.close()
                assert remaining.unacknowledged == 1

            await one.open()
            await one.run(handle)
            with pytest.raises(ClosedError):
                await one.run(handle)

        run(main())

    def test_closing_waits_for_handlers(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(2))

        async def main() -> None:
            started, go_on = asyncio.Event(), asyncio.Event()

            async def handle(message: Message) -> None:
                started.set()
                await go_on.wait()

            async with consumer(network, inbox) as one:
                task = await handling(one, handle)
                await started.wait()
                closing = asyncio.ensure_future(one.close(60))
                await asyncio.sleep(0.05)
                assert not closing.done()
                go_on.set()
                remaining = await closing
                await task
                assert (remaining.unacknowledged, remaining.held, remaining.clean) == (0, 1, True)

        run(main())

    def test_a_signal_stops_it(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(3))

        async def main() -> None:
            async def handle(message: Message) -> None:
                signal.raise_signal(signal.SIGUSR1)

            async with consumer(network, inbox) as one:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, one.stop)
                await one.run(handle)

        run(main())


class TestLife:
    def test_nothing_works_before_and_after(self, run: Run[Any], network: MemoryNetwork, inbox: Path) -> None:
        async def main() -> None:
            one = consumer(network, inbox)
            assert "not open" in repr(one)
            with pytest.raises(ClosedError, match="not open"):
                await one.get()
            await one.open()
            with pytest.raises(ClosedError, match="once"):
                await one.open()
            first, second = await asyncio.gather(one.close(), one.close())
            assert first == second
            assert first.clean
            with pytest.raises(ClosedError):
                one.status()
            with pytest.raises(ConfigError):
                await one.close(timeout="long")  # type: ignore[arg-type]

        run(main())

    def test_errors_of_opening(self, run: Run[Any], network: MemoryNetwork, inbox: Path) -> None:
        async def main() -> None:
            for options in ({"begin": "now"}, {"gap_timeout": 0}, {"on_error": 3}, {"keys": 3}):
                with pytest.raises(ConfigError):
                    await consumer(network, inbox, **options).open()
            async with consumer(network, inbox):
                with pytest.raises(InboxLocked):
                    await consumer(network, inbox).open()

        run(main())

    def test_a_standby_takes_over_and_is_woken(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        async def main() -> None:
            async with consumer(network, inbox, takeover_timeout=1.0) as first:
                standby = consumer(network, inbox, standby=True, takeover_timeout=1.0)
                await standby.open()
                assert standby.status().role == "standby"
                waiting = asyncio.ensure_future(standby.get())
                running: list[Message] = []
                await asyncio.to_thread(publish, b"1")
                message = await first.get(60)
                assert message is not None
                message.ack()
                await first.close()
                await asyncio.to_thread(publish, b"2")
                message = await waiting
                assert message is not None
                assert message.body == b"2"
                assert not running
                await standby.close()

        run(main())

    def test_a_blocking_consumer_continues_where_it_stopped(
        self, run: Run[Any], network: MemoryNetwork, inbox: Path, publish: Callable[..., None]
    ) -> None:
        publish(*numbers(3))

        async def main() -> None:
            async with consumer(network, inbox) as one:
                message = await one.get(60)
                assert message is not None
                message.ack()

        run(main())
        with reliamsg.Consumer("g", network.sites, topics=["orders"], inbox=inbox) as one:
            message = one.get(60)
            assert message is not None
            assert message.body == b"1"
