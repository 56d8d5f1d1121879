"""Deduplication and hold-back across crashes: what was called safe is there afterwards, and nothing is done twice."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reliamsg.protocol.ranges import RangeSet, Span
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer

TOP = 30
spans = st.tuples(st.integers(1, TOP), st.integers(0, 8)).map(lambda t: (t[0], min(TOP, t[0] + t[1])))


def numbers(found: list[Span] | RangeSet) -> set[int]:
    return {n for first, last in found for n in range(first, last + 1)}


class ReorderModel(RuleBasedStateMachine):
    """An epoch at a group that crashes: a number is handed out once between two crashes, and never once it is settled
    and that is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.known = ReorderBuffer(1, 2, None)
        self.out: list[int] = []
        """Handed out since the latest crash, in order."""
        self.settled: set[int] = set()
        self.held: set[int] = set()
        self.stored: set[int] = set()
        """Of what is held, what is on disk."""
        self.position, self.beyond = 1, RangeSet()
        """On disk: position and settled ranges, as of the latest commit."""

    @rule(span=spans)
    def arrive(self, span: Span) -> None:
        arrived = set(range(span[0], span[1] + 1))
        assert numbers(self.known.place(*span)) == arrived - self.held - self.settled
        self.held |= arrived - self.settled

    @rule(most=st.integers(1, 5))
    def hand_out(self, most: int) -> None:
        run = self.known.deliverable()
        if run is None:
            return
        last = min(run[1], run[0] + most - 1)
        some = list(range(run[0], last + 1))
        assert not set(some) & (set(self.out) | self.settled)
        assert set(some) <= self.held
        assert set(range(1, run[0])) <= set(self.out) | self.settled
        self.known.advance(last)
        self.out += some

    @rule(span=spans)
    def acknowledge(self, span: Span) -> None:
        done = numbers(self.known.acknowledge(*span))
        assert done == set(range(span[0], span[1] + 1)) & set(self.out) - self.settled
        self.settle(done)

    @rule(most=st.integers(1, 5))
    def pass_gap(self, most: int) -> None:
        first = self.known.head()
        missing = RangeSet((n, n) for n in self.held | self.settled).missing(first, first + most - 1)
        if missing and missing[0][0] == first <= TOP:
            self.known.settle(first, missing[0][1])
            self.settle(set(range(first, missing[0][1] + 1)))

    def settle(self, done: set[int]) -> None:
        self.settled |= done
        self.held -= done

    @rule(span=spans)
    def store(self, span: Span) -> None:
        for part in self.known.unsafe_held(*span):
            self.known.persisted.add(*part)
            self.stored |= numbers([part])

    @rule()
    def commit(self) -> None:
        self.position, self.beyond = self.known.position, RangeSet(self.known.settled)
        self.known.committed(self.position, list(self.beyond), self.known.high_water)
        self.stored -= numbers(self.beyond) | set(range(1, self.position))

    @rule(span=spans)
    def find_unreadable(self, span: Span) -> None:
        before = numbers(self.known.held)
        self.known.reopen(*span)
        lost = before - numbers(self.known.held)
        assert lost == {n for n in before if span[0] <= n <= span[1] and n >= self.known.cursor}
        self.held -= lost
        self.stored -= lost

    @rule()
    def crash(self) -> None:
        safe = {n for n in range(1, TOP + 1) if self.known.is_safe(n, n)}
        self.known = ReorderBuffer(1, 2, None, self.position)
        for first, last in self.beyond:
            self.known.settled.add(first, last)
        self.settled = numbers(self.beyond) | set(range(1, self.position))
        self.known.committed(self.position, list(self.beyond), self.known.high_water)
        for n in sorted(self.stored - self.settled):
            self.known.place(n, n)
            self.known.persisted.add(n, n)
        self.held = self.stored - self.settled
        self.out = []
        # A broker was told to forget these.
        assert safe <= self.held | self.settled

    @invariant()
    def the_same_state(self) -> None:
        position = next(n for n in range(1, 2 * TOP) if n not in self.settled)
        assert self.known.position == position
        assert numbers(self.known.held) == self.held
        assert numbers(self.known.settled) == {n for n in self.settled if n > position}
        assert self.known.unacknowledged == len(set(self.out) - self.settled)
        assert self.out == sorted(set(self.out))


TestReorderModel = ReorderModel.TestCase
