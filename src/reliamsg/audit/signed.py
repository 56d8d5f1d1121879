"""Signs the auditor's own files, and checks who signed them.

Each signature has a purpose, which is signed too. So a checkpoint never passes for a state, even with the same key.

A signed JSON file is the unsigned one with a last field ``signature``, which covers every byte of the unsigned one. No
other field is decoded before the file is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from reliamsg.errors import ConfigError
from reliamsg.files import read_regular
from reliamsg.keys import KeyRing

__all__ = [
    "ACCEPTANCE", "CHECKPOINT", "STATE", "Signature", "SignedFile", "encode_signed", "read_signed", "signature_problem",
]  # fmt: skip

CHECKPOINT = b"reliamsg checkpoint 1"
STATE = b"reliamsg audit state 1"
ACCEPTANCE = b"reliamsg audit acceptance 1"
"""What is signed. No other signature of reliamsg begins with one of these."""
MAX_BYTES = 16 * 1024**2
"""Of a JSON file. A list of a hundred thousand files has as many."""
_END = b"\n}\n"


class Signature(msgspec.Struct, frozen=True):
    """The id of the key that signed something, and the HMAC-SHA-256."""

    key: str
    hmac: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Outline(msgspec.Struct):
    signature: Signature | None = None


@dataclass(frozen=True, slots=True)
class SignedFile:
    """The content of a file that may be used."""

    data: bytes
    """A JSON object."""
    signature: Signature | None
    """None if it is not signed. Checked only if there were keys."""


def signature_problem(
    signed: bytes, signature: Signature | None, keys: KeyRing | None, what: bytes
) -> str | None:
    """Why something is not what the auditor signed as `what`; None if it is, or if that is not checked."""
    if keys is None:
        return None
    if signature is None:
        return "not signed"
    if signature.key not in keys.key_ids:
        return "signed with an unknown key"
    if not keys.verifies(signature.key, bytes.fromhex(signature.hmac), (what, signed)):
        return "its signature is wrong"
    return None


def encode_signed(value: Any, keys: KeyRing | None, what: bytes) -> bytes:
    """A file with an object, signed as `what` unless there are no keys."""
    data = msgspec.json.format(msgspec.json.encode(value)) + b"\n"
    if keys is None:
        return data
    signature = Signature(keys.sign_with or "", keys.sign((what, data)).hex())
    return data.removesuffix(_END) + _tail(signature)


def _tail(signature: Signature) -> bytes:
    return b',\n  "signature": ' + msgspec.json.encode(signature) + _END


def read_signed(path: Path, keys: KeyRing | None, what: bytes, remedy: str) -> SignedFile:
    """Read what :func:`encode_signed` made.

    Raises :class:`ConfigError`, which names the file and the `remedy`, if it is damaged, or if it is not signed as
    `what` by one of the keys; :class:`FileNotFoundError` if there is none; and :class:`OSError` if it can't be read.
    """
    data = read_regular(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: damaged (more than {MAX_BYTES:,} bytes); {remedy}")
    try:
        signature = msgspec.json.decode(data, type=_Outline).signature
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: damaged ({error}); {remedy}") from None
    signed = data
    if signature is not None and data.endswith(_tail(signature)):  # otherwise, nobody has signed these bytes
        signed = data.removesuffix(_tail(signature)) + _END
    problem = signature_problem(signed, signature, keys, what)
    if problem is not None:
        raise ConfigError(f"{path}: {problem}; {remedy}")
    return SignedFile(data, signature)
