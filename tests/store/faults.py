"""Code that runs on a disk that fails: :mod:`reliamsg.lab.faults.disk` for the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from reliamsg.lab.faults.disk import DiskFaults, fill, remount, small_disk
from tests.children import run_child

__all__ = ["DiskFaults", "FailingDisk", "fill", "remount", "small_disk"]


class FailingDisk:
    """Runs Python code in a process in which fsync can be made to fail: the code calls ``fail(end_of_path)`` and
    ``heal()``, and asks ``failures()`` how often it failed. After ``read_only()`` nothing can be written, as on a
    file system that the kernel made read-only after an error, until ``read_only(False)``."""

    PREAMBLE = (
        "import os, sys, pathlib\n"
        "flag = pathlib.Path(os.environ['FAIL_FSYNC'])\n"
        "def fail(end): flag.write_text(end)\n"
        "def heal(): flag.unlink()\n"
        "def read_only(on=True):\n"
        "    file = pathlib.Path(str(flag) + '.readonly')\n"
        "    file.touch() if on else file.unlink()\n"
        "def failures():\n"
        "    log = pathlib.Path(str(flag) + '.log')\n"
        "    return len(log.read_text().splitlines()) if log.exists() else 0\n"
    )

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._faults = DiskFaults(directory)

    def run(self, code: str, **variables: str) -> str:
        environment = {
            **os.environ,
            **variables,
            **self._faults.environment,
            "DIRECTORY": str(self.directory),
        }
        found = run_child([sys.executable, "-c", self.PREAMBLE + code], env=environment, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout
