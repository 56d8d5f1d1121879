"""What a consumer tells others, held against what it does: it tells only what is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.message import Message, Stream
from reliamsg.simulation.oracle import Oracle
from reliamsg.wire.control import State, open_control

if TYPE_CHECKING:
    from reliamsg.keys import KeyRing

__all__ = ["Words"]


class Words:
    """One consumer's. `keys`: what it signs with. `lease`: after so many seconds without a proof another consumer of
    the group may have taken over."""

    def __init__(self, oracle: Oracle, group: str, consumer: str, keys: KeyRing | None, lease: float) -> None:
        self._oracle, self._group, self._consumer = oracle, group, consumer
        self._keys, self._lease = keys, lease
        self._positions: dict[Stream, tuple[int, int]] = {}
        """Before which it has told producers that everything is settled, whether or not it ended since."""
        self._beacons: dict[int, float] = {}
        """When it sent which."""
        self._latest: tuple[str, bytes, State] | None = None
        """The latest frame that it sent, with its address: every site is sent the same."""
        self._proof: float | None = None
        """When it sent the latest of those that came back: nobody else read then."""

    def tells(self, address: str, body: bytes, now: float) -> None:
        """It sends a control frame."""
        latest = self._latest
        if latest is None or latest[:2] != (address, body):
            opened = open_control(body, address, self._keys)
            assert isinstance(opened, State)  # consumers send nothing else
            latest = self._latest = address, body, opened
        state = latest[2]
        if not state.producer:
            self._beacons[state.number] = now
            if state.role == "active":
                self._oracle.apart.setdefault(self._consumer, (now, float("inf")))
            elif state.role == "standby":
                self._oracle.apart.pop(self._consumer, None)
        for told in state.streams:
            stream = Stream(state.producer, told.topic, told.partition)
            self._positions[stream] = max(told.position, self._positions.get(stream, (0, 0)))
            if told.missing:
                self._oracle.lacks(self._group, self._consumer, stream, told.missing)

    def came_back(self, number: int) -> None:
        """It hears one of its own beacons."""
        sent_at = self._beacons.get(number)
        if sent_at is not None:  # else it was sent before it was opened anew
            self._proof = sent_at if self._proof is None else max(sent_at, self._proof)

    @property
    def reads(self) -> bool:
        """Whether it says that it reads."""
        return self._consumer in self._oracle.apart

    def another_reads(self, now: float) -> None:
        """It hears another inbox of its group say that it reads: one of them yields, or its lease runs out."""
        since, until = self._oracle.apart.get(self._consumer, (now, now))
        if until == float("inf"):
            self._oracle.apart[self._consumer] = since, now + self._lease / 2

    def handed_out(self, message: Message, now: float) -> None:
        """It hands out a message."""
        position = self._positions.get(message.stream, (0, 0))
        if not message.replayed and (message.epoch, message.seq) < position:
            text = f"{message.id} at {self._consumer}, which had told producers that it is settled"
            self._oracle.violate("redelivered_after_ack", text)
        if self._proof is not None and now >= self._proof + self._lease:
            text = f"{message.id} at {self._consumer}, {now - self._proof:.3f} s after its latest proof"
            self._oracle.violate("two_readers", text)

    def ended(self) -> None:
        """Its process ended: it needs a new proof."""
        self._oracle.apart.pop(self._consumer, None)
        self._beacons.clear()
        self._proof = None

    def inbox_replaced(self) -> None:
        """Its inbox is an older copy, which does not know what was told since."""
        self._positions.clear()
