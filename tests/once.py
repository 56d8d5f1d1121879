"""What several workers of one test run need, and only one of them makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

__all__ = ["made_once"]


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The directory `name` of this test run. `make` fills it, in the first process that calls this."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{place}.lock"):
        if not place.exists():
            unfinished = factory.mktemp(name)
            make(unfinished)
            unfinished.rename(place)
    return place
