"""Producers over sites and processes that fail."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Producer
from reliamsg.errors import FatalError
from reliamsg.producer import rows
from reliamsg.store.outbox import Cursors, Outbox, Parked
from reliamsg.store.outbox_view import inspect_outbox, list_batches
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome
from tests.children import run_child
from tests.producer.tools import Reader, journal, numbers, wait_for

Make = Callable[..., Producer]


class TestWriter:
    @pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize(
        ("part", "step"),
        [
            ("accumulator", "take"),
            ("groups", "stored"),
            ("accumulator", "stored"),
            ("control", "handle"),
            ("maintenance", "run"),
            ("shared.core", "on_deadline"),
            ("shared.core", "next_deadline"),
        ],
    )
    def test_whatever_fails_in_it_nobody_is_left_waiting(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, part: str, step: str, late: bool
    ) -> None:
        producer = make()
        producer.publish("orders", b"1").wait(60)
        owner = attrgetter(part)(producer._engine)
        real = getattr(owner, step)

        def fails(*args: Any, **kwargs: Any) -> Any:
            found = real(*args, **kwargs) if late else None
            if late and step == "take" and found is None:
                return None  # a step that came before there was anything to take: nobody would wait for it
            raise ZeroDivisionError(found)

        told: list[BaseException] = []

        def publish() -> None:
            producer.publish("orders", b"2")

        def application() -> None:
            # What is confirmed before the writer comes to what fails is published; but nothing is stored after that.
            for call in (publish, lambda: producer.flush(60), publish):
                try:
                    call()
                except FatalError as error:
                    told.append(error)

        monkeypatch.setattr(owner, step, fails)
        engine = producer._engine
        with engine.shared.lock:  # so that the next step checks confirms and control frames
            engine.shared.core.sites["dc1"].due_at = 0.0
            engine.queue.connected.add("dc1")
        thread = threading.Thread(target=application, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        assert "ZeroDivisionError" in str(told[-1])
        monkeypatch.undo()
        producer.close(1.0)


class TestSites:
    @pytest.mark.parametrize("fault", ["cut", "down", "ignore", "shuffle"])
    def test_everything_arrives_in_order(self, make: Make, network: MemoryNetwork, fault: str) -> None:
        broker = network["dc1"]
        sites = [replace(network.sites[0], confirm_timeout=0.5), network.sites[1]]
        producer = make(max_batch_messages=5, sites=sites)
        reader = Reader(network, "dc1")
        if fault == "shuffle":
            broker.confirm_out_of_order()
        if fault == "ignore":
            broker.ignore(3)
        for chunk in range(10):
            producer.publish_many("orders", numbers(chunk * 50 + 1, chunk * 50 + 50))
            if fault == "cut":
                broker.cut()
            if fault == "down" and chunk in (3, 6):
                broker.down() if chunk == 3 else broker.up()
        producer.flush(timeout=120)
        wait_for(lambda: sorted(reader.bodies(), key=int) == numbers(1, 500))
        if fault != "ignore":  # what it swallowed comes after what it kept; consumers put that right
            assert reader.bodies() == numbers(1, 500)

    def test_a_site_that_does_not_confirm_is_connected_anew(self, make: Make, network: MemoryNetwork) -> None:
        sites = [replace(network.sites[0], confirm_timeout=0.3), network.sites[1]]
        producer = make(sites=sites)
        network["dc1"].hold_confirms()
        receipt = producer.publish("orders", b"x")
        wait_for(lambda: receipt.sites["dc1"] == "timed out")
        network["dc1"].release_confirms()
        receipt.wait(timeout=120)

    def test_memory_stays_flat_while_a_site_is_away(
        self, make: Make, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows, "TAIL_BYTES", 50_000)
        network["dc1"].down()
        producer = make()
        for chunk in range(40):
            producer.publish_many("orders", [b"%06d" % (chunk * 100 + n) + bytes(200) for n in range(100)])
        engine = producer._engine
        wait_for(lambda: producer.status().sites["dc2"].behind == 0)
        assert engine._tail._bytes < 60_000
        assert producer.pending() == 4_000
        reader = Reader(network, "dc1")
        network["dc1"].up()
        producer.flush(timeout=120)
        bodies = wait_for(lambda: len(found := reader.bodies()) == 4_000 and found)
        assert [int(body[:6]) for body in bodies] == list(range(4_000))

    def test_live_traffic_never_overtakes_the_backlog(
        self, make: Make, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows, "TAIL_BYTES", 20_000)
        monkeypatch.setattr(rows, "PAGE_BYTES", 5_000)
        network["dc1"].down()
        producer = make(max_batch_messages=20)
        reader = Reader(network, "dc1")
        producer.publish_many("orders", numbers(1, 5_000))
        network["dc1"].up()
        for number in range(5_001, 5_301):
            producer.publish_nowait("orders", b"%d" % number)
        producer.flush(timeout=120)
        wait_for(lambda: len(reader.bodies()) == 5_300)
        assert reader.bodies() == numbers(1, 5_300)

    def test_blocked_is_shown_and_ends(self, make: Make, network: MemoryNetwork) -> None:
        producer = make()
        producer.publish("orders", b"x").wait(timeout=120)
        network["dc1"].block("low on memory")
        wait_for(lambda: producer.status().sites["dc1"].state == "blocked")
        assert producer.status().sites["dc1"].error == "low on memory"
        receipt = producer.publish("orders", b"y")
        assert not receipt.done
        network["dc1"].unblock()
        receipt.wait(timeout=120)

    def test_refused_credentials_are_a_state(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].refuse_login()
        producer = make()
        wait_for(lambda: producer.status().sites["dc1"].state == "refused credentials")
        assert not producer.publish("orders", b"x").done
        network["dc1"].refuse_login(False)
        producer.flush(timeout=120)


class TestParking:
    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_one_stream_is_parked_and_resumes_in_order(
        self, make: Make, network: MemoryNetwork, path: Path, outcome: Outcome
    ) -> None:
        reader = Reader(network, "dc1")
        network["dc1"].refuse("orders", outcome, "no such thing")
        producer = make(max_batch_messages=2)
        held = [producer.publish("orders", body) for body in numbers(1, 30)]
        wait_for(lambda: producer.status().sites["dc1"].parked)
        (parked,) = producer.status().sites["dc1"].parked
        assert (parked.topic, parked.reason) == ("orders", f"{outcome.value}: no such thing")
        assert producer.status().sites["dc2"].parked == ()
        for body in numbers(1, 30):
            producer.publish("other", body).wait(timeout=120)
        assert not held[0].done
        assert held[0].sites == {"dc1": outcome.value, "dc2": "confirmed"}
        network["dc1"].accept("orders")
        for receipt in held:
            receipt.wait(timeout=120)
        assert producer.status().sites["dc1"].parked == ()
        wait_for(lambda: reader.bodies() == numbers(1, 30))
        assert reader.bodies("other") == numbers(1, 30)
        # Noted when the stream is sent with the others again, which is after its last message was confirmed.
        wait_for(lambda: journal(path, "resumed"))
        producer.close(timeout=120)
        kinds = {row.kind for row in journal(path) if row.site == "dc1"}
        assert {"connected", outcome.value, "parked", "resumed", "confirmed"} <= kinds

    def test_it_rejoins_while_publishing_goes_on(self, make: Make, network: MemoryNetwork) -> None:
        reader = Reader(network, "dc1")
        network["dc1"].refuse("orders", Outcome.NACKED)
        producer = make(max_batch_messages=3)
        producer.publish_many("orders", numbers(1, 100))
        wait_for(lambda: producer.status().sites["dc1"].parked)
        network["dc1"].accept("orders")
        number = 100
        while producer.status().sites["dc1"].parked or number < 500:
            number += 1
            producer.publish("orders", b"%d" % number)
        producer.flush(timeout=120)
        wait_for(lambda: len(reader.bodies()) == number)
        assert reader.bodies() == numbers(1, number)

    def test_a_restart_finds_it_parked(self, make: Make, network: MemoryNetwork, path: Path) -> None:
        network["dc1"].refuse("orders", Outcome.RETURNED, "no queue")
        producer = make(max_batch_messages=2)
        producer.publish_many("orders", numbers(1, 20))
        producer.publish_many("other", numbers(1, 20))
        wait_for(lambda: producer.status().sites["dc1"].parked)
        wait_for(lambda: network["dc1"].queued("other") == 10)
        assert producer.close(timeout=0.2).messages == 20
        assert inspect_outbox(path).parked == [("dc1", "orders", "returned: no queue")]
        again = make(max_batch_messages=2)
        assert again.pending() == 20
        reader = Reader(network, "dc1")
        again.publish_many("orders", numbers(21, 30))
        again.publish("other", b"21").wait(timeout=120)
        network["dc1"].accept("orders")
        again.flush(timeout=120)
        wait_for(lambda: len(reader.bodies()) == 30)
        assert reader.bodies() == numbers(1, 30)
        assert reader.bodies("other") == numbers(1, 21)

    def test_a_restart_knows_what_a_parked_stream_had_confirmed_ahead_of_the_others(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        network["dc1"].refuse("orders", Outcome.RETURNED, "no queue")
        network["dc1"].refuse("other", Outcome.RETURNED, "no queue")
        producer = make(max_batch_messages=1)
        producer.publish("other", b"1")
        producer.publish_many("orders", numbers(1, 3))
        wait_for(lambda: len(producer.status().sites["dc1"].parked) == 2)
        wait_for(lambda: network["dc2"].queued() == 4)
        producer.close(timeout=0.2)
        outbox = Outbox(path, "p", 0, 0, "b" * 16)
        rows = outbox.stream_ids(outbox.stream("orders", 0).id, 1)
        # As when the site had confirmed all of the stream but its last, while the other stream still waited.
        parked = Parked(outbox.stream("orders", 0).id, rows[-1], 1, "returned: no queue")
        outbox.progress({"dc1": Cursors(1, [parked])}, 1, [], 0, 0)
        outbox.close()
        again = make(max_batch_messages=1)
        reader = Reader(network, "dc1")
        network["dc1"].accept("orders")
        network["dc1"].accept("other")
        again.flush(timeout=120)
        wait_for(lambda: reader.bodies() == numbers(3, 3))

    def test_a_batch_that_breaks_connections_is_found_and_parked(
        self, make: Make, network: MemoryNetwork
    ) -> None:
        poison = b"poison"
        publish = network["dc1"].publish

        def break_over_poison(connection, messages, limit):  # type: ignore[no-untyped-def]
            if any(poison in message.body for message in messages):
                network["dc1"].drop(connection, "connection reset")
                return
            publish(connection, messages, limit)

        network["dc1"].publish = break_over_poison  # type: ignore[method-assign]
        producer = make()
        held = producer.publish("orders", poison)
        other = producer.publish("other", b"x")
        other.wait(timeout=120)
        assert not held.done
        wait_for(lambda: producer.status().sites["dc1"].parked)
        assert producer.status().sites["dc1"].parked[0].reason == "connection dropped"
        network["dc1"].publish = publish  # type: ignore[method-assign]
        held.wait(timeout=120)


class TestRestart:
    def test_old_epochs_first_under_their_old_identity(self, make: Make, network: MemoryNetwork) -> None:
        for broker in network.brokers.values():
            broker.down()
        epochs = []
        for life in range(3):
            producer = make()
            epochs.append(producer.status().epoch)
            producer.publish_many("orders", numbers(life * 10 + 1, life * 10 + 10))
            assert producer.close(timeout=0.0).messages == (life + 1) * 10
        assert epochs == sorted(set(epochs))
        reader = Reader(network, "dc1")
        for broker in network.brokers.values():
            broker.up()
        make().flush(timeout=120)
        wait_for(lambda: reader.bodies() == numbers(1, 30))
        envelopes = [frame.envelope for frame in reader.frames]
        assert [e.epoch for e in envelopes] == epochs
        assert [e.seq for e in envelopes] == [1, 1, 1]
        assert envelopes[0].prev is None
        for earlier, later in itertools.pairwise(envelopes):
            assert later.prev == (earlier.epoch, earlier.incarnation, 10)

    def test_an_epoch_without_messages_is_no_predecessor(self, make: Make, network: MemoryNetwork) -> None:
        reader = Reader(network, "dc1")
        one = make()
        one.publish("orders", b"1").wait(timeout=120)
        first = one.status().epoch
        one.close()
        make().close()
        make().publish("orders", b"2").wait(timeout=120)
        wait_for(lambda: len(reader.frames) == 2)
        assert reader.frames[1].envelope.previous is not None
        assert reader.frames[1].envelope.previous.epoch == first

    def test_a_clock_that_went_back(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        producer = make()
        first = producer.status().epoch
        producer.close()
        monkeypatch.setattr("reliamsg.producer.api.wall_us", lambda: 1_000_000)
        assert make().status().epoch > first

    def test_predecessors_survive_the_release_of_all_their_messages(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        producer = make(retain_seconds=0.0, retain_bytes=0)
        first = producer.status().epoch
        producer.publish_many("orders", numbers(1, 7)).wait(timeout=120)
        wait_for(lambda: inspect_outbox(path).messages == 0)
        producer.close()
        reader = Reader(network, "dc1")
        make().publish("orders", b"8").wait(timeout=120)
        frame = wait_for(lambda: [f for f in reader.frames if f.envelope.epoch != first])[0]
        assert frame.envelope.prev is not None
        assert (frame.envelope.prev[0], frame.envelope.prev[2]) == (first, 7)

    @pytest.mark.parametrize("point", ["committed", "sent", "confirmed", "cursor"])
    def test_killed(self, path: Path, point: str) -> None:
        """The process dies at the point; what was durable is all there, and one life later confirmed."""
        code = (
            "import os, signal, sys\nfrom reliamsg import Producer\n"
            "from reliamsg.testing import MemoryNetwork, inject\n"
            "network = MemoryNetwork('dc1')\n"
            "passed = []\n"
            "def probe(point):\n"
            "    passed.append(point)\n"
            "    if passed.count(sys.argv[2]) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "with inject(probe=probe):\n"
            "    p = Producer('p', network.sites, outbox=sys.argv[1], groups={'orders': ['g']})\n"
            "for n in range(100_000):\n"
            "    p.publish('orders', b'%d' % n)\n"
            "    print(n, flush=True)\n"
        )
        found = run_child([sys.executable, "-c", code, str(path), point], text=True)
        assert found.returncode == -9, found.stderr
        durable = len(found.stdout.splitlines())
        held = sum(batch.count for batch in list_batches(path, 100_000))
        assert held in (durable, durable + 1)
        with MemoryNetwork("dc1") as network:
            from tests.producer import tools

            reader = Reader(network, "dc1", ["orders"])
            again = tools.producer(network, path, groups={"orders": ["g"]})
            again.publish("orders", b"last")
            again.flush(timeout=120)
            again.close()
            wait_for(lambda: b"last" in reader.bodies())
            got = [int(body) for body in reader.bodies() if body != b"last"]
            assert got == list(range(got[0], held)) if got else point != "committed"

    def test_a_new_site_gets_what_is_held(self, make: Make, network: MemoryNetwork, path: Path) -> None:
        one = make(sites=network.sites[:1])
        one.publish_many("orders", numbers(1, 10)).wait(timeout=120)
        one.close()
        reader = Reader(network, "dc2")
        both = make()
        wait_for(lambda: both.status().sites["dc2"].behind == 0)
        wait_for(lambda: reader.bodies() == numbers(1, 10))
        both.close()
        assert inspect_outbox(path).sites == {"dc1": 0, "dc2": 0}

    def test_a_site_that_is_named_no_more_is_forgotten_with_a_warning(
        self, make: Make, network: MemoryNetwork, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        network["dc2"].down()
        producer = make(confirm="any")
        producer.publish_many("orders", numbers(1, 10)).wait(timeout=120)
        producer.close(timeout=0.0)
        with caplog.at_level("WARNING", "reliamsg.producer"):
            again = make(sites=network.sites[:1])
        assert "dc2 is not named any more; it never confirmed 10 messages" in caplog.text
        again.close()
        assert set(inspect_outbox(path).sites) == {"dc1"}

    @pytest.mark.parametrize("attempt", range(3))
    def test_random_lives(
        self, network: MemoryNetwork, path: Path, attempt: int, seeded: random.Random
    ) -> None:
        rng = seeded
        from tests.producer import tools

        readers = {name: Reader(network, name) for name in network.brokers}
        total = 0
        for _ in range(8):
            producer = tools.producer(network, path, max_batch_messages=rng.choice([1, 3, 50]))
            for _ in range(rng.randrange(1, 12)):
                broker = network[rng.choice(["dc1", "dc2"])]
                rng.choice(
                    [broker.cut, broker.down, broker.up, broker.hold_confirms, broker.release_confirms]
                )()
                count = rng.randrange(1, 20)
                producer.publish_many("orders", numbers(total + 1, total + count))
                total += count
            producer.close(timeout=rng.choice([0.0, 0.1]))
        for broker in network.brokers.values():
            broker.up()
            broker.release_confirms()
        last = tools.producer(network, path)
        last.flush(timeout=120)
        assert last.close(timeout=120).nothing
        for reader in readers.values():
            wait_for(lambda r=reader: len(r.bodies()) == total, f"all of {total}")
            assert reader.bodies() == numbers(1, total)


class TestSharedCommits:
    def test_a_receipt_does_not_wait_for_another_topics_batches(
        self, make: Make, network: MemoryNetwork
    ) -> None:
        """Topics that share a commit stay apart, even where their batches were cut in turns."""
        network["dc1"].refuse("other", Outcome.NACKED)
        producer = make(max_batch_messages=2)
        good, bad = [], []
        for number in range(400):
            bad.append(producer.publish_nowait("other", b"%d" % number))
            good.append(producer.publish_nowait("orders", b"%d" % number))
        many = [producer.publish_many("orders", numbers(1, 9)) for _ in range(5)]
        for receipt in good + many:
            receipt.wait(timeout=120)
        assert not bad[0].done

    def test_an_error_inside_reaches_everybody_who_waits(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        errors: list[BaseException] = []
        producer = make(on_error=errors.append)

        def broken(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(producer._engine._packer, "pack", broken)
        receipt = producer.publish_nowait("orders", b"x")
        with pytest.raises(Exception, match="a fault of ours"):
            receipt.wait(timeout=120, until="durable")
        wait_for(lambda: errors)
