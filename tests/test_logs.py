"""Log records: each has an event and fields, and the page of events says the same as the source."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from reliamsg import Consumer, Message, Producer
from reliamsg.logs import Log
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome
from tests.patience import patient, wait_for
from tests.test_imports import SOURCE, modules, name_of, part_of

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "log-events.md"
METHODS = ("debug", "info", "warning", "error")
OTHER_METHODS = ("critical", "exception", "fatal", "log", "warn")
OPTIONS = {"exc_info"}
STANDARD_LOGGING = {
    "__init__": "adds a NullHandler",
    "cli": "configures the log of its process",
    "lab": "is not part of the product; here, configures the log of amqtt",
    "logs": "is what all others use",
    "simulation": "silences the product",
    "transport/amqp/pika_logging": "filters pika's records",
}
"""Who uses the standard library's loggers directly, and why."""
USES = re.compile(r"log(ger)?\.\w+\(")
IMPORTS = re.compile(r"^ *(import|from) logging\b", re.MULTILINE)
RESERVED = vars(logging.makeLogRecord({})).keys() | {
    "message",
    "asctime",
    "time",
    "level",
    "logger",
    "event",
    "fields",
}


class Call(NamedTuple):
    """A call in the source that logs an event."""

    where: str
    event: str
    level: str
    text: str
    fields: tuple[str, ...]


def log_calls() -> Iterator[tuple[str, ast.Call, str]]:
    """All calls on something named ``log`` or ``_log``: the file, the call, and the method."""
    for path in modules():
        source = path.read_text()
        if part_of(path) == "logs" or part_of(path).startswith("lab") or not USES.search(source):
            continue  # the laboratory has classes of that name that write other files
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
                if name in ("log", "_log", "logger", "_logger") and node.func.attr in METHODS + OTHER_METHODS:
                    yield name_of(path), node, node.func.attr


def constants(module: str) -> dict[str, str]:
    """The texts that a module names."""
    found = {}
    for node in ast.parse((SOURCE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            found[node.targets[0].id] = value if isinstance(value, str) else ""
    return found


def calls() -> list[Call]:
    found = []
    texts = constants("transport/amqp/topology")
    for module, node, method in log_calls():
        where = f"{module}:{node.lineno}"
        assert method in METHODS, f"{where}: Log has no {method}()"
        assert len(node.args) == 2, f"{where}: an event and a message"
        event, message = node.args
        text = texts[message.id] if isinstance(message, ast.Name) else ast.literal_eval(message)
        names = [keyword.arg for keyword in node.keywords]
        assert None not in names, f"{where}: fields are written out"
        fields = tuple(sorted(name for name in names if name is not None and name not in OPTIONS))
        found.append(Call(where, ast.literal_eval(event), method, text, fields))
    return found


CALLS = calls()


def test_nobody_else_logs() -> None:
    importers = {name_of(path) for path in modules() if IMPORTS.search(path.read_text())}
    assert {name for name in importers if name.split("/")[0] not in STANDARD_LOGGING} == {
        name for name in STANDARD_LOGGING if "/" in name
    }


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.event} {call.where}")
def test_a_call_makes_a_record(call: Call) -> None:
    assert re.fullmatch(r"(client|consumer|export|producer|store|transport)\.[a-z]+(_[a-z]+)*", call.event)
    part, prefix = call.where.split("/")[0], call.event.split(".")[0]
    assert prefix == {"runtime": "client"}.get(part, part) or part == "aio"
    placeholders = set(re.findall(r"%\((\w+)\)", call.text))
    assert placeholders <= set(call.fields), "the message takes its values from the fields"
    assert "%" not in re.sub(r"%\(\w+\)(s|r|d|\.1f)", "", call.text)
    assert not RESERVED & set(call.fields), (
        "fields can be merged into a record, or into a line with these names"
    )


def test_an_event_has_one_level_and_one_set_of_fields() -> None:
    kinds: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for call in CALLS:
        kinds.setdefault(call.event, set()).add((call.level, call.fields))
    assert {event: kind for event, kind in kinds.items() if len(kind) > 1} == {}


def rows() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The level and fields of each event that the page has."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in PAGE.read_text().splitlines():
        if re.match(r"\| `\w+\.\w+`", line):
            event, level, fields, *texts = (cell.strip() for cell in line.strip("|").split("|"))
            assert len(texts) == 2, f"{event}: what it means and what to do"
            assert all(texts), f"{event}: what it means and what to do"
            name = event.strip("`")
            assert name not in found, f"{name} has two rows"
            found[name] = level.lower(), tuple(sorted(re.findall(r"`(\w+)`", fields)))
    return found


def test_the_page_lists_every_warning_and_error() -> None:
    assert rows() == {
        call.event: (call.level, call.fields) for call in CALLS if call.level in ("warning", "error")
    }


class TestLog:
    def test_a_record(self, caplog: pytest.LogCaptureFixture) -> None:
        Log("reliamsg.tests").warning("tests.happened", "%(what)s happened: %(count)d", what="it", count=2)
        (record,) = caplog.records
        assert (record.name, record.levelname, record.getMessage()) == (
            "reliamsg.tests", "WARNING", "it happened: 2",
        )  # fmt: skip
        assert (of(record), fields_of(record)) == ("tests.happened", {"what": "it", "count": 2})
        assert record.funcName == "test_a_record"
        assert record.exc_info is None

    def test_levels(self, caplog: pytest.LogCaptureFixture) -> None:
        log = Log("reliamsg.tests")
        with caplog.at_level(logging.DEBUG, "reliamsg.tests"):
            for method in METHODS:
                getattr(log, method)("tests.happened", "it happened")
        assert [record.levelname.lower() for record in caplog.records] == list(METHODS)
        assert {record.getMessage() for record in caplog.records} == {"it happened"}

    def test_an_exception(self, caplog: pytest.LogCaptureFixture) -> None:
        try:
            raise ValueError("100 %")
        except ValueError as error:
            Log("reliamsg.tests").error("tests.failed", "%(reason)s", reason=str(error), exc_info=True)
        (record,) = caplog.records
        assert record.getMessage() == "100 %"
        assert record.exc_info is not None
        assert record.exc_info[0] is ValueError


def of(record: logging.LogRecord) -> str:
    """The event of a record."""
    event = vars(record)["event"]
    assert isinstance(event, str)
    return event


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = vars(record)["fields"]
    assert isinstance(fields, dict)
    return fields


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The library's records; in the end, all are as their calls in the source say."""
    caplog.set_level(logging.DEBUG, "reliamsg")
    yield caplog
    kinds = {call.event: (call.level, call.fields) for call in CALLS}
    own = [record for record in caplog.get_records("call") if record.name.startswith("reliamsg")]
    assert own
    for record in own:
        fields = fields_of(record)
        assert (record.levelname.lower(), tuple(sorted(fields))) == kinds[of(record)]
        assert json.loads(json.dumps(fields)) == fields, "plain values"


def has(records: pytest.LogCaptureFixture, event: str, **fields: object) -> bool:
    """Whether there is a record of this event with at least these fields."""
    return any(
        vars(record).get("event") == event and fields.items() <= fields_of(record).items()
        for record in records.records
    )


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


def test_a_site_that_goes_and_comes(
    network: MemoryNetwork, tmp_path: Path, records: pytest.LogCaptureFixture
) -> None:
    with (
        Producer("p", network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]}) as producer,
        Consumer("g", network.sites, topics=["t"], inbox=tmp_path / "g.db") as consumer,
    ):
        wait_for(lambda: all(site.connected for site in producer.status().sites.values()), "connected")
        wait_for(lambda: consumer.status().sites["dc1"].state == "connected", "read")
        network["dc1"].down()
        for event in (
            "producer.site_disconnected", "producer.site_unreachable", "consumer.site_disconnected",
            "consumer.site_unreachable",
        ):  # fmt: skip
            wait_for(lambda event=event: has(records, event, site="dc1"), event)
        assert has(records, "producer.site_unreachable", producer="p", state="unreachable")
        assert has(records, "consumer.site_unreachable", group="g", state="unreachable")
        network["dc1"].up()
        wait_for(lambda: producer.status().sites["dc1"].connected, "connected")
        network["dc2"].block("low on disk")
        wait_for(lambda: has(records, "producer.site_blocked", site="dc2", reason="low on disk"), "blocked")


def test_a_parked_stream_and_what_is_left(
    network: MemoryNetwork, tmp_path: Path, records: pytest.LogCaptureFixture
) -> None:
    network["dc1"].refuse("t", Outcome.NACKED)
    producer = Producer("p", network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]})
    producer.publish("t", b"1")
    wait_for(lambda: has(records, "producer.stream_parked", producer="p", stream="p/t", site="dc1"), "parked")
    assert producer.close(0).messages == 1
    network["dc1"].down()
    with Producer("p", network.sites[1:], outbox=tmp_path / "p.db", groups={"t": ["g"]}):
        pass
    assert has(records, "producer.site_forgotten", producer="p", site="dc1")


def test_a_handler_that_fails_and_its_dead_letter(
    network: MemoryNetwork, tmp_path: Path, records: pytest.LogCaptureFixture
) -> None:
    with (
        Producer("p", network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]}) as producer,
        Consumer("g", network.sites, topics=["t"], inbox=tmp_path / "g.db", max_deliveries=1) as consumer,
    ):
        published = producer.publish("t", b"1").id
        producer.publish("t", b"2")

        def handle(message: Message) -> None:
            if message.body == b"1":
                raise ValueError("it is cursed")
            consumer.stop()

        consumer.run(handle)
    failed = {"group": "g", "message_id": str(published), "error": "ValueError", "reason": "it is cursed"}
    assert has(records, "consumer.handler_failed", **failed)
    assert has(records, "consumer.dead_letter", group="g", message_id=str(published), attempts=1)


def test_a_gap_that_holds_its_stream(
    network: MemoryNetwork, tmp_path: Path, records: pytest.LogCaptureFixture
) -> None:
    network["dc2"].down()
    with (
        Producer(
            "p", network.sites, outbox=tmp_path / "p.db", groups={"t": ["g"]}, confirm="any"
        ) as producer,
        Consumer(
            "g", network.sites, topics=["t"], inbox=tmp_path / "g.db", gap_timeout=0.2, repair_timeout=0.2
        ) as consumer,
    ):
        producer.publish("t", b"1").wait(patient(10))
        message = consumer.get(timeout=patient(10))
        assert message is not None
        message.ack()
        network["dc1"].down()
        second = producer.publish("t", b"2").id
        assert second is not None
        producer.remove(second)
        producer.publish("t", b"3")
        network["dc1"].up()
        wait_for(lambda: has(records, "consumer.gap_held", group="g", stream="p/t", first=2, last=2), "held")
