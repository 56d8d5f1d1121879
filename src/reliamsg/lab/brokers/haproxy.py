"""HAProxy: one address in front of several servers."""

from __future__ import annotations

import contextlib
import csv
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from reliamsg.lab.process import Child, LabError, free_port, program, wait_until

__all__ = ["HaProxy"]

_TIMEOUT_S = 60.0
"""How long it may take to start, or to detect that a server goes up or down."""


class HaProxy:
    """Listens at ``127.0.0.1:port``, and forwards each connection to the first of its servers that is up.

    >>> with HaProxy(directory, {"c": ("10.78.1.13", 1883), "a": ("10.78.1.11", 1883)}) as balancer:   # doctest: +SKIP
    ...     Site("dc1", f"mqtt://127.0.0.1:{balancer.port}")

    With ``balance="roundrobin"``, connections are distributed over all servers that are up. When a server goes down,
    its connections are closed. A context manager: entering starts it, leaving kills it.
    """

    def __init__(
        self,
        directory: Path | str,
        servers: Mapping[str, tuple[str, int]],
        *,
        balance: str = "first",
        port: int | None = None,
    ) -> None:
        """`servers`: host and port by name. `balance`: one of HAProxy's algorithms. `port`: None to pick a free one."""
        if not servers:
            raise LabError("a balancer needs at least one server")
        self._program = program("haproxy", "haproxy")
        self.directory: Path = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port: int = port or free_port()
        self._child: Child | None = None
        self._servers = servers
        # Not a socket in the directory: its path may have at most 107 bytes, which a test's directory may exceed.
        self._stats_port = free_port()
        self._config = self.directory / "haproxy.cfg"
        self._config.write_text(self._lines(balance))

    def _lines(self, balance: str) -> str:
        lines = [
            "global",
            f"  stats socket 127.0.0.1:{self._stats_port}",
            "  hard-stop-after 1s",
            "defaults",
            "  mode tcp",
            "  timeout connect 2s",
            # Longer than every keepalive, so that the balancer does not close idle connections.
            "  timeout client 10m",
            "  timeout server 10m",
            "  retries 3",
            "  option redispatch 1",
            "listen brokers",
            f"  bind 127.0.0.1:{self.port}",
            f"  balance {balance}",
            # Servers are checked often, for a quick failover, and their connections are closed when they are down.
            "  default-server check inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions",
        ]
        lines += [f"  server {name} {host}:{port}" for name, (host, port) in self._servers.items()]
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        """Start it, and wait until it listens and has checked every server. LabError contains its output."""
        command = [self._program, "-db", "-f", str(self._config)]
        self._child = Child("haproxy", command, output=self.directory / "out")
        try:
            wait_until(self._listening, _TIMEOUT_S, f"HAProxy listens at port {self.port}", self._child)
        except BaseException:
            self.kill()
            raise

    def _listening(self) -> bool:
        with contextlib.suppress(OSError):
            return set(self.servers()) == set(self._servers)
        return False

    def servers(self) -> dict[str, str]:
        """Each server's state according to HAProxy: ``UP`` or ``DOWN``. Raises OSError while HAProxy is not running."""
        address = ("127.0.0.1", self._stats_port)
        with socket.create_connection(address, timeout=_TIMEOUT_S) as client:
            client.sendall(b"show stat\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        rows = csv.DictReader(answer.decode().lstrip("# ").splitlines())
        # While a state is changing, it is, for example, "UP 1/2".
        return {row["svname"]: row["status"].split()[0] for row in rows if row["svname"] in self._servers}

    def wait_up(self, *names: str) -> None:
        """Wait until these servers, or all, are up."""
        self._wait("UP", names or tuple(self._servers))

    def wait_down(self, *names: str) -> None:
        """Wait until these servers are down, and so their connections closed."""
        self._wait("DOWN", names)

    def _wait(self, state: str, names: tuple[str, ...]) -> None:
        def all_are() -> bool:
            states = self.servers()
            return all(states[name] == state for name in names)

        wait_until(all_are, _TIMEOUT_S, f"HAProxy has {', '.join(names)} {state}", self._child)

    def kill(self) -> None:
        """Kill it, and so close all connections."""
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
