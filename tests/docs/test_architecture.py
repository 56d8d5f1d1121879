"""Every file that docs/explanation/architecture.md names exists."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
NAMED = sorted(set(re.findall(r"(?<![\w/.-])[\w./-]+(?:\.(?:py|md|toml)\b|/(?![\w.]))", PAGE.read_text())))


def test_the_page_names_files() -> None:
    assert len(NAMED) > 60


@pytest.mark.parametrize("name", NAMED)
def test_a_named_file_exists(name: str) -> None:
    places = (PAGE.parent, ROOT, ROOT / "src" / "reliamsg")
    assert any((place / name).exists() for place in places)
