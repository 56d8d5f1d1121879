"""When a group asks for what is missing, and for how much at a time; clocks that wait for a producer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from reliamsg.message import Stream
from reliamsg.protocol.receiver.epochs import MAX_MISSING
from reliamsg.protocol.receiver.group import MAX_REQUESTS
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.jitter import Jitter
from reliamsg.protocol.receiver.repair_requests import WINDOW_NUMBERS, WINDOW_SPANS
from tests.protocol.events_tools import seen

from .status_tools import STREAM, Group, Teller, gapped


def times(group: Group) -> list[float]:
    return [at for at, _ in group.asked]


def test_a_gap_is_asked_for_after_a_delay_though_no_status_was_heard() -> None:
    teller, group = gapped(30, 11, 20, repair_delay=1.0)
    start = group.now
    group.wait(3.0, teller)
    assert group.got == [(10, n) for n in range(1, 31)]
    assert len(group.asked) == 1
    assert 0.8 <= times(group)[0] - start <= 1.3


def test_what_another_site_brings_in_time_is_not_asked_for() -> None:
    teller, group = Teller(), Group(repair_delay=0.5)
    teller.open(10)
    teller.publish(1_000)
    for n in range(1, 1_000, 10):  # one site is always 100 messages ahead, with holes
        if n % 20 == 1:
            group.receive(teller, 10, min(n + 100, 991), min(n + 109, 1_000))
        group.receive(teller, 10, n, n + 9, "dc2")
        group.step(0.02)
    assert group.got == [(10, n) for n in range(1, 1_001)]
    assert group.asked == []


def test_requests_back_off_without_progress() -> None:
    _, group = gapped(30, 11, 20, repair_delay=0.5, gap_timeout=1e6)
    group.wait(120.0)
    between = [b - a for a, b in pairwise(times(group))]
    assert all(b > 0.65 * a for a, b in pairwise(between))
    assert between[0] < 1.5
    assert all(7.9 <= gap <= 12.3 for gap in between[-5:])
    assert len(between) < 25
    # However often it is asked for, it is journalled once.
    assert group.told("asked") == [(10, 11, 20, "")]


def test_progress_ends_the_backoff() -> None:
    teller, group = gapped(60, 11, 50, repair_delay=0.5, gap_timeout=1e6)
    group.wait(60.0)
    group.repair(teller, [(10, 11, 30)])
    before = len(group.asked)
    group.wait(11.0)
    assert len(group.asked) - before >= 3
    assert group.asked[before][1].wanted == ((10, 31, 50),)


def test_a_large_gap_is_asked_for_window_by_window() -> None:
    teller, group = gapped(100_010, 6, 100_005)
    start = group.now
    group.wait(0.9)
    assert group.wanted == [(10, 6, 5 + WINDOW_NUMBERS)]
    queue = list(group.wanted)
    while queue:
        epoch, first, last = queue.pop(0)
        for low in range(first, last + 1, 1_000):  # the producer sends 20,000 a second
            group.repair(teller, [(epoch, low, min(low + 999, last))])
            for ask in group.step(0.05):
                queue += ask.wanted
    assert len(group.got) == 100_010
    assert len(set(group.got)) == 100_010
    assert group.now - start < 7.0
    spans = sorted((first, last) for _, first, last in group.wanted)
    assert all(last - first < WINDOW_NUMBERS for first, last in spans)
    # Nothing was asked for twice.
    assert sum(last - first + 1 for first, last in spans) == 100_000


def test_many_gaps_are_bounded_in_number() -> None:
    teller, group = Teller(), Group(gap_timeout=1e6)
    teller.open(10)
    teller.publish(10_000)
    for n in range(1, 10_000, 10):
        group.receive(teller, 10, n, n + 4)
    group.wait(0.8)
    (_, ask), *more = group.asked
    assert more == []
    assert len(ask.missing) == MAX_MISSING
    assert len(ask.wanted) == WINDOW_SPANS
    assert ask.wanted[0] == (10, 6, 10)
    group.wait(60.0, teller)
    assert group.got == [(10, n) for n in range(1, 9_996)]  # nothing tells of the last five


def test_all_gaps_of_a_stream_are_asked_for_not_only_the_first() -> None:
    teller, group = Teller(), Group(gap_timeout=1e6)
    teller.open(10)
    teller.publish(50)
    teller.open(20)
    teller.publish(50)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 10, 21, 30)
    group.receive(teller, 20, 11, 20)
    group.wait(0.8)
    assert group.wanted == [(10, 11, 20), (10, 31, 50), (20, 1, 10)]


def test_what_is_no_longer_held_is_not_asked_for_and_may_still_come() -> None:
    teller, group = gapped(30, 11, 20)
    teller.release(10, 15)
    group.hear(teller.status())
    group.wait(3.0, teller)
    assert set(group.wanted) == {(10, 16, 20)}
    assert group.state.gaps.clock.target == (10, 11, 15)
    group.receive(teller, 10, 1, 30, "dc2")
    assert group.got == [(10, n) for n in range(1, 31)]
    assert group.told("declared") == []


def test_nothing_is_asked_while_no_site_is_connected() -> None:
    teller, group = gapped(30, 11, 20)
    for site in ("dc1", "dc2"):
        group.core.waiting.disconnected(site)
    group.wait(30.0)
    assert group.asked == []
    assert group.state.gaps.clock.elapsed == 0.0
    group.core.waiting.connected("dc2")
    group.wait(1.0, teller)
    assert group.got == [(10, n) for n in range(1, 31)]


def test_a_full_inbox_asks_only_for_what_holds_its_streams_up() -> None:
    teller, group = Teller(), Group(gap_timeout=1e6)
    teller.open(10)
    teller.publish(50)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 10, 21, 30)
    group.receive(teller, 10, 41, 50)
    group.now += 1.0
    group.core.tick(group.now)
    (ask,) = group.core.repair_requests(group.now, only_heads=True)
    assert ask.wanted == ((10, 11, 20),)
    assert ask.missing == ((10, 11, 20), (10, 31, 40))


def test_a_stream_that_nothing_was_asked_for_while_the_inbox_was_full_is_asked_for_soon_after() -> None:
    teller, group = Teller(), Group(gap_timeout=1e6)
    group.reading = False
    teller.open(10)
    teller.publish(50)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 10, 21, 50)
    for _ in range(600):
        group.now += 0.1
        group.core.tick(group.now)
        assert (
            group.core.repair_requests(group.now, only_heads=True) == []
        )  # what comes before was not handed out yet
    group.wait(1.0)
    assert group.wanted == [(10, 11, 20)]


def test_many_streams_are_asked_for_in_several_steps() -> None:
    group = Group(gap_timeout=1e6)
    for n in range(2 * MAX_REQUESTS):
        stream = Stream(f"p{n}", "orders")
        group.core.receive(Incoming("dc1", stream, 10, 70, None, 1, 2, n), group.now)
        group.core.receive(Incoming("dc1", stream, 10, 70, None, 5, 6, n), group.now)
        for state in (group.core.streams[stream],):
            found = state.offer(group.now, 1)
            if found is not None:
                state.take(found, found.last, group.now)
    group.now += 0.7
    asked = []
    for _ in range(10):
        group.core.tick(group.now)
        found_now = group.core.repair_requests(group.now)
        assert len(found_now) <= MAX_REQUESTS
        asked += found_now
    assert len({ask.stream for ask in asked}) == len(asked) == 2 * MAX_REQUESTS


def test_a_request_needs_no_status_to_end() -> None:
    teller, group = gapped(30, 11, 20)
    group.wait(0.9)
    group.receive(teller, 10, 11, 20, "dc2")
    before = len(group.asked)
    group.wait(30.0)
    assert len(group.asked) == before
    assert group.core.tick(group.now) is None


def test_an_idle_stream_has_no_timer() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(10)
    group.receive(teller, 10, 1, 10)
    group.hear(teller.status())
    group.step(1.0)
    assert group.core.tick(group.now) is None


def test_jitter_spreads_by_a_fifth_and_differs_between_groups() -> None:
    one, other = Jitter(1), Jitter(2)
    first = [one.spread(1.0) for _ in range(1_000)]
    assert min(first) >= 0.8
    assert max(first) <= 1.2
    assert max(first) - min(first) > 0.35
    assert [other.spread(1.0) for _ in range(5)] != first[:5]


# -- clocks -------------------------------------------------------------------------------------------------


def test_the_clock_waits_while_a_producer_holds_the_range() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0, repair_timeout=60.0)
    for _ in range(15):
        group.hear(teller.status())
        group.wait(2.0)
    assert group.told("declared") == []
    assert group.state.gaps.clock.elapsed == 0.0
    # It falls silent: two intervals later the clock runs.
    group.wait(3.5)
    assert group.told("declared") == []
    group.wait(7.0)
    assert group.told("declared") == [(10, 11, 20, "expired")]


def test_the_clock_waits_for_repair_timeout_at_most() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0, repair_timeout=20.0)
    start = group.now
    while not group.told("declared"):
        group.hear(teller.status())
        group.wait(1.0)
        assert group.now < start + 100.0
    assert 24.0 <= group.now - start <= 27.5


def test_what_was_waited_before_crashes_counts() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0, repair_timeout=20.0)
    start, crashes = group.now, 0
    while not group.told("declared"):
        group.hear(teller.status())
        group.wait(1.0)
        if group.now >= start + 6.0 * (crashes + 1):
            group.crash()
            crashes += 1
        assert group.now < start + 100.0
    assert crashes >= 4
    # Of each crash at most what came since the last commit, and the time until the producer was heard again.
    assert 24.0 <= group.now - start <= 27.5 + 2.0 * crashes


def test_the_clock_does_not_wait_for_what_is_no_longer_held() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0)
    teller.release(10, 20)
    start = group.now
    while not group.told("declared"):
        group.hear(teller.status())
        group.wait(1.0)
    assert group.now - start <= 7.0
    assert group.wanted == []


def test_a_partial_repair_starts_clock_and_waiting_anew() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0, repair_timeout=10.0)
    for _ in range(6):
        group.hear(teller.status())
        group.wait(2.0)
    assert group.state.gaps.clock.waited >= 10.0
    assert group.state.gaps.clock.elapsed > 0.0
    group.repair(teller, [(10, 11, 15)])
    assert group.state.gaps.clock.target == (10, 16, 20)
    assert group.state.gaps.clock.waited == group.state.gaps.clock.elapsed == 0.0


def test_a_stopped_process_neither_expires_nor_waits() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0, repair_timeout=20.0)
    group.hear(teller.status())
    group.wait(1.0)
    for _ in range(3):
        group.step(3_600.0)
    assert group.state.gaps.clock.waited + group.state.gaps.clock.elapsed <= 5.0
    assert group.told("declared") == []


# -- removed ------------------------------------------------------------------------------------------------


def test_what_was_removed_is_declared_at_once() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=1e6)
    teller.remove(10, 11, 20)
    group.hear(teller.status())
    group.wait(0.5)
    assert group.told("declared") == [(10, 11, 20, "removed")]
    assert group.got == [(10, n) for n in (*range(1, 11), *range(21, 31))]


def test_what_was_removed_is_put_to_the_policy_once_at_once_and_then_like_any_gap() -> None:
    teller, group = gapped(30, 11, 20, gap_timeout=5.0, skip_gaps=False)
    teller.remove(10, 11, 20)
    group.hear(teller.status())
    group.wait(4.0)
    assert [gap.reason for gap in group.gaps] == ["removed"]
    group.wait(3.0)
    assert [gap.reason for gap in group.gaps] == ["removed", "removed"]
    assert group.told("declared") == []
    assert group.core.accept(group.gaps[0], group.now)
    group.work()
    assert group.told("declared") == [(10, 11, 20, "removed")]
    assert group.got[-1] == (10, 30)


def test_what_was_removed_waits_for_what_comes_before_it() -> None:
    teller, group = Teller(), Group(skip_gaps=False)
    group.reading = False
    teller.open(10)
    teller.publish(30)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 10, 21, 30)
    teller.remove(10, 11, 20)
    core, state = group.core, group.state
    while (found := state.offer(group.now, 1)) is None:
        group.commit()
    state.take(found, 10, group.now)
    group.hear(teller.status())
    group.wait(2.0)
    assert group.gaps == []
    core.streams[STREAM].acknowledge(10, 1, 10, group.now)
    group.wait(0.1)
    assert [(gap.first, gap.last, gap.reason) for gap in group.gaps] == [(11, 20, "removed")]


def test_a_gap_of_which_a_part_was_removed_is_taken_apart() -> None:
    teller, group = gapped(60, 11, 50, gap_timeout=5.0)
    teller.remove(10, 21, 30)
    teller.remove(10, 41, 45)
    group.hear(teller.status())
    group.wait(0.3)
    assert group.state.gaps.clock.target == (10, 11, 20)
    group.wait(3.0, teller)
    assert group.told("declared") == [(10, 21, 30, "removed"), (10, 41, 45, "removed")]
    assert len(group.got) == 45
    assert set(group.wanted) == {(10, 11, 20), (10, 31, 40), (10, 46, 50)}


def test_an_epoch_that_was_removed_as_a_whole_is_declared_as_that() -> None:
    teller, group = Teller(), Group(gap_timeout=1e6)
    for epoch in (10, 20, 30):
        teller.open(epoch)
        teller.publish(10)
    teller.remove(20, 1, 10)
    group.receive(teller, 10, 1, 10)
    group.receive(teller, 30, 1, 10)
    group.hear(teller.status())
    group.wait(1.0, teller)
    assert group.told("declared") == [(20, 1, 10, "removed")]
    assert group.got[-1] == (30, 10)


def test_a_status_in_parts_counts_as_one() -> None:
    teller, group = gapped(60, 11, 50, gap_timeout=1e6)
    status = teller.status()
    group.hear(replace(status, removed=((10, 11, 20),)))
    group.hear(replace(status, removed=((10, 21, 30),)))
    group.hear(replace(status, removed=((10, 31, 50),)))
    group.wait(1.0)
    assert [span[:3] for span in group.told("declared")] == [(10, 11, 50)]


def test_what_was_removed_and_arrived_is_handed_out() -> None:
    teller, group = gapped(30, 11, 20)
    teller.remove(10, 1, 30)
    group.hear(teller.status())
    group.wait(1.0)
    assert group.told("declared") == [(10, 11, 20, "removed")]
    assert len(group.got) == 20


# -- reports ------------------------------------------------------------------------------------------------


def test_a_report_holds_only_what_is_committed() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(30)
    core = group.core
    core.receive(Incoming("dc1", STREAM, 10, 70, None, 1, 10, 1), group.now)
    group.commit()
    assert core.report(STREAM).position == (10, 1)
    assert core.report(STREAM).entered == (10, 70)
    state = group.state
    found = state.offer(group.now, 1)
    assert found is not None
    state.take(found, 10, group.now)
    core.streams[STREAM].acknowledge(10, 1, 10, group.now)
    seen(core).changed_reports.clear()
    snapshot = core.snapshot()
    assert core.report(STREAM).position == (10, 1)
    core.commit_failed(snapshot)
    assert core.report(STREAM).position == (10, 1)
    assert seen(core).changed_reports == set()
    core.committed(core.snapshot())
    assert core.report(STREAM).position == (10, 11)
    assert seen(core).changed_reports == {STREAM}


def test_a_report_tells_what_is_missing_and_what_was_declared() -> None:
    teller, group = gapped(60, 11, 20, gap_timeout=2.0)
    group.wait(4.0)
    teller.publish(40)
    group.receive(teller, 10, 71, 80)
    report = group.core.report(STREAM)
    assert report.position == (10, 61)
    assert report.missing == ((10, 61, 70),)
    assert report.declared == ((10, 11, 20),)
    assert report.high_water > 60
    group.crash()
    again = group.core.report(STREAM)
    assert (again.position, again.entered, again.declared) == (
        report.position,
        report.entered,
        report.declared,
    )


def test_the_position_stays_in_an_epoch_until_all_of_it_is_settled_and_committed() -> None:
    teller, group = Teller(), Group()
    teller.open(10)
    teller.publish(5)
    teller.open(20)
    teller.publish(5)
    core = group.core
    for epoch in (10, 20):
        core.receive(Incoming("dc1", STREAM, epoch, epoch * 7, teller.prev(epoch), 1, 5, epoch), group.now)
    state = group.state
    group.commit()
    for _ in range(2):
        while (found := state.offer(group.now, 1)) is None:
            group.commit()
        state.take(found, found.last, group.now)
    group.commit()
    assert core.report(STREAM).position == (10, 1)
    assert core.report(STREAM).entered == (20, 140)
    core.streams[STREAM].acknowledge(20, 1, 5, group.now)
    group.commit()
    assert core.report(STREAM).position == (10, 1)
    core.streams[STREAM].acknowledge(10, 1, 5, group.now)
    group.commit()
    assert core.report(STREAM).position == (20, 6)


def test_an_unknown_stream_has_an_empty_report() -> None:
    group = Group()
    assert group.core.report(STREAM).position == (0, 1)
