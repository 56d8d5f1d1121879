"""Getting an MQTT broker to accept a connection, in a version that it speaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.paho_client import Version
from reliamsg.transport.network import DialError, Waker, dial
from reliamsg.transport.session import Ended

__all__ = ["Connector"]

_SILENCE = 2.0
"""Seconds without an answer after which an endpoint is asked which MQTT version it speaks."""

_CREDENTIAL_REASONS = frozenset((0x86, 0x87, 0x8C))
"""Bad user name or password, not authorized, bad authentication method."""
_UNSUPPORTED_VERSION = 0x84


class _Result(Enum):
    """The result of an attempt to connect."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    WRONG_VERSION = "wrong version"
    """The broker said that it does not speak this MQTT version."""
    DROPPED = "dropped"
    """The broker closed the connection without an answer to CONNECT."""
    SILENT = "silent"
    """No answer to CONNECT came in time."""
    UNREACHABLE = "unreachable"
    """No CONNECT could be sent."""


class Connector:
    """Opens connections to one site.

    With ``mqtt_version="auto"`` MQTT 5 is tried first, and the version of each endpoint is remembered:

    - One that refuses MQTT 5 is asked for 3.1.1 at once, and from then on.
    - One that closes the connection without an answer is tried with 3.1.1 at once, unless it is known to speak
      5, and with 5 again the next time: it may have been a broker that was shutting down.
    - One that does not answer may have parsed the CONNECT as a 3.1.1 one (amqtt waits for a client id as long as
      the properties seem to say). It is asked again with a CONNECT that reads the same in both versions,
      anonymous and without properties, only to learn which version it speaks.
    """

    def __init__(
        self, site: Site, name: str, waker: Waker, stopping: Callable[[], bool], *, prefetch: int | None
    ) -> None:
        self._site = site
        self._name = name
        self._waker = waker
        self._stopping = stopping
        self._prefetch = prefetch
        self._persistent = prefetch is not None
        self._known: dict[Endpoint, Version] = {}
        self.turned_away: bool = False
        """Whether the broker was reached in the last attempt and did not accept, for another reason than the login."""

    def without_session(self, name: str) -> Connector:
        """A connector under another name, with a session that ends with each connection."""
        other = Connector(self._site, name, self._waker, self._stopping, prefetch=self._prefetch)
        other._persistent = False
        other._known = self._known
        return other

    def beside(self, name: str, waker: Waker, stopping: Callable[[], bool]) -> Connector:
        """A connector for another thread, whose connections only publish."""
        other = Connector(self._site, name, waker, stopping, prefetch=None)
        other._known = self._known
        return other

    def open(self, endpoint: Endpoint, login: Credentials | None, deadline: float) -> MqttConnection | Ended:
        """Connect and wait for CONNACK; the caller closes the connection."""
        asked = self._site.mqtt_version
        known = self._known.get(endpoint) if asked == "auto" else asked
        if known is not None:
            result, connection = self._open(endpoint, login, deadline, known)
            if result is _Result.WRONG_VERSION:
                self._known.pop(endpoint, None)
            return connection
        now = time.monotonic()
        patience = now + min(_SILENCE, (deadline - now) / 2)
        result, first = self._open(endpoint, login, deadline, "5", patience)
        if result is _Result.SILENT:
            return self._after_silence(first, endpoint, login, deadline)
        if result in (_Result.ACCEPTED, _Result.REFUSED):
            self._known[endpoint] = "5"
        if result is _Result.WRONG_VERSION:
            self._known[endpoint] = "3.1.1"
        if result in (_Result.WRONG_VERSION, _Result.DROPPED):
            second_result, second = self._open(endpoint, login, deadline, "3.1.1")
            # A broker that is down drops both; then the first reason is as good.
            return first if second_result is _Result.DROPPED and result is _Result.DROPPED else second
        return first

    def _after_silence(
        self, first: MqttConnection | Ended, endpoint: Endpoint, login: Credentials | None, deadline: float
    ) -> MqttConnection | Ended:
        result, probe = self._open(endpoint, None, deadline, "5", bare=True)
        if isinstance(probe, MqttConnection):
            probe.close()
        if result in (_Result.ACCEPTED, _Result.REFUSED):
            # It is slow, then. The next attempt has the whole time.
            self._known[endpoint] = "5"
        if result is not _Result.WRONG_VERSION:
            return first
        self._known[endpoint] = "3.1.1"
        return self._open(endpoint, login, deadline, "3.1.1")[1]

    def _open(
        self,
        endpoint: Endpoint,
        login: Credentials | None,
        deadline: float,
        version: Version,
        patience: float | None = None,
        bare: bool = False,
    ) -> tuple[_Result, MqttConnection | Ended]:
        """One attempt, of which TCP and TLS may take until `deadline`, and CONNACK until `patience`."""
        self.turned_away = False
        try:
            sock = dial(endpoint, self._site.tls_context(), deadline, self._waker, self._stopping)
        except DialError as error:
            return _Result.UNREACHABLE, Ended(str(error))
        connection = MqttConnection(
            sock,
            self._waker,
            "" if bare else self._name,
            version,
            keepalive=self._site.heartbeat,
            prefetch=None if bare else self._prefetch,
            persistent=self._persistent and not bare,
        )
        accepted = False
        try:
            connection.connect(endpoint, login)
            result, ended = self._await_connack(connection, deadline if patience is None else patience)
            accepted = ended is None
            self.turned_away = (
                result in (_Result.REFUSED, _Result.DROPPED) and ended is not None and not ended.credentials
            )
        finally:
            if not accepted:
                connection.close()
        return result, connection if ended is None else ended

    def _await_connack(self, connection: MqttConnection, deadline: float) -> tuple[_Result, Ended | None]:
        while connection.connack is None:
            left = deadline - time.monotonic()
            if self._stopping():
                return _Result.UNREACHABLE, Ended("closed")
            if left <= 0:
                return _Result.SILENT, Ended("the broker did not answer the MQTT CONNECT in time")
            if not connection.turn(left) and connection.connack is None:
                return _Result.DROPPED, Ended(
                    f"while connecting with MQTT {connection.version}: {connection.reason}"
                )
        connack = connection.connack
        if connack.code >= 0x80:
            wrong = connack.code == _UNSUPPORTED_VERSION
            ended = Ended(f"the broker refuses: {connack.reason}", connack.code in _CREDENTIAL_REASONS)
            return _Result.WRONG_VERSION if wrong else _Result.REFUSED, ended
        if connack.maximum_qos < 1:
            return _Result.REFUSED, Ended("the broker offers only QoS 0, which loses messages")
        return _Result.ACCEPTED, None
