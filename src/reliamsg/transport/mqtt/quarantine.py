"""Which of several control addresses a broker closes the connection over.

A broker that refuses an address may end the whole connection, without saying which address it was. So whatever was
unanswered when a connection ended is a *suspect*. Suspects are tried again one at a time, with nothing else unanswered.
One over which the connection ends each time is *quarantined*: not used for a while, longer each time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["MAX_SUSPECTS", "QUARANTINE_SECONDS", "Suspects"]

log = logging.getLogger(__name__)

STRIKES = 2
"""A connection that ends this often in a row over one address alone is no coincidence."""

QUARANTINE_SECONDS = (10.0, 900.0)
"""How long an address is not used: the first time, and at most. Short at first, since coincidences happen, and a
consumer that does not hear its own address does not deliver."""

MAX_SUSPECTS = 1_000
"""Addresses that are remembered; of any more the oldest are forgotten, and found again."""


@dataclass(slots=True)
class _Suspect:
    strikes: int = 0
    until: float = 0.0
    """Not to be used before."""
    wait: float = 0.0
    """How long it was quarantined for last; 0 where it never was."""
    reason: str = ""


class Suspects:
    """The addresses of one site, for one purpose. I/O thread only, but for :attr:`refused`."""

    def __init__(self, site: str, purpose: str) -> None:
        """`purpose` completes "control frames can't be …" in the log."""
        self._site = site
        self._purpose = purpose
        self._suspects: dict[str, _Suspect] = {}
        self._said: set[str] = set()
        self.refused: tuple[str, ...] = ()
        """Addresses in quarantine, sorted. Any thread."""

    def __contains__(self, address: str) -> bool:
        """Whether the address is to be tried alone, or not at all."""
        return address in self._suspects

    def may_try(self, address: str, now: float) -> bool:
        """Whether a suspect may be tried now, alone."""
        return now >= self._suspects[address].until

    def ended(self, unanswered: Collection[str], reason: str, now: float) -> bool:
        """A connection ended while the broker had not answered to these; returns whether one was found guilty."""
        for address in unanswered:
            self._suspects.setdefault(address, _Suspect())
        while len(self._suspects) > MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        guilty = False
        if len(unanswered) == 1:
            (address,) = unanswered
            suspect = self._suspects[address]
            suspect.strikes += 1
            guilty = suspect.strikes >= STRIKES
            if guilty:
                self.quarantine(address, f"the connection ends over it ({reason})", now)
        self._note()
        return guilty

    def quarantine(self, address: str, reason: str, now: float) -> None:
        """The broker refuses this address."""
        suspect = self._suspects.setdefault(address, _Suspect())
        # One that was in quarantine before needs no second proof.
        suspect.strikes = STRIKES - 1
        suspect.wait = min(max(2 * suspect.wait, QUARANTINE_SECONDS[0]), QUARANTINE_SECONDS[1])
        suspect.until, suspect.reason = now + suspect.wait, reason
        if address not in self._said:
            if len(self._said) < MAX_SUSPECTS:
                self._said.add(address)
            log.warning(
                "site %s: control frames can't be %s %r: %s; others are not affected",
                self._site, self._purpose, address, reason,
            )  # fmt: skip
        self._note()

    def cleared(self, address: str) -> None:
        """The broker took it."""
        suspect = self._suspects.pop(address, None)
        if suspect is not None and suspect.wait:
            log.info("site %s: control frames can be %s %r again", self._site, self._purpose, address)
            self._said.discard(address)
            self._note()

    def _note(self) -> None:
        self.refused = tuple(sorted(a for a, s in self._suspects.items() if s.wait))
