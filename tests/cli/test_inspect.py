"""``outbox show``, ``inbox dead-letters`` and the exports: they show what was published, also while the owner of the
file runs, and name what is damaged."""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from reliamsg import Consumer, Message, Producer
from reliamsg.cli.status import Status
from reliamsg.errors import ConfigError
from reliamsg.files import create_private
from reliamsg.inspection.inbox_export import export_inbox
from reliamsg.inspection.outbox_export import export_outbox
from reliamsg.inspection.target import ExportFile, Table
from reliamsg.message import Stream
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch
from reliamsg.store.outbox import NewBatch, Outbox
from reliamsg.store.quarantine import LATER_VERSION, QuarantinedDelivery
from reliamsg.testing import MemoryNetwork
from reliamsg.wire.data import Origin, Records, encode
from tests.children import run_child
from tests.cli.commands import environment, json_of, refused, reliamsg_here, succeeded
from tests.consumer.tools import GROUP, TOPIC, send
from tests.fuzz import seeds
from tests.patience import wait_for
from tests.store.faults import small_disk

Published = tuple[bytes, str | None, dict[str, str]]

TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
BODIES = st.one_of(
    st.just(b""), st.binary(max_size=300), st.text(max_size=60).map(lambda text: text.encode())
)
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["orders", "Zürich", "a/b"]),
        BODIES,
        st.none() | TEXTS,
        st.dictionaries(TEXTS, TEXTS, max_size=3),
    ),
    max_size=30,
)


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    path = tmp_path / "p.db"
    path.write_bytes(seeds.outbox_file())
    return path


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "i.db"
    path.write_bytes(seeds.inbox_file())
    return path


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for sql in statements:
            connection.execute(sql)
        connection.commit()


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    with closing(Database(out, execute_plugins=False)) as database:
        return list(database[table].rows)


@contextmanager
def cut_off(network: MemoryNetwork, path: Path, **options: Any) -> Iterator[Producer]:
    """A producer whose sites are away, so that nothing leaves its outbox."""
    for broker in network.brokers.values():
        broker.down()
    producer = Producer("p", network.sites, outbox=path, hello_timeout=0, **options)
    try:
        yield producer
    finally:
        producer.close(0.0)


def lines(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def nothing_left(directory: Path) -> bool:
    """No file that was being written."""
    return not [path for path in directory.iterdir() if path.name.startswith(".")]


# -- what was published is what is shown -----------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(MESSAGES)
def test_exports_and_shown_messages_are_what_was_published(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, bytes, str | None, dict[str, str]]]
) -> None:
    place = tmp_path_factory.mktemp("published")
    expected: dict[str, list[Published]] = {}
    options: dict[str, Any] = {"release": "consumed", "groups": {"orders": ["billing"]}}
    with MemoryNetwork("dc1") as network, cut_off(network, place / "p.db", **options) as producer:
        for topic, body, key, headers in messages:
            producer.publish_nowait(topic, body, key=key, headers=headers)
            expected.setdefault(topic, []).append((body, key, headers))
    succeeded(reliamsg_here("outbox", "export", place / "p.db", place / "out.db"))
    exported: dict[str, list[Published]] = {}
    numbers: dict[str, list[int]] = {}
    for row in rows(place / "out.db", "messages"):
        exported.setdefault(row["topic"], []).append((row["body"], row["key"], json.loads(row["headers"])))
        numbers.setdefault(row["topic"], []).append(row["seq"])
        assert (row["producer"], row["bytes"]) == ("p", len(row["body"]))
        assert json.loads(row["not_confirmed_by"]) == ["dc1"]
        assert json.loads(row["unsettled_by"]) == (["billing"] if row["topic"] == "orders" else [])
    assert exported == expected
    assert numbers == {topic: list(range(1, len(some) + 1)) for topic, some in expected.items()}
    texts = [row["body"] for row in rows(place / "out.db", "messages_as_text")]
    bodies = [row["body"] for row in rows(place / "out.db", "messages")]
    assert [text.encode() for text in texts if text is not None] == [b for b in bodies if is_text(b)]

    for topic, some in expected.items():
        found = lines(succeeded(reliamsg_here("outbox", "show", place / "p.db", topic, "--json")))
        assert [(body_of(line), line["key"], line["headers"]) for line in found] == some


def is_text(body: bytes) -> bool:
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def body_of(line: dict[str, Any]) -> bytes:
    if "body_base64" in line:
        return base64.b64decode(line["body_base64"])
    text: str = line["body"]
    return text.encode()


def test_an_export_tells_which_sites_and_groups_lack_a_message(outbox: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    result = json_of(succeeded(reliamsg_here("outbox", "export", outbox, out, "--json")))
    assert (result["rows"]["messages"], result["rows"]["batches"], result["damaged"]) == (4, 3, 0)
    assert [(row["topic"], row["seq"], row["site"], row["parked"]) for row in rows(out, "unconfirmed")] == [
        ("other", 1, "dc1", "returned"),
        ("orders", 3, "dc1", None),
        ("orders", 3, "dc2", None),
    ]
    assert [(row["seq"], row["group"]) for row in rows(out, "unsettled")] == [(2, "billing"), (3, "billing")]
    assert [row["published"] for row in rows(out, "messages")] == [1, 1, 0, 0]
    (about,) = rows(out, "export")
    assert (about["producer"], about["release"], about["outbox"]) == ("p", "consumed", str(outbox))
    (shown,) = lines(succeeded(reliamsg_here("outbox", "show", outbox, "p/other", "--json")))
    assert (shown["confirmed"], shown["published"]) == ({"dc1": False, "dc2": True}, False)
    with closing(Database(out, execute_plugins=False)) as database:
        assert not list(database.query("PRAGMA foreign_key_check"))
        assert not [name for name in database.table_names() if not database.table(name).strict]
        keys = {(key.column, key.other_table) for key in database.table("messages").foreign_keys}
        assert keys == {("batch", "batches"), ("stream", "streams")}


def test_messages_are_selected_by_stream_epoch_and_number(outbox: Path) -> None:
    def shown(*arguments: str) -> list[tuple[str, int]]:
        found = lines(succeeded(reliamsg_here("outbox", "show", outbox, "--json", *arguments)))
        return [(line["topic"], line["seq"]) for line in found]

    orders = [("orders", 1), ("orders", 2), ("orders", 3)]
    assert shown() == [*orders[:2], ("other", 1), orders[2]]
    assert shown("orders") == shown("p/orders") == orders
    assert shown("orders", "other") == shown()
    assert shown("orders", "--first", "2") == orders[1:]
    assert shown("orders", "--first", "2", "--last", "2") == orders[1:2]
    assert shown("--last", "0") == []
    assert shown("--epoch", "5000", "--limit", "1") == orders[:1]
    assert shown("--epoch", "1") == []
    refused(reliamsg_here("outbox", "show", outbox, "orders~1"), 1, "orders~1 is not a known stream")
    text = succeeded(reliamsg_here("outbox", "show", outbox, "other")).decode()
    assert "p/other  epoch 5000  1  1 byte\n  c\n" in text
    assert "not confirmed by: dc1" in text


def test_an_export_while_the_producer_publishes(tmp_path: Path, network: MemoryNetwork) -> None:
    stop, counts = threading.Event(), list[int]()
    with cut_off(network, tmp_path / "p.db") as producer:
        producer.publish("orders", b"1")

        def publish() -> None:
            number = 1
            while not stop.is_set():
                number += 1
                producer.publish("orders", b"%d" % number)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            while len(set(counts)) < 3:  # it published in the meantime
                succeeded(
                    reliamsg_here("outbox", "export", tmp_path / "p.db", tmp_path / "out.db", "--replace")
                )
                found = [(row["seq"], row["body"]) for row in rows(tmp_path / "out.db", "messages")]
                assert found == [(number, b"%d" % number) for number in range(1, len(found) + 1)]
                counts.append(len(found))
        finally:
            stop.set()
            thread.join()
    assert counts == sorted(counts)


# -- inboxes ---------------------------------------------------------------------------------------------------


def test_an_export_of_an_inbox_while_its_consumer_runs(tmp_path: Path, network: MemoryNetwork) -> None:
    inbox, out = tmp_path / "i.db", tmp_path / "out.db"

    def exported() -> list[tuple[int, bytes]]:
        succeeded(reliamsg_here("inbox", "export", inbox, out, "--replace"))
        return [(row["seq"], row["body"]) for row in rows(out, "messages") if row["state"] == "held"]

    with Consumer(GROUP, network.sites, topics=[TOPIC], inbox=inbox, gap_timeout=0.2) as consumer:
        send(network["dc1"], 1, 2)
        send(network["dc1"], 5, 6)
        for _ in range(2):
            message = consumer.get(20)
            assert message is not None
            message.ack(durable=True)
        wait_for(lambda: exported() == [(5, b"10:5"), (6, b"10:6")], "both are held")
        wait_for(lambda: exported() and rows(out, "stuck"), "the gap is stored")
    (stuck,) = rows(out, "stuck")
    assert (stuck["producer"], stuck["topic"], stuck["first"], stuck["last"], stuck["waiting"]) == (
        "p", TOPIC, 3, 4, 2,
    )  # fmt: skip
    (stream,) = rows(out, "streams")
    assert (stream["producer"], stream["topic"]) == ("p", TOPIC)
    assert rows(out, "epochs")[0]["position"] == 3


def test_dead_letters_of_a_real_consumer(tmp_path: Path, network: MemoryNetwork) -> None:
    inbox = tmp_path / "i.db"
    bodies = [b"first", b"\xff\x1b", "\u202etext".encode()]
    with (
        Producer("p", network.sites, outbox=tmp_path / "p.db", groups={TOPIC: [GROUP]}) as producer,
        Consumer(GROUP, network.sites, topics=[TOPIC], inbox=inbox, max_deliveries=2) as consumer,
    ):
        producer.publish(TOPIC, bodies[0], key="k", headers={"a": "b"})
        producer.publish_many(TOPIC, bodies[1:])

        def handle(message: Message) -> None:
            if message.seq == 1:
                raise ValueError("no such \x1b[31mcustomer")
            message.reject("not wanted")
            if message.seq == 3:
                consumer.stop()

        consumer.run(handle)
        wait_for(lambda: len(consumer.dead_letters()) == 3, "they are stored")
        found = lines(succeeded(reliamsg_here("inbox", "dead-letters", inbox, "--json")))
        assert [line["id"] for line in found] == [letter.id for letter in consumer.dead_letters()]
    assert [body_of(line) for line in found] == bodies
    assert [line["seq"] for line in found] == [1, 2, 3]
    assert (found[0]["attempts"], found[0]["key"], found[0]["headers"]) == (2, "k", {"a": "b"})
    assert "customer" in found[0]["reason"]
    assert found[1]["reason"] == "not wanted"
    text = succeeded(reliamsg_here("inbox", "dead-letters", inbox)).decode()
    assert text.isascii()
    assert "\x1b" not in text
    assert "0xff1b" in text
    assert "\\u202etext" in text
    assert len(lines(succeeded(reliamsg_here("inbox", "dead-letters", inbox, "--json", "--limit", "1")))) == 1
    succeeded(reliamsg_here("inbox", "export", inbox, tmp_path / "out.db"))
    assert [row["body"] for row in rows(tmp_path / "out.db", "dead_letters")] == bodies
    assert [row["body"] for row in rows(tmp_path / "out.db", "dead_letters_as_text")] == [
        "first", None, "\u202etext",
    ]  # fmt: skip


def test_late_and_quarantined_messages_and_samples_are_exported(inbox: Path, tmp_path: Path) -> None:
    stream = Stream("q", "orders")
    delivery = QuarantinedDelivery(
        "streams", "dc1", stream, 3, 7, None, 1, 2, 0, 9, encode(Origin(stream, 3, 7), 1, (1, 2), Records([b"v", b"w"]))
    )  # fmt: skip
    later = QuarantinedDelivery(LATER_VERSION, "dc2", Stream("", "orders"), 0, 8, None, 1, 1, 0, 9, b"RMB2?")
    with closing(Inbox(inbox, "billing")) as opened:
        opened.commit(Batch(quarantined=[delivery, later]), 1, 1)
    out = tmp_path / "out.db"
    result = json_of(succeeded(reliamsg_here("inbox", "export", inbox, out, "--json")))
    assert result["damaged"] == 0, "a delivery of a later version is none"
    assert [(row["state"], row["seq"], row["body"]) for row in rows(out, "messages")] == [
        ("held", 20, b"x"), ("held", 21, b"y"), ("late", 5, b"l"), ("late", 6, b"m"),
        ("quarantined", 1, b"v"), ("quarantined", 2, b"w"),
    ]  # fmt: skip
    assert [(row["reason"], row["frame"]) for row in rows(out, "batches")[2:]] == [
        ("streams", None), (LATER_VERSION, b"RMB2?"),
    ]  # fmt: skip
    (sample,) = rows(out, "samples")
    assert (sample["reason"], sample["bytes"], sample["frame"]) == ("malformed", 50, b"x" * 50)
    assert [(row["first"], row["last"]) for row in rows(out, "gaps")] == [(15, 16)]
    assert [row["attempts"] for row in rows(out, "attempts")] == [2]
    with closing(Database(out, execute_plugins=False)) as database:
        assert not list(database.query("PRAGMA foreign_key_check"))


def test_messages_of_ordinary_clients(tmp_path: Path, network: MemoryNetwork) -> None:
    """Their stream has no producer; the frame in the file has one."""
    inbox = tmp_path / "i.db"
    with Consumer(GROUP, network.sites, topics=[TOPIC], inbox=inbox, unsequenced="deliver") as consumer:
        network["dc1"].inject(TOPIC, b"plain")

        def exported() -> list[tuple[str, bytes]]:
            out = tmp_path / "out.db"
            succeeded(reliamsg_here("inbox", "export", inbox, out, "--replace"))
            return [(row["producer"], row["body"]) for row in rows(out, "messages")]

        wait_for(lambda: exported() == [("", b"plain")], "it is stored while no one takes it")
        assert consumer.get(20) is not None


# -- damaged files ---------------------------------------------------------------------------------------------

SPOILED = {
    "a frame": "UPDATE batch SET frame = CAST(substr(frame, 1, length(frame) - 1) || x'01' AS BLOB) WHERE id = 2",
    "an envelope": "UPDATE batch SET frame = CAST(x'524d4231' || substr(frame, 9) AS BLOB) WHERE id = 2",
    "no frame": "UPDATE batch SET frame = x'' WHERE id = 2",
    "the count": "UPDATE batch SET count = count + 1 WHERE id = 2",
    "a huge number": "UPDATE batch SET seq = 9223372036854775807, count = 9223372036854775807 WHERE id = 2",
    "a negative number": "UPDATE batch SET seq = -9223372036854775807 WHERE id = 2",
    "the incarnation": "UPDATE batch SET incarnation = CAST(x'80' AS TEXT) WHERE id = 2",
    "the stream": "UPDATE batch SET stream_id = 77 WHERE id = 2",
    "the time": "UPDATE batch SET frame = x'00', wall_us = 9223372036854775807 WHERE id = 2",
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_damaged_batch_is_named_and_exported_as_it_is(what: str, outbox: Path, tmp_path: Path) -> None:
    change(outbox, SPOILED[what])
    out = tmp_path / "out.db"
    result = reliamsg_here("outbox", "export", outbox, out, "--json")
    assert result.returncode == Status.DATA
    assert json_of(result.stdout)["damaged"] == 1
    (error,) = result.stderr.decode().splitlines()
    assert error.startswith("damaged: batch 2 of ")
    assert [row["body"] for row in rows(out, "messages")] == [b"a", b"b", b"d"]
    (damaged,) = rows(out, "damaged")
    with closing(sqlite3.connect(outbox)) as connection:
        frame = connection.execute("SELECT frame FROM batch WHERE id = 2").fetchone()[0]
    assert [row["frame"] for row in rows(out, "batches")] == [None, frame, None]
    assert damaged["id"] == 2
    assert damaged["problem"] in error
    with closing(Database(out, execute_plugins=False)) as database:
        assert not list(database.query("PRAGMA foreign_key_check"))
    shown = reliamsg_here("outbox", "show", outbox, "--json")
    assert (shown.returncode, shown.stderr) == (Status.DATA, result.stderr)
    assert [body_of(line) for line in lines(shown.stdout)] == [b"a", b"b", b"d"]


def test_many_damaged_batches_do_not_fill_the_terminal(tmp_path: Path) -> None:
    outbox = tmp_path / "p.db"
    make_outbox(outbox, 50, [b"x"])
    change(outbox, "UPDATE batch SET frame = x'00'")
    result = reliamsg_here("outbox", "export", outbox, tmp_path / "out.db")
    assert result.returncode == Status.DATA
    assert len(result.stderr.splitlines()) == 21
    assert b"30 more" in result.stderr
    assert len(rows(tmp_path / "out.db", "damaged")) == 50
    shown = reliamsg_here("outbox", "show", outbox, "--limit", "7")
    assert (shown.returncode, len(shown.stderr.splitlines())) == (Status.DATA, 7)


@pytest.mark.parametrize("table", ["held", "late"])
def test_damaged_batches_of_an_inbox(table: str, inbox: Path, tmp_path: Path) -> None:
    change(inbox, f"UPDATE {table} SET frame = substr(frame, 1, 20)")
    result = reliamsg_here("inbox", "export", inbox, tmp_path / "out.db")
    assert result.returncode == Status.DATA
    assert f"damaged: {table} batch 1 of p/orders" in result.stderr.decode()
    assert len(rows(tmp_path / "out.db", "messages")) == 2
    assert [row["state"] for row in rows(tmp_path / "out.db", "damaged")] == [table]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE dead_letter SET headers = '{'",
        "UPDATE dead_letter SET headers = '[1]', wall_us = 9223372036854775807",
        "UPDATE dead_letter SET stream_id = 99",
    ],
)
def test_a_damaged_dead_letter_is_named_and_shown(sql: str, inbox: Path, tmp_path: Path) -> None:
    change(inbox, sql)
    for arguments in (["--json"], []):
        result = reliamsg_here("inbox", "dead-letters", inbox, *arguments)
        assert result.returncode == Status.DATA
        assert "damaged: dead letter 1 of" in result.stderr.decode()
        assert b"body" in result.stdout
    assert reliamsg_here("inbox", "export", inbox, tmp_path / "out.db").returncode == Status.DATA
    (row,) = rows(tmp_path / "out.db", "dead_letters")
    assert row["body"] == b"\0body"
    assert row["problem"]


def test_a_file_that_sqlite_cannot_read_leaves_no_export(outbox: Path, tmp_path: Path) -> None:
    whole = bytearray(outbox.read_bytes())
    with closing(sqlite3.connect(outbox)) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'batch'").fetchone()[0]
    whole[4096 * (page - 1) : 4096 * page] = b"\xff" * 4096
    outbox.write_bytes(whole)
    refused(reliamsg_here("outbox", "export", outbox, tmp_path / "out.db"), 65, "p.db")
    assert not (tmp_path / "out.db").exists()
    assert nothing_left(tmp_path)


# -- the exported file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_the_owner_can_read_it(umask: int, outbox: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        succeeded(reliamsg_here("outbox", "export", outbox, tmp_path / "out.db"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.db").stat().st_mode) == 0o600
    assert nothing_left(tmp_path)


def test_an_existing_file_is_replaced_on_request_and_as_a_whole(outbox: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    out.write_bytes(b"before")
    out.chmod(0o644)
    refused(reliamsg_here("outbox", "export", outbox, out), 64, "out.db exists", "--replace")
    assert out.read_bytes() == b"before"

    def give_up(messages: int) -> None:
        raise InterruptedError

    for export, source in ((export_outbox, outbox), (export_inbox, inbox_of(tmp_path))):
        with pytest.raises(InterruptedError):
            export(source, out, True, give_up, print)
        assert out.read_bytes() == b"before"
        assert nothing_left(tmp_path)
    succeeded(reliamsg_here("outbox", "export", outbox, out, "--replace"))
    assert len(rows(out, "messages")) == 4
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def inbox_of(tmp_path: Path) -> Path:
    path = tmp_path / "i.db"
    path.write_bytes(seeds.inbox_file())
    return path


def test_a_file_that_appears_in_the_meantime_is_kept(tmp_path: Path) -> None:
    with ExportFile(tmp_path / "out.db") as file:
        file.create(Table("t", {"id": int}, pk="id"))
        file.add("t", {"id": 1})
        os.close(create_private(tmp_path / "out.db"))
        with pytest.raises(ConfigError, match="exists"):
            file.finish({})
    assert (tmp_path / "out.db").read_bytes() == b""
    assert nothing_left(tmp_path)


PLACES: dict[str, tuple[Callable[[Path, Path], object], int, str]] = {
    "the outbox": (lambda out, outbox: os.link(outbox, out), 64, "an outbox or inbox is not replaced"),
    "another inbox": (
        lambda out, _: out.write_bytes(seeds.inbox_file()), 64, "an outbox or inbox is not replaced",
    ),
    "a directory": (lambda out, _: out.mkdir(), 64, "a directory"),
    "a pipe": (lambda out, _: os.mkfifo(out), 64, "a named pipe"),
    "a link": (lambda out, outbox: out.symlink_to(outbox), 64, "a symbolic link"),
    "a file that is open": (
        lambda out, _: out.with_name(f"{out.name}-wal").touch(), 64, "a program has",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLACES)
def test_what_is_not_replaced(what: str, outbox: Path, tmp_path: Path) -> None:
    make, status, words = PLACES[what]
    out = tmp_path / "out.db"
    make(out, outbox)
    before = outbox.read_bytes()
    refused(reliamsg_here("outbox", "export", outbox, out, "--replace"), status, words)
    assert outbox.read_bytes() == before
    assert nothing_left(tmp_path)


def test_names_of_files_that_belong_to_the_outbox(outbox: Path, tmp_path: Path) -> None:
    refused(reliamsg_here("outbox", "export", outbox, f"{outbox}-journal", "--replace"), 64, "p.db-journal")
    refused(reliamsg_here("outbox", "export", outbox, outbox, "--replace"), 64, "not replaced")


def test_a_place_that_cannot_be_written(outbox: Path, tmp_path: Path) -> None:
    for name in ("absent/out.db", "p.db/out.db"):
        refused(reliamsg_here("outbox", "export", outbox, tmp_path / name), 74, name)


def test_a_full_disk(tmp_path: Path) -> None:
    make_outbox(tmp_path / "p.db", 4, [os.urandom(10_000)] * 100)
    disk = tmp_path / "small"
    with small_disk(disk):
        (disk / "out.db").write_bytes(b"before")
        result = reliamsg_here("outbox", "export", tmp_path / "p.db", disk / "out.db", "--replace")
        refused(result, 74, "out.db", "full")
        assert [path.name for path in disk.iterdir()] == ["out.db"]
        assert (disk / "out.db").read_bytes() == b"before"


def test_sigterm_leaves_nothing(tmp_path: Path) -> None:
    """Delivered while the export runs: it looks for a signal after each batch."""
    make_outbox(tmp_path / "p.db", 2, [b"x"])
    code = (
        "import os, signal, sys\n"
        "from reliamsg.cli import main\n"
        "from reliamsg.inspection import outbox_export\n"
        "def add(*given, add=outbox_export._add_batch):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    add(*given)\n"
        "outbox_export._add_batch = add\n"
        "sys.exit(main(['outbox', 'export', 'p.db', 'out.db']))\n"
    )
    done = run_child([sys.executable, "-c", code], cwd=tmp_path, env=environment())
    refused(done, 143, "nothing was written")
    assert not (tmp_path / "out.db").exists()
    assert nothing_left(tmp_path)


def make_outbox(path: Path, batches: int, bodies: list[bytes]) -> None:
    outbox = Outbox(path, "p", 5_000_000, 0, "b" * 16)
    stream = outbox.stream("orders", 0)
    new = []
    for number in range(batches):
        first = 1 + number * len(bodies)
        frame = encode(
            Origin(stream.stream, outbox.epoch, outbox.incarnation), first, (1, 2), Records(list(bodies))
        )
        new.append(NewBatch(stream, first, len(bodies), frame))
    outbox.append(new, [], 7_000, 0)
    outbox.close()


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    make_outbox(tmp_path / "p.db", 40, [bytes([n]) * 20_000 for n in range(50)])
    assert (tmp_path / "p.db").stat().st_size > 40_000_000
    tracemalloc.start()
    try:
        found = export_outbox(tmp_path / "p.db", tmp_path / "out.db", False, lambda _: None, print)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["messages"] == 2_000
    assert peak < 20_000_000


# -- arguments, files of other kinds, and the package that exports need --------------------------------------------

COMMANDS = {
    "outbox show": ["outbox", "show"],
    "outbox export": ["outbox", "export"],
    "inbox dead-letters": ["inbox", "dead-letters"],
    "inbox export": ["inbox", "export"],
}


def call(command: str, path: Path, *more: str) -> subprocess.CompletedProcess[bytes]:
    out = [str(path.parent / "out.db")] if "export" in command else []
    return reliamsg_here(*COMMANDS[command], path, *out, *more)


@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_another_kind(command: str, tmp_path: Path) -> None:
    kind = command.split(maxsplit=1)[0]
    make = {"outbox": seeds.outbox_file, "inbox": seeds.inbox_file}
    (other,) = set(make) - {kind}
    text, wrong, pipe, newer, older = (
        tmp_path / name for name in ("text", "wrong", "pipe", "newer", "older")
    )
    text.write_text("this is no database, and long enough to show it" * 100)
    wrong.write_bytes(make[other]())
    os.mkfifo(pipe)
    for path, version in ((newer, 999), (older, 1)):
        path.write_bytes(make[kind]())
        change(path, f"PRAGMA user_version = {version}")
    refused(call(command, text), 65, "text")
    refused(call(command, tmp_path / "absent"), 65, "no such file")
    refused(call(command, wrong), 65, f"this is an {other}, not an {kind}")
    refused(call(command, pipe), 65, "not a file")
    refused(call(command, tmp_path), 64, "directory")
    refused(call(command, newer), 65, "newer", "upgrade reliamsg")
    refused(call(command, older), 65, "older version")
    assert not (tmp_path / "out.db").exists()
    assert nothing_left(tmp_path)


def test_options_can_be_environment_variables(
    outbox: Path, inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIAMSG_OUTBOX_SHOW_LIMIT", "1")
    assert len(lines(succeeded(reliamsg_here("outbox", "show", outbox, "--json")))) == 1
    monkeypatch.setenv("RELIAMSG_INBOX_EXPORT_REPLACE", "1")
    (tmp_path / "out.db").touch()
    succeeded(reliamsg_here("inbox", "export", inbox, tmp_path / "out.db"))


@pytest.mark.parametrize("command", [c for c in COMMANDS if "export" in c])
def test_without_sqlite_utils(
    command: str, outbox: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "sqlite_utils", None)
    path = outbox if command.startswith("outbox") else inbox
    refused(call(command, path), 69, "pip install 'reliamsg[inspect]'")
    assert not (tmp_path / "out.db").exists()
    for other in ("outbox show", "inbox dead-letters"):
        succeeded(call(other, outbox if other.startswith("outbox") else inbox))


def test_only_exports_import_sqlite_utils_and_none_runs_its_plugins(outbox: Path, tmp_path: Path) -> None:
    """A plugin is code that another package registered: an export neither loads nor calls it."""
    (tmp_path / "plugin.py").write_text("open('loaded', 'w').close()\n")
    registered = tmp_path / "plugin-1.dist-info"
    registered.mkdir()
    (registered / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (registered / "entry_points.txt").write_text("[sqlite_utils]\nplugin = plugin\n")
    look = (
        "import sys\nfrom reliamsg.cli import main\n"
        "assert main(['outbox', 'show', 'p.db']) == 0 and 'sqlite_utils' not in sys.modules\n"
        "assert main(['outbox', 'export', 'p.db', 'out.db']) == 0 and 'sqlite_utils' in sys.modules\n"
    )
    use = "import sqlite_utils\nsqlite_utils.Database('out.db')\n"
    for code, loaded in ((look, False), (use, True)):
        variables = environment(PYTHONPATH=str(tmp_path))
        run_child([sys.executable, "-c", code], cwd=tmp_path, env=variables, check=True)
        assert (tmp_path / "loaded").exists() == loaded
