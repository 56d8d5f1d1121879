"""Safe access to files in directories that other users may write to: reads regular files only, creates private files.

Opening a named pipe, a device or a symbolic link in place of a file could block forever, return endless data, or lead
to another file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "create_private", "empty_directories", "irregular", "make_directories", "read_regular", "replace_file",
    "special_kind",
]  # fmt: skip

_KINDS = (
    (stat.S_ISLNK, "a symbolic link, which is not followed"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
)


def special_kind(mode: int) -> str | None:
    """Describes a file that is not a regular file; None for a regular file."""
    return next((text for test, text in _KINDS if test(mode)), None)


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Read a regular file, or its first `most` bytes. Raises OSError for any other file, without blocking and without
    following a symbolic link."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    before = special_kind(os.lstat(path).st_mode)
    if before is not None:
        raise OSError(errno.EINVAL, f"not a file: {before}", os.fspath(path))
    with open(os.open(path, flags), "rb") as file:
        kind = special_kind(os.fstat(file.fileno()).st_mode)
        if kind is not None:  # replaced in the meantime
            raise OSError(errno.EINVAL, f"not a file: {kind}", os.fspath(path))
        return file.read(most)


def irregular(root: str | os.PathLike[str], suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The entries below a directory that are skipped, as (path, description), sorted: files with one of these suffixes
    that are not regular, and symbolic links to directories. Without hidden names."""
    found: list[tuple[str, str]] = []
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                kind = special_kind(mode)
                listed = name.endswith(suffixes) and not name.startswith(".")
                if kind is not None and (stat.S_ISLNK(mode) if name in names else listed):
                    found.append((path, kind))
    return iter(sorted(found))


def empty_directories(root: str | os.PathLike[str]) -> Iterator[str]:
    """The directories below another one that have no entry. Symbolic links are entries. Without hidden names."""
    for directory, names, files in os.walk(root):
        if not names and not files:
            yield directory
        names[:] = [name for name in names if not name.startswith(".")]


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, with mode 0700 regardless of the umask."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:
            continue  # created by another process
        os.chmod(each, 0o700)


def create_private(path: str | os.PathLike[str]) -> int:
    """Create a new file with mode 0600, regardless of the umask; returns a descriptor for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o600)
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.fchmod(descriptor, 0o600)
    return descriptor


def replace_file(path: Path, data: bytes) -> None:
    """Write a file durably, as a whole, in the place of another one of its name. Raises :class:`OSError`."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
