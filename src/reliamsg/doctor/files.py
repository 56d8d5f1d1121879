"""Checks of a client's files on this machine. They write only temporary files of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from reliamsg.config import JournalExport, is_remote
from reliamsg.doctor.client import Client
from reliamsg.doctor.finding import Finding, error, ok, unknown, warning
from reliamsg.errors import ReliamsgError, StoreUnsafe
from reliamsg.export.target import open_target
from reliamsg.files import create_private
from reliamsg.store.database import check_safe, get_meta, kind_of, reading
from reliamsg.store.outbox_view import inspect_outbox

__all__ = ["check_files", "check_secret", "fsync_finding", "space_finding"]

FEW_BYTES = 64 * 1024 * 1024
"""With less free space, writing will soon fail."""
SLOW_FSYNC_S = 0.1
FSYNCS = 5


def check_files(client: Client) -> list[Finding]:
    """All checks of a client's outbox or inbox, and of its journal's target."""
    findings = [_mode(client), *_disk(client), _integrity(client)]
    if client.role == "producer" and findings[-1].severity == "ok" and os.path.exists(client.file):
        findings.append(_groups(client))
    if client.journal is not None:
        findings.append(_journal(client.subject, client.journal))
    return findings


def check_secret(key: str, path: Path) -> Finding:
    """The mode of a file that contains a password or a private key."""
    subject = "configuration"
    try:
        found = path.stat()
    except OSError as problem:
        why = "the site can't be used without it"
        return error(
            subject, "secrets", f"{key}: {path}: {problem.strerror}", why=why, remedy=f"create {path}"
        )
    if found.st_mode & 0o027:
        seen = f"{key}: {path} has mode {found.st_mode & 0o777:o}"
        why = "other users of this machine can read or replace it"
        return warning(
            subject, "secrets", seen, why=why, remedy=f"chmod 600 {path} (640 lets its group read it)"
        )
    return ok(subject, "secrets", f"{key}: {path} is private")


def _mode(client: Client) -> Finding:
    path = client.file
    try:
        check_safe(path)
        mode = path.stat().st_mode & 0o777
    except StoreUnsafe as problem:
        why = "the client refuses to open the file"
        remedy = "see the end of the message; clients create their files with mode 600"
        return error(client.subject, "mode", str(problem), why=why, remedy=remedy)
    except FileNotFoundError:
        return ok(client.subject, "mode", f"{path} does not exist yet: the client creates it")
    except OSError as problem:
        why, remedy = "the client can't open the file", f"ls -l {path}"
        return error(client.subject, "mode", f"{path}: {problem.strerror}", why=why, remedy=remedy)
    if mode & 0o007:
        why = "other users of this machine can read messages"
        seen = f"{path} has mode {mode:o}"
        return warning(client.subject, "mode", seen, why=why, remedy=f"chmod 600 {path}")
    return ok(client.subject, "mode", f"{path} has mode {mode:o}, and belongs to this user")


def _disk(client: Client) -> Iterator[Finding]:
    """Space, and the time of an fsync, where the file is or will be created."""
    directory = _existing(Path(os.path.realpath(client.file)).parent)
    try:
        free = shutil.disk_usage(directory).free
        seconds = _measure_fsync(directory)
    except OSError as problem:
        seen = f"{directory}: can't be written: {problem.strerror}"
        why = "the client can't store messages"
        remedy = f"make room, or mount the disk for writing: df -h {directory}; ls -ld {directory}"
        yield error(client.subject, "directory", seen, why=why, remedy=remedy)
        return
    yield ok(client.subject, "directory", f"{directory} can be written")
    yield space_finding(client.subject, directory, free, client.max_bytes)
    yield fsync_finding(client.subject, directory, seconds)


def space_finding(subject: str, directory: Path, free: int, needed: int) -> Finding:
    """The finding for `free` bytes on a disk of which a client may need `needed`."""
    seen = f"{free / 2**20:,.0f} MiB free in {directory}"
    why = "when the disk is full, nothing is published, or taken in"
    if free < FEW_BYTES:
        return error(subject, "space", seen, why=why, remedy=f"make room: df -h {directory}")
    if free < needed:
        remedy = "make room, or lower max_bytes (producer) or max_inbox_bytes (consumer)"
        return warning(
            subject, "space", f"{seen}, of {needed / 2**20:,.0f} MiB allowed", why=why, remedy=remedy
        )
    return ok(subject, "space", seen)


def fsync_finding(subject: str, directory: Path, seconds: float) -> Finding:
    """The finding for the median time of an fsync."""
    seen = f"an fsync in {directory} takes {seconds * 1000:.1f} ms"
    if seconds < SLOW_FSYNC_S:
        return ok(subject, "fsync", seen)
    why = "each commit waits for one: this limits messages per second, and delays acknowledgements"
    return warning(
        subject, "fsync", seen, why=why, remedy="use a local disk with a write cache that survives power loss"
    )


def _measure_fsync(directory: Path) -> float:
    path = directory / f".reliamsg-doctor-{secrets.token_hex(4)}"
    times = []
    with _temporary(path), open(create_private(path), "wb") as file:
        for _ in range(FSYNCS):
            began = time.monotonic()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            times.append(time.monotonic() - began)
    return statistics.median(times)


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _integrity(client: Client) -> Finding:
    kind = "outbox" if client.role == "producer" else "inbox"
    path = client.file
    if not os.path.lexists(path):
        return ok(client.subject, "integrity", f"{path} does not exist yet")
    try:
        with reading(path) as connection:
            problems = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
            found, owner = kind_of(connection), get_meta(connection, "owner", "")
    except ReliamsgError as problem:
        return _damaged(client.subject, kind, str(problem))
    except OSError as problem:
        why, remedy = "the client can't open the file", f"ls -l {path}"
        return error(client.subject, "integrity", f"{path}: {problem.strerror}", why=why, remedy=remedy)
    except Exception as problem:  # noqa: BLE001  # sqlite3.Error: locked, or no memory
        why = "the file could not be read to the end"
        return unknown(client.subject, "integrity", f"{path}: {problem}", why=why, remedy="try again")
    if problems != ["ok"]:
        return _damaged(client.subject, kind, f"{path}: {'; '.join(problems)}")
    if found != kind or owner != client.name:
        seen = f"{path} is the {found} of {owner!r}"
        why = "the client refuses to open the file"
        remedy = f"give each client a file of its own: correct {kind} of {client.subject}"
        return error(client.subject, "integrity", seen, why=why, remedy=remedy)
    return ok(client.subject, "integrity", f"{path} is sound")


def _groups(client: Client) -> Finding:
    """Whether all named groups exist at all sites, as far as the producer knew when it last looked."""
    found = inspect_outbox(client.file)
    unseen = sorted(
        {f"{m.group} on {m.topic} at {', '.join(m.unseen_at)}" for m in found.members if m.unseen_at}
    )
    if unseen:
        why = "the outbox keeps messages that these sites confirm but do not keep for the group, until it is full"
        remedy = "start the group's consumer, or run: reliamsg group create"
        return warning(client.subject, "groups", f"unseen: {'; '.join(unseen)}", why=why, remedy=remedy)
    gaps = [f"{m.group} on {m.topic}" for m in found.members if m.lacks is not None]
    if gaps:
        why = "a gap holds these groups up, and with release = 'consumed' fills the outbox"
        remedy = "reliamsg inbox gaps INBOX, and reliamsg inbox accept, at the consumer"
        return warning(client.subject, "groups", f"held up: {', '.join(gaps)}", why=why, remedy=remedy)
    return ok(
        client.subject, "groups", f"{found.messages:,} messages stored, {found.unpublished:,} not published"
    )


def _damaged(subject: str, kind: str, seen: str) -> Finding:
    why = f"the client refuses to open a damaged {kind}, or stops when it meets the damage"
    remedy = f"check the disk; stop the client, keep a copy of the file, and restore the {kind} from a backup"
    return error(subject, "integrity", seen, why=why, remedy=remedy)


def _journal(subject: str, export: JournalExport) -> Finding:
    name = f"reliamsg-doctor-{secrets.token_hex(8)}.tmp"
    why = f"the journal stays in the file; when its backlog is full, when_full={export.when_full!r} applies"
    remedy = "create the target, and let this user write to it"
    directory = None if is_remote(export.target) else Path(os.fspath(export.target))
    try:
        if directory is None:
            target = open_target(export.target)
            target.replace(name, b"")
            target.remove(name)
        else:
            _measure_fsync(_existing(directory))
    except OSError as problem:
        seen = f"{export.shown_target}: can't be written: {problem.strerror}"
        return error(subject, "journal", seen, why=why, remedy=remedy)
    except ReliamsgError as problem:
        return error(subject, "journal", str(problem), why=why, remedy=remedy)
    if directory is not None and directory.exists() and directory.stat().st_mode & 0o022:
        seen = f"{directory}: other users may write to it"
        return warning(
            subject, "journal", seen, why="they could replace evidence", remedy=f"chmod go-w {directory}"
        )
    return ok(subject, "journal", f"{export.shown_target} can be written")


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    while not directory.exists():
        directory = directory.parent
    return directory
