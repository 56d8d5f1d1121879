"""What a publish returns: where its messages are now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from reliamsg import forks
from reliamsg.arguments import check_callback, check_choice, check_timeout, unrun
from reliamsg.errors import ForkedError
from reliamsg.message import MessageId
from reliamsg.producer.commit import Commit, Run
from reliamsg.producer.confirmations import ConfirmationTracker
from reliamsg.producer.removals import Messages
from reliamsg.producer.status import MessageState

__all__ = ["UNTIL", "Receipt", "batches_of", "watch"]

UNTIL = ("durable", "confirmed", "consumed")
"""How far a receipt can wait."""


class Receipt:
    """One publish: of one message, or with ``publish_many`` of several consecutive ones.

    A receipt keeps no message in memory, and need not be kept. Its methods may be called from any thread. In a child
    process after ``fork()`` all but :attr:`durable`, :attr:`id` and :attr:`ids` raise :class:`ForkedError`.
    """

    __slots__ = ("_count", "_offset", "_run")

    def __init__(self, run: Run, offset: int, count: int) -> None:
        """It is for `count` messages, the first of which is at `offset` of `run`."""
        self._run = run
        self._offset = offset
        self._count = count

    @property
    def _tracker(self) -> ConfirmationTracker:
        tracker = self._run.commit.tracker
        if tracker.generation != forks.generation:  # nothing moves here, and a lock may be held forever
            raise ForkedError("this receipt is of a producer of the parent process")
        return tracker

    @property
    def _messages(self) -> Messages:
        return self._run.messages(self._offset, self._count)

    @property
    def commit(self) -> Commit:
        """The transaction that stores the messages."""
        return self._run.commit

    @property
    def durable(self) -> bool:
        """Whether the messages are committed and fsynced."""
        commit = self._run.commit
        return commit.done and commit.error is None

    @property
    def id(self) -> MessageId | None:
        """The identity of the message, of the first one with ``publish_many``; None before it is durable.

        It is final once any site was sent the message: before that, a group may report a later owner of this
        producer's name, and the epoch is raised above that one's.
        """
        if not self.durable:
            return None
        run = self._run
        return run.commit.tracker.identity(run.topic, run.epoch, run.seq + self._offset)

    @property
    def ids(self) -> tuple[MessageId, ...]:
        """The identities of all messages; empty before they are durable."""
        first = self.id
        return () if first is None else tuple(first._replace(seq=first.seq + n) for n in range(self._count))

    @property
    def done(self) -> bool:
        """Whether the confirm policy is met for all messages, except those that were removed before it was
        (:meth:`Producer.remove`). False if all of them were. Once True it stays True."""
        return self.durable and self._tracker.is_published(self._messages)

    @property
    def sites(self) -> dict[str, MessageState]:
        """The state of the messages at each site; of several messages, of the first that is not confirmed among those
        that were not removed. ``removed``: some were removed before the site had confirmed them, and it has all others.
        See :data:`MessageState`."""
        tracker = self._tracker
        return tracker.site_states(self._messages if self.durable else None)

    @property
    def counted(self) -> tuple[str, ...]:
        """The sites that had confirmed when the policy was met; empty before."""
        return self._tracker.counted(self._messages) if self.done else ()

    def wait(
        self, timeout: float | None = None, until: Literal["durable", "confirmed", "consumed"] = "confirmed"
    ) -> None:
        """Block until the messages are that far, at most `timeout` seconds (None: without limit).

        ``durable``: committed and fsynced here; raises :class:`OutboxWriteError` when they were not stored.
        ``confirmed``: the confirm policy is met. Raises :class:`ConfirmTimeout`, with each site's state, when
        the time is over: that is no failure, the messages stay in the outbox and are sent again.
        ``consumed``: every group that was named for the topic when they were published has acknowledged them
        durably, or declared them missing. Raises :class:`ConfirmTimeout` with the groups that are behind, and
        :class:`ConfigError` where no group is named, or without ``release="consumed"``.

        Messages that were removed with :meth:`Producer.remove` are not waited for. Once all others are that far,
        :class:`MessageRemoved` is raised, with the numbers of those that were removed before they were; if all were
        removed, at once. What was removed only after it was confirmed (or consumed) counts as that.

        Raises also what stopped the producer, :class:`ClosedError` when it is closed meanwhile, and
        :class:`ForkedError` in a child process.
        """
        check_choice("until", until, UNTIL)
        check_timeout("timeout", timeout)
        tracker, run = self._tracker, self._run
        start = tracker.now()
        run.commit.wait_durable(timeout)
        if until == "durable":
            return
        left = None if timeout is None else max(0.0, timeout - (tracker.now() - start))
        messages = run.messages(self._offset, self._count)
        if until == "confirmed":
            tracker.wait_published(messages, left)
        else:
            tracker.wait_consumed(messages, left)

    def add_done_callback(
        self,
        callback: Callable[[Receipt], object],
        until: Literal["durable", "confirmed", "consumed"] = "confirmed",
    ) -> None:
        """Call ``callback(receipt)`` once the messages are that far, or can't get there any more: they could not be
        stored, all that were left were removed, or the producer was closed or has failed. In the callback,
        ``receipt.wait(0, until)`` returns in the first case, and raises the reason in the others. See :meth:`wait` for
        `until`.

        Every callback is called once. Callbacks run one at a time on a thread of the producer's own; one that raises is
        logged and reported to ``on_error``. Raises :class:`ConfigError` where :meth:`wait` does.
        """
        check_callback("callback", callback, optional=False)
        check_choice("until", until, UNTIL)
        tracker = self._tracker
        if until == "consumed":
            tracker.check_consumed(self._run.topic)
        tracker.call_later(partial(self._call_when, until, callback))

    def _call_when(
        self, until: Literal["durable", "confirmed", "consumed"], callback: Callable[[Receipt], object]
    ) -> None:
        """On the thread of callbacks."""
        commit = self._run.commit
        commit.wait(None)  # a commit away, or an error when the producer is closed
        call_again = partial(self._call_when, until, callback)
        if (
            until != "durable"
            and commit.error is None
            and commit.tracker.watch(self._messages, until, call_again)
        ):
            return
        mistake = unrun("the receipt's callback", callback(self))
        if mistake is not None:
            raise mistake

    def __repr__(self) -> str:
        if self._run.commit.tracker.generation != forks.generation:
            state = "of the parent process"
        else:
            state = "done" if self.done else "durable" if self.durable else "not stored yet"
        return f"<Receipt {self.id or self._run.topic} {state}>"


def batches_of(receipt: Receipt) -> tuple[int, int]:
    """The rows of the first and last batch that has messages of a receipt, once they are durable. Receipts of the same
    batches are confirmed together."""
    messages = receipt._messages
    return messages.first_row, messages.last_row


def watch(receipt: Receipt, call: Callable[[], None]) -> bool:
    """Have `call` made, on the thread of callbacks, when more of the messages may be confirmed, or the producer has
    stopped; False if nothing is left to wait for. For event loops, once the messages are durable."""
    return receipt.commit.tracker.watch(receipt._messages, "confirmed", call)
