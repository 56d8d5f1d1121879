"""Whether a site is connected, for status and log. The log has one line for each change, not one for each attempt."""

from __future__ import annotations

import logging

from reliamsg.transport.base import is_refusal

__all__ = ["Connectivity"]

log = logging.getLogger("reliamsg.producer")

MAX_LOGGED = 50
"""With more different failures than this the oldest are forgotten, and logged again if they return."""


class Connectivity:
    """One site's. Changed on its transport's I/O thread; its attributes may be read on any thread."""

    def __init__(self, producer: str, site: str) -> None:
        self.state = "connecting"
        self.endpoint = ""
        self.error = ""
        """The latest failure; empty while the site is connected and not blocked."""
        self._producer = producer
        self._site = site
        self._logged: dict[tuple[str, str, str], None] = {}
        """State, endpoint and reason of what was logged since the site was last connected."""

    def connected(self, endpoint: str) -> None:
        """It is connected."""
        self.endpoint = endpoint
        self._is_up()

    def disconnected(self, reason: str, expected: bool) -> None:
        """The connection is gone. `expected`: since the producer is being closed."""
        self._is_down("connecting", reason, "disconnected", logging.INFO if expected else logging.WARNING)

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed; `credentials`: the broker refused the login."""
        self.endpoint = endpoint
        state = "refused credentials" if credentials else "refused" if is_refusal(reason) else "unreachable"
        self._is_down(state, reason, state)

    def blocked(self, reason: str | None) -> None:
        """The broker asked to stop sending, or (None) to continue."""
        if reason is None:
            self._is_up()
        else:
            self._is_down("blocked", reason, "blocked")

    def _is_up(self) -> None:
        self.state, self.error = "connected", ""
        self._logged.clear()
        log.info("producer %s: site %s is connected: %s", self._producer, self._site, self.endpoint)

    def _is_down(self, state: str, reason: str, word: str, level: int = logging.WARNING) -> None:
        self.state, self.error = state, reason
        failure = word, self.endpoint, reason
        if failure in self._logged:
            return
        self._logged[failure] = None
        if len(self._logged) > MAX_LOGGED:
            del self._logged[next(iter(self._logged))]
        log.log(
            level, "producer %s: site %s is %s: %s (%s); messages wait in the outbox",
            self._producer, self._site, word, reason, self.endpoint,
        )  # fmt: skip
