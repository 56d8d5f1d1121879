"""Sockets for transports that run their own loop: connecting within a budget, waiting, and being woken.

All sockets are non-blocking, so that closing a transport cuts every wait short; only the operating system's
name look-up cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from collections.abc import Callable

from reliamsg.config import Endpoint

__all__ = ["DialError", "Waker", "acknowledge_segments", "dial"]

_TROUBLE = select.POLLHUP | select.POLLERR | select.POLLNVAL


class DialError(Exception):
    """No connection could be established; the text says why and contains no secret."""


class Waker:
    """Lets any thread wake up the one thread that waits here."""

    def __init__(self) -> None:
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self._woken = False

    def wake(self) -> None:
        """End the current wait, or the next one. Cheap if already woken; no effect after ``close()``."""
        # Without a lock: the waiting thread clears the flag before it checks what there is to do, so a thread
        # that finds the flag set can be sure that its work will be noticed.
        if self._woken:
            return
        self._woken = True
        try:
            self._outer.send(b"\0")
        except OSError:
            # Closed, or the buffer is full, which wakes as well.
            return

    def wait(
        self, sock: socket.socket | None, *, read: bool, write: bool, timeout: float
    ) -> tuple[bool, bool]:
        """Wait for `sock`, a ``wake()`` or `timeout` seconds; return whether `sock` can be read and written.

        A broken connection counts as readable, even if `read` is False.
        """
        poll = select.poll()
        poll.register(self._inner, select.POLLIN)
        fd = -1
        if sock is not None:
            fd = sock.fileno()
            if fd < 0:
                return True, False
            poll.register(fd, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        events = dict(poll.poll(max(0.0, timeout) * 1000))
        if self._inner.fileno() in events:
            self._clear()
        happened = events.get(fd, 0)
        return bool(happened & (select.POLLIN | _TROUBLE)), bool(happened & select.POLLOUT)

    def _clear(self) -> None:
        try:
            while len(self._inner.recv(64)) == 64:
                pass
        except BlockingIOError:
            pass
        self._woken = False

    def close(self) -> None:
        """Close the sockets. Only when no thread waits any more."""
        self._woken = True
        self._inner.close()
        self._outer.close()


def dial(
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    deadline: float,
    waker: Waker,
    stopping: Callable[[], bool],
) -> socket.socket:
    """Connect to `endpoint`, with TLS where a context is given, before `deadline` (``time.monotonic()``).

    Returns a non-blocking socket. Raises :class:`DialError` if it fails, if `deadline` passes, and if
    `stopping()` becomes true.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DialError(f"{endpoint.host}: {_text(error)}") from None
    trouble = DialError(f"{endpoint.host} has no address")
    for number, (family, kind, proto, _, address) in enumerate(found):
        # Each address gets its share of the remaining time, so that an unresponsive first one does not use it all.
        now = time.monotonic()
        share = now + (deadline - now) / (len(found) - number)
        try:
            sock = socket.socket(family, kind, proto)
        except OSError as error:
            trouble = DialError(_text(error))
            continue
        try:
            _connect(sock, address, share, waker, stopping)
            return sock if tls is None else _handshake(sock, endpoint, tls, deadline, waker, stopping)
        except DialError as error:
            sock.close()
            trouble = error
        except OSError as error:
            sock.close()
            trouble = DialError(_text(error))
        except BaseException:
            sock.close()
            raise
    raise trouble


def acknowledge_segments(sock: socket.socket) -> None:
    """Have the kernel acknowledge at once what was read. To be called after each read.

    Otherwise it delays the acknowledgement by up to 40 ms (RFC 1122, 4.2.3.2), and a broker with Nagle's algorithm,
    such as Mosquitto without ``set_tcp_nodelay true``, sends the next small message only then.
    """
    if hasattr(socket, "TCP_QUICKACK"):
        with contextlib.suppress(OSError):  # of a connection that is gone, which the next read finds
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _connect(
    sock: socket.socket, address: object, deadline: float, waker: Waker, stopping: Callable[[], bool]
) -> None:
    sock.setblocking(False)
    # Frames and confirms are small, and others wait for them.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.connect(address)  # type: ignore[arg-type]
    except BlockingIOError:
        _until(sock, False, True, deadline, waker, stopping)
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _handshake(
    sock: socket.socket,
    endpoint: Endpoint,
    tls: ssl.SSLContext,
    deadline: float,
    waker: Waker,
    stopping: Callable[[], bool],
) -> ssl.SSLSocket:
    try:
        secured = tls.wrap_socket(sock, server_hostname=endpoint.host, do_handshake_on_connect=False)
    except ValueError as error:
        raise DialError(f"TLS: {error}") from None
    try:
        while True:
            try:
                secured.do_handshake()
                return secured
            except ssl.SSLWantReadError:
                _until(secured, True, False, deadline, waker, stopping)
            except ssl.SSLWantWriteError:
                _until(secured, False, True, deadline, waker, stopping)
    except ssl.SSLCertVerificationError as error:
        secured.close()
        raise DialError(f"TLS: the certificate is not accepted: {error.verify_message}") from None
    except OSError as error:
        secured.close()
        raise DialError(f"TLS: {_text(error)}") from None
    except BaseException:
        secured.close()
        raise


def _until(
    sock: socket.socket, read: bool, write: bool, deadline: float, waker: Waker, stopping: Callable[[], bool]
) -> None:
    """Wait until `sock` is ready; raise if the time is up or the transport is being closed."""
    while True:
        left = deadline - time.monotonic()
        if stopping():
            raise DialError("closed")
        if left <= 0:
            raise DialError("timed out while connecting")
        if any(waker.wait(sock, read=read, write=write, timeout=left)):
            return


def _text(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
