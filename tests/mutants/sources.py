"""What a defect's conviction follows from, as a hash: as long as it stays the same, the conviction counts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.closure import Sources
from tests.mutants.mutant import BySimulator, Mutant

__all__ = ["entries_of", "state_of"]

JUDGES = ("mutant.py", "run.py", "search.py", "trial.py")
"""In this directory: what puts a defect into the sources, and convicts it."""
STARTS = re.compile(
    r"\bsubprocess\b|\bmultiprocessing\b|\brunpy\b|\bProcessPool|\blab\.process\b"
    r"|\bos\.(?:exec|spawn|posix_spawn|system|popen|fork)"
)
"""How a test may start programs, which then decide its outcome as well."""
PLUGINS = ("tests/audited.py", "tests/brokers.py", "tests/chance.py", "tests/options.py", "tests/spark.py")
"""Fixtures that all tests can use. Those that start something start brokers, or what the test hands to them."""


def state_of(mutant: Mutant, sources: Sources, root: Path) -> str:
    """A hash of the defect with the file that it is put into, of what convicts it, and of all that this runs."""
    here = root / "tests" / "mutants"
    judges = [hashlib.sha256((here / name).read_bytes()).hexdigest() for name in JUDGES]
    file = root / "src" / "reliamsg" / mutant.file
    patched = file.read_text() if file.is_file() else ""
    more = repr((judges, mutant.file, patched, mutant.old, mutant.new, mutant.expected))
    return sources.digest(entries_of(mutant, sources, root), texts=("tests",), more=more)


def entries_of(mutant: Mutant, sources: Sources, root: Path) -> list[str]:
    """The modules whose closure has everything that convicts a defect. Where a test may start programs, these are all
    of the product, and all modules in the test's directory."""
    if isinstance(mutant.expected, BySimulator):
        return ["tests/mutants/search.py"]
    test = f"tests/{mutant.expected.test.partition('::')[0]}"
    entries = [test, "tests/mutants/trial.py"]
    reached = sources.closure(entries)
    own = [
        path for path in reached if path.startswith("tests/") and path not in PLUGINS and path.endswith(".py")
    ]
    if any(STARTS.search((root / path).read_text()) for path in own):
        entries += _modules(root, Path("src/reliamsg"))
        entries += _modules(root, Path(test).parent)
    return entries


def _modules(root: Path, directory: Path) -> Iterator[str]:
    found = (root / directory).glob("*.py" if directory == Path("tests") else "**/*.py")
    return (str(path.relative_to(root)) for path in sorted(found))
