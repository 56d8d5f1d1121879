"""``reliamsg group``: groups at brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from reliamsg.cli.configured import Chosen, ConfiguredCommand, config_option, of_consumer
from reliamsg.cli.options import (
    NameType,
    SiteGiven,
    Tls,
    build_sites,
    json_option,
    keys_option,
    site_options,
    timeout_option,
)
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, one_line
from reliamsg.config import Site
from reliamsg.configfile import ConfigFile
from reliamsg.errors import ReliamsgError
from reliamsg.keys import KeyRing
from reliamsg.terminal import say, say_json
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group, delete_group

__all__ = ["group"]


def _defaults(file: ConfigFile, chosen: Chosen) -> dict[str, Any]:
    found = of_consumer(file, chosen.get("name"), elsewhere=True)
    its = {"site": "sites", "topics": "topics", "keys": "keys"}
    return {name: found[old] for name, old in its.items() if old in found}


def _sites(file: ConfigFile, chosen: Chosen) -> dict[str, Any]:
    """What deletes messages is named on the command line."""
    found = _defaults(file, chosen)
    return {"site": found["site"]}


def which_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that select a group, its topics and sites."""
    command = timeout_option(10.0, "Time limit for each site.")(command)
    command = config_option(site_options(command))
    topic = click.option(
        "--topic",
        "topics",
        type=NameType("topic"),
        multiple=True,
        required=True,
        help="A topic. Can be repeated.",
    )
    return click.argument("name", metavar="GROUP", type=NameType("group"))(topic(command))


@click.group()
def group() -> None:
    """Create and delete consumer groups at brokers."""


@group.command(epilog=SEE_EXIT_CODES, cls=ConfiguredCommand, defaults=_defaults)
@which_options
@keys_option
@json_option
def create(
    name: str,
    topics: tuple[str, ...],
    site: tuple[SiteGiven, ...],
    tls: Tls,
    timeout: float,
    keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Create GROUP at the sites, which keep messages for it from now on.

    At AMQP sites this declares the exchange, the group's queues and their bindings. At MQTT sites it creates the
    group's persistent session, its subscriptions, and a mark that tells producers that the session exists, signed with
    --keys. Existing objects are not changed. All sites are tried, even if one fails. The group's consumer should not be
    connected meanwhile: an MQTT site would disconnect it.
    """

    def work(one: Site, bindings: Sequence[Binding]) -> None:
        create_group(one, bindings, timeout, keys)

    return _at_all(name, topics, build_sites(site, tls), as_json, "created", "keeps", work)


@group.command(epilog=SEE_EXIT_CODES, cls=ConfiguredCommand, defaults=_sites)
@which_options
@json_option
def delete(
    name: str,
    topics: tuple[str, ...],
    site: tuple[SiteGiven, ...],
    tls: Tls,
    timeout: float,
    as_json: bool,
) -> int:
    """Delete GROUP at the sites, which no longer keep messages for it.

    MESSAGES QUEUED THERE FOR THE GROUP ARE LOST. At AMQP sites this deletes its queues. At MQTT sites it deletes its
    session, for all topics, and the marks of the given topics. A producer that still names the group continues to keep
    messages for it: see remove_group(). Stop the group's consumer first, or it will create the group again.
    """

    def work(one: Site, bindings: Sequence[Binding]) -> None:
        delete_group(one, bindings, timeout)

    return _at_all(name, topics, build_sites(site, tls), as_json, "deleted", "no longer keeps", work)


def _at_all(
    name: str,
    topics: Sequence[str],
    sites: Iterable[Site],
    as_json: bool,
    done: str,
    says: str,
    work: Callable[[Site, Sequence[Binding]], None],
) -> int:
    """Call `work` for every site, even if one fails, and print the results."""
    results: dict[str, str | None] = {}
    topics = list(dict.fromkeys(topics))
    for one in sites:
        started = time.monotonic()
        try:
            work(one, [Binding(topic, 0, name) for topic in topics])
        except ReliamsgError as error:
            results[one.name] = one_line(error)
        else:
            results[one.name] = None
            if not as_json:
                seconds = time.monotonic() - started
                say(f"{one.name}: group {name} {says} {', '.join(topics)} ({seconds:.1f} s)")
    failed = [error for error in results.values() if error is not None]
    if as_json:
        outcomes = {site: {done: error is None, "error": error} for site, error in results.items()}
        say_json({"group": name, "topics": topics, "sites": outcomes})
    if failed:
        raise Failure(Status.UNAVAILABLE, "; ".join(failed))
    return Status.OK
