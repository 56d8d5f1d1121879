"""The demo: its verdict and output; it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.children import ended, run_child
from tests.cli.commands import json_of, refused, reliamsg, start, succeeded
from tests.patience import wait_for


def processes_with(text: str) -> list[int]:
    """Process ids whose command line contains `text`, without ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it exited meanwhile
    return found


COUNT = 2000


def demo(kind: str, place: Path, **variables: Any) -> dict[str, Any]:
    """The output of a demo that lost nothing, and whose faults mattered."""
    result = reliamsg(
        "demo", "--messages", str(COUNT), "--sites", kind, "--dir", place, "--json", timeout=800, **variables
    )
    found: dict[str, Any] = json_of(succeeded(result))
    assert found["verdict"] == "complete"
    messages = found["messages"]
    assert messages["enqueued"] == 2 * COUNT
    assert messages["delivered"] == {"primary": 2 * COUNT, "secondary": 2 * COUNT}
    for kind_of_wrong in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending"):
        assert messages[kind_of_wrong] == 0, found["findings"]
    assert min(found["at_stake"]["dc1"].values()) > 0
    # What was in flight is in the journals by the time at which dc1 returns; so the number is exact.
    stake = sum(found["at_stake"]["dc1"].values())
    assert found["sites"]["dc1"]["lost_after_confirm"] == stake
    assert found["sites"]["dc2"]["lost_after_confirm"] == 0
    assert messages["saved_by_second_site"] + messages["saved_by_repair"] == stake
    assert found["sites"]["dc2"]["saved_alone"] > 0
    assert found["plain"]["lost"] > 0
    assert found["plain"]["published"] == found["plain"]["confirmed"] == 2 * COUNT
    assert found["plain"]["delivered"] + found["plain"]["lost"] == 2 * COUNT
    # A run whose faults hit nothing, as on a busy machine, is repeated.
    assert {len(list(each.rglob("*.db"))) for each in place.glob("run*")} == {4}
    errors = result.stderr.decode()
    assert "SIGKILL to dc1" in errors
    assert "SIGKILL to the consumer of primary" in errors
    assert not processes_with(str(place))
    return found


@pytest.mark.long
@pytest.mark.integrations
@pytest.mark.timeout(900)
def test_everything_arrives_once_and_in_order_and_plain_paho_loses(tmp_path: Path) -> None:
    found = demo("embedded", tmp_path / "demo", PATH=str(tmp_path), JAVA_HOME="")
    assert "the audit needs Java" in found["audit"]["not_run"]


@pytest.mark.full  # test_demo_parts.py tests how the audit is started and compared
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["embedded", "mosquitto", "mixed", "rabbitmq"])
def test_spark_says_the_same(kind: str, tmp_path: Path) -> None:
    found = demo(kind, tmp_path / "demo")
    assert found["audit"]["verdict"] == "complete"
    assert found["audit"]["equal"], found["audit"]
    assert list(tmp_path.rglob("report.html"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(number: signal.Signals, tmp_path: Path) -> None:
    place = tmp_path / "demo"
    process = start("demo", "--dir", place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: len(processes_with("reliamsg.cli.demo")) >= 6, "all applications run", 60)
        process.send_signal(number)
        output, errors = ended(process)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert errors.decode().splitlines()[-1] == "reliamsg: interrupted; all processes were stopped"
    assert output == b""
    assert not processes_with(str(place))


def test_its_processes_do_not_outlive_its_sudden_death(tmp_path: Path) -> None:
    place = tmp_path / "demo"
    process = start("demo", "--dir", place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(processes_with(str(place))) >= 6, "all applications run", 60)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not processes_with(str(place)), "all processes end")


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    refused(reliamsg("demo", "--dir", tmp_path), 64, "not empty")


def test_a_missing_broker_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; from reliamsg.lab.brokers import mosquitto; from reliamsg.lab.process import program\n"
        "mosquitto.program = lambda name, package: program('absent-' + name, package)\n"
        "from reliamsg.cli import main; sys.exit(main(['demo', '--sites', 'mosquitto']))\n"
    )
    result = run_child([sys.executable, "-c", code], cwd=tmp_path)
    refused_with = result.stderr.decode().splitlines()[-1]
    assert result.returncode == 69
    assert refused_with == "reliamsg: absent-mosquitto is not installed; on Debian: apt-get install mosquitto"
