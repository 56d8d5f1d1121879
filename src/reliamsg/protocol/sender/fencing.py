"""Whether a newly opened epoch may be sent, or conflicts with another history of this producer.

An outbox that was restored from a backup, or copied, may open an epoch below one that groups have already entered.
Groups would declare its messages lost and never deliver them. So the data of an epoch first waits behind a *gate*: a
hello (a status) goes to the named groups, which answer with the epoch that they have entered, and to the producer's own
address, where a live twin answers.

=====================================  ====================================================================
event                                  effect
=====================================  ====================================================================
all named groups answer, none ahead    the gate opens at once
no answer within `timeout`             the gate opens: absent groups can't be waited for
a named group entered a higher epoch   a twin has `timeout` to answer; then everything that was never offered
                                       to a site is renumbered into an epoch above, and the gate opens
the same, with a *far* epoch           if frames are not signed, the group has to confirm it within `timeout`; a
                                       claim that is not repeated, or is taken back, does not count
the same, too high to move above       this producer is fenced
a twin with a higher epoch             this producer is fenced: it stops for good
a twin with a far epoch                reported, and not believed if frames are not signed
a twin with a lower epoch              it is sent a hello, so that it stops
another incarnation of this epoch      as a higher epoch: the groups will not accept ours
an earlier opening had learned that    the same, even if no group answers this one
a named group is ahead
an unknown epoch between this one and  as a higher epoch: the groups would not accept what an earlier opening
a lower one that was never offered     stored
=====================================  ====================================================================

The same applies after the gate has opened: it closes again until the conflict is resolved. The timeout starts when the
first site is connected; for conflicts that are found later it is at least a second. A group that is named later is not
waited for, but counts from then on. Without named groups the gate is always open, and conflicting histories are only
reported; with a timeout of 0 it is open until a group is ahead. Not thread-safe; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from reliamsg.message import Stream
from reliamsg.protocol.horizon import FAR_MS
from reliamsg.wire.limits import MAX_EPOCH

__all__ = ["Conflict", "Fence", "Verdict"]

HELLO_EVERY_S = 0.25
"""How often the hello is repeated while the gate is closed, as it may have been lost."""
DECIDES_S = 1.0
"""The least time that a twin has to answer once a group is ahead, even if the timeout for groups is shorter."""
ROOM = 2**31
"""The room that must be left above a group's epoch for ours, which advance by random steps."""
MAX_CONFLICTS = 100
"""The most conflicts that are remembered, so that each is reported once."""


class Verdict(Enum):
    """What to do with this epoch."""

    WAIT = "wait"
    """This epoch must not be sent yet."""
    SEND = "send"
    RENUMBER = "renumber"
    """Move everything that was never offered to a site into an epoch above :attr:`Fence.above`, then call
    :meth:`Fence.renumbered`."""
    FENCED = "fenced"
    """A newer owner of this producer id is alive: stop with ProducerFenced."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A group knows another history of this producer id, to be reported once as ProducerConflict."""

    group: str
    stream: Stream
    epoch: int
    incarnation: int
    reason: str = field(compare=False)
    doubted: bool = field(compare=False, default=False)
    """The epoch is far and frames are not signed, so it may be forged."""


@dataclass(slots=True)
class _Claim:
    """A group's claim that it has entered a far epoch."""

    epoch: int
    incarnation: int
    until: float
    repeated: bool = False


class Fence:
    """The gate of one producer."""

    def __init__(
        self,
        epoch: int,
        incarnation: int,
        groups: Iterable[str],
        timeout: float,
        signed: bool = False,
        lowest: int | None = None,
        surpassed_by: int = 0,
    ) -> None:
        """`groups`: those that are named for any topic. `signed`: frames are signed, so their contents are trusted.
        `lowest`: the lowest epoch of which nothing was offered to any site; None if that is `epoch`. `surpassed_by`:
        the highest epoch that a named group had entered, as an earlier opening learned; 0 for none."""
        self.epoch: int = epoch
        self.incarnation: int = incarnation
        self._lowest = epoch if lowest is None else lowest
        """The lowest epoch that can still be renumbered."""
        self.above: int = surpassed_by if surpassed_by >= self._lowest else 0
        """The highest epoch that a named group entered and that is not part of this history; 0 for none."""
        self.fenced_by: tuple[int, int] | None = None
        """Epoch and incarnation of the twin that fenced this producer."""
        self.fencing_group: str = ""
        """The group whose epoch this producer can't move above, if that fenced it."""
        self._signed = signed
        self._claims: dict[str, dict[Stream, _Claim]] = {}
        self._timeout = timeout
        self._conflict_timeout = max(timeout, DECIDES_S)
        self._unanswered = set(groups) if timeout > 0 else set()
        self._until: float | None = None
        """When waiting ends; None before the first connection, or if nothing is waited for."""
        self._started = False
        self._hello_at: float | None = None
        self._hello_sent = float("-inf")
        self._reported: set[Conflict] = set()

    # -- events ---------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """A site was connected. The groups have `timeout` to answer from the first connection on."""
        if not self._started:
            self._started = True
            self._until = now + (self._conflict_timeout if self.above else self._timeout)
        self._hello_at = now

    @property
    def awaited(self) -> set[str]:
        """The groups that are waited for."""
        return self._unanswered | self._claims.keys()

    def dropped(self, group: str) -> None:
        """The group is not named any more."""
        self._unanswered.discard(group)
        self._claims.pop(group, None)

    def reported(
        self,
        group: str,
        stream: Stream,
        entered: tuple[int, int],
        chain: Iterable[tuple[int, int]],
        now: float,
        wall_ms: int = 0,
        *,
        named: bool,
    ) -> Conflict | None:
        """A group reported the epoch of a stream that it has entered, with its incarnation ((0, 0) for none).

        `chain`: the epochs of the stream that this producer knows, and their incarnations; this epoch may be missing.
        `wall_ms`: this host's clock, which bounds plausible epochs. `named`: the group is named for some topic; epochs
        of other groups are only reported. Returns a conflict to report; each is returned once.
        """
        epoch, incarnation = entered
        far = self._is_far(epoch, wall_ms)
        if not far and group in self._claims:
            self._claims[group].pop(stream, None)
            if not self._claims[group]:
                del self._claims[group]
        if epoch == 0:
            return None
        if epoch == self.epoch:
            reason = "" if incarnation == self.incarnation else f"epoch {epoch} is another incarnation there"
        elif epoch > self.epoch:
            reason = f"epoch {epoch} was entered there, which is above this one ({self.epoch})"
        else:
            reason = self._clash(epoch, incarnation, dict(chain))
        if not reason:
            return None
        if epoch >= self._lowest and named:
            if far:
                self._doubt(group, stream, epoch, incarnation, now)
            else:
                self._believe(group, epoch, incarnation, now)
        return self._once(Conflict(group, stream, epoch, incarnation, reason, far))

    def _once(self, conflict: Conflict) -> Conflict | None:
        if conflict in self._reported or len(self._reported) >= MAX_CONFLICTS:
            return None
        self._reported.add(conflict)
        return conflict

    def _is_far(self, epoch: int, wall_ms: int) -> bool:
        return not self._signed and epoch > max(wall_ms, self.epoch) + FAR_MS

    def _doubt(self, group: str, stream: Stream, epoch: int, incarnation: int, now: float) -> None:
        """The group has to repeat a far epoch: otherwise one forged state would send this producer far ahead."""
        claims = self._claims.setdefault(group, {})
        claim = claims.get(stream)
        if claim is None:
            claims[stream] = _Claim(epoch, incarnation, now + self._conflict_timeout)
            self._hello_at = now
        elif (claim.epoch, claim.incarnation) == (epoch, incarnation):
            claim.repeated = True
        else:
            claim.epoch, claim.incarnation, claim.repeated = epoch, incarnation, False

    def _settle_claims(self, now: float) -> None:
        """Believe claims that were repeated in time, and drop those that were not."""
        for group, claims in list(self._claims.items()):
            for stream, claim in list(claims.items()):
                if claim.until <= now:
                    del claims[stream]
                    if claim.repeated and claim.epoch >= self._lowest:
                        self._believe(group, claim.epoch, claim.incarnation, now)
            if not claims:
                del self._claims[group]

    def _believe(self, group: str, epoch: int, incarnation: int, now: float) -> None:
        """A named group is ahead. The owner of that epoch gets as long to answer, counted from now."""
        if epoch < MAX_EPOCH - ROOM:
            if self.above == 0:
                self._until = now + self._conflict_timeout
                self._hello_at = now
            self.above = max(self.above, epoch)
        elif self.fenced_by is None:
            self.fenced_by, self.fencing_group = (epoch, incarnation), group

    def answered(self, group: str) -> None:
        """All streams in the group's answer were passed to :meth:`reported`."""
        self._unanswered.discard(group)

    def twin_reported(self, epoch: int, incarnation: int, now: float, wall_ms: int = 0) -> Conflict | None:
        """A status of this producer id arrived; this incarnation's own are ignored. Returns a conflict to report."""
        if incarnation == self.incarnation and epoch == self.epoch:
            return None
        if self._is_far(epoch, wall_ms):
            reason = (
                f"it claims to be in epoch {epoch}, far above this one ({self.epoch}), and is not believed"
            )
            return self._once(Conflict("", Stream("", ""), epoch, incarnation, reason, True))
        if (epoch, incarnation) > (self.epoch, self.incarnation):
            self.fenced_by = (epoch, incarnation)
        else:
            at = max(now, self._hello_sent + HELLO_EVERY_S)
            self._hello_at = at if self._hello_at is None else min(self._hello_at, at)
        return None

    def began(self, epoch: int) -> None:
        """Everything stored before this epoch was offered, or may be from now on."""
        self.epoch = self._lowest = epoch

    def renumbered(self, epoch: int, incarnation: int) -> None:
        """What was never offered now has an epoch above :attr:`above`, and so does everything that follows."""
        self.began(epoch)
        self.incarnation = incarnation
        self.above = 0
        self._until = None
        self._unanswered = set()
        self._claims.clear()

    # -- decisions ------------------------------------------------------------------------------------------

    def verdict(self, now: float) -> Verdict:
        """What to do now."""
        if self._claims:
            self._settle_claims(now)
        if self.fenced_by is not None:
            return Verdict.FENCED
        if self._is_over(now):
            return Verdict.RENUMBER if self.above else Verdict.SEND
        return Verdict.WAIT

    def hello_due(self, now: float) -> bool:
        """Whether a hello is due; the caller then sends it, to the named groups and to the producer's own address."""
        if self._hello_at is None or now < self._hello_at:
            return False
        self._hello_sent = now
        waiting = self.fenced_by is None and not self._is_over(now)
        self._hello_at = now + HELLO_EVERY_S if waiting else None
        return True

    def next_deadline(self, now: float, judged_at: float = 0.0) -> float:
        """When :meth:`verdict` or :meth:`hello_due` will have something new, if nothing else happens; infinite for
        never.

        `judged_at`: the caller does not ask for a verdict before.
        """
        times = [] if self._hello_at is None else [self._hello_at]
        for claims in self._claims.values():
            times += [max(claim.until, judged_at) for claim in claims.values()]
        # Once it is over, only claims are waited for.
        waits = self.fenced_by is None and bool(self._unanswered or self.above or self._claims)
        if waits and self._until is not None and self._until > now:
            times.append(max(self._until, judged_at))
        return min(times, default=inf)

    def _is_over(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        if self._claims:
            return False
        if not self._unanswered and not self.above:
            return True
        return self._until is not None and now >= self._until

    @staticmethod
    def _clash(epoch: int, incarnation: int, chain: dict[int, int]) -> str:
        """Why an older epoch is not part of this history; "" if it is or may be, as the oldest epochs of a chain are
        dropped."""
        if epoch in chain:
            return "" if chain[epoch] == incarnation else f"epoch {epoch} is another incarnation there"
        if chain and epoch > min(chain):
            return f"epoch {epoch} was entered there and is unknown here"
        return ""
