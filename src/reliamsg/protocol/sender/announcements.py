"""When each stream's status is due.

A stream is announced

- when a site is connected,
- `quiet` seconds after its latest message, so that groups learn where it ends,
- every `busy` seconds under continuous traffic,
- and then, until every group has acknowledged its tail, at intervals that double from `interval` up to `longest`.

Once all groups have acknowledged the tail it falls silent. A group's request is answered to that group, at most every
`spacing` seconds. The cost depends on the streams that are due, not on how many there are. Not thread-safe; times are
monotonic seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from reliamsg.message import Stream

__all__ = ["MAX_ASKING", "Announcer", "Due"]

MAX_ASKING = 1_000
"""The most groups whose requests wait for an answer; others have to ask again."""
MAX_ASKED = 10_000
"""The most streams that one group's pending requests may name."""
TRAFFIC_SLACK_S = 0.5
"""Added to each promised interval, as the writer may be busy when an announcement is due."""
OTHERS_AT_ONCE = 25
"""How many groups that are not named are answered within `spacing`."""

_Requests = dict[str, tuple[float, dict[Stream, None]]]
"""By group, when it is answered, and for which streams."""


class Due(NamedTuple):
    """A stream to announce now."""

    stream: Stream
    interval: float
    """The promise for the status: the next announcement follows within this many seconds."""


@dataclass(slots=True)
class _Pace:
    """The schedule of one stream."""

    at: float
    """The next announcement. Heap entries with another time are void."""
    wait: float
    """Seconds from the latest announcement to the next while nothing is published."""
    published: float | None = None
    """The latest publication, if it is not announced yet."""
    since: float = 0.0
    """If `published` is set: the start of the traffic, or its latest announcement."""
    forced: bool = False
    """The next announcement is due even if all groups have acknowledged everything."""


class Announcer:
    """The timetable of one producer's status frames. `settled` tells whether a stream may fall silent."""

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
        self._requests: tuple[_Requests, _Requests] = ({}, {})
        """Those of named groups, and those of others."""
        self._others_at = -inf
        self.due_at: float = inf
        """Nothing is due before this time: a lower bound of :meth:`next_deadline`."""
        self._answered: dict[str, float] = {}
        """When each group was answered last, unless that was long ago."""

    # -- events ---------------------------------------------------------------------------------------------

    def connected(self, streams: Iterable[Stream], now: float) -> None:
        """A site was connected: these streams, usually all, are due whether or not they are settled."""
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
            if fresh:  # otherwise it is scheduled already, and examined again at that time
                pace.since = now
                self._schedule(stream, pace, pace.at if pace.forced else self._next_busy(pace))

    def resume(self, streams: Iterable[Stream], now: float) -> None:
        """A group reported that has not acknowledged the tails of these streams: resume announcing silent ones."""
        for stream in streams:
            if stream not in self._paces:
                pace = self._paces[stream] = _Pace(now + self._interval, self._interval)
                self._push(stream, pace)

    def asked(self, group: str, streams: Iterable[Stream], now: float, *, named: bool = True) -> None:
        """A group requests the status of these streams. Requests of groups that are not `named` share one bound, so
        that forged groups keep no real one waiting."""
        requests = self._requests[not named]
        request = requests.get(group)
        if request is None:
            if len(requests) >= MAX_ASKING:
                return
            at = max(now, self._answered.get(group, -inf) + self._spacing)
            request = requests[group] = (at, {})
            self.due_at = min(self.due_at, at)
        wanted = request[1]
        for stream in streams:
            if len(wanted) >= MAX_ASKED:
                break
            wanted[stream] = None

    # -- due announcements ----------------------------------------------------------------------------------

    def due(self, now: float, limit: int = 1_000) -> list[Due]:
        """Up to `limit` streams that the caller must announce now."""
        found: list[Due] = []
        while len(found) < limit and self._earliest() <= now:
            stream = heapq.heappop(self._heap)[2]
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
        """Groups that the caller must answer now, and for which streams: all that are named, and some of the others."""
        found: list[tuple[str, list[Stream]]] = []
        if not any(self._requests):
            return found
        self._answered = {group: at for group, at in self._answered.items() if now - at <= self._spacing}
        for others, requests in enumerate(self._requests):
            ready = [group for group, (at, _) in requests.items() if at <= now]
            if others:
                ready = ready[: OTHERS_AT_ONCE if now >= self._others_at else 0]
                if ready:
                    self._others_at = now + self._spacing
            for group in ready:
                found.append((group, list(requests.pop(group)[1])))
                self._answered[group] = now
        return found

    def interval(self, stream: Stream) -> float:
        """Within how many seconds the stream is announced next, for the promise in an answer; 0 if it is silent."""
        pace = self._paces.get(stream)
        if pace is None:
            return 0.0
        return (self._busy + self._quiet if pace.published is not None else pace.wait) + TRAFFIC_SLACK_S

    def next_deadline(self) -> float:
        """When :meth:`due` or :meth:`answers` will have something, if nothing else happens; infinite for never. From
        now on, :attr:`due_at` is the same."""
        deadline = self._earliest()
        if any(self._requests):
            named, others = self._requests
            deadline = min([deadline, *(at for at, _ in named.values())])
            deadline = min([deadline, *(max(at, self._others_at) for at, _ in others.values())])
        self.due_at = deadline
        return deadline

    # -- the schedule --------------------------------------------------------------------------------------

    def _announce(self, stream: Stream, pace: _Pace, now: float) -> float:
        """Schedule the announcement after the one that is being sent; returns the interval to promise."""
        busy = pace.published is not None and pace.published + self._quiet > now
        pace.forced = False
        if busy:
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
        """When a stream with traffic is due: once it is quiet, or `busy` seconds after its latest announcement."""
        assert pace.published is not None
        return min(pace.published + self._quiet, pace.since + self._busy)

    def _schedule(self, stream: Stream, pace: _Pace, at: float) -> None:
        pace.at = at
        self._push(stream, pace)

    def _push(self, stream: Stream, pace: _Pace) -> None:
        self._pushed += 1
        self.due_at = min(self.due_at, pace.at)
        heapq.heappush(self._heap, (pace.at, self._pushed, stream))
        if len(self._heap) > 64 + 2 * len(self._paces):  # most entries are void
            self._heap = [(p.at, i, s) for i, (s, p) in enumerate(self._paces.items())]
            self._pushed = len(self._heap)
            heapq.heapify(self._heap)

    def _earliest(self) -> float:
        """The time of the first heap entry that is not void; infinite if there is none."""
        while self._heap:
            at, _, stream = self._heap[0]
            pace = self._paces.get(stream)
            if pace is not None and pace.at == at:
                return at
            heapq.heappop(self._heap)
        return inf
