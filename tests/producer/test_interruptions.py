"""Applications that are interrupted while they publish: by a signal handler that publishes as well, or for good by a
KeyboardInterrupt. Whatever the point, nothing hangs afterwards, no receipt names another message, and no room is lost.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from reliamsg import MessageId, Producer
from reliamsg.errors import OutboxFull, ReliamsgError
from reliamsg.producer import accumulator
from reliamsg.producer.commit import Content
from reliamsg.producer.receipt import Receipt
from reliamsg.runtime.wakeup import Waiters, Wakeup
from reliamsg.store.database import open_readonly
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.data import open_frame
from tests.children import run_child
from tests.interruptions import interrupt, points
from tests.producer.control_tools import Bench
from tests.producer.tools import producer

pytestmark = pytest.mark.integrations

HANG_S = 60.0


@pytest.fixture(autouse=True)
def locks() -> None:
    """Here handlers run, which may take any lock whatever they interrupt."""


class Application:
    """Publishes to an engine whose writer is stepped, on a thread of its own: a lock that is left taken shows."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        bench.network["dc1"].down()
        self.bench = bench
        self.engine = bench.open(hello_timeout=0, **options)
        self.given: list[tuple[Receipt, list[bytes]]] = []
        self.count = 0

    def bodies(self, count: int = 1) -> list[bytes]:
        self.count += count
        return [b"%d" % number for number in range(self.count - count, self.count)]

    def one(self, topic: str = "t") -> None:
        (body,) = self.bodies()
        self.given.append((self.engine.accumulator.accept_one(topic, body), [body]))

    def many(self) -> None:
        bodies = self.bodies(3)
        self.given.append(
            (self.engine.accumulator.accept(Content("t", bodies, None, {"a": "b"}, 20)), bodies)
        )

    def keyed(self) -> None:
        bodies = self.bodies()
        self.given.append((self.engine.accumulator.accept(Content("t", bodies, "k", None, 20)), bodies))

    def step(self) -> None:
        """Let the writer store everything."""
        thread = threading.Thread(target=self.bench.run, daemon=True)
        thread.start()
        thread.join(HANG_S)
        assert not thread.is_alive(), "the writer hangs"

    def check(self) -> None:
        """Every receipt names its messages; of those without a receipt some may be there; all are in order."""
        stored: dict[str, list[bytes]] = {}
        with closing(open_readonly(self.bench.path)) as db:
            for (frame,) in db.execute("SELECT frame FROM batch ORDER BY id"):
                found = open_frame(frame)
                stored.setdefault(found.envelope.topic, []).extend(found.records().bodies)
        for receipt, bodies in self.given:
            assert receipt.id is not None, "stored"
            start = receipt.id.seq - 1
            assert stored[receipt.id.topic][start : start + len(bodies)] == bodies
        assert self.engine.admission.reserved == 0
        assert self.engine.admission.stored == self.engine.retention.stored_bytes
        assert self.engine.pending() == sum(map(len, stored.values()))


def other(application: Application) -> None:
    application.one("u")


CALLS: dict[str, tuple[Callable[[Application], object], ...]] = {
    "the first": (Application.one,),
    "one more": (Application.one, Application.one),
    "another topic": (Application.one, other),
    "with a key": (Application.one, Application.keyed),
    "after one with a key": (Application.keyed, Application.one),
    "many": (Application.one, Application.many),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("small_batches", [False, True])
def test_a_call_that_is_broken_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, case: str, small_batches: bool
) -> None:
    if small_batches:
        monkeypatch.setattr(accumulator, "COMMIT_BYTES", 1)
    application = Application(bench)
    *before, call = CALLS[case]

    def broken() -> None:
        call(application)

    for first in before:
        first(application)
    count = 0
    for ended in points(broken, interrupt):
        assert ended
        count += 1
        application.one()
        application.many()
        if count % 4 == 0:
            application.step()
        for first in before:
            first(application)
    application.step()
    application.check()
    assert count > 5


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("handler", [Application.one, Application.many])
def test_a_handler_that_publishes(bench: Bench, case: str, handler: Callable[[Application], object]) -> None:
    """At every single instruction. What it publishes comes after what was published before, and before what comes
    next."""
    application = Application(bench)
    *before, call = CALLS[case]
    orders: list[tuple[int, int, int]] = []
    at = 0

    def prepare() -> None:
        nonlocal at
        for first in before:
            first(application)
        at = len(application.given)

    for ended in points(lambda: call(application), lambda: handler(application), True, prepare):
        assert not ended
        orders.append((at, len(application.given), len(application.given) + 1))
        application.one()
        if len(orders) % 40 == 0:
            application.step()
    application.step()
    application.check()
    places: list[tuple[str, int]] = []
    for receipt, _ in application.given:
        assert receipt.id is not None
        places.append((receipt.id.topic, receipt.id.seq))
    for start, middle, end in orders:
        earlier, both, later = (
            [number for topic, number in places[a:b] if topic == "t"]
            for a, b in ((0, start), (start, middle), (middle, end))
        )
        assert max(earlier, default=0) < min(both)
        assert max(both) < later[0]


def test_a_handler_that_publishes_and_then_breaks_the_call_off(bench: Bench) -> None:
    application = Application(bench)

    def handler() -> None:
        application.one()
        raise KeyboardInterrupt

    for ended in points(application.one, handler):
        assert ended
        application.one()
        application.step()
    application.step()
    application.check()


def test_room_that_is_asked_for_while_it_is_asked_for(bench: Bench) -> None:
    """However two calls lie in each other, both get room only where there is enough for both."""
    application = Application(bench, max_bytes=6_000)
    engine = application.engine
    accepted = [0, 0]

    def large() -> None:
        with suppress(OutboxFull):
            engine.accumulator.accept_one("t", bytes(2_500))
            accepted[0] += 2_500
        assert accepted[0] + engine.admission.stored <= 6_000

    for _ in points(large, large, everywhere=True):
        assert engine.admission.used <= 6_000
        application.step()
        assert engine.admission.used <= 6_000
        accepted = [0, max(accepted)]
        page = next(iter(engine.shared.streams.by_stream.values()))
        first = MessageId("p", engine._outbox.epoch, "t", 0, 1)
        engine.remove(first, first._replace(seq=page.chain[-1].last))
        application.step()
        assert engine.admission.used == 0
    assert accepted[1] == 5_000


@pytest.mark.parametrize("breaks_off", [False, True], ids=["once more", "broken off"])
@pytest.mark.parametrize("name", ["set", "wait", "notify_all", "wait for"])
def test_waking_while_waking(name: str, breaks_off: bool) -> None:
    """Whatever a thread does to wake another one, or to wait, a signal handler may do the same in the middle of it."""
    wakeup, waiters = Wakeup(), Waiters()
    call: Callable[[], object] = {
        "set": wakeup.set,
        "wait": lambda: wakeup.wait(0.0),
        "notify_all": waiters.notify_all,
        "wait for": lambda: waiters.wait(lambda: False, 0.0),
    }[name]
    done: list[bool] = []

    def handler() -> None:
        call()
        wakeup.set()
        waiters.notify_all()
        if breaks_off:
            interrupt()

    def everywhere() -> None:
        for ended in points(call, handler, everywhere=not breaks_off):
            wakeup.set()
            wakeup.wait(HANG_S)
            done.append(ended == breaks_off and not waiters.wait(lambda: False, 0.0) and not waiters.waiting)

    thread = threading.Thread(target=everywhere, daemon=True)
    thread.start()
    thread.join(HANG_S / 3)
    assert not thread.is_alive(), "it waits for a lock that it has itself"
    assert all(done)
    assert done or breaks_off, "there is nothing to interrupt"


def waits(one: Producer, receipt: Receipt) -> None:
    with suppress(ReliamsgError):
        receipt.wait(0.01)


WAITING: dict[str, Callable[[Producer, Receipt], object]] = {
    "publish": lambda one, receipt: one.publish("orders", b"x"),
    "publish_many": lambda one, receipt: one.publish_many("orders", [b"x", b"y"]),
    "wait": waits,
    "status": lambda one, receipt: one.status(),
    "pending": lambda one, receipt: one.pending(),
    "sites": lambda one, receipt: receipt.sites,
    "done": lambda one, receipt: receipt.done,
    "callback": lambda one, receipt: receipt.add_done_callback(lambda _: None),
    "add_group": lambda one, receipt: one.add_group("orders", "another"),
}


@pytest.mark.parametrize("case", WAITING)
def test_a_producer_goes_on(network: MemoryNetwork, path: Path, case: str) -> None:
    """With its threads: after every interruption the next calls work, from this thread and from another."""
    network["dc1"].down()
    one = producer(network, path)
    receipt = one.publish("orders", b"first")
    interrupted = islice(points(lambda: WAITING[case](one, receipt), interrupt), 400)
    for number, _ in enumerate(interrupted):
        if number % 4 == 0:
            done = threading.Event()

            def others(done: threading.Event = done) -> None:
                one.publish("orders", b"x")
                one.status()
                done.set()

            threading.Thread(target=others, daemon=True).start()
            assert done.wait(HANG_S), "another thread hangs"
        assert not one.publish("orders", b"next").done
    network["dc1"].up()
    one.flush(HANG_S)
    assert receipt.done
    assert one.close(HANG_S).messages == 0


@pytest.mark.parametrize("name", ["publish_nowait", "status", "pending"])
@pytest.mark.parametrize("inside", ["publish", "status", "wait", "flush"])
def test_what_a_signal_handler_may_call(network: MemoryNetwork, path: Path, name: str, inside: str) -> None:
    one = producer(network, path)
    receipt = one.publish("orders", b"first")
    receipt.wait(HANG_S)
    calls: dict[str, Callable[[], object]] = {
        "publish_nowait": lambda: one.publish_nowait("orders", b"handler"),
        "status": one.status,
        "pending": one.pending,
    }
    outer: dict[str, Callable[[], object]] = {
        "publish": lambda: one.publish_nowait("orders", b"x"),
        "status": one.status,
        "wait": lambda: receipt.wait(HANG_S),
        "flush": lambda: one.flush(HANG_S),
    }
    for _ in islice(points(outer[inside], calls[name], everywhere=True), 400):
        pass  # a flush has ever more to wait for, and would never end
    one.flush(HANG_S)
    assert one.close(HANG_S).messages == 0


SIGNALS = """
import random, signal, sys, time, faulthandler
from reliamsg import Producer
from reliamsg.testing import MemoryNetwork

faulthandler.dump_traceback_later(60, exit=True)
rng, armed, count = random.Random(int(sys.argv[2])), [False], 0
with MemoryNetwork("a", "b") as net:
    producer = Producer("p", net.sites, outbox=sys.argv[1], groups={"t": ["g"]}, hello_timeout=0)

    def handler(*_):
        if armed[0]:
            armed[0] = False
            kept.append((b"h", producer.publish_nowait("t", b"h")))
            producer.status()
            producer.pending()
            raise KeyboardInterrupt

    kept = []
    signal.signal(signal.SIGALRM, handler)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 2e-4))
            while armed[0]:
                body = b"%d" % len(kept)
                kept.append((body, producer.publish_nowait("t", body)))
                if rng.random() < 0.01:
                    kept.append((body, producer.publish("t", body)))
                    producer.status()
        except KeyboardInterrupt:
            count += 1
        armed[0] = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    producer.flush(60)
    producer.close()
    from contextlib import closing
    from reliamsg.store.database import open_readonly
    from reliamsg.wire.data import open_frame
    bodies = {}
    with closing(open_readonly(sys.argv[1])) as db:
        for seq, frame in db.execute("SELECT seq, frame FROM batch"):
            bodies.update(enumerate(open_frame(frame).records().bodies, seq))
    wrong = [r for body, r in kept if r.id is None or bodies.get(r.id.seq, body) != body]
    print(count > 20, len(wrong))
"""


def test_real_signals(tmp_path: Path) -> None:
    found = run_child([sys.executable, "-c", SIGNALS, str(tmp_path / "o.db"), "1"], text=True)
    assert found.stdout.split() == ["True", "0"], found.stderr
