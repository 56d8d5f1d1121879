"""Signs segments and heads with the key of their client; see ``docs/reference/journal.md``.

The signature is part of the first line, whose last fields are ``key`` and ``signature``. It covers every byte of that
line without the field ``signature``, and all lines that follow in a segment. Of a head, only the first line is signed;
the second one is its checksum.
"""

from __future__ import annotations

import msgspec

from reliamsg.keys import KeyRing

__all__ = ["sign_line"]

_WHAT = b"reliamsg journal"


def sign_line(line: bytes, body: bytes, keys: KeyRing | None) -> bytes:
    """The first line, a JSON object without its newline, signed together with `body`; unchanged without keys."""
    if keys is None:
        return line
    signed = b'%b,"key":%b}' % (line[:-1], msgspec.json.encode(keys.sign_with))
    signature = keys.sign((_WHAT, signed, body)).hex().encode()
    return b'%b,"signature":"%b"}' % (signed[:-1], signature)
