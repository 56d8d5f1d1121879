"""One transaction of the outbox: the messages that share it, and where and whether they are stored.

Receipts refer to both for as long as the application keeps them; the messages themselves are released with the outcome.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reliamsg.errors import ConfirmTimeout, ReliamsgError
from reliamsg.producer.confirmations import ConfirmationTracker
from reliamsg.producer.removals import Messages
from reliamsg.runtime.wakeup import Waiters

__all__ = ["Commit", "Content", "Run"]


class Content(NamedTuple):
    """Messages that are published together: bodies that share a key and headers, and the bytes they count for."""

    topic: str
    bodies: Sequence[bytes]
    key: str | None
    headers: Mapping[str, str] | None
    size: int


class Commit:
    """One transaction, and whether it has succeeded."""

    __slots__ = ("done", "error", "tracker", "waiters")

    def __init__(self, tracker: ConfirmationTracker) -> None:
        self.tracker: ConfirmationTracker = tracker
        self.done: bool = False
        """Whether the outcome is known."""
        self.error: ReliamsgError | None = None
        self.waiters: Waiters = Waiters()

    def wait(self, timeout: float | None) -> bool:
        """Wait until the outcome is known, at most `timeout` seconds; returns whether it is."""
        return self.done or self.waiters.wait(lambda: self.done, timeout)

    def wait_durable(self, timeout: float | None) -> None:
        """Wait until it has succeeded; raises its error, or :class:`ConfirmTimeout`."""
        if not self.done and not self.wait(timeout):
            raise ConfirmTimeout(f"not on the disk within {timeout} s; it may still be stored and sent")
        if self.error is not None:
            raise self.error

    def finish(self, error: ReliamsgError | None) -> None:
        """The outcome is known: wake all threads that wait for it."""
        self.error = error
        self.done = True
        self.waiters.notify_all()


class Run:
    """Consecutive messages of one topic with one key and the same headers, and where their commit stored them."""

    __slots__ = ("_rows", "_seqs", "bodies", "commit", "epoch", "headers", "key", "seq", "topic")

    epoch: int
    seq: int
    """The sequence number of the first message."""
    _seqs: Sequence[int]
    """The first sequence number of each row of the topic in this commit ..."""
    _rows: Sequence[int]
    """... and the row's id."""

    def __init__(self, commit: Commit, content: Content) -> None:
        self.commit: Commit = commit
        self.topic: str = content.topic
        self.bodies: list[bytes] = list(content.bodies)
        """Empty once the outcome of the commit is known."""
        self.key: str | None = content.key
        self.headers: Mapping[str, str] | None = content.headers

    def stored(self, epoch: int, seq: int, seqs: Sequence[int], rows: Sequence[int]) -> None:
        """The messages were stored, by the transaction that is about to finish. `seqs` and `rows`: where each row of
        the topic starts, and its id."""
        self.epoch, self.seq, self._seqs, self._rows = epoch, seq, seqs, rows

    def messages(self, offset: int, count: int) -> Messages:
        """`count` of these messages from the one at `offset` on; known once the commit has succeeded."""
        first = self.seq + offset
        last = first + count - 1
        rows, seqs = self._rows, self._seqs
        start, end = rows[bisect_right(seqs, first) - 1], rows[bisect_right(seqs, last) - 1]
        return Messages(self.topic, self.epoch, first, last, start, end)
