"""The plan as a page: one self-contained HTML file, which computes in the browser and needs no network.

A content security policy only allows the script and the style sheet of this package, identified by their hashes. Names
of sites come from files; the script shows them as text only.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from reliamsg.files import replace_file
from reliamsg.pages import content_policy
from reliamsg.plan.client import Client
from reliamsg.plan.rates import Rates
from reliamsg.plan.system import system_of
from reliamsg.policy import Quorum

__all__ = ["write_page"]


def write_page(path: str | os.PathLike[str], rates: Rates, client: Client | None = None) -> None:
    """Write the page of a client under these rates; see :func:`make_plan` for the client without a configuration.

    Replaces the file as a whole. Raises :class:`ConfigError` if a site of the client has no rates, and
    :class:`OSError`.
    """
    chosen = client if client is not None else Client(sites=tuple(rates.sites))
    system_of(rates, chosen)  # raises if rates are missing
    style = _template("page.css")
    script = _template("model.js") + _template("page.js")
    replaced = {
        "policy": content_policy(script, style),
        "style": style,
        "script": script,
        "data": _data(rates, chosen),
    }
    page = re.sub(r"\{\{([a-z-]+)\}\}", lambda found: replaced[found[1]], _template("page.html"))
    replace_file(Path(path).absolute(), page.encode())


def _template(name: str) -> str:
    return resources.files("reliamsg.plan").joinpath("templates", name).read_text("utf-8")


def _data(rates: Rates, client: Client) -> str:
    """What the script computes with, as JSON that can't end its element."""
    confirm = client.confirm.k if isinstance(client.confirm, Quorum) else client.confirm
    found: dict[str, Any] = {
        "rates": msgspec.to_builtins(rates),  # without what is not given
        "client": asdict(client) | {"confirm": confirm},
    }
    return json.dumps(found).replace("<", "\\u003c")
