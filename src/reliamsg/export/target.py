"""Targets of segments: directories, and all file systems that fsspec supports.

A segment's name contains the digest of its content, so each name is written only once: an existing file of the same
name must have the same content. A different file is an error, and is not replaced. Heads are the only files that are
replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from reliamsg.config import is_remote, shown_target
from reliamsg.errors import ConfigError, JournalTargetError
from reliamsg.files import create_private, make_directories, read_regular
from reliamsg.store.head import boot_of_head

__all__ = ["DirectoryTarget", "RemoteTarget", "Target", "is_checkpoint_name", "open_target"]

SUFFIX = ".ndjson"

_WHOLE_PUTS = frozenset(
    {"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2"}
)
"""Protocols with atomic writes. With others, a file is written under a temporary name and renamed."""
_CREDENTIALS = re.compile(r"//[^/\s]*@")


class Target(ABC):
    """A location for segments. `shown` is its name in messages, without passwords.

    Methods raise :class:`JournalTargetError` if the location can't be reached, read or written. They block until it
    answers.
    """

    shown: str

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a file durably and atomically to `path` (relative, with ``/`` as separator).

        An existing file is compared and never replaced: the call succeeds if it has the same content, and raises
        otherwise.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a file durably and atomically to `path`, in place of an existing one."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file if it exists."""

    @abstractmethod
    def paths(self, *, heads: bool = False) -> Iterator[str]:
        """The relative paths of all files that end in ``.ndjson``, sorted, without hidden files and directories. With
        `heads`, also those of heads and checkpoints."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a file."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown}>"

    def _damaged(self, path: str) -> JournalTargetError:
        return JournalTargetError(
            f"{self.shown}: {path} exists with other content than its name states: it was damaged or edited."
            " Move it away; it is not overwritten"
        )


def open_target(target: str | os.PathLike[str]) -> Target:
    """The target with a path or fsspec URL. It is not accessed yet.

    Raises :class:`ConfigError` if fsspec, or the package that it needs for the protocol, is not installed.
    """
    text = os.fspath(target)
    if not is_remote(target):
        return DirectoryTarget(Path(text))
    protocol = re.split(r"::|://", text, maxsplit=1)[0]
    if protocol in ("file", "local") and "::" not in text:
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise ConfigError(f"{shown_target(target)}: not a URL: {error}") from None
        return DirectoryTarget(Path(unquote(parts.netloc + parts.path)))
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(
            f"{shown_target(target)}: a journal at a URL needs the extra: pip install 'reliamsg[remote]'"
        ) from None
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ConfigError(f"{shown_target(target)}: {protocol}:// needs another package: {error}") from None
    except ValueError:
        raise ConfigError(
            f"{shown_target(target)}: fsspec does not support the protocol {protocol!r}"
        ) from None
    return RemoteTarget(text, protocol)


class DirectoryTarget(Target):
    """A directory, created when the first segment is written. Only its owner has access: directories have mode 0700,
    files 0600, regardless of the umask. Reads regular files only, and follows no symbolic links below the directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.shown: str = str(root)

    def write(self, path: str, data: bytes) -> None:
        final = self._root / path
        try:
            if self._same(final, data, path):
                self._sync(final)  # its writer may have crashed before it did so
                self._sync_directories(final.parent)
                self._sweep(final)
                return
            self._place(final, data, lambda aside: self._name(aside, final, data, path))
        except OSError as error:
            raise self._failed("written", error) from error

    def replace(self, path: str, data: bytes) -> None:
        final = self._root / path
        try:
            self._place(final, data, lambda aside: os.replace(aside, final))
        except OSError as error:
            raise self._failed("written", error) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._root / path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed("removed", error) from error

    def _same(self, final: Path, data: bytes, path: str) -> bool:
        """Whether the file exists; raises if its content differs."""
        try:
            found = read_regular(final)
        except FileNotFoundError:
            return False
        if found != data:
            raise self._damaged(path)
        return True

    def _place(self, final: Path, data: bytes, name: Callable[[Path], None]) -> None:
        """Write and sync a file of another name in the same directory, which `name` renames, and sync that."""
        make_directories(final.parent)
        aside = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
        try:
            self._write_aside(aside, data)
            name(aside)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
        self._sync_directories(final.parent)
        self._sweep(final)

    @staticmethod
    def _write_aside(aside: Path, data: bytes) -> None:
        with open(create_private(aside), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _name(self, aside: Path, final: Path, data: bytes, path: str) -> None:
        """Give the file its name, unless another process already has."""
        try:
            os.link(aside, final)  # unlike a rename, never replaces a file
        except FileExistsError:
            if not self._same(final, data, path):
                raise
        except OSError:
            # On a file system without hard links, check before the rename, at the risk of a race.
            if not self._same(final, data, path):
                os.rename(aside, final)

    @staticmethod
    def _sweep(final: Path) -> None:
        """Remove temporary files of processes that crashed while writing this file. A process that is writing it at
        present will find it complete."""
        with os.scandir(final.parent) as entries:
            leftovers = [entry.path for entry in entries if entry.name.startswith(f".{final.name}.")]
        for path in leftovers:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    @staticmethod
    def _sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_directories(self, directory: Path) -> None:
        """Make a new name durable: fsync its directory and all above, up to the parent of the root."""
        top = self._root.parent
        while True:
            self._sync(directory)
            if directory in (top, directory.parent):
                return
            directory = directory.parent

    def paths(self, *, heads: bool = False) -> Iterator[str]:
        found: list[str] = []
        try:
            if not self._root.is_dir():
                raise NotADirectoryError(20, "no such directory")
            for directory, names, files in os.walk(self._root, onerror=_reraise):
                names[:] = [name for name in names if not name.startswith(".")]
                base = Path(directory).relative_to(self._root)
                found += [(base / name).as_posix() for name in files if _listed(name, heads)]
        except OSError as error:
            raise self._failed("read", error) from error
        yield from sorted(found)

    def read(self, path: str) -> bytes:
        try:
            return read_regular(self._root / path)
        except OSError as error:
            raise self._failed("read", error) from error

    def _failed(self, what: str, error: OSError) -> JournalTargetError:
        where = f" ({error.filename})" if error.filename else ""
        return JournalTargetError(f"{self.shown}: can't be {what}: {error.strerror or error}{where}")


class RemoteTarget(Target):
    """An fsspec URL. The first call connects."""

    def __init__(self, url: str, protocol: str) -> None:
        self._url = url
        self._whole = protocol in _WHOLE_PUTS
        self.shown: str = shown_target(url)
        self._secrets = _secrets(url)
        self._opened: tuple[Any, str] | None = None

    def write(self, path: str, data: bytes) -> None:
        with self._translated("written"):
            files, root = self._open()
            final = f"{root}/{path}"
            if self._same(files, final, data, path):
                return

            def name(aside: str) -> None:
                if not self._same(files, final, data, path):
                    files.mv(aside, final)

            self._place(files, final, data, name)

    def replace(self, path: str, data: bytes) -> None:
        with self._translated("written"):
            files, root = self._open()
            final = f"{root}/{path}"

            def name(aside: str) -> None:
                try:
                    files.mv(aside, final)
                except FileExistsError:  # no rename there replaces a file
                    files.rm_file(final)
                    files.mv(aside, final)

            self._place(files, final, data, name)

    def _place(self, files: Any, final: str, data: bytes, name: Callable[[str], None]) -> None:
        """Write a file of another name in the same directory, which `name` renames; where files appear whole, the file
        itself."""
        if self._whole:
            files.pipe_file(final, data)
            return
        directory, _, own = final.rpartition("/")
        aside = f"{directory}/.{own}.{secrets.token_hex(4)}"
        files.makedirs(directory, exist_ok=True)
        try:
            files.pipe_file(aside, data)
            name(aside)
        finally:
            with contextlib.suppress(FileNotFoundError):
                files.rm_file(aside)

    def remove(self, path: str) -> None:
        with self._translated("removed"), contextlib.suppress(FileNotFoundError):
            files, root = self._open()
            files.rm_file(f"{root}/{path}")

    def _same(self, files: Any, final: str, data: bytes, path: str) -> bool:
        try:
            found = files.cat_file(final)
        except FileNotFoundError:
            return False
        if found != data:
            raise self._damaged(path)
        return True

    def paths(self, *, heads: bool = False) -> Iterator[str]:
        with self._translated("read"):
            files, root = self._open()
            files.invalidate_cache()
            prefix = root.rstrip("/") + "/"
            found = [str(name) for name in files.find(root)]
        inside = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
        yield from sorted(
            name
            for name in inside
            if _listed(name.rpartition("/")[2], heads)
            and not any(part.startswith(".") for part in name.split("/"))
        )

    def read(self, path: str) -> bytes:
        with self._translated("read"):
            files, root = self._open()
            found: bytes = files.cat_file(f"{root}/{path}")
        return found

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            files, root = url_to_fs(self._url)
            self._opened = files, str(root).rstrip("/")
        return self._opened

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Converts the various exceptions of the packages behind fsspec."""
        try:
            yield
        except (JournalTargetError, ConfigError):
            raise
        except Exception as error:  # noqa: BLE001  (the packages have no common base class)
            text = _CREDENTIALS.sub("//", str(error).replace(self._url, self.shown))
            for secret in self._secrets:
                text = text.replace(secret, "***")
            words = " ".join(text.split()) or type(error).__name__
            raise JournalTargetError(f"{self.shown}: can't be {what}: {words}") from None


def _secrets(url: str) -> list[str]:
    """The secrets of a URL, to be removed from error messages of other packages, longest first."""
    found: set[str] = set()
    for part in url.split("::"):
        rest, _, tail = re.sub(r"[?#]", "?", part.partition("://")[2]).partition("?")
        login = rest.rpartition("@")[0]
        for text in (
            login,
            login.partition(":")[2],
            *tail.split("?"),
            *(v.partition("=")[2] for v in tail.split("&")),
        ):
            found |= {text, unquote(text)}
    return sorted(filter(None, found), key=len, reverse=True)


def _listed(name: str, heads: bool) -> bool:
    if name.endswith(SUFFIX) and not name.startswith("."):
        return True
    return heads and (boot_of_head(name) is not None or is_checkpoint_name(name))


def is_checkpoint_name(name: str) -> bool:
    """Whether a file may be a checkpoint, judging by its name."""
    return name.startswith("checkpoint-") and name.endswith(".parquet")


def _reraise(error: OSError) -> None:
    raise error
