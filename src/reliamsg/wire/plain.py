"""The plain format: one broker message per message, with an unchanged body and its identity in headers.

Any client can read it. A consumer converts a received message to a data frame of one message, so that all further code
handles one format.

============ ==================================================================
header       value, always a string
============ ==================================================================
rm-v         version of this format, ``1``
rm-producer  producer id
rm-epoch     decimal, as are all numbers
rm-inc       incarnation
rm-topic     topic
rm-part      partition
rm-seq       sequence number
rm-moved     ``1`` if it may have been published before, in another epoch
rm-prev      ``epoch:incarnation:last`` of the previous non-empty epoch, if any
rm-ts        time of publishing by the producer's clock, in µs since 1970
rm-key       the application's key, if any
rm-sum       CRC-32 of all of these, the application's headers and the body
rm-sig       ``key id:signature`` in hexadecimal, if signed
============ ==================================================================

The application's headers keep their names. The value of ``content-type`` is the message's content type at the broker as
well, for clients that look there, if it has at most 255 bytes. A consumer ignores that copy.

A signature (:mod:`reliamsg.keys`) covers the topic's address, the key id and everything that the checksum covers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from reliamsg.config import MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, check_name
from reliamsg.errors import ConfigError, MessageTooLarge
from reliamsg.keys import KeyRing
from reliamsg.message import MessageId, Prev, Stream
from reliamsg.wire.address import topic_address
from reliamsg.wire.application import RESERVED_PREFIX, check_headers, check_key
from reliamsg.wire.data import CONTENT_TYPE, Frame, FrameError, Origin, encode, make_records, open_frame
from reliamsg.wire.limits import MAX_FRAME_BYTES, MAX_INCARNATION, MAX_PLAIN_HEADERS

__all__ = ["PlainMessage", "decode_plain", "encode_plain", "is_plain"]

VERSION = "1"
_COVERED = (
    "rm-v", "rm-producer", "rm-epoch", "rm-inc", "rm-topic", "rm-part", "rm-moved", "rm-seq", "rm-prev", "rm-ts",
    "rm-key",
)  # fmt: skip
"""The headers that the checksum covers, in this order."""


class PlainMessage(NamedTuple):
    """A message in the plain format, ready to publish."""

    body: bytes
    headers: dict[str, str]
    message_id: str
    seq: int
    timestamp_us: int
    content_type: str | None
    """The application's header of this name, where brokers can carry it."""


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether a message with these headers is in the plain format, of any version."""
    return "rm-v" in headers


def encode_plain(frame: Frame, ring: KeyRing | None = None) -> list[PlainMessage]:
    """Convert a batch to plain messages, in order, signed if a ring is given.

    A batch only has the times of its first and last message; all messages but the first get the latter.
    Raises :class:`FrameError` (``undecodable``) if the batch is unreadable.
    """
    envelope, records = frame.envelope, frame.records(trusted=True)
    common = {
        "rm-v": VERSION,
        "rm-producer": envelope.producer,
        "rm-epoch": str(envelope.epoch),
        "rm-inc": str(envelope.incarnation),
        "rm-topic": envelope.topic,
        "rm-part": str(envelope.partition),
    }
    if envelope.moved:
        common["rm-moved"] = "1"
    # The common part of all messages is encoded once, in the order of the checksum.
    crc, prev = zlib.crc32(_packed(_canonical(common, {}))), b""
    if envelope.prev is not None:
        common["rm-prev"] = ":".join(map(str, envelope.prev))
        prev = _packed(("rm-prev", common["rm-prev"]))
    named = MessageId(envelope.producer, envelope.epoch, envelope.topic, envelope.partition, 0)
    prefix = str(named).removesuffix("0")
    messages = []
    for i, body in enumerate(records.bodies):
        seq = envelope.seq + i
        timestamp_us = envelope.ts_first if i == 0 else envelope.ts_last
        number, published = str(seq), str(timestamp_us)
        own = common | {"rm-seq": number, "rm-ts": published}
        covered = b"6:rm-seq%d:%b%b5:rm-ts%d:%b" % (
            len(number), number.encode(), prev, len(published), published.encode(),
        )  # fmt: skip
        key = records.keys[i] if records.keys is not None else None
        application = (records.headers[i] if records.headers is not None else None) or {}
        if key is not None:
            own["rm-key"] = key
        if key is not None or application:
            covered += _packed(_canonical({} if key is None else {"rm-key": key}, application))
        own["rm-sum"] = f"{zlib.crc32(body, zlib.crc32(covered, crc)):08x}"
        if ring is not None:
            own["rm-sig"] = _signature(own, application, body, envelope.topic, envelope.partition, ring)
        headers = application | own if application else own
        kind = _content_type(application) if application else None
        messages.append(PlainMessage(body, headers, prefix + number, seq, timestamp_us, kind))
    return messages


def _content_type(headers: Mapping[str, str]) -> str | None:
    """In AMQP it is a short string, and consumers tell batches by theirs."""
    found = headers.get("content-type")
    return None if found is None or found == CONTENT_TYPE or len(found.encode()) > MAX_HEADER_BYTES else found


def decode_plain(
    body: bytes, headers: Mapping[str, str], limit: int = MAX_FRAME_BYTES, ring: KeyRing | None = None
) -> Frame:
    """Verify a message in the plain format and return it as an unsigned data frame of one message.

    With a `ring`, the message must be signed with one of its keys. The caller has to check that it arrived at its
    topic's address. Raises :class:`FrameError` with reason ``oversized``, ``unknown-version``, ``malformed``,
    ``corrupt`` (the checksum), ``unsigned`` or ``forged``. Unknown headers that begin with ``rm-`` are ignored, and so
    are headers that begin with ``x-`` and are not covered by the checksum, because brokers add them.
    """
    if len(body) > min(limit, MAX_MESSAGE_BYTES):
        raise FrameError("oversized", f"{len(body)} bytes, limit {min(limit, MAX_MESSAGE_BYTES)}")
    if headers.get("rm-v") != VERSION:
        found = "unknown-version" if is_plain(headers) else "malformed"
        raise FrameError(found, "not in version 1 of the plain format")
    if len(headers) > MAX_PLAIN_HEADERS:
        raise FrameError("malformed", f"{len(headers)} headers; the limit is {MAX_PLAIN_HEADERS}")
    application = _verified_headers(body, headers)
    if ring is not None:
        _authenticate(body, headers, application, ring)
    key = headers.get("rm-key")
    try:
        check_key(key)
    except (ConfigError, MessageTooLarge) as error:
        raise FrameError("malformed", str(error)) from None
    previous = headers.get("rm-prev")
    timestamp_us = _number(headers, "rm-ts")
    data = encode(
        Origin(
            Stream(_name(headers, "rm-producer"), _name(headers, "rm-topic"), _number(headers, "rm-part")),
            _number(headers, "rm-epoch"),
            _number(headers, "rm-inc"),
            None if previous is None else _previous(previous),
            moved=_moved(headers),
        ),
        _number(headers, "rm-seq"),
        (timestamp_us, timestamp_us),
        make_records([body], [key], [application]),
    )
    return open_frame(data, max(limit, len(data)))


def _verified_headers(body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
    """The application's headers, as published."""
    application = {name: value for name, value in headers.items() if not name.startswith(RESERVED_PREFIX)}
    checksum = headers.get("rm-sum")
    if checksum != _checksum(headers, application, body):
        application = {name: value for name, value in application.items() if not name.startswith("x-")}
        if checksum != _checksum(headers, application, body):
            raise FrameError("corrupt", "the checksum does not match")
    try:
        check_headers(application)
    except (ConfigError, MessageTooLarge) as error:
        raise FrameError("malformed", str(error)) from None
    return application


def _signature(
    headers: Mapping[str, str],
    application: Mapping[str, str],
    body: bytes,
    topic: str,
    partition: int,
    ring: KeyRing,
) -> str:
    key_id = ring.sign_with or ""
    address = topic_address(topic, partition)
    return f"{key_id}:{ring.sign(_signed_parts(headers, application, body, address, key_id)).hex()}"


def _authenticate(
    body: bytes, headers: Mapping[str, str], application: Mapping[str, str], ring: KeyRing
) -> None:
    found = headers.get("rm-sig")
    if found is None:
        raise FrameError("unsigned")
    key_id, _, digits = found.rpartition(":")
    address = topic_address(_name(headers, "rm-topic"), _number(headers, "rm-part"))
    try:
        signature = bytes.fromhex(digits)
    except ValueError:
        raise FrameError("forged", "rm-sig is not a signature") from None
    if not ring.verifies(key_id, signature, _signed_parts(headers, application, body, address, key_id)):
        raise FrameError("forged", f"not signed with a trusted key {key_id!r}")


def _signed_parts(
    headers: Mapping[str, str], application: Mapping[str, str], body: bytes, address: str, key_id: str
) -> Iterator[bytes]:
    for text in ("reliamsg plain", address, key_id, *_canonical(headers, application)):
        yield text.encode()
    yield body


def _checksum(headers: Mapping[str, str], application: Mapping[str, str], body: bytes) -> str:
    """CRC-32 of identity, headers and body. Every text is prefixed with its length, so that the boundary between two
    texts is covered too."""
    return f"{zlib.crc32(body, zlib.crc32(_packed(_canonical(headers, application)))):08x}"


def _packed(texts: Iterable[str]) -> bytes:
    """Texts, each prefixed with its length."""
    try:
        return b"".join(b"%d:%b" % (len(text), text) for text in map(str.encode, texts))
    except UnicodeEncodeError:
        raise FrameError("malformed", "a header is not valid Unicode text") from None


def _canonical(headers: Mapping[str, str], application: Mapping[str, str]) -> Iterator[str]:
    for name in _COVERED:
        if name in headers:
            yield name
            yield headers[name]
    for name in sorted(application):
        yield name
        yield application[name]


def _name(headers: Mapping[str, str], name: str) -> str:
    try:
        return check_name(name, headers.get(name, ""))
    except ConfigError as error:
        raise FrameError("malformed", str(error)) from None


def _moved(headers: Mapping[str, str]) -> bool:
    found = headers.get("rm-moved", "")
    if found not in ("", "1"):
        raise FrameError("malformed", "rm-moved is not 1")
    return found == "1"


def _number(headers: Mapping[str, str], name: str) -> int:
    return _decimal(name, headers.get(name, ""))


def _decimal(name: str, text: str) -> int:
    # Twenty digits are enough for 2**64 - 1, the maximum; opening the frame checks the range of each field.
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or (number := int(text)) > MAX_INCARNATION:
        raise FrameError("malformed", f"{name} is not a 64-bit number")
    return number


def _previous(text: str) -> Prev:
    parts = text.split(":", 3)
    if len(parts) != 3:
        raise FrameError("malformed", "rm-prev is not epoch:incarnation:last")
    return Prev(*(_decimal("rm-prev", part) for part in parts))
