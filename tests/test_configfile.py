"""Configuration files: every setting, every mistake, and no secret in any message."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reliamsg import Consumer, JournalExport, Producer, Quorum, Site, aio
from reliamsg.configfile import (
    ConsumerTable,
    JournalTable,
    ProducerTable,
    SiteTable,
    read_config,
)
from reliamsg.configschema import SETTINGS, schema
from reliamsg.errors import ConfigError
from tests.docs.blocks import blocks
from tests.docs.settings import PAGE, with_tables

ROOT = Path(__file__).parent.parent
MARK = "S3cretMARKER"

GOOD = """\
[sites.dc1]
url = "amqps://rabbit.example"
user = "till"
password = { env = "DC1_PASSWORD" }
heartbeat = 5

[sites.dc2]
url = "mqtt://mosquitto.example"

[producers.till]
outbox = "till.db"
groups = { orders = ["billing"] }
confirm = 2

[producers.till.journal]
target = "journals"
when_full = "truncate"

[consumers.billing]
topics = ["orders"]
inbox = "billing.db"
sites = ["dc2"]
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a file and returns its path."""
    monkeypatch.setenv("DC1_PASSWORD", MARK)
    monkeypatch.delenv("RELIAMSG_CONFIG", raising=False)

    def write(text: str, mode: int = 0o644) -> Path:
        path = tmp_path / "reliamsg.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


@pytest.mark.parametrize(
    ("made", "table", "elsewhere", "added"),
    [
        # A callback can't be written in a file; the first argument is the name of the table.
        (Site, SiteTable, {"name", "credentials"}, {"user", "password"}),
        (Producer, ProducerTable, {"producer_id", "on_error"}, set()),
        (Consumer, ConsumerTable, {"group", "on_late", "on_error"}, set()),
        (JournalExport, JournalTable, set(), set()),
        (aio.Producer, ProducerTable, {"producer_id", "on_error"}, set()),
        (aio.Consumer, ConsumerTable, {"group", "on_late", "on_error"}, set()),
    ],
)
def test_every_setting_can_be_written(
    made: Callable[..., object], table: Any, elsewhere: set[str], added: set[str]
) -> None:
    arguments = set(inspect.signature(made).parameters)
    assert elsewhere <= arguments
    assert set(table.__struct_fields__) == arguments - elsewhere | added


def test_a_file_becomes_arguments(write: Callable[..., Path], tmp_path: Path) -> None:
    file = read_config(write(GOOD))
    producer, consumer = file.producer(), file.consumer("billing")
    first, second = producer.pop("sites")
    assert (first.name, first.shown_url, first.heartbeat) == ("dc1", "amqps://rabbit.example:5671//", 5)
    assert first.login() == ("till", MARK)
    assert consumer.pop("sites") == (second,)
    assert producer == {
        "producer_id": "till",
        "outbox": str(tmp_path / "till.db"),
        "groups": {"orders": ["billing"]},
        "confirm": Quorum(2),
        "journal": JournalExport(str(tmp_path / "journals"), when_full="truncate"),
    }
    assert consumer == {"group": "billing", "topics": ["orders"], "inbox": str(tmp_path / "billing.db")}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("heartbeat", "hartbeat", "sites.dc1.hartbeat: unknown key; did you mean 'heartbeat'?"),
        ("heartbeat = 5", "zzz = 5", "sites.dc1.zzz: unknown key (known: url, user, password, tls, auth, "),
        ("heartbeat = 5", 'heartbeat = "5"', "sites.dc1.heartbeat: expected float, got str"),
        ("heartbeat = 5", "heartbeat = true", "sites.dc1.heartbeat: expected float, got bool"),
        ("heartbeat = 5", "heartbeat = 0", "sites.dc1.heartbeat: expected float > 0.0"),
        ("heartbeat = 5", "heartbeat = nan", "sites.dc1.heartbeat: expected float > 0.0"),
        ("heartbeat = 5", "heartbeat = 2020-01-01", "sites.dc1.heartbeat: expected float, got date"),
        ("heartbeat = 5", "prefetch = 2.5", "sites.dc1.prefetch: expected int, got float"),
        ("heartbeat = 5", "prefetch = 70000", "sites.dc1.prefetch: expected int <= 65535"),
        ("heartbeat = 5", "backoff_min = 60", "[sites.dc1]: site dc1: backoff_max is below backoff_min"),
        ("heartbeat = 5", 'declare = "never"', "sites.dc1.declare: choose 'create' or 'passive' or 'none'"),
        (
            "heartbeat = 5",
            'tls = { cafile = "none.pem" }',
            "sites.dc1.tls: {dir}/none.pem: no certificates in PEM format: [Errno 2] No such file or directory",
        ),
        (
            "heartbeat = 5",
            'tls = { keyfile = "key.pem" }',
            "sites.dc1.tls.keyfile: it needs sites.dc1.tls.certfile",
        ),
        ("heartbeat = 5", "tls = { ca = 1 }", "sites.dc1.tls.ca: unknown key; did you mean 'cafile'?"),
        (
            "amqps://",
            "http://",
            "[sites.dc1]: site dc1: the URL must start with amqp://, amqps://, mqtt://, ",
        ),
        ('user = "till"\n', "", "sites.dc1.password: it needs sites.dc1.user"),
        (
            '"DC1_PASSWORD"',
            '"DC9_PASSWORD"',
            "sites.dc1.password: the environment variable DC9_PASSWORD is not set",
        ),
        (
            "{ env = ",
            "{ evn = ",
            "sites.dc1.password.evn: unknown key; did you mean 'env'?",
        ),
        ('{ env = "DC1_PASSWORD" }', "{}", "sites.dc1.password: give either env or file"),
        (
            '{ env = "DC1_PASSWORD" }',
            '{ file = "none" }',
            "sites.dc1.password: {dir}/none: No such file or directory",
        ),
        (
            "[sites.dc1]",
            '[sites."dc+1"]',
            "[sites.dc+1]: site name 'dc+1' contains '+', which names can't have",
        ),
        ("[producers.till]", "[producer.till]", "producer: unknown key; did you mean 'producers'?"),
        ("confirm = 2", "confirm = 3", "producers.till.confirm: Quorum(3) can't be met with 2 sites"),
        ("confirm = 2", "confirm = 0", "producers.till.confirm: expected int >= 1"),
        (
            "confirm = 2",
            'confirm = "every"',
            "producers.till.confirm: choose 'all' or 'any' or 'all-active'",
        ),
        ("confirm = 2", "max_bytes = 10", "producers.till.max_bytes: expected int >= 1024"),
        ("confirm = 2", 'compression = "gzip"', "producers.till.compression: choose 'zstd'"),
        ("confirm = 2", 'keys = "none"', "producers.till.keys: {dir}/none: No such file or directory"),
        ('["billing"]', '"billing"', "producers.till.groups[...]: expected array, got str"),
        ('outbox = "till.db"\n', "", "[producers.till]: outbox is missing"),
        ("when_full", "when_ful", "producers.till.journal.when_ful: unknown key; did you mean 'when_full'?"),
        ('"truncate"', '"drop"', "producers.till.journal.when_full: choose 'block' or 'truncate'"),
        (
            'when_full = "truncate"',
            "max_backlog_rows = 100",
            "producers.till.journal: journal: max_backlog_rows must be at least 20000, not 100",
        ),
        ('["dc2"]', '["dc3"]', "consumers.billing.sites: there is no [sites.dc3]; did you mean 'dc2'?"),
        ('["dc2"]', "[]", "consumers.billing.sites: expected array of length >= 1"),
        ('topics = ["orders"]\n', "", "[consumers.billing]: topics is missing"),
        (
            "[sites.dc1]",
            "[sites.dc1",
            "not TOML: Expected ']' at the end of a table declaration (at line 1, column 11)",
        ),
        ("[sites.dc1]", "[x]\n[sites.dc1]", "x: unknown key (known: sites, producers, consumers)"),
    ],
)
def test_mistakes(write: Callable[..., Path], tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    path = write(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_config(path).check()
    text = str(caught.value)
    assert text.startswith(f"{path}: {says.replace('{dir}', str(tmp_path))}")
    assert MARK not in text


def test_a_client_is_named_unless_it_is_the_only_one(write: Callable[..., Path]) -> None:
    path = write(GOOD + '[producers.web]\noutbox = "web.db"\n')
    assert read_config(path).producer("web")["producer_id"] == "web"
    with pytest.raises(ConfigError, match="the file has several producers: name one of till, web"):
        read_config(path).producer()
    with pytest.raises(ConfigError, match=r"there is no \[consumers.biling\]; did you mean 'billing'\?"):
        read_config(path).consumer("biling")
    with pytest.raises(ConfigError, match=r"the file has no \[consumers.NAME\]"):
        read_config(write(GOOD.split("[consumers", maxsplit=1)[0])).consumer()
    with pytest.raises(ConfigError, match=r"a producer needs a site, and the file has no \[sites.NAME\]"):
        read_config(write('[producers.p]\noutbox = "p.db"\n')).producer()


@pytest.mark.parametrize(
    "inline",
    [f'url = "amqp://till:{MARK}@h"', f'url = "amqp://h"\nuser = "till"\npassword = "{MARK}"'],
)
def test_a_password_needs_a_private_file(write: Callable[..., Path], inline: str) -> None:
    for mode in (0o600, 0o640):
        file = read_config(write(f"[sites.dc1]\n{inline}\n", mode))
        site = file.site("dc1")
        assert site.login() == ("till", MARK)
        for shown in (repr(file), repr(site), repr(site.credentials), str(vars(file)), str(vars(site))):
            assert MARK not in shown
    for mode in (0o644, 0o660):
        with pytest.raises(
            ConfigError, match="it contains a password, so it must belong to you or root"
        ) as caught:
            read_config(write(f"[sites.dc1]\n{inline}\n", mode))
        assert MARK not in str(caught.value)


def test_a_password_file_is_read_for_every_connection(write: Callable[..., Path], tmp_path: Path) -> None:
    text = '[sites.dc1]\nurl = "amqp://h"\nuser = "till"\npassword = { file = "secret" }\n'
    (tmp_path / "secret").write_text("first\n")
    site = read_config(write(text)).site("dc1")
    assert site.login() == ("till", "first")
    (tmp_path / "secret").write_text("second")
    assert site.login() == ("till", "second")


def test_a_url_may_be_a_secret(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BROKER", f"amqp://till:{MARK}@h/v")
    site = read_config(write('[sites.dc1]\nurl = { env = "BROKER" }\n')).site("dc1")
    assert (site.vhost, site.login()) == ("v", ("till", MARK))


def test_the_file_is_named_by_the_environment(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no configuration file: give its path, or set RELIAMSG_CONFIG"):
        read_config()
    monkeypatch.setenv("RELIAMSG_CONFIG", str(write(GOOD)))
    assert read_config().producer_names == ("till",)


MEMORY = """\
[sites.dc1]
url = "memory://configfile"
[producers.till]
outbox = "till.db"
groups = { orders = ["billing"] }
[consumers.billing]
topics = ["orders"]
inbox = "billing.db"
"""


def test_clients_are_opened_from_a_file(write: Callable[..., Path]) -> None:
    path = write(MEMORY)
    errors: list[BaseException] = []
    with (
        Producer.from_config(path, on_error=errors.append) as producer,
        Consumer.from_config(path, "billing", on_gap=lambda gap: "wait") as consumer,
    ):
        producer.publish("orders", b"one")
        message = consumer.get(timeout=60)
        assert message is not None
        assert message.body == b"one"
        message.ack()
    with pytest.raises(ConfigError, match="max_bytes"):
        Producer.from_config(path, max_bytes=-1)

    async def asynchronous() -> bytes:
        async with aio.Producer.from_config(path) as producer, aio.Consumer.from_config(path) as consumer:
            await producer.publish("orders", b"two")
            message = await consumer.get(timeout=60)
            assert message is not None
            message.ack()
            return bytes(message.body)

    assert asyncio.run(asynchronous()) == b"two"


def test_the_schema_is_valid_and_accepts_what_the_reader_accepts() -> None:
    Draft202012Validator.check_schema(schema())
    validator = Draft202012Validator(schema())
    validator.validate(tomllib.loads(GOOD))
    assert not validator.is_valid(tomllib.loads(GOOD.replace("heartbeat", "hartbeat")))
    assert not validator.is_valid(tomllib.loads(GOOD.replace("confirm = 2", "confirm = 0")))


def test_every_setting_is_described_and_has_the_default_of_its_constructor() -> None:
    unwritable = {"tls", "keys", "key", "journal", "groups", "compression"}
    tables: dict[str, tuple[type, Any]] = {
        "sites": (SiteTable, Site), "producers": (ProducerTable, Producer),
        "consumers": (ConsumerTable, Consumer), "journal": (JournalTable, JournalExport),
    }  # fmt: skip
    for kind, (table, constructor) in tables.items():
        properties = schema()["$defs"][table.__name__]["properties"]
        arguments = inspect.signature(constructor).parameters
        assert set(properties) == set(SETTINGS[kind])
        for name, setting in properties.items():
            assert setting["description"] == SETTINGS[kind][name]
            if name in arguments and name not in unwritable:
                default = arguments[name].default
                assert setting.get("default", inspect.Parameter.empty) == default, name
            else:
                assert "default" not in setting


def test_the_page_of_settings_is_that_of_the_schema() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "python -m tests.docs.settings"


def test_every_documented_file_is_valid(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    validator = Draft202012Validator(schema())
    found = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in blocks(page.read_text()):
            is_config = "[sites." in block.text or "[producers." in block.text
            if block.kind == "toml" and is_config and not block.text.startswith("# rates.toml"):
                found += 1
                validator.validate(tomllib.loads(block.text))
                read_config(write(block.text, 0o600))
    assert found >= 4


# -- random files ---------------------------------------------------------------------------------------------

seconds = st.floats(min_value=0.06, max_value=1e6) | st.integers(min_value=1, max_value=10**6)
sizes = st.integers(min_value=2048, max_value=60_000)
names = st.text("abcdefghij/.- é", min_size=1, max_size=12).filter(lambda name: name[0] not in "$/")


def settings_of(
    table: Any, without: set[str], **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Random values of every key of a table, each of which may be absent."""
    chosen: dict[str, st.SearchStrategy[Any]] = {}
    properties = schema()["$defs"][table.__name__]["properties"]
    for name, kind in properties.items():
        if name in more or name in without:
            continue
        if "enum" in kind:
            chosen[name] = st.sampled_from(kind["enum"])
        else:
            chosen[name] = {"number": seconds, "integer": sizes, "boolean": st.booleans()}[kind["type"]]
    return st.fixed_dictionaries({}, optional={**chosen, **more})


clients = {
    "producers": settings_of(
        ProducerTable,
        {"outbox", "sites", "keys", "journal", "compression"},
        groups=st.dictionaries(names, st.lists(names, min_size=1, max_size=2), max_size=2),
        confirm=st.sampled_from(["all", "any", "all-active", 1]),
        max_repair_bytes_per_second=st.sampled_from(["unlimited", 5000, 1e6]),
    ),
    "consumers": settings_of(ConsumerTable, {"topics", "inbox", "sites", "keys", "journal"}),
    "sites": settings_of(
        SiteTable, {"url", "user", "password", "tls", "auth", "backoff_min"}, backoff_max=st.floats(10, 100)
    ),
}


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(site=clients["sites"], producer=clients["producers"], consumer=clients["consumers"], name=names)
def test_random_settings_arrive(
    write: Callable[..., Path], site: Any, producer: Any, consumer: Any, name: str
) -> None:
    tables = {
        f"sites.{json.dumps(name, ensure_ascii=False)}": {"url": "amqp://h", **site},
        "producers.p": {"outbox": "p.db", **producer},
        "consumers.c": {"inbox": "c.db", "topics": ["t"], **consumer},
    }
    lines = [
        line
        for title, table in tables.items()
        for line in [f"[{title}]", *(f"{key} = {toml(value)}" for key, value in table.items())]
    ]
    file = read_config(write("\n".join(lines)))
    found = file.producer()
    assert found.pop("sites") == (Site(name, "amqp://h", **site),) == file.consumer().pop("sites")
    directory = str(file.path.parent)
    expected = {"producer_id": "p", "outbox": os.path.join(directory, "p.db"), **producer}
    if expected.get("confirm") == 1:
        expected["confirm"] = Quorum(1)
    if expected.get("max_repair_bytes_per_second") == "unlimited":
        expected["max_repair_bytes_per_second"] = None
    assert found == expected
    found = file.consumer()
    del found["sites"]
    expected = {"group": "c", "inbox": os.path.join(directory, "c.db"), "topics": ["t"], **consumer}
    assert found == expected
