"""Real segments of a run in which all went well, and what can happen to them on their way."""

from __future__ import annotations

import shutil
from pathlib import Path

from reliamsg.export.offline import export_file
from reliamsg.store.segment import digest_of, parse_name
from tests.verify.histories import make
from tests.verify.test_files import save_all

__all__ = ["exported", "of", "rewritten"]


def exported(directory: Path, *, rows: int = 12) -> Path:
    """Below `directory`, the journals of a run of two boots as segments of at most so many rows."""
    files, journals = directory / "files", directory / "journals"
    save_all(files, make(7, boots=2))
    for path in sorted(files.rglob("*.db")):
        shutil.copy(path, directory / "export.db")
        export_file(directory / "export.db", journals, segment_rows=rows)
        for left in directory.glob("export.db*"):
            left.unlink()
    return journals


def of(journals: Path, role: str) -> list[Path]:
    """The segments of the first client of a role, in order."""
    client = min((journals / f"role={role}").iterdir())

    def first_lsn(path: Path) -> int:
        name = parse_name(path.name)
        assert name is not None
        return name.first_lsn

    return sorted(client.rglob("*.ndjson"), key=first_lsn)


def rewritten(path: Path, data: bytes) -> Path:
    """The segment with other bytes, and a name that promises them."""
    name = parse_name(path.name)
    assert name is not None
    target = path.with_name(path.name.replace(name.digest, digest_of(data)))
    path.unlink()
    target.write_bytes(data)
    return target
