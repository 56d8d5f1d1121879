"""Messages that are delivered out of order: late ones, and dead letters that are replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from reliamsg import forks
from reliamsg.consumer.buffer import BufferedBatch, StreamBuffer
from reliamsg.consumer.shared import Shared
from reliamsg.errors import FatalError, ForkedError
from reliamsg.logs import Log
from reliamsg.message import Message, digest
from reliamsg.protocol.receiver.redelivery import Offer
from reliamsg.store.inbox_rows import DeadLetter, HeldFrame
from reliamsg.store.inbox_view import read_dead_letters
from reliamsg.store.journal import Entry
from reliamsg.wire.data import FrameError, Records, open_frame

__all__ = ["DeadLetters", "LateItem", "ReplayItem"]

log: Log = Log("reliamsg.consumer")

LETTER_BYTES = 1024
"""In memory, for a dead letter without body, key and headers."""
LATE_PAGE = 16
"""Late frames in memory at a time."""


@dataclass(slots=True)
class LateItem:
    """Messages that arrived after their gap was passed. Call ``late_seen(number)`` afterwards."""

    number: int
    messages: list[Message]
    """Those that the application has not seen yet."""

    @property
    def done(self) -> bool:
        return not self.messages

    def seen(self) -> None:
        """The application has seen the first of them."""
        del self.messages[0]


@dataclass(slots=True)
class ReplayItem:
    """A dead letter that is delivered again."""

    message: Message
    done: bool = False
    """The application has it."""

    def take(self, given: list[Message]) -> None:
        """The message is in `given` now."""
        given += [self.message]
        self.done = True


class DeadLetters:
    """Keeps dead letters, and shows late messages and replays to the application. Everything under the consumer's lock,
    unless it says otherwise."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._late: deque[HeldFrame] = deque()
        self._again: deque[LateItem] = deque()
        """Items that were shown in part."""
        self._late_above = 0
        self._replays: deque[DeadLetter] = deque()
        self._returned: deque[ReplayItem] = deque()
        """Replays that no one took."""
        self._replaying: dict[int, int] = {}
        """Dead letters that are delivered again and have no outcome yet: bytes by id."""
        self.replaying_bytes: int = 0
        """Their size."""
        self.waiting: bool = False
        """There is something to show to the application."""

    def take(self) -> LateItem | ReplayItem:
        """The first item that is :attr:`waiting`."""
        if self._returned:
            item: LateItem | ReplayItem = self._returned.popleft()
        elif self._replays:
            item = self._replayed(self._replays.popleft())
        elif self._again:
            item = self._again.popleft()
        else:
            item = self._late_item(self._late.popleft())
        self.waiting = bool(self._returned or self._replays or self._again or self._late)
        return item

    # -- late messages ------------------------------------------------------------------------------------

    def load_late(self) -> None:
        """Read late messages from the inbox, on the thread that owns it. Takes the lock."""
        shared = self._shared
        if self._late or shared.inbox.late_count == 0:
            return
        try:
            rows = shared.inbox.late(self._late_above, LATE_PAGE)
        except FatalError as error:
            with shared.lock:
                shared.health.fail(error)
            return
        with shared.lock:
            for row in rows:
                self._late_above = row.id
                self._late.append(row)
            if rows:
                self.waiting = True
                shared.changed.notify_all()

    def _late_item(self, row: HeldFrame) -> LateItem:
        messages: list[Message] = []
        try:
            frame = open_frame(row.frame)
            records = frame.records(trusted=not row.stream.producer)
        except FrameError as error:
            log.warning(
                "consumer.late_messages_unreadable",
                "late messages %(first)d to %(last)d of %(stream)s can't be read: %(reason)s",
                group=self._shared.group, stream=str(row.stream), first=row.first, last=row.last, reason=str(error),
            )  # fmt: skip
            return LateItem(row.id, messages)
        for seq in range(row.first, row.last + 1):
            body, key, headers = _record(records, seq - frame.envelope.seq)
            messages.append(
                Message(*row.stream, row.epoch, seq, body, key, headers, False, False, _Settled())
            )
        return LateItem(row.id, messages)

    def put_back(self, item: LateItem | ReplayItem) -> None:
        """Show the rest of an item next. Takes the lock."""
        with self._shared.lock:
            if isinstance(item, LateItem):
                self._again.append(item)
            else:
                self._returned.append(item)
            self.waiting = True
            self._shared.changed.notify_all()

    def late_seen(self, number: int) -> None:
        """The application has seen a late item. Takes the lock."""
        with self._shared.lock:
            self._shared.durability.pending.seen_late.append(number)
            self._shared.agenda.due(self._shared.clock())

    # -- dead letters -------------------------------------------------------------------------------------

    def bury(self, buffer: StreamBuffer, message: Message, reason: str, now: float) -> None:
        """Move a message to the dead letters."""
        shared = self._shared
        state = buffer.state
        key = (message.epoch, message.seq)
        attempts = state.redelivery.attempts(*key)
        known = state.epochs.live.get(message.epoch)
        shared.events.journal_all()
        if known is None or not state.bury(*key, reason, now):
            return  # it was settled before
        shared.durability.pending.dead.append(
            DeadLetter(
                0, state.stream, message.epoch, known.incarnation, message.seq, message.key, dict(message.headers),
                message.body, reason, attempts, shared.wall_us(),
            )
        )  # fmt: skip
        shared.buffers.prune(buffer, message.epoch)
        shared.events.handle()
        log.warning(
            "consumer.dead_letter",
            "%(message_id)s goes to the dead letters after %(attempts)d deliveries: %(reason)s",
            group=shared.group, message_id=str(message.id), attempts=attempts, reason=reason,
        )  # fmt: skip

    def bury_spent(self, buffer: StreamBuffer, batch: BufferedBatch, offer: Offer, now: float) -> None:
        """The same for a message that had used up its deliveries before this process started."""
        body, key, headers = _record(batch.records(), offer.first - batch.frame.envelope.seq)
        message = Message(
            *buffer.state.stream, offer.epoch, offer.first, body, key, headers, True, False, buffer
        )
        buffer.state.epochs.live[offer.epoch].advance(offer.first)
        self.bury(buffer, message, "used up its deliveries; the process ended during the last one", now)

    def replay(self, ids: Collection[int]) -> tuple[int, int]:
        """Deliver dead letters again, oldest first, but not those that are being replayed, or were acknowledged.
        Returns how many are delivered, and how many `ids` are no dead letters. Reads the inbox, on any thread, and
        takes the lock. Raises :class:`ReliamsgError` if the inbox can't be read."""
        shared, found = self._shared, list[DeadLetter]()
        with shared.lock:
            # They are marked before they are read: what is read afterwards is not yet acknowledged, or durably.
            new = dict.fromkeys(set(ids) - self._replaying.keys() - shared.durability.reviving, 0)
            self._replaying |= new
        try:
            found = read_dead_letters(shared.inbox.path, new) if new else []
        finally:
            with shared.lock:
                for number in new.keys() - {letter.id for letter in found}:
                    del self._replaying[number]
                for letter in found:
                    self._replaying[letter.id] = size = _size(letter)
                    self.replaying_bytes += size
                self._replays += found
                self.waiting |= bool(found)
                shared.changed.notify_all()
        return len(found), len(new) - len(found)

    def _replay_ended(self, number: int) -> None:
        with self._shared.lock:
            self.replaying_bytes -= self._replaying.pop(number, 0)

    def _replayed(self, letter: DeadLetter) -> ReplayItem:
        self._shared.journal.add(
            Entry(
                "replayed", letter.stream, letter.epoch, letter.incarnation, letter.seq, letter.seq, "",
                self._shared.group, digest=digest(letter.seq, letter.body, letter.key, letter.headers),
            )
        )  # fmt: skip
        settler = _Revival(self._shared, letter.id, self._replay_ended)
        return ReplayItem(
            Message(
                *letter.stream, letter.epoch, letter.seq, letter.body, letter.key, letter.headers, False, True, settler
            )
        )  # fmt: skip


def _size(letter: DeadLetter) -> int:
    """About how many bytes of memory it takes."""
    headers = sum(len(name) + len(value) for name, value in letter.headers.items())
    return LETTER_BYTES + len(letter.body) + len(letter.key or "") + headers


def _record(records: Records, i: int) -> tuple[bytes, str | None, dict[str, str]]:
    """Body, key and headers of one message of a frame."""
    headers = records.headers[i] if records.headers is not None else None
    return records.bodies[i], records.keys[i] if records.keys is not None else None, headers or {}


class _Settled:
    """Receives the outcome of a late message, which is settled already."""

    def acknowledge(self, message: Message, durable: bool) -> None:
        """Nothing to do."""

    def reject(self, message: Message, reason: str) -> None:
        """Nothing to do."""

    def failed(self, message: Message, error: BaseException) -> None:
        """Nothing to do."""


class _Revival:
    """Receives the outcome of a replayed message: the first one counts, as with any message. So one that a handler
    rejects is not acknowledged when the handler returns."""

    def __init__(self, shared: Shared, number: int, ended: Callable[[int], object]) -> None:
        """`ended`: called when the application is done with the message, for good or bad."""
        self._shared = shared
        self._number = number
        self._ended = ended
        self._done = False
        self._generation = forks.generation

    def acknowledge(self, message: Message, durable: bool) -> None:
        if self._generation != forks.generation:
            raise ForkedError(
                f"{message.id} was delivered before fork(): acknowledge it in the parent process"
            )
        self._shared.uninterrupted(lambda: self._end(revive=True))
        if durable:
            self._shared.durability.wait(self._shared.calls)

    def reject(self, message: Message, reason: str) -> None:
        """It stays among the dead letters."""
        self._shared.uninterrupted(lambda: self._end(revive=False))

    def failed(self, message: Message, error: BaseException) -> None:
        """It stays among the dead letters."""
        self._shared.uninterrupted(lambda: self._end(revive=False))

    def _end(self, revive: bool) -> None:
        shared = self._shared
        with shared.lock:
            if self._done:
                return
            self._done = True
            if revive:
                shared.durability.revive(self._number)
                shared.agenda.due(shared.clock())
        self._ended(self._number)
