"""The software of a simulated consumer, which may be outdated: it can't read some forms of batches until it is
upgraded."""

from __future__ import annotations

import random

from reliamsg.consumer.intake import Forms
from reliamsg.simulation.faults import Chances
from reliamsg.wire.data import FLAG_MOVED, FLAG_ZSTD, KNOWN_FLAGS

__all__ = ["Installation"]

OUTDATED = (
    ("without zstd", Forms(flags=KNOWN_FLAGS & ~FLAG_ZSTD)),
    ("without zstd", Forms(flags=KNOWN_FLAGS & ~FLAG_ZSTD)),
    ("that does not know the flag of moved messages", Forms(flags=KNOWN_FLAGS & ~FLAG_MOVED)),
    ("of an earlier version", Forms(version=Forms().version - 1)),
    ("that knows an earlier format only", Forms(magic=b"RMB0")),
)
"""What an outdated installation can read, and how it is called in traces. Producers differ in what they send: some
compress, and only outboxes that were restored have moved messages."""
UPGRADED_WITHIN_S = (0.5, 12.0)
"""How long after it was opened a consumer with an outdated installation is restarted with another one."""
UPGRADED_AT_RESTART = 0.5
"""How often it is upgraded when it is opened again for another reason."""


class Installation:
    """Outdated from the first opening on, or never; never again after an upgrade."""

    def __init__(self, faults: Chances, chance: random.Random) -> None:
        self.forms: Forms = Forms()
        self.name: str = ""
        """How it is called in traces; empty if it is up to date."""
        self._faults, self._chance = faults, chance
        self._was_opened = False

    @property
    def is_outdated(self) -> bool:
        """Whether there are forms that it can't read."""
        return bool(self.name)

    def open(self) -> None:
        """The consumer is about to be opened: draw the state of its installation."""
        if not self._was_opened and self._faults.bites("outdated"):
            self.name, self.forms = self._chance.choice(OUTDATED)
        elif self.is_outdated and self._chance.random() < UPGRADED_AT_RESTART:
            self.upgrade()
        self._was_opened = True

    def upgrade(self) -> None:
        """From now on, everything can be read."""
        self.name, self.forms = "", Forms()

    def upgrade_delay(self) -> float:
        """How many seconds after it was opened someone upgrades it, at the latest."""
        return self._chance.uniform(*UPGRADED_WITHIN_S)
