"""``reliamsg group``: groups at brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import click

from reliamsg.cli.options import (
    NameType,
    Tls,
    build_sites,
    json_option,
    keys_option,
    site_options,
    timeout_option,
)
from reliamsg.cli.status import EXIT_CODES_HELP, Failure, Status, one_line
from reliamsg.config import Site
from reliamsg.errors import ReliamsgError
from reliamsg.keys import KeyRing
from reliamsg.terminal import say, say_json
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group, delete_group

__all__ = ["group"]


def which_options(command: Callable[..., int]) -> Callable[..., int]:
    """Which group, of which topics, at which sites."""
    command = timeout_option(10.0, "Most time for each site.")(command)
    command = site_options(command)
    topic = click.option(
        "--topic", "topics", type=NameType("topic"), multiple=True, required=True, help="A topic. Repeat it."
    )
    return click.argument("name", metavar="GROUP", type=NameType("group"))(topic(command))


@click.group()
def group() -> None:
    """Consumer groups at brokers."""


@group.command(epilog=EXIT_CODES_HELP)
@which_options
@keys_option
@json_option
def create(
    name: str,
    topics: tuple[str, ...],
    site: tuple[tuple[str, str], ...],
    tls: Tls,
    timeout: float,
    keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Have the sites keep messages for GROUP from now on.

    At AMQP sites this declares the exchange, the group's queues and their bindings, at MQTT sites the group's
    persistent session and its subscriptions, with a mark by which producers know that it is there; it is signed with
    --keys. What exists is left as it is. All sites are tried, also after one failed. The group's consumer should not
    be connected meanwhile: an MQTT site would interrupt it.
    """

    def work(one: Site, bindings: Sequence[Binding]) -> None:
        create_group(one, bindings, timeout, keys)

    return _at_all(name, topics, build_sites(site, tls), as_json, "created", "keeps", work)


@group.command(epilog=EXIT_CODES_HELP)
@which_options
@json_option
def delete(
    name: str,
    topics: tuple[str, ...],
    site: tuple[tuple[str, str], ...],
    tls: Tls,
    timeout: float,
    as_json: bool,
) -> int:
    """Have the sites keep nothing for GROUP any more.

    WHAT WAITS THERE FOR THE GROUP IS LOST. At AMQP sites its queues are deleted, at MQTT sites its session, for all
    topics, and the marks of those that are named. A producer that still names the group goes on keeping messages for
    it: see remove_group(). Stop the group's consumer first; it would make the group again.
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
    """Do something at every site, also after one failed, and tell."""
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
        told = {site: {done: error is None, "error": error} for site, error in results.items()}
        say_json({"group": name, "topics": topics, "sites": told})
    if failed:
        raise Failure(Status.UNAVAILABLE, "; ".join(failed))
    return Status.OK
