"""The control frames of one consumer.

A consumer may announce only what it has committed, so its announcements are compared with its actions. The frames that
it receives determine what it can know of other consumers of its group, and of producers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reliamsg.keys import KeyRing
from reliamsg.message import Message, Stream
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.incidents import Incidents
from reliamsg.simulation.oracle import Oracle
from reliamsg.wire.control import State, Status, open_control
from reliamsg.wire.data import FrameError

__all__ = ["Announcements", "Member"]


@dataclass(frozen=True)
class Member:
    """A consumer of a group."""

    group: str
    name: str
    takeover_timeout: float
    """Another consumer of the group may have taken over if this one had no proof of the opposite for this many seconds.
    """
    has_standby: bool
    """Whether the group has two consumers."""


class Announcements:
    """Observes one consumer: a :class:`~reliamsg.simulation.host.ControlWitness`."""

    def __init__(
        self,
        member: Member,
        oracle: Oracle,
        scheduler: Scheduler,
        incidents: Incidents,
        keys: KeyRing | None,
        row_named: Callable[[int, int], None],
    ) -> None:
        """`keys`: its key ring. `row_named` is called when it names a row of its journal, with the opening and the
        row's number."""
        self._member, self._oracle, self._scheduler = member, oracle, scheduler
        self._incidents, self._keys, self._row_named = incidents, keys, row_named
        self._inbox: str | None = None
        """The identity of its inbox while the inbox is open."""
        self._received: list[tuple[float, str, bytes]] = []
        """Time, address and frame."""
        self._positions: dict[Stream, tuple[int, int]] = {}
        """Everything before this position is settled, by its own announcements in this or an earlier run of the
        process."""
        self._heartbeats: dict[int, float] = {}
        """When it sent each of them."""
        self._latest: tuple[str, bytes, State] | None = None
        """The latest frame that it sent, with its address: all sites receive the same frame."""
        self._proven_at: float | None = None
        """When it sent the latest heartbeat that came back to it: no other consumer read at that time."""

    # -- frames that it sends -------------------------------------------------------------------------------

    def sent(self, address: str, body: bytes) -> None:
        """It sends a control frame."""
        latest = self._latest
        if latest is None or latest[:2] != (address, body):
            opened = open_control(body, address, self._keys)
            assert isinstance(opened, State)  # consumers send nothing else
            latest = self._latest = address, body, opened
            if opened.journal is not None:
                self._row_named(*opened.journal)
        state, name = latest[2], self._member.name
        if not state.producer:
            self._heartbeats[state.number] = self._scheduler.now
            if state.role == "active":
                self._oracle.readers.started_reading(name)
            elif state.role == "standby":
                self._oracle.readers.stopped_reading(name)
        for one in state.streams:
            stream = Stream(state.producer, one.topic, one.partition)
            self._positions[stream] = max(one.position, self._positions.get(stream, (0, 0)))
            if one.missing:
                self._oracle.announced_missing(self._member.group, name, stream, one.missing)

    def delivered(self, message: Message) -> None:
        """It delivers a message. It must not have announced the message as settled, except for dead letters, and must
        certainly be the only reader."""
        now, name = self._scheduler.now, self._member.name
        position = self._positions.get(message.stream, (0, 0))
        if not message.replayed and (message.epoch, message.seq) < position:
            text = f"{message.id} at {name}, which it had announced as settled"
            self._oracle.violate("redelivered_after_ack", text)
        if self._proven_at is not None and now >= self._proven_at + self._member.takeover_timeout:
            text = f"{message.id} at {name}, {now - self._proven_at:.3f} s after its latest proof"
            self._oracle.violate("two_readers", text)

    # -- frames that it receives ----------------------------------------------------------------------------

    def received(self, address: str, body: bytes) -> None:
        """It receives a control frame. The judge needs to know whatever a standby learns about the reader."""
        now, member = self._scheduler.now, self._member
        self._received.append((now, address, body))
        if not member.has_standby or self._inbox is None or self._incidents.is_forged(body):
            return
        try:
            frame = open_control(body, address, self._keys)
        except FrameError:
            return
        if not isinstance(frame, State) or frame.group != member.group:
            return
        if frame.inbox == self._inbox:
            sent_at = self._heartbeats.get(frame.number)
            if sent_at is not None:  # else an earlier run of the process sent it
                self._proven_at = sent_at if self._proven_at is None else max(sent_at, self._proven_at)
            return
        if frame.role == "active":
            self._oracle.readers.noticed_other(member.name, member.takeover_timeout / 2)
        if self._oracle.readers.is_reading(member.name):
            return  # only a standby relies on it
        for one in frame.streams:
            stream = Stream(frame.producer, one.topic, one.partition)
            high_water = one.entered[0], one.high_water
            self._oracle.readers.announced(member.name, stream, one.position, high_water)

    def includes_status(self, stream: Stream, since: float, until: float) -> bool:
        """Whether it received a status of a stream from its producer within this period."""
        for at, address, body in self._received:
            if not since <= at <= until:
                continue
            try:
                frame = open_control(body, address, self._keys)
            except FrameError:
                continue
            if isinstance(frame, Status) and any(
                Stream(frame.producer, one.topic, one.partition) == stream for one in frame.streams
            ):
                return True
        return False

    # -- its process ----------------------------------------------------------------------------------------

    def opened(self, inbox: str) -> None:
        """Its inbox was opened."""
        self._inbox = inbox

    def terminated(self) -> None:
        """Its process is gone: it needs a new proof."""
        self._oracle.readers.stopped_reading(self._member.name)
        self._inbox = None
        self._heartbeats.clear()
        self._proven_at = None

    def inbox_replaced(self) -> None:
        """Its inbox was replaced by an older copy, which does not contain later announcements."""
        self._positions.clear()
