"""When streams are announced, on a simulated clock."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.message import Stream
from reliamsg.protocol.sender import announcements
from reliamsg.protocol.sender.announcements import MAX_ASKING, OTHERS_AT_ONCE, Announcer

ORDERS, AUDIT = Stream("p", "orders"), Stream("p", "audit")


class World:
    """An announcer, the time, and which streams everybody has acknowledged."""

    def __init__(self, **settings: float) -> None:
        self.settled: set[Stream] = set()
        self.announcer = Announcer(self.settled.__contains__, **settings)
        self.now = 0.0

    def until(self, end: float) -> list[tuple[float, Stream]]:
        """Go on to `end`, waking only at deadlines; what was announced when."""
        found = []
        while (at := self.announcer.next_deadline()) <= end:
            self.now = max(self.now, at)
            due = self.announcer.due(self.now)
            found += [(round(self.now, 6), one.stream) for one in due]
            self.announcer.answers(self.now)
        self.now = end
        return found


def test_nothing_is_due_before_anything_happens() -> None:
    world = World()
    assert world.announcer.next_deadline() == inf
    assert world.announcer.due(5.0) == []


def test_a_stream_that_went_quiet_is_announced_and_then_less_and_less_often() -> None:
    world = World()
    world.announcer.published([ORDERS], 0.0)
    times = [at for at, _ in world.until(200.0)]
    assert times == [0.25, 1.25, 3.25, 7.25, 15.25, 31.25, 63.25, 123.25, 183.25]


def test_it_falls_silent_when_everybody_has_acknowledged_the_tail() -> None:
    world = World()
    world.announcer.published([ORDERS], 0.0)
    assert len(world.until(4.0)) == 3
    world.settled.add(ORDERS)
    assert world.until(1000.0) == []
    assert world.announcer.next_deadline() == inf


def test_what_was_acknowledged_before_it_went_quiet_is_not_announced_at_all() -> None:
    world = World()
    world.announcer.published([ORDERS], 0.0)
    world.settled.add(ORDERS)
    assert world.until(1000.0) == []


def test_continuous_traffic_is_announced_every_ten_seconds() -> None:
    world = World()
    found = []
    for tick in range(400):  # 40 s
        found += world.until(tick / 10)
        world.announcer.published([ORDERS], tick / 10)
    found += world.until(50.0)
    assert [at for at, _ in found][:4] == [10.0, 20.0, 30.0, 40.0]
    assert found[4][0] == pytest.approx(39.9 + 0.25)


def test_one_message_now_and_then_is_announced_once_each_time() -> None:
    world = World()
    for at in (0.0, 30.0, 60.0):
        world.until(at)
        world.settled.discard(ORDERS)
        world.announcer.published([ORDERS], at)
        assert world.until(at + 0.3) == [(at + 0.25, ORDERS)]
        world.settled.add(ORDERS)


def test_publishing_starts_the_intervals_anew() -> None:
    world = World()
    world.announcer.published([ORDERS], 0.0)
    world.until(100.0)
    world.announcer.published([ORDERS], 100.0)
    assert [at for at, _ in world.until(104.0)] == [100.25, 101.25, 103.25]


def test_on_connecting_all_streams_are_announced_even_settled_ones() -> None:
    world = World()
    world.settled.add(ORDERS)
    world.announcer.connected([ORDERS, AUDIT], 5.0)
    assert world.until(5.0) == [(5.0, ORDERS), (5.0, AUDIT)]
    assert {stream for _, stream in world.until(20.0)} == {AUDIT}


def test_connecting_in_the_middle_of_traffic_is_announced_at_once() -> None:
    world = World()
    world.announcer.published([ORDERS], 0.0)
    world.announcer.connected([ORDERS], 0.1)
    world.announcer.published([ORDERS], 0.15)
    assert world.until(1.0) == [(0.1, ORDERS), (0.4, ORDERS)]


def test_two_sites_connecting_at_once_cause_one_announcement() -> None:
    world = World()
    world.announcer.connected([ORDERS], 0.0)
    world.announcer.connected([ORDERS], 0.0)
    assert world.until(0.5) == [(0.0, ORDERS)]


def test_a_silent_stream_is_taken_up_again_when_somebody_lags() -> None:
    world = World()
    world.announcer.resume([ORDERS], 0.0)
    world.announcer.resume([ORDERS], 0.5)
    assert [at for at, _ in world.until(4.0)] == [1.0, 2.0, 4.0]


def test_the_promised_interval_is_kept() -> None:
    world = World()
    world.announcer.published([ORDERS], 0.0)
    promised = float("inf")
    last: float | None = None
    while world.now < 500.0:
        at = world.announcer.next_deadline()
        assert at < inf
        world.now = at
        for due in world.announcer.due(at):
            assert last is None or at - last < promised
            last, promised = at, due.interval
            assert world.announcer.interval(ORDERS) >= due.interval


def test_a_stream_that_fell_silent_promises_nothing() -> None:
    world = World()
    world.settled.add(ORDERS)
    world.announcer.connected([ORDERS], 0.0)
    assert world.announcer.due(0.0) == [(ORDERS, 0.0)]
    assert world.announcer.interval(ORDERS) == 0.0


def test_many_due_streams_go_in_portions() -> None:
    world = World()
    streams = [Stream("p", f"t{i}") for i in range(2500)]
    world.announcer.connected(streams, 0.0)
    sizes = []
    while due := world.announcer.due(0.0):
        sizes.append(len(due))
    assert sizes == [1000, 1000, 500]


def test_idle_streams_cost_nothing() -> None:
    """Ten thousand settled streams leave nothing behind that a later step would have to look at."""
    world = World()
    streams = [Stream("p", f"t{i}") for i in range(10_000)]
    world.settled.update(streams)
    world.announcer.connected(streams, 0.0)
    while world.announcer.due(0.0):
        pass
    assert world.announcer.next_deadline() == inf
    assert not world.announcer._paces
    assert not world.announcer._heap


def test_the_timetable_does_not_grow_with_what_happens() -> None:
    world = World()
    for i in range(10_000):
        world.announcer.connected([ORDERS], i / 1000)
        world.announcer.published([ORDERS], i / 1000)
    assert len(world.announcer._heap) < 200


# -- answers --------------------------------------------------------------------------------------------------


def test_a_question_is_answered_at_once_and_the_next_one_after_a_while() -> None:
    world = World()
    world.announcer.asked("billing", [ORDERS], 1.0)
    assert world.announcer.next_deadline() == 1.0
    assert world.announcer.answers(1.0) == [("billing", [ORDERS])]
    world.announcer.asked("billing", [ORDERS], 1.1)
    world.announcer.asked("billing", [AUDIT, ORDERS], 1.2)
    assert world.announcer.answers(1.2) == []
    assert world.announcer.next_deadline() == 1.25
    assert world.announcer.answers(1.25) == [("billing", [ORDERS, AUDIT])]
    assert world.announcer.next_deadline() == inf


def test_made_up_groups_keep_no_named_one_waiting() -> None:
    world = World()
    for i in range(5 * MAX_ASKING):
        world.announcer.asked(f"made-up-{i}", [ORDERS], 0.0, named=False)
    world.announcer.asked("billing", [ORDERS], 0.0)
    answered = world.announcer.answers(0.0)
    assert answered[0] == ("billing", [ORDERS])
    assert len(answered) == 1 + OTHERS_AT_ONCE
    assert world.announcer.answers(0.1) == []
    assert world.announcer.next_deadline() == 0.25
    at, total = 0.0, OTHERS_AT_ONCE
    while (deadline := world.announcer.next_deadline()) < inf:
        at = deadline
        total += len(world.announcer.answers(at))
    assert total == MAX_ASKING
    assert at == pytest.approx(0.25 * (MAX_ASKING / OTHERS_AT_ONCE - 1))


def test_what_one_group_asks_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "MAX_ASKED", 10)
    world = World()
    world.announcer.asked("billing", [Stream("p", f"t{i}") for i in range(100)], 0.0)
    assert len(world.announcer.answers(0.0)[0][1]) == 10


# -- anything -------------------------------------------------------------------------------------------------

events = st.tuples(
    st.sampled_from(["published", "connected", "resume", "settle", "unsettle"]),
    st.sampled_from([ORDERS, AUDIT]),
    st.floats(0.0, 15.0),
)


@given(st.lists(events, max_size=40))
def test_an_unacknowledged_tail_is_announced_again_and_again_and_a_settled_one_is_not(
    happened: list[tuple[str, Stream, float]],
) -> None:
    world = World()
    known: set[Stream] = set()
    for kind, stream, pause in happened:
        world.until(world.now + pause)
        if kind == "settle":
            world.settled.add(stream)
        elif kind == "unsettle":
            world.settled.discard(stream)
            world.announcer.resume([stream], world.now)
            known.add(stream)
        else:
            if kind == "published":
                world.settled.discard(stream)
            getattr(world.announcer, kind)([stream], world.now)
            if kind == "published" or stream not in world.settled:
                known.add(stream)
    last = world.now
    announced = {stream for _, stream in world.until(last + 75.0)}
    assert {stream for stream in known if stream not in world.settled} <= announced
    assert not {stream for _, stream in world.until(last + 500.0)} & world.settled
