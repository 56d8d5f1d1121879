"""An attacker without the key, who can publish and send control frames at every site, and receives all traffic."""

from __future__ import annotations

import random
from collections.abc import Mapping

from reliamsg.keys import KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.simulation.broker import Broker
from reliamsg.simulation.clock import WallClock
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.scenario import Scenario
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.traffic import Traffic
from reliamsg.wire.address import group_address, producer_address, status_address
from reliamsg.wire.control import (
    VERSION,
    ChainEpoch,
    State,
    Status,
    StreamState,
    StreamStatus,
    encode_state,
    encode_status,
)
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode
from reliamsg.wire.limits import MAX_EPOCH, MAX_SEQ

__all__ = ["Attacker"]

FLOOD = 20
"""The number of frames sent at a time."""
FAR = 2**62
DAY_MS = 86_400_000
INCARNATION = 7
NONCE = b"12345678"


class Attacker:
    """Attacks from time to time."""

    def __init__(
        self,
        scenario: Scenario,
        brokers: Mapping[str, Broker],
        traffic: Traffic,
        wall: WallClock,
        faults: Faults,
        incidents: Incidents,
        trace: Trace,
    ) -> None:
        self._brokers, self._traffic, self._wall = brokers, traffic, wall
        self._faults, self._incidents, self._trace = faults, incidents, trace
        self._producers, self._groups, self._topics = (
            list(scenario.producers), list(scenario.groups), scenario.topics,
        )  # fmt: skip
        self._ring = KeyRing({"k": b"a guess at what the key may be"}, sign_with="k")

    def act(self) -> None:
        """One opportunity for each kind of attack."""
        attacks = {
            "forged": self._forge, "replayed": self._replay, "far_epoch": self._name_far_epoch, "flood": self._flood,
        }  # fmt: skip
        for broker in self._brokers.values():
            faults = self._faults.at(broker.name)
            for name, attack in attacks.items():
                # Dice are thrown even if the attack is impossible, so that their number does not depend on other
                # events.
                if faults.bites(name) and broker.model.up:
                    attack(broker, faults.random(name))

    def _struck(self, name: str, broker: Broker, what: str, producer: str = "") -> None:
        self._faults.at(broker.name).strikes(name, producer)
        self._trace.note("attacker", broker.name, what)

    def _stream(self, chance: random.Random) -> Stream:
        return Stream(chance.choice(self._producers), chance.choice(self._topics), 0)

    def _forge(self, broker: Broker, chance: random.Random) -> None:
        """Publish messages, and announce false progress, under another client's name."""
        stream = self._stream(chance)
        epoch = chance.choice([1, self._wall.now_us() // 1000, FAR])
        kind = chance.choice(["message", "unsigned message", "state", "status", "repair"])
        if kind in ("message", "unsigned message", "repair"):
            seq = chance.choice([1, 50, FAR])
            ring = None if kind == "unsigned message" else self._ring
            frame = encode(Origin(stream, epoch, INCARNATION), seq, (1, 1), Records([b"forged"]), ring=ring)
            if kind == "repair":
                broker.send_control(group_address(chance.choice(self._groups)), frame)
            else:
                broker.inject(stream.topic, frame, CONTENT_TYPE)
        elif kind == "state":
            to = producer_address(stream.producer)
            told = StreamState(
                stream.topic, 0, (epoch, FAR), (epoch, INCARNATION), FAR, [], [(epoch, 1, FAR)], []
            )
            state = State(
                VERSION,
                chance.choice(self._groups),
                "evil",
                FAR,
                1,
                to,
                stream.producer,
                "active",
                NONCE,
                [told],
            )
            for frame in encode_state(state, chance.choice([None, self._ring])):
                broker.send_control(to, frame)
        else:
            self._forge_status(broker, stream, epoch)
        self._struck(
            "forged",
            broker,
            f"sends a forged {kind} in the name of {stream.producer}, epoch {epoch}",
            stream.producer,
        )

    def _forge_status(self, broker: Broker, stream: Stream, epoch: int) -> None:
        to = status_address(stream.topic, 0)
        told = StreamStatus(stream.topic, 0, [ChainEpoch(epoch, INCARNATION, 1, FAR)], [(epoch, 1, FAR)], {})
        status = Status(VERSION, stream.producer, epoch, INCARNATION, FAR, FAR, 1, 1000, False, to, [told])
        for frame in encode_status(status, self._ring):
            broker.send_control(to, frame)

    def _name_far_epoch(self, broker: Broker, chance: random.Random) -> None:
        """Send one blind packet that would end a stream for good if it were believed. Key holders reject it."""
        stream = self._stream(chance)
        ahead = self._wall.now_us() // 1000 + 5 * DAY_MS
        epoch = chance.choice([ahead, FAR, MAX_EPOCH - 1, MAX_EPOCH, MAX_SEQ])
        incarnation = chance.getrandbits(64)
        group = chance.choice(self._groups)
        kind = chance.choice(["message", "status", "hello", "state", "group state"])
        if kind == "message":
            prev = chance.choice([None, Prev(max(1, epoch - 1), INCARNATION, 5)])
            frame = encode(Origin(stream, epoch, incarnation, prev), 1, (1, epoch), Records([b"forged"]))
            broker.inject(stream.topic, frame, CONTENT_TYPE)
        elif kind in ("status", "hello"):
            to = status_address(stream.topic, 0) if kind == "status" else producer_address(stream.producer)
            chain = StreamStatus(stream.topic, 0, [ChainEpoch(epoch, incarnation, 1, FAR)])
            told = [chain] if kind == "status" else []
            status = Status(VERSION, stream.producer, epoch, incarnation, 1, 1, 1, 1000, False, to, told)
            for frame in encode_status(status):
                broker.send_control(to, frame)
        else:
            to = producer_address(stream.producer) if kind == "state" else group_address(group)
            said = StreamState(stream.topic, 0, (epoch, 1), (epoch, incarnation), 5)
            state = State(
                VERSION, group, "evil", chance.randrange(FAR), 1, to, stream.producer, "active", NONCE, [said]
            )
            for frame in encode_state(state):
                self._incidents.forged(frame)
                broker.send_control(to, frame)
        self._incidents.impersonated(stream.producer, incarnation)
        what = f"sends a forged {kind} in the name of {stream.producer}, epoch {epoch}"
        self._struck("far_epoch", broker, what, stream.producer)

    def _replay(self, broker: Broker, chance: random.Random) -> None:
        """Replay captured frames."""
        frames, control_frames = self._traffic.frames, self._traffic.control_frames
        if frames and (chance.random() < 0.5 or not control_frames):
            topic, frame = chance.choice(frames)
            broker.inject(topic, frame, CONTENT_TYPE)
            self._struck("replayed", broker, "replays a message")
        elif control_frames:
            address, frame = chance.choice(control_frames)
            broker.send_control(address, frame)
            self._struck("replayed", broker, f"replays a control frame for {address}")

    def _flood(self, broker: Broker, chance: random.Random) -> None:
        """Send junk."""
        topic = chance.choice(self._topics)
        for _ in range(FLOOD):
            junk = chance.randbytes(chance.randrange(1, 200))
            if chance.random() < 0.5:
                broker.inject(topic, junk, chance.choice([None, CONTENT_TYPE]))
            else:
                broker.send_control(
                    chance.choice([status_address(topic, 0), group_address(self._groups[0])]), junk
                )
        self._struck("flood", broker, f"sends {FLOOD} frames of junk")
