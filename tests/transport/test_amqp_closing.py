"""Closing at any moment of an attempt to connect."""

from __future__ import annotations

import threading
import time

from reliamsg.config import Site
from reliamsg.lab import RabbitNode
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.receiver import AmqpReceiver
from reliamsg.transport.base import Binding
from reliamsg.transport.session import Ended


class Silent:
    """Events that nobody looks at."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def test_a_goodbye_before_the_connection_is_begun_is_kept(rabbit: RabbitNode) -> None:
    site = Site("dc1", rabbit.url)
    connection = AmqpConnection(site, site.endpoints[0], site.login(), time.monotonic() + 10, "test")
    assert connection.call(lambda: connection.close(1.0, Ended("goodbye")))
    assert connection.run(lambda: None).reason == "goodbye"
    assert not connection.call(lambda: None)


def test_closing_at_any_moment(rabbit: RabbitNode, unique: str) -> None:
    """No thread, and so no connection and no lock of the group, outlives close()."""
    site = Site("dc1", rabbit.url)
    for attempt in range(60):
        receiver = AmqpReceiver(site, [Binding(unique, 0, "g")], Silent())  # type: ignore[arg-type]
        receiver.start()
        if attempt % 3:
            threading.Event().wait(attempt / 4_000)  # another moment each time
        receiver.close(5.0)
        names = [thread.name for thread in threading.enumerate()]
        assert "reliamsg-receive-dc1" not in names, attempt
