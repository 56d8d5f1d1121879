"""The port between the protocol and brokers: what every transport offers and requires.

A transport is one site in one direction: a :class:`SenderTransport` publishes, a :class:`ReceiverTransport`
reads for a group. Each keeps one connection on an I/O thread of its own, tries the site's endpoints in turn
indefinitely, and reports to its :class:`SenderEvents` or :class:`ReceiverEvents`. It knows brokers, not the
protocol: it never resends, deduplicates or reorders messages, since that is decided above it.

Both kinds also send and receive control frames. A control frame reaches the clients that listen at its
address at that time, and is not stored for others.

Threads: events are called on the transport's I/O thread, one at a time, and must not block. Methods of a
transport may be called from any thread, also from events, and do not block either, except ``close()``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import msgspec

from reliamsg.config import Site
from reliamsg.errors import ConfigError

__all__ = [
    "CONTROL_BACKLOG_BYTES", "Binding", "ControlEvents", "ControlTransport", "Delivery", "Evidence", "Mark",
    "Outcome", "Outgoing", "ReceiverEvents", "ReceiverTransport", "SenderEvents", "SenderTransport", "Token",
    "Transports", "is_refusal",
]  # fmt: skip

CONTROL_BACKLOG_BYTES = 1024 * 1024
"""While this much waits to be written, no more is accepted. The last frame may exceed it."""


_REFUSAL = re.compile(r"the broker (refuses:|closed the connection: (402|403|530) )")


def is_refusal(reason: str) -> bool:
    """Whether an attempt to connect failed because the broker was reached and refused the login, the virtual host or
    the protocol. `reason` is the reason that transports pass to ``unreachable``."""
    return _REFUSAL.match(reason) is not None


class Outcome(Enum):
    """How a site refused a batch."""

    NACKED = "nacked"
    """AMQP ``basic.nack``."""
    RETURNED = "returned"
    """AMQP: unroutable and therefore in no queue, although the broker confirms it afterwards."""
    REFUSED = "refused"
    """MQTT: a PUBACK with a failing reason code; AMQP: a message over the broker's size limit; both: one over
    ``Site.max_frame_bytes``."""


class Evidence(Enum):
    """What an MQTT broker shows of a named group; see rules P15 and P16."""

    SUBSCRIBED = "subscribed"
    """Its proof address has a subscriber, according to a broker that reports where there is none."""
    NOT_SUBSCRIBED = "not subscribed"
    """Its proof address has no subscriber, according to such a broker."""
    NOT_MARKED = "not marked"
    """The broker does not report subscribers, and has no mark of the group."""


Mark = bytes
"""The broker does not report subscribers, and has this as the group's mark. Not verified."""


class Outgoing(msgspec.Struct, frozen=True):
    """One broker message to publish."""

    token: int
    """Chosen by the caller, unique within the connection; passed to ``confirmed`` or ``refused``. All messages
    of one batch carry the batch's token, which is reported once: confirmed when all of them are, refused when
    one of them is."""
    topic: str
    partition: int
    body: bytes
    content_type: str | None
    """``application/vnd.reliamsg.batch`` for a data frame; for the plain form that of the application, or None."""
    headers: Mapping[str, str] | None
    """The plain form's identity and the application's headers; None for a data frame."""
    message_id: str
    timestamp_us: int
    parts_left: int = 0
    """How many more messages of the same token directly follow this one."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A group that a producer names or a consumer reads for, at one topic and partition."""

    topic: str
    partition: int
    group: str


Token = object
"""Identifies one delivery to the transport that made it."""


class Delivery(msgspec.Struct, frozen=True):
    """One broker message that arrived."""

    token: Token
    """For ``acknowledge()``, which ignores tokens of earlier connections."""
    address: str
    """AMQP: the routing key; MQTT: the topic. As received, not checked."""
    body: bytes
    content_type: str | None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """AMQP headers or MQTT 5 user properties whose values are strings; others are omitted."""
    redelivered: bool = False
    """The broker's own flag (AMQP ``redelivered``, MQTT DUP)."""
    retained: bool = False
    """MQTT: flagged as retained. We never publish retained messages, but some brokers flag what was queued for an
    offline session."""
    damaged: str | None = None
    """Why the transport could not read the message's headers, if it could not. The body is as received."""


class ControlEvents(Protocol):
    """Reports control frames, for both kinds of transport."""

    def control_received(self, address: str, body: bytes) -> None:
        """A control frame arrived for one of the addresses last passed to ``listen()``; own frames arrive too.
        Not checked in any way, except to be at most :data:`reliamsg.wire.limits.MAX_FRAME_BYTES` long. Only
        called between ``connected`` and ``disconnected``."""

    def control_returned(self, address: str) -> bool:
        """AMQP: a control frame for one producer or group was returned, since the broker knows nobody who listens at
        its address. Returns whether that one is heard over this site all the same: then the transport connects again,
        to another endpoint if there is one. Only called between ``connected`` and ``disconnected``."""


class ControlTransport(Protocol):
    """Sends and receives control frames, for both kinds of transport. A site that does not permit them works without:
    none arrive there, and those sent are dropped."""

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are received. Takes effect soon if connected, and on every
        connect before ``events.connected``. May be called before ``start()``."""

    def send_control(self, address: str, body: bytes) -> bool:
        """Publish a control frame: unconfirmed, at most once, and not stored for offline listeners.

        Returns False if it was dropped at once: not connected, blocked, larger than the site accepts, or
        :data:`CONTROL_BACKLOG_BYTES` wait already. True only promises an attempt.

        An address that the site refuses affects neither messages nor other addresses."""

    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the site does not let us send to or listen at, as far as it reports them; sorted."""


class SenderEvents(ControlEvents, Protocol):
    """What a sending transport reports to the producer and requests from it."""

    def connected(self, endpoint: str, window: int | None) -> None:
        """Handshake and topology are done; sending starts over, nothing is in flight. `window` is the broker's
        own limit of unconfirmed messages, if it has one."""

    def disconnected(self, reason: str) -> None:
        """The connection is gone; the outcome of everything in flight is indeterminate."""

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed; with `credentials` because the broker refused the login."""

    def pull(self) -> Sequence[Outgoing]:
        """Return what to send next; called whenever the transport can write and after every ``wake()``. Empty if
        there is nothing or the window is full. Whatever is returned is considered in flight. A batch of several
        messages is returned as a whole."""

    def confirmed(self, tokens: Sequence[int]) -> None:
        """The broker has these batches, each completely."""

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        """The broker reported that it does not have this batch."""

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        """MQTT: what the broker shows of the groups last passed to ``bind()``. Called after every ``connected``,
        before the first ``pull()`` if the broker answers in time, and again periodically."""

    def blocked(self, reason: str | None) -> None:
        """The broker asked to stop sending (AMQP ``connection.blocked``); None when sending may resume."""


class SenderTransport(ControlTransport, Protocol):
    """Publishes to one site."""

    def start(self) -> None:
        """Start the I/O thread and begin to connect."""

    def wake(self) -> None:
        """Have ``pull()`` called soon."""

    def reconnect(self, reason: str) -> None:
        """Drop the connection, if there is one (a confirm is overdue), and connect again."""

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the groups whose queues are declared on every connect, before the first publish; if
        connected, declare them now, before what is pulled from now on. At MQTT sites nothing is declared; the
        broker is probed for them (``events.found``)."""

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and terminate the I/O thread, within `timeout` seconds. Events may be called until
        this returns, and never after it."""


class ReceiverEvents(ControlEvents, Protocol):
    """What a receiving transport reports to the consumer."""

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        """Reading starts. `session_present`: MQTT, whether the broker still had the group's session; AMQP, whether
        the group's queues existed already. False only if they were created since ``disconnected``, ``unreachable`` or
        ``busy`` was last called, or since the start. None if that is unknown, or only some queues existed."""

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        """The connection is gone; all its tokens are invalid, and the broker will deliver again. `renewing`: the
        transport closed it itself and connects again at once, so this is no sign of another reader."""

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed; with `credentials` because the broker refused the login."""

    def busy(self, holder: str) -> None:
        """Another client holds the group's lock at this site; the attempt is repeated with backoff."""

    def received(self, deliveries: Sequence[Delivery]) -> None:
        """Messages in the order in which they arrived."""

    def drained(self) -> None:
        """The site's queues were seen empty: everything queued there when the broker was last asked has been
        delivered. AMQP only."""


class ReceiverTransport(ControlTransport, Protocol):
    """Reads one site for one group."""

    def start(self) -> None:
        """Start the I/O thread and begin to connect."""

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """The messages are durable here: the broker may delete them. Tokens may come in any order; MQTT's are
        acknowledged in the order in which the messages were received (MQTT-4.6.0-2)."""

    def reconnect(self, reason: str) -> None:
        """Drop the connection and connect again."""

    def renew(self, topic: str, partition: int) -> None:
        """This queue delivers nothing although it should: renew its binding, if the protocol has one."""

    def close(self, timeout: float) -> None:
        """Stop reading, disconnect cleanly and terminate the I/O thread, within `timeout` seconds. Unacknowledged
        messages stay with the broker. Events may be called until this returns, and never after it."""


class Transports(Protocol):
    """Opens transports for producers and consumers: the module :mod:`reliamsg.transport.factory`, or what tests
    inject."""

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents, /
    ) -> SenderTransport:
        """Return a transport that publishes to `site`; the caller starts it."""

    def open_receiver(
        self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents, /
    ) -> ReceiverTransport:
        """Return a transport that reads `site` for the one group that `bindings` name; the caller starts it."""


def check_transports(transports: object) -> None:
    """Raise :class:`ConfigError` unless `transports` is None or opens transports."""
    if transports is None:
        return
    if not all(callable(getattr(transports, name, None)) for name in ("open_sender", "open_receiver")):
        raise ConfigError(
            "transports must have open_sender and open_receiver, as reliamsg.transport.factory has,"
            f" not {type(transports).__name__}"
        )
