"""The events that calls of a :class:`~reliamsg.protocol.receiver.group.GroupReceiver` lead to.

They are collected in order until the caller takes them with
:meth:`~reliamsg.protocol.receiver.group.GroupReceiver.take_events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from reliamsg.message import Gap, Stream

__all__ = [
    "CommitWanted", "Conflict", "Deliverable", "Event", "GapHeld", "GapMissed", "Moved", "Note", "ReportChanged",
]  # fmt: skip


class Note(msgspec.Struct, frozen=True):
    """A row for the journal, with the next commit; see :mod:`reliamsg.store.journal` for the kinds."""

    kind: str
    stream: Stream
    epoch: int
    incarnation: int
    first: int
    last: int
    site: str = ""
    reason: str = ""
    detail: Mapping[str, Any] | None = None
    latency: Mapping[int, int] | None = None
    """Histogram, see :mod:`reliamsg.protocol.histogram`."""


class Deliverable(msgspec.Struct, frozen=True):
    """The stream may have something to offer, or a gap to decide about."""

    stream: Stream


class CommitWanted(msgspec.Struct, frozen=True):
    """There are changes to commit; reported once for each commit, and once more when it becomes urgent."""

    urgent: bool


class Moved(msgspec.Struct, frozen=True):
    """The stream was joined, entered another epoch, or continues where another inbox stopped. What was deferred may be
    accepted now, and messages that the caller keeps may be settled."""

    stream: Stream


class ReportChanged(msgspec.Struct, frozen=True):
    """The stream's report to its producer changed with a commit."""

    stream: Stream


class Conflict(msgspec.Struct, frozen=True):
    """The stream's producer has two histories."""

    stream: Stream
    epoch: int
    problem: str


class GapMissed(msgspec.Struct, frozen=True):
    """A gap was passed by joining, and detected afterwards."""

    gap: Gap


class GapHeld(msgspec.Struct, frozen=True):
    """A gap begins to hold its stream."""

    gap: Gap


Event = Note | Deliverable | CommitWanted | Moved | ReportChanged | Conflict | GapMissed | GapHeld
