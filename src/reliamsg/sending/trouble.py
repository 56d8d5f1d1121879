"""What a producer's log says of a site's connection: once for each change, however often it is tried again."""

from __future__ import annotations

import logging

__all__ = ["Trouble"]

MAX_TOLD = 50
"""With more different troubles than this the oldest are forgotten, and told again should they return."""


class Trouble:
    """One site. Called on its transport's I/O thread."""

    def __init__(self, producer: str, site: str, log: logging.Logger) -> None:
        self._producer = producer
        self._site = site
        self._log = log
        self._told: dict[tuple[str, str, str], None] = {}
        """State, endpoint and reason of what was said since the site was last connected."""

    def is_up(self, endpoint: str) -> None:
        """It is connected, or goes on after it was blocked."""
        self._told.clear()
        self._log.info("producer %s: site %s is connected: %s", self._producer, self._site, endpoint)

    def is_down(self, state: str, endpoint: str, reason: str, expected: bool = False) -> None:
        """It is not. `expected`: since the producer is being closed."""
        told = state, endpoint, reason
        if told in self._told:
            return
        self._told[told] = None
        if len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
        level = logging.INFO if expected else logging.WARNING
        self._log.log(
            level, "producer %s: site %s is %s: %s (%s); messages wait in the outbox",
            self._producer, self._site, state, reason, endpoint,
        )  # fmt: skip
