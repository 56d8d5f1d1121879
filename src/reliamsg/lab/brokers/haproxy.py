"""HAProxy in front of several servers: one address that clients are told, as load balancers give it."""

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

_PATIENCE_S = 60.0
"""How long it may take to start or to notice that a server comes or goes."""


class HaProxy:
    """Listens at ``127.0.0.1:port`` and gives each connection to the first of its servers that is up.

    >>> with HaProxy(directory, {"c": ("10.78.1.13", 1883), "a": ("10.78.1.11", 1883)}) as balancer:   # doctest: +SKIP
    ...     Site("dc1", f"mqtt://127.0.0.1:{balancer.port}")

    With ``balance="roundrobin"`` connections go to all that are up, in turn. A server that goes down takes its
    connections with it; those to others stay. A context manager: entering starts it, leaving ends it.
    """

    def __init__(
        self,
        directory: Path | str,
        servers: Mapping[str, tuple[str, int]],
        *,
        balance: str = "first",
        port: int | None = None,
    ) -> None:
        """`servers`: name to host and port. `balance`: one of HAProxy's algorithms. `port`: None for a free one."""
        if not servers:
            raise LabError("a balancer without servers")
        self._program = program("haproxy", "haproxy")
        self.directory = Path(directory).resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self._child: Child | None = None
        self._servers = servers
        # Not a socket in the directory: its path has room for 107 bytes, which a test's directory may exceed.
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
            # Beyond every keepalive: it is not the balancer that ends an idle connection.
            "  timeout client 10m",
            "  timeout server 10m",
            "  retries 3",
            "  option redispatch 1",
            "listen brokers",
            f"  bind 127.0.0.1:{self.port}",
            f"  balance {balance}",
            # A connection is checked as often as a failover should take, and ended when its server is gone.
            "  default-server check inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions",
        ]
        lines += [f"  server {name} {host}:{port}" for name, (host, port) in self._servers.items()]
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        """Start it; returns when it listens and has looked at every server. LabError with what it wrote."""
        command = [self._program, "-db", "-f", str(self._config)]
        self._child = Child("haproxy", command, output=self.directory / "out")
        try:
            wait_until(self._listening, _PATIENCE_S, f"HAProxy listens at port {self.port}", self._child)
        except BaseException:
            self.kill()
            raise

    def _listening(self) -> bool:
        with contextlib.suppress(OSError):
            return set(self.servers()) == set(self._servers)
        return False

    def servers(self) -> dict[str, str]:
        """Each server's state as HAProxy sees it: ``UP`` or ``DOWN``. OSError while it does not run."""
        address = ("127.0.0.1", self._stats_port)
        with socket.create_connection(address, timeout=_PATIENCE_S) as client:
            client.sendall(b"show stat\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        rows = csv.DictReader(answer.decode().lstrip("# ").splitlines())
        # While a server's state changes, it is "UP 1/2" and the like.
        return {row["svname"]: row["status"].split()[0] for row in rows if row["svname"] in self._servers}

    def wait_up(self, *names: str) -> None:
        """Wait until these servers, or all, are up."""
        self._wait("UP", names or tuple(self._servers))

    def wait_down(self, *names: str) -> None:
        """Wait until these servers are down: their connections have ended."""
        self._wait("DOWN", names)

    def _wait(self, state: str, names: tuple[str, ...]) -> None:
        def there() -> bool:
            states = self.servers()
            return all(states[name] == state for name in names)

        wait_until(there, _PATIENCE_S, f"HAProxy has {', '.join(names)} {state}", self._child)

    def kill(self) -> None:
        """End it and all connections."""
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
