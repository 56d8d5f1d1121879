"""pika's connection with a bounded decoder: the one module that imports pika.

pika is used for what it does well: connecting, TLS, the handshake, heartbeats, declarations. This module limits
what it decodes, and publishing bypasses its encoder. docs/explanation/decisions.md lists the private parts of pika
that are used here.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pika
import pika.credentials
import pika.exceptions
from pika import frame as pika_frame
from pika import spec
from pika.adapters.select_connection import IOLoop, SelectConnection

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.logs import Log
from reliamsg.transport.amqp.codec import (
    BASIC_ACK,
    BASIC_NACK,
    BODY,
    CONFIRM,
    CONTENT_HEAD,
    FRAME_HEAD,
    FRAME_OVERHEAD,
    HEADER,
    METHOD,
    text,
)
from reliamsg.transport.amqp.frames import FRAME_MIN_SIZE, Bodies, FrameBuffer, ProtocolViolation
from reliamsg.transport.amqp.topology import Refused
from reliamsg.transport.session import Ended
from reliamsg.wire.limits import MAX_FRAME_BYTES

__all__ = [
    "Closed", "DamagedProperties", "IOLoop", "InputListener", "Opened", "PikaConnection", "Violated", "parameters",
    "properties", "refusal", "why_ended",
]  # fmt: skip

log: Log = Log(__name__)

RECEIVE_BYTES = 65_536
"""How much to read from the socket at once; pika's default of 4,096 makes large messages slow."""


if TYPE_CHECKING:

    class _Pika(SelectConnection):
        """Private parts of pika that are used below and missing from its type stubs."""

        bytes_received: int
        _channels: dict[int, Any]
        _transport: Any

        def _proto_connection_made(self, transport: Any) -> None: ...
        def _on_connection_close_from_broker(self, method_frame: Any) -> None: ...
        def _on_connection_tune(self, method_frame: Any) -> None: ...
        def _process_frame(self, frame_value: Any) -> None: ...
        def _terminate_stream(self, error: Exception | None) -> None: ...

else:
    _Pika = SelectConnection


@dataclass(frozen=True, slots=True)
class Opened:
    """The handshake is done."""

    version: tuple[int, ...]
    """The server's."""


@dataclass(frozen=True, slots=True)
class Violated:
    """The broker sent something that cannot be processed. The connection is to be aborted."""

    ended: Ended


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection, or the attempt, is over."""

    ended: Ended


class InputListener:
    """Receives the frequent input of a connection, on the thread that runs its loop. Does nothing by default."""

    def on_input(self) -> None:
        """Everything that one read returned has been processed."""

    def on_confirm(self, tag: int, multiple: bool, ack: bool) -> None:
        """A publisher confirm, or with `ack` false a rejection."""

    def on_blocked(self, reason: str | None) -> None:
        """``connection.blocked`` with its reason, or None when that is over."""


class PikaConnection(_Pika):
    """pika's connection with a bounded decoder and shortcuts for frequent frames."""

    def __init__(
        self,
        parameters: pika.ConnectionParameters,
        loop: IOLoop,
        listener: InputListener,
        on_event: Callable[[Opened | Violated | Closed], None],
    ) -> None:
        self._listener = listener
        self._on_event = on_event
        self._refused: tuple[int, str] | None = None
        """The broker's ``connection.close``."""
        self._skip: dict[int, int] = {}
        """Bytes still to come, by channel, of messages that are too large to be accepted."""
        self._input = FrameBuffer()
        self._bodies = Bodies()
        self._broken = False
        super().__init__(
            parameters,
            on_open_callback=lambda _: on_event(Opened(_server_version(self))),
            on_open_error_callback=lambda _, error: self._on_over(_error(error)),
            on_close_callback=lambda _, error: self._on_over(error),
            custom_ioloop=loop,
        )
        self.add_on_connection_blocked_callback(
            lambda _, frame: listener.on_blocked(text(frame.method.reason) or "blocked")
        )
        self.add_on_connection_unblocked_callback(lambda *_: listener.on_blocked(None))

    def _on_over(self, error: BaseException) -> None:
        self._on_event(Closed(why_ended(error, self._refused)))

    @property
    def transport(self) -> Any:
        return self._transport

    def abort(self) -> None:
        """Abort the connection or the attempt; :class:`Closed` follows through the loop."""
        if not self.is_closed:
            self._terminate_stream(pika.exceptions.StreamLostError("aborted"))

    def release(self) -> None:
        """Close the socket if pika has not done so."""
        sock = getattr(self._transport, "_sock", None)
        if sock is not None:
            sock.close()

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = RECEIVE_BYTES
        super()._proto_connection_made(transport)

    def _on_connection_close_from_broker(self, method_frame: Any) -> None:
        # Stored, since pika reports a refused login and a connection lost during the login alike.
        self._refused = (method_frame.method.reply_code, text(method_frame.method.reply_text))
        super()._on_connection_close_from_broker(method_frame)

    def _on_connection_tune(self, method_frame: Any) -> None:
        limit = method_frame.method.frame_max
        if 0 < limit < FRAME_MIN_SIZE:
            raise ProtocolViolation(
                f"the broker takes frames of {limit} bytes, and not the {FRAME_MIN_SIZE} that AMQP 0-9-1 asks for"
            )
        super()._on_connection_tune(method_frame)
        # Some brokers do not count the overhead of a frame, so this is the limit of the payload.
        self._input.end_handshake(int(self.params.frame_max))

    def _on_data_available(self, data_in: bytes) -> None:
        if self._broken:
            return
        try:
            self._take(data_in)
        except ProtocolViolation as error:
            self._broken = True
            self._on_event(Violated(Ended(str(error))))
        except Exception as error:
            self._broken = True
            log.error(
                "transport.amqp_failed", "the AMQP connection failed on what it received",
                error=type(error).__name__, exc_info=True,
            )  # fmt: skip
            self._on_event(Violated(Ended(f"internal error: {type(error).__name__}")))

    def _take(self, data: bytes) -> None:
        # Every byte counts as a heartbeat, not only whole frames: a large one may take long on a slow line.
        self.bytes_received += len(data)
        for kind, channel, frame in self._input.feed(data):
            self._frame(kind, channel, frame)
        self._listener.on_input()

    def _frame(self, kind: int, channel: int, data: bytes) -> None:
        if kind == METHOD and len(data) == FRAME_OVERHEAD + CONFIRM.size:
            method, tag, bits = CONFIRM.unpack_from(data, FRAME_HEAD.size)
            if method in (BASIC_ACK, BASIC_NACK):
                self._listener.on_confirm(tag, bool(bits & 1), method == BASIC_ACK)
                return
        if kind == BODY:
            self._body(channel, data)
            return
        frame = self._header(channel, data) if kind == HEADER else pika_frame.decode_frame(data)[1]
        if frame is not None:
            self._process_frame(frame)

    def _body(self, channel: int, data: bytes) -> None:
        skip = self._skip.get(channel)
        if skip is not None:
            left = skip - (len(data) - FRAME_OVERHEAD)
            if left > 0:
                self._skip[channel] = left
            else:
                del self._skip[channel]
        elif self._bodies.expects(channel):
            body = self._bodies.add(channel, data)
            if body is not None:
                self._process_frame(pika_frame.Body(channel, body))
        else:
            self._process_frame(pika_frame.decode_frame(data)[1])  # pika raises the appropriate error

    def _header(self, channel: int, data: bytes) -> Any:
        """Decode a message's header; a header that can't be read, or a body that is too large, makes a damaged message.

        The decoder raises on some headers that brokers pass on. That would end the connection, the message would be
        delivered again, and end the next connection in the same way.
        """
        try:
            frame: Any = pika_frame.decode_frame(data)[1]
        except Exception as error:  # noqa: BLE001 - whatever a made-up header provokes in the decoder
            size = CONTENT_HEAD.unpack_from(data, FRAME_HEAD.size)[2]
            properties = DamagedProperties(f"unreadable headers ({type(error).__name__})")
            frame = pika_frame.Header(channel, size, properties)
        if frame.body_size > MAX_FRAME_BYTES:
            self._skip[channel] = frame.body_size
            properties = DamagedProperties(
                f"a body of {frame.body_size} bytes, the limit is {MAX_FRAME_BYTES}"
            )
            frame = pika_frame.Header(channel, 0, properties)
        elif frame.body_size and channel in self._channels:
            self._bodies.expect(channel, frame.body_size)
        return frame


class DamagedProperties(spec.BasicProperties):
    """Stands in for the properties of a message that cannot be read."""

    def __init__(self, damaged: str) -> None:
        super().__init__()
        self.damaged = damaged


def _server_version(connection: Any) -> tuple[int, ...]:
    numbers = []
    for part in text((connection.server_properties or {}).get("version", "")).split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers[:3]) or (0,)


def _error(error: object) -> BaseException:
    return error if isinstance(error, BaseException) else RuntimeError(str(error))


def parameters(
    site: Site, endpoint: Endpoint, login: Credentials | None, name: str
) -> pika.ConnectionParameters:
    """How to connect to one endpoint of a site."""
    context = site.tls_context()
    options: dict[str, Any] = {}
    if site.auth == "external":
        options["credentials"] = pika.credentials.ExternalCredentials()
    elif login is not None:
        options["credentials"] = pika.PlainCredentials(*login)
    if context is not None:
        options["ssl_options"] = pika.SSLOptions(context, server_hostname=endpoint.host)
    return pika.ConnectionParameters(
        host=endpoint.host,
        port=endpoint.port,
        virtual_host=site.vhost,
        heartbeat=max(1, round(site.heartbeat)),
        # Later than the connection's own deadline, which covers the whole attempt and has a clearer message.
        socket_timeout=site.connect_timeout + 1.0,
        stack_timeout=site.connect_timeout + 1.0,
        connection_attempts=1,
        # A blocked connection is a state to report, not a failure.
        blocked_connection_timeout=None,
        client_properties={"connection_name": name, "product": "reliamsg"},
        **options,
    )


def properties(**values: Any) -> spec.BasicProperties:
    """The properties of a message that pika publishes."""
    return spec.BasicProperties(**values)


def why_ended(error: BaseException, refused: tuple[int, str] | None) -> Ended:
    """Describe in one line, without any secret, why a connection or attempt ended."""
    if refused is not None:
        code, reason = refused
        # 403: the login itself. 530: the virtual host is closed to this user (or does not exist).
        login = code == 403 or (code == 530 and "refused" in reason)
        return Ended(f"the broker closed the connection: {code} {reason}", credentials=login)
    cause = _root(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Ended(f"TLS: the certificate is not trusted: {cause.verify_message}")
    if isinstance(cause, ssl.SSLError):
        return Ended(f"TLS: {cause.reason or type(cause).__name__}")
    if isinstance(cause, pika.exceptions.AMQPHeartbeatTimeout):
        return Ended("no heartbeat from the broker")
    if isinstance(cause, pika.exceptions.AuthenticationError):
        return Ended("the broker does not offer this way to log in (Site(auth=...))", credentials=True)
    if isinstance(cause, OSError):
        return Ended(cause.strerror or str(cause) or type(cause).__name__)
    if isinstance(
        cause,
        pika.exceptions.StreamLostError
        | pika.exceptions.IncompatibleProtocolError
        | pika.exceptions.ProbableAuthenticationError
        | pika.exceptions.ProbableAccessDeniedError,
    ):
        return Ended("the connection was lost")
    return Ended(type(cause).__name__)


def _root(error: BaseException) -> BaseException:
    """The first cause inside pika's nested exceptions."""
    for _ in range(10):
        inner = getattr(error, "exceptions", None)
        following = inner[-1] if inner else getattr(error, "exception", None)
        if following is None and error.args and isinstance(error.args[0], BaseException):
            following = error.args[0]
        if not isinstance(following, BaseException):
            break
        error = following
    return error


def refusal(reason: Exception) -> Refused | None:
    """The broker's reason, if the broker closed a channel."""
    if not isinstance(reason, pika.exceptions.ChannelClosedByBroker):
        return None
    return Refused(reason.reply_code, text(reason.reply_text))
