"""A second connection of a group to an AMQP site, over which it sends control frames.

RabbitMQ stops reading from every connection that publishes while it is short of memory or disk. Acknowledgements of a
group are what frees both, so it must not publish on the connection that it reads with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reliamsg.logs import Log
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.control import REOPEN_SECONDS, ControlChannel, ControlState
from reliamsg.transport.session import Ended

__all__ = ["ControlConnection"]

log: Log = Log(__name__)


class ControlConnection:
    """Keeps a connection beside `main`, for as long as that one lasts: to the same endpoint, or to another one while
    frames that are sent there are returned. I/O thread only, except :meth:`send_control`."""

    def __init__(self, main: AmqpConnection, state: ControlState) -> None:
        self._main = main
        self._state = state
        self._connection: AmqpConnection | None = None
        self._control: ControlChannel | None = None
        self._then: Callable[[], None] | None = None
        self._wait = REOPEN_SECONDS[0]
        self._closing = False
        self._ahead = 0
        """How far ahead of the main connection's endpoint this one's is."""

    def open(self, then: Callable[[], None]) -> None:
        """Begin to connect; call `then` when frames can be sent, or when the first attempt has failed."""
        self._then = then
        self._connect()

    def send_control(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        control = self._control
        return control is not None and control.send_control(address, body)

    def probe(self, addresses: Sequence[str]) -> bool:
        """See :meth:`~reliamsg.transport.amqp.control.ControlChannel.probe`."""
        return self._control is not None and self._control.probe(addresses)

    def close(self, grace: float, then: Callable[[], None]) -> None:
        """Write the frames that wait, close the connection, and then call `then`, after `grace` seconds at the
        latest."""
        if self._control is not None:
            self._control.flush()
        connection, self._then = self._connection, then
        self._closing = True
        if connection is None:
            self._ready()
        else:
            connection.close(grace)

    def _connect(self) -> None:
        self._connection = connection = self._main.another(self._ahead)
        control = ControlChannel(connection, self._state, listens=False)

        def ready() -> None:
            connection.established()
            self._control = control
            control.open(self._on_open)

        connection.run_beside(self._main, ready, self._on_over, control)

    def _on_open(self) -> None:
        self._wait = REOPEN_SECONDS[0]
        self._ready()

    def _on_over(self, ended: Ended) -> None:
        self._connection = self._control = None
        if not self._closing:
            log.info(
                "transport.control_connection_retried", "site %(site)s: control frames cannot be sent: %(reason)s",
                site=self._state.site.name, reason=ended.reason,
            )  # fmt: skip
            if ended.renewing or self._ahead:
                self._ahead += 1
            wait, self._wait = self._wait, min(2 * self._wait, REOPEN_SECONDS[1])
            self._main.later(wait, self._connect)
        self._ready()

    def _ready(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
