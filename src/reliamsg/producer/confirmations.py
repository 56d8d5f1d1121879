"""Which messages are confirmed, for receipts and for threads that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from reliamsg.errors import ConfigError, ConfirmTimeout, MessageRemoved
from reliamsg.message import MessageId, Stream
from reliamsg.producer.admission import Admission
from reliamsg.producer.connectivity import Connectivity
from reliamsg.producer.groups import Groups
from reliamsg.producer.presence import advice
from reliamsg.producer.removals import Messages, Removals
from reliamsg.producer.retention import Retention
from reliamsg.producer.state import Shared
from reliamsg.producer.status import MessageState
from reliamsg.producer.watchers import Watchers
from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.sender.window import QueueState, RowLike, SendQueue
from reliamsg.store.outbox import Outbox
from reliamsg.store.rewriting import Taken
from reliamsg.store.rows import Row

__all__ = ["ConfirmationTracker", "joined"]

_REFUSALS: dict[str, MessageState] = {"nacked": "nacked", "returned": "returned", "refused": "refused"}
"""Why a stream is parked, by the first word of the reason; ``dropped`` for any other."""


class ConfirmationTracker:
    """One producer's. Everything is guarded by the lock; methods that answer the application take it themselves."""

    def __init__(
        self, shared: Shared, groups: Groups, admission: Admission, retention: Retention,
        connectivity: Mapping[str, Connectivity], watchers: Watchers,
    ) -> None:  # fmt: skip
        """`connectivity`: of each site."""
        self.generation: int = shared.generation
        self.now: Callable[[], float] = shared.clock.now
        self.pending_messages: int = 0
        """Messages that are stored and not published."""
        self.oldest_pending_us: int | None = None
        """When the oldest of them was stored, as of the latest look."""
        self.unjournalled: RangeSet = RangeSet()
        """Rows that are published, and not yet journalled as such."""
        self.recount: bool = False
        """Pending messages have to be counted anew: rows were published whose sizes were not at hand."""
        self._shared, self._groups = shared, groups
        self._admission, self._retention = admission, retention
        self._connectivity, self._watchers = connectivity, watchers
        self._removals = Removals()
        self._renumbered: dict[int, int] = {}

    # -- questions of the application -------------------------------------------------------------------------

    def is_published(self, messages: Messages) -> bool:
        """Whether the confirm policy is met for all that were not removed before, and there are such."""
        with self._shared.lock:
            messages = self._current(messages)
            if self._unpublished(messages):
                return False
            return self._removals.unconfirmed(messages) != [(messages.first, messages.last)]

    def site_states(self, messages: Messages | None) -> dict[str, MessageState]:
        """The state of messages at each site; None for messages that are not stored yet."""
        if messages is None:
            return dict.fromkeys(self._connectivity, "pending")
        with self._shared.lock:
            return self._states(self._current(messages))

    def counted(self, messages: Messages) -> tuple[str, ...]:
        """The sites that had confirmed when the policy was met."""
        with self._shared.lock:
            rows = self._removals.rows(self._current(messages))
            return self._shared.core.confirms.counted(rows[-1][1] if rows else messages.last_row)

    def identity(self, topic: str, epoch: int, seq: int) -> MessageId:
        """The identity of a message that was stored in `epoch`."""
        return MessageId(self._shared.producer_id, self.epoch(epoch), topic, 0, seq)

    def epoch(self, epoch: int) -> int:
        """The present number of an epoch: messages that were never offered may have been given another one."""
        return self._renumbered.get(epoch, epoch)

    def call_later(self, call: Callable[[], None]) -> None:
        """Make a call on the thread of callbacks. Does not block."""
        self._watchers.soon(call)

    def watch(
        self, messages: Messages, until: Literal["confirmed", "consumed"], call: Callable[[], None]
    ) -> bool:
        """Have `call` made when more of these messages may be that far, or the producer stops; False if nothing is left
        to wait for."""
        with self._shared.lock:
            if self._shared.stopped:
                return False
            messages = self._current(messages)
            if until == "confirmed":
                missing = self._unpublished(messages)
                if missing:
                    self._watchers.add_row(missing[0][0], call)
                return bool(missing)
            stream, last = self._stream(messages), self._last_unsettled(messages)
            if last is None or not self._groups.behind(stream, messages.epoch, last):
                return False
            self._watchers.add_position(stream, (messages.epoch, last), call)
            return True

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait_published(self, messages: Messages, timeout: float | None) -> None:
        """See :meth:`Receipt.wait`."""
        published = self._shared.core.confirms.published
        with self._shared.lock:
            if self._removals.empty and published.covers(messages.first_row, messages.last_row):
                return
        self._wait(lambda: not self._unpublished(self._current(messages)), timeout)
        with self._shared.lock:
            messages = self._current(messages)
            if not self._unpublished(messages):
                if removed := self._removals.unconfirmed(messages):
                    raise MessageRemoved(f"removed from the outbox before confirmed: {_numbers(removed)}")
                return
            self._shared.raise_if_stopped("confirmed")
            sites = self._reasons(messages)
            stream = self._stream(messages)
            unseen = advice({name: self._shared.unseen(name, stream) for name in sites}, messages.topic)
        raise ConfirmTimeout(
            f"not confirmed within {timeout:.3g} s ({joined(sites)}); it stays in the outbox"
            + (f"; {unseen}" if unseen else ""),
            sites,
        )

    def wait_consumed(self, messages: Messages, timeout: float | None) -> None:
        """See :meth:`Receipt.wait`."""
        shared, stream = self._shared, self._stream(messages)
        self.check_consumed(messages.topic)
        self._wait(lambda: not self._lagging(stream, self._current(messages)), timeout)
        with shared.lock:
            messages = self._current(messages)
            lagging = self._lagging(stream, messages)
            if not lagging:
                if removed := self._removals.unconsumed(messages):
                    raise MessageRemoved(f"removed from the outbox before consumed: {_numbers(removed)}")
                return
            shared.raise_if_stopped("consumed")
        raise ConfirmTimeout(
            f"not consumed within {timeout:.3g} s by {', '.join(lagging)}; it stays in the outbox"
        )

    def check_consumed(self, topic: str) -> None:
        """Raises :class:`ConfigError` where nothing is known about who consumes a topic's messages."""
        if self._shared.settings.release != "consumed":
            raise ConfigError("until='consumed' needs Producer(..., release='consumed')")
        with self._shared.lock:
            if not self._shared.table.named(Stream(self._shared.producer_id, topic, 0)):
                raise ConfigError(f"until='consumed': no group is named for topic {topic!r}")

    def wait_for_all(self, timeout: float | None) -> bool:
        """Wait until everything that is stored now is published; returns whether it is."""
        confirms, removals = self._shared.core.confirms, self._removals
        target = self._shared.top

        def done() -> bool:
            """What was stored up to then may have been moved behind it."""
            return confirms.cursor > target and all(
                row in confirms.published for row in removals.moved(target)
            )

        self._wait(done, timeout)
        with self._shared.lock:
            if done():
                return True
            self._shared.raise_if_stopped("confirmed")
            return False

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `condition`, which is evaluated with the lock held, is true, or the producer stops."""
        shared = self._shared

        def is_over() -> bool:
            with shared.lock:
                return shared.stopped or condition()

        shared.changed.wait(is_over, timeout)

    # -- the state of messages --------------------------------------------------------------------------------

    def _current(self, messages: Messages) -> Messages:
        """The same messages under the present number of their epoch."""
        epoch = self._renumbered.get(messages.epoch)
        return messages if epoch is None else messages._replace(epoch=epoch)

    def _unpublished(self, messages: Messages) -> list[Span]:
        """The first rows of the remaining messages that are not published; none if all are."""
        published = self._shared.core.confirms.published
        for span in self._removals.rows(messages):
            if missing := published.missing(*span, 1):
                return missing
        return []

    def _stream(self, messages: Messages) -> Stream:
        return Stream(self._shared.producer_id, messages.topic, 0)

    def _last_unsettled(self, messages: Messages) -> int | None:
        """The last of the remaining messages; None if all were removed before the groups had settled them."""
        last = messages.last
        for first, end in reversed(self._removals.unconsumed(messages)):
            if end == last:
                last = first - 1
        return None if last < messages.first else last

    def _lagging(self, stream: Stream, messages: Messages) -> list[str]:
        """The named groups that have not settled the remaining messages."""
        last = self._last_unsettled(messages)
        return [] if last is None else self._groups.behind(stream, messages.epoch, last)

    def _states(self, messages: Messages) -> dict[str, MessageState]:
        rows = self._removals.rows(messages)
        return {name: self._state(name, messages, rows) for name in self._connectivity}

    def _state(self, name: str, messages: Messages, rows: Sequence[Span]) -> MessageState:
        window = self._shared.core.sites[name]
        missing = next((found for span in rows if (found := window.confirmed.missing(*span, 1))), None)
        if not missing:
            return "removed" if self._removals.unsent(messages, name) else "confirmed"
        row = missing[0][0]
        if self._retention.released_unsent(row):
            return "released"
        if window.is_uncounted(row):
            return "unseen"
        queue = self._parked_queue(name, messages.topic)
        if queue is not None and queue.next <= row:
            return _REFUSALS.get(queue.reason.partition(":")[0], "dropped")
        if window.overdue_since is not None:
            return "timed out"
        if not window.connected:
            return "disconnected"
        return "sent" if row in window.in_flight else "pending"

    def _reasons(self, messages: Messages) -> dict[str, str]:
        """The state of the messages at each site, and why."""
        found: dict[str, str] = {}
        for name, state in self._states(messages).items():
            site, queue = self._connectivity[name], self._parked_queue(name, messages.topic)
            why = ""
            if state == "confirmed":
                pass
            elif queue is not None and state in ("nacked", "returned", "refused", "dropped"):
                why = queue.reason
            elif site.error:
                why = f"{site.state}: {site.error}"
            found[name] = f"{state} ({why})" if why else state
        return found

    def _parked_queue(self, name: str, topic: str) -> SendQueue | None:
        """The queue of a topic's stream, if it is parked at a site."""
        shared = self._shared
        info = shared.streams.by_stream.get(Stream(shared.producer_id, topic, 0))
        queue = None if info is None else shared.core.sites[name].queues.get(info.row.id)
        return None if queue is None or queue.state is QueueState.FLOWING else queue

    # -- what happens, with the lock held ---------------------------------------------------------------------

    def stored(self, rows: Sequence[Row], messages: int) -> None:
        """More was stored."""
        self.pending_messages += messages
        if self.oldest_pending_us is None:
            self.oldest_pending_us = rows[0].wall_us

    def published(self, rows: Sequence[int], confirmed: Mapping[int, RowLike] | None = None) -> None:
        """`rows` are published from now on. `confirmed`: where their confirms led to that, the rows; otherwise pending
        messages have to be counted anew."""
        if not rows:
            return
        consumed, released = self._groups.consumed, 0
        for number in rows:
            if confirmed is not None:
                row = confirmed[number]
                assert isinstance(row, Row)  # the core returns the rows that it was given
                self.pending_messages -= row.count
                if consumed is None or number in consumed:
                    released += row.size
            self.unjournalled.add(number, number)
        if confirmed is None:
            self.recount = True
        else:
            self._admission.release(released)
        self._watchers.rows(rows)
        self._shared.changed.notify_all()

    def removed(self, topic: str, epoch: int, taken: Taken) -> None:
        """Messages were removed. Call this before the core and the groups are updated."""
        core = self._shared.core
        stream = Stream(self._shared.producer_id, topic, 0)
        self._removals.removed(
            topic, epoch, taken, self.lacking, lambda row: row not in core.confirms.published,
            self._groups.unsettled(stream, epoch, taken.spans),
        )  # fmt: skip
        self._watchers.rows([row.id for row in (*taken.gone, *(row for row, _ in taken.cut))])
        self._watchers.look_again(stream)
        self._removals.prune(lambda row: all(row in window.confirmed for window in core.sites.values()))
        self.recount = True

    def lacking(self, row: int) -> list[str]:
        """The sites that have not confirmed a row."""
        return [name for name, window in self._shared.core.sites.items() if row not in window.confirmed]

    def stopped(self) -> None:
        """The producer has stopped: nothing more is confirmed or consumed, and nobody waits for it in vain."""
        with self._shared.lock:
            self._watchers.all()

    def renumbered(self, epochs: dict[int, int]) -> None:
        """Epochs whose messages were never offered were given other numbers."""
        self._renumbered = {old: epochs.get(new, new) for old, new in self._renumbered.items()} | epochs
        self._removals.renumbered(epochs)
        for stream in self._shared.streams.by_stream:
            self._watchers.look_again(stream)
        self.recount = True
        self._shared.changed.notify_all()

    # -- for the writer's background work, with the lock held -------------------------------------------------

    def take_unjournalled(self) -> RangeSet:
        """Rows to journal as published."""
        taken, self.unjournalled = self.unjournalled, RangeSet()
        return taken

    def put_back(self, rows: RangeSet) -> None:
        """These could not be journalled."""
        for span in rows:
            self.unjournalled.add(*span)

    def take_recount(self) -> bool:
        """Whether pending messages have to be counted anew."""
        taken, self.recount = self.recount, False
        return taken

    def request_recount(self) -> None:
        """Have them counted anew later."""
        self.recount = True

    # -- counting, by the writer ------------------------------------------------------------------------------

    def count(self, outbox: Outbox) -> None:
        """Count pending and held messages in the outbox itself."""
        shared, consumed = self._shared, self._groups.consumed
        with shared.lock:
            top, published = shared.top, shared.core.confirms.published
            spans = published.missing(1, top) if top else []
            leaving = (
                [] if consumed is None else [part for span in published for part in consumed.overlap(*span)]
            )
            before = self.pending_messages, self._admission.stored
        _, stored = outbox.totals()
        messages = size = 0
        for first, last in spans:
            some, bytes_ = outbox.totals(first, last)
            messages, size = messages + some, size + bytes_
        if consumed is not None:
            size = stored - sum(outbox.totals(*span)[1] for span in leaving)
        with shared.lock:
            # What was published meanwhile was subtracted from the old figures.
            self.pending_messages += messages - before[0]
            self._admission.release(before[1] - size)
            self._retention.counted(stored)

    def find_oldest(self, outbox: Outbox) -> None:
        """Find when the oldest pending message was stored."""
        shared = self._shared
        with shared.lock:
            cursor, top = shared.core.confirms.cursor, shared.top
        rows = outbox.rows(cursor, top, 1) if cursor <= top else []
        with shared.lock:
            self.oldest_pending_us = rows[0].wall_us if rows else None


def joined(sites: Mapping[str, str]) -> str:
    """The state of each site, for people."""
    return "; ".join(f"{name}: {text}" for name, text in sites.items())


def _numbers(spans: Sequence[Span]) -> str:
    """Sequence numbers, for people."""
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans[:5])
    return shown + (f" and {len(spans) - 5} more ranges" if len(spans) > 5 else "")
