"""The permission sets of docs/how-to/permissions.md, as that page has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from tests.docs.blocks import blocks

__all__ = ["GROUP", "PRODUCER", "SECTIONS", "TOPIC", "Declare", "recipe"]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "permissions.md"
TOPIC, GROUP, PRODUCER = "orders", "billing", "till"
Declare = Literal["create", "passive", "none"]
SECTIONS: dict[Declare, str] = {
    "create": "Queues declared by the clients",
    "passive": "Queues declared by an operator",
    "none": "Queues declared by an operator",
}
"""The heading of RabbitMQ's set, by ``Site.declare``."""


def recipe(heading: str) -> str:
    """The one block under a heading of the page."""
    text = PAGE.read_text()
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{PAGE.name} has no section {heading!r}"
    (block,) = blocks(found[1])
    return block.text
