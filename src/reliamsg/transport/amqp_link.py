"""One AMQP connection, from the TCP connect to its end: the only module that knows pika.

pika is used for what it is good at: connecting, TLS, the handshake, heartbeats, declaring. What it decodes
is bounded here, what it would log is kept from logs, and publishing bypasses its encoder.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pika
import pika.exceptions
from pika import frame as pika_frame
from pika import spec
from pika.adapters.select_connection import IOLoop, SelectConnection

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.amqp_codec import (
    BASIC_ACK,
    BASIC_NACK,
    CONFIRM,
    CONTENT_HEAD,
    FRAME_HEAD,
    FRAME_OVERHEAD,
    HEADER,
    METHOD,
    text,
)
from reliamsg.transport.amqp_logging import quiet_pika
from reliamsg.transport.amqp_topology import Refused, Script
from reliamsg.transport.session import Ended
from reliamsg.wire.limits import MAX_FRAME_BYTES

__all__ = ["Link"]

log = logging.getLogger(__name__)

RECEIVE_BYTES = 65_536
"""Read from the socket at once; pika's 4,096 make large messages slow."""

ABORT_SECONDS = 1.0
"""How long pika may take to tell that an aborted connection is gone."""

CLOSED = Ended("closed")

if TYPE_CHECKING:

    class _Pika(SelectConnection):
        """The inner parts of pika that are relied on below and that its type stubs leave out."""

        bytes_received: int
        _frame_buffer: bytes
        _transport: Any

        def _proto_connection_made(self, transport: Any) -> None: ...
        def _on_connection_close_from_broker(self, method_frame: Any) -> None: ...
        def _process_frame(self, frame_value: Any) -> None: ...
        def _terminate_stream(self, error: Exception | None) -> None: ...

else:
    _Pika = SelectConnection


class Link:
    """An attempt to connect, and the connection that comes of it. Used for one :meth:`run`, or one
    :meth:`run_beside` another that runs.

    Everything is called on the thread that runs it, except :meth:`call`. Callbacks that raise end the
    connection; the exception is logged.
    """

    def __init__(
        self, site: Site, endpoint: Endpoint, login: Credentials | None, deadline: float, name: str
    ) -> None:
        self.on_input: Callable[[], None] = _nothing
        """Called whenever what one read brought has been dealt with."""
        self.on_confirm: Callable[[int, bool, bool], None] = _nothing
        """Publisher confirms: (tag, multiple, whether it is an ack)."""
        self.on_blocked: Callable[[str | None], None] = _nothing
        """``connection.blocked`` with its reason, and None when that is over."""
        self.server_version: tuple[int, ...] = (0,)
        self._site = site
        self._deadline = deadline
        self._parameters = _parameters(site, endpoint, login, name)
        self._endpoint, self._login, self._name = endpoint, login, name
        self._beside: list[Link] = []
        """Those that run on this one's thread."""
        self._main: Link | None = None
        """That which this one runs beside."""
        self._on_over: Callable[[Ended], None] | None = None
        """Set while it does: hears once why this one is over."""
        self._lock = threading.Lock()
        self._loop: IOLoop | None = None
        self._early: list[Callable[[], None]] | None = []
        """What was asked for before :meth:`run`; None from then on."""
        self._connection: _Connection | None = None
        self._ended: Ended | None = None
        self._handshake: Any = None
        self._control: Any = None
        self._scripts: deque[tuple[Script[Any], Callable[[Any], None], Callable[[Refused], None]]] = deque()
        self._script_timer: Any = None

    @property
    def alive(self) -> bool:
        """Whether the connection is there and nothing has ended it yet."""
        return self._ended is None

    @property
    def control(self) -> Any:
        """The channel for declarations. A refused one closes it; another takes its place."""
        return self._control

    @property
    def frame_max(self) -> int:
        return int(self._link.params.frame_max or 131_072)

    @property
    def buffered(self) -> int:
        """Bytes written and not yet taken by the operating system."""
        transport = self._link.transport
        return 0 if transport is None else int(transport.get_write_buffer_size())

    def run(self, ready: Callable[[], None]) -> Ended:
        """Connect, call `ready` when there is a control channel, and serve the connection until it ends."""
        loop = IOLoop()
        with self._lock:
            self._loop = loop
            early, self._early = self._early or [], None
        for function in early:
            loop.add_callback_threadsafe(function)
        try:
            with quiet_pika():
                self._serve(loop, ready)
        finally:
            for link in [self, *self._beside]:
                link._tear_down()
            loop.close()
        return self._ended or CLOSED

    def another(self) -> Link:
        """A link to the same endpoint, not running yet, with all the time that a connection may take."""
        deadline = time.monotonic() + self._site.connect_timeout
        return Link(self._site, self._endpoint, self._login, deadline, self._name)

    def run_beside(self, link: Link, ready: Callable[[], None], over: Callable[[Ended], None]) -> None:
        """Connect and serve the connection on the thread that runs `link`, and end with it.

        `ready` is as with :meth:`run`. `over` hears why this link ended, unless `link` ends first.
        """
        self._main, self._on_over = link, over
        link._beside.append(self)
        loop = link._io_loop
        with self._lock:
            self._loop, self._early = loop, None
        self._begin(loop, ready)

    def _serve(self, loop: IOLoop, ready: Callable[[], None]) -> None:
        self._begin(loop, ready)
        loop.start()

    def _stop(self) -> None:
        """Nothing more happens here: end the loop, or leave it to the link beside which this one ran."""
        main, over, self._on_over = self._main, self._on_over, None
        if main is None:
            self._io_loop.stop()
        elif over is not None:
            main._beside.remove(self)
            self._tear_down()
            over(self._ended or CLOSED)

    def _hangs(self) -> None:
        """pika did not tell an end that it was asked for. Its loop is of no more use then."""
        if self._main is None:
            self._io_loop.stop()
        elif self._on_over is not None:
            self._main.drop(Ended("a connection to the broker could not be ended"))

    def _begin(self, loop: IOLoop, ready: Callable[[], None]) -> None:
        self._connection = _Connection(self, loop, self._parameters, ready)
        self._handshake = loop.call_later(
            max(0.0, self._deadline - time.monotonic()),
            lambda: self.drop(Ended(f"not connected within {self._site.connect_timeout:g} s")),
        )

    def call(self, function: Callable[[], None]) -> bool:
        """Have `function` called on the I/O thread soon, once :meth:`run` has begun; False if the connection is
        over. Any thread."""
        with self._lock:
            if self._early is not None:  # a goodbye must not get lost, or the connection outlives its owner
                self._early.append(function)
                return True
            if self._loop is None:
                return False
            self._loop.add_callback_threadsafe(function)
            return True

    def later(self, seconds: float, function: Callable[[], None]) -> Any:
        """Call `function` in so many seconds, if the connection still lives then."""
        return self._io_loop.call_later(seconds, lambda: function() if self.alive else None)

    def established(self) -> None:
        """The caller has all it needs: the time for connecting no longer runs."""
        self._io_loop.remove_timeout(self._handshake)

    def write(self, data: bytes) -> None:
        """Send encoded frames."""
        transport = self._link.transport
        if transport is not None:
            transport.write(data)

    def open_channel(
        self,
        opened: Callable[[Any], None],
        closed: Callable[[int, str], None] | None = None,
        *,
        fatal: bool = True,
    ) -> None:
        """Open a channel. When the broker closes it, `closed` hears why, and then, if `fatal`, the connection
        ends."""

        def on_close(_: Any, reason: Exception) -> None:
            if not self.alive or not isinstance(reason, pika.exceptions.ChannelClosedByBroker):
                return
            why = text(reason.reply_text)
            if closed is not None:
                closed(reason.reply_code, why)
            if fatal:
                self.drop(Ended(f"the broker closed the channel: {reason.reply_code} {why}"))

        channel: Any = self._link.channel(on_open_callback=opened)
        channel.add_on_close_callback(on_close)

    def perform(
        self, script: Script[Any], done: Callable[[Any], None], failed: Callable[[Refused], None]
    ) -> None:
        """Run a script on the control channel, after those asked for before; one that hangs ends the link."""
        self._scripts.append((script, done, failed))
        if len(self._scripts) == 1:
            self._advance(None)

    def close(self, grace: float, ended: Ended = CLOSED) -> None:
        """Say goodbye to the broker and end; after `grace` seconds without its answer end all the same."""
        if not self.alive:
            return
        if not self._link.is_open:
            self.drop(ended)
            return
        self._ended = ended
        self._io_loop.call_later(grace, self._abort)
        self._link.close()

    def drop(self, ended: Ended) -> None:
        """End the connection at once, without a goodbye: the broker may not be answering."""
        if not self.alive:
            return
        self._ended = ended
        self._abort()

    def _abort(self) -> None:
        if self._connection is None:  # over meanwhile
            return
        # pika tells the end through its loop; should it not, the loop is left anyway.
        self._io_loop.call_later(ABORT_SECONDS, self._hangs)
        self._connection.abort()

    def over(self, error: BaseException, refused: tuple[int, str] | None) -> None:
        """The connection, or the attempt, is over; `refused` is the broker's ``connection.close``."""
        if self._ended is None:
            self._ended = _why(error, refused)
        self._stop()

    def opened(self, version: object, ready: Callable[[], None]) -> None:
        """The handshake is done."""
        self.server_version = _version(version)
        self._open_control(ready)

    def _open_control(self, then: Callable[[], None]) -> None:
        def on_open(_: Any) -> None:
            then()

        def on_close(_: Any, reason: Exception) -> None:
            if not self.alive or not isinstance(reason, pika.exceptions.ChannelClosedByBroker):
                return
            refused = Refused(reason.reply_code, text(reason.reply_text))
            self._open_control(lambda: self._advance(None, refused))

        self._control = self._link.channel(on_open_callback=on_open)
        self._control.add_on_close_callback(on_close)

    def _advance(self, answer: Any, error: Refused | None = None) -> None:
        """Give the current script its answer, and start the next one when it has ended."""
        if not self.alive or not self._scripts:
            return
        script, done, failed = self._scripts[0]
        if self._script_timer is None:
            self._script_timer = self.later(self._site.connect_timeout, self._script_hangs)
        try:
            request = script.send(answer) if error is None else script.throw(error)
        except StopIteration as stop:
            self._end_script()
            done(stop.value)
        except Refused as refused:
            self._end_script()
            failed(refused)
        else:
            request(self._advance)
            return
        if self._scripts and self._script_timer is None:
            self._advance(None)

    def _end_script(self) -> None:
        self._scripts.popleft()
        self._io_loop.remove_timeout(self._script_timer)
        self._script_timer = None

    def _script_hangs(self) -> None:
        self.drop(Ended(f"the broker did not answer a declaration within {self._site.connect_timeout:g} s"))

    @property
    def _link(self) -> _Connection:
        assert self._connection is not None
        return self._connection

    @property
    def _io_loop(self) -> IOLoop:
        assert self._loop is not None
        return self._loop

    def _tear_down(self) -> None:
        with self._lock:
            self._loop = None
        if self._ended is None:
            self._ended = CLOSED
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


class _Connection(_Pika):
    """pika's connection with a bounded decoder and shortcuts for what comes in masses."""

    def __init__(
        self, link: Link, loop: IOLoop, parameters: pika.ConnectionParameters, ready: Callable[[], None]
    ) -> None:
        self._owner = link
        self._refused: tuple[int, str] | None = None
        self._skip: dict[int, int] = {}
        """Bytes still to come, by channel, of messages that are too large to be taken in."""
        super().__init__(
            parameters,
            on_open_callback=lambda _: link.opened(_server_version(self), ready),
            on_open_error_callback=lambda _, error: link.over(_error(error), self._refused),
            on_close_callback=lambda _, error: link.over(error, self._refused),
            custom_ioloop=loop,
        )
        self.add_on_connection_blocked_callback(
            lambda _, frame: link.on_blocked(text(frame.method.reason) or "blocked")
        )
        self.add_on_connection_unblocked_callback(lambda *_: link.on_blocked(None))

    @property
    def transport(self) -> Any:
        return self._transport

    def abort(self) -> None:
        """End the connection or the attempt without a goodbye; ``over`` follows through the loop."""
        if not self.is_closed:
            self._terminate_stream(pika.exceptions.StreamLostError("aborted"))

    def release(self) -> None:
        """Close the socket if pika did not come to it."""
        sock = getattr(self._transport, "_sock", None)
        if sock is not None:
            sock.close()

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = RECEIVE_BYTES
        super()._proto_connection_made(transport)

    def _on_connection_close_from_broker(self, method_frame: Any) -> None:
        # Kept, since pika reports a refused login and a connection lost during the login alike.
        self._refused = (method_frame.method.reply_code, text(method_frame.method.reply_text))
        super()._on_connection_close_from_broker(method_frame)

    def _on_data_available(self, data_in: bytes) -> None:
        try:
            self._take(data_in)
        except Exception as error:
            log.exception("the AMQP connection failed on what it received")
            self._owner.drop(Ended(f"internal error: {type(error).__name__}"))

    def _take(self, data: bytes) -> None:
        # Every byte counts as a sign of life, not only whole frames: a large one may take long on a slow line.
        self.bytes_received += len(data)
        buffer = self._frame_buffer + data if self._frame_buffer else data
        start, size = 0, len(buffer)
        while size - start >= FRAME_OVERHEAD:
            kind, channel, length = FRAME_HEAD.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError("a frame over the limit")
            end = start + FRAME_OVERHEAD + length
            if end > size:
                break
            self._frame(kind, channel, buffer[start:end])
            start = end
        self._frame_buffer = buffer[start:]
        self._owner.on_input()

    def _frame(self, kind: int, channel: int, data: bytes) -> None:
        if kind == METHOD and len(data) == FRAME_OVERHEAD + CONFIRM.size:
            method, tag, bits = CONFIRM.unpack_from(data, FRAME_HEAD.size)
            if method in (BASIC_ACK, BASIC_NACK):
                self._owner.on_confirm(tag, bool(bits & 1), method == BASIC_ACK)
                return
        skip = self._skip.get(channel)
        if skip is not None and kind not in (METHOD, HEADER):
            left = skip - (len(data) - FRAME_OVERHEAD)
            if left > 0:
                self._skip[channel] = left
            else:
                del self._skip[channel]
            return
        frame = self._header(channel, data) if kind == HEADER else pika_frame.decode_frame(data)[1]
        if frame is not None:
            self._process_frame(frame)

    def _header(self, channel: int, data: bytes) -> Any:
        """Decode a message's header; what can't be read, or is too large, becomes a damaged message.

        The decoder raises on some headers that brokers pass on. Left alone that would end the connection, the
        message would be delivered again, and the next consumer would end the same way.
        """
        try:
            frame: Any = pika_frame.decode_frame(data)[1]
        except Exception as error:  # noqa: BLE001 - whatever a made-up header provokes in the decoder
            size = CONTENT_HEAD.unpack_from(data, FRAME_HEAD.size)[2]
            frame = pika_frame.Header(channel, size, spec.BasicProperties())
            frame.properties.damaged = f"unreadable headers ({type(error).__name__})"
        if frame.body_size > MAX_FRAME_BYTES:
            self._skip[channel] = frame.body_size
            properties: Any = spec.BasicProperties()
            properties.damaged = f"a body of {frame.body_size} bytes, the limit is {MAX_FRAME_BYTES}"
            frame = pika_frame.Header(channel, 0, properties)
        return frame


def _nothing(*_: object) -> None:
    return None


def _parameters(
    site: Site, endpoint: Endpoint, login: Credentials | None, name: str
) -> pika.ConnectionParameters:
    context = site.tls_context()
    options: dict[str, Any] = {}
    if login is not None:
        options["credentials"] = pika.PlainCredentials(*login)
    if context is not None:
        options["ssl_options"] = pika.SSLOptions(context, server_hostname=endpoint.host)
    return pika.ConnectionParameters(
        host=endpoint.host,
        port=endpoint.port,
        virtual_host=site.vhost,
        heartbeat=max(1, round(site.heartbeat)),
        # Later than the link's own deadline, which covers all of an attempt and says so in its own words.
        socket_timeout=site.connect_timeout + 1.0,
        stack_timeout=site.connect_timeout + 1.0,
        connection_attempts=1,
        # A blocked connection is a state that is reported, not a failure.
        blocked_connection_timeout=None,
        client_properties={"connection_name": name, "product": "reliamsg"},
        **options,
    )


def _server_version(connection: Any) -> object:
    return (connection.server_properties or {}).get("version", "")


def _version(value: object) -> tuple[int, ...]:
    numbers = []
    for part in text(value).split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers[:3]) or (0,)


def _error(error: object) -> BaseException:
    return error if isinstance(error, BaseException) else RuntimeError(str(error))


def _why(error: BaseException, refused: tuple[int, str] | None) -> Ended:
    """Say in a line, without anything that may hold a secret, why a connection or attempt ended."""
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
        return Ended("the broker offers no way to log in with a user name and password", credentials=True)
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
