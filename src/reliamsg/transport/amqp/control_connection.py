"""A second connection of a group to an AMQP site, through which it tells.

RabbitMQ stops reading from every connection that publishes while it is short of memory or disk. What a group
acknowledges is what frees both, so it must not publish on the connection that it reads with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from reliamsg.transport.amqp.connection import Link
from reliamsg.transport.amqp.control import AGAIN_SECONDS, ControlChannel, Listener
from reliamsg.transport.session import Ended

__all__ = ["Teller"]

log = logging.getLogger(__name__)


class Teller:
    """Keeps a connection beside `main`, to the same endpoint, for as long as that one lasts. I/O thread only,
    except :meth:`tell`."""

    def __init__(self, main: Link, owner: Listener) -> None:
        self._main = main
        self._owner = owner
        self._link: Link | None = None
        self._control: ControlChannel | None = None
        self._then: Callable[[], None] | None = None
        self._wait = AGAIN_SECONDS[0]
        self._ending = False

    def open(self, then: Callable[[], None]) -> None:
        """Begin to connect; call `then` when frames are taken, or when the first attempt has failed."""
        self._then = then
        self._connect()

    def tell(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        control = self._control
        return control is not None and control.tell(address, body)

    def probe(self, addresses: Sequence[str]) -> bool:
        """See :meth:`~reliamsg.transport.amqp.control.ControlChannel.probe`."""
        return self._control is not None and self._control.probe(addresses)

    def close(self, grace: float, then: Callable[[], None]) -> None:
        """Write what was told, say goodbye, and then call `then`, after `grace` seconds at the latest."""
        if self._control is not None:
            self._control.flush()
        link, self._then = self._link, then
        self._ending = True
        if link is None:
            self._ready()
        else:
            link.close(grace)

    def _connect(self) -> None:
        self._link = link = self._main.another()
        control = ControlChannel(link, self._owner, listens=False)
        link.on_blocked = lambda reason: control.blocked(reason is not None)

        def ready() -> None:
            link.established()
            self._control = control
            control.open(self._on_open)

        link.run_beside(self._main, ready, self._on_over)

    def _on_open(self) -> None:
        self._wait = AGAIN_SECONDS[0]
        self._ready()

    def _on_over(self, ended: Ended) -> None:
        self._link = self._control = None
        if not self._ending:
            log.info("site %s: nothing can be told: %s", self._owner.site.name, ended.reason)
            wait, self._wait = self._wait, min(2 * self._wait, AGAIN_SECONDS[1])
            self._main.later(wait, self._connect)
        self._ready()

    def _ready(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
