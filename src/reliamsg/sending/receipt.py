"""What a publish returns: where its messages are now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from reliamsg import forks
from reliamsg.arguments import check_callback, check_choice, check_timeout
from reliamsg.errors import ForkedError
from reliamsg.message import MessageId

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine
    from reliamsg.sending.intake import Group

__all__ = ["Receipt", "SiteState"]

SiteState = Literal[
    "confirmed",
    "pending",
    "sent",
    "nacked",
    "returned",
    "refused",
    "dropped",
    "timed out",
    "disconnected",
    "released",
    "removed",
    "unseen",
]
"""What a site says of a message.

``confirmed``: it has it. ``sent``: on its way, no answer yet. ``pending``: not sent yet. ``nacked``,
``returned``, ``refused``, ``dropped``: the site said no (or dropped the connection over it), the stream is
parked there and is tried again. ``timed out``: no answer in time, ``disconnected``: no connection; the
outcome is open. ``released``: the message left the outbox before this site had confirmed it, since others had
and its room was needed. ``removed``: it was taken out with :meth:`Producer.remove`. ``unseen``: an MQTT broker has
confirmed it, and a named group is not known to exist there, so that it may have got nothing; it is sent again once
the group exists.
"""


class Receipt:
    """One publish: of one message, or with ``publish_many`` of several that follow each other.

    A receipt keeps nothing alive and need not be kept. Its methods may be called from any thread. In a child
    process after ``fork()`` all but :attr:`durable`, :attr:`id` and :attr:`ids` raise :class:`ForkedError`.
    """

    __slots__ = ("_count", "_epoch", "_first_row", "_group", "_last_row", "_seq", "_topic")

    # Set by the writer before the messages are durable, and never looked at before that.
    _epoch: int
    _seq: int
    _first_row: int
    _last_row: int

    def __init__(self, group: Group, topic: str, count: int) -> None:
        self._group = group
        self._topic = topic
        self._count = count

    @property
    def _engine(self) -> Engine:
        engine = self._group.engine
        if engine.generation != forks.generation:  # nothing moves here, and a lock may be held for ever
            raise ForkedError("this receipt is of a producer of the parent process")
        return engine

    @property
    def durable(self) -> bool:
        """Whether the messages are committed and fsynced."""
        return self._group.done and self._group.error is None

    @property
    def id(self) -> MessageId | None:
        """The identity of the message, of the first one with ``publish_many``; None before it is durable.

        It is final once any site was sent the message: before that, a group may tell of a later owner of this
        producer's name, and the epoch is raised above that one's.
        """
        if not self.durable:
            return None
        return self._group.engine.outcomes.identity(self._topic, self._epoch, self._seq)

    @property
    def ids(self) -> tuple[MessageId, ...]:
        """The identities of all messages; empty before they are durable."""
        first = self.id
        return () if first is None else tuple(first._replace(seq=self._seq + n) for n in range(self._count))

    @property
    def done(self) -> bool:
        """Whether the confirm policy is met for all messages, except those that were removed before it was
        (:meth:`Producer.remove`). False if all of them were. Once True it stays True."""
        return self.durable and self._engine.outcomes.is_published(self)

    @property
    def sites(self) -> dict[str, SiteState]:
        """What each site says; of several messages, of the first that is not confirmed among those that were not
        removed. ``removed``: some were removed before the site had confirmed them, and it has all others. See
        :data:`SiteState`."""
        if not self.durable:
            return dict.fromkeys(self._engine.site_names, "pending")
        return self._engine.outcomes.site_states(self)

    @property
    def counted(self) -> tuple[str, ...]:
        """The sites that had confirmed when the policy was met; empty before."""
        return self._engine.outcomes.counted(self) if self.done else ()

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
        check_choice("until", until, ("durable", "confirmed", "consumed"))
        check_timeout("timeout", timeout)
        outcomes, start = self._engine.outcomes, self._engine.clock()
        outcomes.wait_durable(self._group, timeout)
        left = None if timeout is None else max(0.0, timeout - (self._engine.clock() - start))
        if until == "confirmed":
            outcomes.wait_published(self, left)
        elif until == "consumed":
            outcomes.wait_consumed(self, left)

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call ``callback(receipt)`` once the confirm policy is met, or when the messages could not be
        stored. Messages that are removed are not waited for; look at :attr:`done`.

        Callbacks run one at a time on a thread of the producer's own; one that raises is logged and reported
        to ``on_error``. Callbacks of messages that are not confirmed when the producer is closed are not
        called.
        """
        check_callback("callback", callback, optional=False)
        self._engine.outcomes.call_when_done(self, callback)

    def __repr__(self) -> str:
        if self._group.engine.generation != forks.generation:
            state = "of the parent process"
        else:
            state = "done" if self.done else "durable" if self.durable else "not stored yet"
        return f"<Receipt {self.id or self._topic} {state}>"
