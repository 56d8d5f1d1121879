"""Reads docs/reference/alerts.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.docs.blocks import ROOT

__all__ = ["PAGE", "Due", "due_alerts"]

PAGE = ROOT / "docs" / "reference" / "alerts.md"


@dataclass(frozen=True)
class Due:
    """What the page says of a scenario of the chaos laboratory."""

    alerts: frozenset[str]
    """The alerts whose conditions its fault meets."""
    certain: bool
    """False for ``… or none``."""
    text: str
    """Why."""


def due_alerts() -> dict[str, Due]:
    """By scenario: the rows of the table under "Which faults raise which alerts"."""
    _, _, section = PAGE.read_text().partition("## Which faults raise which alerts\n")
    found = {}
    for name, alerts, text in re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \|$", section, re.MULTILINE):
        assert name not in found, f"{name} has two rows"
        assert re.fullmatch(r"none|`\w+`(, `\w+`)*( or none)?", alerts), f"{name}: {alerts}"
        named = frozenset(re.findall(r"`(\w+)`", alerts))
        found[name] = Due(named, not alerts.endswith(" or none"), text)
    return found
