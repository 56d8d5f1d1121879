"""Exact numbers of real clients, at sites that fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg.errors import InboxWriteError
from reliamsg.transport.base import Outcome
from reliamsg.wire.data import CONTENT_TYPE
from tests.consumer.tools import frame, send
from tests.metrics.tools import WAIT, World, fill


@pytest.fixture
def open_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(*sites: str) -> World:
        worlds.append(World(tmp_path, *(sites or ("dc1",))))
        return worlds[-1]

    yield make
    for world in worlds:
        world.opened.close()
        world.network.close()


def test_all_is_well(open_world: Callable[..., World]) -> None:
    world = open_world("dc1", "dc2")
    sender, reader = world.producer(), world.consumer()
    sender.publish_many("orders", [b"x"] * 7).wait(WAIT)
    sender.publish("orders", b"y").wait(WAIT)
    world.take(reader, 8)
    sender.flush(WAIT)
    scrape = world.scrape.until(
        lambda s: (
            s("policy_met_total") == 8
            and s("received_total", site="dc1") == s("received_total", site="dc2") == 8
        ),
        "everything is journalled",
    )
    assert scrape("enqueued_total") == 8
    for site in ("dc1", "dc2"):
        assert scrape("published_total", site=site, result="confirmed") == 8
        assert scrape("confirm_duration_seconds_count", site=site) == 2  # batches
        assert scrape("site_clients", role="producer", site=site, state="connected") == 1
        assert scrape("site_clients", role="consumer", site=site, state="connected") == 1
        assert scrape("duplicates_total", site=site) == 0
        assert scrape("site_behind_batches", site=site) == 0
    assert scrape("enqueue_duration_seconds_count") == 8
    assert scrape("delivered_total") == scrape("acknowledged_total") == 8
    assert scrape("reorder_wait_seconds_count") == 8
    assert scrape("acknowledge_duration_seconds_bucket", le="+Inf") == 8
    assert scrape("outbox_messages") == scrape("outbox_used_bytes") == scrape("inbox_used_bytes") == 0
    assert scrape("outbox_limit_bytes") == 1024**3
    assert scrape("inbox_limit_bytes") == 256 * 1024**2
    assert scrape("producers", state="running") == scrape("consumers", state="active") == 1
    assert scrape("build_info", version="0.1.0") == 1


def test_duplicates(open_world: Callable[..., World]) -> None:
    world = open_world()
    sender, reader = world.producer(), world.consumer()
    world.broker.duplicate(1)
    sender.publish_many("orders", [b"x"] * 5)
    world.take(reader, 5)
    scrape = world.scrape.until(
        lambda s: s("duplicates_total", site="dc1") == 5, "the duplicates are counted"
    )
    assert scrape("received_total", site="dc1") == scrape("delivered_total") == 5


def test_a_site_that_refuses(open_world: Callable[..., World]) -> None:
    world = open_world()
    sender = world.producer()
    for outcome in (Outcome.NACKED, Outcome.RETURNED, Outcome.REFUSED):
        world.broker.refuse("orders", outcome)
        sender.publish_many("orders", [b"x", b"y"])
        # Parked streams are tried again, and each refusal counts; the first batch is tried first.
        world.scrape.until(
            lambda s, r=outcome.value: s("published_total", site="dc1", result=r) >= 2,  # type: ignore[misc]
            outcome.value,
        )
    scrape = world.scrape()
    assert scrape("site_parked_streams", site="dc1") == 1
    assert scrape("published_total", site="dc1", result="confirmed") == 0
    assert scrape("outbox_messages") == 6


def test_a_site_that_is_down(open_world: Callable[..., World]) -> None:
    world = open_world("dc1", "dc2")
    sender = world.producer()
    sender.publish("orders", b"x").wait(WAIT)
    world.network["dc2"].down()
    world.scrape.until(
        lambda s: s("site_clients", role="producer", site="dc2", state="unreachable") == 1, "it is down"
    )
    sender.publish("orders", b"y")
    scrape = world.scrape.until(
        lambda s: (
            s("published_total", site="dc1", result="confirmed") == 2 and s("outbox_oldest_age_seconds") > 0
        ),
        "one site has it",
    )
    assert scrape("disconnects_total", role="producer", site="dc2") == 1
    assert scrape("disconnects_total", role="producer", site="dc1") == 0
    assert scrape("published_total", site="dc2", result="confirmed") == 1
    assert scrape("site_behind_batches", site="dc2") == 1
    assert scrape("outbox_messages") == scrape("policy_met_total") == 1
    world.network["dc2"].up()
    scrape = world.scrape.until(lambda s: s("policy_met_total") == 2, "it is back")
    assert scrape("outbox_messages") == scrape("outbox_oldest_age_seconds") == 0
    assert scrape("site_clients", role="producer", site="dc2", state="connected") == 1


def test_an_outbox_that_is_full(open_world: Callable[..., World]) -> None:
    world = open_world()
    world.broker.down()
    sender = world.producer(max_bytes=20_000, when_full="raise")
    stored = fill(sender)
    scrape = world.scrape()
    assert scrape("enqueued_total") == scrape("outbox_messages") == stored
    assert scrape("outbox_limit_bytes") == 20_000
    assert 1_000 * stored < scrape("outbox_used_bytes") <= 20_000
    assert scrape("outbox_used_bytes") == scrape("outbox_stored_bytes")


def test_messages_that_are_removed(open_world: Callable[..., World]) -> None:
    world = open_world()
    world.broker.down()
    sender = world.producer()
    receipt = sender.publish_many("orders", [b"x"] * 3)
    first, last = receipt.ids[0], receipt.ids[-1]
    assert sender.remove(first, last) == 3
    assert world.scrape()("removed_total") == 3


def test_a_gap_that_is_filled(open_world: Callable[..., World]) -> None:
    world = open_world()
    reader = world.consumer()
    send(world.broker, 1, 2)
    world.take(reader, 2)
    send(world.broker, 5, 6)
    scrape = world.scrape.until(lambda s: s("gaps_total", outcome="opened") == 1, "the gap is journalled")
    assert scrape("streams", state="gap") == 1
    assert scrape("held_messages") == 2
    send(world.broker, 3, 4)
    world.take(reader, 4)
    scrape = world.scrape.until(lambda s: s("gaps_total", outcome="filled") == 1, "the gap is closed")
    assert scrape("gaps_total", outcome="declared") == scrape("declared_total", reason="lost") == 0
    assert scrape("streams", state="gap") == scrape("gap_longest_seconds") == 0


def test_a_gap_that_is_held_and_accepted(open_world: Callable[..., World]) -> None:
    world = open_world()
    reader = world.consumer(gap_timeout=0.1)
    send(world.broker, 1, 2)
    world.take(reader, 2)
    send(world.broker, 5, 6)
    scrape = world.scrape.until(lambda s: s("gaps_total", outcome="held") == 1, "the gap holds its stream")
    assert scrape("streams", state="held") == 1
    assert scrape("gap_longest_seconds") >= 0.1
    (stream,) = reader.status().streams.values()
    assert stream.gap is not None
    assert reader.accept(stream.gap)
    world.take(reader, 2)
    scrape = world.scrape.until(lambda s: s("acknowledged_total") == 4, "the stream goes on")
    assert scrape("gaps_total", outcome="opened") == scrape("gaps_total", outcome="declared") == 1
    assert scrape("gaps_total", outcome="filled") == 0
    assert scrape("declared_total", reason="lost") == 2
    send(world.broker, 3, 4)
    world.scrape.until(lambda s: s("late_total") == 2, "what was declared is late")


def test_a_gap_that_is_skipped(open_world: Callable[..., World]) -> None:
    world = open_world()
    reader = world.consumer(gap_timeout=0.1, on_gap="skip")
    send(world.broker, 1, 2)
    world.take(reader, 2)
    send(world.broker, 4, 6)
    world.take(reader, 3)
    scrape = world.scrape()
    assert scrape("gaps_total", outcome="declared") == scrape("declared_total", reason="lost") == 1
    assert scrape("gaps_total", outcome="held") == scrape("gaps_total", outcome="filled") == 0


def test_a_gap_of_messages_that_their_producer_removed(open_world: Callable[..., World]) -> None:
    world = open_world()
    sender = world.producer(release="consumed", status_interval=0.05)
    reader = world.consumer(repair_delay=10.0)
    sender.publish("orders", b"x").wait(WAIT)
    world.take(reader, 1)
    world.broker.lose(1)
    receipt = sender.publish_many("orders", [b"y"] * 2)
    receipt.wait(WAIT)
    sender.remove(receipt.ids[0], receipt.ids[-1])
    sender.publish("orders", b"z")
    world.take(reader, 1)
    scrape = world.scrape()
    assert scrape("gaps_total", outcome="removed") == 1
    assert scrape("gaps_total", outcome="declared") == scrape("declared_total", reason="lost") == 0
    assert scrape("declared_total", reason="removed") == 2


def test_messages_that_are_repaired(open_world: Callable[..., World]) -> None:
    world = open_world()
    sender = world.producer(release="consumed", status_interval=0.05)
    reader = world.consumer(repair_delay=0.05)
    sender.publish("orders", b"x").wait(WAIT)
    world.take(reader, 1)
    world.broker.lose(1)
    sender.publish_many("orders", [b"y"] * 2).wait(WAIT)
    world.take(reader, 2)
    scrape = world.scrape.until(
        lambda s: s("repaired_total", site="dc1") >= 2, "the producer has journalled it"
    )
    assert scrape("asked_total") >= 2
    assert scrape("repairs_received_total", site="dc1") == 2
    assert scrape("received_total", site="dc1") == 1


def test_failures_redeliveries_and_dead_letters(open_world: Callable[..., World]) -> None:
    world = open_world()
    sender, reader = world.producer(), world.consumer(max_deliveries=2)
    sender.publish("orders", b"x")
    for _ in range(2):
        message = reader.get(WAIT)
        assert message is not None
        with contextlib.suppress(ZeroDivisionError), message.process():
            1 / 0  # noqa: B018
    scrape = world.scrape.until(lambda s: s("dead_lettered_total") == 1, "it was given up")
    assert scrape("delivered_total") == scrape("redelivered_total") == scrape("dead_letters") == 1
    assert scrape("acknowledged_total") == 0
    (letter,) = reader.dead_letters()
    reader.replay(letter.id)
    world.take(reader, 1)
    scrape = world.scrape.until(lambda s: s("dead_letters") == 0, "it is dealt with")
    assert scrape("replayed_total") == 1


def test_an_inbox_that_cannot_be_written(open_world: Callable[..., World]) -> None:
    world = open_world()
    reader = world.consumer()
    inbox = reader._engine.shared.inbox
    send(world.broker, 1, 1)
    message = reader.get(WAIT)
    assert message is not None

    def fail(*_: object) -> None:
        raise InboxWriteError("the disk is full")

    commit, inbox.commit = inbox.commit, fail  # type: ignore[assignment, method-assign]
    message.ack()
    scrape = world.scrape.until(lambda s: s("consumers", state="blocked") == 1, "it can't write")
    assert scrape("consumers", state="active") == scrape("consumers", state="failed") == 0
    inbox.commit = commit  # type: ignore[method-assign]
    world.scrape.until(
        lambda s: s("consumers", state="active") == s("acknowledged_total") == 1, "it can again"
    )


def test_deliveries_that_are_not_usable(open_world: Callable[..., World]) -> None:
    world = open_world()
    world.consumer()
    world.broker.inject("orders", b"not ours")
    world.broker.inject("orders", b"neither")
    world.scrape.until(lambda s: s("rejected_total", site="dc1") == 2, "they are counted")


def test_two_histories_of_one_producer(open_world: Callable[..., World]) -> None:
    world = open_world()
    reader = world.consumer()
    send(world.broker, 1, 2)
    world.take(reader, 2)
    world.broker.inject("orders", frame(3, 4, incarnation=78), content_type=CONTENT_TYPE)
    world.scrape.until(lambda s: s("conflicts_total") == 1, "the conflict is counted")


def test_messages_that_wait_for_the_application(open_world: Callable[..., World]) -> None:
    world = open_world()
    sender, reader = world.producer(), world.consumer()
    sender.publish_many("orders", [b"x"] * 3)
    message = reader.get(WAIT)
    assert message is not None
    scrape = world.scrape()
    assert scrape("held_messages") == 3
    assert scrape("unacknowledged_messages") >= 1
    message.ack(durable=True)
    world.take(reader, 2)
    scrape = world.scrape()
    assert scrape("held_messages") == scrape("unacknowledged_messages") == 0
