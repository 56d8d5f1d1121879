"""Streams whose producer has to answer something that no recording can answer, and when it is asked again."""

from __future__ import annotations

from reliamsg.message import Stream

__all__ = ["Challenges"]

FIRST_S = 1.0
"""Between the first two requests; doubled each time, up to MOST_S."""
MOST_S = 30.0
MAX_TRIES = 10
"""After these, nothing is asked until something of the stream arrives again."""
MAX_STREAMS = 1_000
"""Asked about at a time; one more replaces the one that was asked about first."""
MAX_DUE = 100
"""Asked about at once."""


class Challenges:
    """Under the consumer's lock; times are monotonic seconds."""

    __slots__ = ("_wanted",)

    def __init__(self) -> None:
        self._wanted: dict[Stream, tuple[float, int]] = {}
        """When each is asked about next, and how often it was."""

    def want(self, stream: Stream, now: float) -> None:
        """An answer is needed: ask at once, unless that is going on."""
        if stream in self._wanted or not stream.producer:
            return
        if len(self._wanted) >= MAX_STREAMS:
            del self._wanted[next(iter(self._wanted))]
        self._wanted[stream] = (now, 0)

    def restart(self, stream: Stream, now: float) -> None:
        """An answer is needed that could not be used so far: ask at once, however often it was asked before."""
        self.answered(stream)
        self.want(stream, now)

    def answered(self, stream: Stream) -> None:
        """An answer is not needed any more."""
        self._wanted.pop(stream, None)

    def due(self, now: float) -> list[Stream]:
        """Streams to ask about now."""
        if not self._wanted:
            return []
        found = [stream for stream, (at, _) in self._wanted.items() if at <= now][:MAX_DUE]
        for stream in found:
            _, tries = self._wanted.pop(stream)
            if tries + 1 < MAX_TRIES:
                self._wanted[stream] = (now + min(MOST_S, FIRST_S * 2**tries), tries + 1)
        return found

    def tries(self, stream: Stream) -> int:
        """How often a stream was asked about without an answer."""
        return self._wanted[stream][1] if stream in self._wanted else 0

    def deadline(self) -> float | None:
        """When :meth:`due` will have something."""
        return min(at for at, _ in self._wanted.values()) if self._wanted else None
