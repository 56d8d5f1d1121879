"""The public consumer, with its threads, against sites in memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Gap
from reliamsg.consumer.api import Consumer
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    DeadLetterHalt,
    ForkedError,
    GapError,
    GroupBusy,
    InboxLocked,
    InboxWriteError,
)
from reliamsg.message import Message
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Delivery
from tests.consumer.tools import GROUP, TOPIC, body_of, send, until
from tests.patience import STALL_S


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


class Opener:
    """Opens consumers of one inbox, and closes them after the test."""

    def __init__(self, path: Path, network: MemoryNetwork) -> None:
        self.path = path
        self.network = network
        self.opened: list[Consumer] = []

    def __call__(self, **options: Any) -> Consumer:
        options = {"topics": [TOPIC], "inbox": self.path, **options}
        consumer = Consumer(GROUP, self.network.sites, **options)
        self.opened.append(consumer)
        until(lambda: all(s.state == "connected" for s in consumer.status().sites.values()), "connected")
        return consumer


@pytest.fixture
def opener(tmp_path: Path, network: MemoryNetwork) -> Iterator[Opener]:
    opener = Opener(tmp_path / "inbox.db", network)
    yield opener
    for consumer in opener.opened:
        consumer.close(5)


def both(network: MemoryNetwork, first: int, last: int, **options: Any) -> None:
    for broker in network.brokers.values():
        send(broker, first, last, **options)


def in_thread(call: Any, *args: Any, **options: Any) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def target() -> None:
        try:
            call(*args, **options)
        except BaseException as error:  # noqa: BLE001  (looked at by the test)
            raised.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread, raised


def test_run_handles_every_message_once_in_order(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    got: dict[str, list[int]] = {"p": [], "q": [], "r": []}

    def handle(message: Message) -> None:
        got[message.producer].append(message.seq)
        assert message.body == body_of(message.epoch, message.seq)
        if sum(map(len, got.values())) == 3_000:
            consumer.stop()

    thread, raised = in_thread(consumer.run, handle, workers=3)
    for first in range(1, 1001, 100):
        for producer in got:
            both(network, first, first + 99, producer=producer)
    thread.join(60)
    assert not thread.is_alive()
    assert raised == []
    assert all(numbers == list(range(1, 1001)) for numbers in got.values())
    left = consumer.close()
    assert left.clean
    assert left.held == left.unacknowledged == 0
    until(lambda: sum(broker.queued() for broker in network.brokers.values()) == 0, "acknowledged")


def test_iteration_and_process(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    both(network, 1, 10)
    seen: list[tuple[int, bool]] = []
    failed = False
    while len(seen) < 11:
        try:
            for message in consumer:
                with message.process():
                    seen.append((message.seq, message.redelivered))
                    if message.seq == 4 and not failed:
                        failed = True
                        raise ValueError("once")
                if message.seq == 10:
                    break
        except ValueError:
            continue
    assert seen == [(n, False) for n in (1, 2, 3, 4)] + [(4, True)] + [(n, False) for n in range(5, 11)]
    assert consumer.get(0) is None


def test_get_waits_and_times_out(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    began = time.monotonic()
    assert consumer.get(0.2) is None
    assert 0.15 < time.monotonic() - began < STALL_S
    timer = threading.Timer(0.1, both, (network, 1, 1))
    timer.start()
    message = consumer.get(60)
    assert message is not None
    message.ack(durable=True)
    timer.join()
    assert consumer.status().streams[message.stream].position == 2


def test_batches(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    both(network, 1, 25)
    lists: list[list[int]] = []
    for messages in consumer.batches(10, 0.3):
        lists.append([m.seq for m in messages])
        for message in messages:
            message.ack()
        if sum(map(len, lists)) == 25:
            break
    assert lists == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]


def test_what_an_interrupted_call_had_taken_comes_behind_a_message_of_it_that_fails(
    opener: Opener, network: MemoryNetwork
) -> None:
    consumer = opener()
    send(network["dc1"], 1, 5)
    assert consumer._some(consumer._given, 3, 60)  # of a list, whose gathering is interrupted here
    first = consumer.get(60)
    assert first is not None
    with pytest.raises(ZeroDivisionError), first.process():
        raise ZeroDivisionError
    found = []
    for _ in range(5):
        message = consumer.get(60)
        assert message is not None
        message.ack()
        found.append((message.seq, message.redelivered))
    assert found == [(1, True), (2, True), (3, True), (4, False), (5, False)]


def test_run_with_batches_and_a_failing_one(opener: Opener, network: MemoryNetwork) -> None:
    errors: list[BaseException] = []
    consumer = opener(on_error=errors.append)
    for n in range(1, 21):
        both(network, n, n)
    until(
        lambda: consumer.status().streams and next(iter(consumer.status().streams.values())).held == 20,
        "held",
    )
    calls: list[list[int]] = []

    def handle(messages: list[Message]) -> None:
        calls.append([m.seq for m in messages])
        if len(calls) == 1:
            raise RuntimeError("the first time")
        if messages[-1].seq == 20:
            consumer.stop()

    consumer.run(handle, batch=8)
    assert calls[0] == list(range(1, 9))
    assert calls[1:9] == [[n] for n in range(1, 9)]
    assert [n for call in calls[9:] for n in call] == list(range(9, 21))
    assert max(map(len, calls)) == 8
    until(lambda: len(errors) == 1, "the handler's error is reported")


def test_poison_goes_to_the_dead_letters_and_can_be_replayed(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener(max_deliveries=2)
    both(network, 1, 3)
    order: list[tuple[int, bool]] = []
    healed = False

    def handle(message: Message) -> None:
        order.append((message.seq, message.replayed))
        if message.seq == 2 and not healed:
            raise RuntimeError("poison")
        if message.seq == 3 or message.replayed:
            done.set()

    done = threading.Event()
    thread, raised = in_thread(consumer.run, handle)
    assert done.wait(60)
    (letter,) = consumer.dead_letters()
    assert (letter.seq, letter.attempts) == (2, 2)
    healed = True
    done.clear()
    consumer.replay(letter.id)
    assert done.wait(60)
    until(lambda: consumer.dead_letters() == [], "revived")
    consumer.stop()
    thread.join(60)
    assert raised == []
    assert order == [(1, False), (2, False), (2, False), (3, False), (2, True)]


def test_reject_needs_no_further_delivery(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    both(network, 1, 2)
    first = consumer.get(60)
    assert first is not None
    first.reject("not ours")
    second = consumer.get(60)
    assert second is not None
    second.ack()
    (letter,) = consumer.dead_letters()
    assert (letter.seq, letter.reason) == (1, "not ours")
    with pytest.raises(ConfigError):
        consumer.replay(letter.id + 1)


def test_halt_on_dead_letter(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener(max_deliveries=2, on_dead_letter="halt")
    both(network, 1, 3)

    def handle(message: Message) -> None:
        raise RuntimeError("never")

    with pytest.raises(DeadLetterHalt, match="failed 2 times"):
        consumer.run(handle)
    consumer.close()
    again = opener()
    message = again.get(60)
    assert message is not None
    assert message.seq == 1
    assert message.redelivered


def test_a_gap_is_raised_and_accepted(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener(gap_timeout=0.3, on_gap="raise")
    both(network, 1, 2)
    both(network, 5, 6)
    got: list[int] = []

    def handle(message: Message) -> None:
        got.append(message.seq)
        if message.seq == 6:
            consumer.stop()

    with pytest.raises(GapError) as caught:
        consumer.run(handle)
    assert (caught.value.gap.first, caught.value.gap.last) == (3, 4)
    with pytest.raises(GapError):
        consumer.get(60)
    assert consumer.accept(caught.value.gap)
    assert not consumer.accept(caught.value.gap)
    consumer.run(handle)
    assert got == [1, 2, 5, 6]


def test_on_gap_decides_and_late_messages_are_shown(opener: Opener, network: MemoryNetwork) -> None:
    asked: list[str] = []
    late: list[int] = []

    def decide(gap: Gap) -> str:
        asked.append(str(gap))
        return "skip" if len(asked) > 1 else "wait"

    consumer = opener(
        gap_timeout=0.2,
        on_gap=decide,
        on_late=lambda message: late.append(message.seq),
    )
    both(network, 1, 2)
    both(network, 5, 6)
    got: list[int] = []
    thread, raised = in_thread(consumer.run, lambda m: got.append(m.seq))
    until(lambda: got == [1, 2, 5, 6], "the gap is skipped")
    assert len(asked) == 2
    both(network, 3, 4)
    until(lambda: late == [3, 4], "late")
    both(network, 7, 8)
    until(lambda: got == [1, 2, 5, 6, 7, 8], "live traffic")
    consumer.stop()
    thread.join(60)
    assert raised == []


def test_a_raising_handler_holds_up_no_other_stream(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener(max_deliveries=1_000)
    got: list[int] = []

    def handle(message: Message) -> None:
        if message.producer == "bad":
            raise RuntimeError("always")
        got.append(message.seq)

    both(network, 1, 100, producer="bad")
    for first in range(1, 2001, 100):
        both(network, first, first + 99, producer="good")
    thread, _ = in_thread(consumer.run, handle, workers=2)
    until(lambda: got == list(range(1, 2001)), "the other stream")
    consumer.stop()
    thread.join(60)


def test_a_blocked_handler_exhausts_no_prefetch_window(tmp_path: Path) -> None:
    with MemoryNetwork("dc1") as network:
        site = replace(network.sites[0], prefetch=4)
        release = threading.Event()
        got: list[int] = []

        def handle(message: Message) -> None:
            if message.producer == "slow":
                release.wait(60)
            else:
                got.append(message.seq)

        consumer = Consumer(GROUP, [site], topics=[TOPIC], inbox=tmp_path / "i.db")
        thread, _ = in_thread(consumer.run, handle, workers=2)
        until(lambda: consumer.status().sites["dc1"].state == "connected", "connected")
        for n in range(1, 101):
            send(network["dc1"], n, n, producer="slow")
        send(network["dc1"], 1, 10, producer="quick")
        until(lambda: got == list(range(1, 11)), "the other stream gets through")
        assert network["dc1"].queued() <= 4
        release.set()
        consumer.stop()
        thread.join(60)
        consumer.close()


def test_stop_from_a_signal_handler(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert list(consumer) == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_second_consumer_is_refused(opener: Opener, network: MemoryNetwork, tmp_path: Path) -> None:
    consumer = opener()
    with pytest.raises(InboxLocked):
        opener()
    other = Consumer(
        GROUP,
        network.sites,
        topics=[TOPIC],
        inbox=tmp_path / "other.db",
        takeover_timeout=0.3,
    )
    with pytest.raises(GroupBusy, match="billing"):
        other.get(60)
    other.close()
    assert consumer.get(0) is None


def test_use_after_close_and_after_fork(opener: Opener) -> None:
    consumer = opener()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            consumer.get(0)
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.get(0)


def test_construction_succeeds_with_unreachable_sites(tmp_path: Path) -> None:
    with MemoryNetwork("dc1") as network:
        network["dc1"].down()
        with Consumer(GROUP, network.sites, topics=[TOPIC], inbox=tmp_path / "i.db") as consumer:
            until(lambda: consumer.status().sites["dc1"].state == "unreachable", "it says so")
            assert consumer.get(0) is None
            network["dc1"].up()
            until(lambda: consumer.status().sites["dc1"].state == "connected", "connected")
            send(network["dc1"], 1, 1)
            assert consumer.get(60) is not None


def test_malformed_frames_are_set_aside(opener: Opener, network: MemoryNetwork) -> None:
    from reliamsg.wire.data import CONTENT_TYPE
    from tests.consumer.tools import frame

    consumer = opener()
    broker = network["dc1"]
    good = frame(1, 5)
    broker.inject(TOPIC, b"junk", content_type=CONTENT_TYPE)
    broker.inject(TOPIC, good[:20], content_type=CONTENT_TYPE)
    broker.inject(TOPIC, b"RMB9" + good[4:], content_type=CONTENT_TYPE)
    broker.inject(TOPIC, good[:-1] + b"\xff", content_type=CONTENT_TYPE)
    broker.inject(TOPIC, frame(1, 5, topic="elsewhere"), content_type=CONTENT_TYPE)
    broker.inject(TOPIC, b"an old note", retained=True)
    broker.inject_delivery(TOPIC, Delivery(0, TOPIC, b"plain", None, damaged="a header bomb"))
    broker.inject(TOPIC, b"hello")
    until(lambda: sum(consumer.status().sites["dc1"].rejected.values()) == 8, "rejected")
    assert consumer.status().sites["dc1"].rejected == {
        "malformed": 2, "later-version": 1, "undecodable": 1, "wrong-topic": 1, "retained": 1, "damaged": 1,
        "unsequenced": 1,
    }  # fmt: skip
    until(lambda: broker.queued() == 0, "acknowledged")
    send(network["dc2"], 1, 5)
    assert [consumer.get(60).seq for _ in range(5)] == [1, 2, 3, 4, 5]  # type: ignore[union-attr]


def test_a_sound_frame_marked_as_retained_is_taken(opener: Opener, network: MemoryNetwork) -> None:
    """Some brokers mark what waited for an absent session; a replay of such a frame is a duplicate."""
    from reliamsg.wire.data import CONTENT_TYPE
    from tests.consumer.tools import frame

    consumer = opener()
    for _ in range(2):
        network["dc1"].inject(TOPIC, frame(1, 5), content_type=CONTENT_TYPE, retained=True)
    send(network["dc1"], 6, 6)
    got = [consumer.get(60) for _ in range(6)]
    assert [message.seq for message in got if message is not None] == [1, 2, 3, 4, 5, 6]
    assert consumer.status().sites["dc1"].rejected == {}


def test_messages_of_ordinary_clients(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener(unsequenced="deliver")
    broker = network["dc1"]
    for n in range(3):
        broker.inject(TOPIC, f"hello {n}".encode(), headers={"a": "b"})
    got = [consumer.get(60) for _ in range(3)]
    assert [(m.producer, m.seq, m.body, dict(m.headers)) for m in got if m] == [
        ("", n + 1, f"hello {n}".encode(), {"a": "b"}) for n in range(3)
    ]
    for message in got[:2]:
        assert message is not None
        message.ack()
    consumer.close()
    again = opener(unsequenced="deliver")
    redelivered = again.get(60)
    assert redelivered is not None
    assert redelivered.body == b"hello 2"
    broker.inject(TOPIC, b"more")
    more = again.get(60)
    assert more is not None
    assert more.body == b"more"
    assert more.seq > redelivered.seq


@pytest.mark.parametrize(
    "options",
    [
        {"topics": []}, {"topics": "orders"}, {"topics": ["a", "a"]}, {"topics": ["a#"]}, {"begin": "never"},
        {"on_gap": "maybe"}, {"gap_timeout": 0}, {"max_deliveries": -1}, {"unsequenced": "?"},
        {"on_dead_letter": "explode"},
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, network: MemoryNetwork, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Consumer(
            GROUP,
            network.sites,
            **{"topics": [TOPIC], "inbox": tmp_path / "i.db", **options},
        )
    assert not (tmp_path / "i.db").exists()


def test_a_full_disk_stops_handing_out_and_acknowledging_until_there_is_room(
    tmp_path: Path, network: MemoryNetwork
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    errors: list[BaseException] = []
    consumer = Consumer(GROUP, network.sites, topics=[TOPIC], inbox=small / "i.db", on_error=errors.append)
    try:
        until(lambda: consumer.status().sites["dc1"].state == "connected", "connected")
        send(network["dc1"], 1, 1)
        message = consumer.get(60)
        assert message is not None
        message.ack(durable=True)
        ballast = small / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        # Out of order: to be persisted, for which there is no room.
        for n in range(3, 40):
            send(network["dc1"], n, n, pad=5_000)
        until(lambda: any(isinstance(error, InboxWriteError) for error in errors), "reported")
        queued = network["dc1"].queued()
        assert queued > 0
        assert "not written" in consumer.status().error
        ballast.unlink()
        until(lambda: not consumer.status().error, "written again")
        send(network["dc1"], 2, 2)
        got = [consumer.get(60) for _ in range(38)]
        assert [m.seq for m in got if m is not None] == list(range(2, 40))
        for m in got:
            assert m is not None
            m.ack()
        until(lambda: network["dc1"].queued() == 0, "acknowledged")
    finally:
        consumer.close()
        subprocess.run(["umount", "-l", small], check=True)
