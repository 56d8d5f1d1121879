"""Child processes that exit with their parent, reserved ports, and waiting with a deadline.

A broker that is left running after a failed test keeps its port and uses the machine. So each child gets its own
process group, is killed at interpreter exit, and asks the kernel for SIGKILL when its parent exits
(``PR_SET_PDEATHSIG``), which also works for a parent that was itself killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from reliamsg.errors import FatalError

__all__ = ["Child", "LabError", "free_port", "program", "wait_until"]

_POLL = 0.02
"""Seconds between two checks of a condition."""

_STOPPED_SECONDS = 30.0
"""How long a process may take to stop after SIGSTOP; a thread that waits for a disk stops only afterwards."""

# The child binds its life to its parent's and then executes the program. A launcher does this because a preexec_fn
# would run Python between fork and exec, which can deadlock if other threads hold locks. The parent may exit before
# prctl (1 = PR_SET_PDEATHSIG, 9 = SIGKILL) is called, so its id is checked afterwards.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class LabError(FatalError):
    """A broker or proxy of the laboratory failed; the message says what to look at."""


def program(name: str, package: str, *places: str) -> str:
    """The path of the program `name`, from one of `places` or PATH. If it is missing, LabError names `package`."""
    for place in places:
        path = os.path.join(place, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise LabError(f"{name} is not installed; on Debian: apt-get install {package}")
    return found


def _reserve(port: int) -> bool:
    """Reserve a port as long as this process lives; False if this or another process has reserved it already."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0reliamsg-lab-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # never closed: the abstract name disappears with the process
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A free TCP port, reserved as long as this process lives: until its broker listens, and while the broker is down,
    no other caller of this function gets it, in any process.

    It is below the range that the kernel uses for outgoing connections (32768 and up on Linux), so that none of these
    takes it while its broker is restarted.
    """
    rng = random.SystemRandom()
    for _ in range(1000):
        port = rng.randrange(10_000, 32_000)
        # Reserved before it is probed: the probe must not disturb an owner who is about to listen.
        if _reserve(port) and _is_free(host, port):
            return port
    raise LabError(f"no free port found between 10000 and 32000 at {host}")


def wait_until(
    condition: Callable[[], bool], timeout: float, what: str, child: Child | None = None, poll: float = _POLL
) -> None:
    """Return once `condition` holds. Raise :class:`LabError` with `what` after `timeout` seconds, or as soon as `child`
    has exited, with the end of its output."""
    deadline = time.monotonic() + timeout
    while not condition():
        if child is not None and not child.alive:
            raise LabError(f"{child.name} exited ({child.exit_code}) before {what}:\n{child.output_tail()}")
        if time.monotonic() >= deadline:
            tail = f":\n{child.output_tail()}" if child is not None else ""
            raise LabError(f"not within {timeout:g} s: {what}{tail}")
        time.sleep(poll)


def _is_stopped(group: int) -> bool:
    """Whether every thread of a process group is stopped (proc(5), state T) or has exited."""
    for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has exited in the meantime
        if int(its_group) == group and state not in "TtZX":
            return False
    return True


class _Spawner:
    """The only thread that starts children. To the kernel, the parent is the thread that forked, so a child of a
    short-lived thread would be killed when that thread exits."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[object]]]
        self._work = queue.SimpleQueue()
        threading.Thread(target=self._run, name="reliamsg-lab-spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            start, result = self._work.get()
            try:
                result.set_result(start())
            except OSError as error:
                result.set_exception(error)

    def spawn(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        result: Future[object] = Future()
        self._work.put((start, result))
        process = result.result()
        assert isinstance(process, subprocess.Popen)
        return process


_lock = threading.Lock()
_spawners: dict[int, _Spawner] = {}
_living: set[Child] = set()


def _spawner() -> _Spawner:
    # One per process id, since threads do not survive a fork.
    with _lock:
        pid = os.getpid()
        if pid not in _spawners:
            _spawners[pid] = _Spawner()
        return _spawners[pid]


class Child:
    """A child process in its own session and process group; its output goes to a file.

    Safe to use from several threads; :meth:`kill` and :meth:`terminate` may be called again.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`. Its output is appended to `output`; `environment` is added to this process's environment."""
        self.name = name
        self.output = output
        self._owner = os.getpid()
        self._exiting = threading.RLock()
        output.parent.mkdir(parents=True, exist_ok=True)
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        with output.open("ab") as sink:
            self._process = _spawner().spawn(
                lambda: subprocess.Popen(
                    launch,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                )
            )
        with _lock:
            _living.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists, even while it is stopped by SIGSTOP."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal terminated it."""
        with self._exiting:
            if self._process.returncode is not None:
                return self._process.returncode
            # Checked without reaping it: its id is also its group's, and must stay reserved until the rest of the group
            # has been killed.
            exited = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exited is None:
                return None
            return exited.si_status if exited.si_code == os.CLD_EXITED else -exited.si_status

    def output_tail(self, size: int = 2000) -> str:
        """The last `size` bytes of its output."""
        with contextlib.suppress(OSError):
            return self.output.read_bytes()[-size:].decode(errors="replace")
        return ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, unless it is gone. After SIGSTOP, wait until all of its threads have
        stopped."""
        if os.getpid() != self._owner:
            raise LabError(f"{self.name} belongs to another process")
        with self._exiting:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                if number == signal.SIGSTOP:
                    # The thread that handles the signal stops the others, which run until it gets a processor.
                    wait_until(lambda: _is_stopped(self._process.pid), _STOPPED_SECONDS, f"{self.name} stops")

    def kill(self) -> None:
        """Send SIGKILL to the whole group, even if its first process has exited, and wait until that is gone."""
        self.signal(signal.SIGKILL)
        with self._exiting:
            self._process.wait()
        with _lock:
            _living.discard(self)

    def terminate(self, timeout: float) -> None:
        """Send SIGTERM to the process, which decides about its own children; once it has exited, or after `timeout`
        seconds, kill the rest of the group."""
        if self.alive:
            self.signal(signal.SIGCONT)
            with self._exiting:
                # Not Popen.terminate(), which would reap a process that has just exited.
                if self._process.returncode is None:
                    os.kill(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(LabError):
                wait_until(lambda: not self.alive, timeout, f"{self.name} exits")
        self.kill()


@atexit.register
def _kill_children() -> None:
    for child in list(_living):
        if child._owner == os.getpid():
            child.kill()
