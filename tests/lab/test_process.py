"""Child processes exit with their parent, however it exits."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab.process import Child, LabError, free_port, program, wait_until
from tests.children import run_child

PARENT = """
import os, signal, sys
from pathlib import Path
from reliamsg.lab.process import Child
child = Child("sleeper", ["sleep", "1000"], output=Path(sys.argv[1]))
print(child.pid, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", ["exited", "killed"])
def test_children_exit_with_their_parent(tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "out"), end]
    done = run_child(command, text=True)
    assert done.returncode == (0 if end == "exited" else -signal.SIGKILL), done.stderr
    wait_until(lambda: not running(int(done.stdout)), 60, "the child is gone")


def test_children_outlive_the_thread_that_started_them(tmp_path: Path) -> None:
    started: list[Child] = []
    thread = threading.Thread(
        target=lambda: started.append(Child("sleeper", ["sleep", "1000"], output=tmp_path / "out"))
    )
    thread.start()
    thread.join()
    (child,) = started
    wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", 60, "it sleeps", child)
    assert child.alive
    child.kill()
    assert not child.alive
    assert child.exit_code == -signal.SIGKILL
    child.kill()


def test_the_whole_group_is_killed(tmp_path: Path) -> None:
    child = Child("shell", ["sh", "-c", "sleep 1000 & echo $!; wait"], output=tmp_path / "out")
    wait_until(lambda: child.output_tail().endswith("\n"), 60, "the shell has started its own child", child)
    grandchild = int(child.output_tail())
    child.terminate(5)
    wait_until(lambda: not running(grandchild), 60, "the grandchild is gone")


BUSY = """
import threading, zlib
def work():
    while True:
        zlib.compress(bytes(2_000_000))  # without the interpreter's lock
for _ in range(7):
    threading.Thread(target=work, daemon=True).start()
print("on", flush=True)
work()
"""


def test_no_thread_of_a_stopped_process_runs(tmp_path: Path) -> None:
    # More busy threads than processors: the one that handles SIGSTOP waits for a processor while the others run.
    child = Child("busy", [sys.executable, "-c", BUSY], output=tmp_path / "out")
    wait_until(lambda: "on" in child.output_tail(), 60, "it is busy", child)

    def worked() -> int:
        return sum(map(int, Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    for _ in range(20):
        child.signal(signal.SIGSTOP)
        states = [
            each.read_text().rpartition(")")[2].split()[0]
            for each in Path(f"/proc/{child.pid}/task").glob("*/stat")
        ]
        assert states == ["T"] * 8
        before = worked()
        time.sleep(0.02)
        assert worked() == before
        child.signal(signal.SIGCONT)
        wait_until(lambda before=before: worked() > before, 60, "it continues", child)  # type: ignore[misc]
    child.kill()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = Child(
        "stubborn", ["sh", "-c", "trap '' TERM; echo on; while :; do sleep 1; done"], output=tmp_path / "o"
    )
    wait_until(lambda: "on" in child.output_tail(), 60, "it ignores SIGTERM", child)
    child.terminate(0.2)
    assert child.exit_code == -signal.SIGKILL


def test_waiting_reports_the_failure(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"not within 0.1 s: hens have teeth"):
        wait_until(lambda: False, 0.1, "hens have teeth")
    child = Child("short", ["sh", "-c", "echo no luck; exit 3"], output=tmp_path / "out")
    with pytest.raises(LabError, match=r"short exited \(3\) before it is up:\nno luck"):
        wait_until(lambda: False, 60, "it is up", child)
    with pytest.raises(LabError, match="apt-get install something"):
        program("no-such-program", "something")


def test_ports_are_free_and_returned_once() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert not any(low <= port <= high for port in ports)


def test_a_forked_process_leaves_its_parents_children_alone(tmp_path: Path) -> None:
    child = Child("sleeper", ["sleep", "1000"], output=tmp_path / "out")
    pid = os.fork()
    if pid == 0:
        try:
            child.kill()
        except LabError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert child.alive
    child.kill()


def test_a_reserved_port_is_not_even_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may be about to listen, and the probe would interfere."""
    given, other = free_port(), free_port() + 1
    looked_at: list[int] = []

    class Socket(socket.socket):
        def bind(self, address: Any, /) -> None:
            if isinstance(address, tuple):
                looked_at.append(address[1])
            super().bind(address)

    ports = iter([given, given, *range(other, 32_000)])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(ports))
    monkeypatch.setattr(socket, "socket", Socket)
    assert free_port() == looked_at[-1]
    assert given not in looked_at
