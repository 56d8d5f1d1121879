"""Commands with a configuration file: what is in it applies, and options override it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reliamsg.cli.status import Status
from tests.cli.commands import Sites, json_of, refused, reliamsg, reliamsg_here, succeeded

FILE = """\
[sites.dc1]
url = "{dc1}"
mqtt_version = "5"

[sites.dc2]
url = "{dc2}"

[producers.till]
outbox = "till.db"
groups = {{ "{topic}" = ["{group}"] }}
release = "consumed"
retain_seconds = 7.0

[consumers."{group}"]
topics = ["{topic}"]
inbox = "billing.db"
"""


@pytest.fixture
def file(mqtt: Sites, unique: str) -> Path:
    urls = [argument.partition("=")[2] for argument in mqtt.arguments[1::2]]
    path = mqtt.directory / "reliamsg.toml"
    path.write_text(FILE.format(dc1=urls[0], dc2=urls[1], topic=f"t-{unique}", group=f"g-{unique}"))
    return path


def test_commands_use_the_file(file: Path, unique: str) -> None:
    topic, group, config = f"t-{unique}", f"g-{unique}", ("--config", file)
    text = succeeded(reliamsg_here("group", "create", group, *config)).decode()
    assert [line.split(" (")[0] for line in text.splitlines()] == [
        f"{site}: group {group} keeps {topic}" for site in ("dc1", "dc2")
    ]
    # With release="consumed" it would wait for the group: an option overrides that.
    succeeded(reliamsg("pub", topic, *config, "--release", "confirmed", stdin=b"one\ntwo\n"))
    succeeded(reliamsg("pub", topic, "--release", "confirmed", stdin=b"three\n", RELIAMSG_CONFIG=str(file)))
    found = reliamsg("sub", "--count", "3", "--timeout", "60", *config)
    assert succeeded(found) == b"one\ntwo\nthree\n"
    outbox = file.parent / "till.db"
    info = json_of(succeeded(reliamsg_here("outbox", "stats", outbox, "--json")))
    assert (info["producer"], info["groups"]) == ("till", {topic: [group]})
    assert "nothing remains" in succeeded(reliamsg("outbox", "drain", outbox, *config)).decode()
    refused(reliamsg_here("group", "delete", group, *config), Status.USAGE, "--topic")
    succeeded(reliamsg_here("group", "delete", group, "--topic", topic, *config))


def test_options_replace_the_sites_of_the_file(file: Path, unique: str, nowhere: Sites) -> None:
    arguments = [*nowhere.arguments, "--timeout", "0.1"]
    line = refused(
        reliamsg_here("group", "create", f"g-{unique}", "--config", file, *arguments),
        Status.UNAVAILABLE,
        "dc1",
    )
    assert "secret-word" not in line


def test_mistakes_name_the_file(file: Path, tmp_path: Path) -> None:
    pub = ("pub", "t", "--config", file)
    refused(reliamsg_here(*pub, "--producer", "tiil"), Status.USAGE, "[producers.tiil]; did you mean 'till'?")
    refused(reliamsg_here("sub", "t", "--config", tmp_path / "none"), Status.USAGE, "No such file")
    file.write_text(file.read_text().replace("retain_seconds", "retain_second"))
    refused(reliamsg_here(*pub), Status.USAGE, "did you mean 'retain_seconds'?")
    assert b"--config" in succeeded(reliamsg_here(*pub, "--help"))
    file.write_text('[sites.dc1]\nurl = "memory://dc1"\n')
    arguments = (*pub, "--producer", "p", "--outbox", tmp_path / "p.db")
    refused(reliamsg_here(*arguments), Status.USAGE, "in-memory")
    file.write_text("")
    refused(reliamsg_here(*arguments), Status.USAGE, "--site")
    file.write_text('[sites.dc1]\nurl = "mqtt://127.0.0.1:1"\n')
    refused(reliamsg_here("sub", "--group", "g", "--inbox", "i.db", "--config", file), Status.USAGE, "TOPIC")


def test_a_file_is_checked_without_connecting(file: Path, unique: str, tmp_path: Path) -> None:
    text = succeeded(reliamsg_here("config", "check", file)).decode()
    assert text == f"{file}: valid\n  sites: dc1, dc2\n  producers: till\n  consumers: g-{unique}\n"
    found = json_of(succeeded(reliamsg_here("config", "check", file, "--json")))
    assert found["sites"] == ["dc1", "dc2"]
    assert not (tmp_path / "till.db").exists()
    for more, says in (
        (
            '[consumers.c]\ninbox = "c.db"\ntopics = ["a", "a"]\n',
            "[consumers.c]: topics names one topic twice",
        ),
        ('[producers.c]\noutbox = "c.db"\ngroups = {a = ["+"]}\n', "[producers.c]: group '+' contains '+'"),
        (
            '[producers.c]\noutbox = "c.db"\nmax_batch_messages = 0\n',
            "producers.c.max_batch_messages: expected",
        ),
    ):
        (tmp_path / "wrong.toml").write_text(file.read_text() + more)
        refused(reliamsg_here("config", "check", tmp_path / "wrong.toml"), Status.USAGE, says)


def test_the_schema_is_printed() -> None:
    assert json.loads(succeeded(reliamsg_here("config", "schema")))["$schema"].endswith("2020-12/schema")
