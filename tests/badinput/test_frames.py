"""Invalid messages at a group's addresses: valid messages pass, the others are quarantined and counted."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from typing import Any

import pika
import pytest

from reliamsg import Site
from reliamsg.errors import GapError
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.chaos.rogue import BOMBS, RawProperties
from reliamsg.message import Prev, Stream
from reliamsg.wire.address import EXCHANGE, group_queue
from reliamsg.wire.data import CONTENT_TYPE, Origin, Records, encode, open_frame
from reliamsg.wire.limits import MAX_SEQ
from reliamsg.wire.plain import encode_plain
from tests.badinput.tools import (
    Clients,
    Stranger,
    bodies,
    journalled,
    journalled_rejections,
    plain_pika,
    quarantined,
    rejections,
    site,
    take,
    wait_connected,
)
from tests.patience import wait_for

NOW = (1_700_000_000_000_000, 1_700_000_000_000_000)


@pytest.fixture(params=["amqp", "mqtt 5", "mqtt 3.1.1"])
def url(request: pytest.FixtureRequest) -> str:
    protocol = request.param.split()[0]
    broker: RabbitNode | Mosquitto = request.getfixturevalue(
        "rabbit" if protocol == "amqp" else "shared_mosquitto"
    )
    return broker.url


@pytest.fixture
def where(request: pytest.FixtureRequest, url: str) -> Site:
    version = request.node.callspec.params["url"].split()[-1]
    return site("dc1", url, max_frame_bytes=100_000, mqtt_version=version if version != "amqp" else "auto")


def frame(
    topic: str,
    *records: bytes,
    producer: str = "stranger",
    epoch: int = 10,
    incarnation: int = 7,
    seq: int = 1,
    prev: Prev | None = None,
) -> bytes:
    return encode(
        Origin(Stream(producer, topic), epoch, incarnation, prev), seq, NOW, Records(list(records) or [b"x"])
    )


def bad_frames(topic: str) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """By name: body and properties. The name begins with the reason under which it is counted."""
    good = frame(topic, b"never delivered")
    batch = {"content_type": CONTENT_TYPE}
    (plain,) = encode_plain(open_frame(good))
    found: dict[str, tuple[bytes, dict[str, Any]]] = {
        "malformed junk": (b"RMB1" + secrets.token_bytes(8), batch),
        "malformed truncated": (good[:30], batch),
        "malformed head": (good[:7], {}),
        "corrupt": (good[:20] + bytes([good[20] ^ 1]) + good[21:], {}),
        "unknown-version": (b"RMBx" + good[4:], batch),
        "later-version": (b"RMB9" + good[4:], batch),
        "undecodable": (good[:-1], batch),
        "undecodable body": (good[:-1] + bytes([good[-1] ^ 1]), batch),
        "undecodable long": (good + bytes(100_000), batch),
        "wrong-topic": (frame("elsewhere"), batch),
    }
    for name, numbers in {
        "seq 0": {"seq": 0},
        "seq 2**63": {"seq": 2**63},
        "seq 2**63 - 1": {"seq": 2**63 - 1},
        "epoch": {"epoch": 2**63 - 1},
        "prev": {"prev": Prev(9, 7, 2**63 - 1)},
        "prev later": {"prev": Prev(11, 7, 1)},
        "producer": {"producer": "a+b"},
        "producer empty": {"producer": ""},
        "producer long": {"producer": "p" * 101},
    }.items():
        found[f"malformed {name}"] = (frame(topic, **numbers), {})  # type: ignore[arg-type]
    headers = plain.headers
    for name, changes in {
        "unknown-version": {"rm-v": "2"},
        "corrupt seq": {"rm-seq": "2"},
        "corrupt topic": {"rm-topic": "elsewhere"},
    }.items():
        found[f"{name} (plain)"] = (plain.body, {"headers": {**headers, **changes}})
    found["corrupt (plain)"] = (b"other", {"headers": headers})
    return found


def test_bad_frames_between_good_ones(clients: Clients, where: Site, url: str) -> None:
    consumer = clients.consumer([where])
    wait_connected(consumer)
    producer = clients.producer([where])
    expected: Counter[str] = Counter()
    kept: list[bytes] = []
    number = 0
    with Stranger(where, url) as stranger:
        for name, (body, properties) in bad_frames(clients.topic).items():
            if where.mqtt_version == "3.1.1" and "headers" in properties:
                continue  # it has none
            producer.publish(clients.topic, b"good %d" % number).wait(timeout=120)
            stranger.publish(clients.topic, body, **properties)
            number += 1
            expected[name.split()[0]] += 1
            if name != "later-version":  # it is kept whole
                kept.append(body)
        producer.publish(clients.topic, b"good %d" % number).wait(timeout=120)
    assert bodies(take(consumer, number + 1)) == [b"good %d" % n for n in range(number + 1)]
    wait_for(lambda: sum(rejections(consumer).values()) >= number, "all bad ones are counted")
    assert rejections(consumer) == expected
    assert consumer.status().error == ""
    assert consumer.status().quarantined == {"later-version": 1}
    wait_for(lambda: consumer.status().sites["dc1"].pending == 0, "all are acknowledged")
    consumer.close()
    assert journalled_rejections(clients.inbox) == expected
    set_aside = dict.fromkeys(body for _, body in quarantined(clients.inbox))
    assert all(any(body.startswith(found) for found in set_aside) for body in kept)
    # None of them is redelivered.
    again = clients.consumer([where])
    wait_connected(again)
    producer.publish(clients.topic, b"last")
    assert bodies(take(again, 1)) == [b"last"]
    assert rejections(again) == {}


def test_jumps_of_the_sequence(clients: Clients, where: Site, url: str) -> None:
    """The highest possible number: one gap, no allocation, and the consumer survives it."""
    consumer = clients.consumer([where], gap_timeout=0.3, on_gap="raise")
    wait_connected(consumer)
    topic = clients.topic

    def send(*records: bytes, **fields: Any) -> None:
        stranger.publish(topic, frame(topic, *records, **fields))

    with Stranger(where, url) as stranger:
        send(b"1", b"2")
        send(b"last", seq=MAX_SEQ)
        send(b"of an unknown stream", seq=MAX_SEQ, producer="other")
        send(b"e5", producer="chain", epoch=5)
        send(b"e6", producer="chain", epoch=6, prev=Prev(5, 7, MAX_SEQ))
        send(b"highest epoch", producer="high", epoch=MAX_SEQ, seq=MAX_SEQ)
        got: list[bytes] = []
        gaps: dict[str, tuple[int, int | None]] = {}
        while len(got) < 6:
            try:
                got += bodies(take(consumer, 1))
            except GapError as error:
                gaps[error.gap.stream.producer] = (error.gap.first, error.gap.last)
                consumer.accept(error.gap)
        assert gaps == {"stranger": (3, MAX_SEQ - 1), "chain": (2, MAX_SEQ)}
        assert b"highest epoch" not in got
        assert rejections(consumer) == {"malformed": 1}, "no fence could ever exceed that epoch"
        assert got.index(b"1") < got.index(b"2") < got.index(b"last")
        assert got.index(b"e5") < got.index(b"e6")
        # It survives, and so does its inbox.
        send(b"new", producer="new")
        assert bodies(take(consumer, 1)) == [b"new"]
        assert consumer.close().clean
        again = clients.consumer([where], gap_timeout=0.3, on_gap="raise")
        wait_connected(again)
        send(b"last", seq=MAX_SEQ)
        send(b"3", seq=3)
        send(b"newer", producer="new", seq=2)
        assert bodies(take(again, 1)) == [b"newer"]
        assert again.get(0.5) is None


def hostile_bodies(rng: random.Random, topic: str) -> list[bytes]:
    """Frames with a few changed bytes, truncated, duplicated, or forged."""
    found = []
    for _ in range(200):
        body = bytearray(frame(topic, b"never delivered", producer=f"r{rng.randrange(5)}"))
        for _ in range(rng.randrange(1, 4)):
            kind = rng.randrange(4)
            place = rng.randrange(len(body))
            if kind == 0:
                body[place] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del body[place : place + rng.randrange(1, 9)]
            elif kind == 2:
                body[place:place] = rng.randbytes(rng.randrange(1, 9))
            else:
                body[place:] = b""
            if not body:
                break
        found.append(bytes(body))
    return found


def test_random_damage(clients: Clients, where: Site, url: str, seeded: random.Random) -> None:
    consumer = clients.consumer([where])
    wait_connected(consumer)
    producer = clients.producer([where])
    hostile = hostile_bodies(seeded, clients.topic)
    with Stranger(where, url) as stranger:
        for number, body in enumerate(hostile):
            stranger.publish(clients.topic, body, content_type=CONTENT_TYPE)
            producer.publish_nowait(clients.topic, b"good %d" % number)
    producer.flush(timeout=120)
    assert bodies(take(consumer, 200)) == [b"good %d" % number for number in range(200)]
    wait_for(lambda: sum(rejections(consumer).values()) == len(hostile), "all are counted")
    wait_for(lambda: consumer.status().sites["dc1"].pending == 0, "all are acknowledged")


@pytest.mark.parametrize("unsequenced", ["refuse", "deliver"])
def test_header_bombs(clients: Clients, rabbit: RabbitNode, unsequenced: str) -> None:
    """Headers that break pika's decoder: counted and acknowledged, the connection stays, valid messages arrive."""
    where = [site("dc1", rabbit.url)]
    consumer = clients.consumer(where, unsequenced=unsequenced)
    wait_connected(consumer)
    producer = clients.producer(where)
    sent = 0
    for name, table in BOMBS.items():
        producer.publish(clients.topic, b"good %d" % sent).wait(timeout=120)
        try:
            with plain_pika(rabbit.url) as channel:
                channel.basic_publish(EXCHANGE, clients.topic, b"bomb " + name.encode(), RawProperties(table))
        except pika.exceptions.AMQPError:
            continue  # the broker itself refuses this one, and it stays out
        sent += 1
    assert sent >= 5
    producer.publish(clients.topic, b"bye").wait(timeout=120)
    got: list[bytes] = []
    while not got or got[-1] != b"bye":
        got += bodies(take(consumer, 1))
    assert [body for body in got if not body.startswith(b"bomb")] == [
        *(body for body in got if body.startswith(b"good")),
        b"bye",
    ]
    delivered = sum(body.startswith(b"bomb") for body in got)
    wait_for(lambda: sum(rejections(consumer).values()) + delivered >= sent, "all are counted", 10)
    assert set(rejections(consumer)) <= {"damaged", "unsequenced", "corrupt"}
    wait_for(lambda: consumer.status().sites["dc1"].pending == 0, "all are acknowledged")
    consumer.close()
    assert rabbit.queue_depth(group_queue(clients.topic, 0, clients.group)) == 0
    assert len(journalled(clients.inbox, "connected")) == 1, "the connection held"


def test_a_message_straight_into_the_queue(clients: Clients, rabbit: RabbitNode) -> None:
    """Through the default exchange, whose routing key is the queue's name; and with keys that are not text."""
    where = [site("dc1", rabbit.url)]
    consumer = clients.consumer(where, unsequenced="deliver")
    wait_connected(consumer)
    queue = group_queue(clients.topic, 0, clients.group)
    odd = f"odd-{clients.topic}"
    with plain_pika(rabbit.url) as channel:
        channel.basic_publish("", queue, frame(clients.topic))
        channel.basic_publish("", queue, b"anything")
        channel.queue_bind(queue, EXCHANGE, odd)
        channel.basic_publish(EXCHANGE, odd, frame(clients.topic))
        channel.basic_publish(EXCHANGE, odd, b"anything")
        channel.basic_publish(EXCHANGE, clients.topic, b"", pika.BasicProperties(content_type="text/plain"))
    assert bodies(take(consumer, 1)) == [b""]
    wait_for(lambda: rejections(consumer) == {"wrong-topic": 4}, "counted")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_retained_messages(clients: Clients, shared_mosquitto: Mosquitto, version: str) -> None:
    """Retained by an ordinary client: not one of our messages, whether it was there before the group or not."""
    where = site("dc1", shared_mosquitto.url, mqtt_version=version)
    topic = clients.topic
    with Stranger(where, shared_mosquitto.url) as stranger:
        stranger.publish(topic, b"an old note", retain=True)
        consumer = clients.consumer([where])
        wait_connected(consumer)
        producer = clients.producer([where])
        producer.publish(topic, b"good")
        assert bodies(take(consumer, 1)) == [b"good"]
        # With MQTT 5 a session requests none of them; 3.1.1 sends them, marked.
        before = {} if version == "5" else {"retained": 1}
        wait_for(lambda: rejections(consumer) == before, "the old one is no message")
        # While the group is subscribed, MQTT 5 keeps the flag; 3.1.1 removes it, and the content decides.
        stranger.publish(topic, b"stranger", retain=True)
        after = {"retained": 1} if version == "5" else {"retained": 1, "unsequenced": 1}
        wait_for(lambda: rejections(consumer) == after, "counted")
        stranger.publish(topic, b"", retain=True)


def test_messages_of_ordinary_clients_are_refused(clients: Clients, where: Site, url: str) -> None:
    consumer = clients.consumer([where])
    wait_connected(consumer)
    with Stranger(where, url) as stranger:
        stranger.publish(clients.topic, b"hello")
        wait_for(lambda: rejections(consumer) == {"unsequenced": 1}, "counted")
    producer = clients.producer([where])
    producer.publish(clients.topic, b"good")
    assert bodies(take(consumer, 1)) == [b"good"]
    consumer.close()
    assert quarantined(clients.inbox) == [("unsequenced", b"hello")]


def test_messages_of_ordinary_clients_are_delivered(clients: Clients, where: Site, url: str) -> None:
    consumer = clients.consumer([where], unsequenced="deliver")
    wait_connected(consumer)
    headers = None if where.mqtt_version == "3.1.1" else {"a": "b"}
    with Stranger(where, url) as stranger:
        for number in range(20):
            stranger.publish(clients.topic, b"hello %d" % number, headers=headers)
    got = take(consumer, 20)
    assert [(m.producer, m.body, dict(m.headers)) for m in got] == [
        ("", b"hello %d" % number, headers or {}) for number in range(20)
    ]
    assert rejections(consumer) == {}


@pytest.mark.parametrize("unsequenced", ["refuse", "deliver"])
def test_a_forged_identity_first_and_the_genuine_one_second(
    clients: Clients, where: Site, url: str, unsequenced: str
) -> None:
    """Another incarnation of a known epoch: quarantined, reported, and blocking nothing."""
    errors: list[BaseException] = []
    consumer = clients.consumer([where], on_error=errors.append, unsequenced=unsequenced)
    wait_connected(consumer)
    producer = clients.producer([where])
    producer.publish(clients.topic, b"1").wait(timeout=120)
    assert bodies(take(consumer, 1)) == [b"1"]
    epoch = producer.status().epoch
    with Stranger(where, url) as stranger:
        forged = frame(clients.topic, b"forged", producer="p", epoch=epoch, incarnation=1, seq=2)
        stranger.publish(clients.topic, forged)
        wait_for(lambda: rejections(consumer) == {"conflict": 1}, "quarantined")
    producer.publish(clients.topic, b"2")
    assert bodies(take(consumer, 1)) == [b"2"]
    wait_for(lambda: [type(error).__name__ for error in errors] == ["ProducerConflict"], "reported")
