"""Somebody without the key, who can publish and tell at every site and hears what passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.keys import KeyRing
from reliamsg.message import Prev, Stream
from reliamsg.simulation.broker import Broker
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
from reliamsg.wire.data import CONTENT_TYPE, Records, encode
from reliamsg.wire.limits import MAX_EPOCH, MAX_SEQ

if TYPE_CHECKING:
    from reliamsg.simulation.world import World

__all__ = ["Attacker"]

FLOOD = 20
"""Frames at a time."""
FAR = 2**62
DAY_MS = 86_400_000


class Attacker:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ring = KeyRing({"k": b"a guess at what the key may be"}, sign_with="k")
        self._number = 0

    def look(self) -> None:
        """Do some harm, from time to time."""
        harm = {
            "forged": self._forge, "replayed": self._replay, "far_epoch": self._far, "flood": self._flood,
        }  # fmt: skip
        for broker in self.world.brokers.values():
            faults = self.world.faults.at(broker.name)
            for name, do in harm.items():
                # Asked also where it can't be done: so it is asked as often whatever else happens.
                if faults.bites(name) and broker.up:
                    do(broker)

    def _struck(self, name: str, broker: Broker, what: str, whom: str = "") -> None:
        self.world.faults.strikes(name, whom)
        self.world.history.note("attacker", broker.name, what)

    def _forge(self, broker: Broker) -> None:
        """Messages, and lies about how far somebody is, in another's name."""
        scenario, chance = self.world.scenario, self.world.faults.at(broker.name).random("forged")
        self._number += 1
        stream = Stream(chance.choice(list(scenario.producers)), chance.choice(scenario.topics), 0)
        epoch = chance.choice([1, self.world.wall_us() // 1000, FAR])
        kind = chance.choice(["message", "unsigned", "state", "status", "repair"])
        if kind in ("message", "unsigned", "repair"):
            seq = chance.choice([1, 50, FAR])
            ring = None if kind == "unsigned" else self._ring
            frame = encode(stream, epoch, 7, seq, None, (1, 1), Records([b"forged"]), ring=ring)
            if kind == "repair":
                broker.spread(group_address(chance.choice(list(scenario.groups))), frame)
            else:
                broker.inject(stream.topic, frame, CONTENT_TYPE)
        elif kind == "state":
            to = producer_address(stream.producer)
            told = StreamState(stream.topic, 0, (epoch, FAR), (epoch, 7), FAR, [], [(epoch, 1, FAR)], [])
            state = State(
                VERSION, chance.choice(list(scenario.groups)), "evil", FAR, 1, to, stream.producer, "active",
                b"12345678", [told],
            )  # fmt: skip
            for frame in encode_state(state, chance.choice([None, self._ring])):
                broker.spread(to, frame)
        else:
            self._forge_status(broker, stream, epoch)
        what = f"{kind} in the name of {stream.producer}, epoch {epoch}"
        self._struck("forged", broker, what, stream.producer)

    def _far(self, broker: Broker) -> None:
        """One blind packet that would end a stream for good, if it were believed. Who has the key is not told by it."""
        scenario, chance = self.world.scenario, self.world.faults.at(broker.name).random("far_epoch")
        stream = Stream(chance.choice(list(scenario.producers)), chance.choice(scenario.topics), 0)
        ahead = self.world.wall_us() // 1000 + 5 * DAY_MS
        epoch = chance.choice([ahead, FAR, MAX_EPOCH - 1, MAX_EPOCH, MAX_SEQ])
        incarnation = chance.getrandbits(64)
        group, kind = (
            chance.choice(list(scenario.groups)),
            chance.choice(["message", "status", "hello", "state", "told"]),
        )
        if kind == "message":
            prev = chance.choice([None, Prev(max(1, epoch - 1), 7, 5)])
            frame = encode(stream, epoch, incarnation, 1, prev, (1, epoch), Records([b"forged"]))
            broker.inject(stream.topic, frame, CONTENT_TYPE)
        elif kind in ("status", "hello"):
            to = status_address(stream.topic, 0) if kind == "status" else producer_address(stream.producer)
            told = (
                [StreamStatus(stream.topic, 0, [ChainEpoch(epoch, incarnation, 1, FAR)])]
                if kind == "status"
                else []
            )
            status = Status(VERSION, stream.producer, epoch, incarnation, 1, 1, 1, 1000, False, to, told)
            for frame in encode_status(status):
                broker.spread(to, frame)
        else:
            to = producer_address(stream.producer) if kind == "state" else group_address(group)
            said = StreamState(stream.topic, 0, (epoch, 1), (epoch, incarnation), 5)
            state = State(
                VERSION,
                group,
                "evil",
                chance.randrange(FAR),
                1,
                to,
                stream.producer,
                "active",
                b"12345678",
                [said],
            )
            for frame in encode_state(state):
                self.world.made_up.add(frame)
                broker.spread(to, frame)
        what = f"{kind} in the name of {stream.producer}, epoch {epoch}"
        self.world.impersonated.add(stream.producer)
        self.world.unjournalled.add((stream.producer, "opening", incarnation))
        self._struck("far_epoch", broker, what, stream.producer)

    def _forge_status(self, broker: Broker, stream: Stream, epoch: int) -> None:
        to = status_address(stream.topic, 0)
        told = StreamStatus(stream.topic, 0, [ChainEpoch(epoch, 7, 1, FAR)], [(epoch, 1, FAR)], {})
        status = Status(VERSION, stream.producer, epoch, 7, FAR, FAR, 1, 1000, False, to, [told])
        for frame in encode_status(status, self._ring):
            broker.spread(to, frame)

    def _replay(self, broker: Broker) -> None:
        """What was captured, again."""
        history, chance = self.world.history, self.world.faults.at(broker.name).random("replayed")
        if history.frames and (chance.random() < 0.5 or not history.control):
            topic, frame = chance.choice(history.frames)
            broker.inject(topic, frame, CONTENT_TYPE)
            self._struck("replayed", broker, "a message")
        elif history.control:
            address, frame = chance.choice(history.control)
            broker.spread(address, frame)
            self._struck("replayed", broker, f"what was told to {address}")

    def _flood(self, broker: Broker) -> None:
        """Junk, and producers that nobody knows."""
        scenario, chance = self.world.scenario, self.world.faults.at(broker.name).random("flood")
        topic = chance.choice(scenario.topics)
        for _ in range(FLOOD):
            junk = chance.randbytes(chance.randrange(1, 200))
            self._number += 1
            if chance.random() < 0.5:
                broker.inject(topic, junk, chance.choice([None, CONTENT_TYPE]))
            else:
                broker.spread(
                    chance.choice([status_address(topic, 0), group_address(next(iter(scenario.groups)))]),
                    junk,
                )
        self._struck("flood", broker, f"{FLOOD} frames of junk")
