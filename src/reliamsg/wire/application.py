"""What applications may publish: checks of body, key and headers before anything is stored.

The rules are the same for every wire form and site, so that a message that was accepted once can go anywhere:
text is what both AMQP short strings and MQTT 5 user properties carry.
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
        total += _check_header_name(name)
        total += _check_text(f"header {name!r}", value, MAX_HEADER_VALUE_BYTES)
    if total > MAX_HEADERS_BYTES:
        raise MessageTooLarge(f"headers of {total} bytes; at most {MAX_HEADERS_BYTES} are possible")
    return dict(headers) or None


# -- batches that were decoded ---------------------------------------------------------------------------------
#
# What arrives must be what could have been published. Most columns are cleared as a whole, by the bytes that do not
# occur in them: checking message by message would take several times as long as decoding.

_MAX_SEEN_NAMES = 2_000
_seen_names: set[str] = set()
"""Names of headers that were found sound: most messages have the same few."""

_LENGTHS = bytes((0xDA, 0xDB, 0xDE, 0xDF))
"""How msgpack begins each text of more than 255 bytes and each map of more than 15 items."""
_UNSAFE = bytes((*range(0x20), 0x7F, 0xC2, 0xEF, *range(0xF0, 0xF5)))
"""How UTF-8 begins each of the :func:`reliamsg.config.unsafe_characters`, and some others."""
_SAFE = bytes(sorted({*range(256)} - {*_UNSAFE}))
_USUAL = bytes(sorted({*_SAFE} - {*_LENGTHS}))
_SLICE_BYTES = 256 * 1024
"""So much of a column is copied at once."""


class Signs(NamedTuple):
    """What may be in a column of texts, or of maps of texts; where a sign is False, it is not."""

    long: bool
    """A text of more than 255 bytes, or a map of more than 15 items."""
    unsafe: bool
    """Characters that brokers don't carry."""


_NO_SIGNS = Signs(long=False, unsafe=False)


def signs_in(column: msgspec.Raw | bytes) -> Signs:
    """What a column in msgpack has to be checked for. Any byte of it may also mean something else, such as the length
    of a text: then a check is made for nothing."""
    view = memoryview(column)
    head = {0xDC: 3, 0xDD: 5}.get(view[0], 1)  # of the array: its bytes say how many items there are
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
    """Whether no value has an unsafe character, and none can be too long, nor all of a message together."""
    longest = max(map(len, values), default=0)
    if not all(map(str.isascii, values)):
        longest *= 4  # bytes of a letter, at most
    return (
        longest <= MAX_HEADER_VALUE_BYTES
        and max(map(len, present), default=0) * (longest + MAX_HEADER_BYTES) <= MAX_HEADERS_BYTES
        # Some at a time: fresh memory for all of them costs more than the look.
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
        raise MessageTooLarge(f"{what} is {size} bytes long; at most {limit} are possible")
    if not (text.isascii() and text.isprintable()):
        bad = unsafe_characters(text)
        if bad:
            raise ConfigError(f"{what} contains {', '.join(map(repr, bad))}, which brokers don't carry")
    return size
