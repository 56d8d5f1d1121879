"""Reading a group's messages while its session can't be had.

A session lives on one node of a broker's cluster. While that node is away the others may know of it and not be
able to give it out: RabbitMQ's plugin accepts the connection then, and closes it over the subscription, each time.
Instead of waiting for the node, the group reads under another client id with a session that is not kept: what is
published from now on, and control frames, which have what was missed repaired. What waits in the session comes
when the session does.

That client id, too, is made from the group alone, so that another inbox of the group shows: it takes the
connection over. There are two such ids, since a broker may come to hold one of them back like the session.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from reliamsg.config import Endpoint, Site
from reliamsg.transport.mqtt.connection import Link
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.session import Ended

__all__ = ["Substitute"]

log = logging.getLogger(__name__)

REFUSALS = 3
"""A session that the broker did not give out so often, one time after the other, is replaced."""

LOOK_SECONDS = (5.0, 60.0)
"""How long after that it is asked for the session again: the first time, and at most."""


class Substitute:
    """When to read without the session, and when no longer. I/O thread only."""

    def __init__(self, site: Site, connectors: Sequence[Connector]) -> None:
        """`connectors` connect under the other client ids."""
        self._connectors = connectors
        self._current = 0
        self._site = site
        self._refusals = 0
        self._wait = LOOK_SECONDS[0]
        self._look_at = float("inf")
        self._reason = ""
        self._turn = 0
        self._said = False

    @property
    def connector(self) -> Connector:
        """That by which the site is read without the session, the next time."""
        return self._connectors[self._current]

    def refused_too(self) -> None:
        """The broker did not give out this either."""
        self._current = (self._current + 1) % len(self._connectors)

    @property
    def due(self) -> bool:
        """Whether the site is to be read without the session when it is refused once more."""
        return self._refusals >= REFUSALS

    @property
    def look_due(self) -> bool:
        """Whether it is time to ask for the session, while the site is read without it."""
        return time.monotonic() >= self._look_at

    def refused(self, reason: str) -> None:
        """The broker was reached, and did not give out the session."""
        self._refusals += 1
        self._reason = reason

    def began(self) -> None:
        """Reading without the session begins."""
        self._look_at = time.monotonic() + self._wait
        if not self._said:
            self._said = True
            log.warning(
                "site %s: the group's session can't be read (%s): only what is published from now on is, until it can",
                self._site.name,
                self._reason,
            )

    def over(self) -> None:
        """The session is read."""
        self._refusals = 0
        self._wait = LOOK_SECONDS[0]
        self._said = False

    def look(self, open_session: Callable[[Endpoint, float], Link | Ended]) -> tuple[Link, Endpoint] | None:
        """Ask for the session at one endpoint; returns it with its subscriptions made, or None.

        Takes at most half a keepalive interval, since nothing else is read meanwhile.
        """
        endpoint = self._site.endpoints[self._turn % len(self._site.endpoints)]
        self._turn += 1
        budget = min(self._site.connect_timeout, self._site.heartbeat / 2)
        found = open_session(endpoint, time.monotonic() + budget)
        if isinstance(found, Link):
            return found, endpoint
        self._wait = min(2 * self._wait, LOOK_SECONDS[1])
        self._look_at = time.monotonic() + self._wait
        return None
