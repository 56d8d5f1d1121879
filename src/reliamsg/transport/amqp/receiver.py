"""Reading the queues of a group at an AMQP site."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from reliamsg.config import Site
from reliamsg.transport.amqp.codec import ack_frame, readable_headers, text
from reliamsg.transport.amqp.connection import Link
from reliamsg.transport.amqp.control import ControlChannel
from reliamsg.transport.amqp.control_connection import Teller
from reliamsg.transport.amqp.session import AmqpSession
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
from reliamsg.transport.session import Ended
from reliamsg.wire.address import group_queue

__all__ = ["AmqpReceiver"]

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""After so long without a delivery the queues are asked whether they are empty."""

LOOK_AGAIN_SECONDS = 30.0
"""Queues are asked again so often, when they were seen empty or something arrives all the time."""

IGNORED_LOOKS = 2
"""A broker that holds messages and delivers none at so many looks gets a new connection."""

_generations = itertools.count(1)

STREAM_OFFSET = "x-stream-offset"
FROM_THE_START = {STREAM_OFFSET: "first"}
"""A stream forgets nothing that is acknowledged, and keeps no place for whoever reads it: what was read before comes
again on each connection, and is found to be a duplicate. Other queues refuse the argument."""


class AmqpReceiver(AmqpSession[ReceiverEvents, "_Flow"]):
    """A :class:`~reliamsg.transport.base.ReceiverTransport` for one group at one AMQP site.

    All bindings are of one group. ``Site.prefetch`` is divided among its queues, at least one each: quorum
    queues know a limit per consumer only.
    """

    def __init__(self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents) -> None:
        self.bindings = tuple(dict.fromkeys(bindings))
        group = self.bindings[0].group if self.bindings else ""
        super().__init__(site, events, f"reliamsg-receive-{site.name}", f"reliamsg group {group}")
        self.stuck: set[Binding] = set()
        """Those about whose queues the broker does not answer, as :attr:`AmqpSender.stuck`. What they hold, producers
        may send again."""

        self.streams: set[str] = set()
        """Queues that are streams, as the broker said when they were declared, or with their first delivery."""

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """Let the broker forget these deliveries; those of an earlier connection are ignored. Any thread."""
        flow = self.flow
        if flow is not None:
            flow.acknowledge(cast("Sequence[tuple[int, int]]", tokens))

    def renew(self, topic: str, partition: int) -> None:
        """Bind the group's queue once more. Any thread."""
        flow = self.flow
        if flow is not None:
            bindings = [b for b in self.bindings if (b.topic, b.partition) == (topic, partition)]
            flow.link.call(lambda: flow.renew(bindings))

    def make_flow(self, link: Link, endpoint: str) -> _Flow:
        """Part of :class:`~reliamsg.transport.amqp.session.AmqpSession`."""
        return _Flow(self, link, endpoint)


class _Flow:
    """What one connection has delivered. I/O thread only, except :meth:`acknowledge`."""

    def __init__(self, receiver: AmqpReceiver, link: Link, endpoint: str) -> None:
        self.link = link
        self._teller = Teller(link, receiver)
        self.control = ControlChannel(link, receiver, tells=False, probe=self._teller.probe)
        self.tell = self._teller.tell
        self._receiver = receiver
        self._endpoint = endpoint
        self._generation = next(_generations)
        self._channel: Any = None
        self._arrived: list[Delivery] = []
        self._order: deque[int] = deque()
        """Delivery tags from the oldest that is unacknowledged on."""
        self._held: set[int] = set()
        """Those of them that are unacknowledged."""
        self._acks: deque[int] = deque()
        self._waking = False
        self._existed: bool | None = None
        self._stuck_wait = STUCK_SECONDS[0]
        self._readable: list[Binding] = []
        """Without those about which the broker does not answer."""
        self._delivered_at = float("-inf")
        self._empty_since: float | None = None
        """When the queues were last seen empty with nothing delivered since."""
        self._looked_at = time.monotonic()
        self._ignored = 0
        """How often, one after the other, messages waited and none of them came."""
        link.on_input = self._on_input

    def open(self) -> None:
        """The connection stands: open the channel, take the locks, declare, consume."""
        self.link.open_channel(self._on_channel, self._on_channel_closed)

    def close(self) -> None:
        """Acknowledge what was asked for, write what was told, then say goodbye."""
        self._on_acks()
        grace = self._receiver.grace / 2
        self._teller.close(grace, lambda: self.link.close(grace))

    def acknowledge(self, tokens: Sequence[tuple[int, int]]) -> None:
        self._acks.extend([tag for generation, tag in tokens if generation == self._generation])
        if not self._waking:
            self._waking = True
            self.link.call(self._on_acks)

    def renew(self, bindings: Sequence[Binding]) -> None:
        if not self._receiver.up or not self.link.alive:
            return
        self.link.perform(
            renew(self.link, self._receiver.site, bindings),
            lambda _: None,
            lambda refused: log.info("site %s: binding: %s", self._receiver.site.name, refused),
        )

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_cancel_callback(
            lambda _: self.link.drop(Ended("the broker cancelled the consumer: a queue is gone"))
        )
        self.link.perform(self._set_up(), self._on_ready, self._on_set_up_failed, self._patience)

    def _on_channel_closed(self, _code: int, reason: str) -> None:
        if STREAM_OFFSET in reason:
            for queue in [queue for queue in self._receiver.streams if f"'{queue}'" in reason]:
                self._receiver.streams.discard(queue)  # it was made anew

    def _set_up(self) -> Script[str | None]:
        """Returns who holds the group, if somebody does."""
        link, receiver = self.link, self._receiver
        try:
            locks = yield from take_locks(link, receiver.bindings)
        except Busy as busy:
            return str(busy)
        before = set(receiver.stuck)
        existed = yield from declare(
            link,
            receiver.site,
            receiver.bindings,
            look_first=True,
            stuck=receiver.stuck,
            streams=receiver.streams,
        )
        for binding in receiver.stuck - before:
            log.warning(STUCK, receiver.site.name, binding.topic, binding.group)
        self._existed = None if receiver.stuck else existed
        self._readable = [b for b in receiver.bindings if b not in receiver.stuck]
        queues = [group_queue(b.topic, b.partition, b.group) for b in self._readable]
        yield self._qos()
        for queue in queues:
            arguments = FROM_THE_START if queue in receiver.streams else None
            yield self._consume(queue, partial(self._on_message, queue), auto_ack=False, arguments=arguments)
        for lock in locks:
            # Nobody publishes there; consuming is how a lock's deletion is noticed.
            yield self._consume(lock, _ignore, auto_ack=True)
        return None

    @property
    def _patience(self) -> float:
        """How long the broker may take to answer about one queue, so that there is time for others."""
        return self._receiver.site.connect_timeout / 2

    def _retry_stuck(self) -> None:
        """See whether the broker answers about what was left out; a new connection then reads it."""
        self._stuck_wait = min(2 * self._stuck_wait, STUCK_SECONDS[1])
        self.link.later(self._stuck_wait, self._retry_stuck)
        receiver, still = self._receiver, set[Binding]()

        def declared(_: object) -> None:
            if still != receiver.stuck:
                receiver.stuck = still
                self.link.drop(Ended("a queue that did not answer does so again"))

        if receiver.stuck:
            self.link.perform(
                declare(self.link, receiver.site, set(receiver.stuck), stuck=still),
                declared,
                lambda refused: log.info("site %s: declaring: %s", receiver.site.name, refused),
                self._patience,
            )

    def _qos(self) -> Request:
        prefetch = max(1, self._receiver.site.prefetch // max(1, len(self._receiver.bindings)))
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
        receiver = self._receiver
        if holder is not None:
            receiver.events.busy(holder)
            self.link.close(receiver.grace, Ended(holder, reported=True))
            return
        self.link.established()
        self.control.open(lambda: self._teller.open(self._on_open))

    def _on_open(self) -> None:
        receiver = self._receiver
        receiver.up = True
        receiver.events.connected(self._endpoint, self._existed)
        self._tell()
        self._look()
        self.link.later(self._stuck_wait, self._retry_stuck)

    def _on_set_up_failed(self, refused: Refused) -> None:
        self.link.drop(Ended(f"the broker refused: {refused}"))

    def _on_message(self, queue: str, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        tag = method.delivery_tag
        if properties.headers and STREAM_OFFSET in properties.headers and queue not in self._receiver.streams:
            self._receiver.streams.add(queue)
            self.link.drop(Ended(f"queue {queue} is a stream: it is to be read from its start"))
            return
        damaged = getattr(properties, "damaged", None)
        headers, unread = readable_headers(properties.headers)
        content_type = properties.content_type
        self._order.append(tag)
        self._held.add(tag)
        self._arrived.append(
            Delivery(
                token=(self._generation, tag),
                address=text(method.routing_key),
                body=body,
                content_type=content_type if isinstance(content_type, str) else None,
                headers=headers,
                redelivered=bool(method.redelivered),
                damaged=damaged or unread,
            )
        )

    def _on_input(self) -> None:
        # Before `up` deliveries of the first queues may come while the last ones are not consumed yet.
        if self._receiver.up:
            self._tell()

    def _tell(self) -> None:
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self._delivered_at = time.monotonic()
            self._empty_since = None
            self._receiver.events.received(arrived)

    def _on_acks(self) -> None:
        """Acknowledge what was asked for: the oldest without a hole in one go, the others one by one."""
        self._waking = False
        asked: set[int] = set()
        while self._acks:
            asked.add(self._acks.popleft())
        # A tag acknowledged twice would make the broker close the channel.
        asked &= self._held
        if not asked or not self.link.alive:
            return
        self._held -= asked
        last = None
        while self._order and self._order[0] not in self._held:
            tag = self._order.popleft()
            if tag in asked:
                asked.discard(tag)
                last = tag
        number = self._channel.channel_number
        frames = [] if last is None else [ack_frame(number, last, multiple=True)]
        frames += [ack_frame(number, tag, multiple=False) for tag in sorted(asked)]
        self.link.write(b"".join(frames))

    def _look(self) -> None:
        """Ask whether the queues are empty, when nothing came for a while; called again and again."""
        now = time.monotonic()
        if self._empty_since is None:
            due = now - self._delivered_at >= IDLE_SECONDS
        else:
            due = now - self._empty_since >= LOOK_AGAIN_SECONDS
        if due or now - self._looked_at >= LOOK_AGAIN_SECONDS:
            self._looked_at = now
            self.link.perform(self._count(), self._on_counted, self._on_not_counted)
        else:
            self.link.later(IDLE_SECONDS, self._look)

    def _count(self) -> Script[int]:
        """Count what waits. Bindings and exchange are declared anew before that: that they were taken away shows
        nowhere but in that nothing comes any more, and producers need not know this group."""
        yield from declare(self.link, self._receiver.site, self._readable)
        streams = self._receiver.streams  # what they hold says nothing of what still comes
        counted = [b for b in self._readable if group_queue(b.topic, b.partition, b.group) not in streams]
        return (yield from ready_count(self.link, counted))

    def _on_counted(self, waiting: int) -> None:
        # The count came on another channel than deliveries: an answer on theirs comes after those that were on
        # their way when the queues were counted.
        self._qos()(lambda _: self._on_told(waiting))

    def _on_told(self, waiting: int) -> None:
        """Everything that the broker had sent when `waiting` messages were left has arrived."""
        self.link.later(IDLE_SECONDS, self._look)
        self._tell()
        if waiting == 0:
            self._ignored = 0
            self._empty_since = time.monotonic()
            if not (self._receiver.stuck or self._receiver.streams):
                self._receiver.events.drained()
        elif self._held or self._delivered_at >= self._looked_at:
            self._ignored = 0
        else:
            # A quorum queue that is deleted and made anew at once can keep a consumer and send it nothing.
            self._ignored += 1
            if self._ignored == IGNORED_LOOKS:
                self.link.drop(Ended("messages wait, and the broker does not deliver them"))

    def _on_not_counted(self, refused: Refused) -> None:
        log.info("site %s: queues could not be counted: %s", self._receiver.site.name, refused)
        self.link.later(IDLE_SECONDS, self._look)


def _ignore(*_: object) -> None:
    return None
