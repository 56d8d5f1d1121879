"""Runs the command line as users do, in a separate process; or in this process, where that proves as much."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliamsg.cli import main
from tests.children import TIMEOUT_S, run_child

RELIAMSG = [sys.executable, "-m", "reliamsg"]


@dataclass
class Sites:
    """``--site`` arguments, and a directory for the files."""

    arguments: list[str]
    directory: Path

    def file(self, name: str) -> str:
        return str(self.directory / name)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELIAMSG_")}
    return {**kept, **more}


def reliamsg(
    *arguments: str | Path, stdin: bytes = b"", timeout: float = TIMEOUT_S, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return run_child(
        [*RELIAMSG, *map(str, arguments)], stdin=stdin, timeout=timeout, env=environment(**variables)
    )


def reliamsg_here(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """The same in this process: for errors before anything begins, which take less time than a process's start."""
    out, err = io.StringIO(), io.StringIO()
    logger = logging.getLogger("reliamsg")
    handlers, level = logger.handlers[:], logger.level
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*map(str, arguments)])
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    return subprocess.CompletedProcess(arguments, status, out.getvalue().encode(), err.getvalue().encode())


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*RELIAMSG, *map(str, arguments)], env=environment(), **options)


def succeeded(result: subprocess.CompletedProcess[bytes]) -> bytes:
    """It exited with 0; returns its output."""
    assert result.returncode == 0, (result.returncode, result.stderr.decode())
    return result.stdout


def refused(result: subprocess.CompletedProcess[bytes], status: int, *words: str) -> str:
    """It exited with this code and one clear line, the last on standard error; returns that line."""
    text = result.stderr.decode()
    assert result.returncode == status, (result.returncode, text)
    assert "Traceback" not in text
    *before, last = text.splitlines()
    assert all(line.startswith("reliamsg: WARNING: ") for line in before), text
    assert last.startswith("reliamsg: "), text
    for word in words:
        assert word in last, last
    return last


def json_of(output: bytes) -> dict[str, Any]:
    """The last line, as JSON."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def publish(sites: Sites, topic: str, lines: bytes, *more: str) -> subprocess.CompletedProcess[bytes]:
    arguments: Sequence[str] = [*sites.arguments, "--producer", "p", "--outbox", sites.file("p.db")]
    return reliamsg("pub", topic, *arguments, *more, stdin=lines)


def subscribe(sites: Sites, topic: str, group: str, *more: str) -> subprocess.CompletedProcess[bytes]:
    arguments: Sequence[str] = [*sites.arguments, "--group", group, "--inbox", sites.file(f"{group}.db")]
    return reliamsg("sub", topic, *arguments, *more)


def create(sites: Sites, topic: str, group: str, *more: str) -> subprocess.CompletedProcess[bytes]:
    """In this process, since most tests only need the group."""
    return reliamsg_here("group", "create", group, "--topic", topic, *sites.arguments, *more)
