"""Publishing to an AMQP site, with publisher confirms and mandatory routing."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Any

from reliamsg.config import Site
from reliamsg.transport.amqp.codec import PublishEncoder, text
from reliamsg.transport.amqp.connection import Link
from reliamsg.transport.amqp.control import ControlChannel
from reliamsg.transport.amqp.in_flight import InFlight
from reliamsg.transport.amqp.session import AmqpSession
from reliamsg.transport.amqp.topology import STUCK, STUCK_SECONDS, Refused, Script, declare, renew
from reliamsg.transport.base import Binding, Outcome, Outgoing, SenderEvents
from reliamsg.transport.session import Ended
from reliamsg.wire.address import EXCHANGE, topic_address

__all__ = ["AmqpSender"]

log = logging.getLogger(__name__)

BUFFER_BYTES = 1024 * 1024
"""Nothing more is pulled while so much waits to be taken by the operating system."""

WRITE_BYTES = 64 * 1024
"""Frames are written in pieces of about this size."""

DRAIN_SECONDS = 0.005
"""How often a full buffer is looked at."""

REDECLARE_SECONDS = 1.0
"""At most so often is the topology declared again because messages are returned."""

LIMIT_SECONDS = 300.0
"""How long a size limit that the broker named is believed: it can be raised while it runs."""

_TOO_LARGE = re.compile(r"message size (\d+) is larger than (?:the )?(?:configured )?max size (\d+)")


class AmqpSender(AmqpSession[SenderEvents, "_Flow"]):
    """A :class:`~reliamsg.transport.base.SenderTransport` for one AMQP site."""

    def __init__(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents
    ) -> None:
        super().__init__(site, events, f"reliamsg-send-{site.name}", f"reliamsg producer {producer_id}")
        self.producer_id = producer_id
        self.bindings = tuple(bindings)
        self.stuck: set[Binding] = set()
        """Those about whose queues the broker did not answer: they must not keep us from all others. A cluster may have
        queues that nobody leads."""
        self._limit: tuple[int, float] | None = None

    def wake(self) -> None:
        """Have ``pull()`` asked soon. Any thread; cheap when it was called already."""
        flow = self.flow
        if flow is not None:
            flow.wake()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the groups whose queues are declared, before anything that is pulled from now on."""
        self.bindings = tuple(bindings)
        flow = self.flow
        if flow is not None:
            flow.unbound = True
            flow.wake()

    def make_flow(self, link: Link, endpoint: str) -> _Flow:
        """Part of :class:`~reliamsg.transport.amqp.session.AmqpSession`."""
        return _Flow(self, link, endpoint)

    @property
    def max_bytes(self) -> int:
        """The largest body that this site takes, as far as is known."""
        limit = self._limit
        if limit is None or time.monotonic() - limit[1] > LIMIT_SECONDS:
            return self.site.max_frame_bytes
        return min(limit[0], self.site.max_frame_bytes)

    def learn_limit(self, size: int) -> None:
        """The broker named its own size limit."""
        self._limit = (size, time.monotonic())


class _Flow:
    """What one connection has in flight. I/O thread only, except :meth:`wake` and :attr:`unbound`."""

    def __init__(self, sender: AmqpSender, link: Link, endpoint: str) -> None:
        self.link = link
        self.control = ControlChannel(link, sender)
        self.tell = self.control.tell
        self.unbound = False
        """Queues must be declared before anything more is pulled."""
        self._sender = sender
        self._endpoint = endpoint
        self._in_flight = InFlight()
        self._encoder: PublishEncoder | None = None
        self._confirmed: list[int] = []
        self._waking = False
        self._declaring = False
        self._draining = False
        self._blocked: str | None = None
        self._redeclared_at = float("-inf")
        self._stuck_wait = STUCK_SECONDS[0]
        self._unrouted: set[str] = set()
        """Addresses of messages that were returned, and for which the topology was declared again."""
        link.on_confirm = self._on_confirm
        link.on_input = self._on_input
        link.on_blocked = self._on_blocked

    def open(self) -> None:
        """The connection stands: open the channel, declare what is needed, then publish."""
        self.link.open_channel(self._on_channel, self._on_channel_closed)

    def close(self) -> None:
        """Write what was told, and say goodbye."""
        self.control.flush()
        self.link.close(self._sender.grace)

    def wake(self) -> None:
        # One callback at a time: it clears the flag before it pulls, so nothing is missed.
        if not self._waking:
            self._waking = True
            self.link.call(self._on_wake)

    def _on_wake(self) -> None:
        self._waking = False
        self._pump()

    def _on_channel(self, channel: Any) -> None:
        sender = self._sender
        self._encoder = PublishEncoder(
            channel.channel_number, self.link.frame_max, EXCHANGE, sender.producer_id
        )
        channel.add_on_return_callback(self._on_return)
        # The connection counts confirms itself; pika only wants a callback for them.
        channel.confirm_delivery(lambda _: None, callback=lambda _: self._declare(self._on_declared))

    def _declare(self, done: Any) -> None:
        self.unbound = False
        self._declaring = True
        self.link.perform(self._topology(), done, self._on_declare_failed, self._patience)

    @property
    def _patience(self) -> float:
        """How long the broker may take to answer about one queue, so that there is time for others."""
        return self._sender.site.connect_timeout / 2

    def _topology(self) -> Script[None]:
        sender = self._sender
        before = set(sender.stuck)
        yield from declare(self.link, sender.site, sender.bindings, stuck=sender.stuck)
        for binding in sender.stuck - before:
            log.warning(STUCK, sender.site.name, binding.topic, binding.group)

    def _on_declare_failed(self, refused: Refused) -> None:
        self.link.drop(Ended(f"the broker refused to declare: {refused}"))

    def _on_declared(self, _: object) -> None:
        self.control.open(self._on_ready)

    def _on_ready(self) -> None:
        sender = self._sender
        self._declaring = False
        self._waking = False  # a wake() before there was a loop to call into left it set
        self.link.established()
        sender.up = True
        sender.events.connected(self._endpoint, None)
        if self._blocked is not None:
            sender.events.blocked(self._blocked)
        self.link.later(self._stuck_wait, self._retry_stuck)
        self._pump()

    def _retry_stuck(self) -> None:
        """Declare again what was left out; data flows meanwhile."""
        self._stuck_wait = min(2 * self._stuck_wait, STUCK_SECONDS[1])
        self.link.later(self._stuck_wait, self._retry_stuck)
        self._sender.stuck.intersection_update(self._sender.bindings)
        if not self._sender.stuck:
            return
        still: set[Binding] = set()
        self.link.perform(
            declare(self.link, self._sender.site, set(self._sender.stuck), stuck=still),
            lambda _: self._sender.stuck.intersection_update(still),
            lambda refused: log.info("site %s: declaring: %s", self._sender.site.name, refused),
            self._patience,
        )

    def _on_redeclared(self, _: object) -> None:
        self._declaring = False
        self._pump()

    def _pump(self) -> None:
        """Send what there is to send, as far as the connection takes it."""
        sender, link = self._sender, self.link
        if self._declaring or self._blocked is not None or not sender.up or not link.alive:
            return
        self.control.flush()
        if self.unbound:
            self._declare(self._on_redeclared)
            return
        while link.buffered < BUFFER_BYTES:
            messages = sender.events.pull()
            if not messages:
                return
            self._send(messages)
        if not self._draining:
            self._draining = True
            link.later(DRAIN_SECONDS, self._on_drained)

    def _on_drained(self) -> None:
        self._draining = False
        self._pump()

    def _send(self, messages: Sequence[Outgoing]) -> None:
        assert self._encoder is not None
        limit = self._sender.max_bytes
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
            # What the operating system does not take at once is copied by pika: better in small pieces.
            if size >= WRITE_BYTES:
                self.link.write(b"".join(group))
                group, size = [], 0
        if group:
            self.link.write(b"".join(group))

    def _on_confirm(self, tag: int, multiple: bool, ack: bool) -> None:
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
            self.link.perform(
                self._mend(text(method.routing_key)),
                lambda _: None,
                lambda refused: log.warning("site %s: declaring: %s", self._sender.site.name, refused),
                self._patience,
            )

    def _mend(self, address: str) -> Script[None]:
        """Declare everything again; where that was of no use to an address before, bind its queues once more."""
        sender = self._sender
        unused = [b for b in sender.bindings if topic_address(b.topic, b.partition) == address]
        sender.stuck.difference_update(unused)
        yield from self._topology()
        if address in self._unrouted:
            yield from renew(self.link, sender.site, unused)
        self._unrouted.add(address)

    def _refused(self, token: int, outcome: Outcome, reason: str) -> None:
        self._tell_confirmed()
        self._sender.events.refused(token, outcome, reason)

    def _tell_confirmed(self) -> None:
        if self._confirmed:
            tokens, self._confirmed = self._confirmed, []
            self._sender.events.confirmed(tokens)

    def _on_input(self) -> None:
        """All that one read brought is processed: tell it in one go, and use the room that it made."""
        if not self._sender.up:
            return
        self._waking = True  # whoever wakes us meanwhile need not: pulling follows
        try:
            self._tell_confirmed()
        finally:
            self._waking = False
        self._pump()

    def _on_blocked(self, reason: str | None) -> None:
        self._blocked = reason
        self.control.blocked(reason is not None)
        if self._sender.up:
            self._sender.events.blocked(reason)
            self._pump()

    def _on_channel_closed(self, code: int, reason: str) -> None:
        """Find out which message the broker closed the channel over, where it says so."""
        if not self._sender.up:
            return
        culprit = None
        if code == 406 and (sizes := _TOO_LARGE.search(reason)):
            size, limit = map(int, sizes.groups())
            self._sender.learn_limit(limit)
            culprit = self._in_flight.first(lambda message: len(message.body) == size)
        elif code == 403:
            culprit = self._in_flight.first(
                lambda message: f"topic '{topic_address(message.topic, message.partition)}'" in reason
            )
        if culprit is not None:
            self._refused(culprit.token, Outcome.REFUSED, f"{code} {reason}")
        self._tell_confirmed()
