"""Clients' keys for journals: each client has its own, and any number of them by id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from reliamsg.keys import KeyRing
from reliamsg.trust import Owner, Trust, make_trust

__all__ = ["key_of", "keys_file", "secret_of", "trust_in"]


def secret_of(role: str, client: str, key_id: str) -> bytes:
    """A secret that only this client has."""
    return hashlib.sha256(f"{role}/{client} {key_id}".encode()).digest()


def key_of(role: str, client: str, key_id: str = "a") -> KeyRing:
    """The ring with which a client signs."""
    return KeyRing({key_id: secret_of(role, client, key_id)}, sign_with=key_id)


def keys_file(path: Path, owners: Iterable[Owner] | Mapping[Owner, str]) -> Path:
    """Write a file of clients' keys. A mapping names the ids of each client's keys, separated by blanks."""
    ids = owners if isinstance(owners, Mapping) else dict.fromkeys(owners, "a")
    lines = [
        f"{role}/{quote(client, safe='')} {key_id} {secret_of(role, client, key_id).hex()}\n"
        for (role, client), own in ids.items()
        for key_id in own.split()
    ]
    path.write_text("# clients' keys\n\n" + "".join(lines))
    path.chmod(0o600)
    return path


def trust_in(path: Path, owners: Iterable[Owner] | Mapping[Owner, str], *unsigned_before: str) -> Trust:
    """What an operator trusts who has the keys of these clients, in a file at `path`."""
    found = make_trust(keys_file(path, owners), unsigned_before)
    assert found is not None
    return found
