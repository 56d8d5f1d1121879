"""One site of a producer: what its transport tells and asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from reliamsg.config import Site
from reliamsg.core.histogram import bucket
from reliamsg.core.window import Lane, LaneState, RowLike, SiteWindow
from reliamsg.message import Stream
from reliamsg.sending.feed import Feed
from reliamsg.sending.forms import PLAIN_MESSAGES
from reliamsg.sending.proving import advice
from reliamsg.sending.status import ParkedStream, SenderSite, UnseenGroup
from reliamsg.sending.trouble import Trouble
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Row
from reliamsg.transport.base import Binding, Evidence, Mark, Outcome, Outgoing, SenderTransport, is_refusal

if TYPE_CHECKING:
    from reliamsg.sending.engine import Engine

__all__ = ["SiteLink"]

PULL_ROWS = 64
"""Most rows given to a transport at once."""


class SiteLink:
    """The :class:`~reliamsg.transport.base.SenderEvents` of one site. Called on its transport's I/O
    thread."""

    transport: SenderTransport

    def __init__(self, engine: Engine, site: Site, window: SiteWindow, feed: Feed) -> None:
        self.site = site
        self.window = window
        self.feed = feed
        self.state = "connecting"
        self.endpoint = ""
        self.error = ""
        self._engine = engine
        self._handed_over = False
        self._trouble = Trouble(engine.producer_id, site.name, engine.log)
        self._parked: set[int] = set()
        """Streams of which it was said that they are parked, and not yet that they go on."""
        self._missing: set[Binding] = set()
        """Groups of which it was said that they are unseen."""

    # -- what the transport tells ---------------------------------------------------------------------------

    def connected(self, endpoint: str, window: int | None) -> None:
        engine = self._engine
        with engine.lock:
            engine.core.connected(self.site.name, window)
            engine.proving.connected(self.site.name)
            self.state, self.endpoint, self.error = "connected", endpoint, ""
            engine.journal_buffer.add(Entry("connected", site=self.site.name, detail={"endpoint": endpoint}))
        self._trouble.is_up(endpoint)
        engine.control.connected()
        engine.wake()

    def disconnected(self, reason: str) -> None:
        engine = self._engine
        with engine.lock:
            was = self.window.connected
            parked, published = engine.core.disconnected(self.site.name, engine.clock())
            for lane in (self.window.main, *self.window.lanes.values()):
                self.feed.forget(lane)
            if parked is not None:
                self._note_parked(parked, "connection dropped")
            self.state, self.error = "connecting", reason
            if was:
                engine.journal_buffer.add(Entry("disconnected", site=self.site.name, reason=reason[:200]))
            engine.outcomes.published(published)
        closing = engine.stopped or engine.intake.refusal is not None
        self._trouble.is_down("disconnected", self.endpoint, reason, closing)
        engine.wake()

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        state = "refused credentials" if credentials else "refused" if is_refusal(reason) else "unreachable"
        with self._engine.lock:
            self.state, self.endpoint, self.error = state, endpoint, reason
        self._trouble.is_down(state, endpoint, reason)

    def blocked(self, reason: str | None) -> None:
        engine = self._engine
        with engine.lock:
            published = engine.core.blocked(self.site.name, reason, engine.clock())
            self.state = "connected" if reason is None else "blocked"
            self.error = reason or ""
            engine.outcomes.published(published)
        if reason is None:
            self._trouble.is_up(self.endpoint)
        else:
            self._trouble.is_down("blocked", self.endpoint, reason)
        engine.wake()

    def confirmed(self, tokens: Sequence[int]) -> None:
        engine = self._engine
        with engine.lock:
            confirmed, published = engine.core.confirmed(self.site.name, tokens, engine.clock())
            wall_us = engine.wall_us()
            counting = [_stored(row) for row in confirmed.values()]
            if self.window.lanes:
                counting = [row for row in counting if row.id in self.window.confirmed]
            for row in counting:
                self._note("confirmed", row, latency={bucket(wall_us - row.wall_us): 1})
            engine.confirmed_rows += len(counting)
            engine.outcomes.published(published, confirmed)
        engine.probe("confirmed")
        engine.wake_if_waited_for()

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        engine = self._engine
        with engine.lock:
            row = engine.core.refused(self.site.name, token, f"{outcome.value}: {reason}", engine.clock())
            if row is None:
                return
            self._note(outcome.value, _stored(row), reason=reason[:200])
            lane = self.window.lanes[row.stream_id]
            self.feed.forget(lane)
            self._note_parked(lane, reason)
        engine.wake()

    def unanswered(self, parked: Iterable[Lane]) -> None:
        """A confirm is overdue, and these are parked for it. Called with the engine's lock held."""
        for lane in parked:
            self._note_parked(lane, lane.reason)

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        engine = self._engine
        with engine.lock:
            self._review_topics(engine.proving.found(self.site.name, evidence))
            self._warn(evidence)
        engine.wake()

    def _warn(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        """Say once of each group that it is missing."""
        for binding in evidence:
            missing = self._engine.proving.unseen(
                self.site.name, binding.topic, binding.partition, [binding.group]
            )
            if not missing:
                self._missing.discard(binding)
            elif binding not in self._missing:
                self._missing.add(binding)
                self._engine.log.warning(
                    "producer %s: %s; what is published is kept until then",
                    self._engine.producer_id, advice({self.site.name: missing}, binding.topic),
                )  # fmt: skip

    def heard(self, address: str, body: bytes) -> None:
        self._engine.control.heard(address, body, self.site.name)

    def heard_from(self, group: str, topics: Iterable[tuple[str, int]]) -> None:
        """A group told its state over this site. Called with the engine's lock held."""
        self._review_topics(self._engine.proving.heard(self.site.name, group, topics))

    # -- what the transport asks ----------------------------------------------------------------------------

    def pull(self) -> Sequence[Outgoing]:
        engine = self._engine
        if self._handed_over:  # what was pulled last time is with the transport now
            self._handed_over = False
            engine.probe("sent")
        rows: list[Row] = []
        with engine.lock:
            if engine.stopped:
                return ()
            now = engine.clock()
            for lane in self.window.rewound:
                self.feed.forget(lane)
            self.window.rewound.clear()
            for lane in self.window.ready(now):
                self._pull_lane(lane, rows, now)
            for lane in self.window.rejoin(engine.core.top) if self.window.lanes else ():
                self.feed.forget(lane)
                assert lane.stream_id is not None  # the main lane does not rejoin itself
                self._parked.discard(lane.stream_id)
                engine.journal_buffer.add(
                    Entry("resumed", engine.stream_of(lane.stream_id), site=self.site.name)
                )
        self._handed_over = bool(rows)
        limit = self.site.max_frame_bytes
        if len(rows) == 1:
            return engine.forms.of(rows[0], limit)
        return [message for row in rows for message in engine.forms.of(row, limit)]

    def _pull_lane(self, lane: Lane, rows: list[Row], now: float) -> None:
        top = self._engine.control.limit(self._engine.core.top)
        while len(rows) < PULL_ROWS and not (
            self._engine.forms.plain and sum(row.count for row in rows) >= PLAIN_MESSAGES
        ):
            row = self.feed.next(lane, top)
            if row is None or row.id > top:
                return
            if self.window.send(lane, row, now):
                rows.append(row)
            elif lane.next <= row.id:
                return  # no room

    # -- groups that are not known to be there ----------------------------------------------------------------

    def unseen(self, stream: Stream) -> list[str]:
        """Named groups of a stream that are not proven at this site. Called with the engine's lock held."""
        engine = self._engine
        named = engine.membership.table.named(stream)
        return engine.proving.unseen(self.site.name, stream.topic, stream.partition, named)

    def review(self, streams: Iterable[Stream]) -> None:
        """What is proven of these, or which groups they have, has changed. Called with the engine's lock held."""
        engine, window = self._engine, self.window
        for stream in streams:
            stream_id = engine.membership.book.pages[stream].row.id
            unseen, marked = self.unseen(stream), window.is_marked_unproven(stream_id)
            if unseen and not marked:
                window.mark_unproven(stream_id)
                engine.confirmed_rows += 1  # so that it is stored
            elif marked and not unseen:
                window.mark_proven(stream_id)
                engine.log.info(
                    "producer %s: all groups of %s are known at site %s; what was sent before goes there again",
                    engine.producer_id, stream, self.site.name,
                )  # fmt: skip

    def _review_topics(self, topics: Iterable[tuple[str, int]]) -> None:
        producer = self._engine.producer_id
        streams = [Stream(producer, *topic) for topic in topics]
        if streams:
            self.review(stream for stream in streams if stream in self._engine.membership.book.pages)
            self.transport.wake()

    @property
    def reachable(self) -> bool:
        """Whether it is worth while to tell anything there."""
        return self.window.connected and self.window.blocked is None

    # -- for status and journal -------------------------------------------------------------------------------

    def status(self, top: int) -> SenderSite:
        """Called with the engine's lock held."""
        window = self.window
        behind = sum(b - a + 1 for a, b in window.confirmed.missing(1, top)) if top else 0
        parked = []
        for lane in window.lanes.values():
            if lane.state is not LaneState.FLOWING and lane.stream_id is not None:
                stream = self._engine.stream_of(lane.stream_id)
                parked.append(ParkedStream(stream.topic, stream.partition, lane.reason, lane.attempts))
        unseen = tuple(
            UnseenGroup(group, stream.topic, stream.partition)
            for stream in self._engine.membership.book.pages
            for group in self.unseen(stream)
        )
        return SenderSite(
            self.state,
            self.endpoint,
            self.error,
            behind,
            len(window.in_flight),
            tuple(parked),
            tuple(self.transport.refused_addresses()),
            unseen,
        )

    def _note(self, kind: str, row: Row, reason: str = "", latency: dict[int, int] | None = None) -> None:
        self._engine.journal_buffer.add(
            Entry(
                kind, row.stream, row.epoch, row.incarnation, row.seq, row.last, self.site.name,
                reason=reason, latency=latency,
            )
        )  # fmt: skip

    def _note_parked(self, lane: Lane, reason: str) -> None:
        """Say that a stream is parked: once until it goes on, however much of it is refused and tried again."""
        assert lane.stream_id is not None  # the main lane is never parked
        if lane.stream_id in self._parked:
            return
        self._parked.add(lane.stream_id)
        stream = self._engine.stream_of(lane.stream_id)
        self._engine.log.warning(
            "producer %s: %s is parked at site %s: %s",
            self._engine.producer_id,
            stream,
            self.site.name,
            reason,
        )
        self._engine.journal_buffer.add(Entry("parked", stream, site=self.site.name, reason=reason[:200]))


def _stored(row: RowLike) -> Row:
    assert isinstance(row, Row)  # the core returns the rows that it was given
    return row
