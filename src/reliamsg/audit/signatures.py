"""Checks who signed segments and heads, against the keys of all clients.

The plain checker has a check of its own (``reliamsg.checker.signatures``), so that the two do not share mistakes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.audit.fold import Part
from reliamsg.audit.segment import StatedIdle
from reliamsg.trust import Trust

__all__ = [
    "NOT_SIGNED",
    "Signer",
    "UnsignedHead",
    "accepted",
    "is_trusted",
    "reaching",
    "signer_of",
    "unsigned_in",
]

NOT_SIGNED = "not signed"
_UNKNOWN_KEY = "signed with a key that its client does not have"
_WRONG = "its signature is wrong: it was edited, or signed with another key"
_FIELD, _DIGITS = b',"signature":"', 64


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed a file."""

    problem: str | None = None
    """Why the file is not used."""
    mark: str = ""
    """Identifies the key. Empty: it is not signed."""


@dataclass(frozen=True, slots=True)
class UnsignedHead:
    """A head that is not signed, of a client of which an operator accepts some unsigned segments."""

    path: str
    head: StatedIdle


def signer_of(
    trust: Trust, role: str, client: str, first: dict[str, Any], line: bytes, body: bytes
) -> Signer:
    """Who signed a first line and the lines after it. `first`: the object in the line."""
    if "key" not in first and "signature" not in first:
        return Signer() if trust.accepts_unsigned(role, client) else Signer(NOT_SIGNED)
    key_id = first.get("key")
    secret = trust.keys.of(role, client).get(key_id) if isinstance(key_id, str) else None
    if secret is None:
        return Signer(_UNKNOWN_KEY)
    start = len(line) - len(_FIELD) - _DIGITS - 2
    if start < 0 or line[start : start + len(_FIELD)] != _FIELD or not line.endswith(b'"}'):
        return Signer(_WRONG)
    found = hmac.new(secret, digestmod=hashlib.sha256)
    for each in (b"reliamsg journal", line[:start] + b"}", body):
        found.update(b"%d:" % len(each))
        found.update(each)
    if not hmac.compare_digest(found.hexdigest().encode(), line[start + len(_FIELD) : -2]):
        return Signer(_WRONG)
    return Signer(mark=trust.keys.mark(role, client, str(key_id)))


def accepted(parts: Iterable[Part], named: Collection[str]) -> set[str]:
    """The segments of a client that have these digests, and all before them."""
    parents: dict[str, str | None] = {}
    for part in parts:
        parents.update(zip(part.digests, [part.parent, *part.digests], strict=False))
    return reaching(parents, named)


def reaching(parents: Mapping[str, str | None], named: Iterable[str]) -> set[str]:
    """These segments, and all before them. `parents`: by digest, the digest of the segment before each."""
    found: set[str] = set()
    for digest in named:
        each: str | None = digest
        while each is not None and each in parents and each not in found:
            found.add(each)
            each = parents[each]
    return found


def unsigned_in(parts: Iterable[Part]) -> set[str]:
    """The digests of the unsigned segments in these parts."""
    return {digest for part in parts for digest in part.unsigned}


def is_trusted(parts: Collection[Part], trust: Trust) -> bool:
    """Whether all segments in parts of one client, which were read earlier, would be used if they were read now."""
    one = next(iter(parts))
    marks = trust.keys.marks(one.role, one.client)
    named = trust.accepts_unsigned(one.role, one.client)
    return all(part.marks <= marks for part in parts) and unsigned_in(parts) <= accepted(parts, named)
