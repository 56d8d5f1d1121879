"""Finds out which of several control addresses a broker closes the connection over.

A broker that refuses an address may end the whole connection without saying which address it was. So every address that
was unanswered when a connection ended is *isolated*: retried alone, with no other address unanswered. If the connection
ends over it each time, it is *quarantined*: not used for a while, longer each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from reliamsg.logs import Log

__all__ = ["MAX_ISOLATED", "QUARANTINE_SECONDS", "AddressQuarantine"]

log: Log = Log(__name__)

STRIKES = 2
"""A connection that ends this often in a row over one address alone is no coincidence."""

QUARANTINE_SECONDS = (10.0, 900.0)
"""How long an address is not used: the first time, and at most. Short at first, since coincidences happen, and a
consumer that does not receive at its own address does not deliver."""

MAX_ISOLATED = 1_000
"""How many addresses are remembered; beyond that the oldest are forgotten, and found again."""


@dataclass(slots=True)
class _Isolated:
    strikes: int = 0
    until: float = 0.0
    """Not to be used before."""
    wait: float = 0.0
    """How long it was last quarantined; 0 if never."""
    reason: str = ""


class AddressQuarantine:
    """The isolated addresses of one site, for one purpose. I/O thread only, except :attr:`refused`."""

    def __init__(self, site: str, purpose: str) -> None:
        """`purpose` completes "control frames can't be …" in the log."""
        self._site = site
        self._purpose = purpose
        self._isolated: dict[str, _Isolated] = {}
        self._logged: set[str] = set()
        self.refused: tuple[str, ...] = ()
        """Addresses in quarantine, sorted. Any thread."""

    def __contains__(self, address: str) -> bool:
        """Whether the address is to be tried alone, or not at all."""
        return address in self._isolated

    def may_try(self, address: str, now: float) -> bool:
        """Whether an isolated address may be tried now, alone."""
        return now >= self._isolated[address].until

    def connection_ended(self, unanswered: Collection[str], reason: str, now: float) -> bool:
        """A connection ended while these were unanswered; return whether that proves one of them to be the cause."""
        for address in unanswered:
            self._isolated.setdefault(address, _Isolated())
        while len(self._isolated) > MAX_ISOLATED:
            del self._isolated[next(iter(self._isolated))]
        proven = False
        if len(unanswered) == 1:
            (address,) = unanswered
            isolated = self._isolated[address]
            isolated.strikes += 1
            proven = isolated.strikes >= STRIKES
            if proven:
                self.quarantine(address, f"the connection ends over it ({reason})", now)
        self._update_refused()
        return proven

    def quarantine(self, address: str, reason: str, now: float) -> None:
        """The broker refuses this address."""
        isolated = self._isolated.setdefault(address, _Isolated())
        # An address that was in quarantine before needs no second proof.
        isolated.strikes = STRIKES - 1
        isolated.wait = min(max(2 * isolated.wait, QUARANTINE_SECONDS[0]), QUARANTINE_SECONDS[1])
        isolated.until, isolated.reason = now + isolated.wait, reason
        if address not in self._logged:
            if len(self._logged) < MAX_ISOLATED:
                self._logged.add(address)
            log.warning(
                "transport.control_address_refused",
                "site %(site)s: control frames can't be %(purpose)s %(address)r: %(reason)s; others are not affected",
                site=self._site, purpose=self._purpose, address=address, reason=reason,
            )  # fmt: skip
        self._update_refused()

    def clear(self, address: str) -> None:
        """The broker accepted this address."""
        isolated = self._isolated.pop(address, None)
        if isolated is not None and isolated.wait:
            log.info(
                "transport.control_address_accepted",
                "site %(site)s: control frames can be %(purpose)s %(address)r again",
                site=self._site, purpose=self._purpose, address=address,
            )  # fmt: skip
            self._logged.discard(address)
            self._update_refused()

    def _update_refused(self) -> None:
        self.refused = tuple(sorted(a for a, isolated in self._isolated.items() if isolated.wait))
