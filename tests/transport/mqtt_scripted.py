"""A broker that does what real ones can't be made to do: each connection is played by a function."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Peer:
    """The broker's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(60)

    def _exactly(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            got = self.sock.recv(size - len(out))
            if not got:
                raise ConnectionError("the client closed")
            out += got
        return out

    def packet(self) -> tuple[int, bytes]:
        """First byte and contents of the next packet."""
        first = self._exactly(1)[0]
        size = shift = 0
        while True:
            byte = self._exactly(1)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return first, self._exactly(size)

    def expect(self, kind: int) -> bytes:
        """Contents of the next packet of this kind, pings left out."""
        while True:
            first, body = self.packet()
            if first >> 4 == kind:
                return body
            if first >> 4 == 14:
                raise ConnectionError("the client said goodbye")
            assert first >> 4 == 12, f"packet of kind {first >> 4} instead of {kind}"

    def send(self, first: int, body: bytes) -> None:
        size, length = len(body), bytearray()
        while True:
            size, byte = size >> 7, size & 0x7F
            length.append(byte | 0x80 if size else byte)
            if not size:
                break
        self.sock.sendall(bytes([first]) + length + body)

    def accept(self, properties: bytes = b"") -> None:
        """Take the CONNECT and accept it, in the version that it asks for."""
        version = self.expect(1)[6]
        self.send(0x20, b"\0\0" + (bytes([len(properties)]) + properties if version == 5 else b""))

    def published(self) -> int:
        """Packet id of the next PUBLISH."""
        body = self.expect(3)
        at = 2 + int.from_bytes(body[:2], "big")
        return int.from_bytes(body[at : at + 2], "big")

    def puback(self, mid: int, reason: int | None = None) -> None:
        self.send(0x40, mid.to_bytes(2, "big") + (b"" if reason is None else bytes([reason])))

    def wait_for_close(self) -> None:
        while True:
            try:
                if not self.sock.recv(65536):
                    return
            except ConnectionError:
                return


Script = Callable[[Peer], None]


class ScriptedBroker:
    """Plays one script for each connection, the last one for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self.connections = 0
        self.failures: list[BaseException] = []
        self._open: list[socket.socket] = []
        self._closing = False
        self._threads = [threading.Thread(target=self._run, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            sock.close()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._play, args=(script, sock), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _play(self, script: Script, sock: socket.socket) -> None:
        with sock:
            try:
                script(Peer(sock))
            except (ConnectionError, OSError):
                # The client went away, as clients do.
                return
            except AssertionError as error:
                self.failures.append(error)


@contextmanager
def scripted(*scripts: Script) -> Iterator[ScriptedBroker]:
    """A broker that plays `scripts`; fails if one of them saw what it did not expect."""
    with ScriptedBroker(*scripts) as broker:
        yield broker
    assert not broker.failures, broker.failures
