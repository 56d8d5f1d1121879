"""A client in a separate process that executes orders: one line of JSON in each direction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measured import Run, usage
from benchmarks.pairs import command_of, environment_of

__all__ = ["Child", "answer", "orders", "run_of"]


class Child:
    """Runs ``benchmarks/ours/NAME.py``, whose first input line is its configuration. A context manager, or call
    :meth:`end`."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            command_of("ours", name),
            env=environment_of("ours"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started: dict[str, Any] = {}
        """Its first answer, once :meth:`wait_started` has returned."""
        self.tell(**config)  # not an argument: ten thousand topics are too long for one

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.answer()

    def tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def wait_started(self) -> None:
        """Wait for its first answer: it is ready for orders."""
        self.started = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a client exited with status {self._process.wait()}")
        return dict(json.loads(line))

    @property
    def resident_mb(self) -> float:
        """Its current resource usage."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self.end()


def orders() -> Iterator[dict[str, Any]]:
    """In the child: yield its configuration, and then each order, until its standard input ends."""
    for line in sys.stdin:
        yield dict(json.loads(line))


def answer(**figures: Any) -> None:
    """In the child: answer one order, with the resources used so far."""
    cpu_seconds, rss_mb = usage()
    print(json.dumps({**figures, "cpu": cpu_seconds, "rss_mb": rss_mb}), flush=True)


def run_of(rate: float, messages: int, *answers: dict[str, Any], **more: Any) -> Run:
    """The resources of several clients in one run, from the last answer of each."""
    return Run(
        rate, messages, sum(each["cpu"] for each in answers), sum(each["rss_mb"] for each in answers), more
    )


Act = Callable[[dict[str, Any]], dict[str, Any]]


def serve(acts: dict[str, Act], lines: Iterator[dict[str, Any]]) -> None:
    """In the child: answer each order with the result of the action that its ``do`` names."""
    for order in lines:
        answer(**acts[order.pop("do")](order))
