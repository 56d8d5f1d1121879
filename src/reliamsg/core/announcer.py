"""When which streams' status is due.

A stream is announced

- when a site was connected,
- `quiet` seconds after its latest message, so that groups learn where it ends,
- every `busy` seconds under continuous traffic,
- and then while somebody has not acknowledged its tail, at intervals from `interval` that double up to `longest`.

It falls silent once all groups have acknowledged the tail. What a group asks for is answered to that group, at most
every `spacing` seconds. Cost follows the streams that are due, not those that there are. Not thread-safe; times are
monotonic seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reliamsg.message import Stream

__all__ = ["MAX_ASKING", "Announcer", "Due"]

MAX_ASKING = 1_000
"""Groups whose questions wait for an answer; others have to ask again."""
MAX_ASKED = 10_000
"""Streams that one group's questions are remembered for."""
TRAFFIC_SLACK_S = 0.5
"""Promised intervals are longer by this than meant ones: a writer may be busy when one is due."""


OTHERS_AT_ONCE = 25
"""Of groups that are not named, so many are answered within `spacing`."""

_Asking = dict[str, tuple[float, dict[Stream, None]]]


class Due(NamedTuple):
    """A stream to announce now."""

    stream: Stream
    interval: float
    """The next announcement comes within so many seconds; to be promised in the status."""


@dataclass(slots=True)
class _Pace:
    """How a stream is being announced."""

    at: float
    """When next. The heap may hold entries with other times, which are void."""
    wait: float
    """Seconds between the latest announcement and the next, while nothing is published."""
    published: float | None = None
    """When it was published to last, if that is to be announced still."""
    since: float = 0.0
    """Where `published` is set: when that began, or when it was announced after that."""
    forced: bool = False
    """It is announced though everybody may have acknowledged everything."""


class Announcer:
    """The timetable of one producer's status frames. `settled` says whether a stream may fall silent."""

    def __init__(
        self,
        settled: Callable[[Stream], bool],
        interval: float = 1.0,
        *,
        longest: float = 60.0,
        quiet: float = 0.25,
        busy: float = 10.0,
        spacing: float = 0.25,
    ) -> None:
        self._settled = settled
        self._interval = interval
        self._longest = max(longest, interval)
        self._quiet = quiet
        self._busy = busy
        self._spacing = spacing
        self._paces: dict[Stream, _Pace] = {}
        self._heap: list[tuple[float, int, Stream]] = []
        self._pushed = 0
        self._asking: tuple[_Asking, _Asking] = ({}, {})
        """Named groups, others: from when on each is answered, and about what."""
        self._others_at = float("-inf")
        self._answered: dict[str, float] = {}

    # -- what happens ---------------------------------------------------------------------------------------

    def connected(self, streams: Iterable[Stream], now: float) -> None:
        """A site was connected: these streams (all of them, usually) are due, settled or not."""
        for stream in streams:
            pace = self._paces.get(stream)
            if pace is None:
                pace = self._paces[stream] = _Pace(now, self._interval)
            pace.forced = True
            pace.wait = self._interval
            self._schedule(stream, pace, now)

    def published(self, streams: Iterable[Stream], now: float) -> None:
        """Messages of these streams were stored."""
        for stream in streams:
            pace = self._paces.get(stream)
            if pace is None:
                pace = self._paces[stream] = _Pace(now + self._quiet, self._interval, now, now)
                self._push(stream, pace)
                continue
            fresh = pace.published is None
            pace.published = now
            pace.wait = self._interval
            if fresh:  # else it is timed already, and looked at again when that time comes
                pace.since = now
                self._schedule(stream, pace, pace.at if pace.forced else self._next_busy(pace))

    def resume(self, streams: Iterable[Stream], now: float) -> None:
        """Somebody who has not acknowledged these streams' tails was heard: go on announcing those that fell
        silent."""
        for stream in streams:
            if stream not in self._paces:
                pace = self._paces[stream] = _Pace(now + self._interval, self._interval)
                self._push(stream, pace)

    def asked(self, group: str, streams: Iterable[Stream], now: float, *, named: bool = True) -> None:
        """A group wants the status of these streams. `named`: it is among the producer's own; questions of others are
        bounded all together, so that made-up groups keep no real one waiting."""
        waiting = self._asking[not named]
        entry = waiting.get(group)
        if entry is None:
            if len(waiting) >= MAX_ASKING:
                return
            at = self._answered[group] + self._spacing if group in self._answered else now
            entry = waiting[group] = (max(at, now), {})
        wanted = entry[1]
        for stream in streams:
            if len(wanted) >= MAX_ASKED:
                break
            wanted[stream] = None

    def forget(self, stream: Stream) -> None:
        """The stream is not announced any more."""
        self._paces.pop(stream, None)

    # -- what is due ----------------------------------------------------------------------------------------

    def due(self, now: float, limit: int = 1_000) -> list[Due]:
        """Up to `limit` streams that the caller announces now."""
        found: list[Due] = []
        while len(found) < limit and (stream := self._pop(now)) is not None:
            pace = self._paces[stream]
            if pace.published is not None and self._next_busy(pace) > now and not pace.forced:
                self._schedule(stream, pace, self._next_busy(pace))
                continue
            if not pace.forced and self._settled(stream):
                del self._paces[stream]
                continue
            found.append(Due(stream, self._announce(stream, pace, now)))
        return found

    def answers(self, now: float) -> list[tuple[str, list[Stream]]]:
        """Groups that the caller answers now, and about which streams: named ones first, of others only some."""
        for group in [g for g, at in self._answered.items() if now - at > self._spacing]:
            del self._answered[group]
        found: list[tuple[str, list[Stream]]] = []
        for others, waiting in enumerate(self._asking):
            ready = [group for group, (at, _) in waiting.items() if at <= now]
            if others:
                ready = ready[: OTHERS_AT_ONCE if now >= self._others_at else 0]
                if ready:
                    self._others_at = now + self._spacing
            for group in ready:
                found.append((group, list(waiting.pop(group)[1])))
                self._answered[group] = now
        return found

    def interval(self, stream: Stream) -> float:
        """Within how many seconds the stream is announced next, as an answer may promise; 0 where it fell silent."""
        pace = self._paces.get(stream)
        if pace is None:
            return 0.0
        return (self._busy + self._quiet if pace.published is not None else pace.wait) + TRAFFIC_SLACK_S

    def deadline(self) -> float | None:
        """When :meth:`due` or :meth:`answers` will have something, if nothing else happens."""
        self._clean()
        named, others = self._asking
        times = [at for at, _ in named.values()]
        times += [max(at, self._others_at) for at, _ in others.values()]
        if self._heap:
            times.append(self._heap[0][0])
        return min(times, default=None)

    # -- inside ---------------------------------------------------------------------------------------------

    def _announce(self, stream: Stream, pace: _Pace, now: float) -> float:
        """It is being announced; returns within how long the next one comes."""
        going_on = pace.published is not None and pace.published + self._quiet > now
        pace.forced = False
        if going_on:
            pace.since = now
            self._schedule(stream, pace, self._next_busy(pace))
            return self._busy + self._quiet + TRAFFIC_SLACK_S
        pace.published = None
        if self._settled(stream):
            del self._paces[stream]
            return 0.0
        wait = pace.wait
        self._schedule(stream, pace, now + wait)
        pace.wait = min(wait * 2, self._longest)
        return wait + TRAFFIC_SLACK_S

    def _next_busy(self, pace: _Pace) -> float:
        """When a stream that is published to is due: when it has gone quiet, or has not been announced for long."""
        assert pace.published is not None  # asked only of those
        return min(pace.published + self._quiet, pace.since + self._busy)

    def _schedule(self, stream: Stream, pace: _Pace, at: float) -> None:
        pace.at = at
        self._push(stream, pace)

    def _push(self, stream: Stream, pace: _Pace) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (pace.at, self._pushed, stream))
        if len(self._heap) > 64 + 2 * len(self._paces):  # mostly void entries
            self._heap = [(p.at, i, s) for i, (s, p) in enumerate(self._paces.items())]
            self._pushed = len(self._heap)
            heapq.heapify(self._heap)

    def _clean(self) -> None:
        """Take void entries off the top."""
        while self._heap:
            at, _, stream = self._heap[0]
            pace = self._paces.get(stream)
            if pace is not None and pace.at == at:
                return
            heapq.heappop(self._heap)

    def _pop(self, now: float) -> Stream | None:
        """A stream whose time has come."""
        self._clean()
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[2]
