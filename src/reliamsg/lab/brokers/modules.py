"""Where a RabbitMQ node finds its code, so that it starts with little more than half the work.

RabbitMQ adds the directory of every plugin that is installed, about 70, to Erlang's code path, enabled or not. It loads
about a thousand modules as it starts, and Erlang looks for each in one directory after the other: it tries to open tens
of thousands of files that do not exist. Here, a node gets a directory of plugins of its own, with links to the
applications that it needs, and to their modules in one more directory, which is searched first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["link_modules"]

_LAST = "zz_modules"
"""An application without code of its own, whose directory has links to all modules. RabbitMQ puts each directory in
front of those before it, in the order of their names."""

_NEEDS = re.compile(r"\{\s*applications\s*,\s*\[([^]]*)\]")


def link_modules(server: str, erlang: str, plugins: Sequence[str], directory: Path) -> dict[str, str]:
    """Create links, in `directory`, to what a node with `plugins` needs, and return the environment variables that make
    it use them.

    `server`: the path of the script that starts the node. `erlang`: the path of ``erl``. An installation that has its
    files in other places, or lacks a plugin, is left to find everything itself: the result is empty.
    """
    installed = _applications(Path(os.path.realpath(server)).parent.parent / "plugins")
    needed = {"rabbit", "rabbitmq_prelaunch", *plugins}
    if not needed <= installed.keys():
        return {}
    everything = _applications(Path(os.path.realpath(erlang)).parent.parent / "lib") | installed
    found = _closure(needed, everything)
    modules = directory / f"{_LAST}-1" / "ebin"
    modules.mkdir(parents=True, exist_ok=True)
    (modules / f"{_LAST}.app").write_text(
        f'{{application, {_LAST}, [{{vsn, "1"}}, {{modules, []}}, {{registered, []}}, {{applications, []}}]}}.\n'
    )
    for name in found & installed.keys():
        _link(directory / installed[name].name, installed[name])
    for name in found:
        for module in (everything[name] / "ebin").glob("*.beam"):
            _link(modules / module.name, module)
    return {"RABBITMQ_PLUGINS_DIR": str(directory)}


def _applications(place: Path) -> dict[str, Path]:
    """The Erlang applications in a directory, by name."""
    return {file.stem: file.parent.parent for file in sorted(place.glob("*/ebin/*.app"))}


def _closure(names: set[str], applications: dict[str, Path]) -> set[str]:
    """Those of the applications that `names` need, directly or not, and themselves."""
    found: set[str] = set()
    left = {"kernel", "stdlib", "sasl", *names}
    while left:
        name = left.pop()
        if name in applications and name not in found:
            found.add(name)
            needs = _NEEDS.search((applications[name] / "ebin" / f"{name}.app").read_text())
            left |= set(re.findall(r"\w+", needs[1])) if needs else set()
    return found


def _link(link: Path, target: Path) -> None:
    """The first of a name stays; so does what an earlier node in this directory has linked."""
    if not link.is_symlink():
        link.symlink_to(target)
