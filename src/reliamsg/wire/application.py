"""Checks of bodies, keys and headers, before a message is stored and after it was received.

The rules are the same for every wire format and site, so that an accepted message can be sent to any site: text is
limited to the common subset of AMQP short strings and MQTT 5 user properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

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
    "RESERVED_PREFIX", "Bytes", "Signs", "check_bodies", "check_body", "check_header_column", "check_headers",
    "check_key", "check_key_column", "signs_in",
]  # fmt: skip

Bytes = bytes | bytearray | memoryview

RESERVED_PREFIX = "rm-"
"""Headers with this prefix, in any case, are reserved for the protocol."""


def check_body(body: Bytes) -> bytes:
    """Return `body` as bytes. A mutable body is copied, so that later changes do not affect the message.

    Raises :class:`ConfigError` for anything but bytes, :class:`MessageTooLarge` over 4 MiB.
    """
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            hint = "; encode it first" if isinstance(body, str) else ""
            raise ConfigError(f"a body must be bytes, not {type(body).__name__}{hint}")
        size = body.nbytes if isinstance(body, memoryview) else len(body)
        if size <= MAX_MESSAGE_BYTES:  # do not copy a body that is refused
            return bytes(body)
    else:
        size = len(body)
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"a body of {size} bytes; the limit is {MAX_MESSAGE_BYTES}")
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
    """Return a copy of `headers`, None if there are none, or raise :class:`ConfigError`.

    Names and values are strings without control characters. At most 64 headers are allowed, in UTF-8 with 255 bytes for
    a name, 8 KiB for a value and 64 KiB in total (else :class:`MessageTooLarge`). Names must not be empty nor begin
    with ``rm-``.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping of strings, not {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise MessageTooLarge(f"{len(headers)} headers; the limit is {MAX_HEADERS}")
    total = 0
    for name, value in headers.items():
        total += _check_header_name(name)
        total += _check_text(f"header {name!r}", value, MAX_HEADER_VALUE_BYTES)
    if total > MAX_HEADERS_BYTES:
        raise MessageTooLarge(f"headers of {total} bytes; the limit is {MAX_HEADERS_BYTES}")
    return dict(headers) or None


# -- decoded batches ------------------------------------------------------------------------------------------
#
# Received messages must obey the rules for publishing. Most columns are accepted as a whole because certain bytes do
# not occur in them: checking message by message would take several times as long as decoding.

_MAX_SEEN_NAMES = 2_000
_seen_names: set[str] = set()
"""Cache of valid header names: most messages use the same few."""

_LENGTHS = bytes((0xDA, 0xDB, 0xDE, 0xDF))
"""The first bytes in msgpack of texts of more than 255 bytes and maps of more than 15 items."""
_UNSAFE = bytes((*range(0x20), 0x7F, 0xC2, 0xEF, *range(0xF0, 0xF5)))
"""The first bytes in UTF-8 of all :func:`reliamsg.config.unsafe_characters`, and of some others."""
_SAFE = bytes(sorted({*range(256)} - {*_UNSAFE}))
_USUAL = bytes(sorted({*_SAFE} - {*_LENGTHS}))
_SLICE_BYTES = 256 * 1024
"""Columns are scanned in slices of this size."""


class Signs(NamedTuple):
    """Possible contents of a column of texts, or of maps of texts. False means that the column does not contain it."""

    long: bool
    """A text of more than 255 bytes, or a map of more than 15 items."""
    unsafe: bool
    """Characters that brokers do not transmit."""


_NO_SIGNS = Signs(long=False, unsafe=False)


def signs_in(column: msgspec.Raw | bytes) -> Signs:
    """The checks that a column in msgpack needs. A byte may also be, for example, the length of a text: then a check is
    made without need."""
    view = memoryview(column)
    head = {0xDC: 3, 0xDD: 5}.get(view[0], 1)  # the size of the array's header
    signs = _NO_SIGNS
    for at in range(head, len(view), _SLICE_BYTES):
        found = bytes(view[at : at + _SLICE_BYTES]).translate(None, _USUAL)
        if found:
            unsafe = found.translate(None, _LENGTHS)
            signs = Signs(signs.long or len(unsafe) < len(found), signs.unsafe or bool(unsafe))
            if all(signs):
                break
    return signs


def check_key_column(keys: Iterable[str | None], signs: Signs) -> None:
    """:func:`check_key` of each key of a batch that was decoded, where `signs` were found."""
    if not any(signs):
        return
    present = list(filter(None, keys))
    long = signs.long and 4 * max(map(len, present), default=0) > MAX_KEY_BYTES
    if long or not _is_safe("".join(present)):
        for key in present:
            check_key(key)


def check_header_column(column: Iterable[dict[str, str] | None], signs: Signs) -> None:
    """:func:`check_headers` of each message of a batch that was decoded, where `signs` were found."""
    present = list(filter(None, column))
    names: set[str] = set().union(*present)
    for name in names - _seen_names:
        _check_header_name(name)
        if len(_seen_names) >= _MAX_SEEN_NAMES:
            _seen_names.clear()
        _seen_names.add(name)
    if any(signs) and not _are_sound([value for headers in present for value in headers.values()], present):
        for headers in present:
            check_headers(headers)


def _are_sound(values: list[str], present: list[dict[str, str]]) -> bool:
    """Whether no value has an unsafe character, and neither a value nor a message's headers can be too long."""
    longest = max(map(len, values), default=0)
    if not all(map(str.isascii, values)):
        longest *= 4  # the maximum number of bytes per character
    return (
        longest <= MAX_HEADER_VALUE_BYTES
        and max(map(len, present), default=0) * (longest + MAX_HEADER_BYTES) <= MAX_HEADERS_BYTES
        # In slices: allocating memory for all of them costs more than the check.
        and all(_is_safe("".join(values[at : at + 50])) for at in range(0, len(values), 50))
    )


def _is_safe(text: str) -> bool:
    if not text.encode().translate(None, _SAFE):
        return True
    return not text.isascii() and (text.isprintable() or not unsafe_characters(text))


def _check_header_name(name: str) -> int:
    """Returns its size in UTF-8 bytes."""
    size = _check_text("the name of a header", name, MAX_HEADER_BYTES)
    if not name:
        raise ConfigError("the name of a header is empty")
    if name[:3].lower() == RESERVED_PREFIX:
        raise ConfigError(f"header {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved")
    return size


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
        raise MessageTooLarge(f"{what} is {size} bytes long; the limit is {limit}")
    if not (text.isascii() and text.isprintable()):
        bad = unsafe_characters(text)
        if bad:
            raise ConfigError(f"{what} contains {', '.join(map(repr, bad))}, which brokers do not transmit")
    return size
