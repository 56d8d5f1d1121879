"""Checks who signed a segment or a head, against the keys of all clients."""

from __future__ import annotations

import re

import msgspec

from reliamsg.keys import KeyRing
from reliamsg.store.segment import SegmentError
from reliamsg.trust import Trust

__all__ = ["FOREIGN_KEY", "NOT_SIGNED", "WRONG", "check_signature"]

NOT_SIGNED = "not signed"
FOREIGN_KEY = "signed with a key that its client does not have"
WRONG = "its signature is wrong: it was edited, or signed with another key"
_SIGNED_LINE = re.compile(rb'(?s:(.*)),"signature":"([0-9a-f]{64})"\}')
_WHAT = b"reliamsg journal"


def check_signature(trust: Trust, role: str, client: str, line: bytes, body: bytes) -> bool:
    """Whether a first line, which has been decoded before, and the lines after it are signed with a key of this client;
    False if they are not signed.

    Raises :class:`SegmentError` if the signature is not that of the client.
    """
    found = msgspec.json.decode(line)
    if not {"key", "signature"} & found.keys():
        return False
    key_id, secrets = found.get("key"), trust.keys.of(role, client)
    if not isinstance(key_id, str) or key_id not in secrets:
        raise SegmentError(FOREIGN_KEY)
    signed = _SIGNED_LINE.fullmatch(line)
    ring = KeyRing(secrets)
    if signed is None or not ring.verifies(
        key_id, bytes.fromhex(signed[2].decode()), (_WHAT, signed[1] + b"}", body)
    ):
        raise SegmentError(WRONG)
    return True
