"""Imports point one way: reads them, and checks the rules of docs/explanation."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import run_child

SOURCE = Path(__file__).parent.parent / "src" / "reliamsg"

BASE = {
    "wire",
    "message",
    "config",
    "policy",
    "errors",
    "forks",
    "keys",
    "logs",
    "terminal",
    "files",
    "arguments",
    "version",
    "trust",
}
MIDDLE = {"protocol", "store", "transport"}
UPPER = {"producer", "consumer"}
TOP = {"cli", "aio", "testing", "lab", "simulation"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": {"message"},  # for types only
    "arguments": {"errors"},
    "config": {"errors", "arguments", "keys"},
    "policy": {"errors", "arguments"},
    "keys": {"errors", "arguments"},
    "trust": {"errors", "keys"},
    "message": set(),
    "forks": set(),
    "terminal": set(),
    "files": set(),
    "pages": set(),
    "logs": set(),
    "parquet": set(),
    "version": set(),
    "configfile": BASE,
    "wire": BASE,
    "protocol": {"wire", "message", "policy"},
    "store": BASE,
    "export": BASE | {"store"},
    "transport": BASE,
    # Decodes files for operators, and may not depend on a client.
    "inspection": BASE | {"store"},
    "runtime": BASE | MIDDLE | {"export"},
    "producer": BASE | MIDDLE | {"configfile", "export", "injection", "runtime"},
    "consumer": BASE | MIDDLE | {"configfile", "export", "injection", "runtime"},
    "configschema": {"config", "configfile"} | UPPER,
    "aio": BASE | MIDDLE | UPPER | {"configfile", "runtime"},
    # Observe clients from outside. The clients register themselves with runtime.observation; types only of the rest.
    "metrics": BASE
    | {"store.journal", "runtime.observation", "producer.status", "consumer.status", "export.exporter"},
    "prometheus": {"metrics", "version"},
    "otel": BASE
    | {"metrics", "runtime.observation", "aio", "consumer.api", "producer.api", "producer.receipt"},
    "cloudevents": {"arguments", "config", "errors", "message", "wire"},
    "testing": BASE | MIDDLE | UPPER | {"aio", "injection", "simulation"},
    "lab": {"config", "errors"},
    # Subjects whole clients to faults, and has their files judged.
    "lab/chaos": BASE | {"store", "producer", "consumer", "checker", "lab", "injection"},
    "checker": {
        "keys",
        "trust",
        "wire",
        "message",
        "errors",
        "terminal",
        "files",
        "parquet",
        "store.journal",
        "store.database",
        "store.segment",
        "store.head",
        "export.target",
    },
    "audit": BASE | {"pages", "parquet", "store.segment"},
    "simulation": BASE | MIDDLE | UPPER | {"runtime", "checker"},
    "doctor": BASE | MIDDLE | {"configfile", "export"},
    # Computes with rates and settings only.
    "plan": {"arguments", "configfile", "errors", "files", "pages", "policy"},
    "cli": BASE
    | MIDDLE
    | UPPER
    | {
        "configfile",
        "configschema",
        "doctor",
        "export",
        "inspection",
        "lab",
        "plan",
        "simulation",
        "testing",
        "checker",
    },
    "injection": {"arguments", "transport.base"},
    "pickling": {"errors", "message"},
    "__init__": BASE | UPPER | {"pickling"},
    "__main__": {"cli"},
}
"""By part, the parts of this project that it may import; a part may always import itself."""

PROTOCOL_BANNED = {
    "asyncio", "logging", "multiprocessing", "paho", "pika", "queue", "random", "secrets", "select", "socket",
    "sqlite3", "threading", "time",
}  # fmt: skip

ONE_MODULE_EACH = {
    "pika": "transport/amqp/pika_connection",
    "paho": "transport/mqtt/paho_client",
    "sqlite_utils": "inspection/target",
}
"""The one module of the product that imports each of these libraries. The laboratory is not part of the product: it
observes brokers from outside."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def part_of(path: Path) -> str:
    name = name_of(path)
    return "lab/chaos" if name.startswith("lab/chaos/") else name.split("/")[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a module imports, wherever in it."""
    package = ["reliamsg", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def own_imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """The same, of this project's modules, without ``reliamsg.``."""
    for line, name in imports_of(path):
        if name.split(".")[0] == "reliamsg":
            yield line, name.removeprefix("reliamsg").removeprefix(".")


def allowed(part: str, imported: str) -> bool:
    top = imported.split(".", maxsplit=1)[0]
    return top == part or any(
        imported == permitted or imported.startswith(permitted + ".") for permitted in MAY_IMPORT[part]
    )


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} has no rule: say here what it may import"
    wrong = [
        f"{path}:{line}: {part} imports {imported}"
        for line, imported in own_imports_of(path)
        if not allowed(part, imported)
        and not (imported == "__version__" and part in TOP)  # from reliamsg import __version__
    ]
    assert not wrong


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_package_imports_the_audit_and_only_it_imports_spark(path: Path) -> None:
    if part_of(path) == "audit":
        return
    for line, name in imports_of(path):
        assert not name.startswith("reliamsg.audit"), f"{path}:{line}"
        assert name.split(".")[0] != "pyspark", f"{path}:{line}"


@pytest.mark.parametrize("path", [p for p in modules() if part_of(p) == "protocol"], ids=name_of)
def test_the_protocol_is_pure(path: Path) -> None:
    wrong = [
        f"{path}:{line}: {name}" for line, name in imports_of(path) if name.split(".")[0] in PROTOCOL_BANNED
    ]
    assert not wrong


@pytest.mark.parametrize(("client", "module"), ONE_MODULE_EACH.items())
def test_one_module_imports_each_library(client: str, module: str) -> None:
    importers = {
        name_of(path)
        for path in modules()
        if part_of(path).split("/")[0] != "lab"
        and any(name.split(".")[0] == client for _, name in imports_of(path))
    }
    assert importers == {module}


def test_errors_import_messages_for_types_only() -> None:
    tree = ast.parse((SOURCE / "errors.py").read_text())
    runtime = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reliamsg")
    ]
    assert not runtime


def test_there_is_something_to_check() -> None:
    assert len(modules()) > 10
    assert any(part_of(path) == "protocol" for path in modules())


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    found = run_child([sys.executable, "-c", code], text=True, check=True)
    return set(found.stdout.split())


def test_importing_the_package_loads_no_client_and_no_tool() -> None:
    loaded = loaded_by("import reliamsg; [getattr(reliamsg, name) for name in reliamsg.__all__]")
    heavy = {
        "amqtt", "asyncio", "click", "jinja2", "opentelemetry", "paho", "pika", "prometheus_client", "pyarrow",
        "pyspark", "rich", "sqlite_utils", "zstandard",
    }  # fmt: skip
    assert not loaded & heavy
    assert not {
        name for name in loaded if name.startswith(("reliamsg.audit", "reliamsg.cli", "reliamsg.lab"))
    }


def test_producer_and_consumer_are_loaded_on_demand() -> None:
    def halves(statement: str) -> set[str]:
        return {part for part in ("producer", "consumer") if f"reliamsg.{part}" in loaded_by(statement)}

    assert not halves("import reliamsg; dir(reliamsg)")
    assert halves("from reliamsg import Producer") == {"producer"}
    assert halves("import reliamsg; reliamsg.Consumer") == {"consumer"}


def test_the_command_line_loads_what_a_command_needs_on_demand() -> None:
    """Each start of a command would take half a second more."""
    loaded = loaded_by("import reliamsg.cli")
    parts = {name.split(".")[1] for name in loaded if name.startswith("reliamsg.")}
    assert "cli" in parts
    assert not parts & {"audit", "checker", "consumer", "lab", "producer", "protocol", "simulation", "store"}


def test_importing_starts_no_thread_and_configures_no_logging() -> None:
    code = (
        "import logging, signal, threading\n"
        "before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
        "import reliamsg, reliamsg.transport.factory\n"
        "assert threading.active_count() == 1\n"
        "assert not logging.getLogger().handlers\n"
        "assert logging.getLogger('reliamsg').level == logging.NOTSET\n"
        "assert all(type(h) is logging.NullHandler for h in logging.getLogger('reliamsg').handlers)\n"
        "assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
    )
    run_child([sys.executable, "-c", code], check=True)


def test_no_test_is_hidden_in_a_function() -> None:
    """pytest does not find it there, and it never runs."""
    hidden = []
    for file in sorted(Path(__file__).parent.rglob("test_*.py")):
        for outer in ast.walk(ast.parse(file.read_text())):
            if isinstance(outer, ast.FunctionDef):
                hidden += [
                    f"{file.name}: {inner.name} in {outer.name}"
                    for inner in ast.walk(outer)
                    if inner is not outer
                    and isinstance(inner, ast.FunctionDef | ast.ClassDef)
                    and inner.name.startswith(("test_", "Test"))
                ]
    assert hidden == []
