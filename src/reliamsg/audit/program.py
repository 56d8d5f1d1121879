"""What the programs of ``reliamsg audit`` have in common: exit codes, and errors in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from reliamsg.errors import ConfigError, JournalTargetError
from reliamsg.keys import KeyRing, read_key_ring
from reliamsg.terminal import say

__all__ = [
    "INTERRUPTED", "IO", "NO_INPUT", "SOFTWARE", "UNAVAILABLE", "USAGE", "fail", "journal_keys_options", "key_ring",
    "run_command", "state_keys_option",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

USAGE, NO_INPUT, UNAVAILABLE, SOFTWARE, IO, INTERRUPTED = 64, 66, 69, 70, 74, 130


def journal_keys_options(effect: str) -> Callable[[F], F]:
    """``--journal-keys`` and ``--unsigned-before``; the command gets them as they are, for
    :func:`~reliamsg.trust.make_trust`. `effect`: what becomes of segments that are not signed."""

    def add(command: F) -> F:
        before = click.option(
            "--unsigned-before",
            multiple=True,
            metavar="ROLE/NAME@SEGMENT",
            help="With --journal-keys, accept unsigned segments of a client (producer/NAME or group/NAME) up to this"
            " one. Can be repeated.",
        )(command)
        return click.option(
            "--journal-keys",
            metavar="FILE",
            help="The keys of all clients, one per line: producer/NAME ID SECRET or group/NAME ID SECRET. "
            + effect,
        )(before)

    return add


def state_keys_option(command: F) -> F:
    """``--state-keys``; the command gets it as it is, for :func:`key_ring`."""
    return click.option(
        "--state-keys",
        metavar="FILE",
        help="A file of the auditor's keys, one per line: ID SECRET. The first one signs what is written to the state."
        " What none of them signed is refused.  [default: the state is not signed]",
    )(command)


def key_ring(file: str | None) -> KeyRing | None:
    """The keys in a file that an option names. Raises :class:`~reliamsg.errors.ConfigError`."""
    return None if file is None else read_key_ring(file)


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
