"""Messages, their identity, and the gaps between them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

__all__ = [
    "Gap", "Message", "MessageId", "Prev", "Processing", "Settler", "Stream", "digest", "digest_sum",
    "digest_sum_of_part",
]  # fmt: skip


T = TypeVar("T")


class Stream(NamedTuple):
    """The unit of ordering: the messages of one producer in one partition of one topic."""

    producer: str
    topic: str
    partition: int = 0

    def __str__(self) -> str:
        return f"{self.producer}/{self.topic}" + (f"~{self.partition}" if self.partition else "")


class MessageId(NamedTuple):
    """The globally unique and permanent identity of a message."""

    producer: str
    epoch: int
    topic: str
    partition: int
    seq: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.epoch}/{self.topic}/{self.partition}/{self.seq}"


class Prev(NamedTuple):
    """The previous non-empty epoch of a stream, and its last number."""

    epoch: int
    incarnation: int
    last: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequence numbers `first` to `last` (inclusive) of `stream` in `epoch` that did not arrive.

    `last` is None if the extent is unknown: everything from `first` up to the start of the next known epoch.
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
    """Receives a message's acknowledgement: the consumer that delivered it."""

    def acknowledge(self, message: Message, durable: bool) -> None: ...
    def reject(self, message: Message, reason: str) -> None: ...
    def failed(self, message: Message, error: BaseException) -> None: ...


class _Settled:
    """The settler of a message that no consumer delivered, as in a unit test: does nothing."""

    def acknowledge(self, message: Message, durable: bool) -> None:
        """See :class:`Settler`."""

    def reject(self, message: Message, reason: str) -> None:
        """See :class:`Settler`."""

    def failed(self, message: Message, error: BaseException) -> None:
        """See :class:`Settler`."""


_SETTLED: Settler = _Settled()


# Without garbage collection of cycles a message is created in less than half the time. Consumers keep no references to
# messages, except in the traceback of a handler's error until that is reported.
class Message(msgspec.Struct, eq=False, gc=False):
    """A message as a consumer delivers it to the application.

    `body` is the published body, unchanged. `redelivered` means that the message may have been delivered before (with
    another :attr:`id`, if its producer's outbox was restored from an older copy), `replayed` that it is replayed from
    the dead letters, out of order.

    Messages are equal if all these fields are equal. A copy can be acknowledged in place of the message, but a pickled
    one can't (:class:`ClosedError`), because its consumer is in another process. Unit tests can create messages, with
    any of the fields as keyword arguments: acknowledging and rejecting them does nothing.
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
        """Acknowledge the message as processed.

        Returns at once; the acknowledgement is durable with the inbox's next group commit. With ``durable=True``
        returns after that commit. Acknowledging twice is harmless. Raises :class:`ForkedError` in a child process, from
        which the consumer can't be reached.
        """
        self._settler.acknowledge(self, durable)

    def reject(self, reason: str = "rejected") -> None:
        """Move the message to the dead letters at once, without further deliveries."""
        self._settler.reject(self, reason)

    def process(self) -> Processing[Message]:
        """Acknowledge on success; on an exception, record the failure and re-raise it. For ``with`` and ``async with``.

        After a failure, the consumer redelivers the message in its place in the order. A cancelled task is a failure as
        well.
        """
        return Processing(self, self.ack, partial(self._settler.failed, self))

    def content(self) -> tuple[object, ...]:
        """All public fields, in order."""
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


class Processing(Generic[T]):
    """The context of handling something, see :meth:`Message.process`."""

    __slots__ = ("_done", "_failed", "_given")

    def __init__(
        self, given: T, done: Callable[[], object], failed: Callable[[BaseException], object]
    ) -> None:
        self._given, self._done, self._failed = given, done, failed

    def __enter__(self) -> T:
        return self._given

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._done()
        else:
            self._failed(error)

    async def __aenter__(self) -> T:
        return self._given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def digest(seq: int, body: bytes, key: str | None, headers: Mapping[str, str] | None) -> int:
    """A 32-bit checksum of a message's content and sequence number.

    Journals contain the sum of the digests of a range, modulo 2**64: lost, altered or swapped content changes the sum,
    and the sums of adjacent ranges can be added.
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
    """The sum of the digests of consecutive messages, beginning with the number `first`. A column without values is
    None."""
    numbers = range(first, first + len(bodies))
    if keys is None and headers is None and numbers.stop <= 0xFFFFFFFF:
        return sum(map(zlib.crc32, bodies, numbers))  # the same as digest(), in C
    none = [None] * len(bodies)
    return sum(map(digest, numbers, bodies, keys or none, headers or none))


def digest_sum_of_part(
    first: int,
    bodies: Sequence[bytes],
    keys: Sequence[str | None] | None,
    headers: Sequence[Mapping[str, str] | None] | None,
    start: int,
    end: int,
) -> int:
    """The same of those numbered `start` to `end`, of messages the first of which is numbered `first`."""
    some = slice(start - first, end - first + 1)
    return digest_sum(
        start, bodies[some], None if keys is None else keys[some], None if headers is None else headers[some]
    )
