"""One epoch's reorder state against a model that keeps a state for every number."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reliamsg.protocol.ranges import RangeSet
from reliamsg.protocol.receiver.reorder_buffer import ReorderBuffer
from tests.chance import examples

TOP = 40
spans = st.tuples(st.integers(1, TOP), st.integers(0, 12)).map(lambda t: (t[0], min(TOP, t[0] + t[1])))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("place"), spans),
        st.tuples(st.just("take"), st.tuples(st.integers(1, 8), st.just(0))),
        st.tuples(st.just("untake"), spans),
        st.tuples(st.just("acknowledge"), spans),
        st.tuples(st.just("persist"), spans),
        st.tuples(st.just("commit"), spans),
        st.tuples(st.just("pass"), spans),
    ),
    max_size=60,
)


class Model:
    """Every number's state, in the plainest way."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.out: set[int] = set()
        self.settled: set[int] = set()

    def expected_head(self) -> int:
        return next(n for n in range(1, TOP + 2) if n not in self.settled and n not in self.out)


@settings(max_examples=examples(300))
@given(actions)
def test_against_a_model(steps: list[tuple[str, tuple[int, int]]]) -> None:
    known, model = ReorderBuffer(1, 2, None), Model()
    persisted: set[int] = set()
    safe: set[int] = set()
    for action, (first, last) in steps:
        numbers = set(range(first, last + 1))
        if action == "place":
            new = {n for span in known.place(first, last) for n in range(span[0], span[1] + 1)}
            assert new == numbers - model.held - model.settled
            model.held |= new
        elif action == "take":
            run = known.deliverable()
            if run is not None:
                end = min(run[1], run[0] + first - 1)
                assert run[0] == model.expected_head()
                known.advance(end)
                model.out |= set(range(run[0], end + 1))
        elif action == "untake":
            if first >= known.position and set(range(first, known.cursor)) <= model.out:
                model.out -= set(range(first, known.cursor))
                known.untake(first)
        elif action == "acknowledge":
            done = {n for span in known.acknowledge(first, last) for n in range(span[0], span[1] + 1)}
            assert done == numbers & model.held & set(range(1, known.cursor))
            model.held -= done
            model.out -= done
            model.settled |= done
        elif action == "pass":
            if first == known.head() and not numbers & (model.held | model.settled):
                known.settle(first, last)
                model.settled |= numbers
        elif action == "persist":
            for span in known.held.overlap(first, last):
                known.persisted.add(*span)
            persisted |= numbers & model.held
        else:
            known.committed(known.position, list(known.settled), known.high_water)
            safe = set(model.settled)
        check(known, model)
        for n in range(1, TOP + 1):
            if known.is_safe(n, n):
                assert n in safe or n in persisted
            else:
                assert n not in safe


def check(known: ReorderBuffer, model: Model) -> None:
    position = next(n for n in range(1, TOP + 2) if n not in model.settled)
    assert known.position == position
    assert known.held == RangeSet((n, n) for n in sorted(model.held))
    assert known.settled == RangeSet((n, n) for n in sorted(model.settled) if n > position)
    assert known.unacknowledged == len(model.out)
    assert known.cursor >= known.position


def test_an_in_order_stream_takes_constant_memory() -> None:
    known = ReorderBuffer(1, 2, None)
    for first in range(1, 100_000, 100):
        assert known.place(first, first + 99) == [(first, first + 99)]
        run = known.deliverable()
        assert run == (first, first + 99)
        known.advance(first + 99)
        known.acknowledge(first, first + 99)
        known.committed(known.position, list(known.settled), known.high_water)
    assert known.held.intervals == known.settled.intervals == known.persisted.intervals == 0
    assert known.is_safe(1, 99_999)


def test_reopening_makes_room_for_another_copy() -> None:
    known = ReorderBuffer(1, 2, None)
    known.place(1, 10)
    known.advance(3)
    known.reopen(1, 10)
    assert list(known.held) == [(1, 3)]
    assert list(known.undecodable) == [(4, 10)]
    assert known.place(1, 10) == [(4, 10)]
    assert known.undecodable.empty
