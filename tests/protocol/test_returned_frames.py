"""When a sender whose frames are returned is to connect elsewhere (S11)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.protocol.returned_frames import LEAST_S, MAX_ADDRESSES, PAUSE_S, WITHIN_S, ReturnedFrames

PEER, OTHER = "reliamsg:group:g", "reliamsg:group:h"


def rounds(frames: ReturnedFrames, times: Iterable[float], address: str = PEER) -> list[float]:
    """A frame is returned at each of these times, after the peer was heard. Returns those at which another connection
    is due."""
    due = []
    for now in times:
        frames.heard(address)
        if frames.returned(address, now):
            due.append(now)
    return due


def test_a_peer_that_is_away_is_no_reason() -> None:
    frames = ReturnedFrames()
    assert not any(frames.returned(PEER, float(now)) for now in range(100))
    frames.heard(PEER)  # the last that it said before it left
    assert not any(frames.returned(PEER, float(now)) for now in range(100, 200))


def test_one_that_is_heard_while_frames_are_returned_is_a_reason() -> None:
    frames = ReturnedFrames()
    frames.heard(PEER)
    assert not frames.any, "nothing was returned yet"
    assert not frames.returned(PEER, 0.0)
    assert frames.any
    assert rounds(frames, (0.1, 0.5, 1.0)) == [], "it may be leaving"
    assert rounds(frames, (LEAST_S,)) == [LEAST_S]
    assert not frames.any


def test_to_hear_others_is_not() -> None:
    frames = ReturnedFrames()
    assert rounds(frames, (0.0,)) == []
    for now in range(1, 60):
        frames.heard(OTHER)
        assert not frames.returned(PEER, float(now))


def test_pauses_double_and_start_again_after_a_long_time() -> None:
    frames = ReturnedFrames()
    due = rounds(frames, map(float, range(6_000)))
    pauses = [later - earlier for earlier, later in pairwise(due)]
    assert pauses[:4] == [pytest.approx(PAUSE_S[0] * 2**n, abs=LEAST_S + 1) for n in range(4)]
    assert pauses[4:] == [pytest.approx(PAUSE_S[1], abs=LEAST_S + 1)] * (len(pauses) - 4)
    calm = 6_000 + 3 * PAUSE_S[1]
    again = rounds(frames, (calm + n for n in range(200)))
    assert again[1] - again[0] == pytest.approx(PAUSE_S[0], abs=LEAST_S + 1)


def test_a_peer_that_restarts_every_now_and_then_is_not() -> None:
    frames = ReturnedFrames()
    assert rounds(frames, [n * (WITHIN_S / 2 + 1) for n in range(100)]) == []


@given(st.lists(st.tuples(st.sampled_from([PEER, OTHER]), st.booleans(), st.floats(0.0, 5.0)), max_size=200))
def test_no_two_within_a_minute_and_none_without_hearing_twice(steps: list[tuple[str, bool, float]]) -> None:
    frames, now, last = ReturnedFrames(), 0.0, float("-inf")
    heard = {PEER: 0, OTHER: 0}
    for address, returned, pause in steps:
        now += pause
        if not returned:
            heard[address] += 1
            frames.heard(address)
        elif frames.returned(address, now):
            assert now - last >= PAUSE_S[0]
            assert heard[address] >= 2
            last, heard = now, {PEER: 0, OTHER: 0}


def test_memory_is_bounded() -> None:
    frames = ReturnedFrames()
    for number in range(3 * MAX_ADDRESSES):
        frames.returned(f"reliamsg:group:{number}", 0.0)
    assert len(frames._addresses) == MAX_ADDRESSES
