"""Child processes of tests. Whatever hangs says where: ``conftest.py`` sets ``PYTHONFAULTHANDLER`` for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr, Literal, overload

__all__ = ["TIMEOUT_S", "ended", "one_output_whatever_the_hash_seed", "run_child"]

TIMEOUT_S = 240.0
"""Of every child process that is not known to take longer."""
_STACKS_S = 20.0
"""How long a process may take to write the stacks of its threads, or to be killed."""


def ended(
    child: subprocess.Popen[AnyStr], stdin: AnyStr | None = None, timeout: float = TIMEOUT_S
) -> tuple[AnyStr, AnyStr]:
    """Wait until a Python program has ended; returns what it wrote to its standard output and error.

    If that takes more than `timeout` seconds, the program must write the stacks of all its threads, which are part of
    the AssertionError, like everything else that it has written.
    """
    out: Any
    err: Any
    try:
        out, err = child.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        for number in (signal.SIGABRT, signal.SIGKILL):
            child.send_signal(number)
            try:
                out, err = child.communicate(timeout=_STACKS_S)
                break
            except subprocess.TimeoutExpired as late:  # if it is gone, a child of its own has its output open
                out, err = late.stdout, late.stderr
        raise AssertionError(f"{child.args!r} did not end within {timeout:.0f} s\n{out!s}\n{err!s}") from None
    return out, err


@overload
def run_child(
    command: Sequence[str | Path],
    *,
    stdin: bytes = b"",
    timeout: float = TIMEOUT_S,
    check: bool = False,
    text: Literal[False] = False,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[bytes]: ...
@overload
def run_child(
    command: Sequence[str | Path],
    *,
    stdin: str = "",
    timeout: float = TIMEOUT_S,
    check: bool = False,
    text: Literal[True],
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[str]: ...
def run_child(
    command: Sequence[str | Path],
    *,
    stdin: str | bytes = b"",
    timeout: float = TIMEOUT_S,
    check: bool = False,
    text: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[Any]:
    """Run a Python program to its end as :func:`ended` does; its output is str if `text` is true, otherwise bytes.
    With `check`, a status other than 0 is an AssertionError."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=text,
        env=env,
        cwd=cwd,
    ) as child:
        try:
            out, err = ended(child, stdin or None, timeout)
        except BaseException:
            child.kill()
            raise
    assert not check or child.returncode == 0, f"{command} ended with {child.returncode}\n{out!s}\n{err!s}"
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def one_output_whatever_the_hash_seed(code: str) -> str:
    """The output of the program `code`, which must not depend on how strings are hashed."""
    outputs = {
        run_child(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    (output,) = outputs
    return output
