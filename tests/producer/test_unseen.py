"""Groups that are named and do not exist at an MQTT site: what it confirms does not count (rules P15 to P17)."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reliamsg import Consumer, KeyRing, Producer
from reliamsg.errors import ConfirmTimeout, OutboxFull
from reliamsg.producer.status import UnseenGroup
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.testing import MemoryNetwork
from tests.patience import wait_for
from tests.producer.tools import Reader, journal, numbers

TOPIC = "orders"
Open = Callable[..., Producer]


@pytest.fixture(params=[True, False], ids=["told", "mute"])
def network(request: pytest.FixtureRequest) -> Iterator[MemoryNetwork]:
    """Two MQTT sites, whose brokers say so where nobody subscribes, or never do."""
    with MemoryNetwork("dc1", "dc2", protocol="mqtt") as made:
        for broker in made.brokers.values():
            broker.tells_subscribers = request.param
        yield made


@pytest.fixture
def opened(network: MemoryNetwork, tmp_path: Path) -> Iterator[Open]:
    """Opens producers on one outbox, and closes them."""
    made: list[Producer] = []

    def make(**options: object) -> Producer:
        settings = {"groups": {TOPIC: ["g"]}, "hello_timeout": 0.0, **options}
        made.append(Producer("p", network.sites, outbox=tmp_path / "p.db", **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout=0.0)


@contextmanager
def reading(network: MemoryNetwork, path: Path, group: str = "g", **options: object) -> Iterator[list[bytes]]:
    """A consumer that takes everything."""
    consumer = Consumer(
        group,
        network.sites,
        topics=[TOPIC],
        inbox=path / f"{group}.db",
        **options,  # type: ignore[arg-type]
    )
    bodies: list[bytes] = []
    thread = threading.Thread(target=consumer.run, args=[lambda message: bodies.append(message.body)])
    thread.start()
    try:
        yield bodies
    finally:
        consumer.stop()
        thread.join(60)
        consumer.close()


def unseen(producer: Producer, site: str = "dc1") -> list[str]:
    return [each.group for each in producer.status().sites[site].unseen]


def test_a_confirm_for_a_group_that_does_not_exist_is_none(
    network: MemoryNetwork, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "reliamsg"):
        producer = opened()
        receipt = producer.publish(TOPIC, b"1")
        wait_for(lambda: set(receipt.sites.values()) == {"unseen"}, "both brokers confirmed it")
    with pytest.raises(
        ConfirmTimeout, match=r"group g is unseen at dc1, dc2.*reliamsg group create g --topic orders"
    ):
        receipt.wait(timeout=0.1)
    assert not receipt.done
    assert producer.pending() == 1
    status = producer.status().sites["dc1"]
    assert status.unseen == (UnseenGroup("g", TOPIC, 0),)
    assert "unseen: g on orders" in str(status)
    assert len([r for r in caplog.records if "group g is unseen at dc1" in r.getMessage()]) == 1
    (member,) = inspect_outbox(tmp_path / "p.db").members
    assert member.unseen_at == ("dc1", "dc2")


def test_what_was_sent_before_a_group_was_created_is_sent_again_in_order(
    network: MemoryNetwork, opened: Open, tmp_path: Path
) -> None:
    producer = opened()
    receipts = [producer.publish(TOPIC, body) for body in numbers(1, 20)]
    wait_for(lambda: set(receipts[-1].sites.values()) == {"unseen"}, "all of it was sent")
    for broker in network.brokers.values():
        broker.create_group(TOPIC, "g")
    for receipt in receipts:
        receipt.wait(timeout=60.0)
    for body in numbers(21, 25):
        producer.publish(TOPIC, body).wait(timeout=60.0)
    assert unseen(producer) == []
    for site in ("dc1", "dc2"):
        reader = Reader(network, site, [TOPIC])
        wait_for(lambda reader=reader: len(reader.bodies()) == 25, "all that it has")
        assert reader.bodies() == numbers(1, 25)
        seqs = [frame.envelope.seq for frame in reader.frames]
        assert seqs == sorted(seqs)
        reader.close()
    wait_for(lambda: {row.site for row in journal(tmp_path / "p.db", "confirmed")} == {"dc1", "dc2"})
    wait_for(lambda: not any(member.unseen_at for member in inspect_outbox(tmp_path / "p.db").members))


def test_one_of_two_groups_missing(network: MemoryNetwork, opened: Open, tmp_path: Path) -> None:
    for broker in network.brokers.values():
        broker.create_group(TOPIC, "g")
    producer = opened(groups={TOPIC: ["g", "late"]})
    receipt = producer.publish(TOPIC, b"1")
    wait_for(lambda: set(receipt.sites.values()) == {"unseen"}, "both brokers confirmed it")
    assert unseen(producer) == ["late"]
    with reading(network, tmp_path) as bodies:  # the other one is not held up by that
        wait_for(lambda: bodies == [b"1"])
        assert not receipt.done
    with reading(network, tmp_path, "late") as bodies:
        receipt.wait(timeout=60.0)
        wait_for(lambda: bodies == [b"1"])


def test_one_site_of_two_does_not_know_the_group(network: MemoryNetwork, opened: Open) -> None:
    network["dc1"].create_group(TOPIC, "g")
    producer = opened(confirm="any")
    receipt = producer.publish(TOPIC, b"1")
    receipt.wait(timeout=60.0)
    assert receipt.counted == ("dc1",)
    wait_for(lambda: receipt.sites["dc2"] == "unseen")
    assert unseen(producer, "dc1") == []
    network["dc2"].create_group(TOPIC, "g")
    wait_for(lambda: receipt.sites["dc2"] == "confirmed")


def test_a_consumer_that_comes_first_is_enough(network: MemoryNetwork, opened: Open, tmp_path: Path) -> None:
    with reading(network, tmp_path):
        wait_for(lambda: all(broker.connections for broker in network.brokers.values()))
        producer = opened()
        producer.publish(TOPIC, b"1").wait(timeout=60.0)


def test_where_the_answers_are_wrong_hearing_the_group_is_enough(
    network: MemoryNetwork, opened: Open, tmp_path: Path
) -> None:
    for broker in network.brokers.values():
        broker.tells_subscribers = True
        broker.answer_wrongly()
    with reading(network, tmp_path) as bodies:
        producer = opened()
        producer.publish(TOPIC, b"1").wait(timeout=60.0)
        wait_for(lambda: bodies == [b"1"])
        for broker in network.brokers.values():
            broker.answer_wrongly()  # and says so again
        producer.publish(TOPIC, b"2").wait(timeout=60.0)
        assert unseen(producer) == []


def test_a_group_that_is_deleted_is_unseen_again(network: MemoryNetwork, opened: Open) -> None:
    for broker in network.brokers.values():
        broker.create_group(TOPIC, "g")
    producer = opened()
    producer.publish(TOPIC, b"1").wait(timeout=60.0)
    network["dc1"].delete_group(TOPIC, "g")
    wait_for(lambda: unseen(producer) == ["g"])
    second = producer.publish(TOPIC, b"2")
    wait_for(lambda: second.sites == {"dc1": "unseen", "dc2": "confirmed"})
    network["dc1"].create_group(TOPIC, "g")
    second.wait(timeout=60.0)
    reader = Reader(network, "dc1", [TOPIC])
    wait_for(lambda: reader.bodies() == [b"2"])
    reader.close()


def test_a_broker_that_was_wiped_does_not_confirm(network: MemoryNetwork, opened: Open) -> None:
    for broker in network.brokers.values():
        broker.create_group(TOPIC, "g")
    producer = opened()
    producer.publish(TOPIC, b"1").wait(timeout=60.0)
    network["dc1"].wipe()
    wait_for(lambda: unseen(producer) == ["g"])
    second = producer.publish(TOPIC, b"2")
    wait_for(lambda: second.sites == {"dc1": "unseen", "dc2": "confirmed"})
    assert not second.done


def test_what_waits_for_a_group_is_known_after_a_restart(
    network: MemoryNetwork, opened: Open, tmp_path: Path
) -> None:
    first = opened()
    receipts = [first.publish(TOPIC, body) for body in numbers(1, 5)]
    wait_for(lambda: set(receipts[-1].sites.values()) == {"unseen"})
    remaining = first.close(timeout=0.1)
    assert remaining.messages == 5
    for broker in network.brokers.values():
        broker.down()
    second = opened()  # offline
    assert unseen(second) == ["g"]
    for broker in network.brokers.values():
        broker.create_group(TOPIC, "g")
        broker.up()
    second.flush(timeout=60.0)
    second.close(timeout=60.0)
    third = opened()
    assert unseen(third) == []  # it was stored
    third.close(timeout=60.0)
    reader = Reader(network, "dc1", [TOPIC])
    wait_for(lambda: reader.bodies() == numbers(1, 5))
    reader.close()


def test_a_restart_does_not_trust_a_broker_that_was_wiped_meanwhile(
    network: MemoryNetwork, opened: Open
) -> None:
    for broker in network.brokers.values():
        broker.create_group(TOPIC, "g")
    first = opened()
    first.publish(TOPIC, b"1").wait(timeout=60.0)
    first.close(timeout=60.0)
    network["dc1"].wipe()
    second = opened()
    receipt = second.publish(TOPIC, b"2")
    wait_for(lambda: receipt.sites == {"dc1": "unseen", "dc2": "confirmed"})


def test_a_group_that_is_no_longer_named_is_not_waited_for(network: MemoryNetwork, opened: Open) -> None:
    producer = opened()
    receipt = producer.publish(TOPIC, b"1")
    wait_for(lambda: set(receipt.sites.values()) == {"unseen"})
    producer.remove_group(TOPIC, "g")
    receipt.wait(timeout=60.0)
    producer.add_group(TOPIC, "g")
    second = producer.publish(TOPIC, b"2")
    wait_for(lambda: set(second.sites.values()) == {"unseen"})
    assert not second.done


def test_with_nobody_named_a_confirm_counts(network: MemoryNetwork, opened: Open) -> None:
    opened(groups={}).publish(TOPIC, b"1").wait(timeout=60.0)


def test_a_full_outbox_says_which_group_is_missing(network: MemoryNetwork, opened: Open) -> None:
    producer = opened(max_bytes=100_000, when_full="raise")

    def fill() -> None:
        for _ in range(200):
            producer.publish(TOPIC, bytes(2_000))

    with pytest.raises(OutboxFull, match="group g is unseen at dc1, dc2"):
        fill()


def test_retention_keeps_what_is_unseen(network: MemoryNetwork, opened: Open, tmp_path: Path) -> None:
    network["dc1"].create_group(TOPIC, "g")
    producer = opened(confirm="any", retain_seconds=0.0, retain_bytes=1024)
    receipts = [producer.publish(TOPIC, bytes(1_000)) for _ in range(20)]
    receipts[-1].wait(timeout=60.0)
    wait_for(lambda: receipts[-1].sites["dc2"] == "unseen")
    producer.flush(timeout=60.0)
    assert inspect_outbox(tmp_path / "p.db").messages == 20
    network["dc2"].create_group(TOPIC, "g")
    wait_for(lambda: inspect_outbox(tmp_path / "p.db").messages <= 2, "both sites have it")


@pytest.mark.parametrize("ours", [True, False])
def test_with_keys_a_mark_has_to_be_signed(opened: Open, network: MemoryNetwork, ours: bool) -> None:
    ring = KeyRing({"k": b"a secret of thirty-two bytes, ok"}, sign_with="k")
    for broker in network.brokers.values():
        broker.tells_subscribers = False
        broker.create_group(TOPIC, "g", keys=ring if ours else None)
    receipt = opened(keys=ring).publish(TOPIC, b"1")
    if ours:
        receipt.wait(timeout=60.0)
    else:
        wait_for(lambda: set(receipt.sites.values()) == {"unseen"})


@pytest.mark.parametrize("number", range(8))
def test_what_is_confirmed_can_be_got(tmp_path: Path, seed: int, number: int) -> None:
    """Groups come and go at random, and producers restart: every group finds at each site that was counted all that was
    confirmed, unless the site lost it after that."""
    chance = random.Random(f"{seed}/{number}")
    with MemoryNetwork("dc1", "dc2", protocol="mqtt", seed=seed, threaded=True) as network:
        for broker in network.brokers.values():
            broker.tells_subscribers = chance.random() < 0.6
        groups = ["g", "h"][: chance.choice([1, 2])]
        there: dict[str, set[str]] = {name: set() for name in network.brokers}
        sent = 0
        confirm = chance.choice(["all", "any"])
        while True:
            producer = Producer(
                "p", network.sites, outbox=tmp_path / "p.db", hello_timeout=0.0,
                groups={TOPIC: groups}, confirm=confirm,  # type: ignore[arg-type]
            )  # fmt: skip
            for _ in range(chance.randrange(1, 6)):
                for _ in range(chance.randrange(4)):
                    sent += 1
                    producer.publish(TOPIC, b"%d" % sent)
                site, group = chance.choice(["dc1", "dc2"]), chance.choice(groups)
                if chance.random() < 0.4 and group not in there[site]:
                    network[site].create_group(TOPIC, group)
                    there[site].add(group)
                if chance.random() < 0.3:
                    network[site].cut()
                if chance.random() < 0.2:
                    network[site].hold_confirms()
                if chance.random() < 0.5:
                    network[site].release_confirms()
            full = all(there[site] == set(groups) for site in there)
            if sent > 30 or full:
                break
            producer.close(timeout=0.05)
        for name, broker in network.brokers.items():
            broker.release_confirms()
            for group in groups:
                if group not in there[name]:
                    broker.create_group(TOPIC, group)
        producer.flush(timeout=60.0)
        wait_for(lambda: not any(site.behind for site in producer.status().sites.values()))
        producer.close(timeout=60.0)
        for name in network.brokers:
            for group in groups:
                _has_all(network, name, group, sent)


def _has_all(network: MemoryNetwork, site: str, group: str, sent: int) -> None:
    reader = Reader(network, site, [TOPIC], group=group)
    wait_for(lambda: len(reader.bodies()) == sent, f"{group} has all {sent} messages at {site}", seconds=10.0)
    assert sorted(reader.bodies(), key=int) == numbers(
        1, sent
    )  # some may have come before it was known to exist
    reader.close()
