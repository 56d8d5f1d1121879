"""What applications may publish: checks of body, key and headers before anything is stored.

The rules are the same for every wire form and site, so that a message that was accepted once can go anywhere:
text is what both AMQP short strings and MQTT 5 user properties carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from reliamsg.config import (
    MAX_HEADER_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    unsafe_characters,
)  # fmt: skip
from reliamsg.errors import ConfigError, MessageTooLarge

__all__ = [
    "RESERVED_PREFIX", "Bytes", "check_bodies", "check_body", "check_header_column", "check_headers", "check_key",
    "check_key_column",
]  # fmt: skip

Bytes = bytes | bytearray | memoryview

RESERVED_PREFIX = "rm-"
"""Headers that begin with this, in any case, are the protocol's own."""


def check_body(body: Bytes) -> bytes:
    """Return `body` as bytes; a mutable one is copied, so that later changes do not reach the message.

    Raises :class:`ConfigError` for anything but bytes, :class:`MessageTooLarge` over 4 MiB.
    """
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            hint = "; encode it first" if isinstance(body, str) else ""
            raise ConfigError(f"a body must be bytes, not {type(body).__name__}{hint}")
        size = body.nbytes if isinstance(body, memoryview) else len(body)
        if size <= MAX_MESSAGE_BYTES:  # else there is nothing to copy
            return bytes(body)
    else:
        size = len(body)
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"a body of {size} bytes; at most {MAX_MESSAGE_BYTES} are possible")
    return body  # type: ignore[return-value]  # of type bytes: every other type has returned


def check_bodies(bodies: Iterable[Bytes]) -> list[bytes]:
    """:func:`check_body` of each."""
    found = list(bodies)
    if set(map(type, found)) == {bytes} and max(map(len, found)) <= MAX_MESSAGE_BYTES:
        return found  # type: ignore[return-value]  # the usual case, at the speed of C
    return [check_body(body) for body in found]


def check_key(key: str | None) -> str | None:
    """Return `key`, or raise :class:`ConfigError` (:class:`MessageTooLarge` over 255 bytes)."""
    if key is not None:
        _check_text("a key", key, MAX_KEY_BYTES)
    return key


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return a copy of `headers`, None for none, or raise :class:`ConfigError`.

    Names and values are strings without control characters, in UTF-8 at most 255 bytes and 8 KiB each and 64 KiB
    together, at most 64 of them (else :class:`MessageTooLarge`). Names aren't empty and don't begin with ``rm-``.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping of strings, not {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise MessageTooLarge(f"{len(headers)} headers; at most {MAX_HEADERS} are possible")
    total = 0
    for name, value in headers.items():
        total += _check_text("the name of a header", name, MAX_HEADER_BYTES)
        if not name:
            raise ConfigError("the name of a header is empty")
        if name[:3].lower() == RESERVED_PREFIX:
            raise ConfigError(f"header {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved")
        total += _check_text(f"header {name!r}", value, MAX_HEADER_VALUE_BYTES)
    if total > MAX_HEADERS_BYTES:
        raise MessageTooLarge(f"headers of {total} bytes; at most {MAX_HEADERS_BYTES} are possible")
    return dict(headers) or None


_MAX_SEEN_NAMES = 2_000
_seen_names: set[str] = set()
"""Names of headers that were found sound: most messages have the same few."""


def check_key_column(keys: Iterable[str | None]) -> None:
    """:func:`check_key` of each key of a batch that was decoded, of which none has more than 255 characters."""
    found = "".join(filter(None, keys))
    if not (found.isascii() and found.isprintable()):
        for key in keys:
            check_key(key)


def check_header_column(column: Iterable[dict[str, str] | None]) -> None:
    """:func:`check_headers` of each message of a batch that was decoded, of which none has more headers or
    characters in a name or value than is possible."""
    present = list(filter(None, column))
    names = set(chain.from_iterable(present))
    values = "".join(chain.from_iterable(map(dict.values, present)))
    if values.isascii() and values.isprintable() and names <= _seen_names:
        longest = max(map(len, chain.from_iterable(map(dict.values, present))), default=0)
        if longest <= MAX_HEADERS_BYTES // MAX_HEADERS - MAX_HEADER_BYTES:
            return  # the usual case, at the speed of C
    for headers in present:
        check_headers(headers)
    if len(_seen_names) + len(names) > _MAX_SEEN_NAMES:
        _seen_names.clear()
    if len(names) <= _MAX_SEEN_NAMES:
        _seen_names.update(names)


def _check_text(what: str, text: str, limit: int) -> int:
    """Returns its size in UTF-8 bytes."""
    if not isinstance(text, str):
        raise ConfigError(f"{what} must be a string, not {type(text).__name__}")
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"{what} is not valid Unicode text") from None
    if size > limit:
        raise MessageTooLarge(f"{what} is {size} bytes long; at most {limit} are possible")
    if not (text.isascii() and text.isprintable()):
        bad = unsafe_characters(text)
        if bad:
            raise ConfigError(f"{what} contains {', '.join(map(repr, bad))}, which brokers don't carry")
    return size
