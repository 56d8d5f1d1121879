"""The lease: proof that this inbox is still the one that reads, and the heartbeats of the group's other inboxes.

Each inbox publishes its state at the group's control address every eighth of ``takeover_timeout``: a *heartbeat*. When
an inbox receives its own heartbeat on the connection that it reads with, this proves that it still held the group's
lock, or session, when it sent the heartbeat: whoever takes them ends that connection. Messages are delivered only with
a proof younger than half of ``takeover_timeout``. Another inbox takes over after a whole ``takeover_timeout`` without a
heartbeat: its own setting or that of the inbox that reads, whichever is longer. So a process that was suspended, and
resumes after another has taken over, delivers nothing: its proofs are too old, and no new ones arrive.

Nothing here reads a clock or sends anything. Times are monotonic seconds, provided by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from reliamsg.wire.limits import MAX_NONCE_BYTES

__all__ = ["Heartbeat", "Lease", "Other", "make_nonce", "parse_nonce"]

MAX_OTHERS = 100
"""Other inboxes that are remembered: a limit for forged ones."""
MAX_TOLD_S = 600.0
"""The `takeover_timeout` of another inbox counts up to this: a forged one delays the group no longer."""
_MAX_SENT = 64
"""Heartbeats that may be in flight."""
_RUN_BYTES = 8
_CLAIM_BYTES = MAX_NONCE_BYTES - _RUN_BYTES - 1
_WANTS_ALL = 1
_LEAST = b"\xff"

Role = Literal["active", "standby"]


class Heartbeat(msgspec.Struct, frozen=True):
    """An inbox's announcement of its role."""

    inbox: str
    run: bytes
    """Random, another for each time that the inbox is opened."""
    number: int
    role: Role
    claim: bytes
    """Of two inboxes that both read, the one with the lower claim continues."""
    wants_all: bool
    """A standby asks for the group's position in all streams."""
    takeover_timeout: float = 0.0
    """The inbox's setting; 0 if it is not announced."""

    @property
    def rank(self) -> tuple[bytes, str, bytes]:
        """Of two inboxes in the same role, the one with the lower rank comes first."""
        return self.claim, self.inbox, self.run


def make_nonce(run: bytes, claim: bytes, wants_all: bool) -> bytes:
    """A heartbeat's nonce: the run of the inbox that sends it, and its purpose."""
    return run[:_RUN_BYTES] + bytes([_WANTS_ALL if wants_all else 0]) + claim[:_CLAIM_BYTES]


def parse_nonce(
    inbox: str, number: int, role: Role, nonce: bytes, takeover_timeout: float = 0.0
) -> Heartbeat:
    """A heartbeat from the fields of its frame. A nonce of another form counts as a run with the lowest claim."""
    run, claim, wants_all = nonce, _LEAST, False
    if len(nonce) > _RUN_BYTES:
        run, claim = nonce[:_RUN_BYTES], nonce[_RUN_BYTES + 1 :]
        wants_all = bool(nonce[_RUN_BYTES] & _WANTS_ALL)
    return Heartbeat(inbox, run, number, role, claim, wants_all, min(takeover_timeout, MAX_TOLD_S))


@dataclass(slots=True)
class Other:
    """Another inbox, by its newest heartbeat."""

    heartbeat: Heartbeat
    heard_at: float
    active_at: float
    """When it last announced that it reads; minus infinity if its newest heartbeat announces that it does not."""


class Lease:
    """Keeps proofs and the known state of other inboxes. Not thread-safe."""

    def __init__(self, inbox: str, run: bytes, takeover_timeout: float) -> None:
        self.inbox = inbox
        self.run = run
        self.takeover_timeout = takeover_timeout
        self.every: float = takeover_timeout / 8
        """Between two heartbeats."""
        self.lasts: float = takeover_timeout / 2
        """How long a proof is good for."""
        self.until: float = float("inf")
        """Nothing is delivered from then on. Infinite before the first proof: some brokers do not pass control frames
        on, and locks and sessions have to suffice there."""
        self.others: dict[tuple[str, bytes], Other] = {}
        self.freed_at: float | None = None
        """When an inbox that was reading announced that it has stopped."""
        self.claim: bytes = _LEAST
        """The claim of this inbox's own heartbeats."""
        self._sent: dict[int, float] = {}

    # -- proofs -------------------------------------------------------------------------------------------

    def sent(self, number: int, now: float) -> None:
        """A heartbeat is about to be sent on the connections that this inbox reads with."""
        self._sent[number] = now
        while len(self._sent) > _MAX_SENT:
            del self._sent[next(iter(self._sent))]

    def came_back(self, heartbeat: Heartbeat, now: float) -> bool:
        """An own heartbeat arrived on a connection that is read with; returns whether it proves more than was known.

        A broker delivers heartbeats to everybody in the same order. Of two inboxes that begin at the same time, one
        receives the other's heartbeat before its own first one: it has no proof until the other has yielded. The same
        applies to one whose proofs were too old. Its connection need not have ended: where a broker does not enforce
        one session for each group, each inbox may have its own.
        """
        at = self._sent.get(heartbeat.number)
        if at is None or not self.is_own(heartbeat):
            return False
        if self.lapsed(now) and self.rival(now) is not None:
            return False
        until = at + self.lasts
        if self.until != float("inf") and until <= self.until:
            return False
        self.until = until
        return True

    def is_own(self, heartbeat: Heartbeat) -> bool:
        return (heartbeat.inbox, heartbeat.run) == (self.inbox, self.run)

    def lapsed(self, now: float) -> bool:
        """Whether the newest proof is too old."""
        return now >= self.until

    def expired(self, now: float) -> bool:
        """The same, but False while a first proof is demanded."""
        return self.lapsed(now) and not self.demanding

    @property
    def demanding(self) -> bool:
        """Whether a first proof is demanded and has not arrived."""
        return self.until == float("-inf")

    def demand(self) -> None:
        """Deliver nothing before the next proof: another inbox may have read until now."""
        self.until = float("-inf")
        self._sent.clear()

    def trust(self, now: float) -> None:
        """Something other than a heartbeat proves that this inbox reads now."""
        self.until = now + self.lasts

    def make_claim(self, claim: bytes) -> None:
        """Set what this inbox's own heartbeats claim."""
        self.claim = claim

    def claim_now(self, now: float) -> bytes:
        """The claim of a heartbeat that announces reading. With proofs that are too old it is the lowest: an inbox
        that has taken over must not yield to this one, which is about to notice."""
        return _LEAST if self.expired(now) else self.claim

    @property
    def own_rank(self) -> tuple[bytes, str, bytes]:
        return self.claim, self.inbox, self.run

    # -- other inboxes ------------------------------------------------------------------------------------

    def heartbeat_received(self, heartbeat: Heartbeat, now: float) -> bool:
        """Another inbox's heartbeat arrived; returns whether it is new."""
        key = (heartbeat.inbox, heartbeat.run)
        other = self.others.get(key)
        if other is None:
            if len(self.others) >= MAX_OTHERS:
                # Those that read are kept first: forged ones that wait must not displace them.
                oldest = min(
                    self.others, key=lambda each: (self.others[each].active_at, self.others[each].heard_at)
                )
                del self.others[oldest]
            other = self.others[key] = Other(heartbeat, now, float("-inf"))
        elif heartbeat.number <= other.heartbeat.number:
            return False
        if other.active_at > float("-inf") and heartbeat.role == "standby":
            self.freed_at = now
        other.heartbeat, other.heard_at = heartbeat, now
        other.active_at = now if heartbeat.role == "active" else float("-inf")
        return True

    def rival(self, now: float) -> Other | None:
        """Another inbox that may still be reading, by its heartbeats; of several, the one of the lowest rank."""
        if not self.others:
            return None
        rivals = [each for each in self.others.values() if now < self._may_read_until(each)]
        return min(rivals, key=lambda each: each.heartbeat.rank, default=None)

    def taken_until(self) -> float:
        """When the last of the other inboxes stops reading, unless a new heartbeat of one arrives."""
        return max(map(self._may_read_until, self.others.values()), default=float("-inf"))

    def _may_read_until(self, other: Other) -> float:
        """The longer of the two inboxes' settings counts."""
        return other.active_at + max(self.takeover_timeout, other.heartbeat.takeover_timeout)

    def silent_since(self) -> float:
        """When another inbox last announced that it reads."""
        return max((each.active_at for each in self.others.values()), default=float("-inf"))

    @property
    def another_read(self) -> bool:
        """Whether another inbox ever announced that it reads."""
        return self.freed_at is not None or self.silent_since() > float("-inf")

    def standbys(self, now: float) -> list[Other]:
        """Other inboxes that wait."""
        return [
            each
            for each in self.others.values()
            if each.heartbeat.role == "standby" and now - each.heard_at < 3 * self.every
        ]

    def rank(self, now: float) -> int:
        """How many of the waiting inboxes take over before this one."""
        return sum(other.heartbeat.rank < self.own_rank for other in self.standbys(now))
