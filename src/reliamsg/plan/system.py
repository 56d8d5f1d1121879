"""What the model computes with: rates and settings together, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from reliamsg.errors import ConfigError
from reliamsg.plan.client import Client
from reliamsg.plan.rates import YEAR, Partitions, Rates, SiteRates

__all__ = ["Hazard", "System", "plain_system", "system_of"]


@dataclass(frozen=True)
class Hazard:
    """What happens at one site. Rates are per second."""

    crash_rate: float
    crash_window: float
    """A crash erases what was confirmed within this time before it."""
    loss_rate: float
    """A loss erases everything that waits there."""
    outage: float
    confirm: float
    split_rate: float
    """Ends of partitions in which the producer was on the side that is discarded."""
    split_window: float
    """Such a partition erases what that side confirmed within this time before its end, and nobody reads it before."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One client and its environment. Rates are per second, durations seconds."""

    kind: Literal["reliamsg", "paho", "pika"]
    sites: tuple[Hazard, ...]
    common_loss: float
    message_rate: float
    producer_crash: float
    producer_restart: float
    producer_disk: float
    consumer_crash: float
    consumer_outage: float
    inbox_loss: float
    broker_wait: float
    inbox_wait: float
    handle: float
    client: Client
    retain: float = 0.0
    """How long the outbox keeps what all sites have confirmed: the first of both limits."""
    fill: float = inf
    """For how long the outbox can take messages that don't leave it."""

    @property
    def keeps(self) -> bool:
        """Whether the outbox keeps messages until they are consumed."""
        return self.client.release == "consumed"


def _hazard(site: SiteRates) -> Hazard:
    partitions = site.partitions
    split = partitions if isinstance(partitions, Partitions) and partitions.discarded_seconds else None
    return Hazard(
        site.crashes_per_year / YEAR,
        site.crash_loses_seconds,
        site.losses_per_year / YEAR,
        site.outage_seconds,
        site.confirm_seconds,
        split.per_year * split.losing_share / YEAR if split else 0.0,
        split.discarded_seconds if split else 0.0,
    )


def system_of(rates: Rates, client: Client) -> System:
    """`client` under these rates. Raises :class:`ConfigError` if a site of it has none."""
    missing = [name for name in client.sites if name not in rates.sites]
    if missing:
        raise ConfigError(
            f"the rates have no [sites.{missing[0]}]; add one for each site that the client uses"
        )
    bytes_per_second = rates.traffic.messages_per_second * rates.traffic.message_bytes
    fill = client.max_bytes / bytes_per_second
    retain = min(client.retain_seconds, client.retain_bytes / bytes_per_second, fill)
    return _system("reliamsg", rates, client, retain, fill)


def plain_system(kind: Literal["paho", "pika"], rates: Rates, site: SiteRates, name: str) -> System:
    """A plain client that publishes to one site and waits for its confirms."""
    return _system(kind, rates, Client(sites=(name,)), 0.0, inf, site)


def _system(
    kind: Literal["reliamsg", "paho", "pika"], rates: Rates, client: Client, retain: float, fill: float,
    only: SiteRates | None = None,
) -> System:  # fmt: skip
    producer, consumer = rates.producer, rates.consumer
    chosen = [only] if only is not None else [rates.sites[name] for name in client.sites]
    plain = kind != "reliamsg"
    return System(
        kind=kind,
        sites=tuple(map(_hazard, chosen)),
        common_loss=rates.all_sites.losses_per_year / YEAR,
        message_rate=rates.traffic.messages_per_second,
        producer_crash=producer.crashes_per_year / YEAR,
        producer_restart=producer.restart_seconds,
        producer_disk=producer.disk_losses_per_year / YEAR,
        consumer_crash=consumer.outages_per_year / YEAR,
        consumer_outage=consumer.outage_seconds,
        inbox_loss=0.0 if plain else consumer.inbox_losses_per_year / YEAR,
        # A plain client has no inbox: messages wait for the application at the broker.
        broker_wait=consumer.broker_wait_seconds + (consumer.inbox_wait_seconds if plain else 0.0),
        inbox_wait=0.0 if plain else consumer.inbox_wait_seconds,
        handle=consumer.handle_seconds,
        client=client,
        retain=retain,
        fill=fill,
    )
