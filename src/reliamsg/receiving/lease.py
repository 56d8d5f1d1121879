"""The lease: proofs that this inbox is still the one that reads, and what other inboxes of the group say.

Each inbox says at the group's control address who it is: a *beacon*, an eighth of ``takeover_timeout`` apart. Hearing
its own beacon on the connection that it reads with proves that it still held the group's lock, or session, when it
sent it: whoever takes them ends that connection. What is handed out needs a proof younger than half of
``takeover_timeout``. Another inbox takes over after a whole one without a beacon: its own or that of the inbox that
reads, whichever is longer. So a process that was stopped, and goes on after another has taken over, hands out nothing:
its proofs are too old, and no more of them come.

Nothing here reads a clock or sends anything. Times are monotonic seconds, those of the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from reliamsg.wire.limits import MAX_NONCE_BYTES

__all__ = ["Beacon", "Lease", "Other", "make_nonce", "parse_nonce"]

MAX_OTHERS = 100
"""Other inboxes that are remembered; there is no use in many, and made-up ones cost nothing more."""
MAX_TOLD_S = 600.0
"""A `takeover_timeout` that another inbox told counts up to this: a made-up one holds the group up no longer."""
_MAX_SENT = 64
"""Beacons that may be on their way."""
_RUN_BYTES = 8
_CLAIM_BYTES = MAX_NONCE_BYTES - _RUN_BYTES - 1
_WANTS_ALL = 1
_LEAST = b"\xff"

Role = Literal["active", "standby"]


class Beacon(msgspec.Struct, frozen=True):
    """What an inbox says of itself."""

    inbox: str
    run: bytes
    """Random, another for each time that the inbox is opened."""
    number: int
    role: Role
    claim: bytes
    """Of two that both read, the one with the lower claim goes on."""
    wants_all: bool
    """A standby that wants to know the group's position in all streams."""
    takeover_timeout: float = 0.0
    """That of the inbox; 0 where it does not say."""

    @property
    def rank(self) -> tuple[bytes, str, bytes]:
        """Of two in the same position, the lower one comes first."""
        return self.claim, self.inbox, self.run


def make_nonce(run: bytes, claim: bytes, wants_all: bool) -> bytes:
    """A beacon's nonce: who sends it in which run, and what for."""
    return run[:_RUN_BYTES] + bytes([_WANTS_ALL if wants_all else 0]) + claim[:_CLAIM_BYTES]


def parse_nonce(inbox: str, number: int, role: Role, nonce: bytes, takeover_timeout: float = 0.0) -> Beacon:
    """A beacon from what its frame holds. A nonce of another form names its own run, and claims least."""
    run, claim, wants_all = nonce, _LEAST, False
    if len(nonce) > _RUN_BYTES:
        run, claim = nonce[:_RUN_BYTES], nonce[_RUN_BYTES + 1 :]
        wants_all = bool(nonce[_RUN_BYTES] & _WANTS_ALL)
    return Beacon(inbox, run, number, role, claim, wants_all, min(takeover_timeout, MAX_TOLD_S))


@dataclass(slots=True)
class Other:
    """Another inbox, by its newest beacon."""

    beacon: Beacon
    heard_at: float
    active_at: float
    """When it said last that it reads; minus infinity where it says that it does not."""


class Lease:
    """Proofs, and other inboxes. Not thread-safe."""

    def __init__(self, inbox: str, run: bytes, takeover_timeout: float) -> None:
        self.inbox = inbox
        self.run = run
        self.takeover_timeout = takeover_timeout
        self.every = takeover_timeout / 8
        """Between two beacons."""
        self.lasts = takeover_timeout / 2
        """How long a proof is good for."""
        self.until = float("inf")
        """Nothing is handed out from then on. Infinite while there has been no proof at all: not every broker lets
        its users see control frames, and there locks and sessions must do."""
        self.others: dict[tuple[str, bytes], Other] = {}
        self.freed_at: float | None = None
        """When an inbox that had read said that it does not any more."""
        self.claim = _LEAST
        """What this inbox's own beacons claim."""
        self._sent: dict[int, float] = {}

    # -- proofs -------------------------------------------------------------------------------------------

    def sent(self, number: int, now: float) -> None:
        """A beacon is about to be sent on the connections that are read with."""
        self._sent[number] = now
        while len(self._sent) > _MAX_SENT:
            del self._sent[next(iter(self._sent))]

    def came_back(self, beacon: Beacon, now: float) -> bool:
        """An own beacon was heard on a connection that is read with; returns whether it proves more than was known.

        A broker lets everybody hear beacons in one order. Of two inboxes that begin at once, one hears the other's
        beacon before its own first one comes back: that one has no proof, before the other has yielded. The same goes
        for one whose proofs were too old. Its connection need not have ended: where a broker does not give out a
        group's session, each inbox may have one of its own.
        """
        at = self._sent.get(beacon.number)
        if at is None or not self.is_own(beacon):
            return False
        if self.lapsed(now) and self.rival(now) is not None:
            return False
        until = at + self.lasts
        if self.until != float("inf") and until <= self.until:
            return False
        self.until = until
        return True

    def is_own(self, beacon: Beacon) -> bool:
        return (beacon.inbox, beacon.run) == (self.inbox, self.run)

    def lapsed(self, now: float) -> bool:
        """Whether there was a proof, and it is too old."""
        return now >= self.until

    def expired(self, now: float) -> bool:
        """The same, where no new one is demanded at present."""
        return self.lapsed(now) and not self.demanding

    @property
    def demanding(self) -> bool:
        """Whether the first proof is to come yet."""
        return self.until == float("-inf")

    def demand(self) -> None:
        """Nothing is handed out before the next proof: another may have read until now."""
        self.until = float("-inf")
        self._sent.clear()

    def trust(self, now: float) -> None:
        """Something else than a beacon proves at present that this inbox reads."""
        self.until = now + self.lasts

    def make_claim(self, claim: bytes) -> None:
        """From now on this inbox's own beacons claim this."""
        self.claim = claim

    def claim_now(self, now: float) -> bytes:
        """What a beacon claims that says that this inbox reads. With proofs that are too old it claims least: whoever
        has taken over must not yield to one that is about to find that out."""
        return _LEAST if self.expired(now) else self.claim

    @property
    def own_rank(self) -> tuple[bytes, str, bytes]:
        return self.claim, self.inbox, self.run

    # -- other inboxes ------------------------------------------------------------------------------------

    def heard(self, beacon: Beacon, now: float) -> bool:
        """Another inbox's beacon was heard; returns whether it is new."""
        key = (beacon.inbox, beacon.run)
        other = self.others.get(key)
        if other is None:
            if len(self.others) >= MAX_OTHERS:
                # Whoever reads is remembered first: it must not be pushed out by made-up ones that wait.
                oldest = min(
                    self.others, key=lambda each: (self.others[each].active_at, self.others[each].heard_at)
                )
                del self.others[oldest]
            other = self.others[key] = Other(beacon, now, float("-inf"))
        elif beacon.number <= other.beacon.number:
            return False
        if other.active_at > float("-inf") and beacon.role == "standby":
            self.freed_at = now
        other.beacon, other.heard_at = beacon, now
        other.active_at = now if beacon.role == "active" else float("-inf")
        return True

    def rival(self, now: float) -> Other | None:
        """Another inbox that said lately that it reads, and may do so yet: of several the one that claims most."""
        if not self.others:
            return None
        rivals = [each for each in self.others.values() if now < self._may_read_until(each)]
        return min(rivals, key=lambda each: each.beacon.rank, default=None)

    def taken_until(self) -> float:
        """From when on no other inbox reads, if none says so again."""
        return max(map(self._may_read_until, self.others.values()), default=float("-inf"))

    def _may_read_until(self, other: Other) -> float:
        """Its proofs last by its own setting, and this inbox may yield to it by its own."""
        return other.active_at + max(self.takeover_timeout, other.beacon.takeover_timeout)

    def silent_since(self) -> float:
        """When another inbox said last that it reads."""
        return max((each.active_at for each in self.others.values()), default=float("-inf"))

    @property
    def another_read(self) -> bool:
        """Whether another inbox ever said that it reads."""
        return self.freed_at is not None or self.silent_since() > float("-inf")

    def standbys(self, now: float) -> list[Other]:
        """Other inboxes that wait."""
        return [
            each
            for each in self.others.values()
            if each.beacon.role == "standby" and now - each.heard_at < 3 * self.every
        ]

    def rank(self, now: float) -> int:
        """How many of those that wait as this one does, or with more right, come before it."""
        return sum(other.beacon.rank < self.own_rank for other in self.standbys(now))
