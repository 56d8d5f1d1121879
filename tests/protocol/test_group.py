"""The composed core against a naive model: random loss, duplicates and reordering at two sites, several epochs."""

from __future__ import annotations

import random

import pytest

from reliamsg.message import Gap, Prev, Stream
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.redelivery import Offer
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.wire.limits import MAX_SEQ
from tests.protocol.events_tools import seen, snapshot

STREAM = Stream("p", "orders")
Place = tuple[int, int]


def core(**rules: object) -> GroupReceiver:
    made = GroupReceiver(Rules(**{"gap_timeout": 5.0, **rules}), {"dc1": 64, "dc2": 64})  # type: ignore[arg-type]
    for site in ("dc1", "dc2"):
        made.waiting.connected(site)
    return made


def commit(made: GroupReceiver) -> list[object]:
    return [token for _, token in made.committed(snapshot(made))]


class Run:
    """Feeds a core and takes all that it offers."""

    def __init__(self, made: GroupReceiver) -> None:
        self.core = made
        self.now = 0.0
        self.got: list[Place] = []
        self.tokens = 0
        self.released: set[object] = set()

    def receive(self, site: str, epoch: int, prev: Prev | None, first: int, last: int) -> None:
        self.tokens += 1
        arrival = self.core.receive(
            Incoming(site, STREAM, epoch, epoch * 7, prev, first, last, self.tokens), self.now
        )
        if arrival.release:
            self.released.add(self.tokens)

    def drain(self, limit: int = 10**9) -> None:
        state = self.core.streams.get(STREAM)
        for _ in range(1_000):
            if state is None:
                return
            found = state.offer(self.now, 1)
            if found is None:
                if not seen(self.core).urgent:
                    break
                self.released.update(commit(self.core))
                continue
            last = min(found.last, found.first + limit - 1)
            state.take(found, last, self.now)
            self.core.streams[STREAM].acknowledge(found.epoch, found.first, last, self.now)
            self.got += [(found.epoch, n) for n in range(found.first, last + 1)]
        self.released.update(commit(self.core))

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.core.tick(self.now)
            self.drain()


@pytest.mark.parametrize("seed", range(150))
def test_random_arrivals_are_handed_out_in_order_once_and_completely(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    epochs: list[tuple[int, int, Prev | None]] = []
    prev: Prev | None = None
    for epoch in sorted(chance.sample(range(1, 50), chance.randrange(1, 4))):
        last = chance.randrange(1, 120)
        epochs.append((epoch, last, prev))
        prev = Prev(epoch, epoch * 7, last)
    batches: list[tuple[int, Prev | None, int, int]] = []
    for epoch, last, before in epochs:
        first = 1
        while first <= last:
            end = min(last, first + chance.randrange(20))
            batches.append((epoch, before, first, end))
            first = end + 1
    lost = [batch for batch in batches[1:-1] if chance.random() < 0.15]
    arrivals: list[tuple[str, tuple[int, Prev | None, int, int]]] = []
    for site in ("dc1", "dc2"):
        for batch in batches:
            if batch not in lost:
                arrivals += [(site, batch)] * chance.choice([1, 1, 2])
    at = {id(a): i + chance.randrange(-8, 9) for i, a in enumerate(arrivals)}
    arrivals.sort(key=lambda a: at[id(a)])
    run = Run(core(skip_gaps=True, gap_timeout=1e6))
    first_batch = batches[0]
    run.receive("dc1", *first_batch)
    for site, batch in arrivals:
        run.receive(site, *batch)
        if chance.random() < 0.5:
            run.drain(chance.choice([1, 7, 1000]))
    run.drain()
    object.__setattr__(run.core.rules, "gap_timeout", 5.0)
    run.wait(7.0 * (len(lost) + 1))
    missing = {(epoch, n) for epoch, _, a, b in lost for n in range(a, b + 1)}
    everything = [(epoch, n) for epoch, _, a, b in batches for n in range(a, b + 1)]
    assert run.got == [place for place in everything if place not in missing]
    declared: set[Place] = set()
    for note in seen(run.core).notes:
        if note.kind == "declared":
            declared.update((note.epoch, n) for n in range(note.first, note.last + 1))
    # The last batch is never lost, so all that is missing is known to exist.
    assert missing <= declared | unknown_extent(run.core)
    assert declared <= missing
    assert run.released == set(range(1, run.tokens + 1))


def unknown_extent(made: GroupReceiver) -> set[Place]:
    """What lies behind an open end that was declared."""
    ends = [(n.epoch, n.first) for n in seen(made).notes if n.kind == "declared" and n.last == 0]
    untils = [
        n.detail["until_epoch"] for n in seen(made).notes if n.kind == "declared" and n.last == 0 and n.detail
    ]
    found: set[Place] = set()
    for (epoch, first), until in zip(ends, untils, strict=True):
        found |= {(e, n) for e in range(epoch, until) for n in range(first if e == epoch else 1, 200)}
    return found


def test_deliveries_are_released_only_by_the_commit_that_makes_them_safe() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    run.receive("dc2", 1, None, 1, 10)
    assert commit(run.core) == []
    state = run.core.streams[STREAM]
    found = state.offer(0.0, 1)
    assert found is not None
    state.take(found, 10, 0.0)
    run.core.streams[STREAM].acknowledge(1, 1, 9, 0.0)
    assert commit(run.core) == []
    run.core.streams[STREAM].acknowledge(1, 10, 10, 0.0)
    snapshot = run.core.snapshot()
    run.core.commit_failed(snapshot)
    assert sorted(map(str, commit(run.core))) == ["1", "2"]
    assert run.core.receive(Incoming("dc1", STREAM, 1, 7, None, 5, 10, "dup"), 0.0).release


def test_a_stopped_process_expires_no_gap() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    run.receive("dc1", 1, None, 21, 30)
    run.drain()
    run.core.tick(1.0)
    for hour in range(1, 4):
        run.core.tick(hour * 3_600.0)
    assert run.core.streams[STREAM].gaps.undecided is None


def test_no_gap_expires_while_no_site_is_connected() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    run.receive("dc1", 1, None, 21, 30)
    run.drain()
    run.wait(4.0)
    for site in ("dc1", "dc2"):
        run.core.waiting.disconnected(site)
    run.wait(60.0)
    assert run.core.streams[STREAM].gaps.undecided is None
    run.core.waiting.connected("dc2")
    run.wait(2.0)
    assert run.core.streams[STREAM].gaps.undecided == Gap(STREAM, 1, 11, 20, "expired")


def test_the_time_of_a_gap_begins_when_all_before_it_is_dealt_with() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    run.receive("dc1", 1, None, 21, 30)
    commit(run.core)
    state = run.core.streams[STREAM]
    found = state.offer(0.0, 1)
    assert found is not None
    state.take(found, 10, 0.0)
    run.wait(60.0)
    assert state.gaps.undecided is None
    run.core.streams[STREAM].acknowledge(1, 1, 10, run.now)
    run.wait(4.0)
    assert state.gaps.undecided is None
    run.wait(2.0)
    assert state.gaps.undecided == Gap(STREAM, 1, 11, 20, "expired")


def test_nothing_is_offered_before_a_commit_says_that_it_may_have_been() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    made, state = run.core, run.core.streams[STREAM]
    assert state.offer(0.0, 1) is None
    snapshot = made.snapshot()
    assert state.offer(0.0, 1) is None
    made.commit_failed(snapshot)
    assert state.offer(0.0, 1) is None
    commit(made)
    found = state.offer(0.0, 1)
    assert found is not None
    assert (found.first, found.last, found.redelivered) == (1, 10, False)


@pytest.mark.parametrize(
    "later", [(1, None, 3, 4), (2, Prev(1, 7, 2), 1, 2)], ids=["same epoch", "next epoch"]
)
def test_a_message_that_failed_is_overtaken_by_none(later: tuple[int, Prev | None, int, int]) -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 2)
    run.receive("dc1", *later)
    commit(run.core)
    made, state = run.core, run.core.streams[STREAM]
    first = state.offer(0.0, 1)
    assert first is not None
    state.take(first, 2, 0.0)
    state.given(0.0)
    made.streams[STREAM].fail(1, 2, 2, 0.0)
    for _ in range(3):
        assert state.offer(0.05, 1) is None
        commit(made)
    again = offered(made, 10.0)
    assert (again.epoch, again.first, again.last, again.redelivered) == (1, 2, 2, True)
    state.take(again, 2, 10.0)
    after = offered(made, 10.0)
    assert (after.epoch, after.first) == (later[0], later[2])


def offered(made: GroupReceiver, now: float) -> Offer:
    """What is offered next, after as many commits as that takes."""
    for _ in range(5):
        found = made.streams[STREAM].offer(now, 1)
        if found is not None:
            return found
        commit(made)
    raise AssertionError("nothing is offered")


def test_a_partial_fill_starts_the_clock_anew() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    run.receive("dc1", 1, None, 21, 30)
    run.drain()
    run.wait(4.0)
    run.receive("dc1", 1, None, 15, 15)
    run.wait(4.0)
    assert run.core.streams[STREAM].gaps.undecided is None
    run.wait(2.0)
    assert run.core.streams[STREAM].gaps.undecided == Gap(STREAM, 1, 11, 14, "expired")


def test_accepting_a_gap_does_not_declare_what_arrived_within_it() -> None:
    run = Run(core())
    run.receive("dc1", 1, None, 1, 10)
    run.receive("dc1", 1, None, 21, 30)
    run.drain()
    run.wait(6.0)
    gap = run.core.streams[STREAM].gaps.undecided
    assert gap is not None
    run.receive("dc1", 1, None, 15, 16)
    assert run.core.accept(gap, run.now)
    run.drain()
    assert [n for _, n in run.got] == [*range(1, 11), 15, 16, *range(21, 31)]
    declared = [(n.first, n.last) for n in seen(run.core).notes if n.kind == "declared"]
    assert declared == [(11, 14), (17, 20)]
    assert not run.core.accept(gap, run.now)


def test_a_mark_never_lies_beyond_the_highest_number() -> None:
    """No other inbox, nor any producer, would read a state that told of one."""
    run = Run(core())
    run.receive("dc1", 1, None, 1, 2)
    run.receive("dc1", 1, None, MAX_SEQ, MAX_SEQ)
    run.wait(6.0)
    gap = run.core.streams[STREAM].gaps.undecided
    assert gap is not None
    assert run.core.accept(gap, run.now)
    run.drain()
    assert run.got == [(1, 1), (1, 2), (1, MAX_SEQ)]
    report = run.core.report(STREAM)
    assert report.position == (1, MAX_SEQ + 1)
    assert report.high_water == MAX_SEQ + 1


def test_old_data_of_an_epoch_that_was_never_entered_is_superseded() -> None:
    run = Run(core())
    run.receive("dc1", 5, None, 1, 10)
    run.drain()
    run.receive("dc1", 9, Prev(5, 35, 10), 1, 5)
    run.drain()
    run.receive("dc1", 7, Prev(5, 35, 10), 1, 3)
    run.receive("dc2", 7, Prev(5, 35, 10), 1, 3)
    run.drain()
    declared = [(n.epoch, n.first, n.last, n.reason) for n in seen(run.core).notes if n.kind == "declared"]
    assert declared == [(7, 1, 3, "superseded")]
    assert run.released == set(range(1, run.tokens + 1))


@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize("leaves", [False, True])
def test_older_epochs_than_a_producers_first_are_superseded(begin: str, leaves: bool) -> None:
    """Its outbox was lost while its clock was ahead: nothing is before the message that the group joined with."""
    run = Run(core(begin=begin))
    run.receive("dc1", 5, None, 1, 10)
    run.drain()
    if leaves:
        run.receive("dc1", 6, Prev(5, 35, 10), 1, 1)
        run.drain()
    run.receive("dc1", 3, None, 1, 4)
    run.drain()
    notes = [(n.kind, n.epoch, n.first, n.last, n.reason) for n in seen(run.core).notes]
    assert ("declared", 3, 1, 4, "superseded") in notes
    assert "before_join" not in [kind for kind, *_ in notes]


def test_what_comes_before_a_group_joined_in_the_middle_is_no_loss() -> None:
    run = Run(core(begin="latest"))
    run.receive("dc1", 5, Prev(4, 28, 3), 1, 10)
    run.drain()
    run.receive("dc1", 3, None, 1, 4)
    run.drain()
    assert ("before_join", 3) in [(n.kind, n.epoch) for n in seen(run.core).notes]
    assert not [n for n in seen(run.core).notes if n.kind == "declared"]


def test_what_lies_between_superseded_numbers_is_declared_with_them() -> None:
    run = Run(core())
    run.receive("dc1", 5, None, 1, 10)
    run.drain()
    run.receive("dc1", 9, Prev(5, 35, 6), 1, 5)
    run.drain()
    run.receive("dc1", 5, None, 13, 15)
    run.receive("dc2", 5, None, 12, 12)
    run.receive("dc2", 5, None, 13, 17)
    run.drain()
    told = [
        (n.first, n.last) for n in seen(run.core).notes if n.kind == "declared" and n.reason == "superseded"
    ]
    assert told == [(11, 15), (16, 17)]
    late = [(n.first, n.last) for n in seen(run.core).notes if n.kind == "late"]
    assert late == [(13, 15), (12, 12), (16, 17)]


def test_attempts_are_committed_before_they_are_made() -> None:
    run = Run(core(max_deliveries=3))
    run.receive("dc1", 1, None, 1, 2)
    made, state = run.core, run.core.streams[STREAM]
    commit(made)
    found = state.offer(0.0, 1)
    assert found is not None
    state.take(found, 2, 0.0)
    assert made.streams[STREAM].fail(1, 1, 1, 0.0) == []
    state.untake(found, 2, 2, 0.0)
    assert state.offer(0.05, 1) is None
    assert state.offer(0.2, 1) is None
    assert made.snapshot().changes[0].attempts == {(1, 1): 2}
    assert state.offer(0.2, 1) is None
    commit(made)
    again = state.offer(0.2, 1)
    assert again is not None
    assert (again.first, again.last, again.redelivered) == (1, 1, True)
