"""By what an operator trusts journals: the keys of all clients, and unsigned segments from before clients had keys.

A file of clients' keys has one key per line: ``ROLE/NAME ID SECRET``, such as ``producer/gateway-7 2026-a 5f0c…``. The
name is percent-encoded as in the directories of a journal's target, and the secret is in hexadecimal.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing, looks_secret, read_secrets, secret_from_hex

__all__ = ["ClientKeys", "Owner", "Trust", "make_trust", "parse_positions", "read_client_keys"]

MAX_FILE_BYTES = 64 * 1024 * 1024
_LINE = "a line must be producer/NAME ID SECRET or group/NAME ID SECRET, with the secret in hexadecimal"
_ROLES = ("producer", "group")
_DIGEST = re.compile(r"(?:[0-9a-f]{16}-[0-9]{19}-)?([0-9a-f]{64})(?:\.ndjson)?")

Owner = tuple[str, str]
"""The role and name of a client."""


class ClientKeys:
    """The keys with which clients sign their journals, as read from a file.

    Does not reveal its secrets. When it is pickled, the pickle contains the file's path instead, and the file is read
    again where it is unpickled.
    """

    __slots__ = ("_path", "_secrets")

    def __init__(self, secrets: Mapping[Owner, Mapping[str, bytes]], path: str = "") -> None:
        for keys in secrets.values():
            KeyRing(keys)  # raises ConfigError for ids and secrets that no client can sign with
        self._secrets = {owner: dict(keys) for owner, keys in secrets.items()}
        self._path = path

    def of(self, role: str, client: str) -> Mapping[str, bytes]:
        """The secrets of a client by key id; empty if it has no key."""
        return self._secrets.get((role, client), {})

    def mark(self, role: str, client: str, key_id: str) -> str:
        """Identifies one key of a client, also after others were added; reveals nothing about it."""
        what = f"reliamsg journal mark {role}/{client} {key_id}".encode()
        return hmac.new(self._secrets[role, client][key_id], what, hashlib.sha256).hexdigest()[:32]

    def marks(self, role: str, client: str) -> set[str]:
        """Those of all keys of a client."""
        return {self.mark(role, client, key_id) for key_id in self.of(role, client)}

    @property
    def fingerprint(self) -> str:
        """Identifies all keys; reveals nothing about them."""
        marks = sorted(mark for owner in self._secrets for mark in self.marks(*owner))
        return hashlib.sha256(" ".join(marks).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<ClientKeys of {len(self._secrets)} clients>"

    def __reduce__(self) -> str | tuple[object, ...]:
        if not self._path:
            raise TypeError(
                "keys that were not read from a file can't be pickled: the pickle would contain secrets"
            )
        return _read_again, (self._path, self.fingerprint)


@dataclass(frozen=True)
class Trust:
    """What journals are checked against. Every segment and head must be signed with one of the keys of its client,
    except the unsigned segments that an operator accepts."""

    keys: ClientKeys
    unsigned: Mapping[Owner, frozenset[str]] = field(default_factory=dict)
    """By client, digests of segments. Unsigned segments are accepted from the first one of a chain up to these."""

    def accepts_unsigned(self, role: str, client: str) -> frozenset[str]:
        """The digests of the segments up to which unsigned ones of this client are accepted."""
        return self.unsigned.get((role, client), frozenset())


def make_trust(path: str | os.PathLike[str] | None, positions: Iterable[str]) -> Trust | None:
    """The trust of ``--journal-keys`` and ``--unsigned-before``. Raises :class:`ConfigError`."""
    positions = list(positions)
    if path is None:
        if positions:
            raise ConfigError("--unsigned-before needs --journal-keys")
        return None
    return Trust(read_client_keys(path), parse_positions(positions))


def read_client_keys(path: str | os.PathLike[str]) -> ClientKeys:
    """Read a file of clients' keys. Raises :class:`ConfigError`, whose message contains no ids and no secrets."""
    shown = os.path.abspath(path)

    def parse(lines: list[str]) -> ClientKeys:
        return ClientKeys(_secrets(lines), shown)

    return read_secrets(shown, parse, line=_LINE, encoding="utf-8", most=MAX_FILE_BYTES)


def _secrets(lines: Iterable[str]) -> dict[Owner, dict[str, bytes]]:
    found: dict[Owner, dict[str, bytes]] = {}
    owners: dict[bytes, Owner] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        owner = _owner(words[0])
        secret = secret_from_hex(words[2]) if len(words) == 3 else None
        if owner is None or secret is None:
            raise ConfigError(f"line {number}: {_LINE}")
        if looks_secret(words[1]):
            raise ConfigError(f"line {number}: the id looks like a secret; {_LINE}")
        try:
            KeyRing({words[1]: secret})
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error}") from None
        if owners.setdefault(secret, owner) != owner:
            raise ConfigError(
                f"line {number}: another client has the same secret, and could sign as this one"
            )
        keys = found.setdefault(owner, {})
        if words[1] in keys:
            raise ConfigError(f"line {number}: this client already has a key with this id")
        keys[words[1]] = secret
    if not found:
        raise ConfigError("the file contains no key")
    return found


def _owner(word: str) -> Owner | None:
    role, _, name = word.partition("/")
    return (role, unquote(name)) if role in _ROLES and name else None


def parse_positions(words: Iterable[str]) -> dict[Owner, frozenset[str]]:
    """Parse ``ROLE/NAME@SEGMENT``, where SEGMENT is the file name or the digest of a segment.

    Raises :class:`ConfigError`.
    """
    found: dict[Owner, frozenset[str]] = {}
    for word in words:
        name, _, segment = word.rpartition("@")
        owner, digest = _owner(name), _DIGEST.fullmatch(segment.rpartition("/")[2])
        if owner is None or digest is None:
            raise ConfigError(
                f"--unsigned-before {word}: use producer/NAME@SEGMENT or group/NAME@SEGMENT, with the file name of a"
                " segment"
            )
        found[owner] = found.get(owner, frozenset()) | {digest[1]}
    return found


def _read_again(path: str, fingerprint: str) -> ClientKeys:
    """Read the file in another process, perhaps on another machine."""
    keys = read_client_keys(path)
    if keys.fingerprint != fingerprint:
        raise ConfigError(
            f"{path}: has other keys here than where the audit was started, or was changed meanwhile"
        )
    return keys
