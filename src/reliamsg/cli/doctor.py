"""``reliamsg doctor``: examines sites and files, and says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reliamsg.cli.options import (
    SiteGiven,
    Tls,
    build_sites,
    json_option,
    optional_site_options,
    timeout_option,
)
from reliamsg.cli.status import SEE_EXIT_CODES, Status, counted, one_line
from reliamsg.configfile import ConfigFile, read_config
from reliamsg.errors import ConfigError, ReliamsgError
from reliamsg.terminal import say, say_json

if TYPE_CHECKING:
    from reliamsg.config import Site
    from reliamsg.doctor.client import Client
    from reliamsg.doctor.finding import Finding

__all__ = ["doctor"]

_UNREACHABLE = ("resolve", "connect", "tls", "login")
"""The checks whose errors mean that a site can't be reached, or refuses."""
MAX_STREAMS = 1_000
"""How many streams of an inbox are looked at, for their topics and producers."""
MAX_BYTES = 1024 * 1024 * 1024
MAX_INBOX_BYTES = 256 * 1024 * 1024
"""The defaults of ``Producer`` and ``Consumer``."""


@click.command(epilog=SEE_EXIT_CODES)
@click.argument("config", metavar="[CONFIG]", required=False, envvar="RELIAMSG_CONFIG")
@click.option(
    "--outbox", "outboxes", type=click.Path(dir_okay=False), multiple=True,
    help="Also examine this outbox, and what its producer may do at the sites. Can be repeated.",
)  # fmt: skip
@click.option(
    "--inbox", "inboxes", type=click.Path(dir_okay=False), multiple=True,
    help="Also examine this inbox, and what its group may do at the sites. Can be repeated.",
)  # fmt: skip
@optional_site_options
@timeout_option(20.0, "Time limit for each site.")
@json_option
def doctor(
    config: str | None,
    outboxes: tuple[str, ...],
    inboxes: tuple[str, ...],
    site: tuple[SiteGiven, ...],
    tls: Tls,
    timeout: float,
    as_json: bool,
) -> int:
    """Examine sites and files before, or while, clients use them.

    Examines the sites, producers and consumers of a configuration file, or those that options name. Connects to every
    site, and checks names, certificates, logins, permissions and queues; checks disks, file modes, outboxes, inboxes
    and journal targets on this machine. Changes nothing, takes no messages, and can run beside clients.

    Exits with 0 if nothing is wrong, 69 if a site can't be reached or refuses, 1 if there are other errors or warnings,
    and 2 if something could not be checked that usually can.
    """
    from reliamsg.doctor.files import check_secret
    from reliamsg.doctor.run import check_all

    findings: list[Finding] = []
    sites: list[Site] = []
    clients: list[Client] = []
    if config is not None:
        file = read_config(config)
        findings += [check_secret(key, path) for key, path in file.secret_files().items()]
        sites += [] if site else _sites(file, findings)
        clients += _clients(file, findings)
    given = build_sites(site, tls) if site else ()
    if given:
        sites, clients = [*given], [replace(client, sites=None) for client in clients]
    try:
        clients += [_of_outbox(path) for path in outboxes] + [_of_inbox(path) for path in inboxes]
    except ReliamsgError as problem:
        findings.append(_unusable("files", str(problem)))
    if not (sites or clients or findings):
        raise click.UsageError("nothing to examine: give a configuration file, --site, --outbox or --inbox")
    findings += check_all(sites, clients, timeout)
    status = _status(findings)
    if as_json:
        say_json(
            {"ok": status == Status.OK, "exit_code": int(status), "findings": [asdict(f) for f in findings]}
        )
    else:
        _print(findings)
    return status


def _sites(file: ConfigFile, findings: list[Finding]) -> list[Site]:
    """The sites of the file; adds a finding for each that can't be used."""
    sites = []
    for name in file.site_names:
        try:
            sites.append(file.site(name))
        except ConfigError as problem:
            findings.append(_unusable(f"site {name}", str(problem)))
    return sites


def _clients(file: ConfigFile, findings: list[Finding]) -> list[Client]:
    """The producers and consumers of the file; adds a finding for each that can't be opened."""
    from reliamsg.doctor.client import Client, peers_of

    producers, consumers = [], []
    for name in file.producer_names:
        try:
            found = file.producer(name)
        except ConfigError as problem:
            findings.append(_unusable(f"producer {name}", str(problem)))
            continue
        groups = {topic: tuple(groups) for topic, groups in found.get("groups", {}).items()}
        path, size = Path(found["outbox"]), found.get("max_bytes", MAX_BYTES)
        journal = found.get("journal")
        producers.append(Client("producer", name, found["sites"], path, groups, size, journal))
    for name in file.consumer_names:
        try:
            found = file.consumer(name)
        except ConfigError as problem:
            findings.append(_unusable(f"group {name}", str(problem)))
            continue
        path, size = Path(found["inbox"]), found.get("max_inbox_bytes", MAX_INBOX_BYTES)
        groups = dict.fromkeys(found["topics"], (name,))
        peers = peers_of(groups, producers)
        consumers.append(
            Client("group", name, found["sites"], path, groups, size, found.get("journal"), peers)
        )
    return [*producers, *consumers]


def _unusable(subject: str, problem: str) -> Finding:
    from reliamsg.doctor.finding import error

    remedy = "correct it: the message says what is wrong"
    return error(subject, "configuration", problem, why="the client can't be opened", remedy=remedy)


def _of_outbox(path: str) -> Client:
    from reliamsg.doctor.client import Client
    from reliamsg.store.outbox_view import inspect_outbox

    found = inspect_outbox(path)
    groups = {topic: tuple(groups) for topic, groups in found.groups.items()}
    return Client("producer", found.producer, None, Path(path), groups, MAX_BYTES)


def _of_inbox(path: str) -> Client:
    from reliamsg.doctor.client import Client
    from reliamsg.store.inbox_view import list_streams, summarize_inbox

    group = summarize_inbox(path).group
    streams = [one.stream for one in list_streams(path, MAX_STREAMS)]
    groups: dict[str, tuple[str, ...]] = {stream.topic: (group,) for stream in streams}
    peers = tuple(dict.fromkeys(stream.producer for stream in streams if stream.producer))
    return Client("group", group, None, Path(path), groups, MAX_INBOX_BYTES, peers=peers)


def _status(findings: Sequence[Finding]) -> Status:
    checked = [finding for finding in findings if not finding.by_hand]
    if any(finding.severity == "error" and finding.check in _UNREACHABLE for finding in checked):
        return Status.UNAVAILABLE
    if any(finding.severity in ("error", "warning") for finding in checked):
        return Status.INCOMPLETE
    return Status.UNKNOWN if any(finding.severity == "unknown" for finding in checked) else Status.OK


def _print(findings: Sequence[Finding]) -> None:
    """By subject, problems with why and remedy; then what to verify by hand, and the number of each severity."""
    checked = [finding for finding in findings if not finding.by_hand]
    for subject in dict.fromkeys(finding.subject for finding in checked):
        say(one_line(subject))
        for finding in checked:
            if finding.subject == subject:
                say(*_lines(finding))
    manual = [finding for finding in findings if finding.by_hand]
    if manual:
        say("verify by hand (cannot be checked from here)")
        for finding in manual:
            say(f"  {one_line(finding.subject)}: {finding.check}: {one_line(finding.remedy)}")
            say(f"{'':10}why: {one_line(finding.why)}")
    numbers = {
        word: sum(f.severity == word for f in checked) for word in ("error", "warning", "unknown", "ok")
    }
    say(
        ", ".join(
            f"{number} {word}" if word in ("ok", "unknown") else counted(number, word)
            for word, number in numbers.items()
        )
    )


def _lines(finding: Finding) -> list[str]:
    severity = finding.severity.value
    word = severity if severity == "ok" else severity.upper()
    lines = [f"  {word:<8}{finding.check}: {one_line(finding.seen)}"]
    if finding.why:
        lines += [f"{'':10}why: {one_line(finding.why)}", f"{'':10}fix: {one_line(finding.remedy)}"]
    return lines
