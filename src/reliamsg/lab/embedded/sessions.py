"""QoS 1 as MQTT 3.1.1 requires it, for the embedded broker.

amqtt 0.12 confirms a message before it has queued it, drops messages that a client has not acknowledged within 5
seconds or when it disconnects, sends everything at once, and flags queued messages as retained. A run should lose
messages only to the faults that it injects. So QoS 1 is handled differently here: a message is in the queue of every
subscribed session before it is confirmed, at most 20 messages per session (as with Mosquitto) are unacknowledged at a
time, and only the client's acknowledgement removes one.

Everything is in memory, and used only in the broker's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import amqtt.broker  # type: ignore[import-untyped]
from amqtt.broker import Broker
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler  # type: ignore[import-untyped]
from amqtt.mqtt.puback import PubackPacket  # type: ignore[import-untyped]
from amqtt.mqtt.publish import PublishPacket  # type: ignore[import-untyped]
from amqtt.session import OutgoingApplicationMessage, Session  # type: ignore[import-untyped]

__all__ = ["QueueingBroker", "in_flight", "queued"]

_WINDOW = 20
_QOS_1 = 1
_QUEUE = "reliamsg.queue"


def _queue(session: Session) -> deque[tuple[str, bytes]]:
    found: deque[tuple[str, bytes]] = session.attributes.setdefault(_QUEUE, deque())
    return found


def queued(session: Session) -> int:
    """The number of QoS 1 messages of a session that have not been sent."""
    return len(_queue(session)) + int(session.retained_messages_count)


def in_flight(session: Session) -> int:
    """The number of messages that were sent to a session and are not acknowledged."""
    return int(session.inflight_out_count)


class QueueingHandler(BrokerProtocolHandler):  # type: ignore[misc]
    """One client's connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = False
        self._feeder: asyncio.Future[None] | None = None

    async def stop(self) -> None:
        self._started = False
        await super().stop()

    async def handle_publish(self, publish_packet: PublishPacket) -> None:
        """Queue a QoS 1 message, and then confirm it."""
        topic, data = publish_packet.topic_name, publish_packet.data
        if publish_packet.qos != _QOS_1 or publish_packet.retain_flag or not topic or data is None:
            await super().handle_publish(publish_packet)
            return
        broker = self.plugins_manager.context._broker_instance
        broker.deliver(topic, bytes(data))
        await self._send_packet(PubackPacket.build(publish_packet.variable_header.packet_id))

    async def handle_puback(self, puback: PubackPacket) -> None:
        """Remove the acknowledged message, and send queued ones."""
        if self.session is not None:
            self.session.inflight_out.pop(puback.variable_header.packet_id, None)
            self.feed()

    async def _retry_deliveries(self) -> None:
        """Resume a session: send unacknowledged messages again, in order, and then queued ones."""
        if self.session is None:
            return
        for message in list(self.session.inflight_out.values()):
            await self._send_packet(message.build_publish_packet(dup=True))
        self._started = True
        self.feed()

    def feed(self) -> None:
        """Send queued messages, up to the window, in a separate task that is not cancelled with another client."""
        if self._started and (self._feeder is None or self._feeder.done()):
            self._feeder = asyncio.ensure_future(self._feed())

    async def _feed(self) -> None:
        session = self.session
        if session is None:
            return
        queue = _queue(session)
        while queue and self._started and len(session.inflight_out) < _WINDOW:
            number = session.next_packet_id
            topic, data = queue.popleft()
            message = OutgoingApplicationMessage(number, topic, _QOS_1, data, False)
            session.inflight_out[number] = message
            await self._send_packet(message.build_publish_packet())


class QueueingBroker(Broker):  # type: ignore[misc]
    """amqtt's broker, with sessions that keep QoS 1 messages until they are acknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # amqtt creates its handlers by this name; there is no other way to replace them.
        amqtt.broker.BrokerProtocolHandler = QueueingHandler
        super().__init__(*args, **kwargs)

    def deliver(self, topic: str, data: bytes) -> None:
        """Queue a message for each session that subscribes to it with QoS 1 or 2, once."""
        reached: set[int] = set()
        for pattern, subscriptions in self._subscriptions.items():
            if not self._matches(topic, pattern):
                continue
            for session, qos in subscriptions:
                connected = session.transitions.state == "connected"
                if not qos or id(session) in reached or not (connected or not session.clean_session):
                    continue
                reached.add(id(session))
                _queue(session).append((topic, data))
                handler = self._get_handler(session)
                if connected and isinstance(handler, QueueingHandler):
                    handler.feed()
