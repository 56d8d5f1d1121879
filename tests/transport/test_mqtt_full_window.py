"""A receiver whose window is full goes on reading: control frames are heard, and nothing is lost or out of order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from reliamsg.transport import mqtt_inflow
from reliamsg.transport.mqtt_inflow import Inflow
from reliamsg.transport.mqtt_packets import Publish
from reliamsg.wire.address import client_id, group_address
from tests.patience import wait_for
from tests.transport.mqtt_picky import Picky
from tests.transport.mqtt_scripted import ScriptedBroker, scripted
from tests.transport.mqtt_tools import receiving, site

GROUP = group_address("billing")
PREFETCH = 2
WINDOW = 4 * PREFETCH


@pytest.fixture
def picky() -> Picky:
    return Picky()


@pytest.fixture
def broker(picky: Picky) -> Iterator[ScriptedBroker]:
    with scripted(picky) as broker:
        yield broker


@pytest.fixture(params=["5", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_control_frames_are_heard_behind_a_full_window(
    picky: Picky, broker: ScriptedBroker, version: str
) -> None:
    """The broker sends everything at once, whatever it was asked for, and control frames behind it."""
    picky.stored = [b"%d" % number for number in range(300)]
    with receiving(site(broker.url, mqtt_version=version, prefetch=PREFETCH)) as (receiver, got):
        receiver.listen([GROUP])
        wait_for(lambda: len(got.deliveries) == WINDOW, "the window is full")
        for number in range(3):
            wait_for(lambda: picky.say(GROUP, b"said"), "subscribed")
            wait_for(lambda number=number: len(got.frames) > number, "heard")
        assert receiver.tell(GROUP, b"own beacon")
        wait_for(lambda: (GROUP, b"own beacon") in got.frames, "heard")
        assert len(got.deliveries) == WINDOW
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
    monkeypatch.setattr(mqtt_inflow, "OVERFLOW_BYTES", 20 * 1100)
    picky.stored = [b"%d" % number for number in range(100)]
    with receiving(site(broker.url, mqtt_version=version, prefetch=PREFETCH)) as (receiver, got):
        receiver.listen([GROUP])
        wait_for(lambda: len(got.deliveries) == WINDOW, "the window is full")
        wait_for(lambda: picky.say(GROUP, b"behind it all") and got.frames, "heard", poll=0.02)
        assert "read again later" in caplog.text
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


class TestInflow:
    @staticmethod
    def publish(number: int, size: int = 0) -> Publish:
        return Publish("orders", number, 1, False, False, bytes(size))

    def test_gives_no_more_than_the_window_in_order(self) -> None:
        inflow = Inflow(3)
        assert all(inflow.push(self.publish(number)) for number in range(1, 6))
        assert [publish.mid for publish in inflow.pull(1)] == [1, 2]
        assert inflow.pull(3) == []
        assert inflow.pull(4) == []
        assert [publish.mid for publish in inflow.pull(0)] == [3, 4, 5]
        assert not inflow.has_room_again(0), "nothing was dropped"

    def test_keeps_one_message_whatever_its_size(self) -> None:
        inflow = Inflow(1)
        assert inflow.push(self.publish(1, mqtt_inflow.OVERFLOW_BYTES + 1))
        assert not inflow.push(self.publish(2))
        assert [publish.mid for publish in inflow.pull(0)] == [1]

    def test_drops_all_that_follows_what_it_dropped(self) -> None:
        """A later message that was acknowledged would be acknowledged before the one that was dropped."""
        inflow = Inflow(4)
        assert inflow.push(self.publish(1, mqtt_inflow.OVERFLOW_BYTES - 2000))
        assert not inflow.push(self.publish(2, 5000))
        assert not inflow.push(self.publish(3))
        assert not inflow.has_room_again(0), "the first one waits"
        assert [publish.mid for publish in inflow.pull(0)] == [1]
        assert not inflow.push(self.publish(4))
        assert not inflow.has_room_again(3), (
            "half of the window is to be free, or it would begin again at once"
        )
        assert inflow.has_room_again(2)
        assert inflow.dropped == 3
