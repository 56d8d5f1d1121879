"""Virtual hosts on this machine: network namespaces on one bridge, which can be isolated from each other.

Requires root, iproute2 and iptables. Each network has a number, from which its names and addresses are derived, so
several can exist at the same time. Leftovers of a killed process are removed when its number is used again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from reliamsg.lab.process import LabError, program, wait_until

__all__ = ["Network"]

_NETWORKS = 200
"""The maximum number at a time: it is the third byte of their addresses."""


class Network:
    """Hosts 1 to `hosts`, all reachable from this machine, whose own address is :attr:`gateway`.

    A context manager: leaving it kills the processes on the hosts and removes the network, and so does the exit of this
    process. Thread-safe, except for :meth:`close`.
    """

    def __init__(self, hosts: int) -> None:
        """Create a network of 1 to 99 `hosts`. Raises LabError without root or the required programs."""
        if not 1 <= hosts <= 99:
            raise LabError(f"a network of {hosts} hosts: 1 to 99 are possible")
        if os.geteuid():
            raise LabError("network namespaces need root")
        self._ip = program("ip", "iproute2")
        self._iptables = program("iptables", "iptables")
        self.hosts: range = range(1, hosts + 1)
        self._lock = threading.RLock()
        self._number, self._reservation = _take_number()
        self._closed = False
        atexit.register(self.close)
        self._remove()  # leftovers of a process that was killed
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        self._call(self._ip, "link", "add", self._bridge, "type", "bridge")
        self._call(self._ip, "addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        self._call(self._ip, "link", "set", self._bridge, "up")
        for host in self.hosts:
            space, outside = self.namespace(host), f"{self._bridge}v{host}"
            self._call(self._ip, "netns", "add", space)
            self._call(
                self._ip, "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space
            )
            self._call(self._ip, "link", "set", outside, "master", self._bridge, "up")
            self._call(self._ip, "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            self._call(self._ip, "-n", space, "link", "set", "eth0", "up")
            self._call(self._ip, "-n", space, "link", "set", "lo", "up")

    @property
    def _bridge(self) -> str:
        # An interface's name has at most 15 characters.
        return f"rmlab{self._number}"

    @property
    def gateway(self) -> str:
        """This machine's address in the network."""
        return f"10.78.{self._number}.1"

    def address(self, host: int) -> str:
        """The address of a host."""
        self._check(host)
        return f"10.78.{self._number}.{10 + host}"

    def namespace(self, host: int) -> str:
        """The name of a host's network namespace."""
        self._check(host)
        return f"{self._bridge}-{host}"

    def _check(self, host: int) -> None:
        if host not in self.hosts:
            raise LabError(f"no host {host} in this network: {self.hosts.start} to {self.hosts.stop - 1}")

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a host; its process is replaced by that of `command`."""
        return [self._ip, "netns", "exec", self.namespace(host), *command]

    def isolate(self, *hosts: int) -> None:
        """Make these hosts drop all packets to and from the other hosts. They can still reach each other and this
        machine. Connections stay open, and hang. Earlier isolations remain in effect."""
        with self._lock:
            for here in hosts:
                for there in self.hosts:
                    if there not in hosts:
                        self._drop(here, there)

    def _drop(self, here: int, there: int) -> None:
        for chain, side in (("INPUT", "-s"), ("OUTPUT", "-d")):
            rule = [chain, side, self.address(there), "-j", "DROP"]
            if not self._has_rule(here, rule):
                self._call(*self.inside(here, [self._iptables, "-w", "-A", *rule]))

    def _has_rule(self, host: int, rule: list[str]) -> bool:
        check = self.inside(host, [self._iptables, "-w", "-C", *rule])
        return subprocess.run(check, capture_output=True, check=False, timeout=60).returncode == 0

    def lose(self, host: int, fraction: float) -> None:
        """Make a host drop a random fraction, from 0 to 1, of the packets that it receives, until :meth:`heal`."""
        chance = ["-m", "statistic", "--mode", "random", "--probability", f"{fraction:.4f}", "-j", "DROP"]
        with self._lock:
            self._call(*self.inside(host, [self._iptables, "-w", "-A", "INPUT", "!", "-i", "lo", *chance]))

    def heal(self, *hosts: int) -> None:
        """End the faults of these hosts, or of all. Hosts that are isolated from them still drop their packets."""
        with self._lock:
            for here in hosts or self.hosts:
                for chain in ("INPUT", "OUTPUT"):
                    self._call(*self.inside(here, [self._iptables, "-w", "-F", chain]))

    def pids(self, host: int) -> list[int]:
        """The processes that run on a host."""
        return [int(pid) for pid in self._call(self._ip, "netns", "pids", self.namespace(host)).split()]

    def close(self) -> None:
        """Kill the processes on the hosts, and remove the network; may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._remove()
        self._reservation.close()

    def _remove(self) -> None:
        for space in self._spaces():
            wait_until(lambda space=space: not self._kill(space), 60.0, f"all processes in {space} exit")  # type: ignore[misc]
        # The links first, and by name: if left to their namespaces, they would disappear a moment later.
        for link in self._links():
            self._try("link", "del", link)
        for space in self._spaces():
            self._try("netns", "del", space)

    def _links(self) -> list[str]:
        """The existing links of this network: the bridge, and the interfaces attached to it."""
        lines = self._call(self._ip, "-o", "link", "show").splitlines()
        names = [line.split(": ")[1].partition("@")[0] for line in lines]
        return [name for name in names if name == self._bridge or name.startswith(f"{self._bridge}v")]

    def _spaces(self) -> list[str]:
        """The existing namespaces of this network, or of an earlier, larger one with the same number."""
        names = [
            line.split()[0] for line in self._call(self._ip, "netns", "list").splitlines() if line.strip()
        ]
        return [name for name in names if name.startswith(f"{self._bridge}-")]

    def _kill(self, space: str) -> list[str]:
        """Kill the processes in a namespace, and return their ids."""
        found = self._try("netns", "pids", space).split()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return found

    def _try(self, *args: str) -> str:
        """The output of a command that may fail because there is nothing to remove."""
        return subprocess.run(
            [self._ip, *args], capture_output=True, text=True, check=False, timeout=60
        ).stdout

    @staticmethod
    def _call(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise LabError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take_number() -> tuple[int, socket.socket]:
    """The lowest number that no living process uses; it is reserved as long as the socket is open."""
    for number in range(1, _NETWORKS + 1):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0reliamsg-lab-network-{number}")
        except OSError:
            reservation.close()
            continue
        return number, reservation
    raise LabError(f"there are already {_NETWORKS} networks of the laboratory")
