"""Where groups with ``begin="latest"`` started with streams: they are owed nothing that was published before."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from reliamsg.message import Stream

__all__ = ["Start", "Starts"]


class Start(NamedTuple):
    """The first message that a group received or accepted of a stream."""

    number: int
    """The operation's number."""
    epoch: int
    at: float
    quarantined_by: str = ""
    """The one of several inboxes that has it in quarantine, until an inbox has started with the stream."""


class Starts:
    """The starts of all groups, as their inboxes know them."""

    def __init__(self) -> None:
        self._history: dict[str, list[tuple[float, dict[Stream, Start]]]] = defaultdict(lambda: [(0.0, {})])
        """By group, from when on it had which starts: an inbox may go back to a copy from any time."""

    def get(self, group: str, stream: Stream) -> Start | None:
        """Where a group started with a stream; None if it has not."""
        return self._history[group][-1][1].get(stream)

    def note(self, group: str, stream: Stream, start: Start) -> None:
        """Nothing changes if the group has started with the stream."""
        if self.get(group, stream) is None:
            self._change(group, start.at, {**self._history[group][-1][1], stream: start})

    def joined(self, group: str, stream: Stream, consumer: str, at: float) -> None:
        """A consumer has started with a stream: messages that only another one has, in its quarantine, precede the
        start."""
        start = self.get(group, stream)
        if start is None or not start.quarantined_by:
            return
        starts = {each: its for each, its in self._history[group][-1][1].items() if each != stream}
        if start.quarantined_by == consumer:
            starts[stream] = start._replace(quarantined_by="")
        self._change(group, at, starts)

    def went_back(self, group: str, since: float, at: float, known: Callable[[Stream], bool]) -> None:
        """An inbox of the group is in the state of `since` again. `known`: whether another inbox has joined a stream.
        Where none has, the group starts where this one had started by then, or with the next message. If a life of it
        that is gone began anew, producers may tell that the group had got as far."""
        history = self._history[group]
        _, before = history[bisect_right(history, since, key=lambda each: each[0]) - 1]
        now = history[-1][1]
        starts = {stream: max(start, now.get(stream, start)) for stream, start in before.items()}
        kept = {stream: start for stream, start in now.items() if known(stream)}
        self._change(group, at, {**starts, **kept})

    def _change(self, group: str, at: float, starts: dict[Stream, Start]) -> None:
        self._history[group].append((at, starts))
