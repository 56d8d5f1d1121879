"""One site's window: what is sent when, what is sent again, and what a refusal holds up."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import pytest

from reliamsg.protocol.sender.window import (
    DROPS,
    PARK_MAX_S,
    PARK_MIN_S,
    UNANSWERED,
    QueueState,
    SendQueue,
    SiteLimits,
    SiteWindow,
)
from tests.protocol.sending_tools import LIMITS, FakeRow, FakeSite, site


class TestWindow:
    def test_nothing_is_sent_before_the_connection_stands(self) -> None:
        found = FakeSite(SiteWindow("dc1", LIMITS, 1), [FakeRow(1)])
        assert found.pull() == []
        found.window.connect(None)
        assert found.pull() == [1]

    def test_at_most_so_many_rows_in_flight(self) -> None:
        found = site(*[1] * 20)
        assert found.pull() == list(range(1, 9))
        assert found.pull() == []
        found.confirm(1, 2)
        assert found.pull() == [9, 10]

    def test_at_most_so_many_bytes_in_flight(self) -> None:
        found = site(*[1] * 20, limits=SiteLimits(100, 35, 30.0))
        assert found.pull() == [1, 2, 3]
        found.confirm(1)
        assert found.pull() == [4]

    def test_a_row_larger_than_the_window_goes_alone(self) -> None:
        found = site(1, 1, limits=SiteLimits(100, 35, 30.0))
        found.rows = [FakeRow(1, size=500), FakeRow(2)]
        assert found.pull() == [1]
        assert found.pull() == []
        found.confirm(1)
        assert found.pull() == [2]

    def test_the_brokers_own_limit_lowers_the_count_while_the_connection_lasts(self) -> None:
        found = site(*[1] * 20)
        found.window.disconnect(0.0, asked=False)
        found.window.connect(2)
        assert found.pull() == [1, 2]
        found.window.disconnect(0.0, asked=False)
        found.window.connect(None)
        assert len(found.pull()) == 8

    def test_a_blocked_site_is_sent_nothing(self) -> None:
        found = site(1, 1)
        found.window.block("low on memory", 0.0)
        assert found.pull() == []
        assert not found.window.up
        found.window.block(None, 0.0)
        assert found.pull() == [1, 2]

    def test_where_it_went_on_last_time(self) -> None:
        found = site(*[1] * 6, cursor=4)
        assert found.pull() == [4, 5, 6]


class TestConfirms:
    def test_out_of_order(self) -> None:
        found = site(*[1] * 5)
        found.pull()
        found.confirm(3, 1, 5)
        assert found.window.main.cursor == 2
        assert list(found.window.confirmed) == [(1, 1), (3, 3), (5, 5)]
        found.confirm(2, 4)
        assert found.window.main.cursor == 6

    def test_one_that_is_not_in_flight_means_nothing(self) -> None:
        found = site(1, 1)
        assert found.confirm(1) == []
        found.pull()
        assert len(found.confirm(1, 1, 99)) == 1
        assert found.window.bytes == 10

    def test_after_a_disconnect_the_unconfirmed_go_again_in_order(self) -> None:
        found = site(*[1] * 6)
        found.pull()
        found.confirm(1, 3)
        found.window.disconnect(0.0, asked=False)
        assert found.window.in_flight == {}
        assert found.window.bytes == 0
        assert found.pull() == []
        found.window.connect(None)
        assert found.pull() == [2, 4, 5, 6]


class TestTimeOuts:
    def test_only_what_is_in_flight_can_be_late(self) -> None:
        found = site(1, 1)
        assert found.window.next_deadline() == inf
        found.pull(now=5.0)
        assert found.window.next_deadline() == 35.0
        assert not found.window.is_overdue(34.9)
        assert found.window.is_overdue(35.0)
        found.confirm(1, 2)
        assert not found.window.is_overdue(1_000.0)

    def test_the_clock_of_what_is_sent_again_starts_anew(self) -> None:
        found = site(1)
        found.pull(now=0.0)
        found.window.disconnect(40.0, asked=True)
        found.window.connect(None)
        found.pull(now=50.0)
        assert not found.window.is_overdue(79.0)

    def test_no_confirm_is_late_while_the_site_reads_nothing(self) -> None:
        found = site(1)
        found.pull(now=0.0)
        found.window.block("low on memory", 1.0)
        assert not found.window.is_overdue(1_000.0)
        assert found.window.next_deadline() == inf
        found.window.block(None, 1_000.0)
        assert not found.window.is_overdue(1_029.0)
        assert found.window.is_overdue(1_030.0)

    def test_each_row_has_its_own_time(self) -> None:
        """Over a slow line a full window takes longer than the time-out, though every row gets there."""
        found = site(1, 1, 1, 1)
        found.pull(now=0.0)
        found.confirm(1, now=29.0)
        assert found.window.next_deadline() == 59.0
        found.confirm(2, now=58.0)
        assert not found.window.is_overdue(87.0)
        assert found.window.is_overdue(88.0)

    def test_one_row_that_others_overtake_is_late_all_the_same(self) -> None:
        found = site(1, 2, 2)
        found.pull(now=0.0)
        found.confirm(2, 3, now=29.0)
        assert found.window.is_overdue(30.0)

    def test_a_row_that_takes_longer_than_the_time_out_gets_there(self) -> None:
        found = site(1, 1)
        waits = []
        now = 0.0
        for _ in range(6):
            now = sent(found, now)
            due = found.window.next_deadline()
            assert due < inf
            waits.append(due - now)
            late(found, due)
            now = due
        assert waits == [30.0, 60.0, 120.0, 240.0, 240.0, 240.0]
        now = sent(found, now)
        found.confirm(1, now=now + 100.0)
        assert found.pull(now=now + 100.0) == [2]
        assert found.window.next_deadline() == now + 160.0
        found.confirm(2, now=now + 101.0)
        found.rows += [FakeRow(3)]
        found.pull(now=now + 300.0)
        assert found.window.next_deadline() == now + 330.0

    def test_the_next_rows_get_as_much_time_as_the_latest_confirm_took(self) -> None:
        found = site(1, 1, 1)
        found.pull(now=0.0)
        late(found, 30.0)
        found.pull(now=30.0)
        assert found.window.next_deadline() == 90.0
        found.confirm(1, now=75.0)
        assert found.window.next_deadline() == 135.0, "45 s are more than one timeout"
        found.confirm(2, 3, now=76.0)
        found.rows += [FakeRow(4)]
        found.pull(now=100.0)
        assert found.window.next_deadline() == 160.0
        found.confirm(4, now=101.0)
        found.rows += [FakeRow(5)]
        found.pull(now=200.0)
        assert found.window.next_deadline() == 230.0


def late(found: FakeSite, now: float) -> list[SendQueue]:
    """The oldest row is overdue, and the connection is made anew; returns the queues that are parked by it."""
    assert found.window.is_overdue(now)
    parked = found.window.give_up(now)
    found.window.disconnect(now, asked=True)
    found.window.connect(None)
    return parked


def sent(found: FakeSite, now: float) -> float:
    """When something is sent next."""
    while not found.pull(now=now):
        due = found.window.next_deadline()
        assert due < inf
        assert due > now
        now = due
    return now


def blocked_by_one() -> tuple[FakeSite, float]:
    """A site that has refused row 1 and confirmed row 2, and the time at which row 1 is retried."""
    found = site(1, 2)
    found.pull()
    found.window.refuse(1, "returned", now=0.0)
    found.confirm(2)
    return found, found.window.queues[1].retry_at


def pauses_of_the_first(
    found: FakeSite, now: float, seconds: float, count: int, fail: Callable[[float], object]
) -> list[float]:
    """How long row 1 is not retried after each of its trials, which hold up another row until `fail` ends them some
    seconds later, at the time that it is given."""
    pauses = []
    for _ in range(count):
        found.rows.append(FakeRow(len(found.rows) + 1, 2))
        assert found.pull(now=now) == [1, len(found.rows)]
        end = now + seconds
        fail(end)
        found.pull(now=end)
        found.confirm(len(found.rows), now=end)
        now = sent(found, end)
        pauses.append(now - end)
        found.window.disconnect(now, asked=True)
        found.window.connect(None)
    return pauses


class TestUnanswered:
    """P18: what a broker never answers holds up no other stream."""

    def test_a_row_that_later_ones_overtook_parks_its_stream_at_once(self) -> None:
        found = site(1, 2, 1)
        found.pull(now=0.0)
        found.rows.append(FakeRow(4, 2))
        found.pull(now=1.0)
        found.confirm(2, 4, now=2.0)
        [queue] = late(found, 30.0)
        assert (queue.stream_id, queue.state, queue.reason) == (1, QueueState.PARKED, UNANSWERED)
        found.rows.append(FakeRow(5, 2))
        assert found.pull(now=30.1) == [5]

    def test_where_nothing_was_answered_it_takes_two_connections(self) -> None:
        found = site(1, 2)
        found.pull(now=0.0)
        assert late(found, 30.0) == []
        assert found.pull(now=30.0) == [1, 2]
        assert [queue.stream_id for queue in late(found, 90.0)] == [1]

    @pytest.mark.parametrize("limits", [SiteLimits(1, 1_000, 30.0), SiteLimits(8, 1, 30.0)])
    def test_what_is_tried_again_takes_no_room(self, limits: SiteLimits) -> None:
        found = site(1, 2, 2, 2, limits=limits)
        found.pull(now=0.0)
        late(found, 30.0)
        assert found.pull(now=30.0) == [1]
        late(found, 90.0)
        assert found.pull(now=91.0) == [1, 2]
        found.confirm(2, now=92.0)
        assert found.pull(now=92.0) == [3]
        assert found.window.bytes == 10

    def test_once_the_site_answers_again_what_was_parked_in_its_silence_is_tried_at_once(self) -> None:
        found = site(1, 2)
        found.pull(now=0.0)
        late(found, 30.0)
        found.pull(now=30.0)
        late(found, 90.0)
        assert found.pull(now=90.0) == [2], "1 waits"
        found.confirm(2, now=90.1)
        assert found.pull(now=90.1) == [1]

    def test_one_that_is_late_again_while_others_are_answered_waits_longer_each_time(self) -> None:
        found = site(1, 2)
        found.pull(now=0.0)
        pauses = []
        now = 0.0
        for _ in range(5):
            found.rows.append(FakeRow(len(found.rows) + 1, 2))
            found.pull(now=now + 1.0)
            found.confirm(
                *(n for n, flight in found.window.in_flight.items() if flight.row.stream_id == 2),
                now=now + 2.0,
            )
            due = now + 1_000.0
            [queue] = late(found, due)
            pauses.append(queue.retry_at - due)
            now = queue.retry_at
            found.pull(now=now)
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0]

    def test_one_that_is_late_again_waits_longer_although_nothing_later_was_answered(self) -> None:
        found = site(1, 2)
        found.pull(now=0.0)
        late(found, 30.0)
        found.pull(now=30.0)
        late(found, 90.0)
        for retry_at, number in ((90.5, 2), (331.5, 3), (573.5, 4)):
            assert found.pull(now=retry_at) == [1, number]
            found.confirm(number, now=retry_at + 0.1)
            found.rows.append(FakeRow(number + 1, 2))
            late(found, retry_at + 240.0)

    def test_another_one_is_noticed_as_soon_however_long_the_first_is_tried_again(self) -> None:
        found = site(1)
        found.pull(now=0.0)
        found.rows.append(FakeRow(2, 2))
        found.pull(now=0.5)
        found.confirm(2, now=1.0)
        now = 0.0
        for _ in range(5):
            [queue] = late(found, now + 1_000.0)
            now = queue.retry_at
            assert found.pull(now=now) == [1]
        found.rows.append(FakeRow(3, 2))
        found.pull(now=now)
        found.confirm(3, now=now)
        found.rows += [FakeRow(4, 3), FakeRow(5, 2)]
        assert found.pull(now=now + 1.0) == [4, 5]
        found.confirm(5, now=now + 2.0)
        assert found.window.next_deadline() == now + 1.0 + 30.0

    def test_a_row_behind_a_trial_that_blocks_is_not_blamed(self) -> None:
        found, now = blocked_by_one()
        found.rows += [FakeRow(3, 2), FakeRow(4, 3)]
        assert found.pull(now=now) == [1, 3, 4]
        assert [queue.stream_id for queue in late(found, now + 30.0)] == [1]
        assert (found.window.queues[1].state, found.window.queues[1].reason) == (
            QueueState.PARKED,
            UNANSWERED,
        )
        assert found.pull(now=now + 30.0) == [3, 4], "the trial has to wait"
        assert not found.window.is_overdue(now + 59.9)
        assert found.window.is_overdue(now + 60.0), "no more patience than before"
        found.confirm(3, 4, now=now + 31.0)
        assert found.window.queues.keys() == {1}

    def test_it_is_if_the_site_has_answered_something_that_was_sent_after_the_trial(self) -> None:
        found, now = blocked_by_one()
        found.rows += [FakeRow(3, 2), FakeRow(4, 3)]
        found.pull(now=now)
        found.confirm(3, now=now + 1.0)
        assert late(found, now + 31.0) == [], "for the first time"
        assert [number for number in found.pull(now=now + 31.0) if number != 1] == [4]

    def test_an_answer_to_what_was_sent_before_the_trial_does_not_exonerate_it(self) -> None:
        found, now = blocked_by_one()
        found.rows.append(FakeRow(3, 2))
        found.pull(now=now - 0.1)
        assert found.pull(now=now) == [1]
        found.confirm(3, now=now + 0.1)
        found.rows.append(FakeRow(4, 2))
        assert found.pull(now=now + 0.2) == [4]
        assert [queue.stream_id for queue in late(found, now + 30.2)] == [1]

    def test_a_row_that_was_sent_before_the_trial_is_blamed_itself(self) -> None:
        found, now = blocked_by_one()
        found.rows.append(FakeRow(3, 2))
        found.pull(now=now - 0.1)
        assert found.pull(now=now) == [1]
        assert late(found, now + 29.9) == [], "for the first time"
        assert found.pull(now=now + 29.9) == [1, 3]
        assert found.window.next_deadline() == now + 89.9, "with more patience"

    def test_the_pause_is_in_proportion_to_the_time_that_the_trial_took_from_others(self) -> None:
        found, now = blocked_by_one()
        pauses = pauses_of_the_first(found, now, 30.0, 6, lambda end: late(found, end))
        assert pauses == pytest.approx([30.0, 60.0, 120.0, 240.0, 240.0, 240.0])

    def test_so_it_is_if_the_site_refuses_it_at_last(self) -> None:
        """RabbitMQ nacks what it could not pass to a queue for 65 s."""
        found, now = blocked_by_one()
        pauses = pauses_of_the_first(found, now, 29.0, 5, lambda end: found.window.refuse(1, "nacked", end))
        assert pauses == pytest.approx([29.0, 58.0, 116.0, 232.0, 232.0])

    def test_one_that_is_refused_soon_does_not_block(self) -> None:
        found, now = blocked_by_one()
        found.rows.append(FakeRow(3, 2))
        assert found.pull(now=now) == [1, 3]
        found.window.refuse(1, "returned", now + 0.1)
        assert sent(found, now + 0.1) == pytest.approx(now + 0.1 + 2 * PARK_MIN_S)

    def test_those_that_block_are_tried_one_at_a_time(self) -> None:
        found = site(1, 2, 3, limits=SiteLimits(8, 1_000, 0.5))
        found.pull()
        for number in (1, 2):
            found.window.refuse(number, "returned", now=0.0)
        found.confirm(3)
        found.rows.append(FakeRow(4, 3))
        assert found.pull(now=0.5) == [1, 2, 4]
        assert [queue.stream_id for queue in late(found, 1.0)] == [1]
        found.rows.append(FakeRow(5, 3))
        assert found.pull(now=1.0) == [2, 4, 5], "2 is not to blame"
        assert [queue.stream_id for queue in late(found, 1.5)] == [2]
        assert found.pull(now=1.5) == [4, 5]
        found.confirm(4, 5, now=1.6)
        assert sent(found, 1.6) == 2.0
        assert found.pull(now=2.6) == [], "it is time for 2, but 1 is being tried"
        assert found.window.in_flight.keys() == {1}
        found.confirm(1, now=2.7)
        assert found.pull(now=2.7) == [2]

    def test_what_was_parked_in_a_silence_is_tried_at_once_only_once(self) -> None:
        found = site(1, 2, limits=SiteLimits(1, 1_000, 30.0))
        found.pull(now=0.0)
        late(found, 30.0)
        found.pull(now=30.0)
        late(found, 90.0)
        assert found.pull(now=90.0) == [2]
        found.confirm(2, now=90.1)
        found.rows += [FakeRow(3, 2), FakeRow(4, 2)]
        assert found.pull(now=90.1) == [1, 3]
        [queue] = late(found, found.window.next_deadline())
        now = queue.retry_at - 0.5
        assert found.pull(now=now) == [3]
        found.confirm(3, now=now)
        assert found.pull(now=now) == [4], "1 waits its time"

    def test_what_is_removed_does_not_show_that_a_site_answers(self) -> None:
        found = site(1, 2)
        found.pull(now=0.0)
        found.window.give_up(30.0)
        found.window.discard(2, 31.0)
        assert not found.window.up

    @pytest.mark.parametrize("attempt", range(20))
    def test_whatever_the_limits_all_others_get_there(self, attempt: int, seeded: random.Random) -> None:
        rng = seeded
        limits = SiteLimits(rng.choice([1, 2, 8]), rng.choice([1, 25, 1_000]), rng.choice([0.5, 30.0]))
        dead = set(rng.sample(range(6), rng.randrange(1, 4)))
        found = site(*(rng.randrange(6) for _ in range(60)), limits=limits)
        most = rng.choice([None, 1, 3])
        found.window.disconnect(0.0, asked=True)
        found.window.connect(most)
        now = 0.0
        for _ in range(3_000):
            found.pull(now)
            answered = [n for n, flight in found.window.in_flight.items() if flight.row.stream_id not in dead]
            if answered:
                now += rng.random() * limits.confirm_timeout / 100
                found.confirm(rng.choice(answered), now=now)
                continue
            due = found.window.next_deadline()
            if due == inf:
                break
            now = max(now, due)
            if found.window.is_overdue(now):
                found.window.give_up(now)
                found.window.disconnect(now, asked=True)
                found.window.connect(most)
        alive = {row.id for row in found.rows if row.stream_id not in dead}
        assert {n for first, last in found.window.confirmed for n in range(first, last + 1)} == alive


class Line:
    """A connection whose broker confirms in order. Confirms take `latency` seconds, and a batch of a stream in `dead`
    gets none; with `blocks`, neither does anything behind it."""

    def __init__(self, latency: float, dead: set[int], blocks: bool) -> None:
        self.latency, self.dead, self.blocks = latency, dead, blocks
        self._sent: list[tuple[float, int, int]] = []

    def send(self, row: FakeRow, now: float) -> None:
        if row.stream_id not in self.dead or self.blocks:
            self._sent.append((now + self.latency, row.id, row.stream_id))

    def next(self) -> float:
        """When it confirms something next."""
        return self._sent[0][0] if self._sent and self._sent[0][2] not in self.dead else inf

    def confirmed(self) -> int:
        return self._sent.pop(0)[1]

    def drop(self) -> None:
        self._sent.clear()


def serve(found: FakeSite, line: Line, done: set[int], connecting: float = 0.0, now: float = 0.0) -> float:
    """Serve a site until rows `done` are confirmed; returns the time. Connecting takes a while."""
    connected_at = now
    missing = {number for number in done if number not in found.window.confirmed}
    while missing:
        if now >= connected_at and not found.window.connected:
            found.window.connect(None)
        while numbers := found.pull(now):
            for number in numbers:
                line.send(found.rows[number - 1], now)
        due = found.window.next_deadline() if found.window.connected else connected_at
        if line.next() <= due:
            now = max(now, line.next())
            number = line.confirmed()
            found.confirm(number, now=now)
            missing.discard(number)
            continue
        assert due < inf
        now = max(now, due)
        if found.window.connected and found.window.is_overdue(now):
            found.window.give_up(now)
            found.window.disconnect(now, asked=True)
            line.drop()
            connected_at = now + connecting
    return now


class TestShares:
    """P18: how much retries may cost others, and others a retry."""

    @pytest.mark.parametrize("attempt", range(20))
    def test_streams_that_block_a_site_take_a_bounded_share_of_the_time(
        self, attempt: int, seeded: random.Random
    ) -> None:
        rng = seeded
        timeout = rng.choice([0.5, 30.0])
        limits = SiteLimits(rng.choice([1, 2, 16]), rng.choice([1, 25, 1_000]), timeout)
        dead = set(range(rng.choice([1, 2, 5])))
        streams = [*dead, *(rng.randrange(8) for _ in range(500))]
        found = site(*streams, limits=limits)
        alive = {row.id for row in found.rows if row.stream_id not in dead}
        window = min(limits.batches, max(1, limits.bytes // 10))
        latency = 0.4 * timeout
        undisturbed = len(alive) / window * latency
        # Until the first stream is parked, it takes 1 + 2 timeouts. If the next one follows before anything was
        # answered, it takes 2 + 4, then 4 + 8; retries of those before it take as long. Then each is retried at once.
        noticing = len(dead) * 25 * timeout
        took = serve(found, Line(latency, dead, blocks=True), alive)
        assert took <= noticing + undisturbed * 2

    @pytest.mark.parametrize("attempt", range(20))
    def test_at_a_slow_site_a_retried_stream_gets_there(self, attempt: int, seeded: random.Random) -> None:
        rng = seeded
        timeout = rng.choice([0.5, 30.0])
        limits = SiteLimits(rng.choice([1, 2, 16]), rng.choice([1, 25, 1_000]), timeout)
        found = site(1, *(rng.randrange(2, 5) for _ in range(500)), limits=limits)
        line = Line(rng.choice([1.5, 3.0, 6.0]) * timeout, set(), blocks=True)
        if rng.random() < 0.5:
            found.pull()
            found.window.refuse(1, "returned", 0.0)
            found.window.disconnect(0.0, asked=True)
        took = serve(found, line, {1}, rng.choice([0.0, 0.1]) * timeout)
        assert took < 400 * timeout
        assert serve(found, line, {row.id for row in found.rows}, now=took) < 100_000 * timeout


class TestParking:
    def test_a_refused_stream_holds_up_no_other(self) -> None:
        found = site(1, 2, 1, 2, 1, 2)
        found.pull()
        found.window.refuse(1, "returned: no queue", now=0.0)
        found.confirm(2, 4, 6)
        assert found.window.main.cursor == 7
        assert found.window.queues[1].cursor == 1
        assert found.window.queues[1].reason == "returned: no queue"

    def test_it_is_tried_again_alone_and_the_rest_follows_in_order(self) -> None:
        found = site(1, 1, 1, 2)
        found.pull()
        for number in (1, 2, 3):
            found.window.refuse(number, "returned", now=0.0)
        found.confirm(4)
        assert found.pull(now=PARK_MIN_S * 0.9) == []
        late = found.window.queues[1].retry_at
        assert found.pull(now=late) == [1]
        assert found.pull(now=late) == []
        found.confirm(1)
        assert found.pull(now=late) == [2, 3]
        found.confirm(2, 3)
        found.pull(now=late)
        assert found.window.queues == {}

    def test_without_room_it_stays_apart_until_it_has_caught_up(self) -> None:
        found = site(1, 1, 2, 2, limits=SiteLimits(1, 1_000, 30.0))
        found.pull()
        found.window.refuse(1, "returned", now=0.0)
        assert found.pull(now=0.1) == [3], "which passes row 2, and takes all room"
        assert found.pull(now=PARK_MIN_S) == [1]
        found.confirm(1)
        assert found.pull(now=PARK_MIN_S) == [], "row 2 waits for room"
        found.confirm(3)
        assert found.pull(now=PARK_MIN_S) == [2]
        found.confirm(2)
        assert found.pull(now=PARK_MIN_S) == [4]
        assert found.window.queues == {}

    def test_the_pause_doubles_up_to_a_limit(self) -> None:
        found = site(1)
        found.pull()
        found.window.refuse(1, "nacked", now=0.0)
        queue, now, pauses = found.window.queues[1], 0.0, []
        for _ in range(12):
            pauses.append(queue.retry_at - now)
            now = queue.retry_at
            assert found.pull(now=now) == [1]
            found.window.refuse(1, "nacked", now=now)
        assert pauses[:4] == [PARK_MIN_S, 2 * PARK_MIN_S, 4 * PARK_MIN_S, 8 * PARK_MIN_S]
        assert pauses[-1] == PARK_MAX_S

    def test_what_was_in_flight_already_costs_no_longer_pause(self) -> None:
        found = site(*[1] * 8)
        found.pull()
        for number in range(1, 9):
            found.window.refuse(number, "nacked", now=0.0)
        assert found.window.queues[1].retry_at == PARK_MIN_S
        assert found.pull(now=PARK_MIN_S) == [1]

    def test_new_rows_of_a_parked_stream_wait_for_it(self) -> None:
        found = site(1)
        found.pull()
        found.window.refuse(1, "nacked", now=0.0)
        found.rows += [FakeRow(2, 1), FakeRow(3, 2)]
        assert found.pull(now=0.1) == [3]
        assert found.window.queues[1].cursor == 1

    def test_with_nothing_left_to_try_it_is_parked_no_longer(self) -> None:
        dc1 = site(1, 2)
        dc1.pull()
        dc1.window.refuse(1, "returned", 0.0)
        dc1.window.discard(1, 0.0)  # removed, as what expires is
        dc1.pull(PARK_MIN_S)
        assert not dc1.window.queues
        assert dc1.window.next_deadline() == 30.0  # only the confirm of row 2

    def test_it_stays_parked_over_a_disconnect(self) -> None:
        found = site(1, 2)
        found.pull()
        found.window.refuse(1, "nacked", now=0.0)
        found.confirm(2)
        found.window.disconnect(0.0, asked=False)
        found.window.connect(None)
        assert found.pull(now=0.1) == []
        assert found.pull(now=PARK_MIN_S) == [1]

    def test_a_restored_queue_is_tried_at_once(self) -> None:
        found = site(1, 2, 1, cursor=4)
        found.window.confirmed.remove(1, 1)
        found.window.confirmed.remove(3, 3)
        found.window.restore_queue(1, 1, 5, "returned")
        assert found.pull(now=0.0) == [1]
        found.confirm(1)
        assert found.pull() == [3]
        found.confirm(3)
        found.pull()
        assert found.window.queues == {}


class TestDroppedConnections:
    def drop(self, found: FakeSite, times: int) -> None:
        for _ in range(times):
            found.pull(now=0.0)
            found.window.disconnect(0.0, asked=False)
            found.window.connect(None)

    def test_after_three_drops_the_first_row_goes_alone(self) -> None:
        found = site(1, 2, 1)
        self.drop(found, DROPS)
        assert found.pull() == [1]
        found.confirm(1)
        assert found.pull() == [2, 3]

    def test_dropped_once_more_its_stream_is_parked(self) -> None:
        found = site(1, 2, 1)
        self.drop(found, DROPS + 1)
        assert found.window.queues[1].state is QueueState.PARKED
        assert found.window.queues[1].reason == "connection dropped"
        assert found.pull(now=0.1) == [2]

    def test_drops_over_different_rows_say_nothing(self) -> None:
        found = site(*[1] * 10)
        for number in range(1, 8):
            self.drop(found, 1)
            found.pull()
            found.confirm(number)
        assert found.window.queues == {}
        found.window.disconnect(0.0, asked=True)
        found.window.connect(None)
        assert found.pull() == [8, 9, 10], "no row is sent alone"

    def test_what_we_ended_ourselves_says_nothing(self) -> None:
        found = site(1, 2)
        for _ in range(10):
            found.pull()
            found.window.disconnect(0.0, asked=True)
            found.window.connect(None)
        assert found.pull() == [1, 2], "no row is sent alone"


@pytest.mark.parametrize("attempt", range(20))
def test_random_sites(attempt: int, seeded: random.Random) -> None:
    """Whatever a site does, in the end it has confirmed every row, and nothing is left in flight or parked."""
    rng = seeded
    found = site(*(rng.randrange(3) for _ in range(60)))
    taken: list[int] = []
    now = 0.0
    for _ in range(400):
        now += rng.random()
        found.pull(now)
        for number in [n for n in found.window.in_flight if rng.random() < 0.5]:
            if rng.random() < 0.15:
                found.window.refuse(number, "nacked", now)
            else:
                found.confirm(number)
                taken.append(number)
        if rng.random() < 0.05:
            found.window.disconnect(now, asked=rng.random() < 0.5)
            found.window.connect(rng.choice([None, 2]))
    for _ in range(200):
        now += PARK_MAX_S
        found.pull(now)
        for number in list(found.window.in_flight):
            found.confirm(number)
            taken.append(number)
    assert sorted(taken) == list(range(1, 61))
    assert list(found.window.confirmed) == [(1, 60)]
    assert found.window.main.cursor == 61
    assert found.window.bytes == 0
    assert found.window.queues == {}
