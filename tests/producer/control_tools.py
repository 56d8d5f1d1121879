"""A producer on simulated time at stepped brokers, and groups that are driven by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reliamsg.config import Site
from reliamsg.keys import KeyRing
from reliamsg.message import Stream
from reliamsg.producer.commit import Content
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.receipt import Receipt
from reliamsg.producer.settings import Settings
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment, no_probe
from reliamsg.store.outbox import Outbox
from reliamsg.testing import MemoryNetwork
from reliamsg.transport import factory
from reliamsg.transport.base import Binding, Delivery
from reliamsg.transport.memory.registry import find_host
from reliamsg.transport.memory.sender import MemorySender
from reliamsg.wire.address import call_address, group_address, is_group, producer_address, status_address
from reliamsg.wire.control import (
    VERSION,
    Span3,
    State,
    Status,
    StreamState,
    StreamStatus,
    encode_state,
    encode_status,
    is_control_frame,
    open_control,
)
from reliamsg.wire.data import Frame, open_frame
from tests.silent import SilentReceiver, SilentSender

EPOCH_US = 1_700_000_000_000_000


class Bench:
    """Brokers, a clock, and producers that are stepped."""

    def __init__(self, path: Path, *sites: str) -> None:
        self.path = path
        self.network = MemoryNetwork(*(sites or ("dc1",)), threaded=False)
        self.sinks = {site.name: Sink(self.network, site) for site in self.network.sites}
        self.now = 1_000.0
        self.wall_offset_us = EPOCH_US
        self.engines: list[ProducerEngine] = []
        self.errors: list[BaseException] = []
        self.boots = 0

    def clock(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return int(self.now * 1e6) + self.wall_offset_us

    def open(
        self,
        groups: Mapping[str, Sequence[str]] | None = None,
        path: Path | None = None,
        producer: str = "p",
        **options: Any,
    ) -> ProducerEngine:
        """Open a producer, connect it, and let it do what it does at once."""
        sites = options.pop("sites", self.network.sites)
        probe = options.pop("probe", no_probe)
        settings = Settings(**{"max_repair_bytes_per_second": None, **options}).checked(sites)
        self.boots += 1
        outbox = Outbox(
            path or self.path, producer, self.wall_us(), int(self.now * 1e6), f"{self.boots:016x}"
        )
        engine = ProducerEngine(
            outbox, sites, {topic: tuple(names) for topic, names in (groups or {}).items()}, settings,
            factory, Environment(Clock(self.clock, self.wall_us), probe=probe, on_error=self.errors.append),
        )  # fmt: skip
        for site in engine.sites.values():
            site.transport.start()
        self.engines.append(engine)
        self.run()
        return engine

    def run(self, seconds: float = 0.0) -> None:
        """Let everything happen that happens within so many seconds."""
        end = self.now + seconds
        for _ in range(100_000):
            self.network.run_pending()
            deadlines = [engine.step() for engine in self.engines]
            due = min((at for at in deadlines if at is not None), default=end)
            if self.network.run_pending() or due <= self.now:
                self.now = min(end, self.now + 1e-6)  # so that two things a moment apart have two times
                if due > self.now or self.now < end:
                    continue
                alive = [engine for engine in self.engines if engine.fatal is None]
                if all(engine.accumulator.empty and engine.queue.count == 0 for engine in alive):
                    return
                continue
            if due > end:
                self.now = end
                return
            self.now = due
        raise AssertionError("no end to it")

    def publish(self, engine: ProducerEngine, topic: str, *bodies: bytes) -> Receipt:
        receipt = engine.accumulator.accept(Content(topic, list(bodies), None, None, sum(map(len, bodies))))
        self.run()
        return receipt

    def close(self, engine: ProducerEngine, crash: bool = False) -> None:
        """End a producer; with `crash` without storing anything more."""
        for site in engine.sites.values():
            if crash:
                assert isinstance(site.transport, MemorySender)
                site.transport.kill()
            else:
                site.transport.close(0.0)
        self.engines.remove(engine)
        if crash:
            engine._outbox.close()
        else:
            engine.finish()

    def group(self, name: str, *topics: str, site: str = "dc1", keys: KeyRing | None = None) -> Group:
        return Group(self, name, topics or ("t",), site, keys)


class Sink(SilentReceiver):
    """A group that takes all messages at one site and says nothing. Without one they would be returned."""

    def __init__(self, network: MemoryNetwork, site: Site) -> None:
        self.frames: list[Frame] = []
        bindings = [Binding(topic, 0, "sink") for topic in ("t", "u")]
        self._transport = factory.open_receiver(site, bindings, self)
        self._transport.start()
        network.run_pending()

    @property
    def messages(self) -> list[tuple[int, int, bytes]]:
        """Epoch, number and body, in the order of arrival."""
        return [
            (frame.envelope.epoch, number, body)
            for frame in self.frames
            for number, body in enumerate(frame.records().bodies, frame.envelope.seq)
        ]

    def received(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.frames.append(open_frame(delivery.body))
            self._transport.acknowledge([delivery.token])


class Group(SilentSender):
    """What a group sees at control addresses, and what it says. Nothing happens by itself but `answers`."""

    def __init__(
        self, bench: Bench, name: str, topics: Iterable[str], site: str, keys: KeyRing | None
    ) -> None:
        self.bench = bench
        self.name = name
        self.keys = keys
        self.statuses: list[tuple[float, str, Status]] = []
        """When, where and what."""
        self.repairs: list[Frame] = []
        self.answers: dict[str, StreamState] | None = None
        """By topic, what every status is answered with; None for no answers."""
        self.number = 0
        self.nonce = b"n"
        """With the length of a challenge it wants to be answered."""
        where = next(s for s in bench.network.sites if s.name == site)
        self._transport = find_host(where).open_sender(where, f"group {name}", (), self)
        self._transport.listen([group_address(name), *map(status_address, topics)])
        self._transport.start()
        bench.network.run_pending()

    def control_received(self, address: str, body: bytes) -> None:
        if is_group(address) and not is_control_frame(body):
            self.repairs.append(open_frame(body))
            return
        frame = open_control(body, address, self.keys)
        assert isinstance(frame, Status)
        self.statuses.append((self.bench.now, address, frame))
        if self.answers is not None:
            answers = [self.answers.get(s.topic, state(s.topic)) for s in frame.streams]
            self.tell(*answers, producer=frame.producer)

    def tell(self, *streams: StreamState, producer: str = "p", number: int | None = None) -> None:
        """Send a state."""
        self.number += 1
        to = producer_address(producer)
        said = State(
            VERSION,
            self.name,
            "inbox",
            number or self.number,
            0,
            to,
            producer,
            "active",
            self.nonce,
            list(streams),
        )
        for frame in encode_state(said, self.keys):
            assert self._transport.send_control(to, frame)

    def call(self, topic: str) -> None:
        self.number += 1
        to = call_address(topic)
        said = State(VERSION, self.name, "inbox", self.number, 0, to, "", "call", self.nonce, [])
        for frame in encode_state(said, self.keys):
            assert self._transport.send_control(to, frame)

    def newest(self, topic: str = "t") -> StreamStatus:
        """The newest status of a topic's stream."""
        for _, _, status in reversed(self.statuses):
            for stream in status.streams:
                if stream.topic == topic:
                    return stream
        raise AssertionError(f"no status of {topic}")

    def repaired(self) -> list[int]:
        """Sequence numbers that were sent again, in order."""
        return [n for frame in self.repairs for n in range(frame.envelope.seq, frame.envelope.last + 1)]


def state(
    topic: str = "t",
    position: tuple[int, int] = (0, 1),
    entered: tuple[int, int] = (0, 0),
    missing: Sequence[Span3] = (),
    wanted: Sequence[Span3] = (),
) -> StreamState:
    """What a group says of one stream."""
    return StreamState(topic, 0, position, entered, 0, list(missing), list(wanted), [])


def settled(engine: ProducerEngine, topic: str, last: int) -> StreamState:
    """The group has settled all up to `last` in the producer's epoch."""
    outbox = engine._outbox
    return state(topic, (outbox.epoch, last + 1), (outbox.epoch, outbox.incarnation))


def stream(topic: str = "t", producer: str = "p") -> Stream:
    return Stream(producer, topic, 0)


def twin_status(epoch: int, incarnation: int, producer: str = "p") -> tuple[str, list[bytes]]:
    """A hello of another owner of the producer's name."""
    to = producer_address(producer)
    return to, encode_status(Status(VERSION, producer, epoch, incarnation, 1, 0, 0, 0, False, to, []))
