"""Whether a newly opened epoch may be sent, or somebody else's history stands in its way.

An outbox that was restored from a backup, or copied, opens an epoch that may be below one that groups have entered.
What it sent would be behind them: declared as lost, never delivered. So an epoch's data first waits behind a *gate*: a
hello (a status) goes to the named groups, which answer with the epoch that they have entered, and to the producer's own
name, where a twin that is alive answers.

=====================================  ====================================================================
what is heard                          then
=====================================  ====================================================================
all named groups, none is ahead        the gate opens at once
nothing within `timeout`               the gate opens: those who are away can't be waited for
a named group entered a higher epoch   a twin has `timeout` to answer; then what was never offered to any
                                       site is renumbered into an epoch above, and the gate opens
the same, of a *far* epoch             where frames are not signed it is asked for `timeout`: what it does not say
                                       again, or takes back, it never said
the same, too high to move above       this producer is fenced
a twin with a higher epoch             this producer is fenced: it stops, for good
a twin with a far epoch                it is reported, and not believed where frames are not signed
a twin with a lower epoch              it is told (a hello), so that it stops
another incarnation of this epoch      as a higher epoch: the groups will not take ours
an unknown epoch between this one and  as a higher epoch: the groups would not take what an earlier opening
a lower one that was never offered     stored
=====================================  ====================================================================

The same goes for what is heard after the gate has opened: it closes again until it is decided. The timeout starts when
the first site was connected; for what is to be decided then it is a second at least. A group that is named later is not
waited for, but counts from then on. Without named groups the gate is always open, and histories that clash are only
reported; with a timeout of 0 it is open until a group is ahead. Not thread-safe; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from reliamsg.core.horizon import FAR_MS
from reliamsg.message import Stream
from reliamsg.wire.limits import MAX_EPOCH

__all__ = ["Conflict", "Fence", "Verdict"]

HELLO_EVERY_S = 0.25
"""While the gate is closed, the hello is repeated so often: it may have been lost."""
DECIDES_S = 1.0
"""Once a group is ahead, a twin has so much time to answer, though groups are not waited for that long."""
ROOM = 2**31
"""Above an epoch that a group tells there must be so much room for ours, which are random steps apart."""
MAX_CONFLICTS = 100
"""Conflicts that are remembered, so that each is reported once."""


class Verdict(Enum):
    """What is to be done about this epoch."""

    WAIT = "wait"
    """Nothing of this epoch may be sent yet."""
    SEND = "send"
    RENUMBER = "renumber"
    """Give what was never offered to a site an epoch above :attr:`Fence.above`, then call :meth:`Fence.renumbered`."""
    FENCED = "fenced"
    """A newer owner of this producer id is alive: stop, and raise ProducerFenced."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A group knows another history of this producer id. To be reported once, as ProducerConflict."""

    group: str
    stream: Stream
    epoch: int
    incarnation: int
    reason: str = field(compare=False)
    doubted: bool = field(compare=False, default=False)
    """The epoch is far, and what is heard is not signed: it may be made up."""


@dataclass(slots=True)
class _Claim:
    """A group says that it has entered a far epoch."""

    epoch: int
    incarnation: int
    until: float
    repeated: bool = False


class Fence:
    """The gate of one producer. `groups`: those that are named for any of its topics when it is made. `trusts`: what is
    heard is signed. `lowest`: the lowest epoch of which nothing was offered to any site; None where that is `epoch`."""

    def __init__(
        self,
        epoch: int,
        incarnation: int,
        groups: Iterable[str],
        timeout: float,
        trusts: bool = False,
        lowest: int | None = None,
    ) -> None:
        self.shut_out = ""
        """The group whose epoch this producer can't move above, if that is what fenced it."""
        self._trusts = trusts
        self._claims: dict[tuple[str, Stream], _Claim] = {}
        self.epoch = epoch
        self.incarnation = incarnation
        self._lowest = epoch if lowest is None else lowest
        """The lowest epoch that can still be given another number."""
        self.above = 0
        """The highest epoch that a named group entered and that is not this history's; 0 for none."""
        self.fenced_by: tuple[int, int] | None = None
        """Epoch and incarnation of the twin that fenced this producer."""
        self._timeout = timeout
        self._decides = max(timeout, DECIDES_S)
        self._unanswered = set(groups) if timeout > 0 else set()
        self._until: float | None = None
        """When the waiting ends; None while no site was connected, or where nothing is waited for."""
        self._started = False
        self._hello_at: float | None = None
        self._hello_sent = float("-inf")
        self._reported: set[Conflict] = set()

    # -- what happens ---------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """A site was connected. From the first on, the groups have `timeout` to answer."""
        if not self._started:
            self._started = True
            self._until = now + self._timeout
        self._hello_at = now

    @property
    def awaited(self) -> set[str]:
        """The groups whose word is waited for."""
        return {*self._unanswered, *(group for group, _ in self._claims)}

    def dropped(self, group: str) -> None:
        """The group is not named any more."""
        self._unanswered.discard(group)
        self._claims = {key: claim for key, claim in self._claims.items() if key[0] != group}

    def heard(
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
        """A group told which epoch of a stream it has entered, and its incarnation ((0, 0) for none). `wall_ms` is this
        clock's word on what an epoch may be. `named`: the group is named by now, for whatever topic; others are not
        moved above.

        `chain`: the stream's epochs that this producer knows, and their incarnations, this epoch not necessarily among
        them. Returns a conflict that has to be reported; each is returned once.
        """
        epoch, incarnation = entered
        far = self._is_far(epoch, wall_ms)
        if not far:
            self._claims.pop((group, stream), None)
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
        return not self._trusts and epoch > max(wall_ms, self.epoch) + FAR_MS

    def _doubt(self, group: str, stream: Stream, epoch: int, incarnation: int, now: float) -> None:
        """One made-up state would send this producer far ahead: the group is to say it again."""
        claim = self._claims.get((group, stream))
        if claim is None:
            self._claims[group, stream] = _Claim(epoch, incarnation, now + self._decides)
            self._hello_at = now
        elif (claim.epoch, claim.incarnation) == (epoch, incarnation):
            claim.repeated = True
        else:
            claim.epoch, claim.incarnation, claim.repeated = epoch, incarnation, False

    def _settle_claims(self, now: float) -> None:
        """Believe what was said again, and forget what was not."""
        for key in [key for key, claim in self._claims.items() if claim.until <= now]:
            claim = self._claims.pop(key)
            if claim.repeated and claim.epoch >= self._lowest:
                self._believe(key[0], claim.epoch, claim.incarnation, now)

    def _believe(self, group: str, epoch: int, incarnation: int, now: float) -> None:
        if epoch < MAX_EPOCH - ROOM:
            self._find_above(epoch, now)
        elif self.fenced_by is None:
            self.fenced_by, self.shut_out = (epoch, incarnation), group

    def answered(self, group: str) -> None:
        """The group's answer was taken in as a whole, all of its streams through :meth:`heard`."""
        self._unanswered.discard(group)

    def heard_twin(self, epoch: int, incarnation: int, now: float, wall_ms: int = 0) -> Conflict | None:
        """A status of this producer id came in that is not this incarnation's (others are ignored). Returns a conflict
        that has to be reported."""
        if incarnation == self.incarnation and epoch == self.epoch:
            return None
        if self._is_far(epoch, wall_ms):
            reason = f"it says to be in epoch {epoch}, far above this one ({self.epoch}), and is not believed"
            return self._once(Conflict("", Stream("", ""), epoch, incarnation, reason, True))
        if (epoch, incarnation) > (self.epoch, self.incarnation):
            self.fenced_by = (epoch, incarnation)
        else:
            at = max(now, self._hello_sent + HELLO_EVERY_S)
            self._hello_at = at if self._hello_at is None else min(self._hello_at, at)
        return None

    def began(self, epoch: int) -> None:
        """All that was stored before this epoch was offered, or may be from now on."""
        self.epoch = self._lowest = epoch

    def renumbered(self, epoch: int, incarnation: int) -> None:
        """What was never offered has another epoch now, above :attr:`above`, and so has all that follows."""
        self.began(epoch)
        self.incarnation = incarnation
        self.above = 0
        self._until = None
        self._unanswered = set()
        self._claims.clear()

    # -- what follows ---------------------------------------------------------------------------------------

    def verdict(self, now: float) -> Verdict:
        """What is to be done now."""
        self._settle_claims(now)
        if self.fenced_by is not None:
            return Verdict.FENCED
        if self._over(now):
            return Verdict.RENUMBER if self.above else Verdict.SEND
        return Verdict.WAIT

    def hello_due(self, now: float) -> bool:
        """Whether a hello is due; the caller then sends it, to the named groups and to the producer's own address."""
        if self._hello_at is None or now < self._hello_at:
            return False
        self._hello_sent = now
        self._hello_at = now + HELLO_EVERY_S if self._waiting(now) else None
        return True

    def deadline(self, now: float, judged_at: float = 0.0) -> float | None:
        """When :meth:`verdict` or :meth:`hello_due` will have something new, if nothing else happens. The former is not
        asked for before `judged_at`."""
        times = [self._hello_at] if self._hello_at is not None else []
        # Once that is over, only claims are waited for.
        if self._waiting(now) and self._until is not None and self._until > now:
            times.append(max(self._until, judged_at))
        times += [max(claim.until, judged_at) for claim in self._claims.values()]
        return min(times, default=None)

    # -- inside ---------------------------------------------------------------------------------------------

    def _over(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        if self._claims:
            return False
        if not self._unanswered and not self.above:
            return True
        return self._until is not None and now >= self._until

    def _waiting(self, now: float) -> bool:
        return self.fenced_by is None and not self._over(now)

    def _find_above(self, epoch: int, now: float) -> None:
        """A named group is ahead. Whoever owns that epoch gets as long to answer, counted from now."""
        if self.above == 0:
            self._until = now + self._decides
            self._hello_at = now
        self.above = max(self.above, epoch)

    @staticmethod
    def _clash(epoch: int, incarnation: int, chain: dict[int, int]) -> str:
        """Why an older epoch is not of this history; "" where it is, or may be: a chain's oldest epochs are dropped."""
        if epoch in chain:
            return "" if chain[epoch] == incarnation else f"epoch {epoch} is another incarnation there"
        if chain and epoch > min(chain):
            return f"epoch {epoch} was entered there and is unknown here"
        return ""
