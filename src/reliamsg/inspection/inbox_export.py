"""Exports an inbox as a plain SQLite file, with a row for each message."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

from reliamsg.inspection.inbox import DeadLetterRow, InboxBatch, read_dead_letters, read_inbox_batches
from reliamsg.inspection.snapshot import snapshot
from reliamsg.inspection.tables import (
    IDENTITY,
    MESSAGE,
    PUBLISHED,
    TEXT_OF_BODY,
    content_columns,
    export_table,
    message_columns,
    of_time,
    published_columns,
    stream_columns,
    times,
)
from reliamsg.inspection.target import ExportFile, Table
from reliamsg.store.database import get_meta

__all__ = ["export_inbox"]

_COPIED = (
    (
        Table(
            "streams",
            {"id": int, **IDENTITY, "joined_epoch": int, "joined_first": int, "history": str},
            pk="id",
            indexes=[("producer", "topic", "partition")],
            nullable=frozenset({"joined_epoch", "joined_first"}),
        ),
        "SELECT id, producer, topic, part, joined_epoch, joined_first, history FROM stream",
    ),
    (
        Table(
            "epochs",
            {
                "stream": int, "epoch": int, "incarnation": str, "position": int, "high_water": int, "settled": str,
                "last": int, "entered": int, "let_go": int, **of_time("used"),
            },
            pk=("stream", "epoch"),
            foreign_keys=[("stream", "streams", "id")],
            nullable=frozenset({"last", "used_at"}),
        ),
        "SELECT stream_id, epoch, incarnation, position, high_water, settled, last, entered, let_go, used_us"
        " FROM epoch",
    ),
    (
        Table(
            "gaps",
            {"stream": int, "epoch": int, "first": int, "last": int, "elapsed_s": float, "waited_s": float},
            pk="stream",
            foreign_keys=[("stream", "streams", "id")],
            nullable=frozenset({"last"}),
        ),
        "SELECT stream_id, epoch, first, last, elapsed_s, waited_s FROM gap",
    ),
    (
        Table(
            "attempts",
            {"stream": int, "epoch": int, "seq": int, "attempts": int},
            pk=("stream", "epoch", "seq"),
            foreign_keys=[("stream", "streams", "id")],
        ),
        "SELECT stream_id, epoch, seq, attempts FROM attempt",
    ),
    (
        Table(
            "forgotten",
            {**IDENTITY, "epoch": int, "incarnation": str, "position": int, "high_water": int},
            pk=("producer", "topic", "partition"),
        ),
        "SELECT producer, topic, part, epoch, incarnation, position, high_water FROM tombstone",
    ),
    (
        Table(
            "samples",
            {
                "id": int, "site": str, "address": str, "reason": str, "bytes": int, "frame": bytes,
                **of_time("received"),
            },
            pk="id",
            indexes=[("reason",)],
            nullable=frozenset({"received_at"}),
        ),
        "SELECT id, site, address, reason, size, frame, wall_us FROM quarantine ORDER BY id",
    ),
)  # fmt: skip
"""Tables whose rows are those of the inbox. A time is the last column, in µs."""
_DECODED = (
    Table(
        "dead_letters",
        {
            "id": int, **MESSAGE, "incarnation": str, "reason": str, "attempts": int, **of_time("dead"), "problem": str,
        },
        pk="id",
        indexes=[("producer", "topic", "partition", "epoch", "seq"), ("reason",)],
        nullable=frozenset({*IDENTITY, "key", "dead_at", "problem"}),
    ),
    Table(
        "batches",
        {
            "id": int, "state": str, "row": int, **IDENTITY, "epoch": int, "first": int, "last": int, "bytes": int,
            "site": str, **of_time("received"), **PUBLISHED, "reason": str, "replaying": int, "problem": str,
            "frame": bytes,
        },
        pk="id",
        indexes=[("state", "row"), ("producer", "topic", "partition", "epoch", "first")],
        nullable=frozenset({*IDENTITY, "received_at", *PUBLISHED, "reason", "problem", "frame"}),
    ),
    Table(
        "messages",
        {"id": int, "batch": int, "state": str, **MESSAGE, "site": str, **of_time("received")},
        pk="id",
        foreign_keys=[("batch", "batches", "id")],
        indexes=[("producer", "topic", "partition", "epoch", "seq"), ("batch",), ("state",), ("key",)],
        nullable=frozenset({"id", "key", "received_at"}),
    ),
)  # fmt: skip
_VIEWS = {
    "messages_as_text": "SELECT id, state, producer, topic, partition, epoch, seq, received_at, key, headers,"
    f" {TEXT_OF_BODY}, bytes FROM messages",
    "dead_letters_as_text": "SELECT id, producer, topic, partition, epoch, seq, dead_at, attempts, reason, key,"
    f" headers, {TEXT_OF_BODY}, bytes FROM dead_letters",
    "stuck": "SELECT s.producer, s.topic, s.partition, g.epoch, g.first, g.last, g.elapsed_s, g.waited_s,"
    " (SELECT count(*) FROM messages AS m WHERE m.state != 'late' AND (m.producer, m.topic, m.partition) ="
    " (s.producer, s.topic, s.partition)) AS waiting FROM gaps AS g JOIN streams AS s ON s.id = g.stream",
    "damaged": "SELECT id, state, producer, topic, partition, epoch, first, last, bytes, received_at, problem"
    " FROM batches WHERE problem IS NOT NULL",
}  # fmt: skip


def export_inbox(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    replace: bool,
    proceed: Callable[[int], None],
    on_damaged: Callable[[str], None],
) -> dict[str, int]:
    """Export the inbox `path` as of its latest commit to the SQLite file `out`, even while its consumer runs. The same
    arguments, result and errors as :func:`~reliamsg.inspection.outbox_export.export_outbox`.

    A quarantined delivery that can't be decoded is not damaged: that may be why it is in the quarantine.
    """
    with ExportFile(out, replace) as file, snapshot(path, "inbox") as connection:
        about = {"inbox": os.path.realpath(path), "group": get_meta(connection, "owner", "")}
        for name in ("inbox_id", "standing"):
            about[name] = get_meta(connection, name, "")
        export_table(file, about)
        for table, sql in _COPIED:
            file.create(table)
            _copy(file, table, connection.execute(sql))
        file.create(*_DECODED)
        for letter in read_dead_letters(connection):
            _add_dead_letter(file, letter)
            if letter.problem is not None:
                on_damaged(letter.damage)
            proceed(file.counts["dead_letters"])
        for batch in read_inbox_batches(connection):
            _add_batch(file, batch)
            if batch.decoded.problem is not None and batch.state != "quarantined":
                on_damaged(batch.damage)
            proceed(file.counts["dead_letters"] + file.counts["messages"])
        return file.finish(_VIEWS)


def _copy(file: ExportFile, table: Table, rows: sqlite3.Cursor) -> None:
    names = [name for name in table.columns if not name.endswith("_at")]
    for row in rows:
        columns = dict(zip(names, row, strict=True))
        if len(names) < len(table.columns):
            columns |= times(names[-1].removesuffix("_us"), row[-1])
        frame = columns.get("frame")
        file.add(table.name, columns, 0 if frame is None else len(frame))


def _add_dead_letter(file: ExportFile, letter: DeadLetterRow) -> None:
    file.add(
        "dead_letters",
        {
            "id": letter.id, **stream_columns(letter.stream), "epoch": letter.epoch, "seq": letter.seq,
            **content_columns(letter.key, letter.headers, letter.body), "incarnation": letter.incarnation,
            "reason": letter.reason, "attempts": letter.attempts, **times("dead", letter.dead_us),
            "problem": letter.problem,
        },
        len(letter.body),
    )  # fmt: skip


def _add_batch(file: ExportFile, batch: InboxBatch) -> None:
    number, decoded = file.counts["batches"] + 1, batch.decoded
    received = {"site": batch.site, **times("received", batch.received_us)}
    frame = batch.frame if decoded.problem is not None else None
    file.add(
        "batches",
        {
            "id": number, "state": batch.state, "row": batch.id, **stream_columns(batch.stream), "epoch": batch.epoch,
            "first": batch.first, "last": batch.last, "bytes": batch.size, **received, **published_columns(decoded),
            "reason": batch.reason, "replaying": int(batch.replaying), "problem": decoded.problem, "frame": frame,
        },
        len(frame or b""),
    )  # fmt: skip
    for message in decoded.messages:
        columns = message_columns(batch.stream, batch.epoch, message)
        file.add(
            "messages", {"batch": number, "state": batch.state, **columns, **received}, len(message.body)
        )
