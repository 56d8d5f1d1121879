"""Shared secrets for signing frames, so that nobody without them can impersonate a client.

A signature is an HMAC-SHA-256 of a canonical form: fixed fields, each prefixed with its length, so that different
frames have different forms. The modules of the frames list the fields (:mod:`reliamsg.wire.data`,
:mod:`reliamsg.wire.plain`, :mod:`reliamsg.wire.control`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from reliamsg.errors import ConfigError

__all__ = [
    "KeyRing",
    "check_keys",
    "check_private",
    "looks_secret",
    "read_key_ring",
    "read_secrets",
    "secret_from_hex",
]

_T = TypeVar("_T")

MAX_KEY_ID_BYTES = 64
"""The maximum length of a key id."""
MIN_SECRET_BYTES = 16
"""The minimum length of a secret; a shorter one could be guessed from a captured frame."""
MAX_KEYS = 100
"""The maximum number of keys in a ring."""
MAX_FILE_BYTES = 64 * 1024
SIGNATURE_BYTES = 32
_LINE = "a line must be ID SECRET, with the secret in hexadecimal"
_LOOKS_SECRET = re.compile(r"[0-9A-Fa-f]{32,}")


class KeyRing:
    """The trusted keys, and the key for signing.

    `keys`: secrets of at least 16 random bytes (``secrets.token_bytes(32)``), by key id; an id has up to 64 printable
    ASCII characters and is sent with every frame. `sign_with`: the id of the key for signing; with None the ring only
    verifies. To rotate a key, add the new key everywhere, sign with it everywhere, and remove the old key when no frame
    signed with it is in flight or in an outbox.

    Raises :class:`ConfigError` for invalid arguments, including a secret of zeros. The error contains neither ids nor
    secrets, because confusing the two would reveal a secret in a log. Rings are immutable, can be shared by any number
    of clients and threads, and do not reveal their secrets.
    """

    __slots__ = ("_states", "sign_with")

    def __init__(self, keys: Mapping[str, bytes], *, sign_with: str | None = None) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigError('keys must be a mapping with at least one key: KeyRing({"2026-a": secret})')
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"{len(keys)} keys; the limit is {MAX_KEYS}")
        for number, (key_id, secret) in enumerate(keys.items(), 1):
            _check_key(number, key_id, secret)
        if sign_with is not None and not isinstance(sign_with, str):
            raise ConfigError(f"sign_with must be the id of a key, not {type(sign_with).__name__}")
        if sign_with is not None and sign_with not in keys:
            raise ConfigError("sign_with is not among the keys")
        self.sign_with: str | None = sign_with
        # HMAC processes the key first: its state after that is stored and copied for each message.
        self._states = {key_id: hmac.new(secret, digestmod=hashlib.sha256) for key_id, secret in keys.items()}

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the trusted keys, sorted."""
        return tuple(sorted(self._states))

    @property
    def signs(self) -> bool:
        """Whether this ring has a key to sign with."""
        return self.sign_with is not None

    def signing_with(self, key_id: str) -> KeyRing:
        """The same keys, signing with another one of them. Raises :class:`ConfigError` for other ids."""
        if key_id not in self._states:
            raise ConfigError("sign_with is not among the keys")
        found = object.__new__(KeyRing)
        found.sign_with, found._states = key_id, self._states
        return found

    def sign(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """Sign a canonical form with the key `sign_with`; returns 32 bytes. Raises :class:`ConfigError` without a
        key."""
        if self.sign_with is None:
            raise ConfigError("this key ring only verifies: pass sign_with=")
        return self._digest(self.sign_with, parts)

    def verifies(self, key_id: str, signature: bytes, parts: Iterable[bytes | memoryview]) -> bool:
        """Whether the key `key_id` is trusted and `signature` is its signature of a canonical form."""
        if key_id not in self._states:
            return False
        return hmac.compare_digest(self._digest(key_id, parts), signature)

    def _digest(self, key_id: str, parts: Iterable[bytes | memoryview]) -> bytes:
        state = self._states[key_id].copy()
        chunks: list[bytes | memoryview] = []
        for part in parts:
            chunks += b"%d:" % len(part), part
        state.update(b"".join(chunks))  # at once: most parts are short, and each update has a fixed cost
        return state.digest()

    def __repr__(self) -> str:
        return f"<KeyRing of {', '.join(self.key_ids)}, signs with {self.sign_with}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key ring can't be pickled: the pickle would contain its secrets")


def check_keys(keys: object, name: str = "keys") -> None:
    """Raise :class:`ConfigError`, which names the argument, unless `keys` is None or a ring that signs: consumers sign
    their control frames, too."""
    if keys is None:
        return
    if not isinstance(keys, KeyRing):
        raise ConfigError(f"{name} must be a KeyRing, not {type(keys).__name__}")
    if not keys.signs:
        raise ConfigError(
            f"{name}: this key ring only verifies, but producers and consumers must sign: pass sign_with="
        )


def read_key_ring(path: str | os.PathLike[str]) -> KeyRing:
    """Read a file of keys, one per line: ``ID SECRET``, with the secret in hexadecimal. The ring signs with the first
    key and trusts all.

    Raises :class:`ConfigError`, whose message contains nothing of the file.
    """
    return read_secrets(path, _key_ring, line=_LINE, encoding="ascii", most=MAX_FILE_BYTES)


def read_secrets(
    path: str | os.PathLike[str], parse: Callable[[list[str]], _T], *, line: str, encoding: str, most: int
) -> _T:
    """Parse the lines of a file of secrets, which must be private, and of at most `most` bytes. `line`: what a line of
    it must be.

    Raises :class:`ConfigError`, which names the file. Its message contains nothing of the file, unless that of an error
    in `parse` does.
    """
    try:
        with open(path, "rb") as file:
            check_private(file.fileno())
            data = file.read(most + 1)
        if len(data) > most:
            raise ConfigError(f"more than {most} bytes")
        return parse(data.decode(encoding).splitlines())
    except UnicodeDecodeError:  # its message contains the content of the file
        problem = line
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except ConfigError as error:
        problem = str(error)
    raise ConfigError(f"{os.fspath(path)}: {problem}")


def _key_ring(lines: Iterable[str]) -> KeyRing:
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        secret = secret_from_hex(words[1]) if len(words) == 2 else None
        if secret is None:
            raise ConfigError(f"line {number}: {_LINE}")
        if looks_secret(words[0]):
            raise ConfigError(f"line {number}: the id looks like a secret; {_LINE}")
        if words[0] in keys:
            raise ConfigError(f"line {number}: duplicate id")
        keys[words[0]] = secret
    if not keys:
        raise ConfigError("the file contains no key")
    return KeyRing(keys, sign_with=next(iter(keys)))


def looks_secret(key_id: str) -> bool:
    """Whether a key's id, which everyone sees, is rather a secret in the wrong place."""
    return _LOOKS_SECRET.fullmatch(key_id) is not None


def secret_from_hex(text: str) -> bytes | None:
    """A secret in hexadecimal; None if it is something else."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None


def check_private(descriptor: int) -> None:
    """Raise :class:`ConfigError` unless the open file of secrets is private: it must belong to this user or root, its
    group must not have write access, and others must have no access. Its group may read it, which services need."""
    if os.name != "posix":
        return
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError("the file of keys belongs to another user: create your own")
    if found.st_mode & 0o027:
        raise ConfigError(
            "other users have access to the file of keys: chmod 600 (640 lets its group read it)"
        )


def _check_key(number: int, key_id: object, secret: object) -> None:
    """Errors contain neither the id nor the secret: if the two were swapped, the id is the secret."""
    if not isinstance(key_id, str) or not is_key_id(key_id):
        raise ConfigError(
            f"key id {number}: use 1 to {MAX_KEY_ID_BYTES} printable ASCII characters, no space"
        )
    if not isinstance(secret, bytes):
        raise ConfigError(f"the secret of key {number} must be bytes, not {type(secret).__name__}")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"the secret of key {number} has {len(secret)} bytes; use at least {MIN_SECRET_BYTES} random ones"
        )
    if not any(secret):
        raise ConfigError(f"the secret of key {number} is all zeros: use secrets.token_bytes(32)")


def is_key_id(text: str) -> bool:
    """Whether `text` is a valid key id."""
    return 0 < len(text) <= MAX_KEY_ID_BYTES and text.isascii() and text.isprintable() and " " not in text
