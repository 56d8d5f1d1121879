"""``reliamsg journal compact``: writes checkpoints of journals. Needs pyarrow, but neither Spark nor Java."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from reliamsg.audit.compaction import Compacted, compact
from reliamsg.audit.program import UNAVAILABLE, fail, journal_keys_options, run_command
from reliamsg.keys import KeyRing, read_key_ring
from reliamsg.terminal import say, say_json
from reliamsg.trust import make_trust

__all__ = ["main"]

_OK, _LEFT_OUT = 0, 2
_EPILOG = """\b
Exit codes:
  0    every client has a checkpoint of all its segments
  2    a client was left out, or there is none
  64   wrong arguments
  66   there is no such directory, or it or one below it can't be read
  69   pyarrow is missing
  74   something can't be written
  130  interrupted
"""


@click.command("journal compact", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory")
@click.option(
    "--client", "clients", multiple=True, metavar="NAME", help="Only this producer or group. Can be repeated."
)
@click.option(
    "--keys", metavar="FILE", help="A file of the auditor's keys, one per line: ID SECRET, in hexadecimal."
)
@click.option("--key", metavar="ID", help="Sign with this key.  [default: the first]")
@click.option(
    "--archive",
    metavar="DIR",
    help="Move the segments and older checkpoints that a checkpoint covers to this directory.",
)
@journal_keys_options("A client of which a segment is not signed by itself is left out. Needs --keys.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def _command(
    directory: str,
    clients: tuple[str, ...],
    keys: str | None,
    key: str | None,
    archive: str | None,
    journal_keys: str | None,
    unsigned_before: tuple[str, ...],
    as_json: bool,
) -> int:
    """Write a checkpoint of each client's segments below DIRECTORY.

    An audit reads a checkpoint instead of the segments that it covers, which takes less time and gives the same
    verdict. These segments may then be archived or deleted. A client of which segments are missing or damaged, or
    whose file was copied, is left out and reported.
    """
    if importlib.util.find_spec("pyarrow") is None:
        return fail("a compaction needs pyarrow: pip install 'reliamsg[audit]'", UNAVAILABLE)
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"{directory}: no such directory")
    if key is not None and keys is None:
        raise click.UsageError("--key needs --keys")
    trust = make_trust(journal_keys, unsigned_before)
    ring = None if keys is None else _ring(keys, key)
    code, known = _OK, set()
    for found in compact(directory, clients=clients, keys=ring, archive=archive, trust=trust):
        known.add(found.client)
        if found.problem is not None:
            code = _LEFT_OUT
        if as_json:
            say_json(asdict(found))
        else:
            _show(found)
    if known and not as_json:
        say("signatures were not checked (--journal-keys)" if trust is None else "signatures were checked")
    missing = sorted(set(clients) - known)
    for name in missing:
        fail(f"{directory}: there are no segments of {name}", _LEFT_OUT)
    if missing or not known:
        code = _LEFT_OUT
    if not known and not missing:
        return fail(f"{directory}: there are no segments", _LEFT_OUT)
    return code


def _ring(file: str, key: str | None) -> KeyRing:
    ring = read_key_ring(file)
    return ring if key is None else ring.signing_with(key)


def _show(found: Compacted) -> None:
    name = f"{found.role} {found.client}"
    if found.checkpoint is None:
        say(f"reliamsg: {name}: left out: {' '.join((found.problem or '').split())}", err=True)
        return
    state = "new checkpoint" if found.written else "nothing new since the checkpoint"
    archived = f", files archived {found.archived:,}" if found.archived else ""
    say(f"{name}: {state}; segments {found.segments:,}, rows {found.rows:,}{archived} ({found.checkpoint})")
    if found.problem is not None:
        say(f"reliamsg: {name}: not archived: {' '.join(found.problem.split())}", err=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: ``sys.argv``) and return its exit code."""
    return run_command(_command, "reliamsg journal compact", arguments)


if __name__ == "__main__":
    sys.exit(main())
