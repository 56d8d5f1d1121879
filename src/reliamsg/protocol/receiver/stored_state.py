"""The owners of the state of one stream that the inbox stores."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliamsg.protocol.receiver.epochs import EpochChain
from reliamsg.protocol.receiver.gaps import GapTracker
from reliamsg.protocol.receiver.redelivery import Redelivery
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.protocol.receiver.takeover import TakeoverBounds

__all__ = ["StoredState"]


@dataclass(frozen=True, slots=True)
class StoredState:
    """Empty for a stream that is new to the inbox."""

    epochs: EpochChain = field(default_factory=EpochChain)
    gaps: GapTracker = field(default_factory=GapTracker)
    redelivery: Redelivery = field(default_factory=Redelivery)
    takeover: TakeoverBounds = field(default_factory=TakeoverBounds)

    def flag(self, known: ReorderBuffer) -> None:
        """The epoch is entered: flag what another inbox may have delivered of it."""
        self.takeover.flag(known)
        self.epochs.flag_moved(known)

    def flag_entered(self) -> None:
        """The same for all entered epochs."""
        for known in self.epochs.entered:
            self.flag(known)

    def take_accepted(self) -> None:
        """Take over what was accepted in the inbox that this one succeeds, as far as it concerns unsettled numbers of
        the current epoch."""
        report, current = self.takeover.report, self.epochs.current
        if report is None or current is None:
            return
        for epoch, low, last in report.accepted:
            first = max(low, current.position)
            if epoch == current.epoch and first <= last:
                self.gaps.accept(first, last, "accepted", None)
                self.epochs.history.note_change()
