"""``reliamsg audit``: executes the audit program, which requires PySpark and Java."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from reliamsg.cli.status import Failure, Status

__all__ = ["audit", "execute", "missing"]


@click.command(
    "audit",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def audit(arguments: tuple[str, ...]) -> None:
    """Report the fate of every message from clients' journals.

    Requires PySpark and Java; `audit show`, which prints what an audit found of a stream, and `audit accept`, which
    accepts an incident, do not.
    """
    if arguments[:1] in (("show",), ("accept",)):
        execute(f"reliamsg.audit.{arguments[0]}", arguments[1:])
    if lacking := missing():
        raise Failure(Status.UNAVAILABLE, lacking)
    execute("reliamsg.audit", arguments)


def execute(module: str, arguments: Sequence[str]) -> NoReturn:
    """Become the program in a module, which is not imported here."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def missing() -> str:
    """A missing requirement of the audit and how to install it; empty if all are present."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "jinja2")):
        return "the audit needs PySpark and jinja2: pip install 'reliamsg[audit]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        return "the audit needs Java 17 or 21: on Debian, apt-get install openjdk-17-jre-headless"
    return ""
