"""A proxy that understands what a broker confirms, and lies about it: for MQTT and for AMQP.

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

__all__ = ["Lie", "LyingProxy"]

Lie = Literal["", "early", "twice", "other", "failing", "nack", "multiple", "shuffled"]
"""MQTT: PUBACK before the broker has the message, which it may never get, twice, for another message too, or with a
failing reason. AMQP: a nack in place of an ack, one ack for several (``multiple``), acks in another order."""

_MQTT_PUBLISH, _MQTT_PUBACK = 3, 4
_QUOTA_EXCEEDED = 0x97
_AMQP_METHOD, _ACK, _NACK = 1, (60, 80), (60, 120)
_GATHERED = 5
"""So many acks are put in another order, or into one."""


class LyingProxy:
    """Listens at ``127.0.0.1:port`` before a broker, and passes everything on until :attr:`lie` is set.

    A context manager: entering starts it, leaving ends it.
    """

    def __init__(self, kind: Literal["mqtt", "amqp"], upstream_port: int, rng: random.Random) -> None:
        self.kind = kind
        self.port = free_port()
        self.lie: Lie = ""
        self.told = 0
        """How many lies there were so far."""
        self._rng = rng
        self._upstream = upstream_port
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()

    def url(self, like: str) -> str:
        """`like` with the proxy's port."""
        head, _, tail = like.partition(f":{self._upstream}")
        if head == like:
            raise LabError("the URL is not that of the broker behind the proxy")
        return f"{head}:{self.port}{tail}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # close() alone would leave accept() waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def reset(self) -> None:
        """End all connections; new ones are served."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(*pair)

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
            talk = (_MqttTalk if self.kind == "mqtt" else _AmqpTalk)(self, client, broker, self._rng)
            for work in (talk.upwards, talk.downwards):
                threading.Thread(target=_pumping, args=(work, client, broker), daemon=True).start()


def _pumping(work: Callable[[], None], client: socket.socket, broker: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        work()
    _end(client, broker)


def _end(*sockets: socket.socket) -> None:
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


class _Talk:
    """One client's connection."""

    def __init__(
        self, proxy: LyingProxy, client: socket.socket, broker: socket.socket, rng: random.Random
    ) -> None:
        self.proxy, self.client, self.broker, self.rng = proxy, client, broker, rng
        self._sending = threading.Lock()

    def tell(self, data: bytes) -> None:
        """Send to the client; both directions do."""
        with self._sending:
            self.client.sendall(data)


class _MqttTalk(_Talk):
    def upwards(self) -> None:
        """From the client to the broker."""
        while True:
            first, packet, body = self._packet(self.client)
            if self.proxy.lie == "early" and first >> 4 == _MQTT_PUBLISH and first & 6:
                (length,) = struct.unpack_from(">H", body)
                self.tell(_puback(body[2 + length : 4 + length]))
                self.proxy.told += 1
                if self.rng.random() < 0.3:
                    continue  # and the broker never gets it
            self.broker.sendall(packet)

    def downwards(self) -> None:
        """From the broker to the client."""
        while True:
            first, packet, body = self._packet(self.broker)
            lie = self.proxy.lie
            if first >> 4 == _MQTT_PUBACK and lie:
                packet = self._lie(lie, packet, body)
            self.tell(packet)

    def _lie(self, lie: Lie, packet: bytes, body: bytes) -> bytes:
        (number,) = struct.unpack_from(">H", body)
        self.proxy.told += lie != "early"
        if lie == "twice":
            return packet * 2
        if lie == "other":
            return packet + _puback(struct.pack(">H", number % 65535 + 1))
        if lie == "failing" and self.rng.random() < 0.3:
            return _puback(body[:2], _QUOTA_EXCEEDED)
        return packet

    @staticmethod
    def _packet(source: socket.socket) -> tuple[int, bytes, bytes]:
        """First byte, all bytes, and those after the fixed header."""
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


class _AmqpTalk(_Talk):
    def __init__(
        self, proxy: LyingProxy, client: socket.socket, broker: socket.socket, rng: random.Random
    ) -> None:
        super().__init__(proxy, client, broker, rng)
        self._held: list[bytes] = []

    def upwards(self) -> None:
        """From the client to the broker."""
        while data := self.client.recv(65536):
            self.broker.sendall(data)

    def downwards(self) -> None:
        """From the broker to the client."""
        self.broker.settimeout(None)
        while True:
            head = _exactly(self.broker, 7)
            kind, _, size = struct.unpack(">BHI", head)
            frame = head + _exactly(self.broker, size + 1)
            confirm = kind == _AMQP_METHOD and struct.unpack_from(">HH", frame, 7) == _ACK
            for one in self._lie(frame) if confirm else [*self._release(), frame]:
                self.tell(one)

    def _lie(self, frame: bytes) -> list[bytes]:
        """What comes in place of an ack."""
        lie = self.proxy.lie
        if lie == "nack" and self.rng.random() < 0.3:
            self.proxy.told += 1
            return [*self._release(), _method(frame, _NACK)]
        if lie in ("multiple", "shuffled"):
            self._held.append(frame)
            if len(self._held) < _GATHERED:
                return []
        else:
            self._held.append(frame)
        return self._release()

    def _release(self) -> list[bytes]:
        """What was held back: in another order, or the highest for all, as long as that is the lie."""
        held, self._held = self._held, []
        if len(held) > 1 and self.proxy.lie == "shuffled":
            self.rng.shuffle(held)
            self.proxy.told += 1
        elif len(held) > 1 and self.proxy.lie == "multiple":
            last = max(held, key=lambda frame: frame[11:19])
            held = [last[:19] + bytes([last[19] | 1]) + last[20:]]
            self.proxy.told += 1
        return held


def _method(frame: bytes, method: tuple[int, int]) -> bytes:
    """The same frame as another method with the same arguments."""
    return frame[:7] + struct.pack(">HH", *method) + frame[11:]
