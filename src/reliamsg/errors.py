"""All exceptions of reliamsg, with a common base class.

::

    ReliamsgError
    ├── TransientError            a later call may succeed; the object stays usable
    │   ├── ConfirmTimeout        Receipt.wait(): not confirmed in time; still in the outbox, still being sent
    │   ├── OutboxFull            publish(): no room within the time allowed; nothing was stored
    │   │   └── JournalFull       the same: too many rows of the journal wait for its target
    │   ├── JournalTargetError    a journal's target can't be reached, read or written
    │   ├── OutboxWriteError      publish(): the disk is full or read-only; nothing was stored
    │   ├── InboxWriteError       the inbox could not be written; consuming pauses until it can
    │   ├── InboxFull             on_error: the inbox is full; brokers retain the rest until there is room
    │   ├── TooManyStreams        on_error: messages of additional streams wait in the quarantine
    │   ├── FarEpoch              on_error: an epoch too far ahead is in quarantine; its producer does not answer
    │   └── GapError              iterating: messages are missing; accept() the gap or continue to wait
    │       └── GapHeld           on_error: messages of one stream are missing; it waits, all others continue
    └── FatalError                the object is unusable (or was not created); the message tells what to do
        ├── ConfigError           a wrong argument or name (also a ValueError)
        │   └── MessageTooLarge   a body or headers over the limit; nothing was stored
        ├── StoreError            the file cannot be used
        │   ├── OutboxLocked      another process (or object) owns this outbox
        │   ├── InboxLocked       another process (or object) owns this inbox
        │   ├── StoreMismatch     the file belongs to another producer or group, or is of another kind
        │   ├── StoreCorrupt      the file is not a database, or is damaged
        │   ├── StoreUnsafe       other users can change the file
        │   ├── StoreRetired      the file was retired: its client needs a new one
        │   └── StoreTooNew       the file was written by a newer reliamsg
        ├── OutboxIndeterminate   an fsync failed: the state on the disk is unknown, the producer has stopped
        ├── InboxIndeterminate    the same for a consumer
        ├── ForkedError           used in a child process after fork(); open another one there
        ├── ClosedError           used after close()
        ├── MessageRemoved        Receipt.wait(): the message was removed; the producer stays usable
        ├── GroupBusy             another inbox is consuming for this group
        ├── DeadLetterHalt        a message reached max_deliveries and the consumer is configured to halt
        ├── QuarantineFull        an inbox's quarantine is full: consuming stops, so that nothing is dropped
        ├── ProducerConflict      two histories with one producer id (a restored or cloned outbox)
        └── ProducerFenced        a newer owner of this producer id is running

Every exception is either a :class:`TransientError` or a :class:`FatalError`. Exceptions of the application's callbacks
and handlers are passed through unchanged. All classes can be imported from :mod:`reliamsg` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reliamsg.message import Gap, Stream

__all__ = [
    "ClosedError",
    "ConfigError",
    "ConfirmTimeout",
    "DeadLetterHalt",
    "FarEpoch",
    "FatalError",
    "ForkedError",
    "GapError",
    "GapHeld",
    "GroupBusy",
    "InboxFull",
    "InboxIndeterminate",
    "InboxLocked",
    "InboxWriteError",
    "JournalFull",
    "JournalTargetError",
    "MessageRemoved",
    "MessageTooLarge",
    "OutboxFull",
    "OutboxIndeterminate",
    "OutboxLocked",
    "OutboxWriteError",
    "ProducerConflict",
    "ProducerFenced",
    "QuarantineFull",
    "ReliamsgError",
    "StoreCorrupt",
    "StoreError",
    "StoreMismatch",
    "StoreRetired",
    "StoreTooNew",
    "StoreUnsafe",
    "TooManyStreams",
    "TransientError",
]


class ReliamsgError(Exception):
    """The base class of all errors of this library."""


class TransientError(ReliamsgError):
    """A later call may succeed; the producer or consumer stays usable."""


class ConfirmTimeout(TransientError, TimeoutError):
    """A receipt was not confirmed in time. The outcome is unknown: the message stays stored and is resent."""

    def __init__(self, text: str = "", sites: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.sites: dict[str, str] = dict(sites or {})
        """By site, the state of the messages, and the cause if it is known: the state of the connection, or the
        broker's reason. Empty if no site is the cause."""


class OutboxFull(TransientError):
    """The outbox holds ``max_bytes``, and no room became free within the time allowed. Nothing was stored."""


class JournalFull(OutboxFull):
    """Too many rows of the journal wait for its target. Nothing was stored; publishing resumes when the target accepts
    segments."""


class JournalTargetError(TransientError):
    """The target of a journal can't be reached, read or written, or has a different file with a segment's name."""


class OutboxWriteError(TransientError):
    """The outbox could not be written (disk full, read-only). Nothing was stored, and no sequence number was used."""


class InboxWriteError(TransientError):
    """The inbox could not be written (disk full, read-only). Nothing is acknowledged until it can be."""


class InboxFull(TransientError):
    """The inbox is full (``max_inbox_bytes``); brokers retain the rest until there is room.

    Reported to ``on_error`` once for each time. Nothing is lost, and deliveries continue. The inbox accepts messages
    again when those that fill it have been processed; until then ``status().stalled`` lists their streams.
    """

    stream: Stream
    """The stream that uses the most room."""
    cause: str
    """Why its messages stay there: a cause of :class:`~reliamsg.consumer.status.Stalled`."""

    def __init__(self, text: str, stream: Stream, cause: str) -> None:
        super().__init__(text)
        self.stream, self.cause = stream, cause


class TooManyStreams(TransientError):
    """There is no room for another stream: ``max_streams`` are in use, or ``max_known_streams`` are known.

    Messages of other streams wait in the inbox's quarantine until there is room; known streams continue. Streams held
    by gaps count only beyond ``max_streams`` of them. ``reliamsg inbox forget`` makes room among the known streams.
    Reported to ``on_error``, once for each time.
    """


class FarEpoch(TransientError):
    """Messages of a stream are kept in quarantine because their epoch is implausibly far ahead.

    Epochs are clock readings. This one is more than 48 hours ahead of every clock that the group knows, and the
    producer did not answer a request. Either it was forged, or the producer's clock is wrong and the producer is
    unavailable: then the messages are accepted when it answers. ``reliamsg inbox quarantine replay`` accepts them at
    once, ``discard`` deletes them. Reported to ``on_error``, once for each stream. Other streams, and earlier epochs of
    this one, continue.
    """


class GapError(TransientError):
    """Messages of a stream are missing and did not arrive in time.

    The consumer stays usable. ``consumer.accept(error.gap)`` declares the gap lost and passes it; iterating again
    without it continues to wait, and messages that still arrive fill the gap.
    """

    def __init__(self, gap: Gap) -> None:
        super().__init__(str(gap))
        self.gap = gap


class GapHeld(GapError):
    """Messages of a stream are missing, did not arrive in time, and hold only that stream (``on_gap="hold"``).

    Reported to ``on_error``, once for each gap. The stream continues when they arrive, or without them after
    ``consumer.accept(error.gap)`` or ``reliamsg inbox accept``.
    """


class FatalError(ReliamsgError):
    """The object can't continue, or was not created."""


class ConfigError(FatalError, ValueError):
    """An argument, name or URL is not usable; the message tells which and why."""


class MessageTooLarge(ConfigError):
    """A body, key or header is over its limit. Nothing was stored; the producer stays usable."""


class StoreError(FatalError):
    """An outbox or inbox file can't be used."""


class OutboxLocked(StoreError):
    """Another process or object owns this outbox."""


class InboxLocked(StoreError):
    """Another process or object owns this inbox."""


class StoreMismatch(StoreError):
    """The file is an outbox of another producer, an inbox of another group, or the other kind of file."""


class StoreCorrupt(StoreError):
    """The file is not a database, or is damaged."""


class StoreRetired(StoreError):
    """The file was retired by ``reliamsg journal retire``; the message tells when. No client can open it any more."""


class StoreTooNew(StoreError):
    """The file was written by a newer version of reliamsg; upgrade, or use another file."""


class StoreUnsafe(StoreError):
    """The file belongs to another user, other users can write or replace it, or it is a dangling symbolic link; the
    message tells how to correct this."""


class OutboxIndeterminate(FatalError):
    """An fsync failed, so the state on the disk is unknown. Open the outbox again to find out."""


class InboxIndeterminate(FatalError):
    """An fsync failed, so the state on the disk is unknown. Open the inbox again to find out."""


class ForkedError(FatalError):
    """The object was opened before fork() and used in the child. Open a separate one in each process."""


class ClosedError(FatalError):
    """The object was used after close()."""


class MessageRemoved(FatalError):
    """The message was removed from the outbox before its confirm policy was met. The producer stays usable."""


class GroupBusy(FatalError):
    """Another inbox consumes for this group at a site, and has done so for ``takeover_timeout`` seconds."""


class DeadLetterHalt(FatalError):
    """A message reached ``max_deliveries``, and the consumer is configured to halt then."""


class QuarantineFull(FatalError):
    """A message can't be accepted, and the inbox's quarantine has no room for it (``max_quarantine_bytes``).

    Consuming stops, because a message that a broker confirmed must not be dropped: brokers retain unacknowledged
    messages. Replay or discard messages in quarantine (``reliamsg inbox quarantine``), or raise the limit, and open the
    consumer again.
    """


class ProducerConflict(FatalError):
    """Two histories exist with one producer id: its outbox was restored from a backup, or cloned."""


class ProducerFenced(FatalError):
    """A newer owner of this producer id is running, or a group has entered an epoch that no producer can move above.

    Unsent messages stay in the outbox. In the latter case have the group forget the stream (``reliamsg inbox forget``,
    which keeps the inbox), then open the producer again.
    """
