"""Every public name exists, has documentation, and is where the documentation says."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types

import pytest

import reliamsg
from reliamsg import errors


def public_modules() -> list[str]:
    """The modules with public names; the command line and Spark's jobs are not included."""
    names = ["reliamsg"]
    for module in pkgutil.walk_packages(reliamsg.__path__, "reliamsg."):
        parts = module.name.split(".")
        if parts[1] not in {"cli", "audit"} and parts[-1] != "__main__" and not parts[-1].startswith("_"):
            names.append(module.name)
    return names


@pytest.mark.parametrize("name", public_modules())
def test_listed_names_of_a_module_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    listed = getattr(module, "__all__", [])
    assert len(listed) == len(set(listed))
    for public in listed:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"


def test_the_package_offers_everything_that_applications_import() -> None:
    assert {"Consumer", "Gap", "Message", "MessageId", "Producer", "Quorum", "Receipt", "Site"} <= set(
        reliamsg.__all__
    )


def test_every_public_error_and_warning_can_be_imported_from_the_package() -> None:
    public = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and not name.startswith("_")
    }
    assert public == set(errors.__all__)
    assert public <= set(reliamsg.__all__)
    assert all(getattr(reliamsg, name) is getattr(errors, name) for name in public)


@pytest.mark.parametrize("name", [n for n in reliamsg.__all__ if n[0].isupper()])
def test_public_methods_are_documented(name: str) -> None:
    thing = getattr(reliamsg, name)
    if not inspect.isclass(thing):
        return
    missing = [
        f"{name}.{method}"
        for method, value in vars(thing).items()
        if not method.startswith("_") and isinstance(value, types.FunctionType) and not inspect.getdoc(value)
    ]
    assert not missing


def test_the_tree_in_the_docstring_of_errors_is_complete() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__, f"{name} is missing from the tree"


def test_every_error_is_either_transient_or_fatal() -> None:
    roots = {errors.ReliamsgError, errors.TransientError, errors.FatalError}
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.ReliamsgError)
        if kind not in roots:
            assert issubclass(kind, errors.TransientError) != issubclass(kind, errors.FatalError), name


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert version("reliamsg") == reliamsg.__version__
