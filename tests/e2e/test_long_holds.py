"""A gap holds its stream while ten times the inbox's size arrives behind it: real brokers continue with everything
else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reliamsg import Consumer, Site
from reliamsg.consumer.quarantine import HELD
from reliamsg.errors import GapHeld
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.message import Message, Stream
from reliamsg.store.inbox_view import summarize_inbox
from reliamsg.transport import factory
from reliamsg.transport.base import Binding
from tests.badinput.tools import journalled, take
from tests.consumer.test_hold_room import INBOX, LAST, PAD
from tests.consumer.tools import frame
from tests.e2e.tools import World
from tests.patience import wait_for
from tests.transport.tools import Sending, message, running

pytestmark = pytest.mark.integrations

GROUP = "billing"


class Sites:
    """A publisher: every frame is sent to each site, and has arrived when :meth:`send` returns."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.topic = world.topic
        self.world = world
        self._sent = 0
        self._senders = []
        for site in world.sites:
            events = Sending()
            sender = factory.open_sender(
                site, f"{world.topic}-sender", [Binding(world.topic, 0, GROUP)], events
            )
            self._senders.append((stack.enter_context(running(sender)), events))

    def send(self, producer: str, *numbers: int) -> None:
        self._sent += len(numbers)
        for sender, events in self._senders:
            events.queue += [
                message(
                    self._sent - len(numbers) + at,
                    self.topic,
                    frame(number, number, producer=producer, topic=self.topic, pad=PAD),
                )
                for at, number in enumerate(numbers, 1)
            ]
            sender.wake()
        wait_for(lambda: all(len(e.confirms) == self._sent for _, e in self._senders), "all is confirmed")


@pytest.fixture(params=["amqp", "mqtt", "mixed"])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    unique: str,
    rabbit: RabbitNode,
    shared_mosquitto: Mosquitto,
) -> Iterator[World]:
    urls = {"dc1": rabbit.url, "dc2": shared_mosquitto.url}
    if request.param != "mixed":
        urls = {"dc1": rabbit.url if request.param == "amqp" else shared_mosquitto.url}
    world = World(tmp_path, unique, [Site(name, url, prefetch=8) for name, url in urls.items()])
    yield world
    world.close()


class Application:
    """Takes all messages, and keeps the numbers of the held stream."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.got: list[int] = []

    def until(self, producer: str, number: int) -> None:
        """Take messages up to this one, and acknowledge them."""
        while True:
            (each,) = take(self.consumer, 1)
            self._note(each)
            if (each.producer, each.seq) == (producer, number):
                return

    def _note(self, each: Message) -> None:
        if each.producer == "held":
            self.got.append(each.seq)


@pytest.mark.parametrize("ends", ["filled", "accepted"])
def test_a_hold_of_ten_times_the_inbox_stops_nobody_and_ends_in_order(world: World, ends: str) -> None:
    errors: list[BaseException] = []
    consumer = world.consumer(
        on_gap="hold", gap_timeout=1.0, max_inbox_bytes=INBOX, on_error=errors.append, repair_delay=0.1
    )
    world.connected(consumer)
    held = Stream("held", world.topic)
    with ExitStack() as stack:
        sites = Sites(world, stack)
        application = Application(consumer)
        sites.send("held", 1, 5)
        application.until("held", 1)
        wait_for(lambda: consumer.status().streams[held].gap_held, "the gap holds its stream")
        for number in range(6, LAST + 1):
            sites.send("held", number)
            if number % 4 == 0:
                sites.send("other", number // 4 - 1)
                application.until("other", number // 4 - 1)
        assert application.got == [1]
        wait_for(lambda: _waits(world) > 5 * INBOX, "what waits is in the quarantine")
        assert summarize_inbox(world.directory / f"{GROUP}.inbox.db").held_bytes <= INBOX
        assert consumer.status().stalled == ()
        gap = next(error.gap for error in errors if isinstance(error, GapHeld))
        assert (gap.first, gap.last) == (2, 4)
        if ends == "filled":
            sites.send("held", 2, 3, 4)
        else:
            assert consumer.accept(gap)
        application.until("held", LAST)
    assert application.got == [1, *range(2 if ends == "filled" else 5, LAST + 1)]
    wait_for(lambda: _waits(world) == 0, "the quarantine is empty")
    world.close()
    declared = journalled(world.directory / f"{GROUP}.inbox.db", "declared")
    assert [(row.first, row.last) for row in declared] == ([] if ends == "filled" else [(2, 4)])


def _waits(world: World) -> int:
    """Bytes in the quarantine."""
    _, size = summarize_inbox(world.directory / f"{GROUP}.inbox.db").quarantined.get(HELD, (0, 0))
    return size
