"""Which sources of the project a process uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Opened"]

SOURCES = {"src", "tests", "benchmarks", "examples"}
"""The directories that have some."""


class Opened:
    """Notes the files of the project that this process opens from now on, and the modules that it has imported."""

    def __init__(self, root: Path, copies: Mapping[Path, Path] | None = None) -> None:
        """`copies`: directories of modules that stand for others, which are below the root."""
        self._root = root
        self._copies = {str(copy): str(place) for copy, place in (copies or {}).items()}
        self._opened: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            self._opened.add(arguments[0])

    def paths(self) -> frozenset[str]:
        """The paths below the root of sources that this process read or imported."""
        modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        found = set()
        for path in self._opened.union(file for file in modules if isinstance(file, str)):
            below = self._below(path)
            if below.partition("/")[0] in SOURCES and "__pycache__" not in below and os.path.isfile(path):
                found.add(below)
        return frozenset(found)

    def _below(self, path: str) -> str:
        """A path below the root; empty if it is elsewhere."""
        for copy, place in self._copies.items():
            if path.startswith(f"{copy}/"):
                return place + path.removeprefix(copy)
        root = f"{self._root}/"
        return path.removeprefix(root) if path.startswith(root) else ""
