"""Copies of outboxes and inboxes that are not open."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["copy_database", "restore_database"]


def copy_database(database: Path, copy: Path) -> None:
    """Copy a database, with its write-ahead log, to a new directory."""
    copy.mkdir()
    for file in database.parent.glob(f"{database.name}*"):
        shutil.copy2(file, copy / file.name)


def restore_database(copy: Path, database: Path) -> None:
    """Replace the database by a copy."""
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()
    for file in copy.iterdir():
        shutil.copy2(file, database.parent / file.name)
