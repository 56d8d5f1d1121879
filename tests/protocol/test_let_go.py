"""What a broker may forget is on disk: whatever arrives, also while a commit is being written, or fails.

A commit takes time here. What arrives meanwhile, and what a commit that failed would have held, is known to the core
alone, and no broker may let go of its copy for that.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliamsg.message import Prev
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.protocol.receiver.stream import Snapshot
from tests.protocol.events_tools import seen

from .status_tools import SITES, STREAM, Disk

Span = tuple[int, int, int]


class Reader:
    """A group whose commits are in the caller's hands: written in two steps, or failing."""

    def __init__(self, **rules: Any) -> None:
        rules = {"gap_timeout": 2.0, "skip_gaps": True, **rules}
        self.core = GroupReceiver(Rules(**rules), dict.fromkeys(SITES, 64))
        for site in SITES:
            self.core.waiting.connected(site)
        self.now = 100.0
        self.disk = Disk(STREAM)
        self.let_go: list[Span] = []
        self.begun: tuple[Snapshot, Disk] | None = None
        self.late: list[Span] = []
        """What arrived after it had been declared, as the journal on disk says."""
        self._late: list[Span] = []

    def receive(self, site: str, epoch: int, first: int, last: int, prev: Prev | None = None) -> bool:
        """A batch arrives; whether its broker may forget it at once."""
        span = epoch, first, last
        arrival = self.core.receive(
            Incoming(site, STREAM, epoch, epoch * 7, prev, first, last, span), self.now
        )
        if arrival.release:
            self.let_go.append(span)
        return arrival.release

    def read(self) -> None:
        """The application handles all that it can be given."""
        state = self.core.streams.get(STREAM)
        while state is not None and (found := state.offer(self.now, 1)) is not None:
            state.take(found, found.last, self.now)
            self.core.streams[STREAM].acknowledge(found.epoch, found.first, found.last, self.now)

    def begin(self, spill: bool = False) -> None:
        """A commit is planned, and being written from now on."""
        due = self.core.waiting.overdue(self.now + 1.0)[0] if spill else []
        snapshot, disk = self.core.snapshot(), deepcopy(self.disk)
        for change in snapshot.changes:
            disk.write(change)
        for waiting in due:
            self.core.waiting.spilling(waiting, True)
            snapshot.also.add(STREAM)
            assert waiting.known is not None
            disk.held += [
                (waiting.known.epoch, *span)
                for span in waiting.known.unsafe_held(waiting.first, waiting.last)
            ]
        self.spilling = due
        self._late = [(n.epoch, n.first, n.last) for n in seen(self.core).notes if n.kind == "late"]
        self.begun = snapshot, disk

    def end(self, well: bool = True) -> None:
        """The commit is on disk, or was refused."""
        assert self.begun is not None
        (snapshot, disk), self.begun = self.begun, None
        if not well:
            self.core.commit_failed(snapshot)
            for waiting in self.spilling:
                self.core.waiting.spilling(waiting, False)
            return
        self.disk, self.late = disk, self._late
        for epoch, first, last in disk.held:
            self.core.streams[STREAM].persisted(epoch, first, last)
        self.let_go += [token for _, token in self.core.committed(snapshot)]  # type: ignore[misc]

    def commit(self) -> None:
        self.begin()
        self.end()

    def check(self) -> None:
        """Everything that a broker let go is on disk, or accounted for there."""
        for epoch, first, last in self.let_go:
            for number in range(first, last + 1):
                assert self._is_on_disk(epoch, number), f"{number} of {epoch} was let go"

    def _is_on_disk(self, epoch: int, number: int) -> bool:
        disk, history = self.disk, self.disk.history
        row = disk.epochs.get(epoch)
        if row is not None and (
            number < row.position or any(first <= number <= last for first, last in row.settled)
        ):
            return True
        return (
            any(e == epoch and first <= number <= last for e, first, last in (*disk.held, *self.late))
            or any(e == epoch and number <= last for e, _, last in history.finished)
            or any(
                e == epoch and any(first <= number <= last for first, last in spans)
                for e, spans in history.superseded
            )
            or (disk.joined is not None and epoch < disk.joined[0])
        )


def finished() -> Reader:
    """Epoch 10 is handed out to its end, and 20 begins; that is known, and not on disk."""
    reader = Reader()
    reader.receive("dc1", 10, 1, 5)
    for _ in range(2):
        reader.commit()
        reader.read()
    reader.commit()
    reader.receive("dc1", 20, 1, 5, Prev(10, 70, 5))
    assert [done.epoch for done in reader.core.streams[STREAM].epochs.history.finished] == [10]
    return reader


def test_a_duplicate_of_an_epoch_whose_end_is_not_on_disk_is_kept_until_it_is() -> None:
    reader = Reader()
    reader.receive("dc1", 10, 1, 5)
    reader.commit()
    reader.receive("dc1", 20, 1, 5, Prev(10, 70, 5))
    reader.read()  # the end of epoch 10 is acknowledged, and known to nobody but the core
    assert not reader.receive("dc2", 10, 3, 5)
    reader.check()
    reader.commit()
    assert (10, 3, 5) in reader.let_go
    reader.check()


def test_so_is_one_that_arrives_while_that_is_being_written() -> None:
    reader = finished()
    reader.begin()
    assert not reader.receive("dc2", 10, 3, 5)
    reader.check()
    reader.end()
    reader.commit()
    assert (10, 3, 5) in reader.let_go
    reader.check()


@pytest.mark.parametrize("failures", [1, 3])
def test_so_is_one_that_arrives_after_a_commit_failed(failures: int) -> None:
    reader = finished()
    for _ in range(failures):
        reader.begin()
        reader.end(well=False)
        assert not reader.receive("dc2", 10, 3, 5)
        reader.check()
    reader.commit()
    assert reader.let_go.count((10, 3, 5)) == failures
    reader.check()


def test_what_is_on_disk_is_let_go_at_once() -> None:
    reader = finished()
    reader.commit()
    assert reader.receive("dc2", 10, 3, 5)
    reader.check()


@example(164453)
@given(st.integers(0, 2**32))
def test_whatever_is_let_go_is_on_disk(seed: int) -> None:
    chance = random.Random(seed)
    reader = Reader()
    batches: list[tuple[int, int, int, Prev | None]] = []
    prev: Prev | None = None
    for epoch in (10, 20, 30):
        last = 0
        for _ in range(chance.randrange(1, 6)):
            first, last = last + 1, last + chance.randrange(1, 5)
            batches.append((epoch, first, last, prev))
        prev = Prev(epoch, epoch * 7, last)
    sites = {site: list(batches) for site in SITES}
    for _ in range(120):
        choice = chance.random()
        queue = sites[chance.choice(SITES)]
        if choice < 0.4 and queue:
            batch = queue.pop(min(len(queue) - 1, chance.choice([0, 0, 0, 1, 4])))
            if chance.random() < 0.2:
                queue.append(batch)  # it comes again some time
            if chance.random() < 0.9:
                reader.receive(chance.choice(SITES), *batch)
        elif choice < 0.6:
            reader.read()
        elif choice < 0.7:
            reader.now += chance.choice([0.1, 1.0])
            reader.core.tick(reader.now)
        elif reader.begun is None:
            reader.begin(spill=chance.random() < 0.5)
        else:
            reader.end(well=chance.random() < 0.7)
        reader.check()
