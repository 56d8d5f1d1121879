"""The tables of docs/reference/settings.md, from the schema of configuration files.

``python -m tests.docs.settings`` writes them into the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reliamsg.arguments import MOST_BYTES, MOST_SECONDS
from reliamsg.configschema import SETTINGS, schema
from tests.docs.blocks import ROOT

__all__ = ["PAGE", "with_tables"]

PAGE = ROOT / "docs" / "reference" / "settings.md"
TABLES = {
    "sites": "SiteTable",
    "producers": "ProducerTable",
    "consumers": "ConsumerTable",
    "journal": "JournalTable",
}
_HEADER = "| setting | values | default | meaning |\n|---|---|---|---|\n"


def with_tables(page: str) -> str:
    """The page with the tables that the package's schema yields in place of its own."""
    tables = schema()["$defs"]
    for kind, table in TABLES.items():
        rows = "".join(_rows(kind, tables[table]))
        start, end = f"<!-- {kind} -->\n", f"<!-- end of {kind} -->"
        before, rest = page.split(start)
        _, after = rest.split(end)
        page = f"{before}{start}\n{_HEADER}{rows}\n{end}{after}"
    return page


def _rows(kind: str, table: Mapping[str, Any]) -> Iterator[str]:
    for name in SETTINGS[kind]:
        setting = table["properties"][name]
        default = "**required**" if name in table["required"] else _default(setting)
        yield f"| `{name}` | {_values(setting)} | {default} | {_meaning(setting['description'])} |\n"


def _default(setting: Mapping[str, Any]) -> str:
    if "default" not in setting:
        return ""
    value = setting["default"]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1024 and value % 1024 == 0:
        for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if "bytes" in setting["description"] and value % size == 0:
                return f"`{value}` ({value // size} {unit})"
    return f"`{json.dumps(value)}`"


def _values(setting: Mapping[str, Any]) -> str:
    if "anyOf" in setting:
        return " or ".join(_values(each) for each in setting["anyOf"])
    if "enum" in setting:
        return ", ".join(f"`{json.dumps(word)}`" for word in setting["enum"])
    if "$ref" in setting:
        return "a table"
    match setting["type"]:
        case "number" | "integer" as kind:
            return _numbers("a number" if kind == "number" else "an integer", setting)
        case "boolean":
            return "`true`, `false`"
        case "array":
            return "a list of strings"
        case "object":
            return "a table of lists"
        case _:
            return "a string"


def _numbers(kind: str, setting: Mapping[str, Any]) -> str:
    most = setting.get("maximum", MOST_BYTES)
    limit = "" if most in (MOST_BYTES, MOST_SECONDS) else f" to {most:,}"
    if "exclusiveMinimum" in setting:
        return f"{kind} above {setting['exclusiveMinimum']:g}"
    least = f"{setting['minimum']:,}"
    return f"{kind}, {least}{limit}" if limit else f"{kind}, at least {least}"


def _meaning(text: str) -> str:
    """The text, with names of settings and functions as code."""
    names = "|".join(
        sorted({name for table in SETTINGS.values() for name in table if "_" in name}, key=len)[::-1]
    )
    text = re.sub(r"\{ .*? \}", lambda found: f"`{found[0]}`", text)
    return re.sub(
        rf"\b(?:{names}|\w+\(\)|OutboxFull|GapError|DeadLetterHalt)(?!\w)",
        lambda found: f"`{found[0]}`",
        text,
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
