"""Whether a site is connected, for status and log. The log has one line for each change, not one for each attempt."""

from __future__ import annotations

from reliamsg.logs import Log
from reliamsg.transport.base import is_refusal

__all__ = ["Connectivity"]

log: Log = Log("reliamsg.producer")

MAX_LOGGED = 50
"""With more different failures than this the oldest are forgotten, and logged again if they return."""


class Connectivity:
    """One site's. Changed on its transport's I/O thread; its attributes may be read on any thread."""

    def __init__(self, producer: str, site: str) -> None:
        self.state: str = "connecting"
        self.endpoint: str = ""
        self.error: str = ""
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
        if not self._is_news("connecting", reason, "disconnected"):
            return
        if expected:
            log.info(
                "producer.site_closed",
                "producer %(producer)s: site %(site)s is disconnected: %(reason)s (%(endpoint)s)",
                producer=self._producer, site=self._site, endpoint=self.endpoint, reason=reason,
            )  # fmt: skip
        else:
            log.warning(
                "producer.site_disconnected",
                "producer %(producer)s: site %(site)s is disconnected: %(reason)s (%(endpoint)s); messages wait in the"
                " outbox",
                producer=self._producer, site=self._site, endpoint=self.endpoint, reason=reason,
            )  # fmt: skip

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """An attempt to connect failed; `credentials`: the broker refused the login."""
        self.endpoint = endpoint
        state = "refused credentials" if credentials else "refused" if is_refusal(reason) else "unreachable"
        if self._is_news(state, reason, state):
            log.warning(
                "producer.site_unreachable",
                "producer %(producer)s: site %(site)s is %(state)s: %(reason)s (%(endpoint)s); messages wait in the"
                " outbox",
                producer=self._producer, site=self._site, endpoint=self.endpoint, state=state, reason=reason,
            )  # fmt: skip

    def blocked(self, reason: str | None) -> None:
        """The broker asked to stop sending, or (None) to continue."""
        if reason is None:
            self._is_up()
        elif self._is_news("blocked", reason, "blocked"):
            log.warning(
                "producer.site_blocked",
                "producer %(producer)s: site %(site)s is blocked: %(reason)s (%(endpoint)s); messages wait in the"
                " outbox",
                producer=self._producer, site=self._site, endpoint=self.endpoint, reason=reason,
            )  # fmt: skip

    def _is_up(self) -> None:
        self.state, self.error = "connected", ""
        self._logged.clear()
        log.info(
            "producer.site_connected", "producer %(producer)s: site %(site)s is connected: %(endpoint)s",
            producer=self._producer, site=self._site, endpoint=self.endpoint,
        )  # fmt: skip

    def _is_news(self, state: str, reason: str, word: str) -> bool:
        """It is down. Returns whether that is to be logged."""
        self.state, self.error = state, reason
        failure = word, self.endpoint, reason
        if failure in self._logged:
            return False
        self._logged[failure] = None
        if len(self._logged) > MAX_LOGGED:
            del self._logged[next(iter(self._logged))]
        return True
