"""What the programs of ``reliamsg audit`` have in common: exit codes, and errors in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from reliamsg.errors import ConfigError, JournalTargetError
from reliamsg.terminal import say

__all__ = ["INTERRUPTED", "IO", "NO_INPUT", "SOFTWARE", "UNAVAILABLE", "USAGE", "fail", "run_command"]

USAGE, NO_INPUT, UNAVAILABLE, SOFTWARE, IO, INTERRUPTED = 64, 66, 69, 70, 74, 130


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    """Run a command with `arguments` (None: ``sys.argv``) and return its exit code. Wrong arguments, missing and
    unreadable files are reported; other errors are raised."""
    try:
        result = command.main(
            None if arguments is None else list(arguments), prog_name=name, standalone_mode=False
        )
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        return fail(f"{error.format_message()} (try '{name} --help')", USAGE)
    except ConfigError as error:
        return fail(str(error), USAGE)
    except (FileNotFoundError, JournalTargetError) as error:
        return fail(str(error), NO_INPUT)
    except OSError as error:
        return fail(str(error), IO)
    return result if isinstance(result, int) else 0


def fail(text: str, code: int) -> int:
    """Report an error on standard error; returns the exit code."""
    say(f"reliamsg: {' '.join(text.split())}", err=True)
    return code
