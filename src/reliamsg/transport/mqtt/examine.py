"""Finding out what an MQTT site offers and permits, without touching the session of any client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from reliamsg.config import Endpoint, Site
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.groups import turn_until
from reliamsg.transport.mqtt.paho_client import ConnAck
from reliamsg.transport.network import Waker
from reliamsg.transport.session import Ended
from reliamsg.wire.address import unused_proof_address

__all__ = ["MqttExamined", "examine"]


@dataclass
class MqttExamined:
    """The answers of a site."""

    version: str
    connack: ConnAck
    refused: dict[str, str] = field(default_factory=dict)
    """Control addresses to which subscriptions are refused, with reasons."""
    unanswered: list[str] = field(default_factory=list)
    """Control addresses to whose subscription there was no answer."""
    proof_answered: bool = False
    proof_refused: str | None = None
    """Why publishing to an address under ``reliamsg:proof:/`` is refused."""
    reports_subscribers: bool = False
    """Whether the broker says when a message has no subscriber."""


def examine(site: Site, endpoint: Endpoint, deadline: float, listens: Sequence[str]) -> MqttExamined | Ended:
    """Connect to one endpoint and ask; the reason if that was not possible by the deadline (``time.monotonic()``).

    Connects under a client id of its own, asks for a session that never expires, which shows the broker's limit, and
    ends that session with a second connection. Subscribes to control addresses only, and publishes one empty message,
    to an address that nobody has.
    """
    waker = Waker()
    try:
        name = f"reliamsg-p:doctor:{secrets.token_hex(4)}"
        connector = Connector(site, name, waker, lambda: False, prefetch=site.prefetch)
        connection = connector.open(endpoint, site.login(), deadline)
        if isinstance(connection, Ended):
            return connection
        try:
            found = _ask(connection, deadline, listens)
            connection.disconnect(deadline)
        finally:
            connection.close()
            # Even if the time is up: the session must not stay.
            last = connector.without_session(name).open(endpoint, site.login(), time.monotonic() + 5.0)
            if isinstance(last, MqttConnection):
                last.disconnect(time.monotonic() + 1.0)
                last.close()
        return found
    finally:
        waker.close()


def _ask(connection: MqttConnection, deadline: float, listens: Sequence[str]) -> MqttExamined:
    assert connection.connack is not None
    found = MqttExamined(connection.version, connection.connack)
    connection.listen(listens)
    turn_until(connection, deadline, lambda: not connection.listening_unanswered)
    found.refused = connection.take_listening_refused()
    found.unanswered = connection.listening_unanswered
    mid = connection.publish(unused_proof_address(), b"", b"\0")

    def answered() -> bool:
        for puback in connection.take_pubacks():
            if puback.mid == mid:
                found.proof_answered = True
                found.proof_refused, found.reports_subscribers = puback.refusal, puback.unmatched
        return found.proof_answered

    turn_until(connection, deadline, answered)
    return found
