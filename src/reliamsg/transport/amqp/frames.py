"""Splits AMQP input into frames: in linear time, and within the negotiated limits.

Whoever answers at a broker's address is not trusted before the login, and little after it. A frame over the limit ends
the connection when its head has arrived, before any of it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from reliamsg.transport.amqp.codec import BODY, FRAME_END, FRAME_HEAD, FRAME_OVERHEAD, HEADER, METHOD

__all__ = ["FRAME_MIN_SIZE", "MAX_HANDSHAKE_BYTES", "Bodies", "FrameBuffer", "ProtocolViolation"]

FRAME_MIN_SIZE = 4096
"""Bytes of a frame that every peer accepts, and the most that any may send before ``connection.tune`` (AMQP 0-9-1,
4.2.3 and ``frame-min-size``)."""

MAX_HANDSHAKE_BYTES = 65_536
"""Most that a broker may send before ``connection.tune``. A handshake takes less than a thousand bytes."""

HEARTBEAT = 8
_KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))


class ProtocolViolation(ValueError):
    """The input is not AMQP 0-9-1, or exceeds a limit. The text says which, and nothing of the content."""


class FrameBuffer:
    """Splits a stream of bytes into frames. Each byte is copied a fixed number of times, regardless of the chunks."""

    def __init__(self) -> None:
        self.limit: int = FRAME_MIN_SIZE
        """Largest payload of a frame, in bytes."""
        self.handshake_left: int | None = MAX_HANDSHAKE_BYTES
        """Bytes that may still arrive before the handshake must be done; None once it is."""
        self._rest = bytearray()
        """The beginning of a frame."""
        self._needed = 0
        """How many bytes of it are needed to continue."""

    def end_handshake(self, limit: int) -> None:
        """The handshake is done: accept payloads of up to `limit` bytes from the next frame on."""
        self.limit = limit
        self.handshake_left = None

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (type, channel, whole frame) for each frame completed by `data`. Raises :class:`ProtocolViolation`."""
        if self.handshake_left is not None:
            self.handshake_left -= len(data)
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start, size = 0, len(data)
        end = FRAME_HEAD.size
        while size - start >= FRAME_HEAD.size:
            kind, channel, length = FRAME_HEAD.unpack_from(data, start)
            self._check(kind, length)
            end = start + FRAME_OVERHEAD + length
            if end > size:
                break
            if data[end - 1 : end] != FRAME_END:
                raise ProtocolViolation("the broker sent a frame without its end")
            yield kind, channel, data[start:end]
            start = end
            end = start + FRAME_HEAD.size
        self._needed = end - start
        self._rest += data[start:]

    def _check(self, kind: int, length: int) -> None:
        if kind not in _KINDS:
            raise ProtocolViolation("what answers does not speak AMQP 0-9-1")
        if length > self.limit:
            raise ProtocolViolation(f"the broker sent a frame of {length} bytes; the limit is {self.limit}")
        if self.handshake_left is not None and self.handshake_left < 0:
            raise ProtocolViolation(
                f"the broker sent over {MAX_HANDSHAKE_BYTES} bytes before the handshake was done"
            )


class Bodies:
    """Assembles bodies from their frames, at a cost that does not depend on the number of frames."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        """By channel, bytes of a message that have not arrived yet."""
        self._parts: dict[int, bytearray] = {}

    def expect(self, channel: int, size: int) -> None:
        """A message of `size` bytes, at least one, begins on this channel."""
        self._left[channel] = size
        self._parts.pop(channel, None)

    def expects(self, channel: int) -> bool:
        """Whether a message has begun on this channel and is not complete."""
        return channel in self._left

    def add(self, channel: int, frame: bytes) -> bytes | None:
        """Return the body that a frame completes, if it does. Raises :class:`ProtocolViolation` if it is too long."""
        left = self._left[channel] - (len(frame) - FRAME_OVERHEAD)
        if left < 0:
            raise ProtocolViolation("the broker sent a message longer than its header says")
        parts = self._parts.get(channel)
        payload = memoryview(frame)[FRAME_HEAD.size : -len(FRAME_END)]
        if left:
            self._left[channel] = left
            if parts is None:
                self._parts[channel] = bytearray(payload)
            else:
                parts += payload
            return None
        del self._left[channel]
        if parts is None:
            return bytes(payload)
        parts += payload
        del self._parts[channel]
        return bytes(parts)
