"""The audit as a command: ``reliamsg audit``, ``python -m reliamsg.audit``, or with ``spark-submit``."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reliamsg.audit.acceptances import read_acceptances
from reliamsg.audit.expect import parse_expect
from reliamsg.audit.hook import Hook
from reliamsg.audit.job import audit
from reliamsg.audit.kept import check_keys_of, read_audited
from reliamsg.audit.output import Output
from reliamsg.audit.program import (
    IO,
    NO_INPUT,
    SOFTWARE,
    UNAVAILABLE,
    USAGE,
    fail,
    journal_keys_options,
    key_ring,
    run_command,
    state_keys_option,
)
from reliamsg.audit.retired import parse_retired
from reliamsg.audit.session import make_session
from reliamsg.audit.sources import check_local
from reliamsg.audit.times import parse_time
from reliamsg.audit.verdict import line, status, table
from reliamsg.audit.windows import Baseline
from reliamsg.errors import ConfigError, JournalTargetError
from reliamsg.keys import KeyRing
from reliamsg.terminal import say_json, say_text
from reliamsg.trust import make_trust

__all__ = ["main"]

_QUIET = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_EPILOG = """\b
Exit codes:
  0    complete: every message reached every group of its topic; or all exceptions were accepted
  1    violated or lost
  2    unknown: evidence is missing, or the fate of messages is open
  64   wrong arguments
  66   the journals can't be read
  69   PySpark or Java is missing, or Spark can't start
  70   internal error
  74   the output can't be written
  130  interrupted
"""


@click.command(
    "audit",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "RELIAMSG_AUDIT"},
)
@click.argument("journals")
@click.option("--out", metavar="DIR", help="Write tables, verdict.json and report.html there.")
@click.option(
    "--state",
    metavar="DIR",
    help="Keep there what was read. The next audit with it reads only new segments.",
)
@click.option(
    "--follow",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Audit again at this interval, until interrupted. Needs --state.",
)
@click.option(
    "--master",
    metavar="URL",
    help="The Spark master, such as local[4] or spark://host:7077.  [default: all cores of this machine]",
)
@click.option(
    "--expect",
    "expected",
    multiple=True,
    metavar="WHAT",
    help="A client that must have a journal: producer=NAME, group=NAME:TOPIC, or a JSON file. Can be repeated.",
)
@click.option(
    "--until",
    metavar="TIME",
    help="Account for messages enqueued by then: ISO 8601 (UTC), or µs since 1970.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="The exit code is about messages enqueued since then, and about incidents that the latest audit with --state"
    " has not found.  [default: the time through which that audit was complete]",
)
@click.option(
    "--retired",
    multiple=True,
    metavar="[ROLE/]NAME@SEGMENT",
    help="A client (NAME, producer/NAME or group/NAME) that is gone for good: its journal ends with this segment."
    " Can be repeated.",
)
@click.option(
    "--drained",
    is_flag=True,
    help="The run is over: every client was closed, and what is missing at the end of a stream is lost.",
)
@click.option(
    "--gap-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="The gap timeout of all groups, instead of that in their journals.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The tolerance for a gap's clock.",
)
@click.option(
    "--hook",
    metavar="COMMAND",
    help="Run this for each incident that is new or has grown, with the incident as JSON on its standard input. Needs"
    " --state.",
)
@click.option("--metrics", metavar="FILE", help="Write the results there as OpenMetrics text.")
@click.option(
    "--max-skew",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="What clients' clocks may be apart. Proof of more makes the verdict unknown.  [default: not limited]",
)
@journal_keys_options("Segments and heads that their client has not signed count as damaged.")
@click.option(
    "--checkpoint-keys",
    metavar="FILE",
    help="A file of the auditor's keys, one per line: ID SECRET. Checkpoints that none of them signed count as damaged."
    "  [default: signatures of checkpoints are not checked]",
)
@state_keys_option
@click.option("--json", "as_json", is_flag=True, help="Print the content of verdict.json instead of a table.")
def _command(
    journals: str,
    out: str | None,
    state: str | None,
    follow: float | None,
    master: str | None,
    expected: tuple[str, ...],
    until: str | None,
    since: str | None,
    retired: tuple[str, ...],
    drained: bool,
    gap_timeout: float | None,
    tolerance: float,
    hook: str | None,
    metrics: str | None,
    max_skew: float | None,
    journal_keys: str | None,
    unsigned_before: tuple[str, ...],
    checkpoint_keys: str | None,
    state_keys: str | None,
    as_json: bool,
) -> int:
    """Report the fate of every message from the clients' journals below JOURNALS (a directory or URL).

    `reliamsg audit show DIR STREAM` prints the fates of one stream's messages from the tables in an audit's output DIR.
    `reliamsg audit accept STATE INCIDENT --reason TEXT` accepts an incident.
    """
    rules = parse_expect(
        expected,
        drained=drained,
        until_us=None if until is None else parse_time(until, "--until"),
        retired=retired,
        gap_timeout=gap_timeout,
        tolerance=tolerance,
        max_skew=max_skew,
        trust=make_trust(journal_keys, unsigned_before),
        checkpoint_keys=key_ring(checkpoint_keys),
        state_keys=key_ring(state_keys),
    )
    parse_retired(retired)  # reports words of another form before Spark is started
    check_local(journals)
    if out is not None:
        Output(out)  # reports an unusable directory before Spark is started
    for option, value in (("--follow", follow), ("--hook", hook), ("--state-keys", state_keys)):
        if value is not None and state is None:
            raise click.UsageError(f"{option} needs --state")
    if metrics is not None:
        _check_metrics(metrics)
    caller = None if hook is None else Hook(hook)
    baseline = _baseline(state, since, rules.state_keys)
    with _session(master, journals) as spark:
        audited = partial(audit, spark, journals, out=out, state=state, baseline=baseline, hook=caller)

        def run() -> dict[str, Any]:
            # Keys may be added while audits are repeated.
            trust = make_trust(journal_keys, unsigned_before)
            found = audited(expect=replace(rules, trust=trust, state_keys=key_ring(state_keys)))
            if metrics is not None:
                from reliamsg.audit.metrics import write_metrics  # requires prometheus_client

                write_metrics(metrics, found, time.time())
            return found

        if follow is not None:
            return _follow(run, follow, as_json)
        found = run()
    if as_json:
        say_json(found)
    else:
        say_text(table(found))
    return status(found)


def _check_metrics(file: str) -> None:
    """Report what would make the last step of an audit fail."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise _Unavailable("--metrics needs prometheus-client: pip install 'reliamsg[audit]'")
    if not Path(file).absolute().parent.is_dir():
        raise ConfigError(f"--metrics {file}: there is no such directory")


def _baseline(state: str | None, since: str | None, keys: KeyRing | None) -> Baseline:
    """Where the window begins, which stays the same for all audits of this program. Reports a state that can't be used
    before Spark is started."""
    audited = None
    if state is not None and os.path.isdir(state):
        check_keys_of(Path(state), keys)
        audited = read_audited(Path(state), keys)
        read_acceptances(Path(state), keys)
    found = Baseline.after(audited)
    return found if since is None else replace(found, since_us=parse_time(since, "--since"))


def _follow(run: Callable[[], dict[str, Any]], interval: float, as_json: bool) -> int:
    """Repeat an audit until SIGINT or SIGTERM, which let one that is running finish; returns the exit code for the last
    verdict. A line is printed whenever something but the time has changed, with `as_json` for every audit. After an
    audit that failed, the next one follows in its time."""
    stopped = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stopped.set())
    code, said = IO, None
    while True:
        started = time.monotonic()
        try:
            found = run()
        except JournalTargetError as error:  # journals that can't be read, or a full disk, need not last
            code = fail(str(error), NO_INPUT)
        except OSError as error:
            code = fail(str(error), IO)
        except (Py4JError, PySparkException) as error:
            said_of_it, code = _failure(error)
            if code != IO:
                raise
            fail(said_of_it, code)
        else:
            code = status(found)
            news = {name: value for name, value in found.items() if name != "seconds"}
            if as_json:
                say_json(found)
            elif news != said:
                say_text(line(found))
            said = news
        sys.stdout.flush()
        if stopped.wait(max(0.0, started + interval - time.monotonic())):
            return code


@contextmanager
def _session(master: str | None, journals: str) -> Iterator[SparkSession]:
    """A Spark session whose Java process does not write to the output of this process."""
    submitted = os.environ.get("PYSPARK_GATEWAY_PORT") is not None
    if master is None and not submitted:
        master = "local[*]"
    with tempfile.TemporaryFile() as chatter, _redirected(chatter.fileno()):
        try:
            spark = make_session(master, journals=journals, settings=_QUIET)
        except Exception as error:
            chatter.seek(0)
            said = chatter.read().decode(errors="replace").strip().splitlines() or [str(error)]
            raise _Unavailable(f"Spark can't start: {said[-1]}") from error
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _redirected(target: int) -> Iterator[None]:
    """Redirect the output of processes started within the block permanently, and that of this process temporarily."""
    saved = os.dup(1), os.dup(2)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        for descriptor, standard in zip(saved, (1, 2), strict=True):
            os.dup2(descriptor, standard)
            os.close(descriptor)


class _Unavailable(Exception):
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: ``sys.argv``) and return its exit code."""
    try:
        return run_command(_command, "reliamsg audit", arguments)
    except _Unavailable as error:
        return fail(str(error), UNAVAILABLE)
    except (MemoryError, Py4JError, PySparkException) as error:
        return fail(*_failure(error))
    except Exception:  # noqa: BLE001  (Python would exit with 1, which means violated or lost)
        say_text(traceback.format_exc().rstrip(), err=True)
        return fail("internal error: see above", SOFTWARE)


def _failure(error: Exception) -> tuple[str, int]:
    """Why a job failed, and the exit code: of a task in Python, only its exception counts."""
    text = str(error) or type(error).__name__
    raised = re.findall(r"^([\w.]+(?:Error|Exception|Interrupt)(?:: .*)?)$", text, re.MULTILINE)
    found = raised[0] if raised else text.strip().partition("\n")[0]
    name, _, said = found.partition(": ")
    if name.endswith(".ConfigError"):
        return said, USAGE
    if name in ("OSError", "PermissionError", "FileNotFoundError"):
        return said, IO
    return f"internal error: {found}", SOFTWARE


if __name__ == "__main__":
    sys.exit(main())
