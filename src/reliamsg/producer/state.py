"""The state in memory that the parts of one producer share, and the lock that guards it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from reliamsg import forks
from reliamsg.errors import ClosedError, FatalError
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.producer.journalling import MAX_WAITING_ROWS, RULES
from reliamsg.producer.presence import PresenceTracker
from reliamsg.producer.settings import Settings
from reliamsg.producer.streams import StreamIndex
from reliamsg.protocol.sender.group_progress import GroupTable
from reliamsg.protocol.sender.sender import Sender
from reliamsg.runtime.clock import Clock
from reliamsg.runtime.environment import Environment
from reliamsg.runtime.journal_buffer import JournalBuffer
from reliamsg.runtime.wakeup import Waiters
from reliamsg.transport.base import Binding

__all__ = ["Shared"]

log: Log = Log("reliamsg.producer")


class Shared:
    """One producer's. Everything here is guarded by :attr:`lock`, unless it says otherwise."""

    def __init__(
        self, producer_id: str, settings: Settings, environment: Environment, core: Sender,
        presence: PresenceTracker,
    ) -> None:  # fmt: skip
        self.lock: threading.RLock = threading.RLock()
        """Never held while the outbox is used or a callback runs. Reentrant for signal handlers: they only read."""
        self.changed: Waiters = Waiters()
        """Notified when messages are confirmed, consumed or removed, and when the producer stops."""
        self.generation: int = forks.generation
        self.producer_id: str = producer_id
        self.settings: Settings = settings
        self.clock: Clock = environment.clock
        self.probe: Callable[[str], None] = environment.probe
        self.wake: Callable[[], None] = environment.waker.wake
        self.core: Sender = core
        self.presence: PresenceTracker = presence
        self.streams: StreamIndex = StreamIndex()
        self.table: GroupTable = GroupTable()
        self.journal: JournalBuffer = JournalBuffer(RULES, MAX_WAITING_ROWS)
        self.top: int = 0
        """The highest row that is committed."""
        self.gate: int | None = None
        """The first row that must not be sent yet."""
        self.limit: int = 0
        """The highest row that may be sent."""
        self.closing: bool = False
        """Nothing more is accepted. Not guarded."""
        self.stopped: bool = False
        """Nothing more is sent."""
        self.fatal: FatalError | None = None
        """What stopped this producer for good."""

    # -- stopping -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is accepted from now on."""
        self.closing = True

    def stop(self, error: FatalError | None = None) -> bool:
        """Nothing more is sent. Returns whether `error` is the first that stops this producer."""
        first = error is not None and self.fatal is None
        if first:
            self.fatal = error
        self.stopped = True
        return first

    def raise_if_stopped(self, until: str) -> None:
        """Raise what ends every wait; `until` says what was waited for."""
        if self.fatal is not None:
            raise self.fatal
        if self.stopped:
            raise ClosedError(f"this producer was closed before everything was {until}")

    # -- rows -----------------------------------------------------------------------------------------------

    def extend(self, top: int) -> None:
        """Rows up to `top` are committed."""
        self.top = top
        self.limit = top if self.gate is None else min(top, self.gate - 1)

    def set_gate(self, row: int | None) -> None:
        """Rows from this one on must not be sent (None: all may be)."""
        self.gate = row
        self.extend(self.top)

    # -- groups and sites -----------------------------------------------------------------------------------

    def bindings(self) -> list[Binding]:
        """Which groups are to receive which topics, for transports."""
        return [
            Binding(stream.topic, stream.partition, group)
            for stream in self.streams.by_stream
            for group in self.table.named(stream)
        ]

    def unseen(self, site: str, stream: Stream) -> list[str]:
        """Named groups of a stream that are not proven at a site."""
        if not self.presence.is_needed(site):
            return []
        return self.presence.unseen(site, stream.topic, stream.partition, self.table.named(stream))

    def review(self, site: str, streams: Iterable[Stream]) -> None:
        """Which groups these streams have, or where they are proven, has changed: confirms of the site count for a
        stream only while all of its named groups are proven there."""
        window = self.core.sites[site]
        for stream in streams:
            stream_id = self.streams.by_stream[stream].row.id
            unseen, marked = self.unseen(site, stream), window.is_marked_unproven(stream_id)
            if unseen and not marked:
                window.mark_unproven(stream_id)
                self.core.add_confirmed(1)  # so that it is stored
            elif marked and not unseen:
                window.mark_proven(stream_id)
                log.info(
                    "producer.groups_seen",
                    "producer %(producer)s: all groups of %(stream)s are known at site %(site)s; what was sent before"
                    " is sent there again",
                    producer=self.producer_id, stream=str(stream), site=site,
                )  # fmt: skip
