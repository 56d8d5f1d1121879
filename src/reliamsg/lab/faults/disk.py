"""Disk faults: an fsync that returns EIO, and file systems that are small, full or read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reliamsg.lab.process import LabError, program

__all__ = ["DiskFaults", "fill", "remount", "small_disk"]

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* While the file $FAIL_FSYNC exists, fsync() fails with EIO for files whose path ends with the content of that file;
   each failure appends a line to $FAIL_FSYNC.log. While $FAIL_FSYNC.readonly exists, pwrite() fails with EROFS. */
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


class DiskFaults:
    """Disk faults on demand, for processes that are started with :attr:`environment`.

    Requires a C compiler (Debian: gcc and libc6-dev).
    """

    def __init__(self, directory: Path) -> None:
        """Compile the shim library in `directory`, which must exist."""
        self.flag: Path = directory / "fail"
        source, library = directory / "fsync.c", directory / "fsync.so"
        source.write_text(_SHIM)
        compiler = program("cc", "gcc and libc6-dev")
        _call(compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl")
        self.environment: dict[str, str] = {"LD_PRELOAD": str(library), "FAIL_FSYNC": str(self.flag)}

    def fail_fsync(self, suffix: str) -> None:
        """Make fsync() return EIO for files whose path ends with `suffix`, until :meth:`heal`."""
        new = self.flag.with_suffix(".new")
        new.write_text(suffix)
        new.rename(self.flag)

    def read_only(self) -> None:
        """Make all writes fail, as if the kernel had remounted the file system read-only, until :meth:`heal`."""
        Path(f"{self.flag}.readonly").touch()

    def heal(self) -> None:
        """End all faults."""
        self.flag.unlink(missing_ok=True)
        Path(f"{self.flag}.readonly").unlink(missing_ok=True)

    def failures(self) -> int:
        """The number of calls of fsync() that have failed."""
        log = Path(f"{self.flag}.log")
        return len(log.read_text().splitlines()) if log.exists() else 0


@contextlib.contextmanager
def small_disk(directory: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of `size`, mounted at `directory`. Requires root."""
    directory.mkdir(exist_ok=True)
    _call("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory))
    try:
        yield directory
    finally:
        _call("umount", "-l", str(directory))


def remount(directory: Path, mode: Literal["ro", "rw"]) -> None:
    """Make a mounted file system read-only or writable again."""
    _call("mount", "-o", f"remount,{mode}", str(directory))


def fill(directory: Path) -> Path:
    """Fill a file system with one file, and return its path."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")
