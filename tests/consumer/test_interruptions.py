"""Applications that are interrupted while they consume: by a signal handler that calls the consumer as well, or for
good by a KeyboardInterrupt. Whatever the point, nothing hangs afterwards, and each message is returned, once and in
order.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from reliamsg.consumer.api import Consumer
from reliamsg.message import Gap, Message, Stream
from reliamsg.runtime.wakeup import Uninterrupted
from reliamsg.testing import MemoryNetwork
from tests.children import run_child
from tests.consumer.tools import GROUP, TOPIC, send, until
from tests.interruptions import Interruption, interrupt, points

pytestmark = pytest.mark.integrations

HANG_S = 60.0


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1") as network:
        yield network


class Application:
    """Consumes in this thread. Messages come one by one, and are noted when they are returned."""

    def __init__(self, network: MemoryNetwork, path: Path, before: int = 0, **options: Any) -> None:
        """`before`: so many messages were sent before."""
        self.network = network
        self.consumer = Consumer(GROUP, network.sites, topics=[TOPIC], inbox=path, **options)
        self.got: list[Message] = []
        self.sent = self._before = before

    def send(self, count: int = 1) -> None:
        """Have messages there to be taken, all of one delivery."""
        send(self.network["dc1"], self.sent + 1, self.sent + count)
        self.sent += count
        until(
            lambda: self.consumer.status().sites["dc1"].received == self.sent - self._before, "they are there"
        )

    def take(self, message: Message | None) -> None:
        if message is not None:
            self.got.append(message)
            message.ack()

    def get(self) -> None:
        message = self.consumer.get(HANG_S)
        assert message is not None
        self.got.append(message)

    def drain(self) -> None:
        while len(self.got) < self.sent:
            self.take(self.consumer.get(HANG_S))

    def check(self, *, acknowledged: bool = True) -> None:
        """All came, in order, once, and none with the flag."""
        self.drain()
        assert [message.seq for message in self.got] == list(range(1, self.sent + 1))
        assert not any(message.redelivered for message in self.got)
        if acknowledged:
            for message in self.got:
                message.ack()
            until(lambda: self.position == self.sent + 1, "all is acknowledged")

    @property
    def position(self) -> int:
        return self.consumer.status().streams[Stream("p", TOPIC)].position

    def works_elsewhere(self) -> None:
        """Another thread is not held up by anything that was left behind."""
        done = threading.Event()

        def others() -> None:
            self.consumer.status()
            if self.got:
                self.got[-1].ack(durable=True)
            done.set()

        threading.Thread(target=others, daemon=True).start()
        assert done.wait(HANG_S), "another thread hangs"


@pytest.fixture
def application(network: MemoryNetwork, tmp_path: Path) -> Iterator[Application]:
    application = Application(network, tmp_path / "inbox.db")
    yield application
    application.consumer.close(HANG_S)


def iterate(application: Application) -> None:
    for message in application.consumer:
        application.got.append(message)
        return


def gather(application: Application) -> None:
    application.got += next(application.consumer.batches(3, 0.0))


@pytest.mark.parametrize("call", [Application.get, iterate, gather])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_was_taken_is_returned_by_the_next_call(
    application: Application, call: Callable[[Application], None], count: int
) -> None:
    number = 0

    def prepare() -> None:
        application.drain()
        application.send(count)

    for ended in points(lambda: call(application), interrupt, prepare=prepare):
        assert ended
        number += 1
        if number % 8 == 0:
            application.works_elsewhere()
    assert number > 10
    application.check()


def test_the_next_message_of_a_delivery(application: Application) -> None:
    """No call of the engine is needed for it."""
    application.send(300)
    application.get()
    assert sum(1 for _ in points(application.get, interrupt)) > 3
    application.check()


def test_a_call_that_finds_nothing(application: Application) -> None:
    number = 0
    for ended in islice(points(lambda: application.consumer.get(0.001), interrupt), 200):
        assert ended
        number += 1
        if number % 20 == 0:
            application.send()
            application.get()
    assert number > 20
    application.check()


CALLS: dict[str, Callable[[Application, Message], object]] = {
    "ack": lambda application, message: message.ack(),
    "durable": lambda application, message: message.ack(durable=True),
    "status": lambda application, message: application.consumer.status(),
    "accept": lambda application, message: application.consumer.accept(
        Gap(message.stream, 10, 1, 1, "expired")
    ),
    "dead_letters": lambda application, message: application.consumer.dead_letters(),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_consumer_goes_on(application: Application, case: str) -> None:
    number = 0
    current: list[Message] = []

    def prepare() -> None:
        application.send()
        application.get()
        current[:] = application.got[-1:]

    for ended in islice(
        points(lambda: CALLS[case](application, current[0]), interrupt, prepare=prepare), 300
    ):
        assert ended
        number += 1
        if number % 4 == 0:
            application.works_elsewhere()
    assert number > 0
    application.check()


@pytest.mark.parametrize("rejects", [False, True])
def test_messages_that_are_given_up_or_fail(network: MemoryNetwork, tmp_path: Path, rejects: bool) -> None:
    """An interrupted call has an effect, or has none."""
    application = Application(network, tmp_path / "inbox.db", max_deliveries=2)
    current: list[Message] = []

    def prepare() -> None:
        application.send()
        while True:
            application.get()
            if application.got[-1].seq == application.sent:
                break
            application.got[-1].ack()  # one that had failed
        current[:] = application.got[-1:]

    def fails() -> None:
        with suppress(ZeroDivisionError), current[0].process():
            raise ZeroDivisionError

    def rejected() -> None:
        current[0].reject("as tested")

    number = 0
    for _ in points(rejected if rejects else fails, interrupt, prepare=prepare):
        number += 1
        if number % 4 == 0:
            application.works_elsewhere()
        current[0].ack()
    current[0].ack()
    until(lambda: application.position == application.sent + 1, "all is settled")
    assert len(application.consumer.dead_letters()) <= number
    application.consumer.close(HANG_S)


def test_run_may_be_called_again(application: Application) -> None:
    handled: list[int] = []
    for _ in islice(
        points(
            lambda: application.consumer.run(lambda message: handled.append(message.seq), workers=2),
            interrupt,
            prepare=application.send,
        ),
        30,
    ):
        application.works_elsewhere()
    done = threading.Thread(
        target=application.consumer.run, args=(lambda message: handled.append(message.seq),), daemon=True
    )
    done.start()
    until(lambda: len(handled) == application.sent, "all are handled")
    assert handled == list(range(1, application.sent + 1))
    application.consumer.stop()
    done.join(HANG_S)
    assert not done.is_alive()


def interrupted_at(number: int, call: Callable[..., object]) -> bool:
    """Whether the call has so many points; it was interrupted there."""
    with suppress(KeyboardInterrupt), Interruption(number, interrupt) as interruption:
        call()
    return interruption.happened


def test_handlers_get_what_get_did_not_return(network: MemoryNetwork, tmp_path: Path) -> None:
    """``run()`` has it given out again, with the flag: the consumer counted it as given out."""
    sent, number, flagged, ends = 0, 0, 0, 0
    while True:
        application = Application(network, tmp_path / "inbox.db", sent)
        application.send(2)
        sent, stop = application.sent, application.consumer.stop
        handled: list[Message] = []
        if not interrupted_at(number, application.get):
            application.got[-1].ack()
            application.get()
            application.got[-1].ack()
            application.consumer.close(HANG_S)
            # A call that need not wait has fewer points: the last ones, when it has something, may not have come up.
            ends += 1
            if flagged or ends == 20:
                break
            number = 0
            continue

        def handle(
            message: Message, handled: list[Message] = handled, stop: Any = stop, last: int = sent
        ) -> None:
            handled.append(message)
            if message.seq == last:
                stop()

        application.consumer.run(handle)
        assert [message.seq for message in handled] == [sent - 1, sent]
        flagged += handled[0].redelivered
        application.consumer.close(HANG_S)
        number += 1
    assert flagged


def test_a_close_that_is_interrupted_goes_on(network: MemoryNetwork, tmp_path: Path) -> None:
    """Called again, it waits for the end; and the inbox was left as after a clean stop."""
    number = 0
    while True:
        application = Application(network, tmp_path / "inbox.db", number)
        application.send()
        application.take(application.consumer.get(HANG_S))
        assert application.got[0].seq == application.sent == number + 1
        assert not application.got[0].redelivered
        interrupted = interrupted_at(
            number, lambda application=application: application.consumer.close(HANG_S)
        )
        remaining = application.consumer.close(HANG_S)
        assert remaining.clean
        assert remaining.unacknowledged == 0
        if not interrupted:
            return
        number += 1


OUTER: dict[str, Callable[[Application], object]] = {
    "get": lambda application: application.take(application.consumer.get(HANG_S)),
    "ack": lambda application: application.got[-1].ack(),
    "durable": lambda application: application.got[-1].ack(durable=True),
    "status": lambda application: application.consumer.status(),
}
HANDLERS: dict[str, Callable[[Application], object]] = {
    "ack": lambda application: application.got[-1].ack(),
    "durable": lambda application: application.got[-1].ack(durable=True),
    "reject": lambda application: application.got[0].reject(),
    "status": lambda application: application.consumer.status(),
    "accept": lambda application: application.consumer.accept(Gap(Stream("p", TOPIC), 10, 1, 1, "expired")),
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("outer", OUTER)
def test_what_a_signal_handler_may_call(application: Application, outer: str, handler: str) -> None:
    """At every single instruction."""
    application.send()
    application.get()
    number = 0
    interruptions = points(
        lambda: OUTER[outer](application), lambda: HANDLERS[handler](application), True, application.send
    )
    for ended in islice(interruptions, 150):
        assert not ended
        number += 1
        if number % 30 == 0:
            application.works_elsewhere()
    assert number > 10
    application.check()


def test_stop_in_a_signal_handler(network: MemoryNetwork, tmp_path: Path) -> None:
    """Wherever it interrupts a call that waits, that returns."""
    number = 0
    while number < 150:
        with Consumer(GROUP, network.sites, topics=[TOPIC], inbox=tmp_path / "inbox.db") as consumer:
            with Interruption(number, consumer.stop, everywhere=True) as interruption:
                assert consumer.get(HANG_S if number % 2 else None) is None
            assert interruption.happened
        number += 7


def test_a_call_that_was_given_up_is_made_before_the_next() -> None:
    calls, made, go = Uninterrupted("calls"), [], threading.Event()

    def slow(number: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(HANG_S)
        made.append(number)
        return number

    def go_on_interrupted() -> None:
        go.set()
        interrupt()

    for number, ended in enumerate(points(lambda: calls.call(lambda: slow(-1)), go_on_interrupted)):
        assert ended
        assert calls.call(lambda: 7) == 7
        assert len(made) <= number + 1
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0)
    calls.end()
    assert calls.call(threading.current_thread) is threading.main_thread()


SIGNALS = """
import random, signal, sys, threading, time, faulthandler
from reliamsg import Consumer, Producer
from reliamsg.testing import MemoryNetwork

faulthandler.dump_traceback_later(90, exit=True)
rng, armed, count, got = random.Random(int(sys.argv[2])), [False], 0, []
with MemoryNetwork("a", "b") as net:
    producer = Producer("p", net.sites, outbox=sys.argv[1] + "/o.db", groups={"t": ["g"]})
    consumer = Consumer("g", net.sites, topics=["t"], inbox=sys.argv[1] + "/i.db")

    def handler(*_):
        if armed[0]:
            armed[0] = False
            consumer.status()
            if got:
                got[-1].ack()
            raise KeyboardInterrupt

    going = [True]

    def publish():
        while going[0]:
            producer.publish_many("t", [b"x"] * rng.choice([1, 3, 50]))
            time.sleep(0.001)

    thread = threading.Thread(target=publish)
    thread.start()
    signal.signal(signal.SIGALRM, handler)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 2e-3))
            while armed[0]:
                message = consumer.get(0.01)
                if message is not None:
                    got += [message]  # nothing interrupts the application before it has noted it
                    message.ack()
                    if rng.random() < 0.1:
                        consumer.status()
        except KeyboardInterrupt:
            count += 1
        armed[0] = False
        if got:
            got[-1].ack()
    signal.setitimer(signal.ITIMER_REAL, 0)
    going[0] = False
    thread.join()
    published = producer.publish("t", b"last").id.seq
    while not got or got[-1].seq < published:
        got.append(consumer.get(60))
        got[-1].ack(durable=got[-1].seq == published)
    clean = consumer.close(30).clean
    producer.close(30)
    print(count > 20, [message.seq for message in got] == list(range(1, published + 1)), clean)
"""


def test_real_signals(tmp_path: Path) -> None:
    found = run_child([sys.executable, "-c", SIGNALS, str(tmp_path), "1"], text=True)
    assert found.stdout.split() == ["True"] * 3, found.stdout + found.stderr
