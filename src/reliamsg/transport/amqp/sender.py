"""Publishing to an AMQP site, with publisher confirms and mandatory routing."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from reliamsg.config import Site
from reliamsg.logs import Log
from reliamsg.transport.amqp.codec import PublishEncoder, text
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.control import ControlChannel, ControlState
from reliamsg.transport.amqp.in_flight import InFlight
from reliamsg.transport.amqp.session import ActiveConnection, AmqpSession
from reliamsg.transport.amqp.topology import STUCK, STUCK_SECONDS, Refused, Script, declare, renew
from reliamsg.transport.base import Binding, Outcome, Outgoing, SenderEvents
from reliamsg.transport.session import Ended, EventGate
from reliamsg.wire.address import EXCHANGE, topic_address

__all__ = ["AmqpSender"]

log: Log = Log(__name__)

BUFFER_BYTES = 1024 * 1024
"""Nothing more is pulled while this much waits to be taken by the operating system."""

WRITE_BYTES = 64 * 1024
"""Frames are written in pieces of about this size."""

DRAIN_SECONDS = 0.005
"""How often a full buffer is checked."""

REDECLARE_SECONDS = 1.0
"""How often, at most, the topology is declared again because messages are returned."""

LIMIT_SECONDS = 300.0
"""How long a size limit that the broker named is used: operators can raise it at any time."""

_TOO_LARGE = re.compile(r"message size (\d+) is larger than (?:the )?(?:configured )?max size (\d+)")


class AmqpSender(AmqpSession[SenderEvents, "_Publishing"]):
    """A :class:`~reliamsg.transport.base.SenderTransport` for one AMQP site."""

    def __init__(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> None:
        super().__init__(site, events, f"reliamsg-send-{site.name}", f"reliamsg producer {producer_id}")
        self.producer_id = producer_id
        self.queues: _Queues = _Queues(site, bindings)

    def wake(self) -> None:
        """Have ``pull()`` called soon. Any thread; cheap when a call is already scheduled."""
        active = self.active
        if active is not None:
            active.wake()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the groups whose queues are declared, before anything that is pulled from now on."""
        self.queues.bind(bindings)
        active = self.active
        if active is not None:
            active.rebind()

    def make_active(self, connection: AmqpConnection, endpoint: str) -> _Publishing:
        """Part of :class:`~reliamsg.transport.amqp.session.AmqpSession`."""
        return _Publishing(connection, endpoint, self.producer_id, self.queues, self.gate, self.control)


class _Queues:
    """What the transport knows of the queues that it publishes to, over all connections."""

    def __init__(self, site: Site, bindings: Sequence[Binding]) -> None:
        self.site = site
        self.bindings = tuple(bindings)
        self.stuck: set[Binding] = set()
        """Bindings for whose queues the broker did not answer; they must not block all others. A cluster can have
        queues without a leader."""
        self._limit: tuple[int, float] | None = None

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the bindings. Any thread."""
        self.bindings = tuple(bindings)

    @property
    def max_bytes(self) -> int:
        """The largest body that this site accepts, as far as is known."""
        limit = self._limit
        if limit is None or time.monotonic() - limit[1] > LIMIT_SECONDS:
            return self.site.max_frame_bytes
        return min(limit[0], self.site.max_frame_bytes)

    def learn_limit(self, size: int) -> None:
        """The broker named its own size limit."""
        self._limit = (size, time.monotonic())


class _Publishing(ActiveConnection):
    """What one connection has in flight. I/O thread only, except :meth:`wake` and :meth:`rebind`."""

    def __init__(
        self,
        connection: AmqpConnection,
        endpoint: str,
        producer_id: str,
        queues: _Queues,
        gate: EventGate[SenderEvents],
        control: ControlState,
    ) -> None:
        self.connection: AmqpConnection = connection
        self.control: ControlChannel = ControlChannel(connection, control)
        self._rebind = False
        """Queues must be declared before anything more is pulled."""
        self._queues = queues
        self._gate = gate
        self._endpoint = endpoint
        self._in_flight = InFlight()
        self._producer_id = producer_id
        self._encoder: PublishEncoder | None = None
        self._confirmed: list[int] = []
        self._waking = False
        self._declaring = False
        self._draining = False
        self._blocked: str | None = None
        self._redeclared_at = float("-inf")
        self._stuck_wait = STUCK_SECONDS[0]
        self._unrouted: set[str] = set()
        """Addresses of messages that were returned, for which the topology was declared again."""

    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it. Any thread."""
        return self.control.send_control(address, body)

    def open(self) -> None:
        """Open the channel, declare the topology, then publish."""
        self.connection.open_channel(self._on_channel, self._on_channel_closed)

    def close(self, grace: float) -> None:
        """Write the control frames that wait, and close the connection cleanly."""
        self.control.flush()
        self.connection.close(grace)

    def rebind(self) -> None:
        """The bindings have changed."""
        self._rebind = True
        self.wake()

    def wake(self) -> None:
        """See :meth:`AmqpSender.wake`."""
        # One callback at a time: it clears the flag before it pulls, so nothing is missed.
        if not self._waking:
            self._waking = True
            self.connection.call(self._on_wake)

    def _on_wake(self) -> None:
        self._waking = False
        self._pump()

    def _on_channel(self, channel: Any) -> None:
        self._encoder = PublishEncoder(
            channel.channel_number, self.connection.frame_max, EXCHANGE, self._producer_id
        )
        channel.add_on_return_callback(self._on_return)
        # The connection decodes confirms itself; pika only requires a callback for them.
        channel.confirm_delivery(lambda _: None, callback=lambda _: self._declare(self._on_declared))

    def _declare(self, done: Any) -> None:
        self._rebind = False
        self._declaring = True
        self.connection.perform(self._topology(), done, self._on_declare_failed, self._patience)

    @property
    def _patience(self) -> float:
        """How long the broker may take to answer for one queue, so that time is left for others."""
        return self._queues.site.connect_timeout / 2

    def _topology(self) -> Script[None]:
        queues = self._queues
        before = set(queues.stuck)
        yield from declare(self.connection, queues.site, queues.bindings, stuck=queues.stuck)
        for binding in queues.stuck - before:
            log.warning(
                "transport.queue_unreachable", STUCK,
                site=queues.site.name, topic=binding.topic, partition=binding.partition, group=binding.group,
            )  # fmt: skip

    def _on_declare_failed(self, refused: Refused) -> None:
        self.connection.drop(Ended(f"the broker refused to declare: {refused}"))

    def _on_declared(self, _: object) -> None:
        self.control.open(self._on_ready)

    def _on_ready(self) -> None:
        self._declaring = False
        self._waking = False  # a wake() before there was a loop to call into left it set
        self.connection.established()
        self._gate.connected(self._endpoint, None)
        if self._blocked is not None:
            self._gate.events.blocked(self._blocked)
        self.connection.later(self._stuck_wait, self._retry_stuck)
        self._pump()

    def _retry_stuck(self) -> None:
        """Declare again what was left out, without interrupting the flow of messages."""
        self._stuck_wait = min(2 * self._stuck_wait, STUCK_SECONDS[1])
        self.connection.later(self._stuck_wait, self._retry_stuck)
        queues = self._queues
        queues.stuck.intersection_update(queues.bindings)
        if not queues.stuck:
            return
        still: set[Binding] = set()
        self.connection.perform(
            declare(self.connection, queues.site, set(queues.stuck), stuck=still),
            lambda _: queues.stuck.intersection_update(still),
            lambda refused: log.info(
                "transport.still_not_declared",
                "site %(site)s: declaring: %(reason)s",
                site=queues.site.name,
                reason=str(refused),
            ),
            self._patience,
        )

    def _on_redeclared(self, _: object) -> None:
        self._declaring = False
        self._pump()

    def _pump(self) -> None:
        """Publish what there is to publish, as far as the connection accepts it."""
        gate, connection = self._gate, self.connection
        if self._declaring or self._blocked is not None or not gate.up or not connection.alive:
            return
        self.control.flush()
        if self._rebind:
            self._declare(self._on_redeclared)
            return
        while connection.buffered < BUFFER_BYTES:
            messages = gate.events.pull()
            if not messages:
                return
            self._send(messages)
        if not self._draining:
            self._draining = True
            connection.later(DRAIN_SECONDS, self._on_drained)

    def _on_drained(self) -> None:
        self._draining = False
        self._pump()

    def _send(self, messages: Sequence[Outgoing]) -> None:
        assert self._encoder is not None
        limit = self._queues.max_bytes
        skip = {
            m.token: f"{len(m.body)} bytes, the limit is {limit}" for m in messages if len(m.body) > limit
        }
        for token, reason in skip.items():
            self._refused(token, Outcome.REFUSED, reason)
        pieces: list[bytes] = []
        size = 0
        for message in messages:
            if message.token in skip:
                continue
            try:
                size += self._encoder.encode(message, pieces)
            except ValueError as error:
                skip[message.token] = str(error)
                self._in_flight.give_up(message)
                self._refused(message.token, Outcome.REFUSED, str(error))
                continue
            self._in_flight.add(message)
            if size >= WRITE_BYTES:
                self._write(pieces)
                pieces, size = [], 0
        self._write(pieces)

    def _write(self, pieces: list[bytes]) -> None:
        group: list[bytes] = []
        size = 0
        for piece in pieces:
            group.append(piece)
            size += len(piece)
            # pika copies what the operating system does not accept at once: better in small pieces.
            if size >= WRITE_BYTES:
                self.connection.write(b"".join(group))
                group, size = [], 0
        if group:
            self.connection.write(b"".join(group))

    def on_confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        """Part of :class:`InputListener`."""
        if ack:
            self._confirmed += self._in_flight.acked(tag, multiple)
            return
        for token in self._in_flight.nacked(tag, multiple):
            self._refused(token, Outcome.NACKED, "the broker refused the message (basic.nack)")

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        token = self._in_flight.returned(text(properties.message_id))
        if token is not None:
            reason = f"{method.reply_code} {text(method.reply_text)}: no queue for {text(method.routing_key)}"
            self._refused(token, Outcome.RETURNED, reason)
        now = time.monotonic()
        if not self._declaring and now - self._redeclared_at >= REDECLARE_SECONDS:
            self._redeclared_at = now
            self.connection.perform(
                self._repair_topology(text(method.routing_key)),
                lambda _: None,
                lambda refused: log.warning(
                    "transport.not_declared",
                    "site %(site)s: a message had no queue, and the broker refuses to declare one: %(reason)s",
                    site=self._queues.site.name,
                    reason=str(refused),
                ),
                self._patience,
            )

    def _repair_topology(self, address: str) -> Script[None]:
        """Declare everything again; if that did not help an address before, bind its queues once more."""
        queues = self._queues
        unused = [b for b in queues.bindings if topic_address(b.topic, b.partition) == address]
        queues.stuck.difference_update(unused)
        yield from self._topology()
        if address in self._unrouted:
            yield from renew(self.connection, queues.site, unused)
        self._unrouted.add(address)

    def _refused(self, token: int, outcome: Outcome, reason: str) -> None:
        self._report_confirmed()
        self._gate.events.refused(token, outcome, reason)

    def _report_confirmed(self) -> None:
        if self._confirmed:
            tokens, self._confirmed = self._confirmed, []
            self._gate.events.confirmed(tokens)

    def on_input(self) -> None:
        """Report everything that one read confirmed at once, and use the room that it made."""
        if not self._gate.up:
            return
        self._waking = True  # no wake-up is needed meanwhile: pulling follows
        try:
            self._report_confirmed()
        finally:
            self._waking = False
        self._pump()

    def on_blocked(self, reason: str | None) -> None:
        """Part of :class:`InputListener`."""
        self._blocked = reason
        self.control.on_blocked(reason)
        if self._gate.up:
            self._gate.events.blocked(reason)
            self._pump()

    def _on_channel_closed(self, code: int, reason: str) -> None:
        """Find out which message the broker closed the channel over, if it says so."""
        if not self._gate.up:
            return
        culprit = None
        if code == 406 and (sizes := _TOO_LARGE.search(reason)):
            size, limit = map(int, sizes.groups())
            self._queues.learn_limit(limit)
            culprit = self._in_flight.first(lambda message: len(message.body) == size)
        elif code == 403:
            culprit = self._in_flight.first(
                lambda message: f"topic '{topic_address(message.topic, message.partition)}'" in reason
            )
        if culprit is not None:
            self._refused(culprit.token, Outcome.REFUSED, f"{code} {reason}")
        self._report_confirmed()
