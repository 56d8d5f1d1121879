"""The permission sets of docs/how-to/permissions.md, exactly as printed there, and recipes of other pages."""

from __future__ import annotations

import re
from typing import Literal

from tests.docs.blocks import ROOT, blocks

__all__ = ["GROUP", "PRODUCER", "SECTIONS", "TOPIC", "Declare", "recipe", "recipes"]

TOPIC, GROUP, PRODUCER = "orders", "billing", "till"
Declare = Literal["create", "passive", "none"]
SECTIONS: dict[Declare, str] = {
    "create": "Queues declared by the clients",
    "passive": "Queues declared by an operator",
    "none": "Queues declared by an operator",
}
"""The heading of RabbitMQ's set, by ``Site.declare``."""


def recipes(heading: str, page: str) -> list[str]:
    """The blocks under a heading of a page in ``docs/how-to``."""
    text = (ROOT / "docs" / "how-to" / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading!r}"
    return [block.text for block in blocks(found[1])]


def recipe(heading: str, page: str = "permissions.md") -> str:
    """The one block under a heading."""
    (only,) = recipes(heading, page)
    return only
