"""What a simulated broker does wrong with single messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from reliamsg.simulation.faults import Chances
from reliamsg.simulation.hole import Hole
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.traffic import Traffic
from reliamsg.transport.base import Outcome, Outgoing
from reliamsg.transport.memory.model import BrokerSession, Copy, Fate, Refusal, flip_bit

__all__ = ["SimulatedMessageFaults"]

REORDER_WITHIN = 6
LATE_CONFIRM_S = (0.0, 0.5)
LATE_STORE_S = (0.2, 3.0)
REFUSALS = {
    "amqp": {"return": Outcome.RETURNED, "nack": Outcome.NACKED, "refuse": Outcome.REFUSED},
    "mqtt": {"refuse": Outcome.REFUSED},
}


class SimulatedMessageFaults:
    """The :class:`~reliamsg.transport.memory.model.MessageFaults` of one simulated broker. All are decided by dice."""

    def __init__(
        self,
        protocol: Literal["amqp", "mqtt"],
        faults: Chances,
        trace: Trace,
        traffic: Traffic,
        hole: Hole | None = None,
    ) -> None:
        """`faults`: those at this broker."""
        self._refusals = REFUSALS[protocol]
        self._faults, self._trace, self._traffic, self._hole = faults, trace, traffic, hole

    def before_routing(self, message: Outgoing) -> Fate | None:
        if message.parts_left == 0 and self._strikes("swallow", "swallows {}", message.message_id):
            return Fate(answered=False)
        return None

    def fate(self, session: BrokerSession, message: Outgoing, copies: Sequence[Copy]) -> Fate:
        refusal = self._refusal(message) if session.can_be_refused else None
        if refusal is not None:  # a nack: one of several queues may have it
            return Fate(self._keep(message, copies[:1]) if refusal[0] is Outcome.NACKED else None, refusal)
        kept = self._keep(message, copies)
        if message.parts_left == 0 and self._strikes(
            "confirm_lost", "does not confirm {}", message.message_id
        ):
            return Fate(kept, answered=False)
        late = self._faults.bites("confirm_disorder")
        return Fate(
            kept, delay=self._faults.random("confirm_disorder").uniform(*LATE_CONFIRM_S) if late else 0.0
        )

    def pick(self, waiting: int) -> int:
        if waiting > 1 and self._strikes("reorder"):
            return self._faults.random("reorder").randrange(1, min(waiting, REORDER_WITHIN))
        return 0

    def _refusal(self, message: Outgoing) -> Refusal | None:
        for name, outcome in self._refusals.items():
            if self._strikes(name, "answers {} with {}", message.message_id, outcome.value):
                return outcome, "as simulated"
        return None

    def _keep(self, message: Outgoing, copies: Sequence[Copy]) -> list[Copy] | None:
        """The copies of a message that the broker stores, duplicates included; None if it stores nothing."""
        what = message.message_id
        if copies and self._hole is not None and self._hole.swallows(self._traffic.frame(message)):
            self._note(f"loses {what}, as all sites do")
            return None
        if copies and self._strikes("confirm_and_lose", "loses {}", what):
            return None
        if message.body and self._strikes("damage", "damages {}", what) and copies:
            damaged = flip_bit(copies[0].delivery, self._faults.random("damage"))
            copies = [Copy(copy.queue, damaged) for copy in copies]
        kept = []
        for copy in copies:
            if self._strikes("misroute", "does not route {} to {}", what, copy.queue[2]):
                continue
            kept.append(self._timed(copy))
            if self._strikes("duplicate"):
                kept.append(self._timed(copy))
        return kept

    def _timed(self, copy: Copy) -> Copy:
        """A copy, perhaps to be stored a while after the message is confirmed."""
        if not self._strikes("early_confirm"):
            return copy
        return msgspec.structs.replace(
            copy, delay=self._faults.random("early_confirm").uniform(*LATE_STORE_S)
        )

    def _strikes(self, name: str, line: str = "", *words: str) -> bool:
        """Whether a fault happens at this opportunity. `line`, formatted with `words`, is for the trace."""
        if not self._faults.bites(name):
            return False
        self._faults.strikes(name)
        if line:
            self._note(line.format(*words))
        return True

    def _note(self, what: str) -> None:
        self._trace.note("broker", self._faults.place, what)
