"""Hosts in network namespaces: several networks, isolated hosts, and no leftovers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliamsg.lab import LabError, Network, wait_until
from reliamsg.lab.process import Child
from tests.children import run_child
from tests.patience import wait_for

LISTEN = "import socket, time; server = socket.create_server(('0.0.0.0', 7000)); time.sleep(1e6)"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=0.5)"


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(3) as found:
        yield found


def listen(network: Network, host: int, output: Path) -> Child:
    child = Child(f"host {host}", network.inside(host, [sys.executable, "-c", LISTEN]), output=output)
    wait_until(lambda: reaches(network, host, host), 60, f"host {host} listens", child)
    return child


def reaches(network: Network, here: int | None, there: int) -> bool:
    """Whether a connection can be made to a listening host, from another or from this machine."""
    command = [sys.executable, "-c", CONNECT, network.address(there)]
    if here is not None:
        command = network.inside(here, command)
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def test_hosts_are_isolated_and_healed(network: Network, tmp_path: Path) -> None:
    for host in network.hosts:
        listen(network, host, tmp_path / "out")
    assert reaches(network, 1, 3)

    network.isolate(3)
    network.isolate(3)
    assert not reaches(network, 1, 3)
    assert not reaches(network, 3, 2)
    assert reaches(network, 1, 2)
    assert reaches(network, None, 3), "clients still reach it"

    network.isolate(1)
    network.heal(3)
    assert reaches(network, 3, 2)
    assert not reaches(network, 3, 1), "1 has isolated itself too"
    assert not reaches(network, 1, 2)
    network.isolate(1, 3)
    assert not reaches(network, 3, 2)
    network.heal(1)
    assert reaches(network, 1, 2)
    assert reaches(network, 1, 3), "they were isolated together"
    assert not reaches(network, 3, 2)
    network.heal()
    assert reaches(network, 2, 1)
    with pytest.raises(LabError, match="no host 4"):
        network.address(4)


def test_packets_are_lost(network: Network, tmp_path: Path) -> None:
    listen(network, 2, tmp_path / "out")
    assert reaches(network, 1, 2)
    network.lose(2, 1.0)
    assert not reaches(network, 1, 2)
    assert reaches(network, 2, 2), "packets of a host to itself are not lost"
    network.heal(2)
    assert reaches(network, 1, 2)


def test_two_networks_at_the_same_time_leave_nothing_behind(network: Network, tmp_path: Path) -> None:
    with Network(1) as other:
        assert other.gateway != network.gateway
        child = listen(other, 1, tmp_path / "out")
        assert child.pid in other.pids(1)
        assert network.pids(1) == []
        space = other.namespace(1)
    assert not child.alive
    assert space not in namespaces()
    other.close()


ABANDON = """
import os, signal, subprocess
from reliamsg.lab import Network
network = Network(1)
process = subprocess.Popen(network.inside(1, ["sleep", "1000000"]), start_new_session=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(network.namespace(1), process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_network_of_a_number_removes_the_leftovers_of_a_killed_process() -> None:
    done = run_child([sys.executable, "-c", ABANDON])
    space, pid = done.stdout.decode().split()
    with contextlib.ExitStack() as stack:
        # Other processes that create networks now may use its number, and then remove the leftovers.
        for _ in range(20):
            made = stack.enter_context(Network(1))
            if made.namespace(1) == space or space not in namespaces():
                break
        else:
            raise AssertionError(f"{space} is still there")
        assert int(pid) not in made.pids(1)
    # The process that removed them has sent the signal, which takes effect a moment later.
    wait_for(lambda: not runs(int(pid)), "the process is gone")


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout


def test_only_root_can_create_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="root"):
        Network(3)
