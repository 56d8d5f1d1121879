"""Every parameter of every public constructor and method, given values of every wrong type: the result is a documented
error that says what is wrong, or the value was valid after all. Never an AttributeError or a TypeError, and a refused
value leaves no file and no thread."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, JournalExport, KeyRing, MessageId, Producer, Quorum, Receipt, Site
from reliamsg.errors import ConfigError, ReliamsgError
from reliamsg.testing import MemoryNetwork, inject
from tests.patience import patient

Call = Callable[[dict[str, Any]], object]


class Unhashable(list[int]):
    pass


def zoo() -> dict[str, object]:
    """Created anew for each test, since some values are used up."""
    return {
        "None": None,
        "True": True,
        "False": False,
        "zero": 0,
        "one": 1,
        "negative": -1,
        "huge": 10**5000,
        "-huge": -(10**400),
        "float": 0.5,
        "nan": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
        "1e300": 1e300,
        "decimal": Decimal(1),
        "complex": 1j,
        "number as text": "5",
        "empty text": "",
        "text": "text",
        "nul": "a\0b",
        "surrogate": "\udc80",
        "bytes": b"bytes",
        "bytearray": bytearray(b"x"),
        "memoryview": memoryview(b"x"),
        "memory": ":memory:",
        "shared memory": "file::memory:?cache=shared",
        "path": Path("no/such/place"),
        "bytes path": BytesPath(),
        "list": [],
        "list of numbers": [1, 2],
        "list of None": [None],
        "nested": [[["x"]]],
        "unhashable": Unhashable(),
        "tuple": (),
        "set": {1},
        "dict": {},
        "dict of text": {"a": "b"},
        "dict of list": {"t": ["g"]},
        "dict of numbers": {1: 2},
        "dict of None": {"a": None},
        "object": object(),
        "class": int,
        "function": lambda *_: None,
        "generator": iter([1]),
        "site": Site("dc9", "mqtt://127.0.0.1:1"),
        "list of site": [Site("dc9", "mqtt://127.0.0.1:1")],
        "module": math,
        "message id": MessageId("p", 1, "t", 0, 1),
        "odd message id": MessageId(None, "x", [], -1, 2**80),  # type: ignore[arg-type]
        "error": ValueError("x"),
        "ellipsis": ...,
    }


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"bytes.db"


def parameters(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def attempt(call: Call, arguments: dict[str, Any]) -> object:
    """The result of a call, or the documented error that it raised."""
    came: object = None
    try:
        came = call(arguments)
    except ReliamsgError as error:
        came = error
    if isinstance(came, ConfigError):
        assert 0 < len(str(came)) < 2_000, "the error says what is wrong"
    return came


@pytest.fixture(params=list(zoo()))
def wrong(request: pytest.FixtureRequest) -> Any:
    return zoo()[request.param]


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1") as network:
        yield network


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SIMPLE: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "Site": (Site, {"name": "dc1", "url": "mqtt://127.0.0.1:1"}),
    "Quorum": (Quorum, {"k": 1}),
    "KeyRing": (KeyRing, {"keys": {"k": bytes(range(32))}}),
    "JournalExport": (JournalExport, {"target": "journals"}),
}


@pytest.mark.parametrize("which", SIMPLE)
def test_settings(here: Path, which: str, wrong: Any) -> None:
    make, good = SIMPLE[which]
    for name in parameters(make):
        attempt(lambda given: make(**given), good | {name: wrong})
    assert not list(here.iterdir())


@pytest.mark.parametrize("which", ["Producer", "Consumer"])
def test_constructors(here: Path, network: MemoryNetwork, which: str, wrong: Any) -> None:
    kind: Any = {"Producer": Producer, "Consumer": Consumer}[which]
    own: dict[str, dict[str, Any]] = {
        "Producer": {"producer_id": "p", "outbox": "o.db"},
        "Consumer": {"group": "g", "topics": ["t"], "inbox": "i.db"},
    }
    threads = set(threading.enumerate())
    for name in parameters(kind):
        if name == "sites" and isinstance(wrong, list) and wrong and isinstance(wrong[0], Site):
            continue  # a valid one
        before = set(here.iterdir())
        if (
            name in ("outbox", "inbox")
            and isinstance(wrong, (str, Path))
            and str(wrong).isprintable()
            and "memory" not in str(wrong)
        ):
            continue  # a valid one
        made = attempt(
            lambda given: kind(**given),
            {"sites": network.sites, **own[which], name: wrong},
        )
        if isinstance(made, kind):
            made.close(0.0)
            for path in here.iterdir():
                if path.is_file():
                    path.unlink()
        else:
            assert isinstance(made, ReliamsgError)
            assert set(here.iterdir()) == before, f"{name}: a refusal leaves nothing"
    left = {t for t in threading.enumerate() if t.is_alive() and t.name.startswith("reliamsg")} - threads
    for thread in left:
        thread.join(patient(5))
    assert not [t for t in left if t.is_alive()]


@pytest.mark.parametrize("name", ["transports", "probe"])
def test_injections(name: str, wrong: Any) -> None:
    def enter(given: dict[str, Any]) -> None:
        with inject(**given):
            pass

    attempt(enter, {name: wrong})


def test_what_is_said_of_injections() -> None:
    words = r"transports must have open_sender and open_receiver, .* not str"
    with pytest.raises(ConfigError, match=words), inject(transports="amqp"):  # type: ignore[arg-type]
        pass


def calls_of(
    producer: Producer, consumer: Consumer, receipt: Receipt
) -> Iterator[tuple[str, Callable[..., object], dict[str, Any]]]:
    one = {"topic": "t", "body": b"x"}
    yield "publish", producer.publish, one
    yield "publish_nowait", producer.publish_nowait, one
    yield "publish_many", producer.publish_many, {"topic": "t", "bodies": [b"x"]}
    yield "add_group", producer.add_group, {"topic": "t", "group": "h"}
    yield "remove_group", producer.remove_group, {"topic": "t", "group": "h"}
    yield "remove", producer.remove, {"first": MessageId("p", 1, "t", 0, 1)}
    yield "flush", producer.flush, {"timeout": 0.0}
    yield "receipt.wait", receipt.wait, {"timeout": 0.0}
    yield "add_done_callback", receipt.add_done_callback, {"callback": print}
    yield "get", consumer.get, {"timeout": 0.0}
    yield "accept", consumer.accept, {"gap": None}
    yield "replay", consumer.replay, {"dead_letter_id": 1}
    yield "batches", consumer.batches, {"max_messages": 1, "max_wait": 0.0}


def test_methods(here: Path, network: MemoryNetwork, wrong: Any) -> None:
    with (
        Producer("p", network.sites, outbox="o.db", hello_timeout=0, groups={"t": ["g"]}) as producer,
        Consumer("g", network.sites, topics=["t"], inbox="i.db") as consumer,
    ):
        receipt = producer.publish("t", b"first")
        receipt.wait(10)
        message = consumer.get(10)
        assert message is not None
        message.ack(durable=True)
        for _, call, good in calls_of(producer, consumer, receipt):
            for name in parameters(call):
                if (name == "timeout" and wrong is None) or (call == consumer.get and wrong in (1, True)):
                    continue  # waits
                attempt(lambda given, call=call: call(**given), good | {name: wrong})  # type: ignore[misc]
        for client in (producer, consumer):
            came = attempt(lambda given, client=client: client.close(**given), {"timeout": wrong})  # type: ignore[misc]
            if not isinstance(came, ReliamsgError):
                assert isinstance(wrong, (int, float))
                assert not isinstance(wrong, bool)


def test_run(here: Path, network: MemoryNetwork, wrong: Any) -> None:
    with Consumer("g", network.sites, topics=["t"], inbox="i.db") as consumer:
        consumer.stop()
        for name in ("handler", "batch", "workers"):
            attempt(
                lambda given: consumer.run(**given),
                {"handler": print, "batch": None, "workers": 1, name: wrong},
            )


@pytest.mark.parametrize(
    "path", [":memory:", "file::memory:", "file:o.db?mode=memory", "", b"o.db", None, 5, "a\0b"]
)
def test_files_that_are_none(here: Path, network: MemoryNetwork, path: Any) -> None:
    for make in (
        lambda: Producer("p", network.sites, outbox=path),
        lambda: Consumer("g", network.sites, topics=["t"], inbox=path),
    ):
        with pytest.raises(ConfigError, match=r"outbox|inbox"):
            make()
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sites": "mqtt://h"}, "sites must be a list of Site objects"),
        ({"sites": Site("a", "mqtt://h")}, r"sites must be a list of Site objects: for one site, \[site\]"),
        ({"groups": ["billing"]}, "groups must be a mapping"),
        ({"groups": {"orders": "billing"}}, "must be a list of group names, not str"),
        ({"max_bytes": "1000000"}, "max_bytes must be a whole number, not str"),
        ({"max_bytes": 1e9}, "max_bytes must be a whole number, not float"),
        ({"retain_seconds": math.nan}, "retain_seconds must be a number"),
        ({"block_timeout": math.inf}, "block_timeout must be a number up to"),
        ({"hello_timeout": True}, "hello_timeout must be a number, not bool"),
        ({"status_interval": -1}, "status_interval must be at least 0.05"),
        ({"confirm": 2}, r"confirm=2: choose 'all' or .* or Quorum\(k\)"),
        ({"keys": {"k": b"x" * 32}}, "keys must be a KeyRing, not dict"),
        ({"on_error": "print"}, "on_error must be callable or None, not str"),
    ],
)
def test_what_is_said(here: Path, network: MemoryNetwork, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Producer(**{"producer_id": "p", "sites": network.sites, "outbox": "o.db"} | arguments)
    assert not list(here.iterdir())
