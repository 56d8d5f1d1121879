"""A producer and a group without anything between them, on simulated time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reliamsg.consumer.restore import restored
from reliamsg.message import Gap, Prev, Stream
from reliamsg.protocol.announced import Announced, ChainEntry, Position, Span3
from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.receiver.context import GroupContext
from reliamsg.protocol.receiver.events import Note
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from reliamsg.protocol.receiver.repair_requests import RepairRequest
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.protocol.receiver.stream import Arrival, StreamChange, StreamReceiver
from reliamsg.store.inbox_rows import EpochRow, GapRow, History, SavedStream
from tests.protocol.events_tools import seen, snapshot

STREAM = Stream("p", "orders")
SITES = ("dc1", "dc2")


class Teller:
    """What a producer's outbox holds of one stream, and what it says about it."""

    def __init__(self, stream: Stream = STREAM, interval: float = 2.0) -> None:
        self.stream = stream
        self.interval = interval
        self.epochs: list[list[int]] = []
        """Epoch, incarnation, lowest number held, last number."""
        self.opened: tuple[int, int] = (0, 0)
        self.removed: list[Span3] = []
        self.since: Position | None = None
        self.reached: tuple[Position, Position] | None = None
        self.number = 0
        self.lsn = 0

    def open(self, epoch: int, incarnation: int | None = None) -> None:
        """The outbox is opened: a new epoch begins."""
        self.opened = (epoch, epoch * 7 if incarnation is None else incarnation)
        self.number = 0

    def publish(self, count: int) -> None:
        if not self.epochs or self.epochs[-1][0] != self.opened[0]:
            self.epochs.append([*self.opened, 1, 0])
        self.epochs[-1][3] += count
        self.lsn += 1

    def release(self, epoch: int, last: int) -> None:
        """What retention lets go: everything of `epoch` up to `last`."""
        for entry in self.epochs:
            if entry[0] == epoch:
                entry[2] = max(entry[2], last + 1)
        self.lsn += 1

    def remove(self, epoch: int, first: int, last: int) -> None:
        self.removed.append((epoch, first, last))
        self.lsn += 1

    def status(self) -> Announced:
        self.number += 1
        chain: list[ChainEntry] = [(e, i, first, last) for e, i, first, last in self.epochs]
        while len(chain) > 1 and chain[1][2] > chain[1][3]:  # from the one before the oldest held
            chain.pop(0)
        return Announced(
            self.stream, *self.opened, tuple(chain), tuple(self.removed), self.since, self.reached, self.interval,
            self.lsn, self.number,
        )  # fmt: skip

    def prev(self, epoch: int) -> Prev | None:
        before = [entry for entry in self.epochs if entry[0] < epoch]
        return Prev(before[-1][0], before[-1][1], before[-1][3]) if before else None

    def incarnation(self, epoch: int) -> int:
        return next(entry[1] for entry in self.epochs if entry[0] == epoch)

    def held(self, spans: Iterable[Span3]) -> list[Span3]:
        """What of these ranges the outbox still holds."""
        found: list[Span3] = []
        for epoch, first, last in spans:
            for number, _, low, high in self.epochs:
                if number != epoch or max(first, low) > min(last, high):
                    continue
                gone = RangeSet((a, b) for e, a, b in self.removed if e == epoch)
                found += [(epoch, a, b) for a, b in gone.missing(max(first, low), min(last, high))]
        return found


class Group:
    """A group that takes what it is offered, acknowledges it, and can crash."""

    def __init__(self, stream: Stream = STREAM, now: float = 100.0, **rules: object) -> None:
        self.stream = stream
        self.rules = Rules(**{"gap_timeout": 5.0, "skip_gaps": True, "seed": 7, **rules})  # type: ignore[arg-type]
        self.now = now
        self.got: list[Position] = []
        self.flagged: set[Position] = set()
        """What of it was flagged as redelivered."""
        self.slow = 0
        """The application acknowledges so many messages at a time; 0: each run."""
        self.asked: list[tuple[float, RepairRequest]] = []
        self.notes: list[Note] = []
        self.gaps: list[Gap] = []
        self.released: list[object] = []
        self.disk = Disk(stream)
        self.reading = True
        """Whether the application takes messages."""
        self.core = self._new()

    def _new(self) -> GroupReceiver:
        core = GroupReceiver(self.rules, dict.fromkeys(SITES, 64))
        for site in SITES:
            core.waiting.connected(site)
        return core

    @property
    def state(self) -> StreamReceiver:
        return self.core.streams[self.stream]

    def crash(self) -> None:
        """Everything that was not committed is gone."""
        self.core = self._new()
        state = self.disk.load(self.core.context)
        if state is not None:
            self.core.restore(state, self.now)

    def leave_memory(self) -> None:
        """The stream makes room for others, as soon as nothing more is awaited."""
        self.wait(1.0)
        state = self.state
        for _ in range(3):
            self.core.retire(self.now, 10, 0.0)
            self.commit()
            if self.stream in self.core.retiring and self.core.forget(state, stored=True):
                return
        raise AssertionError("it is not idle")

    def come_back(self) -> None:
        state = self.disk.load(self.core.context)
        assert state is not None
        self.core.restore_retired(state, self.now)

    def hear(self, announced: Announced, site: str = "dc1") -> str:
        return self.core.announce(site, announced, self.now)

    def receive(self, teller: Teller, epoch: int, first: int, last: int, site: str = "dc1") -> Arrival:
        return self.arrive(site, epoch, teller.incarnation(epoch), teller.prev(epoch), first, last)

    def arrive(
        self,
        site: str,
        epoch: int,
        incarnation: int,
        prev: Prev | None,
        first: int,
        last: int,
        repair: bool = False,
    ) -> Arrival:
        token = None if repair else (site, epoch, first, last)
        arrival = self.core.receive(
            Incoming(site, self.stream, epoch, incarnation, prev, first, last, token, repair=repair), self.now
        )
        self.work()
        return arrival

    def repair(self, teller: Teller, spans: Iterable[Span3]) -> None:
        """The producer sends what it holds of `spans`."""
        for epoch, first, last in teller.held(spans):
            self.arrive("dc1", epoch, teller.incarnation(epoch), teller.prev(epoch), first, last, repair=True)

    def work(self) -> None:
        """Hand out and commit whatever is possible."""
        state = self.core.streams.get(self.stream)
        for _ in range(10_000):
            found = state.offer(self.now, 1) if state is not None and self.reading else None
            if found is not None and state is not None:
                state.take(found, found.last, self.now)
                places = [(found.epoch, n) for n in range(found.first, found.last + 1)]
                self.got += places
                self.flagged.update(places if found.redelivered else ())
                if state.epochs.unacknowledged >= self.slow:
                    self.acknowledge()
            elif not seen(self.core).urgent:
                break
            else:
                self.commit()
        if state is not None and self.reading and not self.slow:
            self.acknowledge()
        self.commit()
        waits = state is not None and state.gaps.undecided is not None
        gap = state.gaps.take_undecided() if state is not None and waits else None
        if gap is not None:
            self.gaps.append(gap)

    def acknowledge(self) -> None:
        """The application is done with all that it was given."""
        state = self.core.streams.get(self.stream)
        for known in [] if state is None else list(state.epochs.entered):
            if known.position < known.cursor:
                self.core.streams[self.stream].acknowledge(
                    known.epoch, known.position, known.cursor - 1, self.now
                )

    def commit(self) -> None:
        core = self.core
        spilling, _ = core.waiting.overdue(self.now + 1.0)
        planned = snapshot(core)
        for waiting in spilling:
            core.waiting.spilling(waiting, True)
            planned.also.add(self.stream)
            assert waiting.known is not None
            for span in waiting.known.unsafe_held(waiting.first, waiting.last):
                self.disk.held.append((waiting.known.epoch, *span))
                core.streams[self.stream].persisted(waiting.known.epoch, *span)
        for change in planned.changes:
            if change.stream == self.stream:
                self.disk.write(change)
        self.released += [token for _, token in core.committed(planned)]
        self.notes += seen(core).notes
        seen(core).notes.clear()

    def step(self, seconds: float = 0.1) -> list[RepairRequest]:
        """Let time pass; returns the requests that are due after it."""
        self.now += seconds
        self.core.tick(self.now)
        asks = self.core.repair_requests(self.now)
        self.asked += [(self.now, ask) for ask in asks]
        self.work()
        return asks

    def wait(self, seconds: float, teller: Teller | None = None) -> None:
        """Let time pass in small steps; with `teller` the producer answers every request at once."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            for ask in self.step():
                if teller is not None:
                    self.repair(teller, ask.wanted)
                    if not ask.wanted:
                        self.hear(teller.status())

    def told(self, kind: str) -> list[tuple[int, int, int, str]]:
        """What the journal says: epoch, first, last, reason."""
        return [(n.epoch, n.first, n.last, n.reason) for n in self.notes if n.kind == kind]

    @property
    def wanted(self) -> list[Span3]:
        return [span for _, ask in self.asked for span in ask.wanted]


class Disk:
    """What an inbox holds of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.epochs: dict[int, EpochRow] = {}
        self.held: list[Span3] = []
        self.history = History()
        self.joined: Position | None = None
        self.gap: GapRow | None = None
        self.known = False

    def write(self, change: StreamChange) -> None:
        self.known = True
        state = change.stored
        if change.history:
            uncertainty = state.takeover.uncertainty
            self.joined = state.epochs.joined
            self.history = History(
                [(f.epoch, f.incarnation, f.last) for f in state.epochs.history.finished],
                state.epochs.history.floor,
                [(epoch, list(seen)) for epoch, seen in state.epochs.history.superseded.items()],
                state.gaps.closed.spans(),
                state.gaps.closed.forgotten,
                state.epochs.unheard,
                None if uncertainty is None else (uncertainty.after, uncertainty.end),
                takeover=state.takeover.number,
                joined_after=state.epochs.joined_after,
                unended=sorted(state.epochs.history.unended),
                answered=None if uncertainty is None else uncertainty.link,
            )
        for item in change.epochs:
            known: ReorderBuffer = item.known
            self.epochs[known.epoch] = EpochRow(
                self.stream, known.epoch, known.incarnation, known.prev, item.position, item.high_water,
                list(item.settled), item.last, item.entered,
            )  # fmt: skip
        for finished in change.finished:
            self.epochs.pop(finished.epoch, None)
        self.held = [s for s in self.held if s[0] in self.epochs and s[2] >= self.epochs[s[0]].position]
        self.gap = None
        if change.gap is not None:
            (epoch, first, last), elapsed, waited = change.gap
            self.gap = GapRow(self.stream, epoch, first, last, elapsed, waited)

    def load(self, context: GroupContext) -> StreamReceiver | None:
        if not self.known:
            return None
        epochs = [self.epochs[epoch] for epoch in sorted(self.epochs)]
        return restored(
            SavedStream(self.stream, self.joined, self.history, epochs, sorted(self.held), self.gap, []),
            context,
        )


def pair(count: int = 10, **rules: Any) -> tuple[Teller, Group]:
    """A producer in epoch 10 that has published `count` messages, and a group."""
    teller = Teller()
    teller.open(10)
    if count:
        teller.publish(count)
    return teller, Group(**rules)


def gapped(count: int, first: int, last: int, **rules: object) -> tuple[Teller, Group]:
    """A producer of `count` messages, of which `first` to `last` did not arrive at the group."""
    teller, group = pair(count, **rules)
    group.receive(teller, 10, 1, first - 1)
    group.receive(teller, 10, last + 1, count)
    return teller, group


def all_of(teller: Teller) -> list[tuple[int, int]]:
    """Every message that a producer has published, in order: epoch and number."""
    return [(epoch, n) for epoch, _, _, last in teller.epochs for n in range(1, last + 1)]
