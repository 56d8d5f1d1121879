"""Producers that keep messages until a group has them, over brokers that lose what they confirmed, at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reliamsg.producer.engine import ProducerEngine
from reliamsg.store.database import open_readonly
from reliamsg.wire.control import Span3, StreamState
from reliamsg.wire.data import open_frame
from tests.producer.control_tools import Bench, state

GROUPS = {"t": ["g"]}


class Model:
    """A group that has no more than the protocol says: what arrived, what statuses tell, and a position."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.voice = bench.group("g")
        self.have: dict[int, dict[int, bytes]] = {}
        self.incarnations: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        """By epoch, the highest number that is known to exist."""
        self.follows: dict[int, int] = {}
        """By epoch, the one before it."""
        self.position = (0, 1)
        self.acknowledged: set[bytes] = set()
        self.pace = 10**9
        """Most messages that are acknowledged at a time."""

    def think(self) -> None:
        """Take in what arrived since, and move on."""
        frames = [frame for sink in self.bench.sinks.values() for frame in sink.frames] + self.voice.repairs
        for sink in self.bench.sinks.values():
            sink.frames.clear()
        self.voice.repairs.clear()
        for frame in frames:
            envelope = frame.envelope
            self.incarnations[envelope.epoch] = envelope.incarnation
            self._ends(envelope.epoch, envelope.last)
            prev = envelope.previous
            self.follows[envelope.epoch] = 0 if prev is None else prev.epoch
            if prev is not None:
                self._ends(prev.epoch, prev.last)
            bodies = self.have.setdefault(envelope.epoch, {})
            for number, body in enumerate(frame.records().bodies, envelope.seq):
                assert bodies.setdefault(number, body) == body, "one identity, one content"
        for _, _, status in self.voice.statuses:
            for stream in status.streams:
                for link in stream.chain:
                    self.incarnations[link.epoch] = link.incarnation
                    self._ends(link.epoch, link.last)
                for before, link in pairwise(stream.chain):
                    self.follows[link.epoch] = before.epoch
        self.voice.statuses.clear()
        self._settle()

    def _ends(self, epoch: int, last: int) -> None:
        self.ends[epoch] = max(self.ends.get(epoch, 0), last)

    def _settle(self) -> None:
        some = self.pace
        for epoch in sorted(epoch for epoch in self.ends if epoch >= self.position[0]):
            if epoch != self.position[0] != self.follows.get(epoch, -1):
                return
            bodies, number = self.have.get(epoch, {}), self.position[1] if epoch == self.position[0] else 1
            while number in bodies and some:
                self.acknowledged.add(bodies[number])
                number, some = number + 1, some - 1
            self.position = (epoch, number)
            if number <= self.ends[epoch]:
                return

    def say(self) -> StreamState:
        """Its state, with all that is missing wanted."""
        entered = self.position[0]
        missing: list[Span3] = []
        for epoch, end in sorted(self.ends.items()):
            have = self.have.get(epoch, {})
            missing += [(epoch, n, n) for n in range(1, end + 1) if n not in have]
        return state(
            "t", self.position, (entered, self.incarnations.get(entered, 0)), missing[:300], missing[:300]
        )


def held(path: Path) -> set[bytes]:
    with closing(open_readonly(path)) as db:
        return {
            body
            for (frame,) in db.execute("SELECT frame FROM batch")
            for body in open_frame(frame).records().bodies
        }


@pytest.mark.parametrize("attempt", range(6))
def test_nothing_leaves_before_the_group_has_it(tmp_path: Path, attempt: int, seeded: random.Random) -> None:
    rng = seeded
    bench = Bench(tmp_path / "outbox.db", "dc1", "dc2")
    model = Model(bench)
    published: set[bytes] = set()
    options: dict[str, Any] = {
        "release": "consumed", "retain_seconds": 0.0, "max_batch_messages": rng.choice([1, 3, 50]),
    }  # fmt: skip

    def trouble() -> None:
        broker = bench.network[rng.choice(["dc1", "dc2"])]
        troubles: list[Callable[[], object]] = [
            broker.cut, broker.down, broker.up, lambda: broker.lose(rng.randrange(1, 10)),
            lambda: broker.control.lose(rng.randrange(1, 5)), lambda: broker.control.duplicate(3),
            broker.control.hold, lambda: broker.control.release(shuffle=True),
        ]  # fmt: skip
        rng.choice(troubles)()

    def speak() -> None:
        model.pace = rng.choice([0, 1, 2, 5, 10**9])
        model.think()
        if rng.random() < 0.7 and model.voice._transport.connected:
            model.voice.answers = {"t": model.say()} if rng.random() < 0.8 else None
            model.voice.tell(model.say())

    def live(engine: ProducerEngine) -> None:
        for _ in range(rng.randrange(1, 15)):
            trouble()
            bodies = [b"%d" % (len(published) + n) for n in range(rng.randrange(1, 12))]
            assert bench.publish(engine, "t", *bodies).durable
            published.update(bodies)
            bench.run(rng.choice([0.0, 0.1, 1.5]))
            speak()
            bench.run(rng.choice([0.0, 0.3]))
            assert published - model.acknowledged <= held(bench.path)

    for _ in range(5):
        engine = bench.open(GROUPS, hello_timeout=rng.choice([0.0, 1.0]), **options)
        live(engine)
        bench.close(engine, crash=rng.random() < 0.6)
        bench.run(rng.choice([0.001, 5.0]))
        assert published - model.acknowledged <= held(bench.path)
    for broker in bench.network.brokers.values():
        broker.up()
        broker.lose(0)
        broker.control.lose(0)
        broker.control.release()
    engine = bench.open(GROUPS, **options)
    model.pace = 10**9
    for _ in range(200):
        bench.run(1.0)
        model.think()
        model.voice.answers = {"t": model.say()}
        model.voice.tell(model.say())
        bench.run(1.0)
        if not held(bench.path):
            break
    assert model.acknowledged == published
    assert held(bench.path) == set()
    assert engine.admission.stored == engine.retention.stored_bytes == 0
    assert all(group.behind == 0 for group in engine.status().groups)
    bench.close(engine)
    assert not bench.errors
