"""The contents of the next commit besides the core's snapshot, and whether the inbox can be written."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from functools import partial

from reliamsg.consumer.agenda import Agenda
from reliamsg.consumer.health import Health
from reliamsg.errors import ClosedError, InboxWriteError
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.runtime.wakeup import Uninterrupted, Waiters
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import DeadLetter, HeldFrame, Quarantined, Standing
from reliamsg.store.quarantine import QuarantinedDelivery

__all__ = ["Durability", "Pending", "Quarantining"]

log: Log = Log("reliamsg.consumer")


@dataclass(slots=True)
class Quarantining:
    """A delivery that the next commit puts in quarantine."""

    delivery: QuarantinedDelivery
    site: str
    token: object
    """How to acknowledge to its broker after the commit; None where no broker waits for that (any more)."""


@dataclass
class Pending:
    """The contents of the next commit besides the core's snapshot."""

    dead: list[DeadLetter] = field(default_factory=list)
    revived: list[int] = field(default_factory=list)
    """Ids of dead letters that were replayed and acknowledged."""
    late: list[HeldFrame] = field(default_factory=list)
    late_bytes: int = 0
    seen_late: list[int] = field(default_factory=list)
    quarantine: list[Quarantined] = field(default_factory=list)
    """Samples of unusable deliveries."""
    quarantined: list[Quarantining] = field(default_factory=list)
    unquarantined: list[int] = field(default_factory=list)
    """Ids of deliveries that are safe outside the quarantine."""
    discarded: list[tuple[Stream, int, int, int]] = field(default_factory=list)
    """(stream, epoch, first, last) of frames in the inbox that turned out unreadable."""
    tokens: list[tuple[str, object]] = field(default_factory=list)
    """(site, token) of deliveries that their brokers may forget after this commit."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not any(map(self.__dict__.__getitem__, _LISTS))

    def keep_late(self, frame: HeldFrame) -> None:
        """Keep what arrived late."""
        self.late.append(frame)
        self.late_bytes += len(frame.frame)

    def disconnected(self, site: str) -> None:
        """The site delivers unacknowledged messages again: its tokens are void."""
        self.tokens = [(name, token) for name, token in self.tokens if name != site]
        for one in self.quarantined:
            one.token = None if one.site == site else one.token

    def postpone_quarantined(self) -> Pending:
        """Move what goes into quarantine out of this set; returns a new set with it."""
        later = Pending(quarantined=self.quarantined)
        self.quarantined = []
        return later

    def put_back(self, earlier: Pending) -> None:
        """The commit of an earlier set failed: its contents come first."""
        self.late_bytes += earlier.late_bytes
        for name in _LISTS:
            getattr(self, name)[:0] = getattr(earlier, name)


_LISTS = tuple(each.name for each in fields(Pending) if each.name != "late_bytes")


class Durability:
    """Follows the inbox's commits: the contents of the next one, the callers that wait, and failures. Changed
    under the consumer's lock; its attributes may be read without."""

    def __init__(
        self, inbox: Inbox, lock: threading.RLock, changed: Waiters, health: Health, agenda: Agenda
    ) -> None:
        self._lock = lock
        self._changed = changed
        self._health = health
        self._agenda = agenda
        self._path = inbox.path
        self.pending: Pending = Pending()
        self.reviving: set[int] = set()
        """Ids of dead letters that the application has acknowledged, and that the inbox still has as dead letters."""
        self.standing: Standing = inbox.standing
        """How the inbox stands to others of its group, for the next commit to keep."""
        self.awaited: bool = False
        """A caller waits for a commit."""
        self.sync_wanted: int = 0
        """Commits that a caller waits for are numbered; the highest number that is wanted."""
        self.synced: int = 0
        """The highest number that is durable."""
        self.commits_at: float = 0.0
        """The next commit is not made before, unless it is urgent."""
        self.write_error: InboxWriteError | None = None
        """Why the inbox can't be written, or read, at present. Nothing is delivered meanwhile."""
        self.spill_error: InboxWriteError | None = None
        """Why messages can't be stored, although smaller commits may succeed."""
        self.inbox_full: bool = False
        """The inbox has room only for what can be delivered at once."""
        self.blocked: bool = False
        """Nothing may be delivered, since what follows from that could not be recorded."""
        self._journal_full = False
        """So much of the journal waits for its target that nothing is delivered."""

    # -- contents -----------------------------------------------------------------------------------------

    def take(self, small: bool) -> Pending:
        """The contents of the next commit; with `small`, deliveries for the quarantine wait for a later one."""
        taken = self.pending
        self.pending = taken.postpone_quarantined() if small else Pending()
        return taken

    def put_back(self, pending: Pending) -> None:
        """Its commit failed: it goes into the next one."""
        self.pending.put_back(pending)

    def revive(self, dead_letter_id: int) -> None:
        """The application has acknowledged a dead letter: it is none from the next commit on."""
        self.pending.revived.append(dead_letter_id)
        self.reviving.add(dead_letter_id)

    def stand(self, standing: Standing) -> None:
        """Keep how the inbox stands to others of its group."""
        self.standing = standing

    # -- waiting for a commit -----------------------------------------------------------------------------

    def want(self) -> int:
        """Demand a commit of everything that there is; returns its number. Under the lock."""
        self.sync_wanted += 1
        self.awaited = True
        return self.sync_wanted

    def want_soon(self) -> int:
        """The same, with a step at once. Takes the lock."""
        with self._lock:
            self.sync_wanted += 1
            self.awaited = True
            self._agenda.due(0.0)
            return self.sync_wanted

    def is_durable(self, number: int) -> bool:
        """Whether a commit that was demanded is durable. Raises an error where it will not be, or not before the disk
        has room again. Needs no lock."""
        # Read first: the last commit may succeed meanwhile.
        closed, error = self._health.closed, self.write_error
        if self.synced >= number:
            return True
        if self._health.fatal is not None:
            raise self._health.fatal
        if closed:
            raise ClosedError("this consumer was closed before that was durable")
        if error is not None:
            raise InboxWriteError(str(error))
        return False

    def wait(self, calls: Uninterrupted | None) -> None:
        """Wait until everything that the application has said so far is durable. `calls` makes the calls of an
        application that may be interrupted."""
        number = self.want_soon() if calls is None else calls.call(self.want_soon)
        while not self._changed.wait(partial(self.is_durable, number), 1.0):
            pass

    # -- what became of commits ---------------------------------------------------------------------------

    def committed(self, number: int, contents: Pending, next_at: float) -> None:
        """The commit that was taken when `number` was the highest number wanted is durable. The next one is made at
        `next_at` at the earliest."""
        self.reviving.difference_update(contents.revived)
        self.commits_at = next_at
        self.synced = max(self.synced, number)
        self.awaited = self.sync_wanted > self.synced

    def write_failed(self, error: InboxWriteError, large: bool = False) -> None:
        """The inbox could not be written, or read, for want of room. `large`: it was a commit that stores messages;
        smaller ones may succeed."""
        self.write_error, self.blocked = error, True
        if large:
            self.spill_error = error
        self._changed.notify_all()

    def stores_again(self) -> None:
        """There is no sign of a lack of room for messages any more."""
        self.spill_error = None

    def written_again(self) -> None:
        """The inbox can be written again."""
        self.write_error, self.blocked = None, self._journal_full
        log.info("consumer.inbox_written_again", "%(inbox)s: written again", inbox=str(self._path))

    def note_room(self, full: bool) -> None:
        """Whether the inbox has room only for what can be delivered at once."""
        self.inbox_full = full

    def hold_for_journal(self, full: bool) -> None:
        """Whether so much of the journal waits for its target that nothing may be delivered."""
        self._journal_full = full
        self.blocked = full or self.write_error is not None
