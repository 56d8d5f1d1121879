"""A producer with keys: all it sends is signed, nothing unsigned moves it. And what floods cost one without keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from reliamsg import Consumer, KeyRing, Producer
from reliamsg.producer.control_queue import MAX_FRAMES
from reliamsg.producer.engine import ProducerEngine
from reliamsg.protocol.sender.group_progress import MAX_UNNAMED_PER_STREAM
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.address import producer_address, topic_address
from reliamsg.wire.control import VERSION, Status, encode_status
from reliamsg.wire.data import verify
from tests.patience import wait_for
from tests.producer.control_tools import Bench, Group, settled, state, stream

RING = KeyRing({"a": bytes(range(32))}, sign_with="a")
OTHERS = KeyRing({"a": bytes(range(1, 33))}, sign_with="a")
GROUPS = {"t": ["g"]}


def hello(bench: Bench, group: Group, epoch: int, ring: KeyRing | None) -> None:
    """A twin's, in the producer's name."""
    to = producer_address("p")
    for frame in encode_status(Status(VERSION, "p", epoch, 5, 1, 0, 0, 0, False, to, []), ring):
        group._transport.send_control(to, frame)


class TestSigned:
    def test_batches_statuses_and_repairs(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, hello_timeout=0, keys=RING)
        bench.publish(engine, "t", b"1", b"2")
        group = bench.group("g", keys=RING)  # fails on statuses that aren't signed
        epoch = engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 2)], wanted=[(epoch, 1, 2)]))
        bench.run(5.0)
        assert group.statuses
        assert group.repaired()[:2] == [1, 2]
        for frame in bench.sinks["dc1"].frames + group.repairs:
            verify(frame, topic_address("t"), RING)

    def test_parts_of_batches_for_sites_with_a_smaller_limit(self, bench: Bench) -> None:
        sites = [replace(bench.network.sites[0], max_frame_bytes=5_000)]
        engine = bench.open(hello_timeout=0, sites=sites, keys=RING)
        bench.publish(engine, "t", *[bytes(1_000)] * 20)
        group, epoch = bench.group("g", keys=RING), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 20)], wanted=[(epoch, 1, 20)]))
        bench.run(1.0)
        frames = bench.sinks["dc1"].frames
        assert len(frames) > 3
        for frame in frames + group.repairs:
            assert len(frame.data) <= 5_000
            verify(frame, topic_address("t"), RING)
        assert [n for _, n, _ in bench.sinks["dc1"].messages] == list(range(1, 21))

    def test_what_was_stored_before_there_were_keys(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed")
        bench.publish(engine, "t", b"never sent")
        assert not bench.sinks["dc1"].frames  # the gate is closed
        bench.close(engine)
        engine = bench.open(GROUPS, release="consumed", keys=RING)
        bench.publish(engine, "t", b"new")
        bench.run(2.0)
        assert [body for _, _, body in bench.sinks["dc1"].messages] == [b"never sent", b"new"]
        group = bench.group("g", keys=RING)
        epoch = bench.sinks["dc1"].frames[0].envelope.epoch
        group.tell(state(missing=[(epoch, 1, 1)], wanted=[(epoch, 1, 1)]))
        bench.run(1.0)
        assert group.repairs
        for frame in bench.sinks["dc1"].frames + group.repairs:
            verify(frame, topic_address("t"), RING)

    def test_what_was_renumbered(self, bench: Bench) -> None:
        """A batch that is encoded anew is signed anew: its old signature would not hold."""
        engine = bench.open(GROUPS, keys=RING)
        group = bench.group("g", keys=RING)
        bench.publish(engine, "t", b"1")
        group.tell(state("t", (2**50, 1), (2**50, 9)))
        bench.run(5.0)
        (frame,) = bench.sinks["dc1"].frames
        assert frame.envelope.epoch > 2**50
        verify(frame, topic_address("t"), RING)

    @pytest.mark.parametrize("wire", ["batch", "plain"])
    def test_a_consumer_with_the_keys_is_the_only_one_to_take_them(
        self, tmp_path: Path, wire: Literal["batch", "plain"]
    ) -> None:
        with MemoryNetwork("dc1") as network:
            groups = {"mine": RING, "without": None, "theirs": OTHERS}
            consumers = {
                name: Consumer(name, network.sites, topics=["t"], inbox=tmp_path / name, keys=ring)
                for name, ring in groups.items()
            }
            with Producer(
                "p", network.sites, outbox=tmp_path / "p.db", wire=wire, keys=RING,
                groups={"t": list(groups)}, hello_timeout=0,
            ) as producer:  # fmt: skip
                producer.publish("t", b"body", key="k", headers={"a": "b"}).wait(60)
                for name in ("mine", "without"):
                    message = consumers[name].get(timeout=60)
                    assert message is not None
                    assert (message.body, message.key, message.headers) == (b"body", "k", {"a": "b"})
                wait_for(
                    lambda: "forged" in consumers["theirs"].status().sites["dc1"].rejected, "it is refused"
                )
                assert consumers["theirs"].get(timeout=0) is None
            for consumer in consumers.values():
                consumer.close()


class TestRefused:
    """What is not signed moves nothing; the same, signed, does (so the test would notice)."""

    def publish(self, bench: Bench) -> ProducerEngine:
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0, keys=RING)
        bench.publish(engine, "t", b"1", b"2")
        return engine

    @pytest.mark.parametrize("ring", [None, OTHERS])
    def test_acknowledgements_requests_and_hellos(self, bench: Bench, ring: KeyRing | None) -> None:
        engine = self.publish(bench)
        epoch = engine._outbox.epoch
        forger = bench.group("g", keys=ring)
        forger._transport.listen([])  # what it hears does not concern it
        forger.tell(settled(engine, "t", 2))
        forger.tell(state(missing=[(epoch, 1, 2)], wanted=[(epoch, 1, 2)]))
        forger.tell(state("t", (2**50, 1), (2**50, 9)))
        forger.call("t")
        hello(bench, forger, 2**50, ring)
        bench.run(5.0)
        assert inspect_outbox(bench.path).messages == 2
        assert engine.fatal is None
        assert engine._outbox.epoch == epoch
        assert engine.repairs.messages == 0
        assert not bench.errors
        assert engine.status().rejected == {"unsigned" if ring is None else "forged": 5}
        group = bench.group("g", keys=RING)
        group.tell(settled(engine, "t", 2))
        bench.run(5.0)
        assert inspect_outbox(bench.path).messages == 0
        hello(bench, group, 2**50, RING)
        bench.run(5.0)
        assert engine.fatal is not None

    def test_a_request_that_was_recorded_is_not_heeded_after_a_newer_state(self, bench: Bench) -> None:
        engine = self.publish(bench)
        group, epoch = bench.group("g", keys=RING), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 2)], wanted=[(epoch, 1, 2)]), number=7)
        bench.run(1.0)
        sent = len(group.repairs)
        assert sent > 0
        group.tell(state("t", (epoch, 2), (epoch, engine._outbox.incarnation)), number=8)
        for _ in range(20):
            group.tell(state(missing=[(epoch, 1, 2)], wanted=[(epoch, 1, 2)]), number=7)
            bench.run(1.0)
        assert len(group.repairs) == sent

    def test_the_same_request_again_and_again_is_heeded_twice_a_second(self, bench: Bench) -> None:
        engine = self.publish(bench)
        group, epoch = bench.group("g", keys=RING), engine._outbox.epoch
        for _ in range(200):
            group.tell(state(missing=[(epoch, 1, 2)], wanted=[(epoch, 1, 2)]), number=7)
            bench.run(0.01)
        assert len(group.repairs) <= 5


class TestFloods:
    def test_forged_frames_keep_no_signed_one_out(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0, keys=RING)
        bench.publish(engine, "t", b"1")
        forger = bench.group("g", keys=OTHERS)
        forger._transport.listen([])
        for _ in range(3 * MAX_FRAMES):
            forger.tell(settled(engine, "t", 1))
        bench.group("g", keys=RING).tell(settled(engine, "t", 1))
        bench.run(5.0)
        assert inspect_outbox(bench.path).messages == 0
        assert engine.status().rejected == {"forged": 3 * MAX_FRAMES}

    def test_made_up_groups_are_bounded_and_a_named_one_is_served(self, bench: Bench) -> None:
        """Without keys: hundreds of them want everything again and again; the group that is named has its share."""
        engine = bench.open(GROUPS, hello_timeout=0, max_repair_bytes_per_second=20_000, max_batch_messages=1)
        for _ in range(100):
            bench.publish(engine, "t", bytes(500))
        epoch = engine._outbox.epoch
        made_up = bench.group("made-up")
        wanted = [(epoch, 1, 100)]
        named = bench.group("g")
        for i in range(3 * MAX_UNNAMED_PER_STREAM):
            made_up.name = f"made-up-{i}"
            made_up.tell(state(missing=wanted, wanted=wanted))
        bench.run(0.2)
        named.tell(state(missing=wanted, wanted=wanted))
        bench.run(10.0)
        assert set(named.repaired()) == set(range(1, 101))
        members = engine.shared.table.members(stream())
        assert len(members) == MAX_UNNAMED_PER_STREAM + 1
        assert members[0].group == "g"
        receipt = bench.publish(engine, "t", b"live")
        bench.run(0.1)
        assert receipt.done
