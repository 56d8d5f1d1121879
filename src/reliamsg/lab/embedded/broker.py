"""An MQTT 3.1.1 broker that requires only a Python package: amqtt, in a separate process.

It is meant for demonstrations. Sessions and messages are in memory only, so they are lost when it stops. While it runs,
a QoS 1 message is kept until the client has acknowledged it (see :mod:`reliamsg.lab.embedded.sessions`). QoS 2 is that
of amqtt 0.12: a message that is not acknowledged within 5 seconds, or when the client disconnects, is lost.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import sys
from pathlib import Path
from typing import ClassVar

from reliamsg.lab.brokers.base import Broker
from reliamsg.lab.process import Child, LabError

__all__ = ["EmbeddedBroker"]


class EmbeddedBroker(Broker):
    """An in-memory MQTT 3.1.1 broker at ``127.0.0.1``, for QoS 0 to 2; see the module for its guarantees."""

    _KIND: ClassVar[str] = "the embedded broker"

    def __init__(
        self,
        directory: Path | str,
        name: str = "embedded",
        *,
        port: int | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        """Prepare a broker whose output goes to `directory`; :meth:`start` starts it within `start_timeout` seconds."""
        if importlib.util.find_spec("amqtt") is None:
            raise LabError("amqtt is not installed; pip install 'reliamsg[demo]'")
        super().__init__(directory, name, port, start_timeout)
        self._status = self.directory / "status.json"

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self._port}"

    def _launch(self) -> Child:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._status.unlink(missing_ok=True)
        command = [sys.executable, "-m", "reliamsg.lab.embedded.server"]
        command += ["--port", str(self._port), "--status", str(self._status)]
        return Child(self._name, command, output=self.directory / "out")

    def _answers(self) -> bool:
        if not self._status.exists():
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=2.0):
            return True
        return False

    def _delete_data(self) -> None:
        """Nothing to delete: it keeps nothing on disk."""

    def queued(self) -> int:
        """The number of messages that have not been sent to their clients yet; it may be a fifth of a second old."""
        return self._numbers()["queued"]

    def in_flight(self) -> int:
        """The number of messages that clients have not acknowledged yet; it may be a fifth of a second old."""
        return self._numbers()["in_flight"]

    def _numbers(self) -> dict[str, int]:
        self._running()
        numbers: dict[str, int] = json.loads(self._status.read_text())
        return numbers
