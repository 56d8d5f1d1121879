"""Where the application's messages wait for their commit.

Its lock is its own: publishing threads never wait for a site's I/O thread, and the writer takes everything at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from reliamsg.errors import FatalError, JournalFull, OutboxFull, ReliamsgError
from reliamsg.sending.receipt import Receipt

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine

__all__ = ["Group", "Intake", "Item"]

QUEUE_BYTES = 64 * 1024 * 1024
"""Most that waits in memory for its commit; beyond it, publishing is as fast as the disk."""
GROUP_BYTES = 8 * 1024 * 1024
"""Beyond it another group begins: while a large one is being stored nothing is read back for sites that are behind."""
MESSAGE_OVERHEAD = 64
"""What a message counts for beside its content, in bytes."""

Item = tuple[str, Sequence[bytes], str | None, Mapping[str, str] | None, Receipt]
"""Topic, bodies, key, headers, receipt."""


class Group:
    """What is published between two commits, and shares the next one.

    As long as all of it are single messages of one topic without keys and headers, which come by the million, it is two
    columns: `bodies` and `receipts`. Otherwise it is `items`.
    """

    __slots__ = (
        "bodies",
        "bytes",
        "engine",
        "error",
        "event",
        "items",
        "messages",
        "receipts",
        "topic",
        "wall_us",
    )

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.topic = ""
        """The topic of the columns; empty while there is nothing, and once there are items."""
        self.bodies: list[bytes] = []
        self.receipts: list[Receipt] = []
        self.items: list[Item] = []
        self.messages = 0
        """Messages in `items`."""
        self.bytes = 0
        self.wall_us = 0
        """When the first message was published, in µs since 1970."""
        self.event = threading.Event()
        """Set when the outcome is known."""
        self.error: ReliamsgError | None = None

    @property
    def empty(self) -> bool:
        return not self.bodies and not self.items

    @property
    def count(self) -> int:
        """How many messages there are."""
        return len(self.bodies) + self.messages

    def add(self, item: Item) -> None:
        """Append something that the columns have no place for."""
        if self.bodies:
            topic = self.topic
            self.items = [
                (topic, (body,), None, None, receipt)
                for body, receipt in zip(self.bodies, self.receipts, strict=True)
            ]
            self.messages = len(self.items)
            self.bodies, self.receipts = [], []
        self.topic = ""
        self.items.append(item)
        self.messages += len(item[1])

    def finish(self, error: ReliamsgError | None = None) -> None:
        """Wake everybody who waits for this commit, and let go of the messages."""
        self.error = error
        self.bodies, self.receipts, self.items = [], [], []
        self.messages = 0
        self.event.set()


class Intake:
    """Accepts messages from any thread; the writer takes them away in groups."""

    def __init__(
        self, engine: Engine, max_bytes: int, wall_us: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        self.refusal: FatalError | None = None
        """Why nothing is accepted any more."""
        self._engine = engine
        self._max_bytes = max_bytes
        self._room_bytes = max_bytes
        """What may be pending now: `max_bytes`, or nothing at all while the journal is full."""
        self._wall_us = wall_us
        self._wake = wake
        self._lock = threading.Lock()
        self._group = Group(engine)
        self._full: deque[Group] = deque()
        """Groups before it that are large enough, oldest first."""
        self._full_bytes = 0
        self._storing: Group | None = None
        self._room = threading.Condition()
        self._waiting = 0

    def accept_one(self, topic: str, body: bytes, block: float) -> Receipt:
        """Accept the usual message, without key and headers; waits at most `block` seconds for room."""
        size = len(body) + MESSAGE_OVERHEAD
        deadline = None
        while True:
            with self._lock:
                group = self._group
                waiting = self._full_bytes + group.bytes
                if (
                    self.refusal is None
                    and self._engine.held_bytes + waiting + size <= self._room_bytes
                    and (waiting + size <= QUEUE_BYTES or not waiting)
                ):
                    if group.bytes >= GROUP_BYTES:
                        group = self._begin_another()
                    receipt = Receipt(group, topic, 1)
                    before = group.bytes
                    group.bytes = before + size
                    if group.topic == topic:
                        group.bodies.append(body)
                        group.receipts.append(receipt)
                        return receipt
                    if before:
                        group.add((topic, (body,), None, None, receipt))
                        return receipt
                    group.topic = topic
                    group.bodies.append(body)
                    group.receipts.append(receipt)
                    group.wall_us = self._wall_us()
                    break
            deadline = self._wait(size, block, deadline)
        self._wake()
        return receipt

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
        size += MESSAGE_OVERHEAD * len(bodies)
        deadline = None
        while True:
            with self._lock:
                if self.refusal is None and self._fits(size):
                    group = self._group if self._group.bytes < GROUP_BYTES else self._begin_another()
                    receipt = Receipt(group, topic, len(bodies))
                    if group.empty:
                        group.wall_us = self._wall_us()
                    group.add((topic, bodies, key, headers, receipt))
                    group.bytes += size
                    break
            deadline = self._wait(size, block, deadline)
        self._wake()
        return receipt

    def _begin_another(self) -> Group:
        self._full.append(self._group)
        self._full_bytes += self._group.bytes
        self._group = Group(self._engine)
        return self._group

    def _fits(self, size: int) -> bool:
        waiting = self._full_bytes + self._group.bytes
        return self._engine.held_bytes + waiting + size <= self._room_bytes and (
            waiting + size <= QUEUE_BYTES or not waiting
        )

    def _wait(self, size: int, block: float, deadline: float | None) -> float:
        """Wait until there may be room for `size` bytes; returns the deadline for all waits of one publish."""
        if size > self._max_bytes and self.refusal is None:
            raise OutboxFull(f"{size} bytes can't fit: the outbox holds at most {self._max_bytes}")
        if deadline is None:
            deadline = self._engine.clock() + block
        with self._room:
            self._waiting += 1
            try:
                room = self._room.wait_for(
                    lambda: self.refusal is not None or self._fits(size),
                    max(0.0, deadline - self._engine.clock()),
                )
            finally:
                self._waiting -= 1
        if self.refusal is not None:
            raise self.refusal
        exporter = self._engine.exporter
        if not room and exporter is not None and exporter.full:
            raise JournalFull(exporter.why_full)
        if not room:
            raise OutboxFull(self._why_full())
        return deadline

    def _why_full(self) -> str:
        engine = self._engine
        with engine.lock:
            lagging = engine.membership.lagging()
        whom = "a group, a site" if lagging else "a site"
        text = (
            f"{engine.held_bytes + self._full_bytes + self._group.bytes} bytes wait for {whom} or for the disk;"
            f" the limits are {self._max_bytes} in the outbox, {QUEUE_BYTES} before it"
        )
        return f"{text}; {lagging}" if lagging else text

    def made_room(self) -> None:
        """Something has left, or will not come: whoever waits looks again."""
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def hold(self, held: bool) -> None:
        """Let nothing in, as if there were no room, or go on."""
        self._room_bytes = -1 if held else self._max_bytes
        self.made_room()

    def refuse(self, error: FatalError) -> None:
        """Accept nothing more; the first reason stays."""
        if self.refusal is None:
            self.refusal = error
        with self._room:
            self._room.notify_all()

    # -- for the writer -------------------------------------------------------------------------------------

    def take(self) -> Group | None:
        """What has waited longest, to be stored; None if nothing does. :meth:`stored` must follow."""
        with self._lock:
            if self._full:
                group = self._full.popleft()
                self._full_bytes -= group.bytes
            elif self._group.empty:
                return None
            else:
                group, self._group = self._group, Group(self._engine)
            self._storing = group
            return group

    def stored(self) -> None:
        """What was taken is stored, or has failed."""
        with self._lock:
            self._storing = None

    def fail(self, error: ReliamsgError) -> None:
        """There will be no further commit: tell whoever waits for one."""
        with self._lock:
            groups = [*self._full, self._group]
            self._full.clear()
            self._full_bytes, self._group = 0, Group(self._engine)
        for group in groups:
            group.finish(error)

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._full and self._group.empty

    @property
    def groups(self) -> list[Group]:
        """The groups whose outcome is open, oldest first."""
        with self._lock:
            found = (self._storing, *self._full, self._group)
            return [group for group in found if group is not None and not group.empty]

    @property
    def messages(self) -> int:
        """How many messages are accepted and not stored."""
        return sum(group.count for group in self.groups)
