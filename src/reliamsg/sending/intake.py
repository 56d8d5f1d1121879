"""Where the application's messages wait for their commit.

Its lock is its own: publishing threads never wait for a site's I/O thread, and the writer takes everything at once. Nor
does anybody wait for it who holds the engine's lock (see `reliamsg.sending.admission`).

Whoever publishes may be interrupted between any two instructions, by a signal handler (or finalizer) that publishes as
well, or by an exception such as ``KeyboardInterrupt``. So the lock is reentrant, and who works on what it guards holds
a *token* as well: what is left of the bytes that were reserved for the current group. Taking and returning it are
single operations.

- Who finds the lock free and the token missing knows that somebody was interrupted for good, and puts right what that
  left (:meth:`Intake._take_token`): at most a body without its receipt.
- Who finds the lock its own before it takes it has interrupted somebody who will go on. It touches nothing, and puts
  its message aside in a group of its own, which comes after what was published before and before what comes next.

The writer is woken before a message is put where it will look, with the lock held: an interruption can't come between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from reliamsg.errors import FatalError, JournalFull, OutboxFull, ReliamsgError
from reliamsg.keys import MAX_KEY_ID_BYTES
from reliamsg.runtime.wakeup import Waiters
from reliamsg.sending.admission import QUEUE_BYTES, Admission
from reliamsg.sending.receipt import Receipt

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine
    from reliamsg.sending.settings import Settings

__all__ = ["Column", "Group", "Intake", "Item"]

GROUP_BYTES = 8 * 1024 * 1024
"""Beyond it another group begins: while a large one is being stored nothing is read back for sites that are behind."""
LEASE_BYTES = 64 * 1024
"""So much is reserved at a time while there is room, so that few messages have to ask for it."""
SMALL_LEASE_BYTES = 4 * 1024
"""The same where there is little room."""
MESSAGE_OVERHEAD = 64
"""What a message counts for beside its content, in bytes. It takes up to 8 in its batch; the rest covers its share of
the envelope, if it shares that with at least ENVELOPE_SHARES others."""
HEADER_OVERHEAD = 6
"""What a key, or a header, takes beside its text."""
ENVELOPE_BYTES = 140
"""Most that a batch takes beside its messages, its producer's name, topic and signature."""
SIGNATURE_BYTES = MAX_KEY_ID_BYTES + 40
MAX_TOPIC_BYTES = 100
ENVELOPE_SHARES = 32

Item = tuple[str, Sequence[bytes], str | None, Mapping[str, str] | None, Receipt]
"""Topic, bodies, key, headers, receipt."""


class Column:
    """Single messages of one topic without keys and headers, which come by the million."""

    __slots__ = ("bodies", "group", "receipts", "topic")

    def __init__(self, group: Group | None, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.bodies: list[bytes] = []
        self.receipts: list[Receipt] = []


_NONE = Column(None, "")
"""No column. Nothing is ever appended to it, since no topic has its name."""


class Group:
    """What is published between two commits, and shares the next one."""

    __slots__ = ("done", "engine", "error", "leased", "parts", "waiters", "wall_us")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parts: list[Column | Item] = []
        """In the order of publishing."""
        self.leased = 0
        """About how many bytes are reserved for it."""
        self.wall_us = 0
        """When the first message was published, in µs since 1970."""
        self.error: ReliamsgError | None = None
        self.done = False
        """Whether the outcome is known."""
        self.waiters = Waiters()

    @property
    def empty(self) -> bool:
        return not self.parts

    @property
    def count(self) -> int:
        """How many messages there are."""
        return sum(
            len(part.receipts) if isinstance(part, Column) else len(part[1]) for part in list(self.parts)
        )

    def wait(self, timeout: float | None) -> bool:
        """Wait until the outcome is known, at most `timeout` seconds; returns whether it is."""
        return self.waiters.wait(lambda: self.done, timeout)

    def finish(self, error: ReliamsgError | None = None) -> None:
        """Wake everybody who waits for this commit, and let go of the messages."""
        self.error = error
        self.parts = []
        self.done = True
        self.waiters.notify_all()


class Intake:
    """Accepts messages from any thread; the writer takes them away in groups."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        settings: Settings,
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.refusal: FatalError | None = None
        """Why nothing is accepted any more."""
        self._engine = engine
        self._admission = admission
        self._wall_us = wall_us
        self._wake = wake
        self._envelope = ENVELOPE_BYTES + len(engine.producer_id.encode())
        if settings.keys is not None:
            self._envelope += SIGNATURE_BYTES
        # Batches are cut by count, and by size: two that follow each other hold more than max_batch_bytes. So messages
        # of that size may take two envelopes more, and as many as max_batch_messages one.
        widest = self._envelope + MAX_TOPIC_BYTES
        self._each = MESSAGE_OVERHEAD
        self._share = (2 * widest, settings.max_batch_bytes)
        """The bytes of envelopes that so many bytes of messages may take."""
        if min(settings.max_batch_messages, settings.max_batch_bytes // widest) < ENVELOPE_SHARES:
            self._each += widest  # one for each message
            self._share = (0, 1)
        self._lock = threading.RLock()
        self._token = [0]
        """What is left of the bytes that were reserved for the last group; nothing while somebody works on it."""
        self._column = _NONE
        """Where the next message goes, if it is one of this column's kind."""
        self._groups = deque([Group(engine)])
        """Oldest first. All but the last are complete."""
        self._group = self._groups[0]
        """The last one, for which the token's bytes are."""
        self._aside: deque[Group] = deque()
        """Groups of those who interrupted somebody."""
        self._storing: Group | None = None

    def accept_one(self, topic: str, body: bytes, block: float) -> Receipt:
        """Accept the usual message, without key and headers; waits at most `block` seconds for room."""
        size = len(body) + self._each
        token = self._token
        with self._lock:
            try:
                left = token.pop()
            except IndexError:
                pass
            else:
                column = self._column
                if size <= left and column.topic == topic and not self._aside:
                    receipt = Receipt(self._group, topic, 1)
                    column.bodies.append(body)
                    column.receipts.append(receipt)
                    token.append(left - size)
                    return receipt
                token.append(left)
        return self._accept(topic, (body,), None, None, size, block)

    def accept(
        self,
        topic: str,
        bodies: Sequence[bytes],
        key: str | None,
        headers: Mapping[str, str] | None,
        size: int,
        block: float,
    ) -> Receipt:
        """Accept messages of `size` bytes, all or none; waits at most `block` seconds for room."""
        size += (self._each + HEADER_OVERHEAD * ((key is not None) + len(headers or ()))) * len(bodies)
        return self._accept(topic, bodies, key, headers, size, block)

    def _accept(
        self,
        topic: str,
        bodies: Sequence[bytes],
        key: str | None,
        headers: Mapping[str, str] | None,
        size: int,
        block: float,
    ) -> Receipt:
        deadline = None
        while True:
            if self._is_interruption:
                receipt = self._put_aside(topic, bodies, key, headers, size)
            else:
                with self._lock:
                    receipt = self._place(topic, bodies, key, headers, size)
            if receipt is not None:
                return receipt
            deadline = self._wait(self._with_envelopes(size + self._envelope_of(topic)), block, deadline)

    @property
    def _is_interruption(self) -> bool:
        """Whether the caller has interrupted its own thread in here. (Conditions ask their lock the same.)"""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _place(
        self,
        topic: str,
        bodies: Sequence[bytes],
        key: str | None,
        headers: Mapping[str, str] | None,
        size: int,
    ) -> Receipt | None:
        """Put messages into the last group; None where there is no room. With the lock held, by nobody who
        interrupts."""
        if self.refusal is not None:
            raise self.refusal
        left = self._take_token()
        group = self._group
        single = len(bodies) == 1 and key is None and not headers
        column = self._column if single and self._column.topic == topic else None
        need = size if column is not None else size + self._envelope_of(topic)
        if need > left:
            left = self._lease(group, need, left)
        if need > left:
            self._token.append(left)
            return None
        self._wake()
        receipt = Receipt(group, topic, len(bodies))
        if column is None:
            self._column = _NONE  # first: what comes after this must not go to a column before it
            part = self._part(group, topic, bodies, key, headers, receipt)
            if group.empty:
                group.wall_us = self._wall_us()
            group.parts.append(part)
            if isinstance(part, Column):
                self._column = part
        else:
            column.bodies.append(bodies[0])
            column.receipts.append(receipt)
        self._token.append(left - need)
        return receipt

    @staticmethod
    def _part(
        group: Group,
        topic: str,
        bodies: Sequence[bytes],
        key: str | None,
        headers: Mapping[str, str] | None,
        receipt: Receipt,
    ) -> Column | Item:
        if len(bodies) > 1 or key is not None or headers:
            return topic, bodies, key, headers, receipt
        column = Column(group, topic)
        column.bodies.append(bodies[0])
        column.receipts.append(receipt)
        return column

    def _put_aside(
        self,
        topic: str,
        bodies: Sequence[bytes],
        key: str | None,
        headers: Mapping[str, str] | None,
        size: int,
    ) -> Receipt | None:
        """The same for who has interrupted somebody: in a group of its own. One that stays empty is dropped later."""
        if self.refusal is not None:
            raise self.refusal
        group = Group(self._engine)
        self._aside.append(group)
        if not self._reserve(group, size + self._envelope_of(topic)):
            return None
        self._wake()
        receipt = Receipt(group, topic, len(bodies))
        group.wall_us = self._wall_us()
        group.parts.append(self._part(group, topic, bodies, key, headers, receipt))
        return receipt

    # -- room, with the lock held -----------------------------------------------------------------------------

    def _take_token(self) -> int:
        """The token, with everything in order: `_group` is the last group, and takes more."""
        try:
            left = self._token.pop()
        except IndexError:  # somebody was interrupted, and did not come back
            left = 0
            column = self._column
            del column.bodies[len(column.receipts) :]
        while self._aside:
            if self._groups[-1] is not self._aside[0]:  # else an interruption came between the next two lines
                self._groups.append(self._aside[0])
            self._aside.popleft()
        if self._group is self._groups[-1] and self._group.leased >= GROUP_BYTES:
            self._groups.append(Group(self._engine))
        if self._group is not self._groups[-1]:
            left, self._column = 0, _NONE
            self._group = self._groups[-1]
        return left

    def _envelope_of(self, topic: str) -> int:
        """What a batch of a topic may take beside its messages."""
        return self._envelope + len(topic.encode())

    def _lease(self, group: Group, need: int, left: int) -> int:
        """Reserve more for the last group, of which `left` bytes are left; returns how much is left then."""
        if group.empty and group.leased:  # begin anew: it may be this that takes the room
            self._admission.give_back(group)
            group.leased = left = 0
        lack = need - left
        most = max(0, GROUP_BYTES - group.leased)
        for amount in (LEASE_BYTES, SMALL_LEASE_BYTES, 0):
            more = max(lack, min(amount, most))
            if self._reserve(group, more):
                group.leased += more
                return left + more
        return left

    def _reserve(self, group: Group, size: int) -> bool:
        """Reserve room for messages of `size` bytes, and for the envelopes that they may take."""
        return self._admission.reserve(group, self._with_envelopes(size))

    def _with_envelopes(self, size: int) -> int:
        envelopes, messages = self._share
        return size - (-size * envelopes // messages)

    def _wait(self, size: int, block: float, deadline: float | None) -> float:
        """Wait until there may be room for `size` bytes; returns the deadline for all waits of one publish."""
        admission = self._admission
        if size > admission.max_bytes and self.refusal is None:
            raise OutboxFull(f"{size} bytes can't fit: the outbox holds at most {admission.max_bytes}")
        if deadline is None:
            deadline = self._engine.clock() + block
        room = admission.wait(
            lambda: self.refusal is not None or admission.fits(size),
            max(0.0, deadline - self._engine.clock()),
        )
        if self.refusal is not None:
            raise self.refusal
        if not room and (why := self._engine.export.why_full):
            raise JournalFull(why)
        if not room:
            raise OutboxFull(self._why_full())
        return deadline

    def _why_full(self) -> str:
        engine = self._engine
        with engine.lock:
            lagging = engine.membership.lagging()
        whom = "a group, a site" if lagging else "a site"
        text = (
            f"{self._admission.used} bytes wait for {whom} or for the disk;"
            f" the limits are {self._admission.max_bytes} in the outbox, {QUEUE_BYTES} before it"
        )
        return f"{text}; {lagging}" if lagging else text

    def hold(self, held: bool) -> None:
        """Let nothing in, as if there were no room, or go on."""
        self._admission.hold(held)
        self._revoke()

    def refuse(self, error: FatalError) -> None:
        """Accept nothing more; the first reason stays."""
        if self.refusal is None:
            self.refusal = error
        self._revoke()
        self._admission.look_again()

    def _revoke(self) -> None:
        """Have the next message ask for room."""
        if not self._is_interruption:  # else who was interrupted has the token, and will return it
            with self._lock:
                self._take_token()
                self._token.append(0)

    # -- for the writer -------------------------------------------------------------------------------------

    def take(self) -> Group | None:
        """What has waited longest, to be stored; None if nothing does. :meth:`stored` must follow."""
        with self._lock:
            left = self._take_token()
            while len(self._groups) > 1 and self._groups[0].empty:
                self._admission.give_back(self._groups.popleft())
            group = self._groups[0]
            if group.empty:
                if group.leased:
                    self._admission.give_back(group)
                    group.leased = 0
                self._token.append(0)
                return None
            if group is self._group:
                self._groups.append(Group(self._engine))
                self._group, self._column, left = self._groups[-1], _NONE, 0
            self._storing = group  # first, so that it is somewhere at every instant
            self._groups.popleft()
            self._token.append(left)
            return group

    def stored(self) -> None:
        """What was taken is stored, or has failed."""
        self._storing = None

    def fail(self, error: ReliamsgError) -> None:
        """There will be no further commit: tell whoever waits for one."""
        with self._lock:
            self._take_token()
            groups = list(self._groups)
            self._groups.append(Group(self._engine))
            self._group, self._column = self._groups[-1], _NONE
            while self._groups[0] is not self._group:
                self._groups.popleft()
            self._token.append(0)
        if self._storing is not None:  # the writer failed in the middle of it
            groups.insert(0, self._storing)
            self._storing = None
        for group in groups:
            self._admission.give_back(group)
            group.finish(error)

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._aside and len(self._groups) == 1 and self._groups[0].empty

    @property
    def groups(self) -> list[Group]:
        """The groups whose outcome is open, oldest first. Also with the engine's lock held, so that our own is not
        waited for; what moves on meanwhile is met twice at most, since this looks the way that groups go."""
        aside, groups, storing = list(self._aside), list(self._groups), self._storing
        found = dict.fromkeys((storing, *groups, *aside))
        return [group for group in found if group is not None and not group.empty]

    @property
    def messages(self) -> int:
        """How many messages are accepted and not stored."""
        return sum(group.count for group in self.groups)
