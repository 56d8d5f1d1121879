"""The structure of the laboratory: its imports point one way, without circles."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.test_imports import SOURCE, own_imports_of

LAB = SOURCE / "lab"
LAYERS = ("process.py", "paho.py", "faults", "brokers", "embedded", "chaos")
"""From the bottom up: each may import those before it."""


def layer_of(path: Path) -> str:
    return path.relative_to(LAB).parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    return {module_of(path): path for path in sorted(LAB.rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """The modules of the laboratory that a module imports, wherever in it, `TYPE_CHECKING` included."""
    known = modules()
    for _, name in own_imports_of(path):
        parent = name.rpartition(".")[0]
        found = name if name in known else parent
        if found in known and found != module_of(path):
            yield found


def test_there_is_no_import_circle() -> None:
    graph = {module: set(imported(path)) for module, path in modules().items()}
    assert len(graph) > 50
    # Raises CycleError with the modules of a circle.
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_only_those_below(layer: str) -> None:
    below = set(LAYERS[: LAYERS.index(layer)]) | {layer}
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if layer_of(path) == layer
        for name in imported(path)
        if layer_of(modules()[name]) not in below
    ]
    assert not wrong
