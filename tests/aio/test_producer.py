"""Publishing from an event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import reliamsg
from reliamsg.aio import Receipt
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    FatalError,
    MessageRemoved,
    OutboxFull,
    OutboxLocked,
)
from reliamsg.producer.api import non_blocking
from reliamsg.testing import MemoryNetwork
from tests.aio.conftest import Run
from tests.aio.tools import eventually, producer
from tests.producer.tools import Reader


class TestPublishing:
    def test_it_arrives_everywhere_as_it_was(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        readers = [Reader(network, name) for name in ("dc1", "dc2")]

        async def main() -> None:
            async with producer(network, outbox) as one:
                receipt = await one.publish("orders", b"1", key="k", headers={"h": "v"})
                assert receipt.durable
                assert receipt.id is not None
                assert receipt.id.seq == 1
                await receipt
                assert receipt.done
                assert receipt.sites == {"dc1": "confirmed", "dc2": "confirmed"}
                many = await one.publish_many("orders", [b"2", b"3"])
                later = one.publish_nowait("orders", b"4")
                await later.wait(until="durable")
                assert [each.seq for each in (*many.ids, *later.ids)] == [2, 3, 4]
                await one.flush(timeout=60)
                assert one.pending() == 0
                assert one.status().producer == "p"

        run(main())
        for reader in readers:
            assert reader.bodies() == [b"1", b"2", b"3", b"4"]

    def test_messages_are_numbered_in_the_order_of_the_calls(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        async def main() -> list[Receipt]:
            async with producer(network, outbox) as one:
                return await asyncio.gather(*(one.publish("orders", b"%d" % n) for n in range(1_000)))

        assert [receipt.ids[0].seq for receipt in run(main())] == list(range(1, 1_001))

    def test_the_loop_runs_while_the_disk_does_not_answer(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> None:
            async with producer(network, outbox) as one:
                store = non_blocking(one._producer).engine._outbox
                append, go_on = store.append, threading.Event()

                def slow(*args: Any) -> Any:
                    go_on.wait(60)
                    return append(*args)

                monkeypatch.setattr(store, "append", slow)
                publishing = asyncio.ensure_future(one.publish("orders", b"1"))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not publishing.done()
                assert one.pending() == 1
                with pytest.raises(ConfirmTimeout, match="not on the disk"):
                    await one.publish_nowait("orders", b"2").wait(0.01, until="durable")
                go_on.set()
                assert (await publishing).durable

        run(main())

    def test_a_disk_error_reaches_every_task_that_waits(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def main() -> list[Receipt | BaseException]:
            async with producer(network, outbox) as one:
                store, append = non_blocking(one._producer).engine._outbox, None
                append = store.append

                def fails(*args: Any) -> Any:
                    raise reliamsg.OutboxWriteError("disk full")

                monkeypatch.setattr(store, "append", fails)
                found = await asyncio.gather(
                    *(one.publish("orders", b"x") for _ in range(10)), return_exceptions=True
                )
                monkeypatch.setattr(store, "append", append)
                assert (await one.publish("orders", b"y")).ids[0].seq == 1
                return list(found)

        assert {type(each) for each in run(main())} == {reliamsg.OutboxWriteError}

    @pytest.mark.parametrize(
        ("arguments", "options"),
        [
            (("", b"x"), {}),
            (("orders", "text"), {}),
            (("orders", b"x"), {"headers": {"rm-seq": "1"}}),
            (("orders", b"x"), {"key": 1}),
            ((["orders"], b"x"), {}),
        ],
    )
    def test_mistakes(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path, arguments: Any, options: Any
    ) -> None:
        async def main() -> None:
            async with producer(network, outbox) as one:
                with pytest.raises(ConfigError):
                    await one.publish(*arguments, **options)
                with pytest.raises(ConfigError):
                    one.publish_nowait(*arguments, **options)
                with pytest.raises(ConfigError, match="at least one"):
                    await one.publish_many("orders", [])

        run(main())


class TestRoom:
    def test_tasks_wait_in_their_order(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()
        readers = [Reader(network, name) for name in ("dc1", "dc2")]

        async def main() -> None:
            async with producer(network, outbox, max_bytes=40_000) as one:
                publishing = [
                    asyncio.create_task(one.publish("orders", b"%d" % n + bytes(1_000 * (n % 7))))
                    for n in range(50)
                ]
                await asyncio.sleep(0.1)
                assert not all(task.done() for task in publishing)
                for task in publishing[45:48]:
                    task.cancel()
                network["dc1"].release_confirms()
                found = await asyncio.gather(*publishing, return_exceptions=True)
                assert [n for n, each in enumerate(found) if isinstance(each, BaseException)] == [45, 46, 47]
                await one.flush(60)

        run(main())
        published = [b"%d" % n for n in range(50) if n not in (45, 46, 47)]
        for reader in readers:
            assert [body.rstrip(b"\0") for body in reader.bodies()] == published

    def test_until_the_time_is_over(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox, max_bytes=4_000, block_timeout=0.05) as one:
                await one.publish("orders", bytes(3_000))
                with pytest.raises(OutboxFull, match="wait for"):
                    await one.publish("orders", bytes(3_000))
                with pytest.raises(OutboxFull, match="can't fit"):
                    await one.publish("orders", bytes(5_000))
                with pytest.raises(OutboxFull):
                    one.publish_nowait("orders", bytes(3_000))
                await one.publish("orders", b"small")
                await one.close(0)

        run(main())

    def test_a_large_one_that_gives_up_lets_the_next_pass(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox, max_bytes=10_000, block_timeout=60.0) as one:
                await one.publish("orders", bytes(5_000))
                large = asyncio.create_task(one.publish("orders", bytes(8_000)))
                small = asyncio.create_task(one.publish("orders", b"small"))
                await asyncio.sleep(0.05)
                assert not small.done()
                large.cancel()
                assert (await small).ids[0].seq == 2
                await one.close(0)

        run(main())

    def test_closing_ends_the_waiting(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox, max_bytes=4_000) as one:
                receipt = await one.publish("orders", bytes(3_000))
                waiting = [
                    asyncio.create_task(one.publish("orders", bytes(3_000))),
                    asyncio.ensure_future(receipt.wait()),
                ]
                await asyncio.sleep(0.05)
                await one.close(0)
                for task in waiting:
                    with pytest.raises(ClosedError):
                        await task
                with pytest.raises(ClosedError):
                    await one.publish("orders", b"x")
                with pytest.raises(ClosedError):
                    await receipt

        run(main())

    def test_when_full_raise(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox, max_bytes=4_000, when_full="raise") as one:
                await one.publish("orders", bytes(3_000))
                with pytest.raises(OutboxFull):
                    await one.publish("orders", bytes(3_000))
                await one.close(0)

        run(main())


class TestReceipts:
    def test_timeouts_name_the_sites(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox, release="consumed") as one:
                receipt = await one.publish("orders", b"x")
                with pytest.raises(ConfirmTimeout, match=r"within 0\.05 s") as raised:
                    await receipt.wait(0.05)
                assert "dc1" in raised.value.sites
                with pytest.raises(ConfirmTimeout, match=r"within 0\.05 s by g"):
                    await receipt.wait(0.05, until="consumed")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await receipt
                network["dc1"].release_confirms()
                await asyncio.gather(*(receipt.wait() for _ in range(20)))
                with pytest.raises(ConfigError):
                    await receipt.wait(until="done")  # type: ignore[arg-type]

        run(main())

    def test_consumed_needs_a_group(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        async def main() -> None:
            async with producer(network, outbox) as one:
                receipt = await one.publish("orders", b"x")
                with pytest.raises(ConfigError, match="release='consumed'"):
                    await receipt.wait(until="consumed")

        run(main())

    def test_removed_messages_are_reported(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox) as one:
                receipt = await one.publish("orders", b"x")
                waiting = asyncio.ensure_future(receipt.wait())
                await asyncio.sleep(0)
                assert await one.remove(receipt.ids[0]) == 1
                with pytest.raises(MessageRemoved):
                    await waiting
                await one.add_group("orders", "h")
                await one.remove_group("orders", "h")
                with pytest.raises(ConfigError, match="not named"):
                    await one.remove_group("orders", "h")

        run(main())

    def test_tasks_that_wait_for_one_batch_end_each_at_its_time(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            async with producer(network, outbox) as one:
                receipts = await asyncio.gather(*(one.publish("orders", b"x") for _ in range(5)))
                waiting = [asyncio.ensure_future(receipt.wait()) for receipt in receipts]
                await asyncio.sleep(0)
                waiting[1].cancel()
                assert await one.remove(receipts[0].ids[0]) == 1
                with pytest.raises(MessageRemoved):
                    await waiting[0]
                await asyncio.wait([waiting[1]])
                assert waiting[1].cancelled()
                assert not any(task.done() for task in waiting[2:])
                network["dc1"].release_confirms()
                await asyncio.gather(*waiting[2:])
                assert all(receipt.done for receipt in receipts[1:])

        run(main())

    def test_callbacks_run_in_the_loop_and_always(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        network["dc1"].hold_confirms()
        called: list[tuple[str, bool, bool]] = []

        async def main() -> None:
            here = threading.get_ident()
            async with producer(network, outbox) as one:
                receipt = one.publish_nowait("orders", b"x")
                receipt.add_done_callback(
                    lambda each: called.append(("durable", each.durable, threading.get_ident() == here)),
                    until="durable",
                )
                receipt.add_done_callback(
                    lambda each: called.append(("confirmed", each.done, threading.get_ident() == here))
                )
                await eventually(lambda: called)
                assert called == [("durable", True, True)]
                await one.close(0)
                await eventually(lambda: len(called) == 2)

        run(main())
        assert called[1] == ("confirmed", False, True)


class TestLife:
    def test_nothing_works_before_and_after(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        async def main() -> None:
            one = producer(network, outbox)
            assert "not open" in repr(one)
            with pytest.raises(ClosedError, match="not open"):
                await one.publish("orders", b"x")
            with pytest.raises(ClosedError, match="not open"):
                one.status()
            assert not outbox.exists()
            await one.open()
            with pytest.raises(ClosedError, match="once"):
                await one.open()
            first, second = await asyncio.gather(one.close(), one.close())
            assert first == second
            assert first.nothing
            assert "closed" in repr(one)
            with pytest.raises(ClosedError):
                one.pending()

        run(main())

    def test_errors_of_opening(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        async def main() -> None:
            for options in ({"max_bytes": -1}, {"confirm": "most"}, {"on_error": 3}):
                with pytest.raises(ConfigError):
                    await producer(network, outbox, **options).open()
            async with producer(network, outbox):
                other = producer(network, outbox)
                with pytest.raises(OutboxLocked):
                    await other.open()
            await other.open()  # another attempt may succeed
            await other.close()

        run(main())

    def test_a_cancelled_open_leaves_nothing_open(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        async def main() -> None:
            for yields in range(6):
                opening = asyncio.ensure_future(producer(network, outbox).open())
                for _ in range(yields):
                    await asyncio.sleep(0.002)
                opening.cancel()
                await asyncio.wait([opening])
                if not opening.cancelled():
                    return  # it was faster: enough attempts were not
                deadline = asyncio.get_running_loop().time() + 60
                while True:
                    try:
                        async with producer(network, outbox):
                            break
                    except OutboxLocked:
                        assert asyncio.get_running_loop().time() < deadline
                        await asyncio.sleep(0.01)

        run(main())

    def test_a_cancelled_close_continues(self, run: Run[Any], network: MemoryNetwork, outbox: Path) -> None:
        network["dc1"].hold_confirms()

        async def main() -> None:
            one = producer(network, outbox)
            await one.open()
            await one.publish("orders", b"x")
            closing = asyncio.ensure_future(one.close(0.2))
            await asyncio.sleep(0.01)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert (await one.close()).messages == 1

        run(main())

    def test_a_fatal_error_reaches_on_error_in_the_loop_and_every_call(
        self, run: Run[Any], network: MemoryNetwork, outbox: Path
    ) -> None:
        async def main() -> None:
            errors: list[tuple[BaseException, bool]] = []
            here = threading.get_ident()

            def note(error: BaseException) -> None:
                errors.append((error, threading.get_ident() == here))

            async with producer(network, outbox, on_error=note) as one:
                network["dc1"].hold_confirms()
                waiting = asyncio.ensure_future((await one.publish("orders", b"x")).wait())
                end = FatalError("the end")
                non_blocking(one._producer).engine.fail(end)
                await eventually(lambda: errors == [(end, True)])
                for call in (waiting, one.publish("orders", b"x"), one.flush()):
                    with pytest.raises(FatalError, match="the end"):
                        await call

        run(main())

    def test_it_belongs_to_one_loop(self, network: MemoryNetwork, outbox: Path) -> None:
        one = producer(network, outbox)
        asyncio.run(one.open())

        async def elsewhere() -> None:
            with pytest.raises(ConfigError, match="another event loop"):
                await one.publish("orders", b"x")

        asyncio.run(elsewhere())
        assert one._opened is not None
        one._opened.producer.close(0)
