"""When the inbox is full: since when, of what, and why that stays there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reliamsg.consumer.shared import Shared
from reliamsg.errors import InboxFull
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.protocol.receiver.stream import StreamReceiver

__all__ = ["Fullness", "Stalled"]

log: Log = Log("reliamsg.consumer")

REPORT_AFTER_S = 1.0
"""An inbox that is full for less is not reported."""
OVER_AFTER_S = 5.0
"""After this long with room, a full inbox is reported again."""
LOOK_EVERY_S = 0.5
"""Minimal time between two checks of what fills the inbox, each of which visits every stream."""
MOST_STALLED = 10

Cause = Literal["handler", "failing", "gap", "joining"]


@dataclass(frozen=True, slots=True)
class Stalled:
    """A stream that fills a full inbox, and why its messages stay there."""

    stream: Stream
    cause: Cause
    """``handler``: the application has not acknowledged what it was given, or does not take more; ``failing``: a
    message whose handler failed waits to be delivered again; ``gap``: messages before them are missing; ``joining``: it
    is not known yet where the stream begins."""
    messages: int
    """Messages that arrived and are not dealt with."""
    since_s: float
    """For how many seconds the inbox has been full."""

    def __str__(self) -> str:
        why = {
            "handler": "the application has to deal with them",
            "failing": "their handler fails",
            "gap": "messages before them are missing",
            "joining": "it is not known yet where the stream begins",
        }[self.cause]
        count = "1 message" if self.messages == 1 else f"{self.messages:,} messages"
        return f"{count} of {self.stream}: {why}"


class Fullness:
    """Follows one inbox. Under the consumer's lock."""

    def __init__(self, shared: Shared, limit: int) -> None:
        """`limit`: ``max_inbox_bytes``."""
        self._shared = shared
        self._limit = limit
        self.since: float | None = None
        """Since when the inbox has been full."""
        self._short = False
        """Something can't be taken in now."""
        self._short_at = float("-inf")
        """When a delivery last found no room."""
        self._reported = False
        self._looked_at = float("-inf")
        self._waits_for_application = False

    def look(self, now: float, short: bool) -> None:
        """`short`: a delivery can't be taken in, for lack of room."""
        self._short = short
        if short:
            self._short_at = now
            if self.since is None:
                self.since = now
        elif self.since is not None and now - self._short_at >= OVER_AFTER_S:
            if self._reported:
                log.info(
                    "consumer.inbox_has_room", "%(inbox)s: there is room in the inbox again",
                    group=self._shared.group, inbox=str(self._shared.inbox.path),
                )  # fmt: skip
            self.since, self._reported = None, False
        if short and self.since is not None and not self._reported and now - self.since >= REPORT_AFTER_S:
            self._report(now)

    def deadline(self, now: float) -> float | None:
        """When it is to be looked at again."""
        if self.since is None:
            return None
        if self._reported or not self._short:
            return self._short_at + OVER_AFTER_S
        at = self.since + REPORT_AFTER_S
        return at if at > now else now + LOOK_EVERY_S  # it is full of nothing that could be named yet

    def waits_for_application(self, now: float) -> bool:
        """Whether the inbox is full, and there will be room when the application goes on: what is missing may be behind
        what can't be taken in until then."""
        if now - self._short_at > LOOK_EVERY_S:
            return False
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._waits_for_application = any(
                _cause(state) in ("handler", "failing")
                for state in self._shared.core.streams.values()
                if _held(state)
            )
        return self._waits_for_application

    def stalled(self, now: float) -> tuple[Stalled, ...]:
        """The streams that fill the inbox, the fullest first; empty while it is not full."""
        since = self.since
        if since is None or now - since < REPORT_AFTER_S:
            return ()
        found = [(_held(state), state) for state in self._shared.core.streams.values()]
        fullest = sorted((each for each in found if each[0]), key=lambda each: (-each[0], each[1].stream))
        return tuple(
            Stalled(state.stream, _cause(state), held, now - since) for held, state in fullest[:MOST_STALLED]
        )

    def _report(self, now: float) -> None:
        stalled = self.stalled(now)
        if not stalled:
            return
        self._reported = True
        first = stalled[0]
        error = InboxFull(
            f"{self._shared.inbox.path}: the inbox is full ({self._shared.inbox.held_bytes:,} bytes, max_inbox_bytes is"
            f" {self._limit:,}): {first}. Brokers keep the rest until there is room",
            first.stream,
            first.cause,
        )
        log.warning(
            "consumer.inbox_full", "%(reason)s",
            group=self._shared.group, inbox=str(self._shared.inbox.path),
            held_bytes=self._shared.inbox.held_bytes, limit_bytes=self._limit,
            stream=str(first.stream), cause=first.cause, reason=str(error),
        )  # fmt: skip
        self._shared.health.report(error)


def _held(state: StreamReceiver) -> int:
    return sum(known.held.total for known in state.epochs.live.values())


def _cause(state: StreamReceiver) -> Cause:
    if state.epochs.is_failing:
        return "failing"
    if state.epochs.current is None:
        return "joining"
    idle = not state.epochs.draining and state.epochs.unacknowledged == 0
    return "gap" if idle and state.gaps.clock.target is not None else "handler"
