"""What the sources tell users to install exists."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
SOURCES = {path: path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))}
NAMED = [
    (path.relative_to(ROOT).as_posix(), extra)
    for path, text in SOURCES.items()
    for named in re.findall(r"reliamsg\[([\w,-]+)\]|extra ``([\w-]+)``", text)
    for extra in "".join(named).split(",")
]


def test_every_extra_is_named_in_the_sources() -> None:
    assert {extra for _, extra in NAMED} >= EXTRAS


@pytest.mark.parametrize(("path", "extra"), sorted(set(NAMED)))
def test_a_named_extra_exists(path: str, extra: str) -> None:
    assert extra in EXTRAS


def test_a_suggested_installation_names_the_package() -> None:
    suggested = [text for source in SOURCES.values() for text in re.findall(r"pip install ([^\s`]+)", source)]
    assert len(suggested) >= 8
    assert [text for text in suggested if not re.match(r"'?reliamsg\[", text)] == []


def test_requirements_have_a_lower_bound() -> None:
    requirements = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert [each for some in requirements for each in some if ">=" not in each] == []
