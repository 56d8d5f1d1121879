"""Publishing: what is durable when, receipts, flush, callbacks, closing."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reliamsg import MessageId, Producer, Quorum, Receipt
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    FatalError,
    ForkedError,
    MessageTooLarge,
    OutboxLocked,
    ReliamsgError,
)
from reliamsg.store.outbox_view import inspect_outbox, list_batches
from reliamsg.testing import MemoryNetwork
from tests.children import run_child
from tests.producer.tools import Reader, journal, wait_for

Make = Callable[..., Producer]


class TestPublish:
    def test_it_arrives_everywhere_as_it_was(self, make: Make, network: MemoryNetwork) -> None:
        readers = [Reader(network, name) for name in ("dc1", "dc2")]
        producer = make()
        receipt = producer.publish("orders", b"\x00one", key="k", headers={"account": "A"})
        receipt.wait(timeout=120)
        assert receipt.done
        assert receipt.sites == {"dc1": "confirmed", "dc2": "confirmed"}
        assert receipt.counted == ("dc1", "dc2")
        for reader in readers:
            wait_for(lambda r=reader: r.frames)
            records = reader.frames[0].records()
            assert (records.bodies, records.keys, records.headers) == (
                [b"\x00one"],
                ["k"],
                [{"account": "A"}],
            )

    def test_durable_without_any_site(self, make: Make, network: MemoryNetwork, path: Path) -> None:
        for broker in network.brokers.values():
            broker.down()
        producer = make()
        receipt = producer.publish("orders", b"x")
        assert receipt.durable
        assert not receipt.done
        assert receipt.sites == {"dc1": "disconnected", "dc2": "disconnected"}
        assert inspect_outbox(path).messages == 1
        assert producer.pending() == 1
        assert {site.state for site in producer.status().sites.values()} == {"unreachable"}
        assert producer.status().oldest_age_s is not None

    def test_numbers_count_from_one_in_each_stream(self, make: Make) -> None:
        producer = make()
        epoch = producer.status().epoch
        ids = [producer.publish(topic, b"x").id for topic in ("orders", "other", "orders")]
        assert ids == [
            MessageId("p", epoch, "orders", 0, 1),
            MessageId("p", epoch, "other", 0, 1),
            MessageId("p", epoch, "orders", 0, 2),
        ]

    def test_nowait_is_durable_when_its_receipt_says_so(self, make: Make) -> None:
        producer = make()
        receipts = [producer.publish_nowait("orders", b"%d" % n) for n in range(2_000)]
        receipts[-1].wait(timeout=120, until="durable")
        assert all(receipt.durable for receipt in receipts)
        assert [receipt.id.seq for receipt in receipts if receipt.id] == list(range(1, 2_001))
        producer.flush(timeout=120)
        assert producer.pending() == 0

    def test_many_share_a_receipt(self, make: Make, network: MemoryNetwork) -> None:
        reader = Reader(network, "dc1")
        producer = make(max_batch_messages=10)
        bodies = [b"%d" % n for n in range(105)]
        receipt = producer.publish_many("orders", iter(bodies))
        assert [found.seq for found in receipt.ids] == list(range(1, 106))
        receipt.wait(timeout=120)
        wait_for(lambda: reader.bodies() == bodies)
        with pytest.raises(ConfigError, match="at least one"):
            producer.publish_many("orders", [])

    def test_batches_keep_their_limits(self, make: Make, path: Path) -> None:
        producer = make(max_batch_messages=100, max_batch_bytes=5_000)
        producer.publish_many("orders", [bytes(10)] * 350)
        producer.publish_many("other", [bytes(2_000)] * 5)
        producer.publish("other", bytes(50_000))
        batches = [(b.stream.topic, b.count) for b in list_batches(path, 100)]
        assert [count for topic, count in batches if topic == "orders"] == [100, 100, 100, 50]
        assert [count for topic, count in batches if topic == "other"] == [2, 2, 1, 1]

    def test_many_threads(self, make: Make, network: MemoryNetwork) -> None:
        reader = Reader(network, "dc2")
        producer = make()

        def work(name: int) -> None:
            for number in range(100):
                producer.publish("orders", b"%d:%d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush(timeout=120)
        bodies = wait_for(lambda: len(found := reader.bodies()) == 800 and found)
        for name in range(8):
            own = [body for body in bodies if body.startswith(b"%d:" % name)]
            assert own == [b"%d:%d" % (name, number) for number in range(100)]

    @pytest.mark.parametrize(
        ("topic", "body", "options", "error"),
        [
            ("", b"x", {}, ConfigError),
            ("a+b", b"x", {}, ConfigError),
            ("t" * 101, b"x", {}, ConfigError),
            ("orders", "text", {}, ConfigError),
            ("orders", bytes(4 * 1024 * 1024 + 1), {}, MessageTooLarge),
            ("orders", b"x", {"key": "k" * 256}, MessageTooLarge),
            ("orders", b"x", {"headers": {"rm-x": "y"}}, ConfigError),
            ("orders", b"x", {"headers": {"a": 1}}, ConfigError),
        ],
    )
    def test_what_is_wrong_is_refused_and_nothing_stored(
        self, make: Make, topic: str, body: bytes, options: dict[str, object], error: type[Exception]
    ) -> None:
        producer = make()
        with pytest.raises(error):
            producer.publish(topic, body, **options)  # type: ignore[arg-type]
        receipt = producer.publish("orders", b"good")
        assert receipt.id is not None
        assert receipt.id.seq == 1

    @pytest.mark.parametrize("wire", ["batch", "plain"])
    @pytest.mark.parametrize("compression", [None, "zstd"])
    def test_forms_on_the_wire(
        self, make: Make, network: MemoryNetwork, wire: str, compression: str | None
    ) -> None:
        reader = Reader(network, "dc1")
        producer = make(wire=wire, compression=compression)
        bodies = [b"%03d " % n + b"same " * 40 for n in range(50)]
        producer.publish_many("orders", bodies, headers={"a": "b"}).wait(timeout=120)
        wait_for(lambda: reader.bodies() == bodies)
        assert len(reader.raw) == (50 if wire == "plain" else 1)
        if wire == "plain":
            assert reader.raw[7].body == bodies[7]
            assert reader.raw[7].headers["rm-seq"] == "8"
            assert reader.raw[7].headers["a"] == "b"

    def test_a_batch_over_a_sites_limit_goes_in_parts(self, make: Make, network: MemoryNetwork) -> None:
        sites = [replace(network.sites[0], max_frame_bytes=2_000), network.sites[1]]
        reader = Reader(network, "dc1")
        producer = make(sites=sites)
        bodies = [bytes([n]) * 100 for n in range(100)]
        producer.publish_many("orders", bodies).wait(timeout=120)
        wait_for(lambda: reader.bodies() == bodies)
        assert len(reader.raw) > 5
        assert max(len(delivery.body) for delivery in reader.raw) <= 2_000


class TestWaiting:
    def test_a_time_out_says_what_each_site_lacks(self, make: Make, network: MemoryNetwork) -> None:
        network["dc2"].hold_confirms()
        producer = make()
        receipt = producer.publish("orders", b"x")
        wait_for(lambda: receipt.sites["dc1"] == "confirmed")
        with pytest.raises(ConfirmTimeout, match="dc1: confirmed; dc2: sent"):
            receipt.wait(timeout=0.1)
        with pytest.raises(ConfirmTimeout, match="dc2"):
            producer.flush(timeout=0.1)
        network["dc2"].release_confirms()
        receipt.wait(timeout=120)
        producer.flush(timeout=120)

    @pytest.mark.parametrize("confirm", ["any", Quorum(1), "all-active"])
    def test_policies_that_do_without_a_site(
        self, make: Make, network: MemoryNetwork, confirm: object
    ) -> None:
        network["dc2"].down()
        producer = make(confirm=confirm)
        receipt = producer.publish("orders", b"x")
        receipt.wait(timeout=120)
        assert receipt.counted == ("dc1",)
        assert receipt.sites == {"dc1": "confirmed", "dc2": "disconnected"}
        network["dc2"].up()
        wait_for(lambda: receipt.sites["dc2"] == "confirmed")
        assert receipt.counted == ("dc1",)

    def test_all_active_is_met_by_a_site_that_leaves(self, make: Make, network: MemoryNetwork) -> None:
        network["dc2"].hold_confirms()
        producer = make(confirm="all-active")
        receipt = producer.publish("orders", b"x")
        wait_for(lambda: receipt.sites == {"dc1": "confirmed", "dc2": "sent"})
        assert not receipt.done
        network["dc2"].down()
        receipt.wait(timeout=120)

    def test_consumed_needs_its_release_mode(self, make: Make) -> None:
        receipt = make().publish("orders", b"x")
        with pytest.raises(ConfigError, match="consumed"):
            receipt.wait(until="consumed")
        with pytest.raises(ConfigError):
            receipt.wait(until="nonsense")  # type: ignore[arg-type]

    def test_pending_counts_messages(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].hold_confirms()
        producer = make()
        producer.publish_many("orders", [b"x"] * 30)
        assert producer.pending() == 30
        network["dc1"].release_confirms()
        wait_for(lambda: producer.pending() == 0)


class TestCallbacks:
    def test_called_when_done_off_the_transports_threads(self, make: Make) -> None:
        producer = make()
        called: list[tuple[Receipt, str]] = []
        receipt = producer.publish_nowait("orders", b"x")
        receipt.add_done_callback(lambda r: called.append((r, threading.current_thread().name)))
        wait_for(lambda: called)
        assert called == [(receipt, "reliamsg-callbacks")]
        assert receipt.done
        receipt.add_done_callback(lambda r: called.append((r, "late")))
        wait_for(lambda: len(called) == 2)

    def test_of_many_batches_after_the_last_one(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].confirm_out_of_order()
        producer = make(max_batch_messages=2)
        done: list[bool] = []
        producer.publish_many("orders", [b"x"] * 100).add_done_callback(lambda r: done.append(r.done))
        wait_for(lambda: done)
        assert done == [True]

    def test_when_durable(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].hold_confirms()
        producer = make()
        called: list[bool] = []
        receipt = producer.publish_nowait("orders", b"x")
        receipt.add_done_callback(lambda r: called.append(r.durable), until="durable")
        wait_for(lambda: called)
        assert called == [True]
        assert not receipt.done

    def test_when_the_producer_is_closed_although_nothing_is_confirmed(
        self, make: Make, network: MemoryNetwork
    ) -> None:
        network["dc1"].hold_confirms()
        producer = make()
        errors: list[BaseException] = []

        def note(receipt: Receipt) -> None:
            try:
                receipt.wait(0)
            except ReliamsgError as error:
                errors.append(error)

        receipt = producer.publish("orders", b"x")
        receipt.add_done_callback(note)
        producer.close(timeout=0)
        assert [type(error) for error in errors] == [ClosedError]
        receipt.add_done_callback(note)  # and one that comes later
        wait_for(lambda: len(errors) == 2)

    def test_when_the_producer_fails(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].hold_confirms()
        producer = make()
        called: list[Receipt] = []
        receipt = producer.publish("orders", b"x")
        receipt.add_done_callback(called.append)
        producer._engine.fail(FatalError("the end"))
        wait_for(lambda: called == [receipt])
        with pytest.raises(FatalError, match="the end"):
            receipt.wait(0)

    def test_one_that_raises_is_reported_and_the_next_is_called(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        errors: list[BaseException] = []
        producer = make(on_error=errors.append)

        def fail(_: Receipt) -> None:
            raise ValueError("mine")

        called: list[Receipt] = []
        with caplog.at_level(logging.CRITICAL, "reliamsg"):
            producer.publish("orders", b"x").add_done_callback(fail)
            producer.publish("orders", b"y").add_done_callback(called.append)
            wait_for(lambda: called and errors)
        assert [str(error) for error in errors] == ["mine"]

    def test_one_may_publish(self, make: Make) -> None:
        producer = make()
        second: list[Receipt] = []
        producer.publish("orders", b"x").add_done_callback(
            lambda _: second.append(producer.publish("orders", b"y"))
        )
        wait_for(lambda: second and second[0].done)


class TestClosing:
    def test_it_drains(self, make: Make, path: Path) -> None:
        producer = make()
        producer.publish_nowait("orders", b"x")
        remaining = producer.close(timeout=120)
        assert (remaining.messages, remaining.sites) == (0, {"dc1": 0, "dc2": 0})
        assert remaining.nothing
        assert journal(path)[-1].kind == "closed"
        assert producer.close().nothing

    def test_it_says_what_remains(self, make: Make, network: MemoryNetwork, path: Path) -> None:
        network["dc2"].down()
        producer = make()
        receipt = producer.publish_many("orders", [b"x"] * 7)
        wait_for(lambda: receipt.sites["dc1"] == "confirmed")
        remaining = producer.close(timeout=0.1)
        assert (remaining.messages, remaining.sites) == (7, {"dc1": 0, "dc2": 1})
        assert "7 messages remain" in str(remaining)
        one = str(replace(remaining, messages=1, sites={"dc1": 1, "dc2": 0}))
        assert one == "1 message remains in the outbox, unconfirmed at dc1: 1 batch"
        assert journal(path)[-1].detail == {"pending": 7}

    def test_afterwards_everything_is_refused(self, make: Make) -> None:
        producer = make()
        receipt = producer.publish("orders", b"x")
        producer.close()
        for call in (
            lambda: producer.publish("orders", b"x"),
            lambda: producer.publish_nowait("orders", b"x"),
            lambda: producer.publish_many("orders", [b"x"]),
            producer.flush,
            producer.pending,
            producer.status,
        ):
            with pytest.raises(ClosedError):
                call()
        assert receipt.done

    def test_whoever_waits_is_told(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make()
        receipt = producer.publish("orders", b"x")
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                receipt.wait(timeout=120)
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        producer.close(timeout=0.1)
        thread.join(60)
        assert len(raised) == 1

    def test_the_file_is_free_again(self, make: Make) -> None:
        producer = make()
        with pytest.raises(OutboxLocked):
            make()
        producer.close()
        make().publish("orders", b"x").wait(timeout=120)

    def test_a_forgotten_producer_ends_by_itself(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        from tests.producer import tools

        forgotten = tools.producer(network, path)
        forgotten.publish("orders", b"x").wait(timeout=120)
        del forgotten
        gc.collect()
        wait_for(lambda: journal(path)[-1].kind == "closed")
        make()

    def test_a_program_that_forgets_to_close_ends(self, path: Path) -> None:
        code = (
            "import sys\nfrom reliamsg import Producer\nfrom reliamsg.testing import MemoryNetwork\n"
            "network = MemoryNetwork('dc1')\n"
            "producer = Producer('p', network.sites, outbox=sys.argv[1])\n"
            "producer.publish('orders', b'x')\n"
        )
        run_child([sys.executable, "-c", code, str(path)], check=True)
        assert journal(path)[-1].kind == "closed"
        assert inspect_outbox(path).messages == 1

    def test_after_fork_it_is_the_parents(self, path: Path) -> None:
        code = (
            "import os, sys\nfrom reliamsg import Producer\nfrom reliamsg.errors import ForkedError, OutboxLocked\n"
            "from reliamsg.testing import MemoryNetwork\n"
            "network = MemoryNetwork('dc1')\n"
            "producer = Producer('p', network.sites, outbox=sys.argv[1], groups={'t': ['g']})\n"
            "producer.publish('t', b'x')\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    for call in (lambda: producer.publish('t', b'x'), producer.status, producer.close, producer.flush):\n"
            "        try: call()\n"
            "        except ForkedError: continue\n"
            "        os._exit(1)\n"
            "    sys.exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "try: Producer('p', network.sites, outbox=sys.argv[1])\n"
            "except OutboxLocked: pass\n"
            "else: sys.exit('the child gave the lock away')\n"
            "producer.publish('t', b'y').wait(timeout=120)\n"
            "assert producer.close().nothing\n"
        )
        run_child([sys.executable, "-c", code, str(path)], check=True)
        assert ForkedError.__doc__


@pytest.mark.parametrize(
    "options",
    [
        {"producer_id": ""},
        {"producer_id": "a:b"},
        {"sites": []},
        {"confirm": "most"},
        {"confirm": Quorum(3)},
        {"release": "eaten"},
        {"wire": "json"},
        {"compression": "gzip"},
        {"when_full": "drop"},
        {"block_timeout": -1.0},
        {"max_bytes": 10},
        {"max_batch_messages": 0},
        {"max_batch_messages": 100_000},
        {"groups": {"orders": "g"}},
        {"groups": {"orders": ["a#"]}},
        {"groups": {"": ["g"]}},
    ],
    ids=str,
)
def test_wrong_arguments_leave_no_file(make: Make, path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make(**options)
    assert not path.exists()


def test_plain_needs_headers(make: Make) -> None:
    from reliamsg import Site

    with pytest.raises(ConfigError, match=r"3\.1\.1"):
        make(sites=[Site("dc1", "memory://dc1/mqtt", mqtt_version="3.1.1")], wire="plain")
