"""Reading the queues of a group at an AMQP site."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from reliamsg.config import Site
from reliamsg.logs import Log
from reliamsg.transport.amqp.codec import ack_frame, readable_headers, text
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.control import ControlChannel, ControlState
from reliamsg.transport.amqp.control_connection import ControlConnection
from reliamsg.transport.amqp.session import ActiveConnection, AmqpSession
from reliamsg.transport.amqp.topology import (
    STUCK,
    STUCK_SECONDS,
    Busy,
    Refused,
    Request,
    Script,
    declare,
    ready_count,
    renew,
    take_locks,
)
from reliamsg.transport.base import Binding, Delivery, ReceiverEvents, Token
from reliamsg.transport.session import GOODBYE_SECONDS, Ended, EventGate
from reliamsg.wire.address import group_queue

__all__ = ["AmqpReceiver"]

log: Log = Log(__name__)

IDLE_SECONDS = 1.0
"""How long nothing must have been delivered before the queues are asked whether they are empty."""

CHECK_AGAIN_SECONDS = 30.0
"""How often queues are asked again that were empty, or that deliver all the time."""

IGNORED_CHECKS = 2
"""A broker that holds messages and delivers none at this many checks in a row gets a new connection."""

_generations = itertools.count(1)

STREAM_OFFSET = "x-stream-offset"
FROM_THE_START = {STREAM_OFFSET: "first"}
"""A stream does not delete what is acknowledged, and stores no position for its readers: messages read before are
delivered again on each connection, and recognized as duplicates. Other queues refuse the argument."""


class AmqpReceiver(AmqpSession[ReceiverEvents, "_Consuming"]):
    """A :class:`~reliamsg.transport.base.ReceiverTransport` for one group at one AMQP site.

    All bindings are of one group. ``Site.prefetch`` is divided among its queues, at least one each: quorum
    queues only have a limit per consumer.
    """

    def __init__(self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> None:
        self.queues: _Queues = _Queues(site, tuple(dict.fromkeys(bindings)))
        group = bindings[0].group if bindings else ""
        super().__init__(site, events, f"reliamsg-receive-{site.name}", f"reliamsg group {group}")

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Let the broker delete these messages; tokens of an earlier connection are ignored. Any thread."""
        active = self.active
        if active is not None:
            active.acknowledge(cast("Sequence[tuple[int, int]]", tokens))

    def renew(self, topic: str, partition: int) -> None:
        """Bind the group's queue once more. Any thread."""
        active = self.active
        if active is not None:
            bindings = [b for b in self.queues.bindings if (b.topic, b.partition) == (topic, partition)]
            active.connection.call(lambda: active.renew(bindings))

    def make_active(self, connection: AmqpConnection, endpoint: str) -> _Consuming:
        """Part of :class:`~reliamsg.transport.amqp.session.AmqpSession`."""
        return _Consuming(connection, endpoint, self.queues, self.gate, self.control)


class _Queues:
    """What the transport knows of the group's queues, over all connections. I/O thread only."""

    def __init__(self, site: Site, bindings: tuple[Binding, ...]) -> None:
        self.site = site
        self.bindings = bindings
        self.stuck: set[Binding] = set()
        """Bindings for whose queues the broker does not answer, as at the sender. What these queues hold, producers may
        send again."""
        self.streams: set[str] = set()
        """Queues that are streams, as the broker reported when they were declared, or with their first delivery."""


class _Consuming(ActiveConnection):
    """What one connection has delivered. I/O thread only, except :meth:`acknowledge`."""

    def __init__(
        self,
        connection: AmqpConnection,
        endpoint: str,
        queues: _Queues,
        gate: EventGate[ReceiverEvents],
        control: ControlState,
    ) -> None:
        self.connection: AmqpConnection = connection
        self._control_connection = ControlConnection(connection, control)
        self.control: ControlChannel = ControlChannel(
            connection, control, sends=False, probe=self._control_connection.probe
        )
        self._queues = queues
        self._gate = gate
        self._endpoint = endpoint
        self._generation = next(_generations)
        self._channel: Any = None
        self._arrived: list[Delivery] = []
        self._routing_key: object = None
        """Of the latest delivery; most are the same."""
        self._address = ""
        self._order: deque[int] = deque()
        """Delivery tags, starting with the oldest unacknowledged one."""
        self._held: set[int] = set()
        """The unacknowledged ones."""
        self._acks: deque[int] = deque()
        self._waking = False
        self._existed: bool | None = None
        self._stuck_wait = STUCK_SECONDS[0]
        self._readable: list[Binding] = []
        """Bindings without the stuck ones."""
        self._delivered_at = float("-inf")
        self._empty_since: float | None = None
        """When the queues were last seen empty with nothing delivered since."""
        self._checked_at = time.monotonic()
        self._ignored = 0
        """How many times in a row messages waited and none of them arrived."""

    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame, or drop it. Any thread."""
        return self._control_connection.send_control(address, body)

    def open(self) -> None:
        """Open the channel, take the locks, declare, consume."""
        self.connection.open_channel(self._on_channel, self._on_channel_closed)

    def close(self, grace: float) -> None:
        """Send the acknowledgements that are due, then the waiting control frames, and close the connection cleanly."""
        self._on_acks()
        self._control_connection.close(grace / 2, lambda: self.connection.close(grace / 2))

    def acknowledge(self, tokens: Sequence[tuple[int, int]]) -> None:
        """See :meth:`AmqpReceiver.acknowledge`."""
        self._acks.extend([tag for generation, tag in tokens if generation == self._generation])
        if not self._waking:
            self._waking = True
            self.connection.call(self._on_acks)

    def renew(self, bindings: Sequence[Binding]) -> None:
        """See :meth:`AmqpReceiver.renew`."""
        if not self._gate.up or not self.connection.alive:
            return
        self.connection.perform(
            renew(self.connection, self._queues.site, bindings),
            lambda _: None,
            lambda refused: log.info(
                "transport.binding_refused",
                "site %(site)s: binding: %(reason)s",
                site=self._queues.site.name,
                reason=str(refused),
            ),
        )

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_cancel_callback(
            lambda _: self.connection.drop(Ended("the broker cancelled the consumer: a queue is gone"))
        )
        self.connection.perform(self._set_up(), self._on_ready, self._on_set_up_failed, self._patience)

    def _on_channel_closed(self, _code: int, reason: str) -> None:
        if STREAM_OFFSET in reason:
            for queue in [queue for queue in self._queues.streams if f"'{queue}'" in reason]:
                self._queues.streams.discard(queue)  # it was deleted and created again

    def _set_up(self) -> Script[str | None]:
        """Return who holds the group, if anyone does."""
        connection, known = self.connection, self._queues
        try:
            locks = yield from take_locks(connection, known.bindings)
        except Busy as busy:
            return str(busy)
        before = set(known.stuck)
        existed = yield from declare(
            connection, known.site, known.bindings, look_first=True, stuck=known.stuck, streams=known.streams
        )
        for binding in known.stuck - before:
            log.warning(
                "transport.queue_unreachable", STUCK,
                site=known.site.name, topic=binding.topic, partition=binding.partition, group=binding.group,
            )  # fmt: skip
        self._existed = None if known.stuck else existed
        self._readable = [b for b in known.bindings if b not in known.stuck]
        queues = [group_queue(b.topic, b.partition, b.group) for b in self._readable]
        yield self._qos()
        for queue in queues:
            arguments = FROM_THE_START if queue in known.streams else None
            yield self._consume(queue, partial(self._on_message, queue), auto_ack=False, arguments=arguments)
        for lock in locks:
            # Nothing is published there; consuming is how the deletion of a lock is noticed.
            yield self._consume(lock, _ignore, auto_ack=True)
        return None

    @property
    def _patience(self) -> float:
        """How long the broker may take to answer for one queue, so that time is left for others."""
        return self._queues.site.connect_timeout / 2

    def _retry_stuck(self) -> None:
        """Check whether the broker answers for the queues that were left out; a new connection then reads them."""
        self._stuck_wait = min(2 * self._stuck_wait, STUCK_SECONDS[1])
        self.connection.later(self._stuck_wait, self._retry_stuck)
        queues, still = self._queues, set[Binding]()

        def declared(_: object) -> None:
            if still != queues.stuck:
                queues.stuck = still
                self.connection.drop(Ended("a queue that did not answer does so again"))

        if queues.stuck:
            self.connection.perform(
                declare(self.connection, queues.site, set(queues.stuck), stuck=still),
                declared,
                lambda refused: log.info(
                    "transport.still_not_declared",
                    "site %(site)s: declaring: %(reason)s",
                    site=queues.site.name,
                    reason=str(refused),
                ),
                self._patience,
            )

    def _qos(self) -> Request:
        prefetch = max(1, self._queues.site.prefetch // max(1, len(self._queues.bindings)))
        return lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done)

    def _consume(
        self,
        queue: str,
        on_message: Callable[..., None],
        *,
        auto_ack: bool,
        arguments: dict[str, str] | None = None,
    ) -> Request:
        return lambda done: self._channel.basic_consume(
            queue, on_message, auto_ack=auto_ack, arguments=arguments, callback=done
        )

    def _on_ready(self, holder: str | None) -> None:
        if holder is not None:
            self._gate.events.busy(holder)
            self.connection.close(GOODBYE_SECONDS, Ended(holder, reported=True))
            return
        self.connection.established()
        self.control.open(lambda: self._control_connection.open(self._on_open))

    def _on_open(self) -> None:
        self._gate.connected(self._endpoint, self._existed)
        self._pass_on()
        self._check()
        self.connection.later(self._stuck_wait, self._retry_stuck)

    def _on_set_up_failed(self, refused: Refused) -> None:
        self.connection.drop(Ended(f"the broker refused: {refused}"))

    def _on_message(self, queue: str, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        tag = method.delivery_tag
        if properties.headers and STREAM_OFFSET in properties.headers and queue not in self._queues.streams:
            self._queues.streams.add(queue)
            self.connection.drop(Ended(f"queue {queue} is a stream: it is to be read from its start"))
            return
        damaged = getattr(properties, "damaged", None)
        headers, unread = readable_headers(properties.headers) if properties.headers else ({}, None)
        if method.routing_key != self._routing_key:
            self._routing_key, self._address = method.routing_key, text(method.routing_key)
        content_type = properties.content_type
        self._order.append(tag)
        self._held.add(tag)
        self._arrived.append(
            Delivery(
                token=(self._generation, tag),
                address=self._address,
                body=body,
                content_type=content_type if isinstance(content_type, str) else None,
                headers=headers,
                redelivered=bool(method.redelivered),
                damaged=damaged or unread,
            )
        )

    def on_input(self) -> None:
        """Part of :class:`InputListener`."""
        # Before `up`, the first queues may deliver while the last ones are not consumed yet.
        if self._gate.up:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self._delivered_at = time.monotonic()
            self._empty_since = None
            self._gate.events.received(arrived)

    def _on_acks(self) -> None:
        """Send the acknowledgements that are due: up to a gap with one frame, the others one by one."""
        self._waking = False
        due: set[int] = set()
        while self._acks:
            due.add(self._acks.popleft())
        # A tag acknowledged twice would make the broker close the channel.
        due &= self._held
        if not due or not self.connection.alive:
            return
        self._held -= due
        last = None
        while self._order and self._order[0] not in self._held:
            tag = self._order.popleft()
            if tag in due:
                due.discard(tag)
                last = tag
        number = self._channel.channel_number
        frames = [] if last is None else [ack_frame(number, last, multiple=True)]
        frames += [ack_frame(number, tag, multiple=False) for tag in sorted(due)]
        self.connection.write(b"".join(frames))

    def _check(self) -> None:
        """Ask whether the queues are empty, when nothing was delivered for a while; called periodically."""
        now = time.monotonic()
        if self._empty_since is None:
            due = now - self._delivered_at >= IDLE_SECONDS
        else:
            due = now - self._empty_since >= CHECK_AGAIN_SECONDS
        if due or now - self._checked_at >= CHECK_AGAIN_SECONDS:
            self._checked_at = now
            self.connection.perform(self._count(), self._on_counted, self._on_not_counted)
        else:
            self.connection.later(IDLE_SECONDS, self._check)

    def _count(self) -> Script[int]:
        """Count the messages that wait. Bindings and exchange are declared again first: the only sign of their deletion
        is that nothing arrives any more, and producers need not know this group."""
        yield from declare(self.connection, self._queues.site, self._readable)
        streams = self._queues.streams  # their length does not say what is still to be delivered
        counted = [b for b in self._readable if group_queue(b.topic, b.partition, b.group) not in streams]
        return (yield from ready_count(self.connection, counted))

    def _on_counted(self, waiting: int) -> None:
        # The count came on another channel than deliveries: an answer on their channel follows all that were in
        # flight when the queues were counted.
        self._qos()(lambda _: self._on_caught_up(waiting))

    def _on_caught_up(self, waiting: int) -> None:
        """Everything that the broker had sent when `waiting` messages were left has arrived."""
        self.connection.later(IDLE_SECONDS, self._check)
        self._pass_on()
        if waiting == 0:
            self._ignored = 0
            self._empty_since = time.monotonic()
            if not (self._queues.stuck or self._queues.streams):
                self._gate.events.drained()
        elif self._held or self._delivered_at >= self._checked_at:
            self._ignored = 0
        else:
            # A quorum queue that is deleted and created again at once can keep a consumer and deliver nothing.
            self._ignored += 1
            if self._ignored == IGNORED_CHECKS:
                self.connection.drop(Ended("messages wait, and the broker does not deliver them"))

    def _on_not_counted(self, refused: Refused) -> None:
        log.info(
            "transport.queues_not_counted", "site %(site)s: queues could not be counted: %(reason)s",
            site=self._queues.site.name, reason=str(refused),
        )  # fmt: skip
        self.connection.later(IDLE_SECONDS, self._check)


def _ignore(*_: object) -> None:
    return None
