"""``export``, a command of both ``reliamsg outbox`` and ``reliamsg inbox``."""

from __future__ import annotations

import importlib.util
from typing import Literal

import click

from reliamsg.cli.options import json_option
from reliamsg.cli.progress import Progress
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, counted
from reliamsg.terminal import say, say_json

__all__ = ["export_command"]

_DAMAGED_SHOWN = 20


class _Damaged:
    """Reports damaged rows as they are found, the first of many."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, what: str) -> None:
        self.count += 1
        if self.count <= _DAMAGED_SHOWN:
            say(f"damaged: {what}", err=True)

    def finish(self) -> None:
        if self.count > _DAMAGED_SHOWN:
            say(f"damaged: {self.count - _DAMAGED_SHOWN:,} more; see the view damaged", err=True)


def export_command(kind: Literal["outbox", "inbox"]) -> click.Command:
    """The command for one kind of file."""
    owner = "producer" if kind == "outbox" else "consumer"
    text = f"""Write the decoded content of {kind.upper()} to OUT, a plain SQLite file.

    OUT has a row for each message, and views, for sqlite-utils, datasette and other tools. Only its owner can read it.
    Read-only; a {owner} may be running (then as of its latest commit). Batches that can't be decoded are named on
    standard error and exported as they are; the exit code is then 65.

    Requires sqlite-utils, which the extra `inspect` installs.
    """

    @click.command("export", epilog=SEE_EXIT_CODES, help=text)
    @click.argument("file", metavar=kind.upper(), type=click.Path(dir_okay=False))
    @click.argument("out", metavar="OUT", type=click.Path())
    @click.option("--replace", is_flag=True, help="Replace OUT if it exists, when the export is complete.")
    @json_option
    def export(file: str, out: str, replace: bool, as_json: bool) -> int:
        if importlib.util.find_spec("sqlite_utils") is None:
            raise Failure(Status.UNAVAILABLE, "an export needs sqlite-utils: pip install 'reliamsg[inspect]'")
        from reliamsg.inspection.inbox_export import export_inbox
        from reliamsg.inspection.outbox_export import export_outbox

        run = export_outbox if kind == "outbox" else export_inbox
        damaged = _Damaged()
        with StopRequest() as stop, Progress() as progress:

            def proceed(messages: int) -> None:
                if stop:
                    raise Failure(stop.status, "interrupted; nothing was written")
                progress.show(lambda: counted(messages, "message"))

            rows = run(file, out, replace, proceed, damaged.report)
        damaged.finish()
        if as_json:
            say_json({"file": out, "rows": rows, "damaged": damaged.count})
        else:
            say(f"{out}: {_summary(rows)}" + (f"; {damaged.count:,} damaged" if damaged.count else ""))
        return Status.DATA if damaged.count else Status.OK

    return export


def _summary(rows: dict[str, int]) -> str:
    found = [counted(rows["messages"], "message"), counted(rows["streams"], "stream")]
    if "dead_letters" in rows:
        found.append(counted(rows["dead_letters"], "dead letter"))
    return ", ".join(found)
