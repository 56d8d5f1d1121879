"""A broker whose confirms are false, for MQTT and AMQP: a proxy in front of a real broker that falsifies them.

Unlike :class:`~reliamsg.lab.faults.proxy.TcpProxy` it parses frames, and can change, repeat, hold back or invent the
broker's answers.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from reliamsg.lab.process import LabError, free_port

__all__ = ["FalseConfirm", "FalseConfirmBroker"]

FalseConfirm = Literal["", "early", "twice", "other", "failing", "nack", "multiple", "shuffled"]
"""MQTT: PUBACKs before the broker has the message, which it may never get, twice, for another message too, or with a
failure reason. AMQP: nacks instead of acks, one ack for several messages (``multiple``), acks in another order."""

_MQTT_PUBLISH, _MQTT_PUBACK = 3, 4
_QUOTA_EXCEEDED = 0x97
_AMQP_METHOD, _ACK, _NACK = 1, (60, 80), (60, 120)
_GATHERED = 5
"""The number of acks that are reordered, or combined into one."""


class _Falsifier:
    """Which confirms are false, and how many were. Shared by all connections."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._mode: FalseConfirm = ""
        self._count = 0
        self._lock = threading.Lock()

    @property
    def mode(self) -> FalseConfirm:
        return self._mode

    @property
    def count(self) -> int:
        return self._count

    def set_mode(self, mode: FalseConfirm) -> None:
        self._mode = mode

    def add(self) -> None:
        """Count a false confirm."""
        with self._lock:
            self._count += 1


class FalseConfirmBroker:
    """Listens at ``127.0.0.1:port`` in front of a broker, and forwards everything unchanged until :meth:`falsify`.

    A context manager: entering starts it, leaving stops it.
    """

    def __init__(self, kind: Literal["mqtt", "amqp"], upstream_port: int, rng: random.Random) -> None:
        self.kind = kind
        self.port: int = free_port()
        self._falsifier = _Falsifier(rng)
        self._upstream = upstream_port
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()

    @property
    def false_confirms(self) -> int:
        """The number of false confirms so far."""
        return self._falsifier.count

    def falsify(self, kind: FalseConfirm) -> None:
        """Falsify confirms in this way from now on; with an empty string, forward them unchanged."""
        self._falsifier.set_mode(kind)

    def url(self, like: str) -> str:
        """`like`, the URL of the real broker, with this port."""
        head, _, tail = like.partition(f":{self._upstream}")
        if head == like:
            raise LabError("the URL is not that of the real broker")
        return f"{head}:{self.port}{tail}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # close() alone would not wake up accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Close all connections; new ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _shut_down(*pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, broker))
            connection = _MqttConnection if self.kind == "mqtt" else _AmqpConnection
            made = connection(client, broker, self._falsifier)
            for work in (made.forward_to_broker, made.forward_to_client):
                threading.Thread(target=_forward, args=(work, client, broker), daemon=True).start()


def _forward(work: Callable[[], None], client: socket.socket, broker: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        work()
    _shut_down(client, broker)


def _shut_down(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


class _Connection:
    """A client's connection, and the connection to the real broker that belongs to it."""

    def __init__(self, client: socket.socket, broker: socket.socket, falsifier: _Falsifier) -> None:
        self._client, self._broker, self._falsifier = client, broker, falsifier
        self._sending = threading.Lock()

    def _send(self, data: bytes) -> None:
        """Send to the client; both threads do."""
        with self._sending:
            self._client.sendall(data)


class _MqttConnection(_Connection):
    def forward_to_broker(self) -> None:
        while True:
            first, packet, body = self._packet(self._client)
            if self._falsifier.mode == "early" and first >> 4 == _MQTT_PUBLISH and first & 6:
                (length,) = struct.unpack_from(">H", body)
                self._send(_puback(body[2 + length : 4 + length]))
                self._falsifier.add()
                if self._falsifier.rng.random() < 0.3:
                    continue  # the broker never gets it
            self._broker.sendall(packet)

    def forward_to_client(self) -> None:
        while True:
            first, packet, body = self._packet(self._broker)
            mode = self._falsifier.mode
            if first >> 4 == _MQTT_PUBACK and mode:
                packet = self._falsified(mode, packet, body)
            self._send(packet)

    def _falsified(self, mode: FalseConfirm, packet: bytes, body: bytes) -> bytes:
        """The packets sent instead of a PUBACK."""
        (number,) = struct.unpack_from(">H", body)
        if mode != "early":
            self._falsifier.add()
        if mode == "twice":
            return packet * 2
        if mode == "other":
            return packet + _puback(struct.pack(">H", number % 65535 + 1))
        if mode == "failing" and self._falsifier.rng.random() < 0.3:
            return _puback(body[:2], _QUOTA_EXCEEDED)
        return packet

    @staticmethod
    def _packet(source: socket.socket) -> tuple[int, bytes, bytes]:
        """The first byte of a packet, all of its bytes, and those after the fixed header."""
        head = bytearray(_exactly(source, 2))
        while head[-1] & 0x80:
            head += _exactly(source, 1)
        length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(head[1:]))
        body = _exactly(source, length)
        return head[0], bytes(head) + body, body


def _puback(number: bytes, reason: int | None = None) -> bytes:
    return (
        bytes([_MQTT_PUBACK << 4, 2]) + number if reason is None else b"\x40\x03" + number + bytes([reason])
    )


class _AmqpConnection(_Connection):
    def __init__(self, client: socket.socket, broker: socket.socket, falsifier: _Falsifier) -> None:
        super().__init__(client, broker, falsifier)
        self._held: list[bytes] = []

    def forward_to_broker(self) -> None:
        while data := self._client.recv(65536):
            self._broker.sendall(data)

    def forward_to_client(self) -> None:
        self._broker.settimeout(None)
        while True:
            head = _exactly(self._broker, 7)
            kind, _, size = struct.unpack(">BHI", head)
            frame = head + _exactly(self._broker, size + 1)
            confirm = kind == _AMQP_METHOD and struct.unpack_from(">HH", frame, 7) == _ACK
            for one in self._falsified(frame) if confirm else [*self._release(), frame]:
                self._send(one)

    def _falsified(self, frame: bytes) -> list[bytes]:
        """The frames sent instead of an ack."""
        mode = self._falsifier.mode
        if mode == "nack" and self._falsifier.rng.random() < 0.3:
            self._falsifier.add()
            return [*self._release(), _method(frame, _NACK)]
        self._held.append(frame)
        if mode in ("multiple", "shuffled") and len(self._held) < _GATHERED:
            return []
        return self._release()

    def _release(self) -> list[bytes]:
        """The acks that were held back: in another order, or combined into the highest one, if confirms are still
        falsified in that way."""
        held, self._held = self._held, []
        mode = self._falsifier.mode
        if len(held) > 1 and mode == "shuffled":
            self._falsifier.rng.shuffle(held)
            self._falsifier.add()
        elif len(held) > 1 and mode == "multiple":
            last = max(held, key=lambda frame: frame[11:19])
            held = [last[:19] + bytes([last[19] | 1]) + last[20:]]
            self._falsifier.add()
        return held


def _method(frame: bytes, method: tuple[int, int]) -> bytes:
    """The same frame with another method that has the same arguments."""
    return frame[:7] + struct.pack(">HH", *method) + frame[11:]
