"""``reliamsg audit``: hands over to the audit's own program, which alone needs PySpark and Java."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import click

from reliamsg.cli.status import Failure, Status

__all__ = ["audit", "missing"]


@click.command(
    "audit",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def audit(arguments: tuple[str, ...]) -> None:
    """Say what became of every message, from clients' journals (takes PySpark and Java)."""
    if lacking := missing():
        raise Failure(Status.UNAVAILABLE, lacking)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "reliamsg.audit", *arguments])


def missing() -> str:
    """What the audit needs and is not there, and how to get it; empty where all is there."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "jinja2", "plotly")):
        return "the audit needs PySpark, jinja2 and plotly: pip install 'reliamsg[audit]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        return "the audit needs Java 17 or 21: on Debian, apt-get install openjdk-17-jre-headless"
    return ""
