"""``reliamsg plan``: what it prints, and errors that name the file, the key and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reliamsg.cli.status import Status
from reliamsg.plan import make_plan
from tests.cli.commands import refused, reliamsg_here, succeeded
from tests.plan.examples import ONE_SITE, RATES, rates_of, write_rates

CONFIG = """\
[sites.dc1]
url = "mqtt://localhost:1883"
[sites.dc2]
url = "mqtt://localhost:1884"
[producers.till]
outbox = "till.db"
release = "consumed"
confirm = 2
[consumers.billing]
topics = ["orders"]
inbox = "billing.db"
on_gap = "skip"
gap_timeout = 20
"""


def test_the_command_prints_what_the_function_returns(tmp_path: Path) -> None:
    plan = make_plan(rates_of(tmp_path, ONE_SITE))
    found = json.loads(succeeded(reliamsg_here("plan", tmp_path / "rates.toml", "--json")))
    assert found["client"]["missing"] == plan.client.fate.missing
    assert [one["name"] for one in found["compared"]] == [one.name for one in plan.compared]
    assert {(one["from"], one["to"]) for one in found["client"]["edges"]} == set(plan.client.fate.edges)
    assert (found["reached"], found["cheapest"]) == (True, None)
    done = reliamsg_here("plan", tmp_path / "rates.toml", "--target", "1e-12")
    assert done.returncode == Status.INCOMPLETE
    text = done.stdout.decode()
    for words in ("durable -> lost", "plain paho, site dc1", "not reached", "cheapest: ", "extrapolated"):
        assert words in text


def test_settings_come_from_the_configuration_file(tmp_path: Path) -> None:
    config = tmp_path / "reliamsg.toml"
    config.write_text(CONFIG)
    found = json.loads(succeeded(reliamsg_here("plan", write_rates(tmp_path), config, "--json")))
    assert found["client"]["name"] == "reliamsg, 2 sites, release=consumed, confirm=2"
    assert found["client"]["declared"] > 0
    assert found["reached"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("restart_seconds = 30\n", "", ("producer.restart_seconds", "add it")),
        ("[traffic]", "[trafic]", ("trafic", "unknown key")),
        ("handle_seconds = 0.02", "handle_seconds = -1", ("consumer.handle_seconds", "from 0")),
        ("losing_share = 0.5", 'losing_share = "half"', ("cluster.partitions.losing_share", "expected float")),
        ("outage_seconds = 900", "outage = 900", ("outage", "remove or correct")),
        ('"autoheal"', '"pause_minority"', ("cluster.partitions.detection_seconds", "add it")),
        ('"autoheal"', '"ignore"', ("cluster.partitions.resolve_seconds", "add it")),
        ('"autoheal"', '"autoheal"\nresolve_seconds = 9', ("cluster.partitions.resolve_seconds", "remove it")),
        ('"autoheal"', '"heal"', ("cluster.partitions.handling", "autoheal")),
        ("losing_share = 0.5", "losing_share = 2", ("cluster.partitions.losing_share", "to 1")),
        ("message_bytes = 200", "message_bytes = 0", ("traffic.message_bytes", "above 0")),
        ("[traffic]", "[traffic", ("not TOML",)),
    ],
)  # fmt: skip
def test_an_error_names_file_and_key(old: str, new: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = write_rates(tmp_path, RATES.replace(old, new))
    refused(reliamsg_here("plan", path), Status.USAGE, str(path), *words)


def test_other_errors(tmp_path: Path) -> None:
    path, config = write_rates(tmp_path), tmp_path / "reliamsg.toml"
    refused(reliamsg_here("plan", tmp_path / "none.toml"), Status.USAGE, "none.toml")
    refused(reliamsg_here("plan", path, "--target", "1"), Status.USAGE, "target", "below 1")
    refused(reliamsg_here("plan", path, "--group", "billing"), Status.USAGE, "configuration file")
    config.write_text(CONFIG.replace("[sites.dc2]", "[sites.dc3]"))
    refused(reliamsg_here("plan", path, config), Status.USAGE, "sites.dc3", "add")
    config.write_text(CONFIG.replace("[consumers.billing]", '[consumers.billing]\nsites = ["dc1"]'))
    refused(reliamsg_here("plan", path, config), Status.USAGE, str(config), "producers.till.sites")
    config.write_text(CONFIG.replace("confirm = 2", "confirm = 3"))
    refused(reliamsg_here("plan", path, config), Status.USAGE, "Quorum(3)")
