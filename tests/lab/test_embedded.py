"""The embedded broker: its guarantees, and its losses."""

from __future__ import annotations

from reliamsg.lab import EmbeddedBroker, wait_until
from tests.lab.clients import client, leave_subscription

BODIES = [b"%d" % n for n in range(500)]


def test_keeps_messages_for_a_client_that_is_away(embedded: EmbeddedBroker) -> None:
    leave_subscription(embedded.url, "away", "t")
    with client(embedded.url) as publisher:
        publisher.publish("t", BODIES)
    wait_until(lambda: embedded.queued() == len(BODIES), 60, "all are queued")
    with client(embedded.url, "away", persistent=True) as subscriber:
        assert subscriber.session_present
        assert subscriber.receive(len(BODIES)) == BODIES
    wait_until(lambda: embedded.queued() == embedded.in_flight() == 0, 60, "nothing is left")


def test_forwards_large_batches_in_order(embedded: EmbeddedBroker) -> None:
    batches = [b"%d" % n * (128 * 1024) for n in range(8)]
    with client(embedded.url) as subscriber, client(embedded.url) as publisher:
        subscriber.subscribe("t")
        publisher.publish("t", batches)
        assert subscriber.receive(len(batches)) == batches


def test_kill_and_stop_lose_everything(embedded: EmbeddedBroker) -> None:
    for end in (embedded.kill, embedded.stop):
        leave_subscription(embedded.url, "away", "t")
        end()
        assert not embedded.alive
        embedded.start()
        with client(embedded.url, "away", persistent=True) as subscriber:
            assert not subscriber.session_present


def test_unacknowledged_messages_are_kept_and_sent_again_first(embedded: EmbeddedBroker) -> None:
    leave_subscription(embedded.url, "slow", "t")
    with client(embedded.url, "slow", persistent=True, manual=True) as subscriber:
        with client(embedded.url) as publisher:
            publisher.publish("t", BODIES)
        window = len(subscriber.receive(20))
        wait_until(lambda: embedded.in_flight() == 20, 60, "the window is full")
        assert window == 20
        # It confirms a message before it has delivered it.
        wait_until(lambda: embedded.queued() == len(BODIES) - 20, 60, "the others are queued")
    with client(embedded.url, "slow", persistent=True) as subscriber:
        assert subscriber.receive(len(BODIES)) == BODIES
        flags = [(message.dup, message.retain) for message in subscriber.messages]
        assert flags == [(True, False)] * 20 + [(False, False)] * (len(BODIES) - 20)


def test_a_publisher_may_leave_as_soon_as_it_has_its_confirms(embedded: EmbeddedBroker) -> None:
    with client(embedded.url, "stays", persistent=True) as subscriber:
        subscriber.subscribe("t")
        with client(embedded.url) as publisher:
            publisher.publish("t", BODIES)
        assert subscriber.receive(len(BODIES)) == BODIES
