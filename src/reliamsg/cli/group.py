"""``reliamsg group``: groups at brokers."""

from __future__ import annotations

import time

import click

from reliamsg.cli.options import (
    NameType,
    build_sites,
    json_option,
    site_options,
    timeout_option,
)
from reliamsg.cli.status import EXIT_CODES_HELP, Failure, Status, one_line
from reliamsg.errors import ReliamsgError
from reliamsg.terminal import say, say_json
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group

__all__ = ["group"]


@click.group()
def group() -> None:
    """Consumer groups at brokers."""


@group.command(epilog=EXIT_CODES_HELP)
@click.argument("name", metavar="GROUP", type=NameType("group"))
@click.option(
    "--topic", "topics", type=NameType("topic"), multiple=True, required=True, help="A topic. Repeat it."
)
@site_options
@timeout_option(10.0, "Most time for each site.")
@json_option
def create(
    name: str,
    topics: tuple[str, ...],
    site: tuple[tuple[str, str], ...],
    cafile: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Have the sites keep messages for GROUP from now on.

    At AMQP sites this declares the exchange, the group's queues and their bindings, at MQTT sites the group's
    persistent session and its subscriptions. What exists is left as it is. All sites are tried, also after
    one failed. The group's consumer should not be connected meanwhile: an MQTT site would interrupt it.
    """
    results: dict[str, str | None] = {}
    bindings = [Binding(topic, 0, name) for topic in dict.fromkeys(topics)]
    for one in build_sites(site, cafile):
        started = time.monotonic()
        try:
            create_group(one, bindings, timeout)
        except ReliamsgError as error:
            results[one.name] = one_line(error)
        else:
            results[one.name] = None
            if not as_json:
                seconds = time.monotonic() - started
                say(f"{one.name}: group {name} keeps {', '.join(dict.fromkeys(topics))} ({seconds:.1f} s)")
    failed = [error for error in results.values() if error is not None]
    if as_json:
        sites = {site: {"created": error is None, "error": error} for site, error in results.items()}
        say_json({"group": name, "topics": list(dict.fromkeys(topics)), "sites": sites})
    if failed:
        raise Failure(Status.UNAVAILABLE, "; ".join(failed))
    return Status.OK
