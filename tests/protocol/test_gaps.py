"""Gap clocks, and the memory of closed gaps."""

from __future__ import annotations

from reliamsg.protocol.receiver.gaps import MAX_CLOSED, ClosedGaps, GapClock


def test_the_clock_counts_only_while_running() -> None:
    clock = GapClock()
    clock.aim((1, 5, 9))
    for at in (10.0, 10.4, 10.8):
        clock.tick(at, True)
    assert round(clock.elapsed, 6) == 0.8
    clock.tick(11.0, False)
    clock.tick(50.0, False)
    clock.tick(60.0, True)
    assert round(clock.elapsed, 6) == 0.8
    clock.tick(60.5, True)
    assert round(clock.elapsed, 6) == 1.3


def test_one_step_counts_at_most_a_second() -> None:
    clock = GapClock()
    clock.aim((1, 5, 9))
    clock.tick(10.0, True)
    assert clock.tick(10_000.0, True) == 1.0


def test_a_clock_that_runs_backwards_counts_nothing() -> None:
    clock = GapClock()
    clock.aim((1, 5, 9))
    clock.tick(10.0, True)
    assert clock.tick(9.0, True) == 0.0


def test_another_gap_starts_at_zero_and_the_same_goes_on() -> None:
    clock = GapClock()
    clock.restore((1, 5, 9), 3.0, 2.0)
    assert clock.aim((1, 5, 9)) is None
    assert (clock.elapsed, clock.waited) == (3.0, 2.0)
    assert clock.aim((1, 7, 9)) == (1, 5, 9)
    assert (clock.elapsed, clock.waited) == (0.0, 0.0)
    assert clock.aim(None) == (1, 7, 9)


def test_what_arrives_late_is_late_once() -> None:
    closed = ClosedGaps()
    closed.add(1, 10, 19)
    closed.add(1, 30, 39)
    assert closed.arrived(2, 10, 19) == []
    assert closed.arrived(1, 15, 32) == [(15, 19), (30, 32)]
    assert closed.arrived(1, 15, 32) == []
    assert closed.arrived(1, 1, 100) == [(10, 14), (33, 39)]
    assert closed.empty


def test_the_newest_thousand_are_remembered_and_older_ones_known_to_be_forgotten() -> None:
    closed = ClosedGaps()
    for n in range(MAX_CLOSED + 10):
        closed.add(1, 10 * n + 1, 10 * n + 5)
    assert len(closed.spans()) == MAX_CLOSED
    assert closed.arrived(1, 91, 95) == []
    assert closed.may_have_forgotten(1, 91)
    assert closed.arrived(1, 101, 105) == [(101, 105)]
    assert not closed.may_have_forgotten(1, 101)
