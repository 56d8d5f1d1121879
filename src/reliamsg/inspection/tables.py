"""What the exports of outboxes and inboxes have in common."""

from __future__ import annotations

import time
from typing import Any

from reliamsg.inspection.frames import Content, Decoded
from reliamsg.inspection.target import ExportFile, Table
from reliamsg.inspection.times import iso
from reliamsg.message import Stream
from reliamsg.version import VERSION

__all__ = [
    "CONTENT", "IDENTITY", "MESSAGE", "PUBLISHED", "TEXT_OF_BODY", "content_columns", "export_table", "message_columns",
    "of_time", "published_columns", "stream_columns", "times",
]  # fmt: skip

IDENTITY: dict[str, type] = {"producer": str, "topic": str, "partition": int}
CONTENT: dict[str, type] = {"key": str, "headers": str, "body": bytes, "is_text": int, "bytes": int}
MESSAGE: dict[str, type] = {**IDENTITY, "epoch": int, "seq": int, **CONTENT}
TEXT_OF_BODY = "CASE WHEN is_text THEN CAST(body AS TEXT) END AS body"
"""SQLite can cast any bytes to text, but only some of them are."""


def of_time(name: str) -> dict[str, type]:
    """The types of the columns of :func:`times`."""
    return {f"{name}_us": int, f"{name}_at": str}


PUBLISHED = {**of_time("published_first"), **of_time("published_last")}


def times(name: str, us: int | None) -> dict[str, Any]:
    """The columns of a time: ``NAME_us`` and ``NAME_at``."""
    return {f"{name}_us": us, f"{name}_at": None if us is None else iso(us)}


def stream_columns(stream: Stream | None) -> dict[str, Any]:
    """The columns :data:`IDENTITY`. NULL if the stream is missing."""
    return dict(zip(IDENTITY, (None, None, None) if stream is None else stream, strict=True))


def content_columns(key: str | None, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The columns :data:`CONTENT`."""
    return {"key": key, "headers": headers, "body": body, "is_text": int(_is_text(body)), "bytes": len(body)}


def message_columns(stream: Stream | None, epoch: int, message: Content) -> dict[str, Any]:
    """The columns of a message of a batch."""
    content = content_columns(message.key, message.headers, message.body)
    return {**stream_columns(stream), "epoch": epoch, "seq": message.seq, **content}


def published_columns(decoded: Decoded) -> dict[str, Any]:
    """When a batch was published. NULL if it is damaged."""
    first, last = (None, None) if decoded.published_us is None else decoded.published_us
    return {**times("published_first", first), **times("published_last", last)}


def export_table(file: ExportFile, about: dict[str, Any]) -> None:
    """The table `export`, with one row that says what was exported, and when."""
    types = {name: type(value) for name, value in about.items()}
    columns = {**types, "exported_us": int, "exported_at": str, "reliamsg": str}
    file.create(Table("export", columns, pk=next(iter(columns))))
    file.add("export", {**about, **times("exported", time.time_ns() // 1000), "reliamsg": VERSION})


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in body
