"""The proxy's faults, with a real TCP peer that records and answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from reliamsg.lab.faults.proxy import TcpProxy
from reliamsg.lab.process import LabError, wait_until


class Echo:
    """Sends back everything that it receives, and records it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.received = b""
        self.endings: list[str] = []
        self.peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                self.peers.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            while data := peer.recv(65536):
                self.received += data
                peer.sendall(data)
            self.endings.append("end")
        except OSError:
            self.endings.append("reset")
        finally:
            peer.close()

    def close(self) -> None:
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        for peer in self.peers:
            peer.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", echo.port) as made:
        yield made


@contextlib.contextmanager
def client_of(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=120) as client:
        yield client


def exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, f"closed after {data!r}"
        data += part
    return data


def silent(client: socket.socket, seconds: float = 0.2) -> bool:
    client.settimeout(seconds)
    try:
        return client.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        client.settimeout(60)


def test_forwards_everything_in_order(proxy: TcpProxy, echo: Echo) -> None:
    data = bytes(range(256)) * 8192
    with client_of(proxy) as client:
        threading.Thread(target=client.sendall, args=(data,)).start()
        assert exactly(client, len(data)) == data
        assert proxy.connections == 1
        assert proxy.bytes_to_broker == proxy.bytes_from_broker == len(data)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    wait_until(lambda: proxy.connections == 0, 60, "the connection is gone")
    assert echo.endings == ["end"]


def test_cut_resets_and_refuses_until_healed(proxy: TcpProxy) -> None:
    with client_of(proxy) as client:
        client.sendall(b"a")
        assert exactly(client, 1) == b"a"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=120)
    proxy.heal()
    with client_of(proxy) as client:
        client.sendall(b"b")
        assert exactly(client, 1) == b"b"


@pytest.mark.parametrize("direction", ["to_broker", "from_broker", "both"])
def test_stalled_bytes_wait(proxy: TcpProxy, echo: Echo, direction: str) -> None:
    with client_of(proxy) as client:
        client.sendall(b"a")
        assert exactly(client, 1) == b"a"
        proxy.stall(direction)  # type: ignore[arg-type]
        client.sendall(b"b")
        assert silent(client)
        assert echo.received == (b"ab" if direction == "from_broker" else b"a")
        proxy.heal()
        assert exactly(client, 1) == b"b"


def test_dropped_bytes_are_lost(proxy: TcpProxy, echo: Echo) -> None:
    with client_of(proxy) as client:
        proxy.drop_from_broker()
        client.sendall(b"lost")
        wait_until(lambda: echo.received == b"lost", 60, "the broker has it")
        assert silent(client)
        proxy.heal()
        client.sendall(b"kept")
        assert exactly(client, 4) == b"kept"


def test_a_client_does_not_notice_a_half_open_connection(proxy: TcpProxy, echo: Echo) -> None:
    with client_of(proxy) as client:
        client.sendall(b"a")
        assert exactly(client, 1) == b"a"
        proxy.half_open()
        wait_until(lambda: len(echo.endings) == 1, 60, "the broker sees the connection close")
        client.sendall(b"into nowhere")
        assert silent(client)
        with client_of(proxy) as other:
            other.sendall(b"b")
            assert exactly(other, 1) == b"b"
        assert echo.received == b"ab"
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_reset_in_mid_frame_forwards_the_exact_number_of_bytes(proxy: TcpProxy, echo: Echo) -> None:
    with client_of(proxy) as client:
        proxy.reset_mid_frame(1000)
        client.sendall(b"x" * 600)
        assert exactly(client, 600) == b"x" * 600
        client.sendall(b"y" * 600)
        wait_until(lambda: bool(echo.endings), 60, "the broker sees the reset")
        assert echo.received == b"x" * 600 + b"y" * 400
        with pytest.raises(ConnectionResetError):
            exactly(client, 1001)
    with client_of(proxy) as client:  # once only
        client.sendall(b"z" * 2000)
        assert exactly(client, 2000) == b"z" * 2000


def test_delay_and_limit_take_time(proxy: TcpProxy) -> None:
    with client_of(proxy) as client:
        proxy.delay(0.3, "from_broker")
        begun = time.monotonic()
        client.sendall(b"a")
        assert exactly(client, 1) == b"a"
        assert time.monotonic() - begun >= 0.3
        proxy.heal()
        proxy.limit(10_000, "to_broker")
        begun = time.monotonic()
        client.sendall(b"a" * 4000)
        exactly(client, 4000)
        assert time.monotonic() - begun >= 0.35
        proxy.limit(None)


def test_a_stalled_path_blocks_the_sender(proxy: TcpProxy) -> None:
    """The proxy buffers a limited number of bytes; then TCP blocks the sender."""
    with client_of(proxy) as client:
        proxy.stall()
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.sendall(b"x" * (256 * 1024 * 1024))


def test_a_broker_that_is_down_looks_like_a_reset(proxy: TcpProxy, echo: Echo) -> None:
    echo.close()
    with pytest.raises(ConnectionResetError), client_of(proxy) as client:
        client.recv(1)


def test_urls_and_wrong_arguments(proxy: TcpProxy) -> None:
    assert (
        proxy.url("amqp://guest:a%40b@127.0.0.1:5672/%2F") == f"amqp://guest:a%40b@127.0.0.1:{proxy.port}/%2F"
    )
    assert proxy.url("mqtt://localhost") == f"mqtt://127.0.0.1:{proxy.port}"
    assert proxy.url("mqtt") == f"mqtt://127.0.0.1:{proxy.port}"
    with pytest.raises(LabError, match="direction"):
        proxy.stall("up")  # type: ignore[arg-type]
    with pytest.raises(LabError, match="limit"):
        proxy.limit(0)
    proxy.close()
    with pytest.raises(LabError, match="not running"):
        proxy.cut()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=120)
