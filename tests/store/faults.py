"""Disks that fail: an fsync that returns EIO, and a file system that is small or read-only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* While the file $FAIL_FSYNC exists, fsync() of files whose path ends with what it holds fails with EIO; each such
   call appends a line to $FAIL_FSYNC.log. While $FAIL_FSYNC.readonly exists, pwrite() fails with EROFS. */
static int fails(int fd) {
    const char *flag = getenv("FAIL_FSYNC");
    char link[64], path[4096], wanted[256], log[4096];
    if (!flag) return 0;
    FILE *file = fopen(flag, "r");
    if (!file) return 0;
    char *read = fgets(wanted, sizeof wanted, file);
    fclose(file);
    if (!read) return 0;
    wanted[strcspn(wanted, "\n")] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    size_t length = strlen(wanted);
    if ((size_t)size < length || strcmp(path + size - length, wanted)) return 0;
    snprintf(log, sizeof log, "%s.log", flag);
    file = fopen(log, "a");
    if (file) { fprintf(file, "%s\n", path); fclose(file); }
    return 1;
}
static int readonly(void) {
    const char *flag = getenv("FAIL_FSYNC");
    char path[4096];
    if (!flag) return 0;
    snprintf(path, sizeof path, "%s.readonly", flag);
    return access(path, F_OK) == 0;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (readonly()) { errno = EROFS; return -1; }
    return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (fails(fd)) { errno = EIO; return -1; }
    return real(fd);
}
int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (fails(fd)) { errno = EIO; return -1; }
    return real(fd);
}
"""


def build_shim(directory: Path) -> Path:
    """Compile the shim; needs a C compiler (Debian: gcc and libc6-dev)."""
    source, library = directory / "fsync.c", directory / "fsync.so"
    source.write_text(SHIM)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True, timeout=60
    )
    return library


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
        self._library = build_shim(directory)

    def run(self, code: str, **variables: str) -> str:
        environment = {
            **os.environ,
            **variables,
            "LD_PRELOAD": str(self._library),
            "FAIL_FSYNC": str(self.directory / "fail"),
            "DIRECTORY": str(self.directory),
        }
        found = subprocess.run(
            [sys.executable, "-c", self.PREAMBLE + code],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found.stdout


@contextlib.contextmanager
def small_disk(directory: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of `size`, mounted at `directory`. Needs root."""
    directory.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], check=True, timeout=10
    )
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=120)


def remount(directory: Path, mode: str) -> None:
    """Make a mounted file system ``ro`` or ``rw``."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(directory)], check=True, timeout=120)


def fill(directory: Path) -> Path:
    """Use up what is left of a file system."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path
