"""Creating and deleting groups at AMQP sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from reliamsg.config import Site
from reliamsg.errors import ConfigError, ReliamsgError, TransientError
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.topology import Refused, Script, declare, delete
from reliamsg.transport.base import Binding
from reliamsg.transport.session import Ended

__all__ = ["create_group", "delete_group"]


def create_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Declare the exchange and the queues of `bindings` at `site`, so that they collect from now on.

    Does nothing where they exist already. Blocks for at most about `timeout` seconds, each endpoint tried
    once. Raises :class:`~reliamsg.errors.ConfigError` when the broker refuses the login or the declaration,
    and :class:`~reliamsg.errors.TransientError` when no endpoint can be reached.
    """
    _perform(
        site,
        timeout,
        "group create",
        "create the queues",
        lambda connection: declare(connection, site, bindings),
    )


def delete_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Delete the queues of `bindings` at `site`, with what is in them. Blocks and raises as :func:`create_group`."""
    _perform(
        site, timeout, "group delete", "delete the queues", lambda connection: delete(connection, bindings)
    )


def _perform(
    site: Site, timeout: float, name: str, what: str, script: Callable[[AmqpConnection], Script[object]]
) -> None:
    end = time.monotonic() + timeout
    ended = Ended("no time to connect")
    for endpoint in site.endpoints:
        deadline = min(end, time.monotonic() + site.connect_timeout)
        connection = AmqpConnection(site, endpoint, site.login(), deadline, f"reliamsg {name}")
        refusals: list[Refused] = []
        created: list[bool] = []
        ended = connection.run(partial(_begin, connection, script(connection), created, refusals))
        if created:
            return
        if refusals:
            raise ConfigError(f"site {site.name}: the broker refused to {what}: {refusals[0]}")
        if ended.credentials:
            break
    error: type[ReliamsgError] = ConfigError if ended.credentials else TransientError
    raise error(f"site {site.name}: {ended.reason} ({', '.join(map(str, site.endpoints))})")


def _begin(
    connection: AmqpConnection, script: Script[object], created: list[bool], refusals: list[Refused]
) -> None:
    def done(_: object) -> None:
        created.append(True)
        connection.close(1.0)

    def failed(refused: Refused) -> None:
        refusals.append(refused)
        connection.close(1.0)

    connection.perform(script, done, failed)
