"""Lists local directories of journals, so that nothing in them is left out silently."""

from __future__ import annotations

import os
from collections.abc import Iterator

from reliamsg.errors import JournalTargetError

__all__ = ["listed"]


def listed(root: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    """A directory and those below it, each with the names of its entries that are no directories. Without hidden
    directories. Raises :class:`JournalTargetError` if one can't be read: the evidence in it would be missing silently.
    """

    def fails(error: OSError) -> None:
        raise JournalTargetError(
            f"{os.fspath(root)}: can't be read: {error.strerror or error} ({error.filename})"
        ) from error

    for directory, names, entries in os.walk(root, onerror=fails):
        names[:] = [name for name in names if not name.startswith((".", "_"))]
        yield directory, entries
