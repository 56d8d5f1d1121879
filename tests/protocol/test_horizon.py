"""Epochs far ahead: who is believed, what a forger can raise, and that clocks which are wrong lose nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliamsg.message import Prev, Stream
from reliamsg.protocol.horizon import FAR_MS, Horizon
from reliamsg.protocol.receiver.challenges import MAX_DUE, MAX_STREAMS, MAX_TRIES, Challenges
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.stream import Arrival
from tests.protocol.status_tools import STREAM, Group, Teller

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000
FAR = NOW_MS + FAR_MS + 1


class Clocked(Group):
    """A group with a wall clock."""

    wall_ms = NOW_MS
    kept: list[tuple[int, int, Prev | None, int, int]]

    def at(self, wall_ms: int) -> Clocked:
        self.wall_ms, self.kept = wall_ms, []
        return self

    def take(self, epoch: int, first: int, last: int, prev: Prev | None = None, ts_ms: int = 0) -> Arrival:
        arrival = self.core.receive(
            Incoming(
                "dc1", self.stream, epoch, epoch * 7, prev, first, last, (epoch, first), ts_us=ts_ms * 1000
            ),
            self.now,
            self.wall_ms * 1000,
        )
        if arrival.far:
            self.kept.append((epoch, epoch * 7, prev, first, last))
        self.work()
        return arrival

    def told(self, teller: Teller, late: bool = False) -> str:  # type: ignore[override]
        said = self.core.announce("dc1", replace(teller.status(), late=late), self.now, self.wall_ms * 1000)
        self.work()
        return said

    def replay(self) -> None:
        """What is in quarantine is taken in, as far as it is believed now."""
        for stream, limit in self.core.believed():
            assert stream == self.stream
            kept, self.kept = self.kept, []
            for one in kept:
                if one[0] > limit:
                    self.kept.append(one)
                else:
                    self.arrive("dc1", *one)


def opened(epoch: int, count: int = 5) -> Teller:
    teller = Teller()
    teller.open(epoch)
    teller.publish(count)
    return teller


@pytest.mark.parametrize("off", [-DAY_MS, 0, DAY_MS, FAR_MS])
def test_clocks_that_are_a_day_off_need_nobodys_word(off: int) -> None:
    group = Clocked().at(NOW_MS)
    assert not group.take(NOW_MS + off, 1, 5).far
    assert len(group.got) == 5
    group = Clocked().at(NOW_MS - off)
    assert not group.take(NOW_MS, 1, 5).far


def test_an_epoch_far_ahead_leaves_no_trace_and_has_its_producer_asked() -> None:
    group = Clocked().at(NOW_MS)
    group.take(NOW_MS, 1, 3)
    before = group.state.epochs.position, dict(group.state.epochs.live)
    assert group.take(FAR, 1, 1, Prev(NOW_MS, NOW_MS * 7, 3)).far
    assert (group.state.epochs.position, dict(group.state.epochs.live)) == before
    assert group.core.challenges.due(group.now) == [STREAM]
    other = group.core.receive(
        Incoming("dc1", Stream("made-up", "orders"), FAR, 1, None, 1, 1, 1), group.now, NOW_MS * 1000
    )
    assert other.far
    assert len(group.core.streams) == 1


def test_no_number_of_forgeries_raises_the_horizon_without_keys() -> None:
    group = Clocked().at(NOW_MS)
    teller = opened(NOW_MS)
    group.take(NOW_MS, 1, 5)
    for step in range(
        1, 200
    ):  # each is as far ahead as is believed, and says that it was published even later
        group.take(NOW_MS + FAR_MS - 200 + step, 1, 1, ts_ms=NOW_MS + step * FAR_MS)
        group.told(opened(NOW_MS + FAR_MS - 200 + step), late=True)
    assert group.take(FAR, 1, 1).far
    assert group.told(opened(FAR), late=True) == "far-epoch"
    assert group.core.horizon.limit() == NOW_MS + FAR_MS
    assert not group.core.adopt(STREAM, (FAR, 1), (FAR, 1), 1, group.now)
    assert teller.epochs


def test_with_keys_accepted_epochs_and_timestamps_raise_it() -> None:
    group = Clocked(signed=True).at(0)
    assert group.take(DAY_MS, 1, 5, ts_ms=30 * DAY_MS).far is False
    assert not group.take(32 * DAY_MS, 1, 1).far
    assert group.take(35 * DAY_MS, 1, 1).far


@pytest.mark.parametrize("signed", [True, False])
def test_a_group_that_boots_in_1970_loses_nothing(signed: bool) -> None:
    """It knows nothing at all. What arrives first waits for its producer's answer, and is handed out in order."""
    teller, group = opened(NOW_MS, 20), Clocked(signed=signed).at(0)
    for first in (11, 1):
        assert group.take(NOW_MS, first, first + 9).far
    assert group.told(teller, late=True) == "far-epoch"
    assert group.got == []
    assert group.core.challenges.due(group.now) == [STREAM]
    assert group.told(teller) == ""
    group.replay()
    group.wait(2.0, teller)
    assert group.got == [(NOW_MS, n) for n in range(1, 21)]
    # The producer goes on, and is opened again an hour later: nobody has to be asked.
    assert not group.take(NOW_MS, 21, 25).far
    assert not group.take(NOW_MS + 3_600_000, 1, 5, Prev(NOW_MS, NOW_MS * 7, 25)).far
    assert group.got[-1] == (NOW_MS + 3_600_000, 5)
    assert group.flagged == set()


def test_what_nobody_answers_for_is_kept_until_the_clock_is_right() -> None:
    group = Clocked().at(0)
    group.take(NOW_MS, 1, 5)
    group.replay()
    assert (group.got, len(group.kept)) == ([], 1)
    group.core.horizon.look(NOW_MS * 1000)
    group.replay()
    assert [seq for _, seq in group.got] == [1, 2, 3, 4, 5]


def test_an_operator_vouches_and_what_lies_beyond_waits_on() -> None:
    group = Clocked().at(NOW_MS)
    group.take(FAR, 1, 5)
    group.take(10 * FAR, 1, 5)
    assert group.core.vouch(STREAM, FAR)
    group.replay()
    assert group.got == [(FAR, n) for n in range(1, 6)]
    assert [one[0] for one in group.kept] == [10 * FAR]


def test_the_word_given_for_one_stream_holds_for_no_other() -> None:
    group = Clocked().at(NOW_MS)
    group.core.vouch(STREAM, FAR)
    arrival = group.core.receive(
        Incoming("dc1", Stream("other", "orders"), FAR, 1, None, 1, 1, 1), group.now, NOW_MS * 1000
    )
    assert arrival.far


def test_a_clock_that_is_set_back_lowers_nothing() -> None:
    horizon = Horizon(NOW_MS * 1000)
    horizon.look(0)
    assert not horizon.is_far(NOW_MS + FAR_MS)
    assert horizon.is_far(FAR)
    assert not horizon.is_far(FAR, vouched=NOW_MS + 1)


def test_an_epoch_that_was_entered_is_never_far_again() -> None:
    teller, group = opened(FAR), Clocked().at(NOW_MS)
    group.told(teller)
    group.take(FAR, 1, 5)
    group.wait(2.0, teller)
    assert group.state.vouched == FAR
    state = group.state
    state.vouched = 0
    assert not group.take(FAR, 6, 7).far
    assert not group.take(FAR - 1, 1, 1).far


def test_a_stream_is_asked_about_with_backoff_and_then_no_more() -> None:
    asked = Challenges()
    asked.want(Stream("", "orders"), 0.0)
    assert asked.deadline() is None
    asked.want(STREAM, 0.0)
    times = []
    while (at := asked.deadline()) is not None:
        assert asked.due(at - 0.001) == []
        assert asked.due(at) == [STREAM]
        times.append(at)
    assert times[:4] == [0.0, 1.0, 3.0, 7.0]
    assert len(times) == MAX_TRIES
    asked.want(STREAM, 500.0)
    asked.want(STREAM, 501.0)
    assert asked.due(500.0) == [STREAM]
    asked.answered(STREAM)
    assert asked.deadline() is None


def test_made_up_streams_cost_bounded_requests() -> None:
    asked = Challenges()
    for number in range(10 * MAX_STREAMS):
        asked.want(Stream(f"p{number}", "orders"), 0.0)
    assert len(asked.due(0.0)) == MAX_DUE
    count = sum(len(asked.due(at / 10)) for at in range(1, 10_000))
    assert count <= MAX_STREAMS * MAX_TRIES


@pytest.mark.parametrize("how", ["answered", "operator", "clock"])
def test_where_another_inbox_stopped_in_a_far_epoch_counts_once_the_epoch_is_believed(how: str) -> None:
    teller, group = opened(NOW_MS, 20), Clocked().at(0)
    assert not group.core.adopt(STREAM, (NOW_MS, NOW_MS * 7), (NOW_MS, 11), 16, group.now)
    assert STREAM not in group.core.streams
    group.core.succeed({})
    assert group.take(NOW_MS, 1, 10).far
    assert group.take(NOW_MS, 11, 20).far
    if how == "answered":
        assert group.told(teller) == ""
    elif how == "operator":
        assert group.core.vouch(STREAM, NOW_MS)
    else:
        group.wall_ms = NOW_MS
        group.core.horizon.look(NOW_MS * 1000)
    group.replay()
    group.wait(2.0, teller)
    assert group.got == [(NOW_MS, n) for n in range(11, 21)]
    assert {(NOW_MS, n) for n in range(11, 16)} <= group.flagged
    assert [n for n in group.notes if n.kind in ("before_join", "declared")] == []


def test_made_up_words_of_other_inboxes_about_far_epochs_change_nothing() -> None:
    group = Clocked().at(NOW_MS)
    group.take(NOW_MS, 1, 5)
    before = group.state.epochs.position
    for n in range(20_000):
        group.core.adopt(Stream(f"p{n}", "orders"), (FAR, 1), (FAR, 5), 9, group.now)
    assert not group.core.adopt(STREAM, (FAR, 1), (FAR, 5), 9, group.now)
    group.take(NOW_MS, 6, 10)
    assert (group.state.epochs.position, list(group.core.streams)) == ((NOW_MS, 11), [STREAM])
    assert before == (NOW_MS, 6)
