"""Everything that reliamsg raises, under one root.

::

    ReliamsgError
    ├── TransientError            the same call may succeed later; the object lives on
    │   ├── ConfirmTimeout        Receipt.wait(): not confirmed in time; still in the outbox, still being sent
    │   ├── OutboxFull            publish(): no room within the time allowed; nothing was stored
    │   │   └── JournalFull       the same: too much of the journal waits for its target
    │   ├── JournalTargetError    a journal's target can't be reached, read or written
    │   ├── OutboxWriteError      publish(): the disk is full or read-only; nothing was stored
    │   ├── InboxWriteError       the inbox could not be written; reading stops until it can
    │   ├── InboxFull             on_error: the inbox is full, and brokers keep the rest until there is room
    │   ├── TooManyStreams        on_error: messages of further streams wait in the quarantine
    │   ├── FarEpoch              an epoch too far ahead is in quarantine, and its producer does not answer
    │   └── GapError              iterating: messages are missing; accept() the gap or go on waiting
    │       └── GapHeld           on_error: messages of one stream are missing; it waits, all others go on
    └── FatalError                the object is finished (or never came into being); says what to do
        ├── ConfigError           a wrong argument or name (also a ValueError)
        │   └── MessageTooLarge   a body or headers over the limit; nothing was stored
        ├── StoreError            the file cannot be used
        │   ├── OutboxLocked      another process (or object) owns this outbox
        │   ├── InboxLocked       another process (or object) owns this inbox
        │   ├── StoreMismatch     the file belongs to another producer or group, or is of another kind
        │   ├── StoreCorrupt      the file is no database, or a damaged one
        │   ├── StoreUnsafe       others than its owner can change the file
        │   └── StoreTooNew       the file was written by a newer reliamsg
        ├── OutboxIndeterminate   an fsync failed: what is on the disk is unknown, the producer has stopped
        ├── InboxIndeterminate    the same for a consumer
        ├── ForkedError           used in a child process after fork(); open your own there
        ├── ClosedError           used after close()
        ├── MessageRemoved        Receipt.wait(): the message was removed; the producer lives on
        ├── GroupBusy             another inbox is reading for this group
        ├── DeadLetterHalt        a message used up its deliveries and the stream is configured to halt
        ├── QuarantineFull        an inbox's quarantine is full: reading stops, since nothing may be dropped
        ├── ProducerConflict      two histories under one producer id (a restored or cloned outbox)
        └── ProducerFenced        a newer owner of this producer id is alive

:class:`TransientError` and :class:`FatalError` partition the tree. Exceptions of the application's own
callbacks and handlers pass through unchanged. All of these can be imported from :mod:`reliamsg` as well.
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
    "StoreTooNew",
    "StoreUnsafe",
    "TooManyStreams",
    "TransientError",
]


class ReliamsgError(Exception):
    """The root of all errors of this library."""


class TransientError(ReliamsgError):
    """The same call may succeed later; the producer or consumer lives on."""


class ConfirmTimeout(TransientError, TimeoutError):
    """A receipt was not confirmed in time. The outcome is open: the message stays and is sent again."""

    def __init__(self, text: str = "", sites: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.sites: dict[str, str] = dict(sites or {})
        """By site, what it says of the messages, and why if it is known: the state of the connection, what the broker
        gave as its reason. Empty where sites had nothing to do with it."""


class OutboxFull(TransientError):
    """The outbox holds ``max_bytes`` and no room came free within the time allowed. Nothing was stored."""


class JournalFull(OutboxFull):
    """So much of the journal waits for its target that nothing more may happen. Nothing was stored; publishing works
    again once the target takes segments."""


class JournalTargetError(TransientError):
    """The target of a journal can't be reached, read or written, or holds something else under a segment's name."""


class OutboxWriteError(TransientError):
    """The outbox could not be written (disk full, read-only). Nothing was stored, no number was used."""


class InboxWriteError(TransientError):
    """The inbox could not be written (disk full, read-only). Nothing is acknowledged until it can be."""


class InboxFull(TransientError):
    """The inbox is full (``max_inbox_bytes``); brokers keep the rest until there is room.

    Told to ``on_error`` once each time that this lasts. Nothing is lost, and delivering goes on: it ends by itself when
    what fills the inbox is dealt with. ``status().stalled`` lists the streams that fill it while it lasts.
    """

    stream: Stream
    """Of which most is in the inbox."""
    cause: str
    """Why that stays there: one of those of :class:`~reliamsg.receiving.status.Stalled`."""

    def __init__(self, text: str, stream: Stream, cause: str) -> None:
        super().__init__(text)
        self.stream, self.cause = stream, cause


class TooManyStreams(TransientError):
    """There is no room for another stream: ``max_streams`` are in use, or ``max_known_streams`` are known.

    Messages of others wait in the inbox's quarantine until there is room; streams that are known go on. Streams that
    gaps hold count only beyond ``max_streams`` of them.
    ``reliamsg inbox forget`` makes room among those that are known. Reported through ``on_error``, once for each time.
    """


class FarEpoch(TransientError):
    """Messages of a stream are kept in quarantine, since their epoch is too far ahead to be believed.

    Epochs are clock readings. This one is more than 48 hours beyond all that the group knows of the time, and the
    producer did not answer when it was asked. Either somebody made it up, or the producer's clock is wrong and it is
    away: then the messages are taken in when it answers. ``reliamsg inbox quarantine replay`` takes them in at once,
    ``discard`` deletes them. Reported through ``on_error``, once for each stream; other streams, and what the group
    knows of this one, go on.
    """


class GapError(TransientError):
    """Messages of a stream are missing and did not come in time.

    The consumer lives on. ``consumer.accept(error.gap)`` moves past the gap and declares it lost; iterating
    again without that goes on waiting, and a late fill still repairs it.
    """

    def __init__(self, gap: Gap) -> None:
        super().__init__(str(gap))
        self.gap = gap


class GapHeld(GapError):
    """Messages of a stream are missing, did not come in time, and hold that stream alone (``on_gap="hold"``).

    Reported through ``on_error``, once for each gap. The stream goes on by itself if they arrive, and without
    them after ``consumer.accept(error.gap)`` or ``reliamsg inbox accept``.
    """


class FatalError(ReliamsgError):
    """The object can't go on, or never came into being."""


class ConfigError(FatalError, ValueError):
    """An argument, name or URL is not usable; the message says which and why."""


class MessageTooLarge(ConfigError):
    """A body, key or header is over its limit. Nothing was stored; the producer lives on."""


class StoreError(FatalError):
    """An outbox or inbox file can't be used."""


class OutboxLocked(StoreError):
    """Another process or object owns this outbox."""


class InboxLocked(StoreError):
    """Another process or object owns this inbox."""


class StoreMismatch(StoreError):
    """The file is an outbox of another producer, an inbox of another group, or the other kind of file."""


class StoreCorrupt(StoreError):
    """The file is no database, or a damaged one."""


class StoreTooNew(StoreError):
    """The file was written by a newer version of reliamsg; upgrade, or use another file."""


class StoreUnsafe(StoreError):
    """The file belongs to another user, others than its owner can write or replace it, or it is a symbolic link to
    nothing; the message says how to mend that."""


class OutboxIndeterminate(FatalError):
    """An fsync failed, so it is unknown what the disk holds. Open the outbox again to find out."""


class InboxIndeterminate(FatalError):
    """An fsync failed, so it is unknown what the disk holds. Open the inbox again to find out."""


class ForkedError(FatalError):
    """The object was opened before fork() and used in the child. Open one of its own in each process."""


class ClosedError(FatalError):
    """The object was used after close()."""


class MessageRemoved(FatalError):
    """The message was removed from the outbox before its confirm policy was met. The producer lives on."""


class GroupBusy(FatalError):
    """Another inbox reads for this group at a site, and did so for ``takeover_timeout`` seconds."""


class DeadLetterHalt(FatalError):
    """A message used up ``max_deliveries``, and the consumer is configured to halt there."""


class QuarantineFull(FatalError):
    """A message can't be taken in, and the inbox's quarantine has no room for it (``max_quarantine_bytes``).

    Reading stops, since nothing that a broker confirmed may be dropped: brokers keep what was not acknowledged. Replay
    or discard what is in quarantine (``reliamsg inbox quarantine``), or raise the limit, and open the consumer again.
    """


class ProducerConflict(FatalError):
    """Two histories exist under one producer id: its outbox was restored from a backup, or cloned."""


class ProducerFenced(FatalError):
    """A newer owner of this producer id is alive, or a group has entered an epoch that no producer can move above.

    What was not sent stays in the outbox. In the latter case have the group forget the stream (``reliamsg inbox
    forget``, which keeps the inbox), then open the producer again.
    """
