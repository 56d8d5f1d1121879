"""``reliamsg audit accept``: an operator accepts incidents that an audit has found."""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from reliamsg.audit.acceptances import read_acceptances, remove_acceptance, write_acceptance
from reliamsg.audit.accepted import Acceptance, Brief
from reliamsg.audit.kept import check_keys_of, is_state, read_audited
from reliamsg.audit.program import key_ring, run_command, state_keys_option
from reliamsg.audit.times import as_time
from reliamsg.keys import KeyRing
from reliamsg.terminal import say

__all__ = ["main"]


@click.command(
    "audit accept",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "RELIAMSG_AUDIT_ACCEPT"},
)
@click.argument("state")
@click.argument("incident", required=False)
@click.option("--reason", metavar="TEXT", help="Why it needs no further attention.")
@click.option("--withdraw", is_flag=True, help="Take an acceptance back.")
@state_keys_option
def _command(
    state: str, incident: str | None, reason: str | None, withdraw: bool, state_keys: str | None
) -> None:
    """Accept an incident that the latest audit with the state in directory STATE has found.

    INCIDENT is its id in verdict.json and in the report. It is shown by all further audits, with the reason, and does
    not count for their exit codes unless it becomes worse or larger. Without INCIDENT, list what was accepted.
    """
    place = Path(state)
    keys = key_ring(state_keys)
    if not place.is_dir():
        raise FileNotFoundError(f"{state}: no such directory")
    if not is_state(place, keys):
        raise FileNotFoundError(
            f"{state}: no audit has used this state yet: name the directory of its --state"
        )
    if incident is None:
        if reason is not None or withdraw:
            raise click.UsageError("which incident?")
        _list(place, keys)
    elif withdraw:
        if reason is not None:
            raise click.UsageError("--withdraw takes no --reason")
        if not _is_id(incident) or not remove_acceptance(place, incident):
            raise FileNotFoundError(f"{state}: incident {incident} was not accepted")
        say(f"incident {incident}: no longer accepted")
    else:
        if reason is None or not reason.strip():
            raise click.UsageError("an acceptance needs a --reason")
        check_keys_of(place, keys)
        found = _found(place, incident, keys)
        acceptance = Acceptance(found, reason.strip(), _operator(), time.time_ns() // 1000)
        write_acceptance(place, acceptance, keys)
        say(f"incident {incident}: accepted as {_described(found)}")


def _found(place: Path, incident: str, keys: KeyRing | None) -> Brief:
    audited = read_audited(place, keys)
    if audited is None:
        raise FileNotFoundError(f"{place}: no audit has used this state yet")
    found = next((each for each in audited.incidents if each.id == incident), None)
    if found is None:
        raise FileNotFoundError(f"{place}: the latest audit has found no incident {incident}")
    return found


def _list(place: Path, keys: KeyRing | None) -> None:
    found = sorted(read_acceptances(place, keys).by_id.values(), key=lambda each: each.at_us)
    for each in found:
        say(
            f"{each.incident.id}  {as_time(each.at_us)}  {each.by}: {each.reason} ({_described(each.incident)})"
        )
    if found:
        say("signatures were not checked (--state-keys)" if keys is None else "signatures were checked")


def _described(incident: Brief) -> str:
    messages = {0: "", None: ", of unknown extent"}.get(
        incident.messages, f", {incident.messages:,} messages"
    )
    groups = f", at {', '.join(incident.groups)}" if incident.groups else ""
    return f"{incident.severity}{messages}{groups}"


def _is_id(text: str) -> bool:
    """Whether it can be an incident, rather than part of a path."""
    return text.isascii() and text.isalnum()


def _operator() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: ``sys.argv``) and return its exit code."""
    return run_command(_command, "reliamsg audit accept", arguments)


if __name__ == "__main__":
    sys.exit(main())
