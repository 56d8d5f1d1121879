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
a twin with a higher epoch             this producer is fenced: it stops, for good
a twin with a lower epoch              it is told (a hello), so that it stops
another incarnation of this epoch      as a higher epoch: the groups will not take ours
=====================================  ====================================================================

The same goes for what is heard after the gate has opened: it closes again until it is decided. The timeout starts when
the first site was connected. Without named groups, or with a timeout of 0, the gate is always open, and histories that
clash are only reported. Not thread-safe; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from reliamsg.message import Stream
from reliamsg.wire.limits import MAX_SEQ

__all__ = ["Conflict", "Fence", "Verdict"]

HELLO_EVERY_S = 0.25
"""While the gate is closed, the hello is repeated so often: it may have been lost."""
ROOM = 2**32
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


class Fence:
    """The gate of one producer. `groups`: those that are named for any of its topics."""

    def __init__(self, epoch: int, incarnation: int, groups: Iterable[str], timeout: float) -> None:
        self.epoch = epoch
        self.incarnation = incarnation
        self.above = 0
        """The highest epoch that a named group entered and that is not this history's; 0 for none."""
        self.fenced_by: tuple[int, int] | None = None
        """Epoch and incarnation of the twin that fenced this producer."""
        self._timeout = timeout
        self._unanswered = set(groups) if timeout > 0 else set()
        self._named = frozenset(self._unanswered)
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

    def dropped(self, group: str) -> None:
        """The group is not named any more."""
        self._named -= {group}
        self._unanswered.discard(group)

    def heard(
        self,
        group: str,
        stream: Stream,
        entered: tuple[int, int],
        chain: Iterable[tuple[int, int]],
        now: float,
    ) -> Conflict | None:
        """A group told which epoch of a stream it has entered, and its incarnation ((0, 0) for none).

        `chain`: the stream's epochs that this producer knows, and their incarnations, this epoch not necessarily among
        them. Returns a conflict that has to be reported; each is returned once.
        """
        epoch, incarnation = entered
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
        if epoch >= self.epoch and group in self._named and epoch < MAX_SEQ - ROOM:
            self._find_above(epoch, now)
        conflict = Conflict(group, stream, epoch, incarnation, reason)
        if conflict in self._reported or len(self._reported) >= MAX_CONFLICTS:
            return None
        self._reported.add(conflict)
        return conflict

    def answered(self, group: str) -> None:
        """The group's answer was taken in as a whole, all of its streams through :meth:`heard`."""
        self._unanswered.discard(group)

    def heard_twin(self, epoch: int, incarnation: int, now: float) -> None:
        """A status of this producer id came in that is not this incarnation's (others are ignored)."""
        if incarnation == self.incarnation and epoch == self.epoch:
            return
        if (epoch, incarnation) > (self.epoch, self.incarnation):
            self.fenced_by = (epoch, incarnation)
        else:
            at = max(now, self._hello_sent + HELLO_EVERY_S)
            self._hello_at = at if self._hello_at is None else min(self._hello_at, at)

    def renumbered(self, epoch: int, incarnation: int) -> None:
        """What was never offered has another epoch now, above :attr:`above`, and so has all that follows."""
        self.epoch, self.incarnation = epoch, incarnation
        self.above = 0
        self._until = None
        self._unanswered = set()

    # -- what follows ---------------------------------------------------------------------------------------

    def verdict(self, now: float) -> Verdict:
        """What is to be done now."""
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

    def deadline(self, now: float) -> float | None:
        """When :meth:`verdict` or :meth:`hello_due` will have something new, if nothing else happens."""
        times = [self._hello_at] if self._hello_at is not None else []
        if self._waiting(now) and self._until is not None:
            times.append(self._until)
        return min(times, default=None)

    # -- inside ---------------------------------------------------------------------------------------------

    def _over(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        if not self._unanswered and not self.above:
            return True
        return self._until is not None and now >= self._until

    def _waiting(self, now: float) -> bool:
        return self.fenced_by is None and not self._over(now)

    def _find_above(self, epoch: int, now: float) -> None:
        """A named group is ahead. Whoever owns that epoch gets as long to answer, counted from now."""
        if self.above == 0:
            self._until = now + self._timeout
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
