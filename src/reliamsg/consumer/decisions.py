"""What an application decides about gaps, and what it is shown besides its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from reliamsg.arguments import unrun
from reliamsg.consumer.dead_letters import LateItem
from reliamsg.consumer.deliveries import Deliveries, GapItem
from reliamsg.errors import ConfigError
from reliamsg.message import Gap, Message
from reliamsg.runtime.wakeup import Uninterrupted

__all__ = ["Decisions", "OnGap"]

T = TypeVar("T")
GapDecision = Literal["skip", "wait", "raise"]
OnGap = Literal["hold", "raise", "skip"] | Callable[[Gap], GapDecision]


class Decisions:
    """Calls ``on_gap`` and ``on_late``, on the threads that ask for messages."""

    def __init__(
        self, on_gap: OnGap, on_late: Callable[[Message], object] | None, calls: Uninterrupted
    ) -> None:
        self._on_gap = on_gap
        self._on_late = on_late
        self._calls = calls
        self.deciding: set[int] = set()
        """Threads in which one of the two runs."""

    @property
    def running_here(self) -> bool:
        """Whether one of the two runs in this thread."""
        return threading.get_ident() in self.deciding

    def decide(self, item: GapItem, deliveries: Deliveries) -> None:
        """Do with a gap as the application wants; raises GapError where it wants that."""
        if isinstance(self._on_gap, str):
            raise item.asked()
        decision = self._call(self._on_gap, item.gap)
        mistake = unrun("on_gap", decision)
        if mistake is not None:
            raise mistake
        if decision == "skip":
            self._calls.call(partial(_skip, item, deliveries))
        elif decision == "raise":
            raise item.asked()
        elif decision == "wait":
            item.decided()
        else:
            raise ConfigError(f"on_gap returned {decision!r}: it must return 'skip', 'wait' or 'raise'")

    def show_late(self, item: LateItem) -> None:
        """Show late messages. One for which `on_late` raises an error counts as shown; one for which it is interrupted
        is shown again."""
        while not item.done:
            if self._on_late is not None:
                try:
                    result = self._call(self._on_late, item.messages[0])
                except Exception:
                    item.seen()
                    raise
                mistake = unrun("on_late", result)
                if mistake is not None:
                    raise mistake  # it was not shown
            item.seen()

    def _call(self, callback: Callable[[T], object], about: T) -> object:
        """A callback that asked for messages would be called about the same once more."""
        thread = threading.get_ident()
        try:
            self.deciding.add(thread)
            return callback(about)
        finally:
            self.deciding.discard(thread)


def _skip(item: GapItem, deliveries: Deliveries) -> None:
    deliveries.accept(item.gap)
    item.decided()
