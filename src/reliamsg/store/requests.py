"""Requests of an operator to the consumer that owns an inbox: files in a directory beside it.

An inbox has one owner, and two processes must not write to an SQLite file, so other processes leave a request. The
owner executes it within a second, commits, and leaves an answer; without a running owner, the next one executes it when
it opens the inbox. A request is a file ``<inbox>.requests/<name>.json``, written under another name and renamed, so
that it is never read in part. Requests are idempotent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Literal

import msgspec

from reliamsg.logs import Log
from reliamsg.message import Stream

__all__ = ["Answer", "Request", "RequestBox", "ask"]

log: Log = Log("reliamsg.store")

MAX_REQUEST_BYTES = 1024 * 1024
MAX_AT_ONCE = 100
POLL_S = 0.05
"""Interval of checks for an answer."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator's request; `action` decides which other fields are used."""

    action: Literal["accept", "replay", "discard", "forget", "replay_dead"]
    """``replay`` and ``discard`` are about the quarantine."""
    stream: Stream | None = None
    epoch: int = 0
    first: int = 0
    last: int | None = None
    ids: tuple[int, ...] | None = None
    reason: str | None = None
    streams: tuple[Stream, ...] = ()
    unused_since_us: int | None = None
    """In µs since 1970."""


class Answer(msgspec.Struct, frozen=True):
    """The result of a request."""

    done: bool
    text: str


class RequestBox:
    """The directory of requests, for the inbox's owner. No method raises: unreadable files are logged and removed."""

    def __init__(self, inbox: Path) -> None:
        self._path = _directory(inbox)

    def waiting(self) -> list[tuple[str, Request]]:
        """Requests and their names, oldest first."""
        try:
            names = sorted(name for name in os.listdir(self._path) if name.endswith(".json"))
        except OSError:
            return []  # no request was ever made
        found: list[tuple[str, Request]] = []
        for name in names[:MAX_AT_ONCE]:
            try:
                found.append((name, msgspec.json.decode(_read(self._path / name), type=Request)))
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.warning(
                    "store.request_unreadable", "%(file)s: not a request: %(reason)s",
                    file=str(self._path / name), reason=str(error),
                )  # fmt: skip
                self._remove(name)
        return found

    def answer(self, name: str, answer: Answer) -> None:
        """Answer a request whose effect is durable."""
        with contextlib.suppress(OSError):
            _write(self._path, f"{name.removesuffix('.json')}.answer", msgspec.json.encode(answer))
        self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(self._path / name)
        except OSError as error:
            log.warning(
                "store.request_not_removed", "%(file)s: the request can't be removed: %(reason)s",
                file=str(self._path / name), reason=str(error),
            )  # fmt: skip


def ask(inbox: Path, request: Request, timeout: float) -> Answer | None:
    """Durably leave a request, and wait up to `timeout` seconds for the answer. Returns None if no consumer answered;
    the request stays for the next one. Raises OSError."""
    directory = _directory(inbox)
    directory.mkdir(mode=0o700, exist_ok=True)
    name = f"{time.time_ns():020}-{secrets.token_hex(8)}"
    _write(directory, f"{name}.json", msgspec.json.encode(request))
    answer = directory / f"{name}.answer"
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(FileNotFoundError):
            found = msgspec.json.decode(_read(answer), type=Answer)
            answer.unlink()
            return found
        if time.monotonic() >= deadline:
            return None
        time.sleep(POLL_S)


def _directory(inbox: Path) -> Path:
    return Path(f"{os.path.realpath(inbox)}.requests")


def _read(path: Path) -> bytes:
    """Read a regular file of this user; refuses links and devices, and never blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_REQUEST_BYTES:
            raise ValueError("not a regular file, or too large")
        if about.st_uid not in (os.getuid(), 0):
            raise ValueError("the file belongs to another user")
        return file.read(MAX_REQUEST_BYTES)


def _write(directory: Path, name: str, data: bytes) -> None:
    part = directory / f"{name}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.rename(part, directory / name)
    parent = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
