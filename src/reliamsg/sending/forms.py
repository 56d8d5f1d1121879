"""What a stored batch is for a broker: one message, its parts where it is too large, or each of its messages alone."""

from __future__ import annotations

from reliamsg.keys import KeyRing
from reliamsg.message import MessageId
from reliamsg.store.rows import Row
from reliamsg.transport.base import Outgoing
from reliamsg.wire.data import CONTENT_TYPE, frames_of, open_frame
from reliamsg.wire.plain import encode_plain

__all__ = ["PLAIN_MESSAGES", "Forms"]

PLAIN_MESSAGES = 2_048
"""In the plain form a site takes so many messages at a time, but for a larger batch: sites that go side by side find
each batch encoded by the other."""
KEPT_MESSAGES = 4 * PLAIN_MESSAGES


class Forms:
    """Makes broker messages of rows, for all sites of a producer. Any thread."""

    def __init__(self, plain: bool, keys: KeyRing | None) -> None:
        self.plain = plain
        self._keys = keys
        self._made: dict[int, tuple[bytes, list[Outgoing]]] = {}
        """The latest batches in the plain form, with the frames that they were made of."""

    def of(self, row: Row, max_frame_bytes: int) -> list[Outgoing]:
        """The messages of a batch, for a site whose frames may have so many bytes."""
        if self.plain:
            return self._plain(row)
        stream = row.stream
        message_id = str(MessageId(stream.producer, row.epoch, stream.topic, stream.partition, row.seq))
        parts = frames_of(row.frame, max_frame_bytes, self._keys)
        if len(parts) == 1:
            return [
                Outgoing(
                    row.id, stream.topic, stream.partition, parts[0], CONTENT_TYPE, None, message_id, row.wall_us
                )
            ]  # fmt: skip
        return [
            Outgoing(
                row.id, stream.topic, stream.partition, part, CONTENT_TYPE, None, f"{message_id}.{number}",
                row.wall_us, len(parts) - number,
            )
            for number, part in enumerate(parts, 1)
        ]  # fmt: skip

    def _plain(self, row: Row) -> list[Outgoing]:
        # A row can be cut, or get another epoch: then its frame is another one.
        frame, found = self._made.get(row.id, (b"", []))
        if frame == row.frame:
            return found
        stream = row.stream
        messages = encode_plain(open_frame(row.frame), self._keys)
        made = [
            Outgoing(
                row.id, stream.topic, stream.partition, m.body, None, m.headers, m.message_id, m.timestamp_us,
                len(messages) - number,
            )
            for number, m in enumerate(messages, 1)
        ]  # fmt: skip
        # Another thread may do the same at the same time, which costs time and nothing else.
        kept = {row.id: (row.frame, made)}
        count = len(made)
        for number, other in reversed(list(self._made.items())):
            count += len(other[1])
            if count > KEPT_MESSAGES:
                break
            kept.setdefault(number, other)
        self._made = dict(reversed(kept.items()))
        return made
