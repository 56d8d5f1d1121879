"""The file beside another one, ``FILE.resume``, by which a command continues where it stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from reliamsg.cli.status import Failure, Status
from reliamsg.files import read_regular, replace_file

__all__ = ["ResumeFile"]

_VERSION = 1
_Content = TypeVar("_Content", bound=msgspec.Struct)


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class ResumeFile(Generic[_Content]):
    """A JSON object with the fields of a struct, and a version."""

    def __init__(self, path: str, content: type[_Content]) -> None:
        """`path`: of the file beside which it is."""
        self.path: Path = Path(f"{os.path.realpath(path)}.resume")
        self._content = content

    def load(self) -> _Content | None:
        """Its content; None if it does not exist. Raises :class:`Failure` if it can't be used, and OSError."""
        try:
            data = read_regular(self.path)
        except FileNotFoundError:
            return None
        try:
            version = msgspec.json.decode(data, type=_Versioned).version
            if version != _VERSION:
                raise Failure(Status.DATA, f"{self.path}: written by a later version: upgrade reliamsg")
            return msgspec.json.decode(data, type=self._content)
        except msgspec.DecodeError as error:
            raise Failure(Status.DATA, f"{self.path}: damaged: {error}") from None

    def save(self, content: _Content) -> None:
        """Replace it, durably. Raises OSError."""
        found = {"version": _VERSION, **msgspec.structs.asdict(content)}
        replace_file(self.path, msgspec.json.encode(found) + b"\n")
