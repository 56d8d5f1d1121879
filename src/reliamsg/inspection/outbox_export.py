"""Exports an outbox as a plain SQLite file, with a row for each message."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

from reliamsg.inspection.outbox import OutboxBatch, OutboxState, read_batches
from reliamsg.inspection.snapshot import snapshot
from reliamsg.inspection.tables import (
    IDENTITY,
    MESSAGE,
    PUBLISHED,
    TEXT_OF_BODY,
    export_table,
    message_columns,
    of_time,
    published_columns,
    stream_columns,
    times,
)
from reliamsg.inspection.target import ExportFile, Table

__all__ = ["export_outbox"]

_TABLES = (
    Table("streams", {"id": int, **IDENTITY}, pk="id", indexes=[("topic", "partition")]),
    Table(
        "epochs",
        {"stream": int, "epoch": int, "incarnation": str, "last": int},
        pk=("stream", "epoch"),
        foreign_keys=[("stream", "streams", "id")],
    ),
    Table("sites", {"name": str, "confirmed_before_batch": int}, pk="name"),
    Table(
        "parked",
        {"site": str, "stream": int, "confirmed_before_batch": int, "attempts": int, "reason": str},
        pk=("site", "stream"),
        foreign_keys=[("site", "sites", "name"), ("stream", "streams", "id")],
    ),
    Table(
        "groups",
        {
            "name": str, "topic": str, "partition": int, "since_epoch": int, "since_seq": int, "settled_epoch": int,
            "settled_before_seq": int, "behind": int, "unseen_at": str, "lacks_epoch": int, "lacks_first": int,
            "lacks_last": int,
        },
        pk=("topic", "partition", "name"),
        nullable=frozenset({"lacks_epoch", "lacks_first", "lacks_last"}),
    ),
    Table(
        "removed",
        {"stream": int, "epoch": int, "first": int, "last": int},
        pk=("stream", "epoch", "first"),
        foreign_keys=[("stream", "streams", "id")],
    ),
    Table(
        "batches",
        {
            "id": int, "stream": int, "epoch": int, "incarnation": str, "first": int, "last": int, "bytes": int,
            **of_time("stored"), **PUBLISHED, "problem": str, "frame": bytes,
        },
        pk="id",
        foreign_keys=[("stream", "streams", "id")],
        indexes=[("stream", "epoch", "first")],
        nullable=frozenset({"stream", "stored_at", *PUBLISHED, "problem", "frame"}),
    ),
    Table(
        "messages",
        {
            "id": int, "batch": int, "stream": int, **MESSAGE, **of_time("stored"), "published": int,
            "confirmed_by": str, "not_confirmed_by": str, "unsettled_by": str,
        },
        pk="id",
        foreign_keys=[("batch", "batches", "id"), ("stream", "streams", "id")],
        indexes=[("topic", "partition", "epoch", "seq"), ("batch",), ("key",)],
        nullable=frozenset({"id", "key", "stored_at"}),
    ),
)  # fmt: skip
_VIEWS = {
    "messages_as_text": "SELECT id, producer, topic, partition, epoch, seq, stored_at, key, headers,"
    f" {TEXT_OF_BODY}, bytes FROM messages",
    "unconfirmed": "SELECT m.id, m.topic, m.partition, m.epoch, m.seq, m.stored_at, s.value AS site, p.reason AS parked"
    " FROM messages AS m, json_each(m.not_confirmed_by) AS s"
    " LEFT JOIN parked AS p ON p.site = s.value AND p.stream = m.stream",
    "unsettled": "SELECT m.id, m.topic, m.partition, m.epoch, m.seq, m.stored_at, g.value AS \"group\""
    " FROM messages AS m, json_each(m.unsettled_by) AS g",
    "damaged": "SELECT id, stream, epoch, first, last, bytes, stored_at, problem FROM batches"
    " WHERE problem IS NOT NULL",
}  # fmt: skip


def export_outbox(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    replace: bool,
    proceed: Callable[[int], None],
    on_damaged: Callable[[str], None],
) -> dict[str, int]:
    """Export the outbox `path` as of its latest commit to the SQLite file `out`, even while its producer runs. Returns
    the number of rows by table.

    `proceed` is called with the number of messages so far, and may raise to give up. `on_damaged` is called with the
    description of each batch that can't be decoded; it is exported with its frame as it is.

    Raises the same errors as :func:`~reliamsg.inspection.snapshot.snapshot` and
    :class:`~reliamsg.inspection.target.ExportFile`; `out` is then as it was.
    """
    with ExportFile(out, replace) as file, snapshot(path, "outbox") as connection:
        state = OutboxState(connection)
        about = {"outbox": os.path.realpath(path), "producer": state.producer}
        export_table(file, {**about, "epoch": state.epoch, "release": state.release})
        file.create(*_TABLES)
        _add_state(file, connection, state)
        for batch in read_batches(connection, state):
            _add_batch(file, state, batch)
            if batch.decoded.problem is not None:
                on_damaged(batch.damage)
            proceed(file.counts["messages"])
        return file.finish(_VIEWS)


def _add_state(file: ExportFile, connection: sqlite3.Connection, state: OutboxState) -> None:
    for number, stream in state.streams.items():
        file.add("streams", {"id": number, **stream_columns(stream)})
    for row in connection.execute("SELECT stream_id, epoch, incarnation, last FROM chain"):
        file.add("epochs", dict(zip(("stream", "epoch", "incarnation", "last"), row, strict=True)))
    for name, cursor in state.sites.items():
        file.add("sites", {"name": name, "confirmed_before_batch": cursor})
    for (site, stream_id), parked in state.parked.items():
        columns = {
            "confirmed_before_batch": parked.cursor,
            "attempts": parked.attempts,
            "reason": parked.reason,
        }
        file.add("parked", {"site": site, "stream": stream_id, **columns})
    for member in state.members:
        lacks = member.lacks or (None, None, None)
        file.add(
            "groups",
            {
                "name": member.group, "topic": member.topic, "partition": member.partition,
                "since_epoch": member.since[0], "since_seq": member.since[1], "settled_epoch": member.position[0],
                "settled_before_seq": member.position[1], "behind": member.behind, "unseen_at": member.unseen_at,
                "lacks_epoch": lacks[0], "lacks_first": lacks[1], "lacks_last": lacks[2],
            },
        )  # fmt: skip
    for row in connection.execute("SELECT stream_id, epoch, first, last FROM removed"):
        file.add("removed", dict(zip(("stream", "epoch", "first", "last"), row, strict=True)))


def _add_batch(file: ExportFile, state: OutboxState, batch: OutboxBatch) -> None:
    stream = None if batch.stream is None else batch.stream_id
    stored, decoded = times("stored", batch.stored_us), batch.decoded
    frame = batch.frame if decoded.problem is not None else None
    file.add(
        "batches",
        {
            "id": batch.id, "stream": stream, "epoch": batch.epoch, "incarnation": batch.incarnation,
            "first": batch.first, "last": batch.last, "bytes": batch.size, **stored, **published_columns(decoded),
            "problem": decoded.problem, "frame": frame,
        },
        len(frame or b""),
    )  # fmt: skip
    confirmed = state.confirmed(batch)
    shared = {
        "batch": batch.id, "stream": stream, **stored, "published": int(state.published(batch)),
        "confirmed_by": [site for site, done in confirmed.items() if done],
        "not_confirmed_by": [site for site, done in confirmed.items() if not done],
    }  # fmt: skip
    for message in decoded.messages:
        columns = message_columns(batch.stream, batch.epoch, message)
        row = {**shared, **columns, "unsettled_by": state.unsettled_by(batch, message.seq)}
        file.add("messages", row, len(message.body))
