"""A receiver whose window is full goes on reading: control frames are heard, and nothing is lost or out of order."""

from __future__ import annotations

import itertools

import pytest

from reliamsg.transport.mqtt import receive_window
from reliamsg.transport.mqtt.receive_window import ReceiveWindow
from reliamsg.wire.address import client_id, group_address
from tests.patience import wait_for
from tests.transport.mqtt_fixtures import broker, picky, version  # noqa: F401
from tests.transport.mqtt_picky import Picky
from tests.transport.mqtt_scripted import ScriptedBroker
from tests.transport.mqtt_tools import receiving, site

# The fixtures' names are arguments below.
# ruff: noqa: F811

GROUP = group_address("billing")
PREFETCH = 2


def test_control_frames_are_heard_behind_a_full_window(
    picky: Picky, broker: ScriptedBroker, version: str
) -> None:
    """The broker sends everything at once, whatever it was asked for, and control frames behind it."""
    picky.stored = [b"%d" % number for number in range(300)]
    with receiving(site(broker.url, mqtt_version=version, prefetch=PREFETCH)) as (receiver, got):
        receiver.listen([GROUP])
        wait_for(
            lambda: len(got.deliveries) == 300, "what is small is taken: a stream may wait for any of it"
        )
        for number in range(3):
            wait_for(lambda: picky.say(GROUP, b"said"), "subscribed")
            wait_for(lambda number=number: len(got.frames) > number, "heard")
        assert receiver.send_control(GROUP, b"own beacon")
        wait_for(lambda: (GROUP, b"own beacon") in got.frames, "heard")
        assert not picky.acknowledged
        got.transport = receiver
        receiver.acknowledge([delivery.token for delivery in got.deliveries])
        wait_for(lambda: picky.acknowledged == 300, "all are acknowledged")
        assert got.bodies == picky.stored
        assert picky.connects.count(client_id("billing")) == 1, "all of it was kept"


def test_what_does_not_fit_comes_again(
    picky: Picky, broker: ScriptedBroker, version: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Memory is bounded: the rest is dropped unacknowledged, and delivered again when there is room."""
    monkeypatch.setattr(receive_window, "HELD_BYTES", 20 * 1100)
    picky.stored = [b"%d" % number for number in range(100)]
    with receiving(site(broker.url, mqtt_version=version, prefetch=PREFETCH)) as (receiver, got):
        receiver.listen([GROUP])
        wait_for(lambda: len(got.deliveries) >= 20, "no more is taken")
        wait_for(lambda: picky.say(GROUP, b"behind it all") and got.frames, "heard", poll=0.02)
        assert "read again later" in caplog.text
        assert len(got.deliveries) == 22
        assert not got.down, "nothing is gained by a new connection while there is no room"
        given = 0

        def acknowledge_some() -> bool:
            nonlocal given
            fresh = got.deliveries[given : given + 3]
            given += len(fresh)
            receiver.acknowledge([delivery.token for delivery in fresh])
            return picky.acknowledged == 100

        wait_for(acknowledge_some, "all are acknowledged")
        assert len(got.down) >= 2
        assert set(got.down) == {"there is room again for messages that were not taken"}
        # What was not acknowledged at the end of a connection came again, and everything was in order.
        numbers = [int(body) for body in got.bodies]
        assert set(numbers) == set(range(100))
        assert all(b <= a + 1 for a, b in itertools.pairwise(numbers)), numbers
        assert caplog.text.count("read again later") == 1


def test_a_window_of_large_messages_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_window, "HELD_BYTES", 10_000)
    window = ReceiveWindow(3)
    for mid in (1, 2, 3):
        assert window.receive(mid, 50_000) == mid - 1
    assert window.receive(0) is None
    assert window.dropped == 1


def test_what_follows_a_dropped_message_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acknowledgement would come before that of the one that was dropped."""
    monkeypatch.setattr(receive_window, "HELD_BYTES", 10_000)
    window = ReceiveWindow(4)
    for mid in range(1, 6):
        assert window.receive(mid) == mid - 1
    assert window.receive(6, 9_000) is None
    assert window.receive(0) is None
    assert not window.has_room_again
    for number in range(3):
        window.acknowledge(number)
    assert window.release() == [1, 2, 3]
    assert window.bytes < 10_000
    assert window.receive(0) is None
    assert window.dropped == 3
    assert window.has_room_again, "half of the window is free"
