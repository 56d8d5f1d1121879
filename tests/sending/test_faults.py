"""Producers over sites, disks and processes that fail."""

from __future__ import annotations

import itertools
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Producer, Receipt, Site
from reliamsg.errors import ClosedError, OutboxFull, OutboxWriteError, StoreCorrupt, StoreMismatch
from reliamsg.sending import feed
from reliamsg.store import database
from reliamsg.store.outbox import Cursors, Outbox, Parked, Row
from reliamsg.store.outbox_view import inspect_outbox, list_batches
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome
from tests.sending.tools import Reader, journal, wait_for
from tests.store.faults import FailingDisk, fill, small_disk

Make = Callable[..., Producer]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


class TestSites:
    @pytest.mark.parametrize("fault", ["cut", "down", "ignore", "shuffle"])
    def test_everything_arrives_in_order(self, make: Make, network: MemoryNetwork, fault: str) -> None:
        broker = network["dc1"]
        sites = [Site("dc1", "amqp://memory", confirm_timeout=0.5), network.sites[1]]
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
        sites = [Site("dc1", "amqp://memory", confirm_timeout=0.3), network.sites[1]]
        producer = make(sites=sites)
        network["dc1"].hold_confirms()
        receipt = producer.publish("orders", b"x")
        wait_for(lambda: receipt.sites["dc1"] == "timed out")
        network["dc1"].release_confirms()
        receipt.wait(timeout=120)

    def test_memory_stays_flat_while_a_site_is_away(
        self, make: Make, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(feed, "TAIL_BYTES", 50_000)
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
        monkeypatch.setattr(feed, "TAIL_BYTES", 20_000)
        monkeypatch.setattr("reliamsg.sending.engine.PAGE_BYTES", 5_000)
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


class TestRoom:
    def fill(self, producer: Producer) -> int:
        """Publish until there is no room, with everything committed; returns how many."""
        receipts: list[Receipt] = []
        while True:
            before = len(receipts)
            try:
                while True:
                    receipts.append(producer.publish_nowait("orders", bytes(10_000)))
            except OutboxFull:
                if len(receipts) == before:
                    return before
            receipts[-1].wait(timeout=120, until="durable")  # what is committed takes a little less room

    def test_nowait_raises_at_once_and_stores_nothing(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=200_000)
        count = self.fill(producer)
        assert 15 <= count <= 20
        assert producer.pending() == count
        network["dc1"].up()
        producer.flush(timeout=120)
        producer.publish("orders", bytes(10_000)).wait(timeout=120)

    def test_what_is_being_stored_takes_room_as_well(
        self, make: Make, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        network["dc1"].down()
        producer = make(max_bytes=200_000)
        append, storing, go_on = producer._engine._outbox.append, threading.Event(), threading.Event()

        def slow(*arguments: Any) -> list[Row]:
            storing.set()
            assert go_on.wait(60)
            return append(*arguments)

        monkeypatch.setattr(producer._engine._outbox, "append", slow)
        for _ in range(10):
            producer.publish_nowait("orders", bytes(10_000))
        assert storing.wait(60)

        def flood() -> None:
            for _ in range(20):
                producer.publish_nowait("orders", bytes(10_000))

        with pytest.raises(OutboxFull):
            flood()
        assert 15 <= producer.pending() <= 20
        go_on.set()

    def test_raise(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, when_full="raise")
        self.fill(producer)
        with pytest.raises(OutboxFull):
            producer.publish("orders", bytes(10_000))

    def test_block_waits_for_room(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, block_timeout=60)
        self.fill(producer)
        done = threading.Event()

        def publish() -> None:
            producer.publish("orders", bytes(10_000))
            done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        wait_for(lambda: producer._engine.intake._waiting)
        assert not done.is_set()
        network["dc1"].up()
        thread.join(60)
        assert done.is_set()

    def test_block_ends_with_the_time_out(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, block_timeout=0.05)
        self.fill(producer)
        with pytest.raises(OutboxFull):
            producer.publish("orders", bytes(10_000))

    def test_closing_releases_who_waits(self, make: Make, network: MemoryNetwork) -> None:
        network["dc1"].down()
        producer = make(max_bytes=100_000, block_timeout=60.0)
        self.fill(producer)
        raised: list[BaseException] = []

        def publish() -> None:
            try:
                producer.publish("orders", bytes(10_000))
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        wait_for(lambda: producer._engine.intake._waiting)
        producer.close(timeout=0.0)
        thread.join(60)
        assert len(raised) == 1

    def test_what_is_published_never_causes_a_full_outbox(self, make: Make, path: Path) -> None:
        producer = make(max_bytes=300_000, retain_bytes=10_000_000, block_timeout=60)
        for _ in range(200):
            producer.publish("orders", bytes(10_000))
        producer.flush(timeout=120)
        wait_for(lambda: producer.status().stored_bytes <= 300_000)

    def test_retention_by_bytes(self, make: Make, path: Path) -> None:
        producer = make(retain_bytes=100_000, max_batch_messages=1)
        producer.publish_many("orders", [bytes(10_000)] * 50)
        producer.flush(timeout=120)
        wait_for(lambda: producer.status().stored_bytes <= 110_000)
        assert inspect_outbox(path).messages >= 5

    def test_retention_by_time(self, make: Make, path: Path) -> None:
        producer = make(retain_seconds=0.1)
        producer.publish_many("orders", numbers(1, 10)).wait(timeout=120)
        wait_for(lambda: inspect_outbox(path).messages == 0)
        producer.close()
        (row,) = journal(path, "released")
        assert (row.first, row.last) == (1, 10)

    def test_unconfirmed_at_one_site_stays_until_the_room_is_needed(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        network["dc2"].down()
        producer = make(
            confirm="any", max_bytes=200_000, retain_seconds=0.0, retain_bytes=0, max_batch_messages=1
        )
        first = producer.publish_many("orders", [bytes(10_000)] * 10)
        producer.flush(timeout=120)
        assert inspect_outbox(path).messages == 10
        for _ in range(40):
            producer.publish("orders", bytes(10_000))
        producer.flush(timeout=120)
        wait_for(lambda: producer.status().stored_bytes <= 210_000)
        assert first.sites == {"dc1": "confirmed", "dc2": "released"}
        network["dc2"].up()
        wait_for(lambda: producer.status().sites["dc2"].in_flight == 0 and network["dc2"].queued("orders"))
        producer.close(timeout=120)
        released = journal(path, "released_unsent")
        assert {row.site for row in released} == {"dc2"}
        assert released[0].first == 1

    def test_a_parked_stream_does_not_fill_the_outbox_for_the_others(
        self, make: Make, network: MemoryNetwork
    ) -> None:
        network["dc1"].refuse("orders", Outcome.NACKED)
        producer = make(max_bytes=300_000, block_timeout=60, retain_bytes=0)
        producer.publish("orders", bytes(10_000))
        for _ in range(100):
            producer.publish("other", bytes(10_000))
        assert producer.pending() >= 1
        network["dc1"].accept("orders")
        producer.flush(timeout=120)


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
        monkeypatch.setattr("reliamsg.sending.producer._wall_us", lambda: 1_000_000)
        assert make().status().epoch == first + 1

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
            "import os, signal, sys\nfrom reliamsg import Producer\nfrom reliamsg.testing import MemoryNetwork\n"
            "network = MemoryNetwork('dc1')\n"
            "passed = []\n"
            "def probe(point):\n"
            "    passed.append(point)\n"
            "    if passed.count(sys.argv[2]) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "p = Producer('p', network.sites, outbox=sys.argv[1], transports=network, probe=probe,\n"
            "             groups={'orders': ['g']})\n"
            "for n in range(100_000):\n"
            "    p.publish('orders', b'%d' % n)\n"
            "    print(n, flush=True)\n"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, str(path), point],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert found.returncode == -9, found.stderr
        durable = len(found.stdout.splitlines())
        held = sum(batch.count for batch in list_batches(path, 100_000))
        assert held in (durable, durable + 1)
        with MemoryNetwork("dc1") as network:
            from tests.sending import tools

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
        with caplog.at_level("WARNING", "reliamsg.sending"):
            again = make(sites=network.sites[:1])
        assert "dc2 is not named any more; it never confirmed 10 messages" in caplog.text
        again.close()
        assert set(inspect_outbox(path).sites) == {"dc1"}

    @pytest.mark.parametrize("attempt", range(3))
    def test_random_lives(self, network: MemoryNetwork, path: Path, attempt: int) -> None:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        from tests.sending import tools

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


class TestDisk:
    def test_a_full_disk_uses_no_number_and_ends_with_room(
        self, tmp_path: Path, network: MemoryNetwork
    ) -> None:
        from tests.sending import tools

        with small_disk(tmp_path / "small") as disk:
            producer = tools.producer(network, disk / "outbox.db")
            producer.publish("orders", b"1")
            filler = fill(disk)
            with pytest.raises(OutboxWriteError):
                producer.publish("orders", bytes(300_000))
            receipt = producer.publish_nowait("orders", bytes(300_000))
            with pytest.raises(OutboxWriteError):
                receipt.wait(timeout=120, until="durable")
            assert not receipt.durable
            filler.unlink()
            after = producer.publish("orders", b"2")
            assert after.id is not None
            assert after.id.seq == 2
            after.wait(timeout=120)
            assert producer.close(timeout=120).nothing

    def test_an_outside_lock_holder(self, make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 100)
        producer = make()
        producer.publish("orders", b"1").wait(timeout=120)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA busy_timeout = 5000")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutboxWriteError, match="locked"):
            producer.publish("orders", b"no")
        other.execute("ROLLBACK")
        other.close()
        after = producer.publish("orders", b"2")
        assert after.id is not None
        assert after.id.seq == 2

    def test_a_failing_fsync_stops_it_for_good(self, tmp_path: Path) -> None:
        """Once the outcome is unknown, the file is not written any more, whatever else was under way."""
        out = FailingDisk(tmp_path).run(
            "import threading, time\n"
            "from reliamsg import Producer\n"
            "from reliamsg.errors import OutboxIndeterminate\n"
            "from reliamsg.testing import MemoryNetwork\n"
            "network = MemoryNetwork('dc1', 'dc2')\n"
            "path = os.environ['DIRECTORY'] + '/outbox.db'\n"
            "errors = []\n"
            "p = Producer('p', network.sites, outbox=path, transports=network, groups={'t': ['g']},\n"
            "             on_error=errors.append)\n"
            "p.publish('t', b'1').wait(timeout=120)\n"
            "fail('outbox.db-wal')\n"
            "outcomes = []\n"
            "def publish():\n"
            "    try: p.publish('t', b'2')\n"
            "    except OutboxIndeterminate: outcomes.append('indeterminate')\n"
            "threads = [threading.Thread(target=publish) for _ in range(20)]\n"
            "for t in threads: t.start()\n"
            "for t in threads: t.join(60)\n"
            "assert outcomes == ['indeterminate'] * 20, outcomes\n"
            "before = failures()\n"
            "heal()\n"
            "for call in (lambda: p.publish('t', b'3'), lambda: p.flush(1), p.pending):\n"
            "    try: call(); sys.exit('no error')\n"
            "    except OutboxIndeterminate: pass\n"
            "written = os.stat(path + '-wal').st_mtime_ns\n"
            "network['dc1'].cut()\n"
            "deadline = time.monotonic() + 60\n"
            "while not errors and time.monotonic() < deadline: time.sleep(0.01)\n"
            "assert [type(e) for e in errors] == [OutboxIndeterminate], errors\n"
            "time.sleep(0.5)  # housekeeping is due several times in this\n"
            "assert os.stat(path + '-wal').st_mtime_ns == written, 'written again'\n"
            "p.close(timeout=1)\n"
            "print('stopped', before)\n"
        )
        assert out == "stopped 1\n"

    def test_a_damaged_batch_is_not_sent(self, make: Make, network: MemoryNetwork, path: Path) -> None:
        for broker in network.brokers.values():
            broker.down()
        producer = make()
        producer.publish_many("orders", [b"damaged" * 20] * 5)
        producer.close(timeout=0.0)
        with sqlite3.connect(path, isolation_level=None) as other:
            (frame,) = other.execute("SELECT frame FROM batch").fetchone()
            broken = bytearray(frame)
            broken[-3] ^= 1
            other.execute("UPDATE batch SET frame = ?", (bytes(broken),))
        other.close()
        for broker in network.brokers.values():
            broker.up()
        errors: list[BaseException] = []
        again = make(on_error=errors.append)
        wait_for(lambda: errors)
        assert isinstance(errors[0], StoreCorrupt)
        with pytest.raises(StoreCorrupt):
            again.publish("orders", b"x")
        assert all(broker.queued() == 0 for broker in network.brokers.values())

    def test_another_producers_outbox(self, make: Make) -> None:
        make().close()
        with pytest.raises(StoreMismatch):
            make(producer_id="q")

    def test_no_database(self, make: Make, path: Path) -> None:
        path.write_bytes(b"text" * 1000)
        with pytest.raises(StoreCorrupt):
            make()


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


class TestReleasing:
    def test_what_leaves_for_room_was_journalled_as_published(
        self, make: Make, network: MemoryNetwork, path: Path
    ) -> None:
        """With nothing retained, batches may leave as soon as they are published, between two looks at progress."""
        producer = make(retain_bytes=0, max_bytes=100_000, max_batch_messages=5, block_timeout=60)
        for number in range(600):
            producer.publish("orders", b"%03d" % number + bytes(2_000))
        producer.flush(timeout=120)
        producer.close(timeout=120)
        rows = journal(path)
        told = {n for row in rows if row.kind == "published" for n in range(row.first, row.last + 1)}
        assert [row for row in rows if row.kind == "released"]
        assert told == set(range(1, 601))
