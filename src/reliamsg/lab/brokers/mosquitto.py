"""A Mosquitto broker on this machine, with its own directory and port."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from reliamsg.lab.brokers.base import Broker, TlsFiles
from reliamsg.lab.process import Child, LabError, free_port, program, wait_until

__all__ = ["Mosquitto"]

_STORED = "$SYS/broker/store/messages/count"
_RETAINED = "$SYS/broker/retained messages/count"
_UPTIME = "$SYS/broker/uptime"
_SETTLED_SECONDS = 3


class Mosquitto(Broker):
    """A Mosquitto broker at ``127.0.0.1``, for MQTT 5 and 3.1.1.

    >>> with Mosquitto(directory) as broker:                       # doctest: +SKIP
    ...     Producer("p", [Site("dc2", broker.url)], outbox="p.db")
    """

    _KIND: ClassVar[str] = "Mosquitto"

    def __init__(
        self,
        directory: Path | str,
        name: str = "mosquitto",
        *,
        port: int | None = None,
        persistence: bool = False,
        autosave_seconds: int = 1800,
        max_queued_messages: int = 0,
        message_size_limit: int = 0,
        users: Mapping[str, str] | None = None,
        deny: Sequence[str] = (),
        tls: TlsFiles | None = None,
        config: Sequence[str] = (),
        start_timeout: float = 60.0,
    ) -> None:
        """Prepare a broker in `directory`; :meth:`start` starts it.

                `persistence`: off by default as in Mosquitto, so :meth:`kill` and :meth:`stop` lose sessions and queued
        messages; if on, the broker saves every `autosave_seconds` and at :meth:`stop`. `max_queued_messages`: per
        client; the default is 0, no limit, unlike Mosquitto's 1000, because a broker should drop acknowledged messages
        only if a test requests it. `message_size_limit`: bytes, 0 for none. `users`: names and passwords; without any,
        everyone may connect. `deny`: topics that no client may publish to or read. `tls`: adds a TLS listener
        (`tls_url`). `config`: additional lines of mosquitto.conf. `start_timeout`: seconds.
        """
        self._program = program("mosquitto", "mosquitto")
        super().__init__(directory, name, port, start_timeout)
        self._tls_port = free_port() if tls else None
        self._users = dict(users or {})
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "data").mkdir(exist_ok=True)
        lines = [
            # If started as root, Mosquitto switches to a user that could not write here.
            *(["user root"] if os.geteuid() == 0 else []),
            f"listener {self._port} 127.0.0.1",
            *self._tls_lines(tls),
            *self._access_lines(deny),
            f"persistence {'true' if persistence else 'false'}",
            f"persistence_location {self.directory / 'data'}/",
            f"autosave_interval {autosave_seconds}",
            f"max_queued_messages {max_queued_messages}",
            f"message_size_limit {message_size_limit}",
            "sys_interval 1",
            "log_dest stderr",
            *config,
        ]
        self._config = self.directory / "mosquitto.conf"
        self._config.write_text("\n".join(lines) + "\n")

    def _tls_lines(self, tls: TlsFiles | None) -> list[str]:
        if tls is None:
            return []
        return [
            f"listener {self._tls_port} 127.0.0.1",
            f"cafile {tls.authority}",
            f"certfile {tls.certificate}",
            f"keyfile {tls.key}",
        ]

    def _access_lines(self, deny: Sequence[str]) -> list[str]:
        lines = [f"allow_anonymous {'false' if self._users else 'true'}"]
        if self._users:
            passwords = self.directory / "passwords"
            passwords.write_text("".join(f"{user}:{_hashed(word)}\n" for user, word in self._users.items()))
            passwords.chmod(0o600)
            lines.append(f"password_file {passwords}")
        if deny:
            access = self.directory / "access"
            # "pattern" lines apply to named users, "topic" lines before any "user" line to anonymous ones.
            rules = ["readwrite #", "read $SYS/#", *(f"deny {topic}" for topic in deny)]
            access.write_text("".join(f"{kind} {rule}\n" for kind in ("topic", "pattern") for rule in rules))
            access.chmod(0o600)
            lines.append(f"acl_file {access}")
        return lines

    def _login(self) -> str:
        for user, password in self._users.items():
            return f"{quote(user, safe='')}:{quote(password, safe='')}@"
        return ""

    @property
    def url(self) -> str:
        """With the first of `users`, if there are any."""
        return f"mqtt://{self._login()}127.0.0.1:{self._port}"

    @property
    def tls_url(self) -> str:
        """For the TLS listener; the certificate must be valid for ``127.0.0.1``."""
        if self._tls_port is None:
            raise LabError(f"{self._name} was created without tls")
        return f"mqtts://{self._login()}127.0.0.1:{self._tls_port}"

    def _launch(self) -> Child:
        command = [self._program, "-c", str(self._config)]
        return Child(self._name, command, output=self.directory / "out")

    def _answers(self) -> bool:
        """Whether an MQTT CONNECT is answered, even with a refusal."""
        with contextlib.suppress(OSError), _connect(self._port, 2.0) as client:
            client.sendall(_connect_packet(None))
            return client.recv(1) == b"\x20"
        return False

    def save(self) -> None:
        """Make it write its database now (with persistence on), and wait until it is written."""
        database = self.directory / "data" / "mosquitto.db"
        before = _change_time(database)
        self._running().signal(signal.SIGUSR1)
        # It is written to a temporary file and renamed, so a new time means a complete file.
        wait_until(lambda: _change_time(database) != before, 60.0, f"{self._name} saves", self._child)

    def _delete_data(self) -> None:
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        (self.directory / "data").mkdir()

    def stored(self, timeout: float = 20.0) -> int:
        """The number of messages that are kept for sessions that have not acknowledged them, without retained messages.

        A message for several sessions counts once. The broker updates the number every second. Raises LabError if it
        does not answer within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                counts = self._counters(deadline)
            except (OSError, ValueError) as error:
                raise LabError(f"{self._name}: no count of stored messages: {error}") from None
            # In a broker's first update, the two counters do not belong to the same moment yet.
            if counts[_UPTIME] >= _SETTLED_SECONDS:
                return max(0, counts[_STORED] - counts[_RETAINED])
            if time.monotonic() >= deadline:
                raise LabError(f"{self._name} did not report its messages within {timeout:g} s")
            time.sleep(0.1)

    def _counters(self, deadline: float) -> dict[str, int]:
        topics = (_STORED, _RETAINED, _UPTIME)
        counts: dict[str, int] = {}
        login = next(iter(self._users.items()), None)
        with _connect(self._port, max(0.01, deadline - time.monotonic())) as client:
            client.sendall(_connect_packet(login) + _subscribe_packet(topics))
            for topic, payload in _publications(client, deadline):
                counts[topic] = int(payload.split()[0])  # the uptime is formatted as "7 seconds"
                if len(counts) == len(topics):
                    return counts
        raise ConnectionError("the broker closed the connection")


def _hashed(password: str) -> str:
    """The format of mosquitto_passwd: PBKDF2-SHA512, 101 rounds, both parts in base64."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _change_time(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


# A minimal MQTT 3.1.1 client to read the counters; it needs no threads, unlike a client library.


def _connect(port: int, timeout: float) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _packet(kind: int, body: bytes) -> bytes:
    if len(body) > 127:
        return bytes([kind, 0x80 | len(body) & 0x7F, len(body) >> 7]) + body
    return bytes([kind, len(body)]) + body


def _connect_packet(login: tuple[str, str] | None) -> bytes:
    """CONNECT with a clean session, no client id, and a keepalive of one minute."""
    head = _text("MQTT") + bytes([4, 0xC2 if login else 0x02]) + struct.pack(">H", 60)
    return _packet(0x10, head + _text("") + b"".join(_text(part) for part in login or ()))


def _subscribe_packet(topics: Sequence[str]) -> bytes:
    return _packet(0x82, struct.pack(">H", 1) + b"".join(_text(topic) + b"\x00" for topic in topics))


def _publications(client: socket.socket, deadline: float) -> Iterator[tuple[str, bytes]]:
    """The QoS 0 messages that arrive until the broker closes the connection; TimeoutError after `deadline`."""
    buffer = b""
    while True:
        size = _whole_packet(buffer)
        if size is None:
            client.settimeout(max(0.01, deadline - time.monotonic()))
            received = client.recv(4096)
            if not received:
                return
            buffer += received
            continue
        start, end = size
        if buffer[0] >> 4 == 3:
            (length,) = struct.unpack_from(">H", buffer, start)
            topic = buffer[start + 2 : start + 2 + length]
            yield topic.decode(), buffer[start + 2 + length : end]
        buffer = buffer[end:]


def _whole_packet(buffer: bytes) -> tuple[int, int] | None:
    """The offsets of the first packet's body, or None if it is incomplete."""
    length = 0
    for place in range(1, min(5, len(buffer))):
        length |= (buffer[place] & 0x7F) << 7 * (place - 1)
        if not buffer[place] & 0x80:
            end = place + 1 + length
            return (place + 1, end) if len(buffer) >= end else None
    return None
