"""``pyright --verifytypes``: the public API has declared types, so that every type checker sees the same."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.children import run_child
from tests.typing.test_typing import ROOT

PACKAGES = [
    "reliamsg", "reliamsg.aio", "reliamsg.prometheus", "reliamsg.otel", "reliamsg.cloudevents", "reliamsg.testing",
    "reliamsg.checker", "reliamsg.lab", "reliamsg.plan",
]  # fmt: skip
"""The packages whose ``__all__`` is the public API."""
WHOLE = 0.99
"""The least score of all modules, most of which are internal."""


@pytest.fixture(scope="module")
def verified() -> dict[str, Any]:
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "VIRTUAL_ENV": str(programs.parent),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--verifytypes",
        "reliamsg",
        "--ignoreexternal",
        "--outputjson",
    ]
    done = run_child(command, cwd=ROOT, text=True, timeout=500, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    return found


def public_names() -> set[str]:
    """Where the public functions and classes, and the bases of these, are defined."""
    found = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            parts = inspect.getmro(thing) if inspect.isclass(thing) else [thing] if callable(thing) else []
            found |= {
                f"{each.__module__}.{each.__qualname__}" for each in parts if hasattr(each, "__qualname__")
            }
    return {name for name in found if name.startswith("reliamsg.")}


def undeclared(symbol: dict[str, Any]) -> bool:
    """Whether its own type is inferred or unknown. That it refers to a class with such an attribute does not count."""
    messages = [each["message"] for each in symbol["diagnostics"]]
    about_types = [text for text in messages if not text.startswith("No docstring")]
    return not symbol["isTypeKnown"] and any("partially unknown" not in text for text in about_types)


def test_the_types_of_the_public_api_are_declared(verified: dict[str, Any]) -> None:
    names = public_names()
    public = [
        each
        for each in verified["symbols"]
        if each["isExported"] and (each["name"] in names or each["name"].rpartition(".")[0] in names)
    ]
    assert len(public) > 600
    assert {each["name"] for each in public if undeclared(each)} == set()


def test_the_types_of_internal_modules_are_declared(verified: dict[str, Any]) -> None:
    assert verified["completenessScore"] >= WHOLE
