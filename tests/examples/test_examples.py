"""The examples run as users run them, against real brokers; `audit.py` is tested in tests/audit/test_controlled.py."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg.lab import Mosquitto, RabbitNode
from tests.children import ended

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts an example in a new directory; stopped with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start_one(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments],
            cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def output_of(process: subprocess.Popen[bytes], stdin: bytes = b"") -> str:
    """Its output; it exited with 0."""
    output, errors = ended(process, stdin)
    assert process.returncode == 0, (process.returncode, output.decode(), errors.decode())
    return output.decode()


def documented(name: str) -> list[str]:
    """The commands of an example's docstring."""
    text = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
    return [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("$ ")]


def test_the_commands_in_docstrings(
    rabbit: RabbitNode, shared_mosquitto: Mosquitto, unique: str, tmp_path: Path
) -> None:
    """Every command as written, except for the ports, and for unique names."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(command: str) -> subprocess.Popen[bytes]:
        for old, new in (
            ("amqp://localhost", rabbit.url),
            ("mqtt://localhost", shared_mosquitto.url),
            ("orders", unique),
            ("billing", unique),
            ("producer.py", str(EXAMPLES / "producer.py")),
            ("consumer.py", f"-u {EXAMPLES / 'consumer.py'}"),
        ):
            command = command.replace(old, new)
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"exec {command}" if "|" not in command else command],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    for command in documented("producer.py"):
        text = output_of(run(command))
    assert text.endswith("confirmed by all sites\n")
    (command,) = documented("consumer.py")
    consumer = run(command)
    assert consumer.stdout is not None
    lines = [consumer.stdout.readline().decode() for _ in range(3)]
    assert [line.split(": ")[1] for line in lines] == ["1\n", "2\n", "3\n"]
    consumer.send_signal(signal.SIGTERM)
    assert output_of(consumer) == ""


def test_producer_and_consumer(
    start: Callable[..., subprocess.Popen[bytes]],
    rabbit: RabbitNode,
    shared_mosquitto: Mosquitto,
    unique: str,
) -> None:
    sites = [f"dc1={rabbit.url}", f"dc2={shared_mosquitto.url}"]
    consumer = start("consumer.py", unique, unique, *sites)
    text = output_of(start("producer.py", unique, *sites, "--group", unique), b"one\ntwo\n")
    assert text.count("durable here: example/") == 2
    assert text.endswith("confirmed by all sites\n")
    assert consumer.stdout is not None
    lines = [consumer.stdout.readline().decode() for _ in range(2)]
    assert [line.split(": ")[1] for line in lines] == ["one\n", "two\n"]
    consumer.send_signal(signal.SIGTERM)
    assert output_of(consumer) == ""


def test_producer_without_sites_reports_open_messages(
    start: Callable[..., subprocess.Popen[bytes]], free_port: int
) -> None:
    site = f"dc1=mqtt://127.0.0.1:{free_port}"
    process = start("producer.py", "t", site, "--group", "g", "--timeout", "0.5")
    output, errors = ended(process, b"one\n")
    assert process.returncode == 1
    assert output.startswith(b"durable here: ")
    assert errors.startswith(b"not confirmed by all sites yet: ")


@pytest.mark.parametrize("lab", ["mosquitto", pytest.param("mixed", marks=pytest.mark.full)])
def test_resume_test_in_the_lab(start: Callable[..., subprocess.Popen[bytes]], lab: str) -> None:
    plain, ours = output_of(start("resume_test.py", "--lab", lab)).splitlines()
    assert plain.endswith(": A"), "the fault did not matter: the plain client lost nothing"
    assert ours.endswith(": A B C D E")


def test_resume_test_with_an_operator(
    start: Callable[..., subprocess.Popen[bytes]],
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    dc1, dc2 = make_mosquitto(), make_mosquitto()
    process = start("resume_test.py", f"dc1={dc1.url}", f"dc2={dc2.url}")
    assert process.stdin is not None
    answer(process, "kill the broker of dc1", dc1.kill)
    answer(process, "start the broker of dc1", dc1.start)
    assert output_of(process).endswith("subscriber with two sites: A B C D E\n")


def answer(process: subprocess.Popen[bytes], question: str, act: Callable[[], object]) -> None:
    """Do what the example asks for, and press Enter."""
    assert process.stdin is not None
    assert process.stdout is not None
    asked = b""
    while question.encode() not in asked or not asked.endswith(b": "):
        byte = process.stdout.read(1)
        assert byte, (asked, process.communicate())
        asked += byte
    act()
    process.stdin.write(b"\n")
    process.stdin.flush()


@pytest.mark.integrations
@pytest.mark.parametrize("lab", ["mosquitto", pytest.param("mixed", marks=pytest.mark.full)])
def test_two_accounts_in_the_lab(start: Callable[..., subprocess.Popen[bytes]], lab: str) -> None:
    text = output_of(start("two_accounts.py", "--lab", lab, "--messages", "3000"))
    assert text.count("in order: True") == 4
    first, *_, last = text.splitlines()
    assert first.startswith("dc1 is gone; not handled yet: ")
    assert last.startswith("plain paho at one Mosquitto: ")
    assert not last.endswith(" 0 confirmed messages lost"), "the fault did not matter"


def test_two_accounts_with_an_operator(
    start: Callable[..., subprocess.Popen[bytes]],
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    dc1, dc2 = make_mosquitto(), make_mosquitto()
    process = start("two_accounts.py", "--messages", "1000", f"dc1={dc1.url}", f"dc2={dc2.url}")
    answer(process, "kill the broker of dc1", dc1.kill)
    answer(process, "start the broker of dc1", dc1.start)
    assert output_of(process).count("in order: True") == 4
