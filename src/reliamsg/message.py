"""Messages, their identity, and the gaps between them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

__all__ = ["Gap", "Message", "MessageId", "Prev", "Settler", "Stream", "digest", "digest_sum"]


class Stream(NamedTuple):
    """The unit of ordering: what one producer publishes to one partition of one topic."""

    producer: str
    topic: str
    partition: int = 0

    def __str__(self) -> str:
        return f"{self.producer}/{self.topic}" + (f"~{self.partition}" if self.partition else "")


class MessageId(NamedTuple):
    """What identifies a message everywhere and for ever."""

    producer: str
    epoch: int
    topic: str
    partition: int
    seq: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.epoch}/{self.topic}/{self.partition}/{self.seq}"


class Prev(NamedTuple):
    """The previous non-empty epoch of a stream, and where it ended."""

    epoch: int
    incarnation: int
    last: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequence numbers `first` to `last` (inclusive) of `stream` in `epoch` that did not arrive.

    `last` is None where the extent is unknown: everything from `first` up to the start of the next epoch
    that is known.
    """

    stream: Stream
    epoch: int
    first: int
    last: int | None
    reason: str

    @property
    def count(self) -> int | None:
        return None if self.last is None else self.last - self.first + 1

    def __str__(self) -> str:
        extent = (
            f"{self.first} to {self.last}" if self.last is not None else f"{self.first} to an unknown end"
        )
        return f"{self.stream} lacks {extent} of epoch {self.epoch}: {self.reason}"


class Settler(Protocol):
    """What a message reports to: the consumer that handed it out."""

    def acknowledge(self, message: Message, durable: bool) -> None: ...
    def reject(self, message: Message, reason: str) -> None: ...
    def failed(self, message: Message, error: BaseException) -> None: ...


class _Settled:
    """What a message reports to that no consumer delivered, as in a unit test: nothing is left to be done."""

    def acknowledge(self, message: Message, durable: bool) -> None:
        """See :class:`Settler`."""

    def reject(self, message: Message, reason: str) -> None:
        """See :class:`Settler`."""

    def failed(self, message: Message, error: BaseException) -> None:
        """See :class:`Settler`."""


_SETTLED: Settler = _Settled()


# The collector of cycles need not know of messages, which makes one in less than half the time: no consumer keeps any,
# but for the traceback of a handler's error until that is reported.
class Message(msgspec.Struct, eq=False, gc=False):
    """A message as a consumer hands it to the application.

    `body` is exactly what was published. `redelivered` says that the application may have been given this
    message before (under another :attr:`id`, if its producer's outbox was put back to an older copy); `replayed` that
    it comes from the dead letters, outside the order.

    Messages are equal if all that is equal. A copy may be acknowledged in place of the message. One that was pickled
    can't be (:class:`ClosedError`): its consumer is in another process. For unit tests messages can be made, with any
    of the fields by name: acknowledging and rejecting these does nothing.
    """

    producer: str = "producer"
    topic: str = "topic"
    partition: int = 0
    epoch: int = 1
    seq: int = 1
    body: bytes = b""
    key: str | None = None
    headers: Mapping[str, str] = {}
    redelivered: bool = False
    replayed: bool = False
    _settler: Settler = _SETTLED

    @property
    def id(self) -> MessageId:
        return MessageId(self.producer, self.epoch, self.topic, self.partition, self.seq)

    @property
    def stream(self) -> Stream:
        return Stream(self.producer, self.topic, self.partition)

    def ack(self, durable: bool = False) -> None:
        """Say that the message is dealt with.

        Returns at once, and is durable with the inbox's next group commit; with ``durable=True`` it returns
        when that commit is on disk. Acknowledging twice is harmless. Raises :class:`ForkedError` in a child
        process: what it says would never reach the consumer.
        """
        self._settler.acknowledge(self, durable)

    def reject(self, reason: str = "rejected") -> None:
        """Put the message into the dead letters at once, without further deliveries."""
        self._settler.reject(self, reason)

    @contextmanager
    def process(self) -> Iterator[Message]:
        """Acknowledge on success; on an exception record the failure and let the exception through.

        After a failure, iterating the consumer again hands the message out again, in place.
        """
        try:
            yield self
        except BaseException as error:
            self._settler.failed(self, error)
            raise
        self.ack()

    def content(self) -> tuple[object, ...]:
        """All fields but what it reports to, in order."""
        return msgspec.structs.astuple(self)[:-1]

    def __eq__(self, other: object) -> bool:
        return self.content() == other.content() if isinstance(other, Message) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __deepcopy__(self, memo: dict[int, object]) -> Message:
        return msgspec.structs.replace(self, headers=dict(self.headers))

    def __repr__(self) -> str:
        flags = "".join(f" {name}" for name in ("redelivered", "replayed") if getattr(self, name))
        return f"<Message {self.id} {len(self.body)} bytes{flags}>"


def digest(seq: int, body: bytes, key: str | None, headers: Mapping[str, str] | None) -> int:
    """A 32-bit checksum of a message's content that also depends on its place.

    Journals hold the sum of these over a range, modulo 2**64: content lost, altered or swapped between two
    numbers shows as a different sum, and sums of adjoining ranges add up.
    """
    value = zlib.crc32(body, seq & 0xFFFFFFFF)
    if key is not None:
        value = zlib.crc32(b"k" + key.encode(), value)
    if headers:
        for name in sorted(headers):
            value = zlib.crc32(f"h{len(name)}:{name}{headers[name]}".encode(), value)
    return value


def digest_sum(
    first: int,
    bodies: Sequence[bytes],
    keys: Sequence[str | None] | None,
    headers: Sequence[Mapping[str, str] | None] | None,
) -> int:
    """The sum of the digests of consecutive messages, the first of which has the number `first`. None for a column
    without any value."""
    numbers = range(first, first + len(bodies))
    if keys is None and headers is None and numbers.stop <= 0xFFFFFFFF:
        return sum(map(zlib.crc32, bodies, numbers))  # the same as digest(), in C
    none = [None] * len(bodies)
    return sum(map(digest, numbers, bodies, keys or none, headers or none))
