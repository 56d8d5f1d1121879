"""AMQP 0-9-1 sites (RabbitMQ): what the rest of the library uses of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from reliamsg.config import Site
from reliamsg.errors import ConfigError, ReliamsgError, TransientError
from reliamsg.transport.amqp_link import Link
from reliamsg.transport.amqp_receiver import AmqpReceiver
from reliamsg.transport.amqp_sender import AmqpSender
from reliamsg.transport.amqp_topology import Refused, declare
from reliamsg.transport.base import Binding
from reliamsg.transport.session import Ended

__all__ = ["AmqpReceiver", "AmqpSender", "create_group"]


def create_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Declare the exchange and the queues of `bindings` at `site`, so that they collect from now on.

    Does nothing where they exist already. Blocks for at most about `timeout` seconds, each endpoint tried
    once. Raises :class:`~reliamsg.errors.ConfigError` when the broker refuses the login or the declaration,
    and :class:`~reliamsg.errors.TransientError` when no endpoint can be reached.
    """
    end = time.monotonic() + timeout
    ended = Ended("no time to connect")
    for endpoint in site.endpoints:
        deadline = min(end, time.monotonic() + site.connect_timeout)
        link = Link(site, endpoint, site.login(), deadline, "reliamsg group create")
        refusals: list[Refused] = []
        created: list[bool] = []
        ended = link.run(partial(_create, link, site, bindings, created, refusals))
        if created:
            return
        if refusals:
            raise ConfigError(f"site {site.name}: the broker refused to create the queues: {refusals[0]}")
        if ended.credentials:
            break
    error: type[ReliamsgError] = ConfigError if ended.credentials else TransientError
    raise error(f"site {site.name}: {ended.reason} ({', '.join(map(str, site.endpoints))})")


def _create(
    link: Link, site: Site, bindings: Sequence[Binding], created: list[bool], refusals: list[Refused]
) -> None:
    def done(_: object) -> None:
        created.append(True)
        link.close(1.0)

    def failed(refused: Refused) -> None:
        refusals.append(refused)
        link.close(1.0)

    link.perform(declare(link, site, bindings), done, failed)
