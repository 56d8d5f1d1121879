"""QoS 1 as MQTT 3.1.1 wants it, for the embedded broker.

amqtt 0.12 confirms a message before it has handed it on, forgets what a client has not acknowledged within 5
seconds or when it disconnects, sends everything at once, and flags what waited for a client as retained. A run
should lose messages to the faults that it asks for, and to nothing else. So QoS 1 goes another way here: a
message is in the mailbox of every subscribed session before it is confirmed, at most 20 of a mailbox (as with
Mosquitto) are unacknowledged at a time, and the client's acknowledgement alone removes one.

All of it lives in memory, and in the one event loop of the broker.
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

__all__ = ["KeepingBroker", "in_flight", "waiting"]

_WINDOW = 20
_QOS_1 = 1
_MAILBOX = "reliamsg.mailbox"


def _mailbox(session: Session) -> deque[tuple[str, bytes]]:
    found: deque[tuple[str, bytes]] = session.attributes.setdefault(_MAILBOX, deque())
    return found


def waiting(session: Session) -> int:
    """How many QoS 1 messages wait for a session and have not been sent."""
    return len(_mailbox(session)) + int(session.retained_messages_count)


def in_flight(session: Session) -> int:
    """How many messages were sent to a session and are not acknowledged."""
    return int(session.inflight_out_count)


class KeepingHandler(BrokerProtocolHandler):  # type: ignore[misc]
    """One client's connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = False
        self._feeder: asyncio.Future[None] | None = None

    async def stop(self) -> None:
        self._started = False
        await super().stop()

    async def handle_publish(self, publish_packet: PublishPacket) -> None:
        """Hand a QoS 1 message on, and then confirm it."""
        topic, data = publish_packet.topic_name, publish_packet.data
        if publish_packet.qos != _QOS_1 or publish_packet.retain_flag or not topic or data is None:
            await super().handle_publish(publish_packet)
            return
        broker = self.plugins_manager.context._broker_instance
        broker.deliver(topic, bytes(data))
        await self._send_packet(PubackPacket.build(publish_packet.variable_header.packet_id))

    async def handle_puback(self, puback: PubackPacket) -> None:
        """Remove what the client has acknowledged, and send what waits."""
        if self.session is not None:
            self.session.inflight_out.pop(puback.variable_header.packet_id, None)
            self.feed()

    async def _retry_deliveries(self) -> None:
        """A session continues: first what was sent and not acknowledged, in order, then what waits."""
        if self.session is None:
            return
        for message in list(self.session.inflight_out.values()):
            await self._send_packet(message.build_publish_packet(dup=True))
        self._started = True
        self.feed()

    def feed(self) -> None:
        """Send what waits, as far as the window goes; in a task of its own, which no other client's end
        cancels."""
        if self._started and (self._feeder is None or self._feeder.done()):
            self._feeder = asyncio.ensure_future(self._feed())

    async def _feed(self) -> None:
        session = self.session
        if session is None:
            return
        mailbox = _mailbox(session)
        while mailbox and self._started and len(session.inflight_out) < _WINDOW:
            number = session.next_packet_id
            topic, data = mailbox.popleft()
            message = OutgoingApplicationMessage(number, topic, _QOS_1, data, False)
            session.inflight_out[number] = message
            await self._send_packet(message.build_publish_packet())


class KeepingBroker(Broker):  # type: ignore[misc]
    """amqtt's broker, whose sessions keep QoS 1 messages until they are acknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # amqtt makes its handlers from this name; there is no other way to give it ours.
        amqtt.broker.BrokerProtocolHandler = KeepingHandler
        super().__init__(*args, **kwargs)

    def deliver(self, topic: str, data: bytes) -> None:
        """Put a message into the mailbox of each session that subscribes to it with QoS 1 or 2, once."""
        reached: set[int] = set()
        for pattern, subscriptions in self._subscriptions.items():
            if not self._matches(topic, pattern):
                continue
            for session, qos in subscriptions:
                connected = session.transitions.state == "connected"
                if not qos or id(session) in reached or not (connected or not session.clean_session):
                    continue
                reached.add(id(session))
                _mailbox(session).append((topic, data))
                handler = self._get_handler(session)
                if connected and isinstance(handler, KeepingHandler):
                    handler.feed()
