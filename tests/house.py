"""Reads the sources of reliamsg as syntax trees, and finds violations of the structural rules.

``python -m tests.house`` prints how often each package violates each rule, and ``python -m tests.house RULE`` prints
the places. Each rule is a function here; its docstring defines what counts.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

__all__ = ["MOST_CALLBACKS", "MOST_PARAMETERS", "RULES", "SOURCE", "House", "Violation", "read_house"]

SOURCE = Path(__file__).parent.parent / "src" / "reliamsg"
MOST_PARAMETERS = 7
MOST_CALLBACKS = 2
PUBLIC = ("", "aio", "checker", "cloudevents", "lab", "otel", "plan", "prometheus", "testing")
"""The packages whose ``__all__`` applications import from."""

ClassName = tuple[str, str]
"""The module and name of a class."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Violation:
    """A violation of a rule."""

    package: str
    path: str
    """Relative to ``src/reliamsg``."""
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Module:
    """One file."""

    name: str
    """Dotted, relative to the package: ``producer.engine``; that of ``__init__.py`` is its package's."""
    path: str
    """Relative to the package's directory."""
    file: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.file.read_text(), self.path)

    @property
    def package(self) -> str:
        """The first directory, with the laboratory's scenarios as a separate package; ``.`` for files in none."""
        if self.path.startswith("lab/chaos/"):
            return "lab/chaos"
        return self.path.rpartition("/")[0].split("/")[0] or "."

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imported(self) -> list[tuple[str, str]]:
        """The local name and the dotted target of every import of this project, anywhere in the file: at its beginning,
        for type checkers only, or in a function."""
        here = self.name.split(".") if self.path.endswith("__init__.py") else self.name.split(".")[:-1]
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "reliamsg":
                        target = alias.name.removeprefix("reliamsg").removeprefix(".")
                        found.append((alias.asname or alias.name, target))
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    base = ".".join(["reliamsg", *here[: len(here) - node.level + 1], *filter(None, [base])])
                if base.split(".")[0] == "reliamsg":
                    inside = base.removeprefix("reliamsg").removeprefix(".")
                    found += [
                        (alias.asname or alias.name, f"{inside}.{alias.name}".removeprefix("."))
                        for alias in node.names
                    ]
        return found

    @cached_property
    def imported_modules(self) -> set[str]:
        """The names of ``import x`` and ``import x as y``."""
        return {
            alias.asname or alias.name
            for node in self.nodes
            if isinstance(node, ast.Import)
            for alias in node.names
        }

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def aliases(self) -> dict[str, ast.expr]:
        """The targets of names at module level."""
        return {
            target.id: node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    @cached_property
    def attributes(self) -> set[str]:
        """The attributes that the classes of this file have: declared in the class, or assigned through ``self``."""
        return {name for one in self.classes.values() for name in _attributes(one)}

    @cached_property
    def private_names(self) -> set[str]:
        """The names with one underscore that this file defines."""
        found = set(self.attributes)
        for node in self.nodes:
            if isinstance(node, ast.ClassDef | Function):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
        return {name for name in found if _is_private(name)}

    def violation(self, node: ast.AST, text: str) -> Violation:
        return Violation(self.package, self.path, getattr(node, "lineno", 1), text)


@dataclass(frozen=True)
class House:
    """All files."""

    modules: dict[str, Module] = field(default_factory=dict)
    """By name."""

    @property
    def packages(self) -> list[str]:
        return sorted({module.package for module in self.modules.values()})

    def module_of(self, target: str) -> Module | None:
        """The module that an import of `target` loads: itself, or the one that contains the name."""
        return self.modules.get(target) or self.modules.get(target.rpartition(".")[0])

    def resolve(self, module: Module, name: str, depth: int = 8) -> set[ClassName]:
        """The classes of this project to which a name refers in a module; an alias may refer to several."""
        if name in module.classes:
            return {(module.name, name)}
        if not depth:
            return set()
        if name in module.aliases:
            return {
                found
                for inner in _names(module.aliases[name])
                if inner != name
                for found in self.resolve(module, inner, depth - 1)
            }
        head, _, rest = name.partition(".")
        for local, target in module.imported:
            if local == head:
                full = f"{target}.{rest}" if rest else target
                owner = self.modules.get(full.rpartition(".")[0])
                if owner is not None and full not in self.modules:
                    return self.resolve(owner, full.rpartition(".")[2], depth - 1)
        return set()

    @cached_property
    def all_classes(self) -> dict[ClassName, ast.ClassDef]:
        return {
            (module.name, name): node
            for module in self.modules.values()
            for name, node in module.classes.items()
        }

    @cached_property
    def constructed_by(self) -> dict[ClassName, set[ClassName]]:
        """By class, the classes that construct it, directly or through others."""
        direct: dict[ClassName, set[ClassName]] = {}
        for (name, own), node in self.all_classes.items():
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and (called := _dotted(call.func)):
                    for found in self.resolve(self.modules[name], called):
                        if found != (name, own):
                            direct.setdefault(found, set()).add((name, own))
        every: dict[ClassName, set[ClassName]] = {}
        for one, parents in direct.items():
            known: set[ClassName] = set()
            todo = list(parents)
            while todo:
                parent = todo.pop()
                if parent not in known:
                    known.add(parent)
                    todo += direct.get(parent, ())
            every[one] = known - {one}
        return every

    @cached_property
    def held_by(self) -> dict[ClassName, set[ClassName]]:
        """By class, the classes that declare an attribute of its type."""
        found: dict[ClassName, set[ClassName]] = {}
        for (name, own), node in self.all_classes.items():
            for annotation in _attribute_types(node):
                for each in _names(annotation):
                    for held in self.resolve(self.modules[name], each) - {(name, own)}:
                        found.setdefault(held, set()).add((name, own))
        return found

    def constructor(self, one: ClassName, depth: int = 8) -> list[tuple[str, ast.expr | None]]:
        """The parameters of a class's constructor: name and annotation; those of a base class if it has no
        constructor."""
        node, module = self.all_classes[one], self.modules[one[0]]
        for inner in node.body:
            if isinstance(inner, Function) and inner.name == "__init__":
                return [(each.arg, each.annotation) for each in _parameters(inner)]
        bases = [name for base in node.bases if (name := _dotted(base))]
        inherited = [
            parameter
            for base in bases
            for found in self.resolve(module, base)
            if depth and found != one
            for parameter in self.constructor(found, depth - 1)
        ]
        return inherited + (_fields(node) if _has_fields(node) else [])

    @cached_property
    def public_classes(self) -> set[ClassName]:
        """The names in the ``__all__`` of the public packages."""
        found = set()
        for name in PUBLIC:
            module = self.modules.get(name)
            listed = module.aliases.get("__all__") if module is not None else None
            if module is not None and isinstance(listed, ast.List):
                for each in listed.elts:
                    if isinstance(each, ast.Constant):
                        found |= self.resolve(module, str(each.value))
        return found


def read_house(source: Path = SOURCE) -> House:
    """All files below a directory; each is read when it is needed."""
    house = House()
    for file in sorted(source.rglob("*.py")):
        path = file.relative_to(source).as_posix()
        name = path.removesuffix(".py").replace("/", ".").removesuffix("__init__").removesuffix(".")
        house.modules[name] = Module(name, path, file)
    return house


# -- the rules ---------------------------------------------------------------------------------------------


def import_circles(house: House) -> Iterator[Violation]:
    """No module imports itself through others. Every import counts, including imports for type checkers only and
    imports in functions; that importing a module loads its packages does not. One violation for each file in a circle.
    """
    graph: dict[str, set[str]] = {name: set() for name in house.modules}
    for module in house.modules.values():
        for _, target in module.imported:
            found = house.module_of(target)
            if found is not None and found is not module:
                graph[module.name].add(found.name)
    for circle in _circles(graph):
        for name in circle:
            module = house.modules[name]
            others = ", ".join(sorted(graph[name] & set(circle)))
            yield module.violation(module.tree, f"in a circle of {len(circle)} files: imports {others}")


def received_parents(house: House) -> Iterator[Violation]:
    """No constructor has a parameter whose annotation names a class that constructs this one, directly or through
    others, or that declares an attribute of this type: such an object has received its parent.

    A class constructs the classes that its body calls by name. Fields of a dataclass, named tuple or struct are
    parameters of its constructor. Names within ``Callable[...]`` do not count.
    """
    for one, node in house.all_classes.items():
        module = house.modules[one[0]]
        makers, holders = house.constructed_by.get(one, set()), house.held_by.get(one, set())
        for parameter, annotation in house.constructor(one):
            received = {found for name in _names(annotation) for found in house.resolve(module, name)}
            for parent in sorted(received & (makers | holders)):
                does = "constructs" if parent in makers else "holds"
                yield module.violation(
                    node, f"{one[1]} receives {parent[1]}, which {does} it, as {parameter}"
                )


def many_callbacks(house: House) -> Iterator[Violation]:
    """No constructor has more than two parameters whose annotation is a callable: many bound methods are a parent in
    disguise. Public constructors are exempt."""
    for one, node in house.all_classes.items():
        module = house.modules[one[0]]
        callbacks = [
            name for name, annotation in house.constructor(one) if _is_callable(house, module, annotation)
        ]
        if len(callbacks) > MOST_CALLBACKS and one not in house.public_classes:
            yield module.violation(node, f"{one[1]} takes {len(callbacks)} callbacks: {', '.join(callbacks)}")


def foreign_assignments(house: House) -> Iterator[Violation]:
    """No file assigns to (or deletes) ``x.name``, where x is not ``self``, ``cls`` or an imported module, if only
    classes of other files of this project have an attribute of that name. A class has the attributes that its body
    declares and that its methods assign to ``self``."""
    everywhere = {name for module in house.modules.values() for name in module.attributes}
    for module in house.modules.values():
        for node in module.nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store | ast.Del)
                and not _is_own(node.value)
                and ast.unparse(node.value) not in module.imported_modules
                and node.attr in everywhere - module.attributes
            ):
                yield module.violation(node, f"assigns {ast.unparse(node)}")


def foreign_private_names(house: House) -> Iterator[Violation]:
    """No file uses ``x._name``, where x is not ``self`` or ``cls``, or imports ``_name``, if only other files of this
    project define that name."""
    everywhere = {name for module in house.modules.values() for name in module.private_names}
    for module in house.modules.values():
        foreign = everywhere - module.private_names
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in foreign and not _is_own(node.value):
                yield module.violation(node, f"uses {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reliamsg"):
                for alias in node.names:
                    if alias.name in foreign:
                        yield module.violation(node, f"imports {alias.name}")


def many_parameters(house: House) -> Iterator[Violation]:
    """No function, method or lambda has more than seven parameters of any kind, ``self`` and ``cls`` apart. Click
    commands (functions with a decorator for a command or an option) and public constructors are exempt."""
    public = {
        id(inner)
        for one in house.public_classes
        for inner in house.all_classes[one].body
        if isinstance(inner, Function) and inner.name == "__init__"
    }
    for module in house.modules.values():
        methods = {id(inner) for one in module.classes.values() for inner in one.body}
        for node in module.nodes:
            if not isinstance(node, Function | ast.Lambda) or id(node) in public or _is_command(node):
                continue
            count = len(_parameters(node, skip_first=id(node) in methods))
            if count > MOST_PARAMETERS:
                name = node.name if isinstance(node, Function) else "a lambda"
                yield module.violation(node, f"{name} has {count} parameters")


RULES: dict[str, Callable[[House], Iterable[Violation]]] = {
    "circles": import_circles,
    "parents": received_parents,
    "callbacks": many_callbacks,
    "assignments": foreign_assignments,
    "private-names": foreign_private_names,
    "parameters": many_parameters,
}


# -- reading syntax trees ----------------------------------------------------------------------------------


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _dotted(node: ast.expr) -> str:
    """``a.b.c``, or an empty string for any other expression; of ``A[B]`` that of ``A``."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def _names(annotation: ast.expr | None) -> Iterator[str]:
    """All (dotted) names in an annotation, those in text included; of a callable's only ``Callable``."""
    if annotation is None:
        return
    todo: list[ast.AST] = [annotation]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                todo.append(ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                continue
        elif isinstance(node, ast.Subscript) and _dotted(node).rpartition(".")[2] == "Callable":
            yield "Callable"
        elif isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node)):
            yield name
        else:
            todo += ast.iter_child_nodes(node)


def _is_callable(house: House, module: Module, annotation: ast.expr | None) -> bool:
    """Whether a callable is expected, possibly as one of several types or through an alias."""
    for name in _names(annotation):
        if name.rpartition(".")[2] == "Callable":
            return True
        for owner, inner in _alias(house, module, name):
            if _is_callable(house, owner, inner):
                return True
    return False


def _alias(house: House, module: Module, name: str) -> Iterator[tuple[Module, ast.expr]]:
    """The type for which a module's name, or one that it imports, is an alias."""
    if name in module.aliases:
        if name not in _names(module.aliases[name]):
            yield module, module.aliases[name]
        return
    for local, target in module.imported:
        owner = house.modules.get(target.rpartition(".")[0])
        if local == name and owner is not None and target.rpartition(".")[2] in owner.aliases:
            yield owner, owner.aliases[target.rpartition(".")[2]]


def _parameters(node: Function | ast.Lambda, skip_first: bool = True) -> list[ast.arg]:
    arguments = node.args
    first = [*arguments.posonlyargs, *arguments.args]
    static = isinstance(node, Function) and any(_dotted(d) == "staticmethod" for d in node.decorator_list)
    if skip_first and not static:
        first = first[1:]
    return [*first, *arguments.kwonlyargs, *filter(None, [arguments.vararg, arguments.kwarg])]


def _is_command(node: Function | ast.Lambda) -> bool:
    """Whether a function is a Click command."""
    decorators = node.decorator_list if isinstance(node, Function) else []
    names = [_dotted(each.func if isinstance(each, ast.Call) else each) for each in decorators]
    return any(name.rpartition(".")[2] in ("command", "option", "argument") for name in names)


def _has_fields(node: ast.ClassDef) -> bool:
    """Whether annotated names in the class's body are parameters of its constructor."""
    decorators = [_dotted(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
    bases = [_dotted(base) for base in node.bases]
    return any(name.rpartition(".")[2] == "dataclass" for name in decorators) or any(
        name.rpartition(".")[2] in ("NamedTuple", "Struct") for name in bases
    )


def _fields(node: ast.ClassDef) -> list[tuple[str, ast.expr | None]]:
    found: list[tuple[str, ast.expr | None]] = []
    for inner in node.body:
        if not isinstance(inner, ast.AnnAssign) or not isinstance(inner.target, ast.Name):
            continue
        value = inner.value
        given = not (
            isinstance(value, ast.Call)
            and any(each.arg == "init" and ast.unparse(each.value) == "False" for each in value.keywords)
        )
        if given and "ClassVar" not in ast.unparse(inner.annotation):
            found.append((inner.target.id, inner.annotation))
    return found


def _attribute_types(node: ast.ClassDef) -> Iterator[ast.expr]:
    """The annotations of a class's attributes."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.AnnAssign) and (
            inner in node.body or (isinstance(inner.target, ast.Attribute) and _is_own(inner.target.value))
        ):
            yield inner.annotation


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id
        elif isinstance(inner, ast.Assign):
            for target in inner.targets:
                if isinstance(target, ast.Name):
                    yield target.id
                    if target.id == "__slots__":
                        yield from (
                            str(each.value)
                            for each in ast.walk(inner.value)
                            if isinstance(each, ast.Constant)
                        )
        elif isinstance(inner, Function):
            if any(_dotted(each).endswith(".setter") for each in inner.decorator_list):
                yield inner.name
            for each in ast.walk(inner):
                if (
                    isinstance(each, ast.Attribute)
                    and isinstance(each.ctx, ast.Store)
                    and _is_own(each.value)
                ):
                    yield each.attr


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in graph[name]:
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in numbers:
            visit(name)
    return sorted(found)


def main(arguments: list[str]) -> None:
    """Print the table of all rules, or every violation of the given ones."""
    house = read_house()
    for rule in arguments:
        print(*RULES[rule](house), sep="\n")
    if not arguments:
        counts = {rule: Counter(each.package for each in check(house)) for rule, check in RULES.items()}
        print(f"{'':12}", *(f"{rule:>14}" for rule in RULES))
        for package in house.packages:
            print(f"{package:12}", *(f"{counts[rule][package]:14}" for rule in RULES))


if __name__ == "__main__":
    main(sys.argv[1:])
