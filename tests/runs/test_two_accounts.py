"""Two producers, two groups with slow handlers, two RabbitMQ sites that are killed in turn with messages queued.

Every group must get every number once, in order per account. Once the killed site keeps its disk, once it loses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg.lab import RabbitNode
from reliamsg.lab.chaos.pika_baseline import PikaConsumer, PikaPublisher
from reliamsg.wire.address import group_queue
from tests.options import Size
from tests.runs.harness import Run, SiteSpec, assert_complete, run_in, wait_for

GROUPS = ("primary", "secondary")
ACCOUNTS = ("A", "B")
TOPIC = "accounts"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "wiped", [pytest.param(False, marks=pytest.mark.full, id="kept"), pytest.param(True, id="wiped")]
)
def test_two_accounts(
    wiped: bool, tmp_path: Path, make_rabbit: Callable[..., RabbitNode], size: Size
) -> None:
    messages, queued = size(6_000, 60_000), size(500, 5_000)
    # So slow that messages are left for the last fault however long the nodes take to return: handling all messages of
    # a group takes 4 minutes, at full size 40.
    delay, hurry = 0.02, tmp_path / "hurry"
    nodes = {"dc1": make_rabbit(name="dc1"), "dc2": make_rabbit(name="dc2")}
    # Small windows keep messages queued at the brokers, where a fault can hit them.
    sites: list[SiteSpec] = [
        (name, node.url, {"prefetch": 4, "backoff_max": 1.0}) for name, node in nodes.items()
    ]
    with run_in(tmp_path / "run") as run, control(nodes["dc1"], wiped) as plain:
        consumers = [
            run.consumer(
                group, sites, [TOPIC], delay=delay, hurry=str(hurry),
                options={"max_inbox_bytes": size(1 << 18, 1 << 20)},
            ).start()
            for group in GROUPS
        ]  # fmt: skip
        producers = [
            run.producer(
                account, sites, TOPIC, list(GROUPS), messages, rate=size(1_500, 4_000), chunk=25, size=200,
                options={"max_batch_messages": 25},
            ).start()
            for account in ACCOUNTS
        ]  # fmt: skip
        stakes = [kill_with_messages_queued(run, nodes["dc1"], "dc1", queued, wiped)]
        if not wiped:
            stakes.append(kill_with_messages_queued(run, nodes["dc2"], "dc2", queued, wiped))
        hurry.touch()
        for app in producers:
            app.wait_ended(size(120, 600))
        for app in consumers:
            delivered = run.delivered(app)
            wait_for(
                lambda d=delivered: d() >= 2 * messages, size(120, 600), f"{app.log.stem} gets everything"
            )
            app.stop()
        lost = plain()
        for app in consumers:
            assert run.outcome(app) == {account: list(range(1, messages + 1)) for account in ACCOUNTS}
        assert_complete(run.check())
    print(f"queued at the killed site: {stakes}; plain pika lost {lost} messages")
    assert lost, "the fault did not matter: the plain client lost nothing"


def kill_with_messages_queued(
    run: Run, node: RabbitNode, site: str, least: int, wiped: bool
) -> dict[str, int]:
    """SIGKILL a site when at least `least` messages are queued there for each group, and restart it."""
    stake = wait_for(
        lambda: (
            (found := {group: run.queued(site, group) for group in GROUPS})
            and min(found.values()) >= least
            and found
        ),
        120,
        f"{least} messages queued at {site} for each group",
    )
    for group in GROUPS:
        queue = group_queue(TOPIC, 0, group)
        # The fault is a killed node, not a queue that RabbitMQ forgot because it was a second old.
        wait_for(lambda queue=queue: node.has_recorded(queue), 20, f"{site} has recorded {queue}")
        assert node.queue_depth(queue) > 0, "the queue itself is empty"
    node.kill()
    if wiped:
        node.wipe()
    node.start()
    return dict(stake)


@contextlib.contextmanager
def control(node: RabbitNode, wiped: bool):  # type: ignore[no-untyped-def]
    """Plain pika for comparison on the site that is killed: persistent messages through a durable queue.

    With publisher confirms if the disk is lost, against which no confirm helps; without them if it is kept, as most
    programs use `basic_publish`.
    """
    publisher = PikaPublisher(node.url, "plain", confirms=wiped, rate=600 if wiped else 1_500)
    # Far slower than publishing, so that most messages are queued when the node is killed.
    consumer = PikaConsumer(node.url, "plain", delay=0.05)
    publisher.start()
    consumer.start()

    def lost() -> int:
        publisher.finish.set()
        publisher.join(60)
        consumer.drain(quiet=5.0, deadline=60.0)
        return len(set(publisher.accepted) - set(consumer.received))

    try:
        yield lost
    finally:
        publisher.finish.set()
        consumer.finish.set()
