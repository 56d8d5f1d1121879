"""Sockets of transports that run their own loop."""

from __future__ import annotations

import socket

import pytest

from reliamsg.transport.network import acknowledge_segments


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the kernel does not offer it")
def test_what_was_read_is_acknowledged_at_once() -> None:
    """With Nagle's algorithm a broker's second small message leaves when the first is acknowledged."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        broker, _ = server.accept()
        with broker:
            # The kernel acknowledges the first few segments of a connection at once, whatever it is told.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            broker.sendall(b"first")
            assert client.recv(16) == b"first"
            acknowledge_segments(client)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


def test_a_socket_that_is_gone_is_left_to_the_next_read() -> None:
    sock = socket.socket()
    sock.close()
    acknowledge_segments(sock)
