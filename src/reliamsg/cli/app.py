"""The root command, and error handling: one line on standard error and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click

from reliamsg import __version__
from reliamsg.cli.audit import audit
from reliamsg.cli.config import config
from reliamsg.cli.demo.command import demo
from reliamsg.cli.doctor import doctor
from reliamsg.cli.group import group
from reliamsg.cli.inbox import inbox
from reliamsg.cli.journal import journal
from reliamsg.cli.lab.command import lab
from reliamsg.cli.monitoring import monitoring
from reliamsg.cli.outbox import outbox
from reliamsg.cli.plan import plan
from reliamsg.cli.publish import pub
from reliamsg.cli.sections import SectionedGroup
from reliamsg.cli.status import EXIT_CODES_HELP, Failure, Status, one_line, status_of
from reliamsg.cli.subscribe import sub
from reliamsg.cli.top.command import top
from reliamsg.terminal import say, say_text

__all__ = ["main"]


@click.group(
    cls=SectionedGroup,
    context_settings={"auto_envvar_prefix": "RELIAMSG", "help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
)
@click.version_option(__version__, prog_name="reliamsg", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log more to standard error; twice for everything.")
def root(verbose: int) -> None:
    """Reliable messaging over MQTT and AMQP brokers: messages arrive once and in order.

    Environment variables can set every option: RELIAMSG_PUB_OUTBOX sets --outbox of pub. RELIAMSG_SITES sets --site for
    all commands; separate several sites by blanks. RELIAMSG_CONFIG names a configuration file, whose settings apply
    where neither an option nor its variable is given.
    """
    _log_to_stderr(verbose)


root.add_section("Use", (pub, sub))
root.add_section("Operate", (config, doctor, plan, group, outbox, inbox, journal, monitoring, top))
root.add_section("Prove", (audit, demo, lab))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with `arguments` (default: ``sys.argv``) and return its exit code."""
    try:
        result = root.main(
            None if arguments is None else list(arguments), prog_name="reliamsg", standalone_mode=False
        )
        sys.stdout.flush()
    except click.Abort:
        return Status.INTERRUPTED
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except click.ClickException as error:
        _say(_usage(error))
        return Status.USAGE
    except Failure as error:
        _say(str(error))
        return error.status
    except BrokenPipeError:
        _abandon_stdout()
        return Status.INCOMPLETE
    except Exception as error:  # noqa: BLE001  # users get a line instead of a traceback
        status = status_of(error)
        if status is Status.SOFTWARE and os.environ.get("RELIAMSG_TRACEBACK"):
            say_text(traceback.format_exc().rstrip("\n"), err=True)
        _say(_describe(error, status))
        return status
    return result if isinstance(result, int) else Status.OK


def _usage(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" (try '{context.command_path} --help')" if context is not None else ""
    return error.format_message() + hint


def _describe(error: Exception, status: Status) -> str:
    if status is Status.SOFTWARE:
        return f"internal error: {type(error).__name__}: {error} (set RELIAMSG_TRACEBACK=1 for a traceback)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _say(text: str) -> None:
    say(f"reliamsg: {one_line(text)}", err=True)


def _abandon_stdout() -> None:
    """Redirect standard output, whose reader is gone, so that the interpreter does not report an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def _is_relevant(record: logging.LogRecord) -> bool:
    """Whether a record reports more than a connection that this process closed itself."""
    return not record.getMessage().endswith("disconnected: closed")


def _log_to_stderr(verbose: int) -> None:
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logger = logging.getLogger("reliamsg")
    for handler in [h for h in logger.handlers if isinstance(h.formatter, _OneLine)]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("reliamsg: %(levelname)s: %(message)s"))
    handler.addFilter(_is_relevant)
    logger.addHandler(handler)
    logger.setLevel(level)
