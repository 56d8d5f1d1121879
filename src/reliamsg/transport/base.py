"""The port between the protocol and brokers: what every transport offers, and what it asks for.

A transport is one site in one direction: a :class:`SenderTransport` publishes, a :class:`ReceiverTransport`
reads for a group. Each keeps one connection on one I/O thread of its own, tries the site's endpoints in turn
for ever, and tells its :class:`SenderEvents` or :class:`ReceiverEvents` what happens. It knows brokers, not
the protocol: it never retries, deduplicates or reorders, since that is decided above it.

Beside messages there are control frames, in both directions on either kind: heard by whoever listens at their
address when they are told, and by nobody later.

Threads: events are called on the transport's I/O thread, one at a time, and must not block. Methods of a
transport may be called from any thread, events included, and do not block either, except ``close()``.
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
"""While so much told waits to be written, no more is taken. What is taken last may go beyond it."""


_REFUSAL = re.compile(r"the broker (refuses:|closed the connection: (402|403|530) )")


def is_refusal(reason: str) -> bool:
    """Whether an attempt to connect ended since the broker, which was reached, said no: for the login, the virtual host
    or the protocol. `reason` is what transports tell as why a site is unreachable."""
    return _REFUSAL.match(reason) is not None


class Outcome(Enum):
    """How a site said no to a batch."""

    NACKED = "nacked"
    """AMQP ``basic.nack``."""
    RETURNED = "returned"
    """AMQP: unroutable, and therefore in no queue, though the broker confirms it afterwards."""
    REFUSED = "refused"
    """MQTT: a PUBACK with a failing reason code; AMQP: a message over the broker's size limit; both: one over
    ``Site.max_frame_bytes``."""


class Evidence(Enum):
    """What an MQTT broker shows of a named group; see rules P15 and P16."""

    SUBSCRIBED = "subscribed"
    """Its proof address has a subscriber, by the word of a broker that says so where there is none."""
    NOT_SUBSCRIBED = "not subscribed"
    """It has none, by the word of the same."""
    NOT_MARKED = "not marked"
    """The broker does not tell who subscribes, and has no mark of the group."""


Mark = bytes
"""The broker does not tell who subscribes, and has this at the place of the group's mark. Not checked."""


class Outgoing(msgspec.Struct, frozen=True):
    """One broker message to publish."""

    token: int
    """Chosen by the caller, unique within the connection; comes back in ``confirmed`` or ``refused``. All
    messages of one batch carry the batch's token, which comes back once: confirmed when all of them are,
    refused when one of them is."""
    topic: str
    partition: int
    body: bytes
    content_type: str | None
    """``application/vnd.reliamsg.batch`` for a data frame; None for the plain form."""
    headers: Mapping[str, str] | None
    """The plain form's identity and the application's headers; None for a data frame."""
    message_id: str
    timestamp_us: int
    parts_left: int = 0
    """How many more messages of the same token follow this one directly."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A group that a producer names, or one that a consumer reads for, at one topic and partition."""

    topic: str
    partition: int
    group: str


Token = object
"""Names one delivery to the transport that made it."""


class Delivery(msgspec.Struct, frozen=True):
    """One broker message that arrived."""

    token: Token
    """For ``acknowledge()``. One of a connection that is gone is ignored there."""
    address: str
    """AMQP: the routing key; MQTT: the topic. As received: not checked."""
    body: bytes
    content_type: str | None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """AMQP headers or MQTT 5 user properties whose values are strings; others are left out."""
    redelivered: bool = False
    """The broker's own flag (AMQP ``redelivered``, MQTT DUP)."""
    retained: bool = False
    """MQTT: marked as retained. We never publish so, yet some brokers mark what was queued for an absent session."""
    damaged: str | None = None
    """Why the transport itself could not read the message's headers, if it could not. The body is as
    received."""


class ControlEvents(Protocol):
    """What both kinds of transport tell of control frames."""

    def heard(self, address: str, body: bytes) -> None:
        """A control frame came for one of the addresses last given to ``listen()``; own ones are heard too.
        Not checked in any way, and of at most :data:`reliamsg.wire.limits.MAX_FRAME_BYTES`. Called between
        ``connected`` and ``disconnected`` only."""


class ControlTransport(Protocol):
    """What both kinds of transport do with control frames. A site that refuses to carry them (permissions)
    goes on without: nothing is heard there then, and what is told is dropped."""

    def listen(self, addresses: Sequence[str]) -> None:
        """Replace the control addresses whose frames are heard. Effective soon where connected, and on every
        connect before ``events.connected``. May be called before ``start()``."""

    def tell(self, address: str, body: bytes) -> bool:
        """Publish a control frame: unconfirmed, at most once, and never kept for those who are absent.

        False where it was dropped at once: not connected, blocked, larger than the site takes, or
        :data:`CONTROL_BACKLOG_BYTES` wait already. True promises nothing more than a try.

        An address that the site refuses affects neither messages nor other addresses."""

    def refused_addresses(self) -> Sequence[str]:
        """Control addresses that the site refuses to send to or to listen at, as far as it lets us know; sorted."""


class SenderEvents(ControlEvents, Protocol):
    """What a sending transport tells and asks the producer."""

    def connected(self, endpoint: str, window: int | None) -> None:
        """Handshake and topology are done; sending starts anew, nothing is in flight. `window` is the
        broker's own limit of unconfirmed messages, if it has one."""

    def disconnected(self, reason: str) -> None:
        """The connection is gone; the outcome of all that was in flight is indeterminate."""

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed; `credentials` says that the broker refused the login."""

    def pull(self) -> Sequence[Outgoing]:
        """Asked whenever the transport can write and after every ``wake()``: what to send next, empty when
        there is nothing or the window is full. Whatever is returned is considered in flight. A batch of
        several messages is returned whole."""

    def confirmed(self, tokens: Sequence[int]) -> None:
        """The broker has these batches, all of each."""

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        """The broker does not have this batch, and said so."""

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        """MQTT: what the broker shows of the groups that were last given to ``bind()``. Told after every
        ``connected``, before the first ``pull()`` if the broker answers in time, and again now and then."""

    def blocked(self, reason: str | None) -> None:
        """The broker asked to stop sending (AMQP ``connection.blocked``); None when that is over."""


class SenderTransport(ControlTransport, Protocol):
    """Publishes to one site."""

    def start(self) -> None:
        """Start the I/O thread and begin to connect."""

    def wake(self) -> None:
        """Have ``pull()`` asked soon."""

    def reconnect(self, reason: str) -> None:
        """Drop the connection (a confirm is overdue) and connect again; nothing where there is none."""

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Replace the groups whose queues are declared on every connect, before the first publish; if
        connected, declare them now, before what is pulled from now on. At MQTT sites nothing is declared;
        the broker is asked for them (``events.found``)."""

    def close(self, timeout: float) -> None:
        """Disconnect cleanly and end the I/O thread, within `timeout` seconds. Events may still be called
        until this returns, and never after it."""


class ReceiverEvents(ControlEvents, Protocol):
    """What a receiving transport tells the consumer."""

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        """Reading starts. `session_present`: MQTT, whether the broker still knew the group's session; AMQP,
        whether all of the group's queues existed already. None where that can't be told."""

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        """The connection is gone; every token of it is void, the broker will deliver again. `renewing`: the transport
        ended it itself and connects again at once, so it says nothing about who else may read."""

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed; `credentials` says that the broker refused the login."""

    def busy(self, holder: str) -> None:
        """Another client holds the group's lock at this site; tried again with backoff."""

    def received(self, deliveries: Sequence[Delivery]) -> None:
        """Messages, in the order in which they arrived."""

    def drained(self) -> None:
        """The site's queue or session was seen empty: all that had been queued there when it was last asked
        has been delivered. Only where the broker can tell (AMQP)."""


class ReceiverTransport(ControlTransport, Protocol):
    """Reads one site for one group."""

    def start(self) -> None:
        """Start the I/O thread and begin to connect."""

    def acknowledge(self, tokens: Sequence[Token]) -> None:
        """The messages are safe here: the broker may forget them. Tokens may come in any order; MQTT's are
        passed on in the order in which the messages were received (MQTT-4.6.0-2)."""

    def reconnect(self, reason: str) -> None:
        """Drop the connection and connect again."""

    def renew(self, topic: str, partition: int) -> None:
        """Nothing comes out of this queue though it should: have the broker fill it anew, where there is a way."""

    def close(self, timeout: float) -> None:
        """Stop reading, disconnect cleanly, end the I/O thread, within `timeout` seconds. Unacknowledged
        messages stay with the broker. Events may be called until this returns, and never after it."""


class Transports(Protocol):
    """Where producers and consumers get their transports from: the module :mod:`reliamsg.transport.factory`, or what
    tests inject."""

    def open_sender(
        self, site: Site, producer_id: str, bindings: Sequence[Binding], events: SenderEvents, /
    ) -> SenderTransport:
        """A transport that publishes to `site`; not started yet."""

    def open_receiver(
        self, site: Site, bindings: Sequence[Binding], events: ReceiverEvents, /
    ) -> ReceiverTransport:
        """A transport that reads `site` for the one group that `bindings` name; not started yet."""


def check_transports(transports: object) -> None:
    """Raise :class:`ConfigError` unless `transports` is None or opens transports."""
    if transports is None:
        return
    if not all(callable(getattr(transports, name, None)) for name in ("open_sender", "open_receiver")):
        raise ConfigError(
            "transports must have open_sender and open_receiver, as reliamsg.transport.factory has,"
            f" not {type(transports).__name__}"
        )
