"""The plan: what a client loses, what decides that, what to change, and what others lose under the same rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import msgspec.structs

from reliamsg.arguments import check_number
from reliamsg.errors import ConfigError
from reliamsg.plan.client import Client
from reliamsg.plan.model import Fate, fate_of
from reliamsg.plan.rates import YEAR, KeyPath, Partitions, Rates, SiteRates, value_at, with_value
from reliamsg.plan.system import plain_system, system_of
from reliamsg.policy import Confirm, Quorum

__all__ = ["Change", "Compared", "Influence", "Plan", "make_plan"]

_STEP = 0.01
"""The relative step of numeric derivatives."""
_FROM_ZERO = 1e-3
"""The step from 0, in incidents per year."""
_MOST_RETAINED_S = 30 * 86400.0
"""Longer retention is not proposed: keep messages until they are consumed."""


@dataclass(frozen=True)
class Compared:
    """A client, and what becomes of its messages."""

    name: str
    fate: Fate
    lost_per_year: float
    """Messages that the application never gets, lost and declared missing."""
    duplicated_per_year: float


@dataclass(frozen=True)
class Influence:
    """How much a rate, a duration or a setting matters."""

    name: str
    """Its key in the file of rates, such as ``sites.dc1.losses_per_year``, or ``retain_seconds``."""
    value: float
    elasticity: float
    """By how many percent the probability of loss grows if the value grows by one percent; below 0 if it falls."""
    lost_per_incident: float | None
    """Of a rate: the mean number of messages that one more incident costs. None for durations and settings."""


@dataclass(frozen=True)
class Change:
    """A change, and the probability of loss per message with it."""

    text: str
    cost: str
    missing: float
    reaches: bool
    """Whether the target is met."""


@dataclass(frozen=True)
class Plan:
    """The answer of :func:`make_plan`. Probabilities are per message."""

    client: Compared
    compared: tuple[Compared, ...]
    """Plain clients, and reliamsg with every release and confirm policy."""
    influences: tuple[Influence, ...]
    """Every number, the most important first."""
    target: float | None
    changes: tuple[Change, ...]
    """With a target: changes in the order of their effort, settings first."""

    @property
    def reached(self) -> bool:
        """Whether the client meets the target; without one, it does."""
        return self.target is None or self.client.fate.missing <= self.target

    @property
    def cheapest(self) -> Change | None:
        """The change with the least effort that reaches the target, if one is needed and any does."""
        return None if self.reached else next((change for change in self.changes if change.reaches), None)


def make_plan(rates: Rates, client: Client | None = None, *, target: float | None = None) -> Plan:
    """Compute the fate of a message of `client` under `rates`.

    Without a `client`, it is one with default settings that uses all sites in `rates`. `target` is a probability of
    loss per message, above 0 and below 1. Raises :class:`ConfigError` if a site of the client has no rates.
    """
    if target is not None:
        check_number("target", target, above=0, most=1)
        if target == 1:
            raise ConfigError("target must be below 1: it is a probability per message, such as 1e-9")
    chosen = client if client is not None else Client(sites=tuple(rates.sites))
    own = _compared(str(chosen), rates, fate_of(system_of(rates, chosen)))
    changes = () if target is None else tuple(_changes(rates, chosen, target))
    return Plan(
        own, tuple(_alternatives(rates, chosen)), tuple(_influences(rates, chosen, own.fate)), target, changes
    )


def _compared(name: str, rates: Rates, fate: Fate) -> Compared:
    messages = rates.traffic.messages_per_second * YEAR * fate.accepting
    return Compared(name, fate, fate.missing * messages, fate.duplicated * messages)


def _alternatives(rates: Rates, client: Client) -> Iterator[Compared]:
    first = client.sites[0]
    site = rates.sites[first]
    plain: tuple[Literal["paho", "pika"], ...] = ("paho", "pika")
    for kind in plain:
        fate = fate_of(plain_system(kind, rates, site, first))
        yield _compared(f"plain {kind}, site {first}", rates, fate)
    if isinstance(rates.cluster, SiteRates):
        fate = fate_of(plain_system("pika", rates, rates.cluster, "cluster"))
        yield _compared("plain pika, one cluster", rates, fate)
    sites = len(client.sites)
    policies: list[Confirm] = ["any", *(Quorum(k) for k in range(2, sites)), "all-active", "all"]
    releases: tuple[Literal["confirmed", "consumed"], ...] = ("confirmed", "consumed")
    for release in releases:
        for confirm in policies:
            one = replace(client, release=release, confirm=confirm)
            yield _compared(str(one), rates, fate_of(system_of(rates, one)))


def _paths(rates: Rates, client: Client) -> Iterator[KeyPath]:
    """The keys of everything that concerns the client."""
    for table in ("producer", "consumer", "all_sites"):
        yield from ((table, key) for key in getattr(rates, table).__struct_fields__)
    for name in client.sites:
        site = rates.sites[name]
        yield from (("sites", name, key) for key in site.__struct_fields__ if key != "partitions")
        if isinstance(site.partitions, Partitions):
            for key in ("per_year", "seconds", "losing_share"):
                yield "sites", name, "partitions", key


def _influences(rates: Rates, client: Client, fate: Fate) -> list[Influence]:
    """Derivatives by every number, from central differences.

    The derivative of an expected loss by the rate of a Poisson process is the mean additional loss of one additional
    incident, per unit of time (the Russo-Margulis formula: Last and Penrose, Lectures on the Poisson Process, 2017,
    chapter 19).
    """

    def slope(value: float, missing: Callable[[float], float]) -> float:
        if not value:
            return missing(_FROM_ZERO) / _FROM_ZERO - fate.missing / _FROM_ZERO
        return (missing(value * (1.0 + _STEP)) - missing(value * (1.0 - _STEP))) / (2.0 * _STEP * value)

    def influence(name: str, value: float, slope: float) -> Influence:
        elasticity = slope * value / fate.missing if fate.missing else 0.0
        lost = None
        if name.endswith("per_year"):
            lost = max(0.0, slope * rates.traffic.messages_per_second * YEAR)
        return Influence(name, value, elasticity, lost)

    found = []
    for path in _paths(rates, client):
        value = value_at(rates, path)
        if value or path[-1].endswith("per_year"):
            by = slope(value, lambda tried, path=path: _missing(with_value(rates, path, tried), client))  # type: ignore[misc]
            found.append(influence(".".join(path), value, by))
    if client.release == "confirmed":
        by = slope(
            client.retain_seconds, lambda tried: _missing(rates, replace(client, retain_seconds=tried))
        )
        found.append(influence("retain_seconds", client.retain_seconds, by))
    return sorted(found, key=lambda one: -abs(one.elasticity))


def _missing(rates: Rates, client: Client) -> float:
    return fate_of(system_of(rates, client)).missing


def _changes(rates: Rates, client: Client, target: float) -> Iterator[Change]:
    """What might reach the target, in the order of effort: settings, disk space, another site, a better disk."""

    def change(text: str, cost: str, rates: Rates, client: Client) -> Change:
        missing = _missing(rates, client)
        return Change(text, cost, missing, missing <= target)

    hold = replace(client, on_gap="hold")
    if client.on_gap == "skip":
        yield change('on_gap = "hold"', "gaps wait for an operator", rates, hold)
    if client.release == "confirmed":
        yield _longer_retention(rates, hold, target)
    kept = replace(hold, release="consumed")
    if client.release == "confirmed":
        cost = "the outbox fills while a group is away, and then publishing blocks"
        yield change('release = "consumed"', cost, rates, kept)
    best = min(client.sites, key=lambda name: rates.sites[name].losses_per_year)
    more = _set_sites(rates, rates.sites | {"another": rates.sites[best]})
    for one in (hold, kept):
        wider = replace(one, sites=(*client.sites, "another"))
        release = "" if one.release == client.release else ', and release = "consumed"'
        if one is kept and not release:
            continue
        yield change(f"another site, as reliable as {best}{release}", "a broker", more, wider)
    disk = rates.producer.disk_losses_per_year
    path = ("producer", "disk_losses_per_year")

    def with_disk(part: float) -> float:
        return _missing(with_value(rates, path, disk * part), kept)

    if disk and with_disk(0.0) <= target < with_disk(1.0):
        part = _boundary(lambda exponent: with_disk(10.0**-exponent) <= target, 0.0, 15.0)
        allowed = disk * 10.0**-part
        text = f'release = "consumed", and an outbox that is lost at most {allowed:.2g} times a year'
        yield change(text, "a replicated disk", with_value(rates, path, allowed), kept)


def _longer_retention(rates: Rates, client: Client, target: float) -> Change:
    """The shortest retention that reaches the target, or the longest that is proposed."""
    bytes_per_second = rates.traffic.messages_per_second * rates.traffic.message_bytes

    def with_retention(seconds: float) -> Client:
        size = int(seconds * bytes_per_second) + 1
        return replace(
            client, retain_seconds=seconds, retain_bytes=size, max_bytes=max(client.max_bytes, 2 * size)
        )

    def missing(seconds: float) -> float:
        return _missing(rates, with_retention(seconds))

    seconds = _MOST_RETAINED_S
    if missing(seconds) <= target:
        seconds = _boundary(lambda tried: missing(tried) <= target, 1.0, seconds)
    best = missing(seconds)
    size = with_retention(seconds).retain_bytes
    text = f"retain_seconds = {seconds:.0f}, retain_bytes = {size}"
    return Change(text, f"{size / 1e6:,.0f} MB in the outbox", best, best <= target)


def _boundary(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least value that is enough, to 1 %, by bisection; `high` is."""
    if enough(low):
        return low
    while high - low > max(0.01 * low, 1e-3):
        middle = sqrt(low * high) if low > 1.0 else (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _set_sites(rates: Rates, sites: dict[str, SiteRates]) -> Rates:
    return msgspec.structs.replace(rates, sites=sites)
