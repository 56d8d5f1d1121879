"""What has become of messages, for receipts and for whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from reliamsg.arguments import unrun
from reliamsg.core.ranges import Span
from reliamsg.core.window import Lane, LaneState, RowLike
from reliamsg.errors import ClosedError, ConfigError, ConfirmTimeout, MessageRemoved
from reliamsg.message import MessageId, Stream
from reliamsg.runtime.wakeup import Waiters
from reliamsg.sending.proving import advice
from reliamsg.sending.remains import Messages, Remains
from reliamsg.store.rewriting import Taken
from reliamsg.store.rows import Row

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine
    from reliamsg.sending.intake import Group
    from reliamsg.sending.receipt import Receipt, SiteState

__all__ = ["Outcomes"]

DoneCallback = Callable[["Receipt"], object]


class Outcomes:
    """One producer's. Everything is guarded by the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters = Waiters()
        self._watched: dict[int, list[tuple[Receipt, DoneCallback]]] = {}
        """Who is called back when a row is published, or taken out."""
        self._remains = Remains()
        self._renumbered: dict[int, int] = {}

    # -- what the application asks ----------------------------------------------------------------------------

    def wait_durable(self, group: Group, timeout: float | None) -> None:
        if not group.wait(timeout):
            raise ConfirmTimeout(f"not on the disk within {timeout} s; it may still be stored and sent")
        if group.error is not None:
            raise group.error

    def wait_published(self, receipt: Receipt, timeout: float | None) -> None:
        engine = self._engine
        self._wait(lambda: not self._unpublished(receipt), timeout)
        with engine.lock:
            if not self._unpublished(receipt):
                if removed := self._remains.unconfirmed(self._messages(receipt)):
                    raise MessageRemoved(f"removed from the outbox before confirmed: {_numbers(removed)}")
                return
            self._raise_ended("confirmed")
            sites = self._reasons(receipt)
            unseen = self._unseen(receipt._topic)
        raise ConfirmTimeout(
            f"not confirmed within {timeout:.3g} s ({_joined(sites)}); it stays in the outbox"
            + (f"; {unseen}" if unseen else ""),
            sites,
        )

    def _reasons(self, receipt: Receipt) -> dict[str, str]:
        """What each site says of a receipt's messages, and why. With the lock held."""
        found: dict[str, str] = {}
        for name, state in self._states(receipt).items():
            link, lane = self._engine.links[name], self._lane(name, receipt._topic)
            why = ""
            if state == "confirmed":
                pass
            elif lane is not None and state in ("nacked", "returned", "refused", "dropped"):
                why = lane.reason
            elif link.error:
                why = f"{link.state}: {link.error}"
            found[name] = f"{state} ({why})" if why else state
        return found

    def _lane(self, name: str, topic: str) -> Lane | None:
        """The lane of a topic's stream, where it is parked at a site."""
        engine = self._engine
        page = engine.membership.book.pages.get(Stream(engine.producer_id, topic, 0))
        lane = None if page is None else engine.core.sites[name].lanes.get(page.row.id)
        return None if lane is None or lane.state is LaneState.FLOWING else lane

    def _unseen(self, topic: str) -> str:
        """What to do about groups of a topic that are not known at sites."""
        stream = Stream(self._engine.producer_id, topic, 0)
        return advice({name: link.unseen(stream) for name, link in self._engine.links.items()}, topic)

    def wait_consumed(self, receipt: Receipt, timeout: float | None) -> None:
        engine = self._engine
        stream = Stream(engine.producer_id, receipt._topic, 0)
        if engine.settings.release != "consumed":
            raise ConfigError("until='consumed' needs Producer(..., release='consumed')")
        with engine.lock:
            if not engine.membership.table.named(stream):
                raise ConfigError(f"until='consumed': no group is named for topic {receipt._topic!r}")
        self._wait(lambda: not self._behind(stream, receipt), timeout)
        with engine.lock:
            lagging = self._behind(stream, receipt)
            if not lagging:
                if removed := self._remains.unconsumed(self._messages(receipt)):
                    raise MessageRemoved(f"removed from the outbox before consumed: {_numbers(removed)}")
                return
            self._raise_ended("consumed")
        raise ConfirmTimeout(
            f"not consumed within {timeout:.3g} s by {', '.join(lagging)}; it stays in the outbox"
        )

    def _messages(self, receipt: Receipt) -> Messages:
        """Which messages a receipt stands for."""
        return Messages(
            receipt._topic, self.epoch(receipt._epoch), receipt._seq, receipt._seq + receipt._count - 1,
            receipt._first_row, receipt._last_row,
        )  # fmt: skip

    def _unpublished(self, receipt: Receipt) -> list[Span]:
        """The first rows of what is left of a receipt's messages that are not published; none where all are."""
        published = self._engine.core.confirms.published
        for span in self._remains.rows(self._messages(receipt)):
            if missing := published.missing(*span, 1):
                return missing
        return []

    def _behind(self, stream: Stream, receipt: Receipt) -> list[str]:
        """The named groups that have not settled what is left of a receipt's messages."""
        messages = self._messages(receipt)
        last = messages.last
        for first, end in reversed(self._remains.unconsumed(messages)):
            if end == last:
                last = first - 1
        return [] if last < messages.first else self._engine.membership.behind(stream, messages.epoch, last)

    def epoch(self, epoch: int) -> int:
        """What became of an epoch: messages that were never offered may have been given another one."""
        return self._renumbered.get(epoch, epoch)

    def is_published(self, receipt: Receipt) -> bool:
        with self._engine.lock:
            if self._unpublished(receipt):
                return False
            messages = self._messages(receipt)
            return self._remains.unconfirmed(messages) != [(messages.first, messages.last)]

    def site_states(self, receipt: Receipt) -> dict[str, SiteState]:
        with self._engine.lock:
            return self._states(receipt)

    def counted(self, receipt: Receipt) -> tuple[str, ...]:
        with self._engine.lock:
            rows = self._remains.rows(self._messages(receipt))
            return self._engine.core.confirms.counted(rows[-1][1] if rows else receipt._last_row)

    def identity(self, topic: str, epoch: int, seq: int) -> MessageId:
        return MessageId(self._engine.producer_id, self.epoch(epoch), topic, 0, seq)

    def _states(self, receipt: Receipt) -> dict[str, SiteState]:
        messages = self._messages(receipt)
        rows = self._remains.rows(messages)
        return {name: self._state(name, messages, rows) for name in self._engine.links}

    def _state(self, name: str, messages: Messages, rows: Sequence[Span]) -> SiteState:
        engine = self._engine
        window = engine.core.sites[name]
        missing = next((found for span in rows if (found := window.confirmed.missing(*span, 1))), None)
        if not missing:
            return "removed" if self._remains.unsent(messages, name) else "confirmed"
        row = missing[0][0]
        if engine.retention.released_unsent(row):
            return "released"
        if window.is_uncounted(row):
            return "unseen"
        lane = self._lane(name, messages.topic)
        if lane is not None and lane.next <= row:
            word = lane.reason.partition(":")[0]
            return {"nacked": "nacked", "returned": "returned", "refused": "refused"}.get(word, "dropped")  # type: ignore[return-value]
        if window.overdue_since is not None:
            return "timed out"
        if not window.connected:
            return "disconnected"
        return "sent" if row in window.in_flight else "pending"

    def flush(self, timeout: float | None) -> None:
        """Wait until everything that was accepted so far is published."""
        engine = self._engine
        start = engine.clock()
        for group in engine.intake.groups:
            left = None if timeout is None else max(0.0, timeout - (engine.clock() - start))
            if not group.wait(left):
                raise ConfirmTimeout(f"not everything was on the disk within {timeout} s")
        left = None if timeout is None else max(0.0, timeout - (engine.clock() - start))
        with engine.lock:
            target = engine.core.top
            confirms = engine.core.confirms

            def done() -> bool:
                """What was stored up to then may have been moved behind it."""
                published = confirms.published
                return confirms.cursor > target and all(
                    row in published for row in self._remains.moved(target)
                )

        self._wait(done, left)
        with engine.lock:
            if done():
                return
            self._raise_ended("confirmed")
            sites = {name: str(link.status(engine.core.top)) for name, link in engine.links.items()}
        raise ConfirmTimeout(
            f"not everything was confirmed within {timeout} s ({_joined(sites)}); it stays in the outbox",
            sites,
        )

    def call_when_done(self, receipt: Receipt, callback: DoneCallback) -> None:
        """Call back once the receipt's outcome is final, on the thread of callbacks. Does not block."""
        self._engine.callbacks.put(partial(self._call_when_done, receipt, callback))

    def _call_when_done(self, receipt: Receipt, callback: DoneCallback) -> None:
        group = receipt._group
        group.wait(None)  # a commit away, or an error when the producer is closed
        if group.error is None and self._watch(receipt, callback):
            return
        mistake = unrun("the receipt's callback", callback(receipt))
        if mistake is not None:
            raise mistake

    def _watch(self, receipt: Receipt, callback: DoneCallback) -> bool:
        """Have this looked at again when more of the receipt is published; False if all of it is."""
        with self._engine.lock:
            missing = self._unpublished(receipt)
            if missing:
                self._watched.setdefault(missing[0][0], []).append((receipt, callback))
            return bool(missing)

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `condition`, which is looked at with the lock held, is true, or nothing will happen any more."""

        def come() -> bool:
            with self._engine.lock:
                return self._ended or condition()

        self._waiters.wait(come, timeout)

    @property
    def _ended(self) -> bool:
        return self._engine.fatal is not None or self._engine.stopped

    def _raise_ended(self, what: str) -> None:
        if self._engine.fatal is not None:
            raise self._engine.fatal
        if self._engine.stopped:
            raise ClosedError(f"this producer was closed before everything was {what}")

    # -- what happens, with the lock held ---------------------------------------------------------------------

    def published(self, rows: Sequence[int], confirmed: Mapping[int, RowLike] | None = None) -> None:
        """`rows` are published from now on. `confirmed`: by id, the rows that a confirm published; without it, what is
        pending is counted anew."""
        if not rows:
            return
        engine = self._engine
        if confirmed is None:
            engine.housekeeping.recount = True
        else:
            released = 0
            for number in rows:
                row = confirmed[number]
                assert isinstance(row, Row)  # the core returns the rows that it was given
                engine.pending_messages -= row.count
                if engine.membership.may_leave(number):
                    released += row.size
            engine.admission.release(released)
        for number in rows:
            engine.housekeeping.published.add(number, number)
            self._call_back(number)
        self.changed()

    def removed(self, topic: str, epoch: int, taken: Taken) -> None:
        """Messages were removed. To be called before the core and the groups are told."""
        core = self._engine.core
        self._remains.removed(
            topic, epoch, taken,
            lambda row: [name for name, window in core.sites.items() if row not in window.confirmed],
            lambda row: row not in core.confirms.published,
            self._engine.membership.unsettled(Stream(self._engine.producer_id, topic, 0), epoch, taken.spans),
        )  # fmt: skip
        for row in (*taken.gone, *(row for row, _ in taken.cut)):
            self._call_back(row.id)
        self._remains.prune(lambda row: all(row in window.confirmed for window in core.sites.values()))

    def _call_back(self, row: int) -> None:
        if self._watched:
            for receipt, callback in self._watched.pop(row, ()):
                self.call_when_done(receipt, callback)

    def changed(self) -> None:
        """Something is further than it was, or will not come: whoever waits looks again."""
        self._waiters.notify_all()

    def renumbered(self, epochs: dict[int, int]) -> None:
        """Epochs whose messages were never offered were given other numbers."""
        self._renumbered = {old: epochs.get(new, new) for old, new in self._renumbered.items()} | epochs
        self._remains.renumbered(epochs)
        self.changed()


def _joined(sites: Mapping[str, str]) -> str:
    """What each site says, for people."""
    return "; ".join(f"{name}: {text}" for name, text in sites.items())


def _numbers(spans: Sequence[Span]) -> str:
    """Sequence numbers, for people."""
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans[:5])
    return shown + (f" and {len(spans) - 5} more ranges" if len(spans) > 5 else "")
