"""The application's own log: its publishes and deliveries, one JSON object per line.

A publisher writes ``{"op": "publish", "outcome": …}``: ``invoked`` before it calls `publish`, and then ``ok`` (the call
returned, so the message is durable), ``failed`` (the call raised an error that means that nothing was stored) or
``indeterminate`` (anything else). A consumer writes ``delivered`` when its handler is entered, ``acknowledged`` after
`ack` (with ``"durable": true`` if it waited for the disk), ``gap`` when it passes a gap, and ``late``. Each time a log
is opened, it gets an ``opened`` line first.

========== ================================================================================================
op         fields
========== ================================================================================================
opened     ``producer`` or ``group``; ``topics`` that a consumer reads; ``t``
publish    ``outcome producer topic partition n sha256 t``; with ``ok`` also ``epoch seq`` where there are any
delivered  ``group producer topic partition epoch seq redelivered replayed sha256 t``; ``n`` in their place for
           clients that know no epochs
others     ``group producer topic partition epoch seq t``; ``gap``: ``first last reason`` in place of ``seq``
========== ================================================================================================

``n`` is the application's own message number, which rises within producer and topic. ``sha256`` is that of the body, in
hex. ``t`` is in seconds since 1970 and for people only: no finding depends on it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from reliamsg.message import Gap, Message, MessageId

__all__ = ["AppLog", "AppRecord", "ApplicationLog", "Outcome", "read_applog", "sha256"]

Outcome = Literal["invoked", "ok", "failed", "indeterminate"]


class AppRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a log."""

    op: str
    outcome: str = ""
    group: str = ""
    producer: str = ""
    topic: str = ""
    partition: int = 0
    epoch: int | None = None
    seq: int | None = None
    n: int | None = None
    first: int | None = None
    last: int | None = None
    redelivered: bool = False
    replayed: bool = False
    durable: bool = False
    reason: str = ""
    sha256: str = ""
    topics: list[str] = []
    t: float = 0.0


def sha256(body: bytes) -> str:
    """A body's SHA-256, as logs have it."""
    return hashlib.sha256(body).hexdigest()


class AppLog:
    """Appends to an application's log. Safe to use from several threads.

    Each line is written to the file at once, so it survives a SIGKILL of this process. `sync_every` lines are fsynced
    together: with 1, each line is on the disk before the call returns; with 0, only :meth:`flush` calls fsync.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        producer: str = "",
        group: str = "",
        topics: list[str] | None = None,
        sync_every: int = 1,
    ) -> None:
        self._producer = producer
        self._group = group
        self._sync_every = sync_every
        self._unsynced = 0
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # terminates the line that a killed process left unfinished
        self.write(AppRecord("opened", producer=producer, group=group, topics=topics or []))

    def publish(
        self,
        outcome: Outcome,
        topic: str,
        n: int,
        body: bytes,
        *,
        id: MessageId | None = None,
    ) -> None:
        """Log one step of publishing the application's message number `n`."""
        self.write(
            AppRecord(
                "publish", outcome, producer=self._producer, topic=topic, n=n, sha256=sha256(body),
                partition=id.partition if id else 0, epoch=id.epoch if id else None, seq=id.seq if id else None,
            )
        )  # fmt: skip

    def delivered(self, message: Message) -> None:
        """Log that `message` was delivered. Call it before anything else is done with the message."""
        self.write(
            AppRecord(
                "delivered", group=self._group, producer=message.producer, topic=message.topic,
                partition=message.partition, epoch=message.epoch, seq=message.seq, sha256=sha256(message.body),
                redelivered=message.redelivered, replayed=message.replayed,
            )
        )  # fmt: skip

    def acknowledged(self, message: Message, durable: bool = False) -> None:
        """Log that `message` was acknowledged. Call it after ``ack()`` returned."""
        self.write(
            AppRecord(
                "acknowledged", group=self._group, producer=message.producer, topic=message.topic,
                partition=message.partition, epoch=message.epoch, seq=message.seq, replayed=message.replayed,
                durable=durable,
            )
        )  # fmt: skip

    def gap(self, gap: Gap) -> None:
        """Log that the application was notified of `gap` and moved past it."""
        self.write(
            AppRecord(
                "gap", group=self._group, producer=gap.stream.producer, topic=gap.stream.topic,
                partition=gap.stream.partition, epoch=gap.epoch, first=gap.first, last=gap.last, reason=gap.reason,
            )
        )  # fmt: skip

    def late(self, message: Message) -> None:
        """Log a message that arrived after its gap was closed."""
        self.write(
            AppRecord(
                "late", group=self._group, producer=message.producer, topic=message.topic,
                partition=message.partition, epoch=message.epoch, seq=message.seq, sha256=sha256(message.body),
            )
        )  # fmt: skip

    def write(self, record: AppRecord) -> None:
        """Append a line, with the current time if it has none."""
        if not record.t:
            record = msgspec.structs.replace(record, t=round(time.time(), 6))
        line = self._encode(record) + b"\n"
        with self._lock:
            # Files accept less than a whole line only if the disk is full.
            if os.write(self._file, line) != len(line):
                raise OSError("the application's log was not written in full")
            self._unsynced += 1
            if self._sync_every and self._unsynced >= self._sync_every:
                self._sync()

    def flush(self) -> None:
        """fsync everything that was written."""
        with self._lock:
            self._sync()

    def close(self) -> None:
        """fsync and close."""
        with self._lock:
            if self._file >= 0:
                self._sync()
                os.close(self._file)
                self._file = -1

    def _sync(self) -> None:
        if self._unsynced:
            os.fsync(self._file)
            self._unsynced = 0

    def __enter__(self) -> AppLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class ApplicationLog:
    """The content of one log. `damaged` has the numbers of unreadable lines that no crash explains."""

    name: str
    records: Sequence[AppRecord] = ()
    damaged: Sequence[int] = ()


def read_applog(path: str | os.PathLike[str]) -> ApplicationLog:
    """Read a log. Skips lines that a SIGKILL left unfinished: the last one, or the last before an ``opened``."""
    decode = msgspec.json.Decoder(AppRecord).decode
    records: list[AppRecord] = []
    damaged: list[int] = []
    torn: int | None = None
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = decode(line)
        except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deep
            if torn is not None:
                damaged.append(torn)
            torn = number
            continue
        if torn is not None:
            if record.op != "opened":
                damaged.append(torn)
            torn = None
        records.append(record)
    return ApplicationLog(str(path), records, damaged)
