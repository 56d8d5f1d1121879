"""The base class of all brokers."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from reliamsg.lab.process import Child, LabError, free_port, wait_until

__all__ = ["Broker", "TlsFiles"]


class Broker(ABC):
    """A broker on this machine that can be started, stopped, killed, paused and wiped.

    It keeps its data in its own directory, and its port across restarts. A context manager: entering starts it,
    leaving kills it. Not safe for use by several threads at the same time.

    Subclasses define how the process is launched, when it is ready, and what :meth:`wipe` deletes.
    """

    _KIND: ClassVar[str]
    """The name of this kind of broker in errors."""
    _STOP_SECONDS: ClassVar[float] = 30.0
    """How long :meth:`stop` waits before it kills the broker."""
    _POLL_SECONDS: ClassVar[float] = 0.02
    """Between two checks whether a starting broker is ready."""

    def __init__(self, directory: Path | str, name: str, port: int | None, start_timeout: float) -> None:
        """`port`: None to pick a free one. `start_timeout`: seconds that :meth:`start` may take."""
        self.directory: Path = Path(directory).resolve()
        self._name = name
        self._port = port or free_port()
        self._start_timeout = start_timeout
        self._child: Child | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    @abstractmethod
    def url(self) -> str:
        """For ``Site(name, url)``, with user and password if the broker requires them."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def alive(self) -> bool:
        """Whether its process exists, even while paused."""
        return self._child is not None and self._child.alive

    def start(self) -> None:
        """Start it with its existing data, and return when clients can connect. Raises LabError if that takes too
        long."""
        if self.alive:
            raise LabError(f"{self._name} is already running")
        try:
            self._child = self._launch()
            wait_until(self._answers, self._start_timeout, self._ready(), self._child, self._POLL_SECONDS)
        except BaseException:
            self.kill()
            raise

    @abstractmethod
    def _launch(self) -> Child:
        """Start the process."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether clients can connect."""

    def _ready(self) -> str:
        """What :meth:`start` waits for, in words."""
        return f"{self._KIND} answers at port {self._port}"

    def stop(self) -> None:
        """Stop it cleanly, so that it can save its data; kill it if that takes longer than half a minute."""
        if self._child is not None:
            self._child.terminate(self._STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL: after a restart, it has only the data that is on disk now."""
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but nothing is answered."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after :meth:`pause`."""
        self._running().signal(signal.SIGCONT)

    def _running(self) -> Child:
        if self._child is None or not self._child.alive:
            raise LabError(f"{self._name} is not running")
        return self._child

    def wipe(self) -> None:
        """Delete its data, as if the machine had been replaced. Allowed only while it is down."""
        if self.alive:
            raise LabError(f"{self._name} is running; stop or kill it before wiping its data")
        self._delete_data()

    @abstractmethod
    def _delete_data(self) -> None:
        """Delete the data; the broker is down."""

    def __enter__(self) -> Self:
        if not self.alive:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a TLS listener."""

    certificate: Path
    key: Path
    authority: Path
    """The certificate of the authority that signs server and client certificates."""
