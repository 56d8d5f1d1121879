"""The command line: ``reliamsg``, or ``python -m reliamsg``."""

from reliamsg.cli.app import main

__all__ = ["main"]
