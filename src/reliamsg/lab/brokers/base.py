"""What all brokers of the lab have in common."""

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
    """A broker on this machine that can be started, and ended in all the ways that brokers end.

    It keeps everything in a directory of its own and its port over restarts. All are context managers:
    entering starts it, leaving ends it at once. Not safe for use by several threads at a time.

    A subclass says how its process is started, when that answers, and what :meth:`wipe` deletes.
    """

    _KIND: ClassVar[str]
    """What it is called in errors."""
    _STOP_SECONDS: ClassVar[float] = 30.0
    """How long :meth:`stop` waits before it kills."""
    _POLL_SECONDS: ClassVar[float] = 0.02
    """Between two looks at whether a starting broker answers."""

    def __init__(self, directory: Path | str, name: str, port: int | None, start_timeout: float) -> None:
        """`port`: None for a free one. `start_timeout`: seconds that :meth:`start` may take."""
        self.directory = Path(directory).resolve()
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
        """For ``Site(name, url)``, with user and password where the broker wants them."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def alive(self) -> bool:
        """Whether its process exists (also while paused)."""
        return self._child is not None and self._child.alive

    def start(self) -> None:
        """Start it, with the data that it has; returns when clients can connect. LabError if it does not
        come up in time."""
        if self.alive:
            raise LabError(f"{self._name} runs already")
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
        """End it cleanly, within half a minute, so that it saves what it wants to save; then it is killed."""
        if self._child is not None:
            self._child.terminate(self._STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL: what is on the disk now is all that will be there after a start."""
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        self._running().signal(signal.SIGCONT)

    def _running(self) -> Child:
        if self._child is None or not self._child.alive:
            raise LabError(f"{self._name} is not running")
        return self._child

    def wipe(self) -> None:
        """Delete its data, as if the machine had been replaced. Only while it is down."""
        if self.alive:
            raise LabError(f"{self._name} runs; stop or kill it before wiping its data")
        self._delete_data()

    @abstractmethod
    def _delete_data(self) -> None:
        """Delete what a start would find; the broker is down."""

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
    """The certificate authority's certificate, for clients and for checking theirs."""
