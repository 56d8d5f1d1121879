"""A TCP proxy between a client and a broker that injects faults on demand.

It knows nothing about the protocols: it forwards, delays, holds back and discards bytes, and resets connections. It
runs in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from reliamsg.lab.process import LabError, free_port, wait_until

__all__ = ["Direction", "TcpProxy"]

T = TypeVar("T")
Direction = Literal["to_broker", "from_broker", "both"]

_CHUNK = 64 * 1024
_IN_TRANSIT = 256
"""The maximum number of chunks that are delayed or stalled per direction and connection; then the sender blocks, as
with any full path."""
_SLICE_SECONDS = 0.05
"""With a limited rate, bytes are sent in slices of this duration."""


class _DirectionState:
    """The faults of one direction, for all connections. Used only in the proxy's event loop."""

    def __init__(self) -> None:
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.discard = False
        self.delay = 0.0
        self.rate: float | None = None
        self.reset_after: int | None = None
        self.count = 0

    def clear(self) -> None:
        self.flowing.set()
        self.discard = False
        self.delay = 0.0
        self.rate = None
        self.reset_after = None


class _Connection:
    """A client's connection, and the connection to the broker that belongs to it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self.half_open = False
        self.tasks: list[asyncio.Task[None]] = []

    def close(self, *, reset: bool) -> None:
        current = asyncio.current_task()
        for task in self.tasks:
            if task is not current:
                task.cancel()
        for end in (self.client, self.broker):
            _close(end, reset=reset)


class TcpProxy:
    """Listens at ``127.0.0.1:port``, and forwards to a broker. Its methods are thread-safe, and have taken effect when
    they return.

    >>> with TcpProxy("127.0.0.1", broker.port) as proxy:          # doctest: +SKIP
    ...     site = Site("dc1", proxy.url(broker.url))
    ...     proxy.stall("from_broker")                             # confirms no longer arrive
    ...     proxy.heal()
    """

    def __init__(self, upstream_host: str, upstream_port: int, *, port: int | None = None) -> None:
        self._upstream = (upstream_host, upstream_port)
        self.port: int = port or free_port()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self._acceptor: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        self._to_broker = _DirectionState()
        self._from_broker = _DirectionState()

    def url(self, like: str) -> str:
        """`like` with the proxy's address instead of the broker's. A scheme alone gives a URL without a user."""
        if "://" not in like:
            return f"{like}://127.0.0.1:{self.port}"
        scheme, _, rest = like.partition("://")
        authority, slash, path = rest.partition("/")
        login, at, _ = authority.rpartition("@")
        return f"{scheme}://{login}{at}127.0.0.1:{self.port}{slash}{path}"

    # Starting and stopping.

    def start(self) -> None:
        """Start listening."""
        if self._thread is not None:
            raise LabError("the proxy is already running, or closed")
        self._thread = threading.Thread(target=self._run, name=f"reliamsg-proxy-{self.port}", daemon=True)
        self._thread.start()
        try:
            self._call(self._listen)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Reset all connections, and stop the thread; may be called again."""
        if self._thread is None or self._loop.is_closed():
            return
        self._call(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Faults.

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until :meth:`heal`."""
        self._call(self._cut)

    def reset(self) -> None:
        """Reset all connections; new ones are accepted."""
        self._call(self._reset_all)

    def heal(self) -> None:
        """End all faults. Bytes that were held back are forwarded, and discarded bytes are lost. Half-open connections
        are reset, as a client would notice once the path works again."""
        self._call(self._heal)

    def stall(self, direction: Direction = "both") -> None:
        """Stop forwarding in `direction`; connections stay open, and bytes wait. With ``both`` it is as if all packets
        were dropped, except that new connections are still accepted, and then hang."""
        self._each(direction, lambda state: state.flowing.clear())

    def half_open(self) -> None:
        """Close the broker's end of all connections without notifying the clients, whose bytes are then discarded. New
        connections are accepted."""
        self._call(self._half_open)

    def drop_from_broker(self) -> None:
        """Discard everything that the broker sends, including acknowledgements. Reset the connections before
        :meth:`heal`: otherwise clients would receive an incomplete stream."""
        self.drop("from_broker")

    def drop(self, direction: Direction) -> None:
        """Discard everything in `direction`; see :meth:`drop_from_broker`."""

        def change(state: _DirectionState) -> None:
            state.discard = True

        self._each(direction, change)

    def delay(self, seconds: float, direction: Direction = "both") -> None:
        """Delay every byte by `seconds`, in order. 0 ends the delay for bytes that are sent from now on."""

        def change(state: _DirectionState) -> None:
            state.delay = seconds

        self._each(direction, change)

    def limit(self, bytes_per_second: float | None, direction: Direction = "both") -> None:
        """Limit the rate of each connection; None removes the limit."""
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise LabError("limit() needs more than 0 bytes per second; use stall() to stop everything")

        def change(state: _DirectionState) -> None:
            state.rate = bytes_per_second

        self._each(direction, change)

    def reset_mid_frame(self, after_bytes: int, direction: Direction = "to_broker") -> None:
        """Forward `after_bytes` more bytes, and reset the connection of the next byte; once."""

        def change(state: _DirectionState) -> None:
            state.reset_after = after_bytes

        self._each(direction, change)

    # Its state.

    @property
    def connections(self) -> int:
        """The number of connections."""
        return self._call(lambda: len(self._connections))

    @property
    def bytes_to_broker(self) -> int:
        """Bytes forwarded since the start."""
        return self._call(lambda: self._to_broker.count)

    @property
    def bytes_from_broker(self) -> int:
        """Bytes forwarded since the start."""
        return self._call(lambda: self._from_broker.count)

    def wait_connected(self, count: int = 1, timeout: float = 10.0) -> None:
        """Wait until there are at least `count` connections; raise LabError after `timeout` seconds."""
        wait_until(lambda: self.connections >= count, timeout, f"{count} connections at the proxy")

    # Everything from here on runs in the proxy's thread, except _call and _each.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Sockets are closed; let cancelled tasks finish.
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _call(self, action: Callable[[], T]) -> T:
        """Run `action` in the proxy's thread, and return its result."""
        if self._thread is None or self._loop.is_closed():
            raise LabError("the proxy is not running")

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=10.0)

    def _each(self, direction: Direction, change: Callable[[_DirectionState], None]) -> None:
        states = {
            "to_broker": [self._to_broker],
            "from_broker": [self._from_broker],
            "both": [self._to_broker, self._from_broker],
        }
        if direction not in states:
            raise LabError(f"direction {direction!r}: choose to_broker, from_broker or both")

        def apply() -> None:
            for state in states[direction]:
                change(state)

        self._call(apply)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work)

    def _listen(self) -> None:
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        self._listener = listener
        self._acceptor = self._task(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            task = self._task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket) -> None:
        broker = socket.socket()
        broker.setblocking(False)
        try:
            await self._loop.sock_connect(broker, self._upstream)
        except (OSError, asyncio.CancelledError):
            _close(client, reset=True)
            _close(broker, reset=True)
            return
        for end in (client, broker):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, broker)
        self._connections.add(connection)
        for source, target, state in (
            (client, broker, self._to_broker),
            (broker, client, self._from_broker),
        ):
            waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_TRANSIT)
            connection.tasks += [
                self._task(self._read(connection, source, state, waiting)),
                self._task(self._write(connection, target, state, waiting)),
            ]

    async def _read(
        self,
        connection: _Connection,
        source: socket.socket,
        state: _DirectionState,
        waiting: asyncio.Queue[tuple[float, bytes]],
    ) -> None:
        while True:
            try:
                data = await self._loop.sock_recv(source, _CHUNK)
            except OSError:
                self._end(connection, reset=True)
                return
            await waiting.put((self._loop.time() + state.delay, data))
            if not data:
                return

    async def _write(
        self,
        connection: _Connection,
        target: socket.socket,
        state: _DirectionState,
        waiting: asyncio.Queue[tuple[float, bytes]],
    ) -> None:
        while True:
            due, data = await waiting.get()
            if (early := due - self._loop.time()) > 0:
                await asyncio.sleep(early)
            await state.flowing.wait()
            if connection.half_open:
                continue
            try:
                if not data:
                    # This side has finished; the other may still send.
                    target.shutdown(socket.SHUT_WR)
                    connection.tasks.remove(asyncio.current_task())  # type: ignore[arg-type]
                    if len(connection.tasks) <= 2:
                        self._end(connection, reset=False)
                    return
                await self._forward(connection, target, state, data)
            except OSError:
                self._end(connection, reset=True)
                return

    async def _forward(
        self, connection: _Connection, target: socket.socket, state: _DirectionState, data: bytes
    ) -> None:
        while data and not connection.half_open:
            if state.discard:
                return
            part = data
            if state.rate is not None:
                part = data[: max(1, int(state.rate * _SLICE_SECONDS))]
            last = state.reset_after is not None and len(part) > state.reset_after
            if state.reset_after is not None:
                part = part[: state.reset_after]
                state.reset_after = None if last else state.reset_after - len(part)
            await self._loop.sock_sendall(target, part)
            state.count += len(part)
            data = data[len(part) :]
            if last:
                await _sent(target)
                raise ConnectionResetError
            if state.rate is not None:
                await asyncio.sleep(len(part) / state.rate)
            await state.flowing.wait()

    def _end(self, connection: _Connection, *, reset: bool) -> None:
        if connection.half_open:
            return
        self._connections.discard(connection)
        connection.close(reset=reset)

    def _reset_all(self) -> None:
        for task in self._opening:
            task.cancel()
        for connection in list(self._connections):
            connection.half_open = False
            self._end(connection, reset=True)

    def _cut(self) -> None:
        if self._acceptor is not None:
            self._acceptor.cancel()
            self._acceptor = None
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        self._reset_all()

    def _half_open(self) -> None:
        for connection in self._connections:
            connection.half_open = True
            # The tasks of the broker's end stop; the one that reads from the client continues, so that its bytes are
            # received and discarded.
            _close(connection.broker, reset=False, loop=self._loop)

    def _heal(self) -> None:
        self._to_broker.clear()
        self._from_broker.clear()
        for connection in [each for each in self._connections if each.half_open]:
            connection.half_open = False
            self._end(connection, reset=True)
        if self._listener is None:
            self._listen()


def _close(end: socket.socket, *, reset: bool, loop: asyncio.AbstractEventLoop | None = None) -> None:
    if end.fileno() < 0:
        return
    running = loop or asyncio.get_running_loop()
    running.remove_reader(end)
    running.remove_writer(end)
    if reset:
        # A linger time of 0 turns the close into a reset.
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


async def _sent(end: socket.socket) -> None:
    """Wait until the peer's kernel has received everything, for at most a second: a reset discards unsent bytes."""
    for _ in range(200):
        left = struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, b"\0" * 4))[0]
        if not left:
            return
        await asyncio.sleep(0.005)
