"""Publishing to a broker in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from reliamsg.config import Site
from reliamsg.transport.base import Binding, SenderEvents
from reliamsg.transport.memory.broker import LocalBroker
from reliamsg.transport.memory.connection import Connection
from reliamsg.transport.memory.model import Refusal
from reliamsg.transport.memory.session import MemorySession

__all__ = ["MemorySender"]


class MemorySender(MemorySession[SenderEvents]):
    """Publishes to one broker in memory."""

    def __init__(
        self,
        site: Site,
        broker: LocalBroker,
        producer_id: str,
        bindings: Sequence[Binding],
        events: SenderEvents,
        *,
        threaded: bool,
    ) -> None:
        super().__init__(site, broker, events, producer_id, threaded=threaded)
        self._bindings = tuple(bindings)
        self._reported_blocked: str | None = None
        self._looked: object = None
        """The connection, the groups and the state of the broker of the latest look at its evidence."""

    def wake(self) -> None:
        """Have ``pull()`` called soon."""
        self._wake()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the groups whose queues are declared, and declare them if connected."""
        self._bindings = tuple(bindings)
        if self.connected:
            self._declare()
        self._wake()

    def _connect(self) -> None:
        self._connection = self.broker.connect_sender(self.client, self._wake)
        self._declare()
        self._listen()
        self._reported_blocked = None
        self._events.connected(str(self.site.endpoints[0]), self.broker.window)
        self._look_for_groups()

    def _look_for_groups(self) -> None:
        """At MQTT sites: report the evidence of groups whenever it may have changed."""
        bindings = self._bindings
        if self.broker.protocol != "mqtt" or self.site.declare == "none" or not bindings:
            return
        now = self._connection, bindings, self.broker.groups_changed
        if now != self._looked:
            self._looked = now
            self._events.found(self.broker.evidence(bindings))

    def _declare(self) -> None:
        if self.site.declare == "create":
            self.broker.declare(self._bindings)

    def _flow(self, connection: Connection) -> bool:
        blocked = self.broker.blocked_reason()
        if blocked != self._reported_blocked:
            self._reported_blocked = blocked
            self._events.blocked(blocked)
        received = self._receive_control(connection)
        self._look_for_groups()
        outgoing = self._events.pull() if blocked is None else ()
        if outgoing:  # what is left is pulled next time, once what is confirmed by then has made room
            self.broker.publish(connection, outgoing, self.site.max_frame_bytes)
        results = self.broker.results(connection)
        self._report(results)
        return bool(received or outgoing or results)

    def _report(self, results: Sequence[tuple[int, Refusal | None]]) -> None:
        """Report outcomes in the broker's order, successive confirms in one call."""
        for refusal, group in groupby(results, key=itemgetter(1)):
            tokens = [token for token, _ in group]
            if refusal is None:
                self._events.confirmed(tokens)
            else:
                for token in tokens:
                    self._events.refused(token, *refusal)
