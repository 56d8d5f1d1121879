"""The state that the parts of a consumer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import TypeVar

from reliamsg.consumer.absent import AbsentStreams
from reliamsg.consumer.admission import Admission
from reliamsg.consumer.agenda import Agenda
from reliamsg.consumer.buffer import StreamBuffers
from reliamsg.consumer.durability import Durability
from reliamsg.consumer.health import Health
from reliamsg.consumer.journalling import ConsumerJournal
from reliamsg.consumer.lease import Lease
from reliamsg.consumer.protocol_events import ProtocolEvents
from reliamsg.consumer.quarantine import Quarantine, Samples
from reliamsg.consumer.role import GroupRole
from reliamsg.consumer.state_numbers import StateNumbers
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.wakeup import Uninterrupted, Waiters
from reliamsg.store.inbox import Inbox

__all__ = ["Shared", "share"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """The owners of a consumer's state, and one lock. Each owner alone changes its attributes; everything is guarded by
    the lock, unless it says otherwise. Nothing here sleeps or starts threads."""

    group: str
    clock: Callable[[], float]
    wall_us: Callable[[], int]
    calls: Uninterrupted | None
    """Makes calls for an application that may be interrupted."""
    lock: RLock
    changed: Waiters
    """Notified when something may be delivered, was committed, or failed."""
    core: GroupReceiver
    inbox: Inbox
    health: Health
    agenda: Agenda
    durability: Durability
    numbers: StateNumbers
    role: GroupRole
    journal: ConsumerJournal
    buffers: StreamBuffers
    events: ProtocolEvents
    absent: AbsentStreams
    quarantine: Quarantine
    samples: Samples
    """Those of unusable deliveries."""
    admission: Admission

    def uninterrupted(self, function: Callable[[], T]) -> T:
        """Call a function where no signal handler can run: everything that an application calls and that takes the
        lock. A signal handler that calls the same would wait for the lock that it interrupted the holder of."""
        return function() if self.calls is None else self.calls.call(function)


def share(
    core: GroupReceiver,
    inbox: Inbox,
    group: str,
    environment: Environment,
    lease: Lease,
    samples: Samples,
    limits: tuple[int, int],
) -> Shared:
    """The owners of a new consumer's state. `limits`, in bytes: what any message may use of the inbox, and
    ``max_quarantine_bytes``."""
    lock, changed = RLock(), Waiters()
    room, max_quarantine_bytes = limits
    health = Health(group, lock, changed)
    agenda = Agenda(lock, environment.calls, environment.waker.wake)
    durability = Durability(inbox, lock, changed, health, agenda)
    journal = ConsumerJournal(group)
    quarantine = Quarantine(inbox.quarantine, max_quarantine_bytes)
    buffers = StreamBuffers(core, inbox, journal, changed, environment.clock.wall_us)
    return Shared(
        group, environment.clock.now, environment.clock.wall_us, environment.calls, lock, changed,
        core, inbox, health, agenda, durability,
        StateNumbers(inbox, environment.clock.wall_us()), GroupRole(lease, environment.clock.now), journal, buffers,
        ProtocolEvents(core, buffers, journal, health, changed),
        AbsentStreams(core, inbox), quarantine, samples,
        Admission(core, inbox, quarantine, durability, journal, health, room),
    )  # fmt: skip
