"""Callbacks that raise or call back, errors in the background, and the end while something still runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg.consumer.api import Consumer
from reliamsg.errors import (
    ClosedError,
    ConfigError,
    DeadLetterHalt,
    GapError,
    GroupBusy,
    InboxLocked,
    InboxWriteError,
)
from reliamsg.message import Message
from reliamsg.testing import MemoryNetwork, inject
from tests.consumer.tools import GROUP, TOPIC, Bench, send, seqs, until
from tests.patience import wait_for


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


Opener = Callable[..., Consumer]


@pytest.fixture
def opener(tmp_path: Path, network: MemoryNetwork) -> Iterator[Opener]:
    opened: list[Consumer] = []

    def open_one(**options: Any) -> Consumer:
        options = {"topics": [TOPIC], "inbox": tmp_path / "inbox.db", **options}
        opened.append(Consumer(GROUP, network.sites, **options))
        return opened[-1]

    yield open_one
    for consumer in opened:
        consumer.close()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(60)
    assert not thread.is_alive()


def test_on_error_may_wait_for_the_consumer(opener: Opener, network: MemoryNetwork) -> None:
    done = threading.Event()

    def on_error(error: BaseException) -> None:
        assert isinstance(error, ValueError)
        assert consumer.dead_letters() == []  # waits for a commit
        done.set()
        raise RuntimeError("on_error itself fails")

    def handle(message: Message) -> None:
        if message.seq == 1 and not done.is_set():
            raise ValueError("the first time")
        if message.seq == 2:
            consumer.stop()

    consumer = opener(on_error=on_error)
    send(network["dc1"], 1, 2)
    consumer.run(handle)
    assert done.wait(60)


def test_on_error_may_close_the_consumer(opener: Opener, network: MemoryNetwork) -> None:
    consumer: Consumer = opener(on_error=lambda _: consumer.close(), on_dead_letter="halt", max_deliveries=1)
    send(network["dc1"], 1, 1)

    def handle(message: Message) -> None:
        raise ValueError(message.id)

    with pytest.raises(DeadLetterHalt):
        consumer.run(handle)

    def closed() -> bool:
        try:
            consumer.status()
        except ClosedError:
            return True
        return False

    until(closed, "closed")


def test_one_that_is_collected_on_its_own_thread_is_closed_after_the_step(
    opener: Opener, network: MemoryNetwork, tmp_path: Path
) -> None:
    """Where nobody closed it, and memory was cleaned up while it committed."""
    armed = threading.Event()
    collected: list[str] = []

    def probe(point: str) -> None:
        name = threading.current_thread().name
        if point == "position" and name == f"reliamsg consumer {GROUP}" and armed.is_set() and not collected:
            collected.append(point)
            consumer._finalizer()
            collected.append("goes on")

    with inject(probe=probe):
        consumer = opener()
    send(network["dc1"], 1, 3)
    for _ in range(3):
        message = consumer.get(60)
        assert message is not None
        message.ack(durable=True)
    armed.set()
    send(network["dc1"], 4, 4)
    last = consumer.get(60)  # None if it ended before that
    if last is not None:
        last.ack()
    until(lambda: len(collected) == 2, "the step goes on")

    def reopened() -> Consumer | None:
        try:
            return opener()
        except InboxLocked:
            return None

    again = wait_for(reopened, "the inbox is free")
    send(network["dc1"], 5, 5)
    found: list[tuple[int, bool]] = []
    while (5, False) not in found:
        message = again.get(60)
        assert message is not None
        found.append((message.seq, message.redelivered))
    assert found in (
        [(4, False), (5, False)] if last is None else [(5, False)],
        [(4, last is not None), (5, False)],
    )


def test_nothing_is_delivered_once_the_inbox_was_left_as_after_a_clean_stop(tmp_path: Path) -> None:
    """By a thread that asks while another one closes: it would come again without the flag."""
    bench = Bench(tmp_path / "inbox.db")
    send(bench.network["dc1"], 1, 3)
    bench.settle(0.5)
    assert bench.engine.deliveries.may_take
    bench.engine.flush(bench.now, closing=True)
    assert not bench.engine.deliveries.may_take
    assert bench.take() == []
    bench.reopen(clean=False)
    bench.settle(0.5)
    assert [(message.seq, message.redelivered) for message in bench.take()] == [
        (1, False),
        (2, False),
        (3, False),
    ]


def test_a_step_does_not_wait_for_connections_that_were_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "inbox.db")
    bench.settle(0.5)
    (connection,) = bench.engine.sites["dc1"].connections.all
    closed: list[float] = []
    monkeypatch.setattr(connection, "close", closed.append)
    bench.engine.sites["dc1"].connections.give_up()
    bench.now = bench.engine.standby.due_at
    bench.engine.step(bench.now)
    assert bench.engine.standby.gave_up
    assert closed == []
    bench.engine.standby.close_given_up()
    assert not bench.engine.standby.gave_up
    assert len(closed) == 1


def test_late_messages_after_one_that_on_late_failed_on_are_shown_all_the_same(
    opener: Opener, network: MemoryNetwork
) -> None:
    shown: list[int] = []

    def on_late(message: Message) -> None:
        shown.append(message.seq)
        if message.seq == 4:
            raise ValueError("no")

    consumer = opener(on_gap="skip", gap_timeout=0.2, on_late=on_late)
    send(network["dc1"], 1, 1)
    send(network["dc1"], 6, 6)
    for _ in range(2):
        message = consumer.get(60)
        assert message is not None
        message.ack()
    send(network["dc2"], 2, 5)
    with pytest.raises(ValueError, match="no"):
        consumer.get(60)
    send(network["dc1"], 7, 7)
    message = consumer.get(60)
    assert message is not None
    assert (message.seq, shown) == (7, [2, 3, 4, 5])
    until(lambda: consumer._engine.shared.inbox.late_count == 0, "seen")
    assert consumer._engine.shared.inbox.late_bytes == 0


def test_a_failing_on_gap_is_asked_again(opener: Opener, network: MemoryNetwork) -> None:
    asked: list[int] = []

    def on_gap(gap: object) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("no")
        return "skip"

    consumer = opener(on_gap=on_gap, gap_timeout=0.2)
    send(network["dc1"], 1, 1)
    send(network["dc1"], 3, 3)
    first = consumer.get(60)
    assert first is not None
    first.ack()
    with pytest.raises(ValueError, match="no"):
        consumer.get(60)
    third = consumer.get(60)
    assert third is not None
    assert third.seq == 3


ASKING: dict[str, Callable[[Consumer], object]] = {
    "get": lambda consumer: consumer.get(0.1),
    "iteration": lambda consumer: next(iter(consumer)),
    "batches": lambda consumer: next(consumer.batches(10, 0.1)),
    "run": lambda consumer: consumer.run(print),
}


@pytest.mark.parametrize("runs", [False, True], ids=["in get", "in run"])
@pytest.mark.parametrize("callback", ["on_gap", "on_late"])
@pytest.mark.parametrize("inner", ASKING)
def test_callbacks_that_ask_for_messages_are_told_that_they_can_not(
    opener: Opener, network: MemoryNetwork, inner: str, callback: str, runs: bool
) -> None:
    """Else they would be asked about the same gap, or be shown the same message, again and again."""
    depth: list[int] = []

    def on_gap(gap: object) -> str:
        return ask() if callback == "on_gap" else "skip"

    def ask() -> str:
        assert not depth, "it is called within itself"
        depth.append(1)
        try:
            with pytest.raises(ConfigError, match="can't ask for messages"):
                ASKING[inner](consumer)
        finally:
            depth.pop()
        return "skip"

    def on_late(message: Message) -> None:
        if callback == "on_late":
            ask()
        late.append(message.seq)
        consumer.stop()

    consumer = opener(on_gap=on_gap, gap_timeout=0.2, on_late=on_late)
    got: list[int] = []
    late: list[int] = []

    def handle(message: Message) -> None:
        got.append(message.seq)
        if message.seq == 3:
            send(network["dc1"], 2, 2)

    send(network["dc1"], 1, 1)
    send(network["dc1"], 3, 3)
    if runs:
        consumer.run(handle)
    while not runs and (message := consumer.get(60)) is not None:
        message.ack()
        handle(message)
    assert (got, late) == ([1, 3], [2])


def test_close_waits_for_running_handlers(opener: Opener, network: MemoryNetwork) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        entered.set()
        assert go_on.wait(60)

    consumer = opener()
    send(network["dc1"], 1, 3)
    running = in_thread(lambda: consumer.run(handle))
    assert entered.wait(60)
    remaining: list[Any] = []
    closing = in_thread(lambda: remaining.append(consumer.close(20)))
    until(lambda: consumer._runner is not None and consumer._runner.stopped, "closing")
    go_on.set()
    ended(closing)
    ended(running)
    assert (remaining[0].unacknowledged, remaining[0].clean) == (0, True)
    again = opener()
    got = [again.get(60) for _ in range(2)]
    assert [(m.seq, m.redelivered) for m in got if m is not None] == [(2, False), (3, False)]


def test_a_handler_that_outlives_close_has_its_messages_come_again_with_the_flag(
    opener: Opener, network: MemoryNetwork
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def handle(messages: list[Message]) -> None:
        entered.set()
        assert go_on.wait(60)

    consumer = opener()
    send(network["dc1"], 1, 3)
    running = in_thread(lambda: consumer.run(handle, batch=3))
    assert entered.wait(60)
    assert consumer.close(0.2).unacknowledged == 3
    again = opener()
    got = [again.get(60) for _ in range(3)]
    assert [(m.seq, m.redelivered) for m in got if m is not None] == [(1, True), (2, True), (3, True)]
    go_on.set()
    ended(running)


def test_close_within_a_handler(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    send(network["dc1"], 1, 1)

    def close(_: Message) -> None:
        consumer.close(5)

    consumer.run(close)
    with pytest.raises(ClosedError):
        consumer.get(0)


def test_waiting_for_durability_ends_with_the_consumer(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    send(network["dc1"], 1, 1)
    message = consumer.get(60)
    assert message is not None
    consumer.close()
    with pytest.raises(ClosedError):
        message.ack(durable=True)


def test_what_was_acknowledged_is_durable_although_the_consumer_failed(
    opener: Opener, network: MemoryNetwork
) -> None:
    """A stream that halts says nothing against the inbox."""
    consumer = opener(on_dead_letter="halt", max_deliveries=1)
    send(network["dc1"], 1, 3)
    got = [consumer.get(60) for _ in range(2)]
    with pytest.raises(ValueError, match="poison"), got[1].process():  # type: ignore[union-attr]
        raise ValueError("poison")
    got[0].ack()  # type: ignore[union-attr]
    with pytest.raises(DeadLetterHalt):  # although a third message is at hand already
        consumer.get(60)
    consumer.stop()
    with pytest.raises(DeadLetterHalt):
        consumer.get(60)
    assert consumer.close().clean
    again = opener()
    second = again.get(60)
    assert second is not None
    assert (second.seq, second.redelivered) == (2, True)


def test_nobody_spins_while_the_inbox_cannot_be_written(opener: Opener, network: MemoryNetwork) -> None:
    consumer = opener()
    until(lambda: consumer.status().sites["dc1"].state == "connected", "connected")
    shared = consumer._engine.shared

    def fail(*_: object) -> None:
        raise InboxWriteError("the disk is full")

    commit, shared.inbox.commit = shared.inbox.commit, fail  # type: ignore[assignment, method-assign]
    send(network["dc1"], 1, 1)
    until(
        lambda: shared.durability.write_error is not None and shared.buffers.ready,
        "failing with something at hand",
    )
    before = time.thread_time()
    assert consumer.get(1.0) is None
    assert time.thread_time() - before < 0.2
    with pytest.raises(InboxWriteError):
        consumer.accept(GapError(_gap()).gap)
    shared.inbox.commit = commit  # type: ignore[method-assign]
    message = consumer.get(60)
    assert message is not None


def _gap() -> Any:
    from reliamsg.message import Gap, Stream

    return Gap(Stream("p", TOPIC), 10, 1, 1, "expired")


def test_a_group_that_is_busy_at_one_site_only(
    tmp_path: Path, network: MemoryNetwork, opener: Opener
) -> None:
    holder = opener()
    until(lambda: holder.status().sites["dc1"].state == "connected", "connected")
    network["dc2"].down()
    until(lambda: holder.status().sites["dc2"].state != "connected", "away")
    other = Consumer(
        GROUP,
        network.sites,
        topics=[TOPIC],
        inbox=tmp_path / "o.db",
        takeover_timeout=0.3,
    )
    try:
        with pytest.raises(GroupBusy, match="dc1"):
            other.get(60)
    finally:
        other.close()


def test_a_busy_site_that_goes_away_is_not_busy_any_more(tmp_path: Path) -> None:
    network = MemoryNetwork("dc1", "dc2", threaded=False)
    bench = Bench(tmp_path / "inbox.db", network=network)
    other = Bench(tmp_path / "other.db", network=network)

    def state() -> str:
        return other.engine.sites["dc1"].state

    assert state() == "busy"
    for broker in network.brokers.values():
        broker.down()
    other.settle(5.0)
    assert state() == "unreachable"
    other.settle(60.0)
    assert other.engine.shared.health.fatal is None
    bench.inbox.close()
    other.inbox.close()


def test_a_dead_letter_that_is_being_replayed_is_not_replayed_once_more(
    opener: Opener, network: MemoryNetwork
) -> None:
    consumer = opener()
    send(network["dc1"], 1, 1)
    message = consumer.get(60)
    assert message is not None
    message.reject("unwanted")
    (letter,) = consumer.dead_letters()
    for outcome in ("reject", "ack"):
        for _ in range(2):
            consumer.replay(letter.id)
        again = consumer.get(60)
        assert again is not None
        assert again.replayed
        consumer.replay(letter.id)
        assert consumer.get(0) is None
        if outcome == "reject":
            again.reject("still unwanted")
        else:
            again.ack(durable=True)
    assert consumer.status().dead_letters == 0


def test_late_messages_that_nobody_looks_at_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliamsg.consumer.site.MAX_LATE_BYTES", 20_000)
    bench = Bench(tmp_path / "inbox.db", gap_timeout=1.0, skip_gaps=True)
    bench.settings["keep_late"] = True
    bench.reopen(clean=True)
    dc1 = bench.network["dc1"]
    send(dc1, 1, 1)
    send(dc1, 102, 102)
    bench.settle()
    bench.take()
    bench.settle(2.0)
    assert seqs(bench.take()) == [102]
    for seq in range(2, 102):
        send(dc1, seq, seq, pad=1_000)
        bench.settle(0.05)
    assert dc1.queued() == 0
    assert 20_000 <= bench.inbox.late_bytes < 22_000
    kept = bench.inbox.late_count
    assert bench.engine.sites["dc1"].rejected == {"late": 100 - kept}
