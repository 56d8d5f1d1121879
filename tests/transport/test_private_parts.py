"""The private parts of pika and paho that the transports use: docs/explanation/decisions.md lists them all."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import paho.mqtt.client as paho
import pytest
from pika.adapters.base_connection import BaseConnection
from pika.adapters.utils.io_services_utils import _AsyncPlaintextTransport
from pika.connection import Connection
from pika.heartbeat import HeartbeatChecker

from reliamsg.transport.amqp import pika_connection
from reliamsg.transport.amqp.codec import FRAME_END, FRAME_HEAD
from reliamsg.transport.mqtt import paho_client
from tests.fuzz.targets import Connection as UnconnectedConnection

ROOT = Path(__file__).parent.parent.parent
MODULES = {"pika": pika_connection, "paho": paho_client}


def listed() -> dict[str, set[str]]:
    """The private parts in the table of the decision, by library."""
    text = (ROOT / "docs/explanation/decisions.md").read_text()
    rows = re.findall(r"^\| (pika|paho) (.*?) \|", text, flags=re.MULTILINE)
    assert len(rows) > 10
    return {
        library: {n for own, cell in rows if own == library for n in re.findall(r"`(\w+)`", cell)}
        for library in MODULES
    }


def used(library: str) -> set[str]:
    """The private names that a library's module uses without defining them, and those that it overrides."""
    tree = ast.parse(Path(str(MODULES[library].__file__)).read_text())
    inherited = (
        set(dir(Connection)) | set(dir(BaseConnection)) if library == "pika" else set(dir(paho.Client))
    )
    own: set[str] = set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in inherited:
            own.add(node.name)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute):
            mine = isinstance(node.value, ast.Name) and node.value.id == "self"
            (own if mine and isinstance(node.ctx, ast.Store) else found).add(node.attr)
    return {name for name in found - own if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("library", MODULES)
def test_the_table_lists_what_is_used(library: str) -> None:
    public = {"bytes_received"} if library == "pika" else set()  # by its name, but it is documented nowhere
    constants = {"_sock", "_MAX_RECV_BYTES"} & listed()[library]
    assert used(library) | public | constants == listed()[library]


def test_no_other_module_uses_private_parts() -> None:
    """Whatever else imports pika or paho, the laboratory and the benchmarks included."""
    imports = re.compile(r"^\s*(import|from) (pika|paho)\b", flags=re.MULTILINE)
    found = []
    for file in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]):
        if str(file) in [module.__file__ for module in MODULES.values()] or not imports.search(
            file.read_text()
        ):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            own = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "super()")
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and not own:
                found.append(f"{file}:{node.lineno} {ast.unparse(node)}")
            if isinstance(node, ast.ClassDef):
                found += [
                    f"{file}:{node.lineno}"
                    for base in node.bases
                    if re.search("pika|paho", ast.unparse(base))
                ]
    assert not found


def test_the_tests_in_the_table_exist() -> None:
    text = (ROOT / "docs/explanation/decisions.md").read_text()
    rows = re.findall(r"^\| (?:pika|paho) .*\| `(\w+\.py)::(\w+)` \|$", text, flags=re.MULTILINE)
    assert len(rows) > 10
    for file, test in rows:
        assert f"def {test}(" in (Path(__file__).parent / file).read_text()


@pytest.mark.parametrize(
    "method",
    ["_on_data_available", "_process_frame", "_on_connection_tune", "_on_connection_close_from_broker",
     "_terminate_stream"],
)  # fmt: skip
def test_pika_still_has_these_methods(method: str) -> None:
    assert callable(getattr(Connection, method))


@pytest.mark.parametrize(
    "method",
    ["_create_socket_connection", "_handle_publish", "_handle_pubackcomp", "_easy_log", "_send_pingreq",
     "_handle_pingresp"],
)  # fmt: skip
def test_paho_still_has_these_methods(method: str) -> None:
    assert callable(getattr(paho.Client, method))


def test_pika_passes_on_what_it_reads_and_accepts_decoded_frames() -> None:
    connection = UnconnectedConnection()
    heartbeat = FRAME_HEAD.pack(8, 0, 0) + FRAME_END
    base: Any = BaseConnection  # its types lack private methods
    base._proto_data_received(connection, heartbeat)
    assert connection.bytes_received == len(heartbeat)
    assert [type(frame).__name__ for frame in connection.frames] == ["Heartbeat"]


def test_pika_reads_as_much_as_it_is_told_to() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        received: list[bytes] = []
        protocol: Any = SimpleNamespace(data_received=received.append)
        transport: Any = _AsyncPlaintextTransport(ours, protocol, Mock())
        transport._MAX_RECV_BYTES = pika_connection.RECEIVE_BYTES
        theirs.sendall(bytes(20_000))
        with pytest.raises(BlockingIOError):
            transport._consume()
        assert [len(data) for data in received] == [20_000]
        assert transport._sock is ours
        assert transport.get_write_buffer_size() == 0


def test_pika_checks_heartbeats_by_bytes_received() -> None:
    checker: Any = object.__new__(HeartbeatChecker)
    checker._connection = SimpleNamespace(bytes_received=7)
    assert checker.bytes_received_on_connection == 7


def test_paho_reports_errors_through_its_log() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = paho_client.PahoClient(ours, "name", "5", persistent=False)
        client.begin(SimpleNamespace(host="h", port=1), None, 60, None)  # type: ignore[arg-type]
        assert theirs.recv(1) == b"\x10", "a CONNECT, on the socket that it was given"
        theirs.sendall(b"\x40\x00")  # a PUBACK without a packet id
        client.loop_read()
        assert "PUBACK" in client.goodbye
        assert isinstance(client._in_packet, dict)
        assert not client._out_messages
