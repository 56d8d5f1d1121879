"""Child processes that end with us, ports that stay ours, and waiting with a deadline.

A broker left running after a failed test holds its port and a good part of the machine. So each child gets a
process group of its own, is killed at interpreter exit, and asks the kernel for SIGKILL when its parent dies
(``PR_SET_PDEATHSIG``), which also covers a parent that was itself killed.
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
"""Seconds between two looks at a condition."""

_STOPPED_SECONDS = 30.0
"""How long a process that was sent SIGSTOP may run on; a thread that waits for a disk stops only afterwards."""

# The child binds itself to its parent's life and then becomes the program. Done by a launcher, because a
# preexec_fn runs Python between fork and exec, which may deadlock where other threads hold locks. The
# parent may be gone before prctl (1 = PR_SET_PDEATHSIG, 9 = SIGKILL) is reached, hence the second look.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class LabError(FatalError):
    """A broker or proxy of the lab could not do what was asked; the message says what to look at."""


def program(name: str, package: str, *places: str) -> str:
    """The path of the program `name`, from one of `places` or else from PATH; `package` is named when absent."""
    for place in places:
        path = os.path.join(place, name)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise LabError(f"{name} is not installed; on Debian: apt-get install {package}")
    return found


def _reserve(port: int) -> bool:
    """Take a port for as long as this process lives; False if it was given before, here or to another process of the
    lab."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0reliamsg-lab-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # nobody closes it: the abstract name goes with the process
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens at, given once as long as this process lives, also to other processes that ask
    here: between asking and listening, and while a broker is down, it looks free to everybody.

    It lies below the range that the kernel gives to outgoing connections (32768 and up on Linux), so that
    none of those takes it while its broker is down for a restart.
    """
    chance = random.SystemRandom()
    for _ in range(1000):
        port = chance.randrange(10_000, 32_000)
        # Reserved before it is looked at: whoever was given it and is about to listen must not find us there.
        if _reserve(port) and _is_free(host, port):
            return port
    raise LabError(f"no free port found between 10000 and 32000 at {host}")


def wait_until(
    condition: Callable[[], bool], timeout: float, what: str, child: Child | None = None, poll: float = _POLL
) -> None:
    """Return once `condition` holds; raise :class:`LabError` naming `what` after `timeout` seconds, or as
    soon as `child` has ended, with the last lines that it wrote."""
    deadline = time.monotonic() + timeout
    while not condition():
        if child is not None and not child.alive:
            raise LabError(f"{child.name} ended ({child.exit_code}) before {what}:\n{child.output_tail()}")
        if time.monotonic() >= deadline:
            tail = f":\n{child.output_tail()}" if child is not None else ""
            raise LabError(f"not within {timeout:g} s: {what}{tail}")
        time.sleep(poll)


def _stands_still(group: int) -> bool:
    """Whether no thread of a process group runs: each is stopped (proc(5), state T), or has ended."""
    for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended in the meantime
        if int(its_group) == group and state not in "TtZX":
            return False
    return True


class _Spawner:
    """The one thread that starts children. The kernel takes "parent" to mean the thread that forked, so a
    child started by a short-lived thread would be killed when that thread ends."""

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
    # By process id: threads do not survive a fork.
    with _lock:
        pid = os.getpid()
        if pid not in _spawners:
            _spawners[pid] = _Spawner()
        return _spawners[pid]


class Child:
    """A running child process in a session and process group of its own; its output goes to a file.

    Safe to use from several threads; :meth:`kill` and :meth:`terminate` may be called again.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command`; `output` gets what it writes, appended. `environment` is added to ours."""
        self.name = name
        self.output = output
        self._owner = os.getpid()
        self._ending = threading.RLock()
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
        """Whether the process exists; one that is stopped by SIGSTOP does."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative is the number of the signal that ended it."""
        with self._ending:
            if self._process.returncode is not None:
                return self._process.returncode
            # Looked at without reaping it, so that its number, which is its group's too, stays its own until
            # the rest of the group has been killed.
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def output_tail(self, size: int = 2000) -> str:
        """The last `size` bytes that it wrote."""
        with contextlib.suppress(OSError):
            return self.output.read_bytes()[-size:].decode(errors="replace")
        return ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; nothing happens if it has been ended. SIGSTOP: returns when all of it
        stands still."""
        if os.getpid() != self._owner:
            raise LabError(f"{self.name} belongs to another process")
        with self._ending:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                if number == signal.SIGSTOP:
                    # The one thread that takes the signal stops the others, which run on until it gets a processor.
                    wait_until(
                        lambda: _stands_still(self._process.pid), _STOPPED_SECONDS, f"{self.name} stops"
                    )

    def kill(self) -> None:
        """SIGKILL to the whole group, also where its first process has ended; returns when that is gone."""
        self.signal(signal.SIGKILL)
        with self._ending:
            self._process.wait()
        with _lock:
            _living.discard(self)

    def terminate(self, timeout: float) -> None:
        """SIGTERM to the process, which decides how its own children end; SIGKILL for what is still there
        after that, at the latest after `timeout` seconds."""
        if self.alive:
            self.signal(signal.SIGCONT)
            with self._ending:
                # Not Popen.terminate(), which would reap the process if it has just ended.
                if self._process.returncode is None:
                    os.kill(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(LabError):
                wait_until(lambda: not self.alive, timeout, f"{self.name} ends")
        self.kill()


@atexit.register
def _end_children() -> None:
    for child in list(_living):
        if child._owner == os.getpid():
            child.kill()
