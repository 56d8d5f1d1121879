"""Reading a group's messages while its session is unavailable.

A session lives on one node of a broker's cluster. While that node is down, the others may know of the session and be
unable to provide it: RabbitMQ's plugin then accepts the connection, and closes it over the subscription, each time.
Instead of waiting for the node, the group reads under another client id, with a session that is not kept: it receives
what is published from now on, and control frames, by which missed messages are repaired. What is stored in the group's
session is delivered when that is available again.

That client id, too, is derived from the group alone, so that a second consumer of the group is noticed: it takes over
the connection. There are two such ids, since a broker may come to withhold one of them like the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from reliamsg.config import Endpoint, Site
from reliamsg.logs import Log
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.session import Ended

__all__ = ["FallbackSession"]

log: Log = Log(__name__)

REFUSALS = 3
"""After how many refusals in a row the fallback is used."""

CHECK_SECONDS = (5.0, 60.0)
"""How long after that the group's session is requested again: the first time, and at most."""


class FallbackSession:
    """When to read without the group's session, and when to return to it. I/O thread only."""

    def __init__(self, site: Site, connectors: Sequence[Connector]) -> None:
        """`connectors` connect under the other client ids."""
        self._connectors = connectors
        self._current = 0
        self._site = site
        self._refusals = 0
        self._wait = CHECK_SECONDS[0]
        self._check_at = float("inf")
        self._reason = ""
        self._turn = 0
        self._logged = False

    @property
    def connector(self) -> Connector:
        """Connects without the session."""
        return self._connectors[self._current]

    def fallback_refused(self) -> None:
        """The broker refused this client id as well."""
        self._current = (self._current + 1) % len(self._connectors)

    @property
    def due(self) -> bool:
        """Whether to read without the session if it is refused once more."""
        return self._refusals >= REFUSALS

    @property
    def check_due(self) -> bool:
        """Whether it is time to request the session, while the site is read without it."""
        return time.monotonic() >= self._check_at

    def refused(self, reason: str) -> None:
        """The broker was reached, and did not provide the session."""
        self._refusals += 1
        self._reason = reason

    def began(self) -> None:
        """Reading without the session begins."""
        self._check_at = time.monotonic() + self._wait
        if not self._logged:
            self._logged = True
            log.warning(
                "transport.session_unavailable",
                "site %(site)s: the group's session can't be read (%(reason)s): only what is published from now on is,"
                " until it can",
                site=self._site.name,
                reason=self._reason,
            )

    def over(self) -> None:
        """The session is read."""
        self._refusals = 0
        self._wait = CHECK_SECONDS[0]
        self._logged = False

    def check(
        self, open_session: Callable[[Endpoint, float], MqttConnection | Ended]
    ) -> tuple[MqttConnection, Endpoint] | None:
        """Request the session at one endpoint; returns it with its subscriptions made, or None.

        Takes at most half a keepalive interval, since nothing else is read meanwhile.
        """
        endpoint = self._site.endpoints[self._turn % len(self._site.endpoints)]
        self._turn += 1
        budget = min(self._site.connect_timeout, self._site.heartbeat / 2)
        found = open_session(endpoint, time.monotonic() + budget)
        if isinstance(found, MqttConnection):
            return found, endpoint
        self._wait = min(2 * self._wait, CHECK_SECONDS[1])
        self._check_at = time.monotonic() + self._wait
        return None
