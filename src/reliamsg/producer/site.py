"""One site of a producer: handles what its transport reports, and supplies what it sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reliamsg.config import Site
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.producer.confirmations import ConfirmationTracker
from reliamsg.producer.connectivity import Connectivity
from reliamsg.producer.control_queue import ControlQueue
from reliamsg.producer.encoding import PLAIN_MESSAGES, Encoder
from reliamsg.producer.maintenance import PROGRESS_ROWS
from reliamsg.producer.presence import advice
from reliamsg.producer.rows import RowReader
from reliamsg.producer.state import Shared
from reliamsg.producer.status import ParkedStream, SenderSite, UnseenGroup
from reliamsg.protocol.histogram import bucket
from reliamsg.protocol.returned_frames import ReturnedFrames
from reliamsg.protocol.sender.window import QueueState, SendQueue
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import Row
from reliamsg.transport.base import Binding, Evidence, Mark, Outcome, Outgoing, SenderTransport, Transports
from reliamsg.wire.address import group_address, producer_address
from reliamsg.wire.control import State

__all__ = ["SiteParts", "SiteSender"]

log: Log = Log("reliamsg.producer")

PULL_ROWS = 64
"""Most rows given to a transport at once."""


@dataclass(frozen=True)
class SiteParts:
    """What the sites of a producer share."""

    shared: Shared
    tracker: ConfirmationTracker
    control: ControlQueue
    encoder: Encoder
    transports: Transports


class SiteSender:
    """The :class:`~reliamsg.transport.base.SenderEvents` of one site, called on its transport's I/O thread."""

    def __init__(self, parts: SiteParts, site: Site, reader: RowReader, connectivity: Connectivity) -> None:
        self.site = site
        self._shared = shared = parts.shared
        self._tracker, self._control, self._encoder = parts.tracker, parts.control, parts.encoder
        self._window = shared.core.sites[site.name]
        self._reader, self._connectivity = reader, connectivity
        self._address = producer_address(shared.producer_id)
        self._handed_over = False
        self._parked: set[int] = set()
        """Streams that were logged as parked, and not yet as resumed."""
        self._returned = ReturnedFrames()
        """Under the lock."""
        self._missing: set[Binding] = set()
        """Groups that were logged as unseen."""
        self.transport: SenderTransport = parts.transports.open_sender(
            site, shared.producer_id, shared.bindings(), self
        )
        shared.review(site.name, shared.streams.by_stream)

    # -- what the transport reports -------------------------------------------------------------------------

    def connected(self, endpoint: str, window: int | None) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared, name = self._shared, self.site.name
        with shared.lock:
            shared.core.connected(name, window)
            shared.presence.connected(name)
            shared.journal.add(Entry("connected", site=name, detail={"endpoint": endpoint}))
        self._connectivity.connected(endpoint)
        self._control.connected.add(name)
        shared.wake()

    def disconnected(self, reason: str) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared, name = self._shared, self.site.name
        with shared.lock:
            was_connected = self._window.connected
            parked, published = shared.core.disconnected(name, shared.clock.now())
            self._reader.clear()
            if parked is not None:
                self._note_parked(parked, "connection dropped")
            if was_connected:
                shared.journal.add(Entry("disconnected", site=name, reason=reason[:200]))
            self._tracker.published(published)
        self._connectivity.disconnected(reason, expected=shared.stopped or shared.closing)
        if was_connected:
            self._control.disconnected.add(name)
        shared.wake()

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        self._connectivity.unreachable(endpoint, reason, credentials)

    def blocked(self, reason: str | None) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared = self._shared
        with shared.lock:
            published = shared.core.blocked(self.site.name, reason, shared.clock.now())
            self._tracker.published(published)
        self._connectivity.blocked(reason)
        shared.wake()

    def confirmed(self, tokens: Sequence[int]) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared = self._shared
        with shared.lock:
            confirmed, published = shared.core.confirmed(self.site.name, tokens, shared.clock.now())
            wall_us = shared.clock.wall_us()
            for row in confirmed.values():
                assert isinstance(row, Row)  # the core returns the rows that it was given
                shared.journal.add(
                    Entry(
                        "confirmed", row.stream, row.epoch, row.incarnation, row.seq, row.last, self.site.name,
                        latency={bucket(wall_us - row.wall_us): 1},
                    )
                )  # fmt: skip
            if published:
                self._tracker.published(published, confirmed)
        shared.probe("confirmed")
        if shared.core.confirmed_rows >= PROGRESS_ROWS:
            shared.wake()

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared = self._shared
        with shared.lock:
            row = shared.core.refused(self.site.name, token, f"{outcome.value}: {reason}", shared.clock.now())
            if row is None:
                return
            assert isinstance(row, Row)  # the core returns the rows that it was given
            shared.journal.add(
                Entry(
                    outcome.value, row.stream, row.epoch, row.incarnation, row.seq, row.last, self.site.name,
                    reason=reason[:200],
                )
            )  # fmt: skip
            self._note_parked(self._window.queues[row.stream_id], reason)
        shared.wake()

    def overdue(self, parked: Iterable[SendQueue]) -> None:
        """A confirm is overdue, and these queues are parked for it. Called with the lock held."""
        for queue in parked:
            self._note_parked(queue, queue.reason)

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared = self._shared
        with shared.lock:
            self._review_topics(shared.presence.found(self.site.name, evidence))
            self._warn(evidence)
        shared.wake()

    def _warn(self, evidence: Iterable[Binding]) -> None:
        """Log once of each group that it is missing."""
        for binding in evidence:
            missing = self._shared.presence.unseen(
                self.site.name, binding.topic, binding.partition, [binding.group]
            )
            if not missing:
                self._missing.discard(binding)
            elif binding not in self._missing:
                self._missing.add(binding)
                log.warning(
                    "producer.group_unseen", "producer %(producer)s: %(advice)s; what is published is kept until then",
                    producer=self._shared.producer_id, site=self.site.name, topic=binding.topic,
                    partition=binding.partition, group=binding.group,
                    advice=advice({self.site.name: missing}, binding.topic),
                )  # fmt: skip

    def control_received(self, address: str, body: bytes) -> None:
        """See :class:`~reliamsg.transport.base.ControlEvents`. Malformed frames, and unsigned ones where they must be
        signed, take neither room nor the writer's time; frames of groups that are not named take none of the named
        ones'."""
        shared, control = self._shared, self._control
        is_copy = control.copies.has((address, body))
        if is_copy and not (self._returned.any or self._listens_for_groups()):
            return
        frame = control.decode(address, body)
        with shared.lock:
            if isinstance(frame, str):
                control.rejected[frame] += 1
                return
            content = frame.content
            group = content.group if isinstance(content, State) else ""
            self._returned.heard(group_address(group))
            source = group if shared.table.is_named(group) else ""
            if (
                isinstance(content, State)
                and source
                and content.role == "active"
                and address == self._address
            ):
                topics = self._topics_of(group, content)
                self._review_topics(shared.presence.on_report(self.site.name, group, topics))
            if is_copy or not control.put(source, frame):
                return
        control.copies.add((address, body))
        shared.wake()

    def control_returned(self, address: str) -> bool:
        """See :class:`~reliamsg.transport.base.ControlEvents`."""
        shared = self._shared
        with shared.lock:
            return self._returned.returned(address, shared.clock.now())

    def _listens_for_groups(self) -> bool:
        """Whether a state of some group would prove that it exists at the site (P15)."""
        shared = self._shared
        if not shared.presence.is_needed(self.site.name):
            return False
        with shared.lock:
            return shared.presence.listens_for(self.site.name, shared.bindings())

    def _topics_of(self, group: str, state: State) -> list[tuple[str, int]]:
        """For which topics the group is named, of those that it reports on."""
        shared = self._shared
        return [
            (reported.topic, reported.partition)
            for reported in state.streams
            if shared.table.is_named(group, Stream(shared.producer_id, reported.topic, reported.partition))
        ]

    # -- what the transport pulls ---------------------------------------------------------------------------

    def pull(self) -> Sequence[Outgoing]:
        """See :class:`~reliamsg.transport.base.SenderEvents`."""
        shared, window = self._shared, self._window
        if self._handed_over:  # what was pulled last time is with the transport now
            self._handed_over = False
            shared.probe("sent")
        rows: list[Row] = []
        with shared.lock:
            if shared.stopped:
                return ()
            if window.queues:
                now = shared.clock.now()
                for queue in window.ready(now):
                    self._fill(queue, rows, now)
                self._rejoin()
            elif window.connected and window.blocked is None and window.main.next <= shared.limit:
                self._fill(window.main, rows, shared.clock.now())
        if not rows:
            return ()
        self._handed_over = True
        limit = self.site.max_frame_bytes
        if len(rows) == 1:
            return self._encoder.encode(rows[0], limit)
        return [message for row in rows for message in self._encoder.encode(row, limit)]

    def _fill(self, queue: SendQueue, rows: list[Row], now: float) -> None:
        """Append what may be sent of a queue, up to PULL_ROWS."""
        limit, plain = self._shared.limit, self._encoder.plain
        while queue.next <= limit and len(rows) < PULL_ROWS:
            if plain and sum(row.count for row in rows) >= PLAIN_MESSAGES:
                return
            found = self._reader.next(queue, limit, 1 if plain else PULL_ROWS - len(rows))
            rows += self._window.send(queue, found, now)
            if not found or queue.next <= found[-1].id:
                return  # it has to be loaded, or there is no room

    def _rejoin(self) -> None:
        shared = self._shared
        for queue in self._window.rejoin(shared.top):
            self._reader.forget(queue)
            assert queue.stream_id is not None  # the main queue does not rejoin itself
            self._parked.discard(queue.stream_id)
            stream = shared.streams.by_id[queue.stream_id].row.stream
            shared.journal.add(Entry("resumed", stream, site=self.site.name))

    def forget_rows(self) -> None:
        """Rows have changed: read them again. With the lock held."""
        self._reader.clear()

    # -- control frames, and status ---------------------------------------------------------------------------

    @property
    def reachable(self) -> bool:
        """Whether control frames can be sent there."""
        return self._window.connected and self._window.blocked is None

    def _review_topics(self, topics: Iterable[tuple[str, int]]) -> None:
        shared = self._shared
        streams = [Stream(shared.producer_id, *topic) for topic in sorted(topics)]
        if streams:
            known = shared.streams.by_stream
            shared.review(self.site.name, (stream for stream in streams if stream in known))
            self.transport.wake()

    def behind(self) -> int:
        """Batches that the site has not confirmed. Called with the lock held."""
        top = self._shared.top
        return sum(last - first + 1 for first, last in self._window.confirmed.missing(1, top)) if top else 0

    def status(self) -> SenderSite:
        """Called with the lock held."""
        shared, window = self._shared, self._window
        parked = []
        for queue in window.queues.values():
            if queue.state is not QueueState.FLOWING and queue.stream_id is not None:
                stream = shared.streams.by_id[queue.stream_id].row.stream
                parked.append(ParkedStream(stream.topic, stream.partition, queue.reason, queue.attempts))
        unseen = tuple(
            UnseenGroup(group, stream.topic, stream.partition)
            for stream in shared.streams.by_stream
            for group in shared.unseen(self.site.name, stream)
        )
        return SenderSite(
            self._connectivity.state, self._connectivity.endpoint, self._connectivity.error, self.behind(),
            len(window.in_flight), tuple(parked), tuple(self.transport.refused_addresses()), unseen,
        )  # fmt: skip

    # -- journal ------------------------------------------------------------------------------------------------

    def _note_parked(self, queue: SendQueue, reason: str) -> None:
        """Log and journal that a stream is parked: once until it resumes, however often it is refused meanwhile."""
        assert queue.stream_id is not None  # the main queue is never parked
        if queue.stream_id in self._parked:
            return
        self._parked.add(queue.stream_id)
        shared, name = self._shared, self.site.name
        stream = shared.streams.by_id[queue.stream_id].row.stream
        log.warning(
            "producer.stream_parked",
            "producer %(producer)s: %(stream)s is parked at site %(site)s: %(reason)s",
            producer=shared.producer_id, stream=str(stream), site=name, reason=reason,
        )  # fmt: skip
        shared.journal.add(Entry("parked", stream, site=name, reason=reason[:200]))
