"""Shared secrets that frames are signed with, so that nobody without them can publish in another's name.

A signature is HMAC-SHA-256 over a canonical form: a few fixed fields, each with its length before it, so that no two
different frames have the same form. Which fields those are is said where each kind of frame is
(:mod:`reliamsg.wire.data`, :mod:`reliamsg.wire.plain`, :mod:`reliamsg.wire.control`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping

from reliamsg.errors import ConfigError

__all__ = ["KeyRing", "check_keys", "check_private"]

MAX_KEY_ID_BYTES = 64
"""Longest name of a key."""
MIN_SECRET_BYTES = 16
"""Shortest secret; below that it could be guessed from one frame that was overheard."""
MAX_KEYS = 100
"""Most keys of one ring."""
SIGNATURE_BYTES = 32


class KeyRing:
    """The keys that are trusted, and the one that is signed with.

    `keys`: secrets of at least 16 random bytes (``secrets.token_bytes(32)``), by key id; ids are up to 64 printable
    ASCII characters and travel with every frame. `sign_with`: the id of the key that this side signs with; with None
    the ring only verifies. A key is exchanged in three steps: add the new one everywhere, sign with it everywhere,
    take the old one away once no frame that it signed is on its way or in an outbox.

    Raises :class:`ConfigError` for anything else, also for a secret that is all zeros. It repeats neither ids nor
    secrets, since who mistakes one for the other would find the secret in a log. Rings don't change, may be used by any
    number of clients and threads, and don't show their secrets.
    """

    __slots__ = ("_states", "sign_with")

    def __init__(self, keys: Mapping[str, bytes], *, sign_with: str | None = None) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigError('keys must be a mapping with a key at least: KeyRing({"2026-a": secret})')
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"{len(keys)} keys; at most {MAX_KEYS} are possible")
        for number, (key_id, secret) in enumerate(keys.items(), 1):
            _check_key(number, key_id, secret)
        if sign_with is not None and not isinstance(sign_with, str):
            raise ConfigError(f"sign_with must be the id of a key, not {type(sign_with).__name__}")
        if sign_with is not None and sign_with not in keys:
            raise ConfigError("sign_with is not among the keys")
        self.sign_with = sign_with
        # What HMAC begins with is the same for all messages of a key: the state behind it is kept and copied.
        self._states = {key_id: hmac.new(secret, digestmod=hashlib.sha256) for key_id, secret in keys.items()}

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The keys that are trusted, by their ids, sorted."""
        return tuple(sorted(self._states))

    @property
    def signs(self) -> bool:
        """Whether this ring has a key to sign with."""
        return self.sign_with is not None

    def sign(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """The signature of a canonical form with the key `sign_with`, 32 bytes; :class:`ConfigError` without."""
        if self.sign_with is None:
            raise ConfigError("this key ring only verifies: give it sign_with=")
        return self._digest(self.sign_with, parts)

    def verifies(self, key_id: str, signature: bytes, parts: Iterable[bytes | memoryview]) -> bool:
        """Whether `signature` is that of a canonical form with the key `key_id`, and the key is trusted here."""
        if key_id not in self._states:
            return False
        return hmac.compare_digest(self._digest(key_id, parts), signature)

    def _digest(self, key_id: str, parts: Iterable[bytes | memoryview]) -> bytes:
        state = self._states[key_id].copy()
        told: list[bytes | memoryview] = []
        for part in parts:
            told += b"%d:" % len(part), part
        state.update(b"".join(told))  # at once: each update takes longer than the few bytes of most parts
        return state.digest()

    def __repr__(self) -> str:
        return f"<KeyRing of {', '.join(self.key_ids)}, signs with {self.sign_with}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key ring is not pickled: its secrets would be in the pickle")


def check_keys(keys: object) -> None:
    """Raise :class:`ConfigError` unless `keys` is None or a ring that signs: consumers sign what they tell."""
    if keys is None:
        return
    if not isinstance(keys, KeyRing):
        raise ConfigError(f"keys must be a KeyRing, not {type(keys).__name__}")
    if not keys.signs:
        raise ConfigError(
            "keys: this key ring only verifies; producers and consumers sign: give it sign_with="
        )


def check_private(descriptor: int) -> None:
    """Raise :class:`ConfigError` unless the open file of secrets is private: it belongs to this user or root, its group
    can't write it, and all others can neither read nor write it. Its group may read it: so a service gets it."""
    if os.name != "posix":
        return
    found = os.fstat(descriptor)
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError("the file of keys belongs to another user: make one of your own")
    if found.st_mode & 0o027:
        raise ConfigError(
            "the file of keys is open to others than its owner: chmod 600 (640 lets its group read it)"
        )


def _check_key(number: int, key_id: object, secret: object) -> None:
    """Nothing of either is repeated: where the two were swapped, the id is the secret."""
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
    """Whether `text` may name a key."""
    return 0 < len(text) <= MAX_KEY_ID_BYTES and text.isascii() and text.isprintable() and " " not in text
