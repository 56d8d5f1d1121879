"""Unusable names, sizes and files are refused where they are given, and nothing is created or stored."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Site
from reliamsg.config import MAX_MESSAGE_BYTES
from reliamsg.errors import (
    ConfigError,
    InboxWriteError,
    MessageTooLarge,
    OutboxWriteError,
    StoreCorrupt,
    StoreMismatch,
    StoreTooNew,
)
from tests.badinput.tools import Clients, bodies, site, take, wait_connected
from tests.children import run_child

NOWHERE = "mqtt://127.0.0.1:1"
BAD_NAMES = {
    "empty": "",
    "too long": "n" * 101,
    "too long in UTF-8": "ü" * 51,
    "plus": "a+b",
    "hash": "a#",
    "star": "*",
    "colon": "a:b",
    "tilde": "a~1",
    "newline": "a\nb",
    "nul": "a\0b",
    "dollar": "$SYS",
    "slash": "/a",
    "surrogate": "\udc80",
    "noncharacter": "\uffff",
    "bytes": b"name",
    "none": None,
}
Call = Callable[[Clients, list[Site], str], object]
PLACES: dict[str, Call] = {
    "producer id": lambda c, sites, name: c.producer(sites, producer_id=name),
    "topic of groups": lambda c, sites, name: c.producer(sites, groups={name: ["g"]}),
    "group of groups": lambda c, sites, name: c.producer(sites, groups={"t": [name]}),
    "consumer's group": lambda c, sites, name: c.consumer(sites, group=name),
    "consumer's topic": lambda c, sites, name: c.consumer(sites, topics=["t", name]),
    "site": lambda c, sites, name: c.producer([Site(name, NOWHERE)]),
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_names(clients: Clients, place: Call, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(clients, [site("dc1", NOWHERE)], name)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert not list(clients.directory.iterdir()), "nothing was made"


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_topics_of_messages(clients: Clients, name: str) -> None:
    producer = clients.producer([site("dc1", NOWHERE)])
    for publish in (producer.publish, producer.publish_nowait):
        with pytest.raises(ConfigError):
            publish(name, b"x")
    with pytest.raises(ConfigError):
        producer.publish_many(name, [b"x", b"y"])
    assert producer.pending() == 0


@pytest.mark.parametrize("wire", ["batch", "plain"])
def test_bodies_at_and_over_the_limit(clients: Clients, sites: list[Site], wire: str) -> None:
    """The largest passes both brokers; one byte more is refused, and uses no number."""
    consumer = clients.consumer(sites)
    wait_connected(consumer)
    producer = clients.producer(sites, wire=wire)
    largest = os.urandom(MAX_MESSAGE_BYTES)
    for publish in (producer.publish, producer.publish_nowait):
        with pytest.raises(MessageTooLarge, match="4194305"):
            publish(clients.topic, largest + b"x")
    with pytest.raises(MessageTooLarge):
        producer.publish_many(clients.topic, [b"not stored either", largest + b"x"])
    with pytest.raises(MessageTooLarge):
        producer.publish(clients.topic, b"x", key="k" * 256)
    with pytest.raises(MessageTooLarge):
        producer.publish(clients.topic, b"x", headers={"h": "v" * 8_193})
    with pytest.raises(MessageTooLarge):
        producer.publish(clients.topic, b"x", headers={"h" * 256: "v"})
    with pytest.raises(MessageTooLarge, match="headers of 65"):
        producer.publish(clients.topic, b"x", headers={f"h{n}": "v" * 8_191 for n in range(8)})
    with pytest.raises(MessageTooLarge):
        producer.publish(clients.topic, b"x", headers={f"h{n}": "v" for n in range(65)})
    receipt = producer.publish(clients.topic, largest)
    assert receipt.id is not None
    assert receipt.id.seq == 1
    wide = {f"h{n}": "ü" * 4_096 for n in range(7)} | {"baggage": "v" * 8_000}
    producer.publish(clients.topic, b"", headers=wide)
    producer.flush(timeout=120)
    found = take(consumer, 2)
    assert bodies(found) == [largest, b""]
    assert found[1].headers == wide


def make_newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()


def test_outboxes_that_cannot_be_used(clients: Clients, tmp_path: Path) -> None:
    here = [site("dc1", NOWHERE)]
    mine = clients.producer(here)
    mine.publish("t", b"kept")
    mine.close(timeout=0.0)
    clients.consumer(here).close()
    text, foreign, newer = tmp_path / "text", tmp_path / "foreign.db", tmp_path / "newer.db"
    text.write_text("no database, and longer than the head of one " * 20)
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    clients.producer(here, outbox=newer).close()
    make_newer(newer)
    (tmp_path / "directory").mkdir()
    before = {path: path.read_bytes() for path in (clients.outbox, clients.inbox, text, foreign, newer)}
    for path, producer_id, error, words in (
        (clients.outbox, "another", StoreMismatch, "belongs to producer 'p', not 'another'"),
        (clients.inbox, "p", StoreMismatch, "this is an inbox, not an outbox"),
        (text, "p", StoreCorrupt, "not a database"),
        (foreign, "p", StoreMismatch, "another application's database"),
        (newer, "p", StoreTooNew, "newer than this reliamsg"),
        (tmp_path / "directory", "p", StoreCorrupt, "not a file"),
        (text / "inside.db", "p", OutboxWriteError, "inside.db"),
        (Path("/proc/outbox.db"), "p", OutboxWriteError, "/proc/outbox.db"),
    ):
        for _ in range(2):  # a refusal leaves no lock behind
            with pytest.raises(error, match=words):
                clients.producer(here, outbox=path, producer_id=producer_id)
    assert {path: path.read_bytes() for path in before} == before, "a refusal changes nothing"
    again = clients.producer(here)
    assert again.pending() == 1


def test_inboxes_that_cannot_be_used(clients: Clients, tmp_path: Path) -> None:
    here = [site("dc1", NOWHERE)]
    clients.producer(here).close()
    clients.consumer(here).close()
    text, newer = tmp_path / "text", tmp_path / "newer.db"
    text.write_text("no database, and longer than the head of one " * 20)
    clients.consumer(here, inbox=newer).close()
    make_newer(newer)
    (tmp_path / "directory").mkdir()
    before = {path: path.read_bytes() for path in (clients.outbox, clients.inbox, text, newer)}
    for path, group, error, words in (
        (clients.inbox, "another", StoreMismatch, "belongs to group"),
        (clients.outbox, clients.group, StoreMismatch, "this is an outbox, not an inbox"),
        (text, clients.group, StoreCorrupt, "not a database"),
        (newer, clients.group, StoreTooNew, "newer than this reliamsg"),
        (tmp_path / "directory", clients.group, StoreCorrupt, "not a file"),
        (text / "inside.db", clients.group, InboxWriteError, "inside.db"),
        (Path("/proc/inbox.db"), clients.group, InboxWriteError, "/proc/inbox.db"),
    ):
        for _ in range(2):
            with pytest.raises(error, match=words):
                clients.consumer(here, inbox=path, group=group)
    assert {path: path.read_bytes() for path in before} == before, "a refusal changes nothing"


AS_NOBODY = """
import os, sys
from reliamsg import Consumer, Producer, Site
from reliamsg.cli import main
from reliamsg.errors import InboxWriteError, OutboxWriteError
import reliamsg.cli.outbox
os.chmod(sys.argv[1], 0o711)
os.setuid(65534)
sites = [Site("dc1", "mqtt://127.0.0.1:1")]
for name in ("outbox.db", "new.db", "new/outbox.db"):
    try: Producer("p", sites, outbox=f"{sys.argv[1]}/{name}")
    except OutboxWriteError as error: print(error)
for name in ("inbox.db", "new.db", "new/inbox.db"):
    try: Consumer(sys.argv[2], sites, topics=["t"], inbox=f"{sys.argv[1]}/{name}")
    except InboxWriteError as error: print(error)
"""


def test_files_of_another_user(clients: Clients, tmp_path: Path) -> None:
    """Requires root, to become another user."""
    here = [site("dc1", NOWHERE)]
    clients.producer(here).close()
    clients.consumer(here).close()
    found = run_child([sys.executable, "-c", AS_NOBODY, str(tmp_path), clients.group], text=True, check=True)
    lines = found.stdout.splitlines()
    assert len(lines) == 6
    assert all("Permission denied" in line and str(tmp_path) in line for line in lines)
