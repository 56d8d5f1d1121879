"""Files that others may have put there: only regular ones are read, and what is made is nobody else's to read.

A named pipe, a device or a symbolic link where a file should be would hang whoever opens it, never end, or lead
elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["create_private", "irregular", "make_directories", "read_regular", "what_it_is"]

_KINDS = (
    (stat.S_ISLNK, "a symbolic link, which is not followed"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
)


def what_it_is(mode: int) -> str | None:
    """What something is that is not a regular file; None for one that is."""
    return next((text for test, text in _KINDS if test(mode)), None)


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The bytes of a regular file, or the first `most`. Raises OSError for anything else, without waiting for it and
    without following a symbolic link in its place."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    before = what_it_is(os.lstat(path).st_mode)
    if before is not None:
        raise OSError(errno.EINVAL, f"not a file: {before}", os.fspath(path))
    with open(os.open(path, flags), "rb") as file:
        kind = what_it_is(os.fstat(file.fileno()).st_mode)
        if kind is not None:  # it changed in between
            raise OSError(errno.EINVAL, f"not a file: {kind}", os.fspath(path))
        return file.read(most)


def irregular(root: str | os.PathLike[str], suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What lies below a directory and is passed over: (path, what it is), sorted. That is whatever has one of these
    endings and is no regular file, and symbolic links to directories. Hidden names are left out."""
    found: list[tuple[str, str]] = []
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                kind = what_it_is(mode)
                listed = name.endswith(suffixes) and not name.startswith(".")
                if kind is not None and (stat.S_ISLNK(mode) if name in names else listed):
                    found.append((path, kind))
    return iter(sorted(found))


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are missing, each 0700 whatever the umask."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:
            continue  # somebody else was faster
        os.chmod(each, 0o700)


def create_private(path: str | os.PathLike[str]) -> int:
    """Create a file that does not exist, 0600 whatever the umask; a descriptor to write it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o600)
    with contextlib.suppress(PermissionError):  # a file system that keeps no modes
        os.fchmod(descriptor, 0o600)
    return descriptor
