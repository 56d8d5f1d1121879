"""Keeps what operators accept in the directory of a state, in a file for each incident.

Audits never change what these files say. They only sign them again when the auditor has a newer key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from reliamsg.audit.accepted import Acceptance, Acceptances
from reliamsg.audit.signed import ACCEPTANCE, Signature, encode_signed, read_signed
from reliamsg.errors import ConfigError
from reliamsg.files import replace_file
from reliamsg.keys import KeyRing

__all__ = [
    "LOCK", "PREFIX", "has_acceptances", "has_signed_acceptances", "read_acceptances", "remove_acceptance",
    "renew_acceptances", "write_acceptance",
]  # fmt: skip

PREFIX, LOCK = "accepted-", "accepted.lock"
"""The rest of a file's name is the incident, and ``.json``."""
_REMEDY = "remove it, and accept the incident again"
_LOCK_S = 10.0


def has_acceptances(directory: Path) -> bool:
    """Whether there are any, signed or not."""
    return any(directory.glob(f"{PREFIX}*"))


def has_signed_acceptances(directory: Path) -> bool:
    """Whether any is signed, by whomever. Damaged ones are not, so an operator can replace them."""
    for path in directory.glob(f"{PREFIX}*"):
        with suppress(ConfigError, FileNotFoundError):
            if read_signed(path, None, ACCEPTANCE, _REMEDY).signature is not None:
                return True
    return False


def read_acceptances(directory: Path, keys: KeyRing | None = None) -> Acceptances:
    """What operators have accepted. Raises :class:`ConfigError` for a damaged file, and with `keys` for one that none
    of them signed."""
    return Acceptances({each.incident.id: each for each, _ in _read(directory, keys)})


def write_acceptance(directory: Path, acceptance: Acceptance, keys: KeyRing | None = None) -> None:
    """Keep an acceptance, in the place of an earlier one of the same incident."""
    with _changing(directory):
        _write(directory, acceptance, keys)


def remove_acceptance(directory: Path, incident: str) -> bool:
    """Forget an acceptance; returns whether there was one."""
    with _changing(directory):
        try:
            _path(directory, incident).unlink()
        except FileNotFoundError:
            return False
    return True


def renew_acceptances(directory: Path, keys: KeyRing) -> None:
    """Sign with the key for signing what others of the keys have signed, so that these may be removed. Raises as
    :func:`read_acceptances` does."""
    if all(_is_current(signature, keys) for _, signature in _read(directory, keys)):
        return
    with _changing(directory):  # or one that is withdrawn meanwhile would be back
        for each, signature in _read(directory, keys):
            if not _is_current(signature, keys):
                _write(directory, each, keys)


def _is_current(signature: Signature | None, keys: KeyRing) -> bool:
    return signature is not None and signature.key == keys.sign_with


def _path(directory: Path, incident: str) -> Path:
    return directory / f"{PREFIX}{incident}.json"


def _write(directory: Path, acceptance: Acceptance, keys: KeyRing | None) -> None:
    replace_file(_path(directory, acceptance.incident.id), encode_signed(acceptance, keys, ACCEPTANCE))


def _read(directory: Path, keys: KeyRing | None) -> Iterator[tuple[Acceptance, Signature | None]]:
    for path in sorted(directory.glob(f"{PREFIX}*")):
        try:
            found = read_signed(path, keys, ACCEPTANCE, _REMEDY)
            each = msgspec.json.decode(found.data, type=Acceptance)
        except FileNotFoundError:
            continue  # it was withdrawn
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: damaged ({error}); {_REMEDY}") from None
        if path != _path(directory, each.incident.id):
            raise ConfigError(f"{path}: renamed: it accepts incident {each.incident.id}; {_REMEDY}")
        yield each, found.signature


@contextmanager
def _changing(directory: Path) -> Iterator[None]:
    """Within the block, no other program changes acceptances."""
    # Operators may have accounts of their own; who can open the directory is up to its mode.
    lock = FileLock(directory / LOCK, mode=0o666)
    try:
        lock.acquire(timeout=_LOCK_S)
    except Timeout:
        raise ConfigError(f"{directory}: another program is changing acceptances; try again") from None
    except OSError as error:
        raise OSError(f"{directory}: can't be locked: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()
