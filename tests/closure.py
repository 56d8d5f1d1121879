"""Which files of the project decide what a program does, and a hash of them.

:meth:`Sources.closure` starts at modules and follows every import, wherever it stands: at the top, inside functions,
through packages. Not followed are imports below ``if TYPE_CHECKING:``, which never run. A string that is exactly the
name of a module of the project counts as an import of it, since that is how modules are named to
``importlib.import_module``, ``importlib.resources`` and ``python -m``. The exception is a package that loads some of
its names on first use (PEP 562): a module that it names for this is followed where any reached module uses such a name,
as an attribute of whatever object or in a ``from`` import. Importing a module runs the ``__init__`` of all packages
above it; a module ``test_…`` also needs the ``conftest`` of all directories above it. Of each package that is reached,
the files that are no modules count as well (SQL scripts, templates).

:meth:`Sources.digest` hashes syntax trees without docstrings, comments and line numbers, because a program cannot see
these; unless one of its modules looks at itself or others in one of the ways in :data:`LOOKS`, or the caller needs the
text: then the text of files counts.

A program may still open a file whose name is put together at run time. :mod:`tests.opened` notes every file of the
project that a process opens, so that a run can prove that the closure has all of them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["LOOKS", "Sources"]

PLACES: dict[str, tuple[str, ...]] = {"reliamsg": ("src",), "tests": (), "benchmarks": (), "examples": ()}
"""Top-level packages of the project, and the directories that each is in."""
LOOKS = re.compile(
    r"__doc__|\bget(?:source|doc|comments|frameinfo|block)|\bfindsource\b|\binspect\.(?:stack|trace)\b"
    r"|\blinecache\b|_lineno\b|\bco_(?:firstlineno|positions|lines)\b"
    r"|^\s*(?:import|from) (?:ast|click|doctest|pydoc|tokenize)\b",
    re.M,
)
"""How a module may depend on docstrings, comments or line numbers."""
DOTTED = re.compile(r"[a-z_]+(\.[A-Za-z_][A-Za-z_0-9]*)+\Z")


class Sources:
    """The modules of a project, as they are when this object first looks at them: after a change, make another one."""

    def __init__(self, root: Path) -> None:
        """`root`: its directory, with ``src/reliamsg`` and ``tests``."""
        self._root = root
        self._files = frozenset(_walk(root))
        self._data: dict[str, set[str]] = defaultdict(set)
        """By directory of a package, its files that are no modules."""
        for path in self._files:
            if not path.endswith(".py"):
                packages = (str(each) for each in Path(path).parents if f"{each}/__init__.py" in self._files)
                self._data[next(packages, "")].add(path)
        self._places: dict[str, str] = {}
        self._known: dict[str, _File] = {}
        self._closures: dict[frozenset[str], frozenset[str]] = {}

    def closure(self, entries: Iterable[str]) -> frozenset[str]:
        """The paths below the root of everything that decides what these modules do. `entries`: paths as well."""
        key = frozenset(entries)
        if key not in self._closures:
            self._closures[key] = self._follow(key)
        return self._closures[key]

    def digest(
        self, entries: Iterable[str], texts: Collection[str] = (), *, text: bool = False, more: str = ""
    ) -> str:
        """A hash of the closure of some modules, and of `more`. `texts`: files and directories whose text counts.
        `text`: the text of all files counts."""
        entries = list(entries)
        if lacking := [path for path in entries if path not in self._files]:
            raise FileNotFoundError(f"no such module: {', '.join(lacking)}")
        files = {path: self._file(path) for path in sorted(self.closure(entries))}
        text = text or any(file.looks for file in files.values())
        total = hashlib.sha256(f"{sys.version_info[:2]}\0{more}\0".encode())
        for path, file in files.items():
            plain = text or any(path == each or path.startswith(f"{each}/") for each in texts)
            total.update(f"{path}\0{file.text if plain else file.tree}\0".encode())
        return total.hexdigest()[:16]

    def _follow(self, entries: Iterable[str]) -> frozenset[str]:
        found: set[str] = set()
        names: set[str] = set()
        lazy: dict[str, str] = {}
        left = list(entries)
        while left:
            path = left.pop()
            if path not in found and path in self._files:
                found.add(path)
                if path.endswith(".py"):
                    uses = self._file(path).uses
                    left += _above(path)
                    left += map(self._place, uses.modules)
                    names |= uses.names
                    lazy |= uses.lazy
            if not left:
                called = lazy.keys() if "*" in names else lazy.keys() & names
                left += [self._place(lazy.pop(name)) for name in list(called)]
        packages = (str(Path(path).parent) for path in found if path.endswith("/__init__.py"))
        return frozenset(found.union(*(self._data[package] for package in packages)))

    def _file(self, path: str) -> _File:
        if path not in self._known:
            stat = (self._root / path).stat()
            self._known[path] = _file(self._root, path, stat.st_mtime_ns, stat.st_size)
        return self._known[path]

    def _place(self, name: str) -> str:
        """The file of a module; of an attribute of a module, that of the module; empty if the project has none."""
        if name not in self._places:
            self._places[name] = self._look_up(name)
        return self._places[name]

    def _look_up(self, name: str) -> str:
        parts = name.split(".")
        if parts[0] not in PLACES:
            return ""
        while parts:
            base = "/".join([*PLACES[parts[0]], *parts])
            for place in (f"{base}/__init__.py", f"{base}.py"):
                if place in self._files:
                    return place
            parts.pop()
        return ""


def _walk(root: Path) -> Iterator[str]:
    """The paths of all files of all packages."""
    for name, above in PLACES.items():
        for directory, below, files in os.walk(root.joinpath(*above, name)):
            below[:] = [each for each in below if each != "__pycache__"]
            start = os.path.relpath(directory, root)
            yield from (f"{start}/{file}" for file in files)


def _above(path: str) -> Iterator[str]:
    """Modules that run before this one."""
    for directory in Path(path).parents:
        yield f"{directory}/__init__.py"
        if Path(path).name.startswith("test_"):
            yield f"{directory}/conftest.py"


# -- what a module uses ---------------------------------------------------------------------------------------


class _File(NamedTuple):
    """What counts of a file."""

    uses: _Uses
    looks: bool
    """Whether it looks at docstrings, comments or line numbers."""
    text: str
    """A hash of its text."""
    tree: str
    """A hash of its syntax tree; of a file that is no module, of its text."""


@functools.lru_cache(4096)
def _file(root: Path, path: str, changed: int, size: int) -> _File:
    raw = (root / path).read_bytes()
    text = hashlib.sha256(raw).hexdigest()
    if not path.endswith(".py"):
        return _File(_Uses(frozenset(), frozenset(), {}), False, text, text)
    tree = ast.parse(raw, path)
    uses = _uses(tree, _module(path))
    looks = LOOKS.search(raw.decode(errors="replace")) is not None
    return _File(uses, looks, text, hashlib.sha256(_dump(tree).encode("utf-8", "surrogatepass")).hexdigest())


def _module(path: str) -> list[str]:
    parts = list(Path(path).with_suffix("").parts)
    return parts[1:] if parts[0] == "src" else parts


class _Uses(NamedTuple):
    """What a module uses of others."""

    modules: frozenset[str]
    """What it names as modules, or as attributes of modules."""
    names: frozenset[str]
    """All attributes, and names that it imports from modules."""
    lazy: dict[str, str]
    """Names of its own that it loads on first use, and the modules that it loads them from."""


def _uses(tree: ast.Module, module: list[str]) -> _Uses:
    package = module[:-1]  # that of a package's own module ends with __init__
    lazy = _lazy(tree)
    modules: set[str] = set()
    names: set[str] = set()
    for node in _running(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            modules.update((start, *(f"{start}.{alias.name}" for alias in node.names)))
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and DOTTED.match(node.value)
            and node.value not in lazy.values()
        ):
            modules.add(node.value)
    return _Uses(frozenset(modules), frozenset(names), lazy)


def _lazy(tree: ast.Module) -> dict[str, str]:
    """The strings that map names to modules, in a module with a ``__getattr__``."""
    if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
        return {}
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    found[str(key.value)] = str(value.value)
    return found


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, but for what stands below ``if TYPE_CHECKING:``."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            left += node.orelse
            continue
        yield node
        left += ast.iter_child_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute)
        and test.attr == "TYPE_CHECKING"
        and isinstance(test.value, ast.Name)
        and test.value.id == "typing"
    )


def _dump(tree: ast.Module) -> str:
    """A syntax tree in words, without line numbers and without strings that are statements: docstrings of modules,
    classes, functions and attributes. Changes the tree."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, [each for each in body if not _is_docstring(each)])
    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
